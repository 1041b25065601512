"""Comparison of views with their queries, at every transaction.

``differs`` compares by exact text, in Postgres, in one statement. ``multiset`` fetches the rows, so
that a test can choose how floats are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import psycopg

from tests.waiting import bump, wait_for

Rows = Counter[tuple[str | None, ...]]
FLOAT_OIDS = {700, 701}


def status_of(conn: psycopg.Connection, name: str) -> tuple[str, str | None, str | None]:
    """Return (status, SQLSTATE, message) of a view."""
    row = conn.execute(
        "SELECT status, sqlstate, headrace.view_message(id) FROM headrace.views WHERE view_name = %s",
        (name,),
    ).fetchone()
    assert row is not None, "the view is in the catalog"
    return row


def differs(conn: psycopg.Connection, view: str, query: str) -> list[str]:
    """Return the rows in which view and query differ, compared by their exact text."""
    # A name that no column has.
    rows = 'SELECT "its row"::text COLLATE "C" FROM ({}) "its row"'
    mine, wanted = rows.format(f"TABLE {view}"), rows.format(query)
    found = conn.execute(
        f"SELECT 'missing', * FROM (({wanted}) EXCEPT ALL ({mine})) m UNION ALL"
        f" SELECT 'extra', * FROM (({mine}) EXCEPT ALL ({wanted})) e"
    ).fetchall()
    # One line for each row: a row of many columns cannot be read otherwise.
    return [f"{side} {row}" for side, row in found]


def twelve_digits(value: float) -> str:
    return f"{value:.12g}"


def multiset(
    conn: psycopg.Connection, sql: str, shown: Callable[[float], str] = twelve_digits
) -> Rows:
    """Return the rows of ``sql`` as text; floats are formatted: their sums depend on the order."""
    result = conn.execute(sql).pgresult
    assert result is not None
    out: Rows = Counter()
    for i in range(result.ntuples):
        row: list[str | None] = []
        for j in range(result.nfields):
            value = result.get_value(i, j)
            text = None if value is None else value.decode()
            if text is not None and result.ftype(j) in FLOAT_OIDS:
                text = shown(float(text))
            row.append(text)
        out[tuple(row)] += 1
    return out


def difference(want: Rows, got: Rows) -> str:
    missing, extra = list((want - got).items())[:5], list((got - want).items())[:5]
    return f"missing {missing}\nextra {extra}"


def check(source: psycopg.Connection, views: dict[str, str], where: str) -> None:
    """Check that every view (name: query) equals its query; a failure begins with ``where``."""
    for name, query in views.items():
        want = multiset(source, query)
        got = multiset(source, f"SELECT * FROM {name}")
        assert want == got, f"{where}\n{name}: {query}\n{difference(want, got)}"


def create_view(commander: psycopg.Connection, name: str, query: str) -> None:
    commander.execute(f"CALL headrace.create_view('{name}', $q${query}$q$)")


def numbered(queries: Iterable[str]) -> dict[str, str]:
    """Return the queries by view names ``v0``, ``v1``, …"""
    return {f"v{number}": query for number, query in enumerate(queries)}


def commit(source: psycopg.Connection, statements: Iterable[str]) -> None:
    """Run the statements in one transaction, and wait until all views cover it."""
    with source.transaction():
        for statement in statements:
            source.execute(statement)
        marker = bump(source)
    wait_for(source, marker)


def follow(
    source: psycopg.Connection, views: dict[str, str], transactions: Iterable[list[str]], what: str
) -> None:
    """Check the views now and after each transaction; a failure begins with ``what``.

    Needs the marker (``create_marker``).
    """
    check(source, views, f"{what}, population")
    for number, statements in enumerate(transactions):
        commit(source, statements)
        check(source, views, f"{what}, transaction {number}: {statements}")
