"""An altered view, as seen by transactions with an older snapshot.

If all of them include its last change, its table is rewritten, else its rows are updated singly.
"""

from __future__ import annotations

import contextlib
import random
import threading

import psycopg
import pytest

from tests.amounts import Run
from tests.compared import differs
from tests.waiting import at_any_moment, time_passes, wait_until

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int, x int NOT NULL);
INSERT INTO items SELECT i, i % 5, i FROM generate_series(1, 50) i;
CREATE TABLE beside (a int);
"""
QUERY = "SELECT g, count(*) AS n, sum(x) AS s FROM items GROUP BY g"
WIDE = f"SELECT q.*, s + n AS more FROM ({QUERY}) q"
OLD = "SELECT g, n, s FROM v ORDER BY g"
FILE = "SELECT pg_relation_filenode('v')"


@pytest.fixture
def view(commander, source):
    commander.execute("CALL headrace.create_view('v', %s, '{\"sharing\": false}')", (QUERY,))
    yield
    commander.execute("CALL headrace.drop_view('v')")


@contextlib.contextmanager
def snapshot(engine, statement="SELECT FROM beside"):
    with psycopg.connect(engine.source) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute(statement)
        yield old


def moved(source, change) -> bool:
    """Return whether ``change`` moves the table to another file."""
    before = source.execute(FILE).fetchone()
    change()
    return source.execute(FILE).fetchone() != before


def alter(commander, query: str) -> None:
    said: list[str] = []
    handler = lambda d: said.append(d.message_primary or "")  # noqa: E731
    commander.add_notice_handler(handler)
    commander.execute("CALL headrace.alter_view('v', %s)", (query,))
    commander.remove_notice_handler(handler)
    assert any("its states were kept" in text for text in said), said


def wait(commander) -> None:
    commander.execute("CALL headrace.wait_for('v', timeout => '90 s')")


def test_who_has_the_last_change_sees_the_new_rows(view, commander, source, engine):
    wait(commander)
    rows = source.execute(OLD).fetchall()
    with snapshot(engine) as old, snapshot(engine) as other:
        assert moved(source, lambda: alter(commander, WIDE))
        source.execute("UPDATE items SET x = x + 1")
        wait(commander)
        seen = old.execute("SELECT g, n, s, more FROM v ORDER BY g").fetchall()
        assert seen == [(*row, row[1] + row[2]) for row in rows]
        old.rollback()
        # A second time, while ``other`` does not include the last change.
        assert not moved(source, lambda: alter(commander, f"SELECT *, -n AS less FROM ({WIDE}) w"))
        seen = other.execute("SELECT g, n, s, more, less FROM v ORDER BY g").fetchall()
        assert seen == [(*row, row[1] + row[2], None) for row in rows]
    assert differs(source, "v", f"SELECT *, -n AS less FROM ({WIDE}) w") == []


def test_who_has_it_not_sees_the_rows_of_then(view, commander, source, engine):
    wait(commander)
    rows = source.execute(OLD).fetchall()
    with snapshot(engine) as old:
        source.execute("UPDATE items SET x = x + 1, g = g + 1")
        wait(commander)
        assert not moved(source, lambda: alter(commander, WIDE))
        assert old.execute(OLD).fetchall() == rows
    assert differs(source, "v", WIDE) == []
    narrow = f"SELECT q.*, s - n AS less FROM ({QUERY}) q"
    assert moved(source, lambda: alter(commander, narrow))
    source.execute("UPDATE items SET x = x + 1, g = g + 1")
    wait(commander)
    assert differs(source, "v", narrow) == []


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("CREATE PUBLICATION p FOR TABLE v", "DROP PUBLICATION p"),
        (
            "SELECT pg_create_physical_replication_slot(current_database() || '_o')",
            "SELECT pg_drop_replication_slot(current_database() || '_o')",
        ),
    ],
)
def test_who_is_told_of_changes_is_told_of_deleted_rows(view, commander, source, begin, end):
    source.execute(begin)
    try:
        assert not moved(source, lambda: alter(commander, WIDE))
    finally:
        source.execute(end)
    assert differs(source, "v", WIDE) == []
    assert moved(source, lambda: alter(commander, f"SELECT *, n AS m FROM ({WIDE}) w"))


def test_no_snapshot_ever_sees_rows_of_another_moment(view, commander, source, engine):
    """All readers of a view at one txid see the same rows, however old their snapshots are."""
    over = threading.Event()
    seen: dict[int, set[tuple]] = {}
    errors: list[BaseException] = []
    at = (
        "SELECT p.txid FROM headrace.progress p JOIN headrace.views v ON v.id = p.view_id"
        " WHERE v.view_name = 'v'"
    )
    contents = "SELECT count(*), sum(n), sum(s), min(s) FROM v"

    def write() -> None:
        with psycopg.connect(engine.source, autocommit=True) as conn:
            number = 0
            while not over.wait(0.005):
                number += 1
                conn.execute("UPDATE items SET x = x + 1 WHERE id = %s", (number % 50 + 1,))

    def read(seed: int) -> None:
        rng = random.Random(seed)
        try:
            with psycopg.connect(engine.source) as conn:
                while not over.is_set():
                    if rng.random() < 0.4:  # both in one statement
                        row = conn.execute(f"SELECT ({at}), c.* FROM ({contents}) c").fetchone()
                        conn.rollback()
                        seen.setdefault(row[0], set()).add(row[1:])
                        continue
                    conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    ((txid,),) = conn.execute(at).fetchall()
                    at_any_moment(rng, 0, 0.3)
                    found = conn.execute(contents).fetchone()
                    conn.rollback()
                    seen.setdefault(txid, set()).add(found)
                    over.wait(rng.uniform(0, 0.3))
        except BaseException as error:  # noqa: BLE001  looked at below
            errors.append(error)

    threads = [threading.Thread(target=write)]
    threads += [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    try:
        for number in range(3 if Run.quick else 8):
            alter(commander, f"SELECT q.*, s + {number} AS c{number} FROM ({QUERY}) q")
            time_passes(0.2)
        wait_until(lambda: errors or len(seen) > 20, "the readers have seen enough txids")
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not errors
    assert len(seen) > 20
    assert {txid: found for txid, found in seen.items() if len(found) > 1} == {}
    assert all(row[0] == 5 for found in seen.values() for row in found)
