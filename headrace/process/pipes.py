"""Waits for the pipes of a process that may hang; a check ends each of them."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import Final

_POLL_S: Final = 0.1
"""Seconds between two checks."""

Check = Callable[[], object]
"""Called repeatedly during a wait; an exception ends the wait."""


def write(descriptor: int, data: bytes, check: Check) -> None:
    """Write ``data``, also if the other side reads it late.

    REQUIRES: the descriptor does not block (``os.set_blocking``).

    Raises:
        BrokenPipeError: the other side is gone.
    """
    rest = memoryview(data)
    while rest:
        _, ready, _ = select.select((), (descriptor,), (), _POLL_S)
        if ready:
            rest = rest[os.write(descriptor, rest) :]
        else:
            check()


def await_data(descriptor: int, check: Check) -> None:
    """Wait until there is something to read, or the other side is gone."""
    while not select.select((descriptor,), (), (), _POLL_S)[0]:
        check()
