"""A database and an engine on a pair of servers, writers, and views that are compared."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import psycopg

from tests.compared import differs
from tests.engines import Engine
from tests.failover.pair import Pair
from tests.waiting import wait_until

SCHEMA = """
CREATE TABLE orders (id int PRIMARY KEY, customer int, item int, amount numeric(10, 2));
CREATE TABLE customers (id int PRIMARY KEY, region text);
INSERT INTO customers SELECT i, 'r' || i % 4 FROM generate_series(1, 40) i;
INSERT INTO orders SELECT i, 1 + i % 40, i % 9, i FROM generate_series(1, 400) i;
"""
VIEWS = {
    "totals": "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer",
    "regions": "SELECT c.region, count(*) AS n, max(o.amount) AS most FROM orders o"
    " JOIN customers c ON c.id = o.customer GROUP BY c.region",
    "averages": "SELECT c.region, avg(o.amount) AS mean FROM orders o"
    " JOIN customers c ON c.id = o.customer GROUP BY c.region",
    "large": "SELECT id, amount FROM orders WHERE amount > 200",
    "ranks": "SELECT id, item, row_number() OVER (PARTITION BY item ORDER BY amount, id) AS place"
    " FROM orders",
}


class Writer:
    """Writes to the server that is the primary then, until it is stopped."""

    def __init__(self, dsn: str, rng: random.Random) -> None:
        self._dsn, self._rng = dsn, rng
        self._stop = threading.Event()
        self.written = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(psycopg.Error), connect(self._dsn) as conn:
                while not self._stop.wait(self._rng.choice((0.0, 0.002, 0.01))):
                    self._write(conn)
                    self.written += 1
            self._stop.wait(0.02)  # while no server takes writes

    def _write(self, conn: psycopg.Connection) -> None:
        rng = self._rng
        with conn.transaction():
            for _ in range(rng.choice((1, 1, 1, 5, 40))):
                i, amount = rng.randint(1, 900), rng.randint(1, 400)
                conn.execute(
                    "INSERT INTO orders VALUES (%s, %s, %s, %s) ON CONFLICT (id) DO UPDATE"
                    " SET amount = excluded.amount, customer = excluded.customer",
                    (i, rng.randint(1, 40), i % 9, amount),
                )
            if rng.random() < 0.2:
                conn.execute("DELETE FROM orders WHERE id = %s", (rng.randint(1, 900),))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def connect(dsn: str) -> psycopg.Connection:
    return psycopg.connect(dsn, autocommit=True, prepare_threshold=None)


class Drill:
    """One database and engine on a pair of servers."""

    def __init__(self, pair: Pair, name: str, folder: Path, **env: str) -> None:
        self.pair, self.name = pair, name
        self.slot = f"headrace_{name}"
        with pair.connect() as conn:
            conn.execute(f"CREATE DATABASE {name}")
        with pair.connect(name) as conn:
            conn.execute(SCHEMA)
        given = {
            "HEADRACE_SLOT_NAME": self.slot,
            "HEADRACE_SPARK_WARM": "false",
            "HEADRACE_CHECKPOINT_INTERVAL_MS": "100",
        }
        self.engine = Engine(pair.dsn(name), folder / "engine", env=given | env)

    def open(self, placed: Collection[str] = ()) -> dict[str, int]:
        """Start the engine and create the views, some on another worker; return their ids."""
        self.engine.start()
        with connect(self.engine.dsn) as conn:
            if placed:
                conn.execute("CALL headrace.add_worker('w1')")
            for view, query in VIEWS.items():
                given = '{"placement": "w1"}' if view in placed else "{}"
                conn.execute(f"CALL headrace.create_view('{view}', $q${query}$q$, '{given}')")
        return self.ids()

    def ids(self) -> dict[str, int]:
        with self.pair.connect(self.name) as conn:
            return dict(conn.execute("SELECT view_name, id FROM headrace.views").fetchall())

    def wrong(self) -> list[str]:
        """Return the differences between views and their queries, and views that do not run."""
        with self.pair.connect(self.name) as conn:
            found = [line for view, query in VIEWS.items() for line in differs(conn, view, query)]
            rows = conn.execute(
                "SELECT view_name, status, headrace.view_message(id) FROM headrace.views"
                " WHERE status <> 'running'"
            ).fetchall()
        return found[:5] + [str(row) for row in rows]

    def equal(self) -> None:
        """Wait until every view runs and equals its query."""
        wait_until(lambda: not self.wrong(), self.wrong, every_s=0.05)

    def close(self) -> None:
        self.engine.kill9()
        with contextlib.suppress(psycopg.Error), self.pair.connect() as conn:
            conn.execute(f"DROP DATABASE {self.name} WITH (FORCE)")
            conn.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                " WHERE database = %s",
                (self.name,),
            )


@contextlib.contextmanager
def drill(pair: Pair, name: str, folder: Path, **env: str) -> Iterator[Drill]:
    pair.renew()
    made = Drill(pair, name, folder, **env)
    try:
        yield made
    except BaseException:
        print(made.engine.log[-20_000:])
        raise
    finally:
        made.close()
