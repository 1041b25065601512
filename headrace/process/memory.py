"""Gives memory of this process back to the system."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Final

import pyarrow as pa

LARGE_BYTES: Final = 65_536
"""A command with so much text is worth it: planning one takes a hundred times as much."""


def _trim_of_library() -> Callable[[int], object] | None:
    """Return ``malloc_trim`` of the C library; None: it has none (it is not glibc)."""
    if sys.platform != "linux":
        return None
    found: Callable[[int], object] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found


_TRIM: Final = _trim_of_library()


def give_back() -> None:
    """Have free memory leave the process; takes some ten milliseconds.

    Of Arrow's it is that of the calling thread, which has to be the one that has used it.
    """
    gc.collect()
    pa.default_memory_pool().release_unused()
    if _TRIM is not None:
        _TRIM(0)
