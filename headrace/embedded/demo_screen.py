"""The screen of the demo: formats numbers as text for a terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_CLEAR: Final = "\x1b[2J\x1b[H"
_BOLD: Final = "\x1b[1m"
_DIM: Final = "\x1b[2m"
_PLAIN: Final = "\x1b[0m"
_BARS: Final = "▁▂▃▄▅▆▇█"
_BUSY: Final = 0.9
_STYLES: Final = re.compile("\x1b\\[[0-9]*m")
_BESIDE: Final = 40
"""Columns of the terminal that the line of bars needs for other text."""
_TABLE_MIN: Final = 2
"""Lines of the table on any terminal: its heading and a row."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The contents of the screen at one time."""

    orders: int
    transactions_per_s: float
    rows_per_s: float
    rows: int
    p50_ms: float
    p99_ms: float
    """Percentiles over the last ten seconds; NaN: nothing was measured."""
    history_ms: Sequence[float | None]
    """Median of each of the last seconds; None: nothing was measured in it."""
    views: Sequence[tuple[str, str, str]]
    """(name, status, message)"""
    heading: Sequence[str]
    table: Sequence[Sequence[str]]
    """Rows of a view; the first column is a name, the others are numbers."""
    busy: float
    """Share of all processors in use by any process, 0 to 1."""
    processors: int
    said: Sequence[str]
    """Reports of the last actions."""
    links: Sequence[tuple[str, str]]
    """(label, command or address)"""


def screen(shown: Shown, columns: int = 80, lines: int = 24) -> str:
    """Return the text of the whole screen; the table gives way on one with few lines."""
    top = [
        f"{_BOLD}Headrace demo{_PLAIN}   {shown.orders:,} orders",
        "",
        f"  written    {shown.transactions_per_s:8,.0f} transactions/s"
        f" {shown.rows_per_s:8,.0f} rows/s   {shown.rows:,} rows in all",
        f"  freshness  {_ms(shown.p50_ms)} p50 {_ms(shown.p99_ms)} p99"
        "   commit to visible, last 10 s",
        f"  {_DIM}{'':<11}{sparkline(shown.history_ms[-(columns - _BESIDE) :])}{_PLAIN}",
        *_busy(shown),
        "",
        *(f"  {_BOLD}{name:<20}{_PLAIN} {status:<11} {text}" for name, status, text in shown.views),
        "",
    ]
    below = [
        "",
        *(f"  {text}" for text in shown.said),
        *([""] if shown.said else []),
        *(f"  {_DIM}{what:<9}{_PLAIN}{_BOLD}{how}{_PLAIN}" for what, how in shown.links),
        "",
        f"  {_BOLD}w{_PLAIN} write a burst   {_BOLD}k{_PLAIN} kill -9 the worker"
        f"   {_BOLD}v{_PLAIN} verify now",
        f"  {_BOLD}a{_PLAIN} violate the assertion   {_BOLD}c{_PLAIN} open the console"
        f"   {_BOLD}q{_PLAIN} quit",
        "",
    ]
    left = lines - sum(_height(line, columns) for line in (*top, *below))
    table = [*_table(shown.heading, shown.table)]
    return _CLEAR + "\n".join([*top, *table[: max(left, _TABLE_MIN)], *below])


def _height(line: str, columns: int) -> int:
    """Return how many lines of the terminal a line takes."""
    return max(-(-len(_STYLES.sub("", line)) // columns), 1)


def sparkline(values: Sequence[float | None]) -> str:
    """Return a logarithmic bar for each value (None: a gap), and the maximum."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    bars = "".join(" " if value is None else _bar(value) for value in values)
    return f"{bars}  {len(values)} s, at most {max(known):,.0f} ms"


def _bar(ms: float) -> str:
    """Return a bar for 1 ms to more than 2 s, two levels for a factor of ten."""
    level = round(math.log10(max(1.0, ms)) * 2)
    return _BARS[min(level, len(_BARS) - 1)]


def _ms(value: float) -> str:
    return f"{'–':>8} ms" if math.isnan(value) else f"{value:8,.0f} ms"


def _busy(shown: Shown) -> Iterable[str]:
    if shown.busy >= _BUSY:
        yield (
            f"  {'':<11}this machine is busy: {shown.busy:.0%} of {shown.processors} processors,"
            f" which delays all views"
        )


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    if heading:
        first, *others = heading
        yield f"  {_DIM}{first:<20}{''.join(f'{name:>16}' for name in others)}{_PLAIN}"
    for row in rows:
        first, *others = row
        yield f"  {first:<20}{''.join(f'{value:>16}' for value in others)}"
