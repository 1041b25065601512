"""E-15: the pools exist once; the number of threads does not depend on the number of views."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.faults.helpers import WORKER
from tests.waiting import wait_until

VIEWS = 50


def threads(pid: int) -> list[str]:
    """Names of the threads of a process."""
    return sorted(path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm"))


@pytest.mark.slow
def test_e15_fifty_views_need_the_threads_of_one(engine):
    with (
        psycopg.connect(engine.source, autocommit=True) as source,
        psycopg.connect(engine.dsn, autocommit=True, prepare_threshold=None) as commander,
    ):
        source.execute("CREATE TABLE items (id int PRIMARY KEY, kind int, price int)")
        source.execute("INSERT INTO items SELECT i, i % 7, i FROM generate_series(1, 100) i")

        def create(number: int) -> None:
            commander.execute(
                f"CALL headrace.create_view('v{number}', 'SELECT kind, count(*) AS n,"
                f" sum(price) AS total FROM items WHERE id > {number} GROUP BY kind')"
            )

        def change(step: int) -> None:
            source.execute("UPDATE items SET price = price + %s", (step,))
            wait_until(
                lambda: (
                    source.execute("SELECT sum(total) FROM v0").fetchone()
                    == source.execute("SELECT sum(price) FROM items").fetchone()
                ),
                "the view follows",
            )

        create(0)
        pid = wait_until(lambda: engine.child(WORKER), "a worker")
        for step in range(5):
            change(step)
        one = threads(pid)
        for number in range(1, VIEWS):
            create(number)
        for step in range(5):
            change(step)
        assert engine.child(WORKER) == pid
        many = threads(pid)
        assert len(many) == len(one), (one, many)
        differing = source.execute(
            f"SELECT count(*) FROM (SELECT kind, count(*), sum(price) FROM items"
            f" WHERE id > {VIEWS - 1} GROUP BY kind EXCEPT ALL"
            f" SELECT * FROM v{VIEWS - 1}) d"
        ).fetchone()
        assert differing == (0,)
