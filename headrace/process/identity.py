"""What tells this process from an earlier one that had its part, and maybe its process id."""

from __future__ import annotations

import functools
import os
import uuid


@functools.cache
def name() -> str:
    """Twelve hexadecimal digits, which no other process has."""
    return uuid.uuid4().hex[:12]


os.register_at_fork(after_in_child=name.cache_clear)
