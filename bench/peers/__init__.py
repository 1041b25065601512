"""Headrace compared with other systems on the same data: ``make bench-peers``."""
