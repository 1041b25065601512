"""A name that distinguishes this process from an earlier one with the same role, or even PID."""

from __future__ import annotations

import functools
import os
import uuid


@functools.cache
def name() -> str:
    """Return twelve hexadecimal digits that are unique to this process."""
    return uuid.uuid4().hex[:12]


os.register_at_fork(after_in_child=name.cache_clear)
