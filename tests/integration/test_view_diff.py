"""Differences of a view between two times, and the last changes of a row: out of its history."""

from __future__ import annotations

import collections
import random

import psycopg
import pytest

from tests.integration.test_history import (
    HISTORY,
    QUERIES,
    TABLES,
    caught_up,
    change,
    rows,
    snapshot,
)
from tests.security.roles import role

pytestmark = pytest.mark.shared_engine

__all__ = ("TABLES",)
DIFF = "SELECT change, times, before, after FROM headrace.view_diff(%s, since => %s, until => %s)"
WHO = "SELECT change, before, after, txid, xids FROM headrace.who_changed(%s, %s, most => %s)"


@pytest.fixture
def commander(commander):
    for name, query in QUERIES.items():
        commander.execute("CALL headrace.create_view(%s, %s, %s)", (name, query, HISTORY))
    commander.execute(
        "CALL headrace.create_view('k', 'SELECT id, g, x FROM items', %s)", (HISTORY,)
    )
    caught_up(commander, *QUERIES, "k")
    return commander


def replayed(before, told):
    """Return the rows ``before`` after the changes of a diff."""
    out = collections.Counter(before)
    for kind, times, old, new in told:
        assert kind == {(False, True): "added", (True, False): "removed"}.get(
            (old is not None, new is not None), "changed"
        )
        for image, sign in ((old, -1), (new, 1)):
            if image is not None:
                out[image] += sign * times
    assert min(out.values(), default=0) >= 0
    return +out


def test_it_leads_from_any_state_to_any_later_one(commander, source):
    rng = random.Random(7)
    names = (*QUERIES, "k")
    seen = {name: [snapshot(source, name)] for name in names}
    for _ in range(6):
        with source.transaction():
            change(source, rng)
        caught_up(source, *names)
        for name in names:
            seen[name].append(snapshot(source, name))
    for name, states in seen.items():
        for i, (since, before) in enumerate(states):
            for until, after in states[i:]:
                told = source.execute(DIFF, (name, since, until)).fetchall()
                assert replayed(before, told) == after
                # Nothing that is the same at both ends.
                assert all(old != new for _, _, old, new in told)
        told = source.execute(DIFF, (name, states[0][0], None)).fetchall()
        assert replayed(states[0][1], told) == rows(source, name)


def test_a_row_that_keeps_its_key_is_changed(commander, source):
    at = snapshot(source, "k")[0]
    source.execute("UPDATE items SET x = 0.5 WHERE id = 7")
    source.execute("DELETE FROM items WHERE id = 8")
    source.execute("INSERT INTO items VALUES (1000, 1, 2)")
    source.execute("UPDATE items SET x = 9 WHERE id = 9; UPDATE items SET x = 13.50 WHERE id = 9")
    caught_up(source, "k")
    assert source.execute(DIFF, ("k", at, None)).fetchall() == [
        ("added", 1, None, "(1000,1,2)"),
        ("changed", 1, "(7,2,10.50)", "(7,2,0.5)"),
        ("removed", 1, "(8,3,12.00)", None),
    ]
    copies = "INSERT INTO notes SELECT n.* FROM notes n, generate_series(1, 3) WHERE id = 3"
    at = snapshot(source, "w")[0]
    source.execute(copies)
    caught_up(source, "w")
    [(kind, times, before, _)] = source.execute(DIFF, ("w", at, None)).fetchall()
    assert (kind, times, before) == ("added", 3, None)


def test_between_times(commander, source):
    begun = source.execute("SELECT clock_timestamp()").fetchone()[0]
    source.execute("UPDATE items SET x = 1 WHERE id = 1")
    source.execute("CALL headrace.wait_for('k')")
    middle = source.execute("SELECT clock_timestamp()").fetchone()[0]
    source.execute("UPDATE items SET x = 2 WHERE id = 1")
    diff = (
        "SELECT before, after FROM headrace.view_diff('k', since_at => %s::timestamptz,"
        " until_at => %s::timestamptz)"
    )
    assert source.execute(diff, (begun, middle)).fetchall() == [("(1,1,1.50)", "(1,1,1)")]
    # It waits for all commits before the end.
    now = source.execute("SELECT clock_timestamp()").fetchone()[0]
    assert source.execute(diff, (middle, now)).fetchall() == [("(1,1,1)", "(1,1,2)")]


REFUSED = {
    "('k')": "22023",
    "('k', since => 0)": "22023",
    "('k', since => 1, since_at => now())": "22023",
    "('k', since => 999999999)": "22023",
    "('k', since => headrace.view_txid('k'), until => headrace.view_txid('k') - 1)": "22023",
    "('k', since_at => 'epoch')": "22023",
    "('k', since_at => now(), until_at => now() + interval '1 h')": "22023",
    "('items', since => 1)": "55000",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_is_not_there_is_refused(arguments, commander, source):
    with pytest.raises(psycopg.Error) as caught:
        source.execute(f"SELECT * FROM headrace.view_diff{arguments}")
    assert caught.value.sqlstate == REFUSED[arguments], caught.value


def test_who_changed_a_row(commander, source):
    assert source.execute(WHO, ("k", '{"id": 5}', 10)).fetchall() == [], "not since it is kept"
    xids = []
    for statement in (
        "UPDATE items SET x = 1 WHERE id = 5",
        "UPDATE items SET x = x + 1 WHERE id <> 5",
        "DELETE FROM items WHERE id = 5",
        "INSERT INTO items VALUES (5, 3, 7.0)",
    ):
        with source.transaction():
            source.execute(statement)
            xids += source.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        caught_up(source, *QUERIES, "k")
    told = source.execute(WHO, ("k", '{"id": 5}', 10)).fetchall()
    assert [row[:3] for row in told] == [
        ("added", None, "(5,3,7.0)"),
        ("removed", "(5,0,1)", None),
        ("changed", "(5,0,7.50)", "(5,0,1)"),
    ]
    assert [row[3] for row in told] == sorted((row[3] for row in told), reverse=True)
    assert [row[4] for row in told] == [[xids[3]], [xids[2]], [xids[0]]]
    assert source.execute(WHO, ("k", '{"id": 5}', 1)).fetchall() == told[:1]
    # Any values, compared as numbers are; and a view without a key.
    assert source.execute(WHO, ("k", '{"g": 3, "x": 7}', 10)).fetchall() == told[:1]
    assert source.execute(WHO, ("k", '{"id": 123456}', 10)).fetchall() == []
    assert len(source.execute(WHO, ("v", '{"g": 3}', 10)).fetchall()) == 2
    for key, code in (('{"no": 1}', "42703"), ("[5]", "22023"), ("{}", "22023")):
        with pytest.raises(psycopg.Error) as caught:
            source.execute(WHO, ("k", key, 10))
        assert caught.value.sqlstate == code


def test_only_who_may_read_the_view(commander, source):
    calls = ("headrace.view_diff('k', since => 1)", "headrace.who_changed('k', '{\"id\": 1}')")
    with role(source, "poor") as name:
        source.execute(f"SET ROLE {name}")
        for call in calls:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                source.execute(f"SELECT * FROM {call}")
        source.execute("RESET ROLE")
