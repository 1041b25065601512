"""Replay bundles: files with which the engine's computation is repeated on another machine."""
