"""The table of a view's status, against a real catalog: what it allows is written, all else is not."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headrace.errors import BugError, DefiniteFailure
from headrace.sql import install, states
from headrace.sql.status import (
    BORN,
    OWNED,
    TRANSITIONS,
    UNFINISHED,
    CommandStatus,
    Status,
    ways_to,
)

PAGE = Path(__file__).parents[2] / "docs" / "ARCHITECTURE.md"


@pytest.fixture(scope="module")
def conn(databases):
    name = databases.take()
    dsn = make_conninfo(databases.server, dbname=name)
    with psycopg.connect(dsn, autocommit=True) as made:
        install.install(made)
        made.execute(
            "INSERT INTO headrace.views (id, schema_name, view_name, query)"
            " VALUES (1, 'public', 'v', '')"
        )
        yield made
    databases.give_back(name)


def put(conn: psycopg.Connection, status: Status) -> None:
    conn.execute(
        "UPDATE headrace.views SET status = %s, message = 'before', sqlstate = '22012'",
        (status,),
    )


def row(conn: psycopg.Connection) -> tuple:
    return conn.execute("SELECT v.* FROM headrace.views v").fetchone()


@pytest.mark.parametrize("only", [False, True], ids=["any", "said"])
@pytest.mark.parametrize(("before", "to"), list(itertools.product(Status, Status)))
def test_a_status_changes_only_as_the_table_says(conn, before, to, only):
    put(conn, before)
    was = row(conn)
    error = DefiniteFailure("after")
    allowed = to in TRANSITIONS[before]
    if only and not allowed:
        with pytest.raises(BugError):
            states.become(conn, 1, to, error, only={before})
    else:
        said = {before} if only else None
        assert states.become(conn, 1, to, error, only=said) is allowed
    if not allowed:
        assert row(conn) == was
        return
    found = conn.execute("SELECT status, message, sqlstate FROM headrace.views")
    assert found.fetchone() == (to, "after", DefiniteFailure.sqlstate)
    again = row(conn)
    assert states.become(conn, 1, to, error) is False, "nothing is written twice"
    assert row(conn) == again


def test_from_other_statuses_than_those_that_are_said_nothing_changes(conn):
    for before, said in itertools.permutations(ways_to(Status.RUNNING), 2):
        put(conn, before)
        was = row(conn)
        assert not states.become(conn, 1, Status.RUNNING, only={said})
        assert row(conn) == was


@pytest.mark.parametrize(
    ("table", "members"), [("views", Status), ("commands", CommandStatus)]
)
def test_the_catalog_knows_the_same_ones(conn, table, members):
    checks = conn.execute(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE contype = 'c' AND conrelid = %s::regclass",
        (f"headrace.{table}",),
    ).fetchall()
    (told,) = [text for (text,) in checks if "status" in text]
    assert sorted(re.findall(r"'(\w+)'", told)) == sorted(members)


def test_each_is_reached_and_none_is_the_end():
    reached, new = set(), {BORN}
    while new:
        reached |= new
        new = {after for one in new for after in TRANSITIONS[one]} - reached
    # Nobody begins with it any more.
    assert reached == set(Status) - {Status.PENDING}
    assert set(TRANSITIONS) == set(Status)
    assert all(TRANSITIONS[one] - {one} for one in Status)
    assert {*UNFINISHED, *OWNED, Status.ERROR} == set(Status)


def test_the_page_has_the_table():
    told = re.findall(r"^\| `(\w+)` → \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert {
        Status(before): frozenset(map(Status, re.findall(r"`(\w+)`", after)))
        for before, after in told
    } == TRANSITIONS
