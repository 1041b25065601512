"""Measurements: ``python -m bench [SCENARIO …] [--json]``."""
