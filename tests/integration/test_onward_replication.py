"""Result tables that Postgres replicates to another database, and foreign keys that act on them."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.compared import differs
from tests.waiting import wait_until

pytestmark = [pytest.mark.shared_engine, pytest.mark.timeout(300)]

KEYED = "SELECT id, g, x FROM items"
UNKEYED = "SELECT g, x FROM items"  # with duplicates
TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int, x numeric(9, 2));
INSERT INTO items SELECT i, i % 3, i % 2 FROM generate_series(1, 100) i;
"""

_PARTS = ("host", "port", "user", "password", "dbname")
"""Parts of a connection string that the libpq of every server knows."""


@pytest.fixture
def subscriber(commander, source, databases):
    """Another database of the server that subscribes to two result tables."""
    commander.execute(f"""CALL headrace.create_view('keyed', '{KEYED}', '{{"key": ["id"]}}')""")
    commander.execute(f"CALL headrace.create_view('unkeyed', '{UNKEYED}')")
    source.execute("CREATE PUBLICATION onward FOR TABLE keyed, unkeyed")
    name = databases.take()
    slot = f"onward_{name}"
    source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    given = conninfo_to_dict(source.info.dsn)
    publisher = make_conninfo(**{k: given[k] for k in _PARTS if k in given})
    with psycopg.connect(
        make_conninfo(databases.server, dbname=name), autocommit=True, prepare_threshold=None
    ) as conn:
        conn.execute("CREATE TABLE keyed (id int PRIMARY KEY, g int, x numeric(9, 2))")
        conn.execute("CREATE TABLE unkeyed (g int, x numeric(9, 2))")
        conn.execute(
            f"CREATE SUBSCRIPTION onward CONNECTION '{publisher}' PUBLICATION onward"
            f" WITH (create_slot = false, slot_name = '{slot}')"
        )
        yield conn
        conn.execute("ALTER SUBSCRIPTION onward DISABLE")
        conn.execute("ALTER SUBSCRIPTION onward SET (slot_name = NONE)")
        conn.execute("DROP SUBSCRIPTION onward")
    free = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    wait_until(lambda: source.execute(free, (slot,)).fetchone() == (False,), "the slot is free")
    source.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    source.execute("DROP PUBLICATION onward")
    databases.give_back(name)


def replicated(source, subscriber, **queries: str) -> None:
    """Check that the subscriber has the rows of the queries soon."""
    for name, query in queries.items():
        rows = 'SELECT q::text FROM ({}) q ORDER BY q::text COLLATE "C"'
        want = source.execute(rows.format(query)).fetchall()

        def have(name=name, rows=rows) -> list[tuple]:
            return subscriber.execute(rows.format(f"TABLE {name}")).fetchall()

        wait_until(lambda: have() == want, lambda: (name, have(), want), every_s=0.05)  # noqa: B023


def test_a_subscriber_has_the_rows_of_the_result(commander, source, subscriber):
    """Also after a view is filled anew, because its table remains the same one."""
    replicated(source, subscriber, keyed=KEYED, unkeyed=UNKEYED)
    source.execute("UPDATE items SET x = x + 1 WHERE id % 7 = 0")
    source.execute("UPDATE items SET id = 1000 - id WHERE g = 1")
    source.execute("DELETE FROM items WHERE g = 2 AND x = 0")
    replicated(source, subscriber, keyed=KEYED, unkeyed=UNKEYED)
    for name in ("keyed", "unkeyed"):
        commander.execute("CALL headrace.resync_view(%s)", (name,))
    source.execute("INSERT INTO items VALUES (2000, 7, 7)")
    replicated(source, subscriber, keyed=KEYED, unkeyed=UNKEYED)
    # As for any table, the subscriber gets a new column first.
    subscriber.execute("ALTER TABLE keyed ADD COLUMN double numeric")
    more = "SELECT id, g, x, x * 2 AS double FROM items"
    commander.execute(f"CALL headrace.alter_view('keyed', '{more}')")
    source.execute("UPDATE items SET x = x + 1")
    replicated(source, subscriber, keyed=more, unkeyed=UNKEYED)


def test_a_foreign_key_that_acts_stops_the_view(commander, source):
    """ON DELETE CASCADE would delete rows of the user's table with the engine's rights."""
    commander.execute(f"""CALL headrace.create_view('keyed', '{KEYED}', '{{"key": ["id"]}}')""")
    source.execute("CREATE TABLE refers (id int REFERENCES keyed ON DELETE CASCADE)")
    source.execute("INSERT INTO refers VALUES (1)")
    source.execute("DELETE FROM items WHERE id < 3")

    def told() -> tuple[str, str, str]:
        return source.execute(
            "SELECT status, sqlstate, headrace.view_message(id) FROM headrace.views"
            " WHERE view_name = 'keyed'"
        ).fetchone()

    wait_until(lambda: told()[0] == "error", told)
    assert "has a trigger or rule: foreign key refers_id_fkey of table public.refers" in told()[2]
    assert source.execute("SELECT count(*) FROM refers").fetchone() == (1,), "nothing was deleted"
    source.execute("DROP TABLE refers")
    commander.execute("CALL headrace.resync_view('keyed')")
    assert differs(source, "keyed", KEYED) == []
