"""Numbers and lists in sentences: singular and plural, and the first few of many names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_SHOWN: Final = 3


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun: ``1 role``, ``2 roles``; ``many`` is an irregular plural."""
    return f"{count} {noun(count, one, many)}"


def noun(count: int, one: str, many: str = "") -> str:
    """Return the noun that goes with a number, without the number."""
    return one if count == 1 else many or f"{one}s"


def shortened(names: Sequence[str], shown: int = _SHOWN) -> str:
    """Return the first of ``names`` as a list, and how many more there are."""
    left = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {left} more" if left > 0 else "")
