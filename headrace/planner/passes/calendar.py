"""Values of the clock that change only at whole seconds, such as ``current_date``.

A *calendar value* reads no column.  ``passes/temporal.py`` replaces it by a column of a
``CalendarNode``, where it is not part of a comparison that a ``TemporalNode`` computes.  Postgres
computes it for every second (``expressions/calendar.py``), so it must be constant within each one:

* The clock is *aligned*: within a second it only passes.  It stays aligned in another time zone,
  as a timestamp, and plus or minus an interval of whole seconds.  The offset of a time zone is a
  whole number of seconds, and changes at a whole second.
* A unit of an aligned value, not below a second, is a calendar value.
* A function of a calendar value and constants is one too.

Counter-examples: ``extract(second FROM now())`` has a fraction, and ``now()::timestamp(0)`` changes
in the middle of a second.  A function that may fail for a date of today, as ``1 / (extract(month
FROM now()) - 5)``, stays with the rows that need it: only ``extract`` becomes a column.
"""

from __future__ import annotations

import re
from typing import Final

from headrace import types as t
from headrace.planner.logical.scalar import CLOCK, Call, Const, Expr, reads_clock, refs

_TIMES: Final = (t.DATE, t.TIMESTAMP, t.TIMESTAMPTZ)
_CASTS: Final = {
    t.DATE: "pg_catalog.date",
    t.TIMESTAMP: 'pg_catalog."timestamp"',
    t.TIMESTAMPTZ: "pg_catalog.timestamptz",
}
_UNITS: Final = frozenset(
    {
        *("second", "minute", "hour", "day", "week", "month", "quarter", "year", "decade"),
        *("century", "millennium"),
    }
)
_FIELDS: Final = (_UNITS - {"second"}) | {
    *("dow", "isodow", "doy", "isoyear", "timezone", "timezone_hour", "timezone_minute"),
}
_FRACTION: Final = re.compile("ms|us|ff", re.IGNORECASE)
"""Patterns of ``to_char`` that show a part of a second; also in quotes, where they are harmless."""
_WHOLE: Final = re.compile(r"[^.]*")
"""An interval or timestamp without a part of a second."""


def is_calendar(expr: Expr) -> bool:
    """Return whether ``expr`` is a calendar value: a unit of the clock, or a function of one."""
    if not isinstance(expr, Call) or not expr.trusted or refs(expr) or not reads_clock(expr):
        return False
    clocks = [a for a in expr.args if reads_clock(a)]
    rest = [a for a in expr.args if not reads_clock(a)]
    if len(clocks) != 1 or not all(isinstance(a, Const) and a.text is not None for a in rest):
        return False
    [clock], constants = clocks, [a.text or "" for a in rest if isinstance(a, Const)]
    if clock.oid not in _TIMES or not (_is_aligned(clock) or is_calendar(clock)):
        return False
    if _truncates(expr, constants):
        return True
    return is_calendar(clock) and _keeps_time(expr, rest)


def shown(expr: Expr) -> bool:
    """Return whether a calendar value becomes a column.

    A sum is computed for each row, so that views with different constants share the value.
    """
    return isinstance(expr, Call) and expr.symbol not in ("+", "-") and is_calendar(expr)


def only(expr: Expr) -> bool:
    """Return whether ``expr`` reads the clock only in calendar values."""
    if not reads_clock(expr) or is_calendar(expr):
        return True
    return isinstance(expr, Call) and all(map(only, expr.args))


def _truncates(call: Call, constants: list[str]) -> bool:
    """Return whether ``call`` is a unit of the one argument that reads the clock."""
    count = len(call.args)
    first = constants[0].lower() if constants else ""
    match call.symbol:
        case "pg_catalog.date":
            return count == 1
        case "pg_catalog.date_trunc":
            return first in _UNITS and reads_clock(call.args[1])
        case 'pg_catalog."extract"' | "pg_catalog.date_part":
            return count == 2 and reads_clock(call.args[1]) and first in _FIELDS
        case "pg_catalog.to_char":
            return count == 2 and reads_clock(call.args[0]) and not _FRACTION.search(first)
        case "pg_catalog.date_bin":
            return (
                count == 3
                and reads_clock(call.args[1])
                and all(_WHOLE.fullmatch(text) for text in constants)
            )
        case _:
            return False


def _is_aligned(expr: Expr) -> bool:
    """Return whether ``expr`` is the clock, in some time zone, plus whole seconds."""
    if expr == CLOCK:
        return True
    if not isinstance(expr, Call) or not expr.trusted or expr.oid not in _TIMES:
        return False
    clocks = [a for a in expr.args if reads_clock(a)]
    rest = [a for a in expr.args if not reads_clock(a)]
    if len(clocks) != 1 or not _is_aligned(clocks[0]) or expr.oid == t.DATE:
        return False
    return _keeps_time(expr, rest)


def _keeps_time(call: Call, rest: list[Expr]) -> bool:
    """Return whether ``call`` changes the type or zone, or adds whole seconds or days."""
    if not all(isinstance(a, Const) and a.text is not None for a in rest):
        return False
    if call.symbol == _CASTS.get(call.oid):
        return not rest
    if len(rest) != 1 or not isinstance(rest[0], Const):
        return False
    if call.symbol == "pg_catalog.timezone" and rest[0].oid == t.TEXT:
        return True
    if call.symbol not in ("+", "-", "pg_catalog.timezone"):
        return False
    if call.symbol == "-" and not reads_clock(call.args[0]):
        return False
    numeric = rest[0].oid in (t.INT2, t.INT4)
    return numeric or (rest[0].oid == t.INTERVAL and bool(_WHOLE.fullmatch(rest[0].text or "")))
