"""Several calls, and calls among other statements, sent in one go."""

from __future__ import annotations

import psycopg
import pytest

from tests.security import wire as w
from tests.waiting import wait_until


@pytest.fixture
def conn(commander, database):
    name = str(psycopg.conninfo.conninfo_to_dict(database)["dbname"])
    with w.Wire(commander.port, user="postgres", database=name) as one:
        one.seen.clear()
        yield one
        # After any test, no answer is owed, and the next call is seen.
        before = len(commander.builder.calls)
        one.send(w.query("SELECT 5") + w.query(call("last")))
        assert w.kinds(one.until("Z", 2)) == "TDCZNNCZ"
        assert len(commander.builder.calls) == before + 1


def call(name: str) -> str:
    return f"CALL headrace.create_view('{name}', 'SELECT 1')"


def made(commander) -> list[str]:
    """Return the names of the requested views, in order."""
    return [params["name"] for _, params in commander.builder.calls]


def answers(messages: list[w.Message]) -> str:
    """Return the types of the answers, without notices."""
    return w.kinds(messages).replace("N", "")


def codes(messages: list[w.Message]) -> list[str]:
    return [w.fields(body)["C"] for kind, body in messages if kind == "E"]


def test_queries_in_one_go(conn, commander):
    conn.send(w.query(call("a")), w.query("SELECT 1"), w.query(call("b")))
    assert answers(conn.until("Z", 3)) == "CZTDCZCZ"
    assert made(commander) == ["a", "b"]


def test_segments_in_one_go(conn, commander):
    conn.send(*(w.run(call(name)) + w.SYNC for name in "abc"))
    assert answers(conn.until("Z", 3)) == "12nCZ" * 3
    assert made(commander) == ["a", "b", "c"]


def test_calls_in_one_segment_are_made_one_after_the_other(conn, commander):
    """Each call commits by itself, like a procedure that commits."""
    conn.send(w.run(call("a")) + w.run(call("b")) + w.run(call("c")) + w.SYNC)
    assert answers(conn.until("Z")) == "12nC" * 3 + "Z"
    assert made(commander) == ["a", "b", "c"]


def test_a_failed_call_skips_the_rest_of_its_segment(conn, commander):
    conn.send(w.run(call("a")) + w.run(call("refused")) + w.run(call("b")) + w.SYNC)
    conn.send(w.run(call("c")) + w.SYNC)
    found = conn.until("Z", 2)
    assert answers(found) == "12nC12nEZ12nCZ"
    assert codes(found) == ["0A000"]
    assert made(commander) == ["a", "refused", "c"]


def test_a_call_behind_a_statement_of_its_segment_is_left_to_postgres(conn, commander):
    """The same transaction may contain changes that the view has to see.

    Postgres 18 treats it as a transaction block, so the calls are carried out after its end; earlier
    versions let the procedure commit.
    """
    conn.send(w.run("SELECT 1") + w.run(call("a")) + w.run(call("b")) + w.SYNC)
    assert answers(conn.until("Z")) == "12TDC12nC12nCZ"
    wait_until(lambda: made(commander) == ["a", "b"], "both are carried out")


def test_a_call_in_front_of_a_statement_of_its_segment(conn, commander):
    conn.send(w.run(call("a")) + w.run("SELECT 1") + w.SYNC)
    assert answers(conn.until("Z")) == "12nC12TDCZ"
    assert made(commander) == ["a"]


@pytest.mark.parametrize(
    ("begun", "want"),
    [
        (w.parse("SELECT 1", "s"), "1"),
        (w.parse("SELECT 1") + w.bind(), "12"),
        (w.run("SELECT 1"), "12TDC"),
        (w.parse(call("b")) + w.bind(), "12"),
    ],
    ids=["parse", "bind", "execute", "bind of a call"],
)
def test_a_query_ends_a_segment_without_sync(conn, commander, begun, want):
    """Only the Query makes Postgres send its earlier answers."""
    conn.send(begun + w.query(call("a")))
    assert answers(conn.until("Z")) == f"{want}CZ"
    assert made(commander) == ["a"]


def test_a_query_behind_an_error_is_skipped(conn, commander):
    conn.send(w.parse("nonsense") + w.query(call("a")) + w.SYNC)
    assert answers(conn.until("Z")) == "EZ"
    assert made(commander) == []


def test_one_portal_executed_twice(conn, commander):
    """Postgres's procedure would run once: its portal is done, or gone, after it."""
    conn.send(w.run(call("a")) + w.execute() + w.SYNC)
    assert answers(conn.until("Z")).startswith("12nC")
    assert made(commander) == ["a"]
