"""The screen of the demo: numbers as a page for a terminal."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.errors import PrerequisiteError

try:
    from rich.console import Console, Group
    from rich.table import Table
    from rich.text import Text
except ModuleNotFoundError as error:
    raise PrerequisiteError(
        "the package for the screen of the demo is not installed",
        hint="Install it with: pip install 'headrace[embedded]'.",
    ) from error

_BARS: Final = "▁▂▃▄▅▆▇█"
_BUSY: Final = 0.9
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


@contextlib.contextmanager
def opened() -> Iterator[Callable[[Shown], None]]:
    """Take the terminal, yield a function that shows numbers, and restore the terminal."""
    console = Console(highlight=False)
    with console.screen():
        scrolls = console.is_dumb_terminal or not console.is_terminal
        draw = console.print if scrolls else console.update_screen
        yield lambda shown: draw(page(shown, console))


def page(shown: Shown, console: Console) -> Group:
    """Return the whole page; table and reports give way on a terminal with few lines."""
    top = Group(
        Text.assemble(("Headrace demo", "bold"), f"   {shown.orders:,} orders\n"),
        f"  written    {shown.transactions_per_s:8,.0f} transactions/s"
        f" {shown.rows_per_s:8,.0f} rows/s   {shown.rows:,} rows in all",
        f"  freshness  {_ms(shown.p50_ms)} p50 {_ms(shown.p99_ms)} p99"
        "   commit to visible, last 10 s",
        Text(f"{'':<13}{sparkline(shown.history_ms[-(console.width - _BESIDE) :])}", "dim"),
        f"{'':<13}this machine is busy: {shown.busy:.0%} of {shown.processors} processors,"
        " which delays all views\n"
        if shown.busy >= _BUSY
        else "",
        *(
            Text.assemble("  ", (f"{name:<20}", "bold"), f" {status:<11} {text}")
            for name, status, text in shown.views
        ),
        "",
    )
    below = Group(
        *(Text.assemble((f"  {what:<5}", "dim"), (how, "bold")) for what, how in shown.links),
        "\n  [b]w[/] write a burst   [b]k[/] kill -9 the worker   [b]v[/] verify now\n"
        "  [b]a[/] violate the assertion   [b]c[/] open the console   [b]q[/] quit",
    )
    left = console.height - sum(len(console.render_lines(part)) for part in (top, below)) - 2
    said = shown.said[-max(left - _TABLE_MIN, 1) :]
    table = Table(box=None, header_style="dim", padding=(0, 0, 0, 2))
    for number, name in enumerate(shown.heading):
        table.add_column(name, min_width=16, justify="right" if number else "left")
    for row in shown.table[: max(left - len(said), _TABLE_MIN) - 1]:
        table.add_row(*(Text(value) for value in row))
    return Group(top, table, "", *(Text(f"  {text}") for text in said), "", below)


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
