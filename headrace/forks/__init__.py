"""Plans that go on from a copy of their states, outside of the engine."""
