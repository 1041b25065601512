"""``headrace top``: the views as a table that is drawn again every second, stopped views first."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg

from headrace import clock
from headrace.config import Settings
from headrace.counting import counted
from headrace.redaction import redact
from headrace.server import reports

_QUERY: Final = """
    SELECT name, status, lag_ms, p50_ms, p99_ms, rows_per_s, rows,
           pg_catalog.pg_size_pretty(state_bytes) AS state, held_by
      FROM headrace.list_views()
     ORDER BY status OPERATOR(pg_catalog.=) 'running', held_by IS NULL, rows_per_s DESC NULLS LAST,
              name
"""
_HEADING: Final = (
    *("view", "status", "lag ms", "p50 ms", "p99 ms", "rows/s", "rows", "state", "held by"),
)
_NUMBERS: Final = range(2, 8)
"""Places of the columns that are aligned to the right."""
_HOME: Final = "\x1b[H\x1b[J"
_SIZE: Final = (100, 40)
"""Columns and lines, if standard output is no terminal."""

Say = Callable[[str], None]


def run(settings: Settings, say: Say, *, every_s: float, once: bool) -> int:
    """Draw the views until Ctrl-C; ``once``, or if standard output is no terminal, one time.

    Raises:
        HeadraceError: Headrace is not installed in the database, or was altered there.
    """
    drawn = sys.stdout.isatty() and not once
    source = redact(settings.source)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            try:
                with reports.connected(settings) as conn:
                    text = page(source, reports.rows(conn, _QUERY))
                    while drawn:
                        _draw(say, text, every_s)
                        text = page(source, reports.rows(conn, _QUERY))
            except psycopg.OperationalError as error:
                if not drawn:
                    raise
                # It may be back in a moment.
                _draw(say, f"{source}: {str(error).strip()}", every_s)
            else:
                say(text)
                break
    return 0


def _draw(say: Say, text: str, every_s: float) -> None:
    say(_HOME + text)
    sys.stdout.flush()
    clock.sleep(every_s)


def page(source: str, views: Sequence[dict[str, Any]]) -> str:
    """Return the text of one page, cut to the size of the terminal."""
    width, height = shutil.get_terminal_size(_SIZE)
    held = sum(view["held_by"] is not None for view in views)
    rows_per_s = sum(view["rows_per_s"] or 0 for view in views)
    lag_ms = max((view["lag_ms"] or 0 for view in views), default=0)
    unknown = sum(view["lag_ms"] is None for view in views)
    lines = [
        f"{source}: {counted(len(views), 'view')}, {held} not up to date, largest lag {lag_ms} ms"
        f"{f' ({unknown} unknown)' if unknown else ''}, {rows_per_s:.0f} rows/s written",
        "",
    ]
    shown = [{**view, "lag_ms": reports.lag(view)} for view in views]
    table = [_HEADING, *([_cell(value) for value in view.values()] for view in shown)]
    lines += reports.aligned(table, _NUMBERS)
    room = max(height - 1, 4)
    if len(lines) > room:
        lines[room - 1 :] = [f"… and {len(lines) - room + 1} more"]
    return "\n".join(line[:width] for line in lines)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 10 else f"{value:.1f}"
    return reports.cell(value)
