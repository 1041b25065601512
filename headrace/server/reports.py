"""Reports of the command line, for people and as JSON: ``check``, ``status`` and ``views``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import psycopg
from psycopg.rows import dict_row

from headrace.config import Settings
from headrace.counting import counted
from headrace.errors import HeadraceError
from headrace.postgres import connect
from headrace.redaction import redact
from headrace.server.doctor import Finding
from headrace.sql import install

Say = Callable[[str], None]
_FACTS: Final = "SELECT fact, value, ok, hint FROM headrace.status()"
_VIEWS: Final = "SELECT * FROM headrace.list_views() ORDER BY name"
_FAILED: Final = ("error", "sink_error")
_NOT_WORKING: Final = ("stopped", "starting", "error")
_MARKS: Final = {None: " ", True: "✓", False: "✗"}
_SHOWN: Final = ("name", "status", "rows", "lag_ms", "held_by", "message")
"""Columns of ``views`` that are shown to people; the last one may be long."""


def check(findings: Sequence[Finding], settings: Settings, say: Say, *, as_json: bool) -> int:
    """Say what was found; return the exit status: 0 if nothing prevents a start."""
    problems = sum(finding.problem is not None for finding in findings)
    source = redact(settings.source)
    if as_json:
        found = [_of_finding(finding) for finding in findings]
        say(_json({"source": source, "ready": not problems, "findings": found}))
        return 1 if problems else 0
    for finding in findings:
        for line in finding.lines():
            say(line)
    say(f"{source}: {count(problems) if problems else 'ready for headrace'}")
    return 1 if problems else 0


def count(problems: int) -> str:
    """Return how many problems there are, in words."""
    return f"{counted(problems, 'problem')} to fix"


def _of_finding(finding: Finding) -> dict[str, Any]:
    problem = finding.problem
    fields = ("message", "detail", "hint")
    return {
        "name": finding.name,
        "ok": problem is None,
        "found": finding.found or None,
        "warning": finding.warning,
        "problem": None if problem is None else {name: getattr(problem, name) for name in fields},
    }


def status(settings: Settings, say: Say, *, as_json: bool) -> int:
    """Say whether the server works; return the exit status: 0 if nothing is to be done.

    Raises:
        HeadraceError: Headrace is not installed in the database, or was altered there.
    """
    with connected(settings) as conn:
        facts, views = rows(conn, _FACTS), rows(conn, _VIEWS)
    held = [view for view in views if view["held_by"] is not None]
    if as_json:
        say(_json({"source": redact(settings.source), "facts": facts, "held_views": held}))
    else:
        for fact in facts:
            hint = f"  ({fact['hint']})" if fact["hint"] else ""
            say(f"{_MARKS[fact['ok']]} {fact['fact']}: {fact['value']}{hint}")
        for view in held:
            say(f"  {view['name']}: {_state(view)}, {view['held_by']}")
    return 1 if any(fact["ok"] is False for fact in facts) else 0


def views(settings: Settings, say: Say, *, as_json: bool) -> int:
    """List the views; return the exit status: 0 if none of them has failed.

    Raises:
        HeadraceError: Headrace is not installed in the database, or was altered there.
    """
    with connected(settings) as conn:
        found = rows(conn, _VIEWS)
    if as_json:
        say(_json({"source": redact(settings.source), "views": found}))
    else:
        shown = [view | {"lag_ms": lag(view)} for view in found]
        for line in aligned([_SHOWN, *([cell(view[name]) for name in _SHOWN] for view in shown)]):
            say(line)
    return 1 if any(view["status"] in _FAILED for view in found) else 0


@contextlib.contextmanager
def connected(settings: Settings) -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection to a database in which Headrace is installed.

    Raises:
        HeadraceError: it is not installed there, or was altered.
    """
    with connect.session(settings.source, name="headrace") as conn:
        # The reports call functions of the schema, so check that the schema is Headrace's.
        if problems := install.problems(conn):
            raise problems[0]
        there = conn.execute("SELECT pg_catalog.to_regproc('headrace.status') IS NOT NULL")
        if there.fetchone() != (True,):
            raise HeadraceError(f"{redact(settings.source)}: headrace is not installed")
        yield conn


def rows(conn: psycopg.Connection[Any], query: str) -> list[dict[str, Any]]:
    """Return the rows of ``query``, which calls functions of schema headrace."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query).fetchall()


def aligned(table: Sequence[Sequence[str]], numbers: Collection[int] = ()) -> list[str]:
    """Return the rows of ``table`` as lines with aligned columns; ``numbers`` to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = [
            cell.rjust(width) if place in numbers else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def lag(view: Mapping[str, Any]) -> str:
    """Return the lag of a view in milliseconds, as text.

    While a view does not work, it is not known when the first change came that it lacks: the number
    says how old its contents may be at most.  0: nothing was written since.
    """
    lag_ms = view["lag_ms"]
    if lag_ms is None:
        return "unknown"
    bound = view["status"] in _NOT_WORKING and lag_ms > 0
    return f"≤ {lag_ms}" if bound else str(lag_ms)


def cell(value: object) -> str:
    """Return a value as a cell of one line."""
    return "" if value is None else " ".join(str(value).split())


def _state(view: dict[str, Any]) -> str:
    """Return the status, and the cursor's state if that says more."""
    states = [view["status"]]
    if view["cursor"] not in (None, "leading", *states):
        states.append(view["cursor"])
    return ", ".join(states)


def _json(value: object) -> str:
    """Return ``value`` as JSON; times are in ISO 8601."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
