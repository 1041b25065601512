"""A view is attached to a connection point amid writers and kills of the worker (A-25, A-26)."""

from __future__ import annotations

import random
import signal
import threading

import psycopg
import pytest

from tests.compared import differs
from tests.faults.helpers import signal_worker
from tests.waiting import (
    again_and_again,
    at_any_moment,
    bump,
    create_marker,
    settle,
    wait_for,
    wait_until,
)

ROWS = 2_000
POINT = "SELECT i.id, i.g, i.x FROM items i JOIN groups g ON i.g = g.g WHERE g.open"
ATTACHED = {
    "sums": "SELECT g, count(*) AS n, sum(x) AS s FROM {} GROUP BY g",
    "tops": "SELECT g, max(x) AS top FROM {} GROUP BY g",
}
TOGETHER = """
SELECT (SELECT ROW(count(*), sum(x))::text FROM open_items),
       (SELECT ROW(coalesce(sum(n), 0), sum(s))::text FROM sums)"""


class Writers:
    """Threads that change items and groups until stopped."""

    def __init__(self, dsn: str) -> None:
        self.done = 0
        self._dsn = dsn
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(n,)) for n in range(2)]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _write(self, number: int) -> None:
        rng = random.Random(number)
        statements = (
            "UPDATE items SET x = x + 1 WHERE id % 97 = {0} AND id % 2 = {1}",
            "UPDATE items SET g = (g + 1) % 10 WHERE id % 89 = {0} AND id % 2 = {1}",
            "DELETE FROM items WHERE id % 83 = {0} AND id % 2 = {1}",
            "INSERT INTO items SELECT i, i % 10, {0} FROM generate_series(2, 4000, 31) i"
            " WHERE i % 2 = {1} ON CONFLICT DO NOTHING",
            "UPDATE groups SET open = NOT open WHERE g = {0} % 10 AND g % 2 = {1}",
        )
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            while not self._over.wait(0.003):
                conn.execute(rng.choice(statements).format(rng.randrange(83), number))
                self.done += 1


def attach(engine, source, name: str, query: str, rng: random.Random) -> None:
    """Create a view while the worker is killed; repeat the call if the kill ended it."""
    told: list[psycopg.Error | None] = []

    def create() -> None:
        try:
            with psycopg.connect(engine.dsn, autocommit=True) as conn:
                conn.execute("CALL headrace.create_view(%s, %s)", (name, query))
            told.append(None)
        except psycopg.Error as error:
            told.append(error)

    while True:
        thread = threading.Thread(target=create)
        thread.start()
        at_any_moment(rng, 0.02, 0.3)
        signal_worker(engine, signal.SIGKILL)
        thread.join()
        failed = told.pop()
        if source.execute("SELECT to_regclass(%s)", (name,)).fetchone()[0] is not None:
            return
        # A kill may end a population, with a code that allows a retry.
        assert failed is not None
        assert failed.sqlstate[:2] in ("08", "55", "57"), failed


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 4))])
def test_a25_attached_amid_writers_and_kills(engine, seed):
    rng = random.Random(seed)
    with psycopg.connect(engine.source, autocommit=True) as source:
        source.execute("CREATE TABLE items (id int PRIMARY KEY, g int, x numeric)")
        source.execute("CREATE TABLE groups (g int PRIMARY KEY, open boolean)")
        source.execute("INSERT INTO groups SELECT i, true FROM generate_series(0, 9) i")
        source.execute(f"INSERT INTO items SELECT i, i % 10, i FROM generate_series(1, {ROWS}) i")
        with psycopg.connect(engine.dsn, autocommit=True) as commander:
            create_marker(source, commander)
            commander.execute("CALL headrace.create_view('open_items', %s)", (POINT,))
            commander.execute(
                "CALL headrace.create_connection_point('p', 'open_items', history => '1 hour', storage_key => 'g')"
            )
        wait_until(
            lambda: source.execute("SELECT since FROM headrace.connection_points()").fetchone()[0],
            "the history begins",
        )
        since = source.execute("SELECT headrace.view_txid('open_items')").fetchone()[0]
        source.execute(
            "CREATE TABLE begun AS SELECT * FROM headrace.view_as_of(NULL::open_items, txid => %s)",
            (since,),
        )
        with Writers(engine.source) as writers:
            for name, query in ATTACHED.items():
                attach(engine, source, name, query.format("open_items"), rng)
                # A new view begins at its snapshot; wait until all views are beyond it.
                wait_for(source, bump(source))
                signal_worker(engine, signal.SIGKILL)
                for _ in again_and_again(0.7):
                    mine, attached = source.execute(TOGETHER).fetchone()
                    assert mine == attached
            done = writers.done
            wait_until(lambda: writers.done > done + 50, "the writers go on")
        settle(source)
        check(source, since)


def check(source: psycopg.Connection, since: int) -> None:
    """Check the views against their queries, and the connection point's history."""
    assert differs(source, "open_items", POINT) == []
    for name, query in ATTACHED.items():
        assert differs(source, name, query.format(f"({POINT}) q")) == [], name
    attached = source.execute("SELECT attached FROM headrace.connection_points()").fetchone()[0]
    assert attached == [f"public.{name}" for name in sorted(ATTACHED)]
    told = source.execute(
        """SELECT d, sum(w) FROM (
             SELECT b::text AS d, 1 AS w FROM begun b UNION ALL
             SELECT c.data, c.weight FROM headrace.view_changes('open_items', since => %s) c UNION ALL
             SELECT p::text, -1 FROM open_items p) rows
            GROUP BY 1 HAVING sum(w) <> 0""",
        (since,),
    ).fetchall()
    assert told == []
