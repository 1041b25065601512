"""Return of this process's free memory to the system."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Final

import pyarrow as pa

LARGE_BYTES: Final = 65_536
"""Text size from which a command is worth a call: planning takes a hundred times as much memory."""


def _trim_of_library() -> Callable[[int], object] | None:
    """Return ``malloc_trim`` of the C library, or None if it has none (it is not glibc)."""
    if sys.platform != "linux":
        return None
    found: Callable[[int], object] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found


_TRIM: Final = _trim_of_library()


def give_back() -> None:
    """Return free memory to the system; takes some ten milliseconds.

    REQUIRES: the calling thread is the one that used Arrow's memory, which is released per thread.
    """
    gc.collect()
    pa.default_memory_pool().release_unused()
    if _TRIM is not None:
        _TRIM(0)
