"""How rows go over a link: packed or as they are, in pieces of which size, how much at a time.

By what is known of the link (``meter.py``), or what somebody has said of it (``add_link``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

SLOW: Final = 30_000_000
"""Bytes per second below which packing pays (``bench links``): half a processor packs as much."""
FAST: Final = 60_000_000
"""From which it does not; in between it stays as it is."""

_PIECE_S: Final = 0.5
"""For so long a piece may keep a word waiting that goes the same way."""
_PIECE_BYTES_MIN: Final = 1 << 14
_PIECE_BYTES_UNKNOWN: Final = 1 << 16
_PIECE_BYTES_MAX: Final = 1 << 20
_WINDOW_S: Final = 2.0
"""What arrives within it may be under way: more than round trips take."""
_WINDOW_BYTES_MIN: Final = 1 << 18
_WINDOW_BYTES_UNKNOWN: Final = 1 << 20
_WINDOW_BYTES_MAX: Final = 1 << 23
_NEAR_WINDOW_BYTES: Final = 1 << 26


@dataclass(frozen=True, slots=True)
class Override:
    """What somebody has said of a link; None: what is measured counts."""

    latency_us: int | None = None
    bytes_per_s: int | None = None


@dataclass(frozen=True, slots=True)
class LinkPace:
    """How rows go."""

    packed: bool
    """Whether they are compressed."""
    piece_bytes: int | None
    """How large a piece may be, before it is compressed; None: rows go whole."""
    window_bytes: int
    """How much may be under way."""


NEAR: Final = LinkPace(packed=False, piece_bytes=None, window_bytes=_NEAR_WINDOW_BYTES)
"""On this machine, always: what is packed there costs and saves nothing."""


def first(*, far: bool) -> LinkPace:
    """Of a link of which nothing is known yet: one to another machine may be slow."""
    return LinkPace(True, _PIECE_BYTES_UNKNOWN, _WINDOW_BYTES_UNKNOWN) if far else NEAR


def of(measured: int | None, said: int | None, before: LinkPace) -> LinkPace:
    """Of a link with a bandwidth, bytes per second, that went as ``before``.

    What somebody has said of it decides whether packing pays; how much may stand before a sign of
    life is a matter of what is so.
    """
    if before.piece_bytes is None:
        return before
    known = measured if said is None else said
    packed = before.packed if known is None else known < (FAST if before.packed else SLOW)
    if measured is None:
        return replace(before, packed=packed)
    piece, window = round(measured * _PIECE_S), round(measured * _WINDOW_S)
    return LinkPace(
        packed,
        # In steps, so that it seldom changes.
        1 << min(max(piece, _PIECE_BYTES_MIN), _PIECE_BYTES_MAX).bit_length() - 1,
        min(max(window, _WINDOW_BYTES_MIN), _WINDOW_BYTES_MAX),
    )
