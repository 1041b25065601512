"""Others beside us, on the same data: ``make bench-peers``."""
