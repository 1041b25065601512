"""Diffs as statements of a pipeline: they do what ``SinkWriter`` does, for every kind of value."""

# ruff: noqa: F811

from __future__ import annotations

import contextlib

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace.postgres import failures, pipelined
from headrace.postgres.pipelined import Pipelined, Sent
from headrace.sink import pipelined_write
from headrace.sink.writer import SinkWriter
from tests.proxy import Proxy
from tests.sink.test_keyed import COLUMNS
from tests.sink.test_keyed import make as make_keyed
from tests.sink.test_writer import VALUES, conn, contents, diffs, make  # noqa: F401


class Table:
    """A result table, written in pipelines once its statements are made."""

    def __init__(self, conn, target) -> None:
        self.conn, self.target = conn, target
        self.writer, self.pipeline = SinkWriter(conn), Pipelined(conn)
        with conn.transaction():
            self.writer._locked_statements(target)

    def write(self, *rows) -> None:
        write = self.writer.pipelined(self.target, diffs(self.target, list(rows)))
        assert write is not None
        sent = [Sent(b"BEGIN"), *pipelined_write.fence([write]), *write.statements, Sent(b"COMMIT")]
        answers = self.pipeline.exchange(sent)
        assert [answer.count for answer in answers[3:-1]] == list(write.wanted)


@pytest.mark.parametrize("kind", VALUES)
def test_every_value_is_written_as_by_copy(conn, kind):
    target = make(conn, {"v": kind, "n": "integer"})
    values = [*VALUES[kind], None]
    table = Table(conn, target)
    with conn.transaction():
        table.writer.write(target, diffs(target, [((v, "1"), 2) for v in values]))
    copied = contents(conn, target)
    table.write(*[((v, "1"), 2) for v in values])
    assert contents(conn, target) == sorted(copied * 2, key=repr)
    table.write(*[((v, "1"), -3) for v in values], *[((v, None), 1) for v in values])
    table.write(*[((v, "1"), -1) for v in values], *[((v, None), -1) for v in values])
    assert contents(conn, target) == []


def test_a_row_that_changes_alone_is_updated(conn):
    target = make_keyed(conn, COLUMNS, ("k",))
    table = Table(conn, target)
    table.write((("1", "a"), 1), (("2", "a"), 1))
    conn.execute("CREATE TABLE public.refers (k int REFERENCES public.r)")
    conn.execute("INSERT INTO public.refers VALUES (1)")
    with conn.transaction():
        table.writer._locked_statements(target)  # it examines the harmless foreign key
    table.write((("1", "a"), -1), (("1", "b"), 1))
    table.write((("1", "b"), -1), (("1", None), 1), (("2", "a"), -1), (("2", "c"), 1))
    assert contents(conn, target) == [("1", None), ("2", "c")]
    with pytest.raises(psycopg.errors.UniqueViolation):
        table.write((("1", "x"), 1))
    conn.execute("ROLLBACK")
    # The pipeline stays usable, and knows that its prepared statements are gone.
    table.write((("1", None), -1), (("1", "d"), 1))
    assert contents(conn, target) == [("1", "d"), ("2", "c")]


def test_what_stands_behind_a_failure_is_not_carried_out(conn):
    conn.execute("CREATE SEQUENCE public.ran")
    pipeline = Pipelined(conn)
    with pytest.raises(psycopg.errors.DivisionByZero):
        pipeline.exchange(
            [Sent(b"SELECT 1 / 0"), Sent(b"SELECT nextval('public.ran')"), Sent(b"no SQL")]
        )
    assert conn.execute("SELECT is_called FROM public.ran").fetchone() == (False,)
    [answer] = pipeline.exchange([Sent(b"SELECT $1::text[]", [['a"b', "\\", "", "NULL"]], True)])
    assert answer.rows == [(['a"b', "\\", "", "NULL"],)]


@pytest.mark.parametrize("statement", [b"SELECT 1", b"SELECT 1 / 0"])
def test_a_broken_answer_is_a_lost_connection(database, statement):
    """After any earlier answer, the outcome of the remaining statements is unknown."""
    parts = conninfo_to_dict(database)
    proxy = Proxy(parts["host"], int(parts["port"]))
    dsn = make_conninfo(database, host="127.0.0.1", port=proxy.port, sslmode="disable")
    with contextlib.closing(proxy), psycopg.connect(dsn, autocommit=True) as conn:
        proxy.behind = b"q\x7f\xff\xff\xff"
        with pytest.raises(psycopg.OperationalError) as caught:
            Pipelined(conn).exchange([Sent(statement), Sent(b"SELECT 2")])
        assert failures.is_lost(caught.value)
        assert conn.closed


def test_more_statements_than_are_kept(conn, monkeypatch):
    """They are not all prepared again each time, and unused ones are deallocated."""
    monkeypatch.setattr(pipelined, "_KEPT_MAX", 2)
    monkeypatch.setattr(pipelined, "_NOT_KEPT_MAX", 10)
    pipeline = Pipelined(conn)

    def exchange(*numbers: int) -> list:
        sent = [Sent(b"SELECT %d + $1::int" % n, [1], True) for n in numbers]
        assert [got.rows for got in pipeline.exchange(sent)] == [[(n + 1,)] for n in numbers]
        return conn.execute(
            "SELECT statement, prepare_time FROM pg_prepared_statements"
            " WHERE name LIKE 'headrace%' ORDER BY 1"
        ).fetchall()

    first = exchange(1, 2, 3, 4)
    assert [text for text, _ in first] == ["SELECT 1 + $1::int", "SELECT 2 + $1::int"]
    assert exchange(4, 3, 2, 1) == exchange(1, 2, 3, 4) == first
    for _ in range(4):
        last = exchange(3, 4)
    assert [text for text, _ in last] == ["SELECT 3 + $1::int", "SELECT 4 + $1::int"]


def test_more_than_the_sockets_hold_goes_both_ways_at_once(conn):
    """The server stops reading while its answers are not read."""
    text = "x" * 1_000_000
    answers = Pipelined(conn).exchange([Sent(b"SELECT $1::text", [text], True)] * 40)
    assert [len(answer.rows[0][0]) for answer in answers] == [len(text)] * 40
