"""Rows and words between the processes of one engine, over Arrow Flight."""
