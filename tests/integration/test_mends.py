"""Lost or damaged views are populated again without a call, unless a user keeps them damaged."""

from __future__ import annotations

import re

import psycopg
import pytest

from tests.compared import differs
from tests.integration.conftest import ITEMS
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

TABLES = ITEMS

QUERY = "SELECT g, count(*) AS n, sum(x) AS total FROM items GROUP BY g"
NOTE = re.compile(r"^rebuilt at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC because .+")


def create(commander, name, query=QUERY, options="{}"):
    commander.execute("CALL headrace.create_view(%s, %s, %s)", (name, query, options))


def told(conn, name):
    """Return the status and message that every user sees."""
    return conn.execute(
        "SELECT status, message FROM headrace.list_views() WHERE name = 'public.' || %s::text",
        (name,),
    ).fetchone()


def same(conn, name, query=QUERY):
    """Return whether the table equals its query, digit by digit."""
    try:
        return not differs(conn, name, query)
    except psycopg.errors.UndefinedTable:
        return False


def mended(conn, name, query=QUERY, because=""):
    """Wait until a view runs, equals its query, and reports that it was populated again."""

    def done():
        status, message = told(conn, name)
        note = status == "running" and message is not None and NOTE.match(message)
        return note and because in message and same(conn, name, query)

    wait_until(done, f"{name} is mended, because {because}")


def touch(conn):
    """Change every group, so that every view has to be written."""
    conn.execute("UPDATE items SET x = x + 1")


def until_kept(conn, *names):
    """Wait until two indexes and two readers of each view are recorded."""
    known = (
        "SELECT count(*) FROM headrace.views WHERE view_name = ANY (%s)"
        " AND kept #> '{indexes,1}' IS NOT NULL AND kept #> '{readers,1}' IS NOT NULL"
    )
    wait_until(lambda: conn.execute(known, (list(names),)).fetchone() == (len(names),), "known")


def indexes(conn, name):
    return conn.execute(
        "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = %s"
        " AND indexname !~ '^headrace_row_hash' ORDER BY 1",
        (name,),
    ).fetchall()


def grants(conn, name):
    return conn.execute(
        "SELECT a.grantee::regrole::text, a.privilege_type, a.is_grantable FROM pg_class c,"
        " aclexplode(c.relacl) a WHERE c.relname = %s AND a.grantee <> c.relowner"
        " ORDER BY 1, 2",
        (name,),
    ).fetchall()


def test_a_dropped_table_is_made_again(commander, source):
    create(commander, "v")
    create(commander, "k", options='{"key": ["g"]}')
    create(commander, "w")
    for name in ("v", "k"):
        commander.execute(f"CALL headrace.create_index('{name}', '(n DESC, g)')")
        commander.execute(f"CALL headrace.create_index('{name}', '(abs(total)) WHERE n > 2')")
        source.execute(f"GRANT SELECT ON {name} TO PUBLIC")
        source.execute(f"GRANT SELECT ON {name} TO pg_monitor WITH GRANT OPTION")
    until_kept(source, "v", "k")
    want = {n: (indexes(source, n), grants(source, n)) for n in ("v", "k")}
    assert [len(part) for part in want["v"]] == [2, 2]
    source.execute("DROP TABLE v")  # no batch writes to it now
    source.execute("DROP TABLE k")
    for name in ("v", "k"):
        mended(source, name, because=f'result table "public"."{name}" was dropped')
        assert (indexes(source, name), grants(source, name)) == want[name]
    assert told(source, "w") == ("running", None)
    source.execute("SET ROLE pg_monitor")
    assert told(source, "v") == ("running", None), "why is its owner's"
    source.execute("RESET ROLE")
    touch(source)
    for name in ("v", "k", "w"):
        commander.execute("CALL headrace.wait_for(%s)", (name,))
        assert same(source, name)
    commander.execute("CALL headrace.resync_view('v')")
    assert told(source, "v") == ("running", None), "now somebody has called"


def test_a_dropped_table_of_a_view_that_others_read(commander, source):
    create(commander, "low")
    create(commander, "top", "SELECT g FROM low WHERE n > 2")
    source.execute("DROP TABLE low")
    mended(source, "low")
    touch(source)

    def right():
        return told(source, "top")[0] == "running" and same(
            source, "top", "SELECT g FROM low WHERE n > 2"
        )

    uses = (
        "SELECT count(*) FROM headrace.view_uses WHERE result_oid = 'low'::regclass"
        " AND (SELECT count(*) FROM headrace.view_uses) = 1"
    )
    wait_until(lambda: source.execute(uses).fetchone() == (1,), "it reads the new one")
    wait_until(right, "it is right")
    source.execute("DELETE FROM items WHERE g = 3")
    commander.execute("CALL headrace.wait_for('top')")
    assert right()


OURS = {
    "rows": "DELETE FROM {t} WHERE g = 2",
    "more": "INSERT INTO {t} SELECT * FROM {t}; DELETE FROM {t} WHERE g IN (1, 2)",
    "retyped": "ALTER TABLE {t} ALTER n TYPE text",
    "domain": "CREATE DOMAIN small AS int CHECK (VALUE < 1000); ALTER TABLE {t} ALTER g TYPE small",
    "lacking": "ALTER TABLE {t} DROP n",
    "turned": "ALTER TABLE {t} DROP g; ALTER TABLE {t} ADD g int",
    "unlogged": "ALTER TABLE {t} SET UNLOGGED",
    "keyed": "DELETE FROM {t} WHERE g = 2; UPDATE {t} SET n = 7 WHERE g = 1",
    "keyless": "ALTER TABLE {t} DROP CONSTRAINT keyless_pkey",
}


@pytest.mark.slow
def test_what_is_ours_is_put_back(commander, source):
    for name in OURS:
        key = '{"key": ["g"]}' if name.startswith("key") else "{}"
        create(commander, name, options=key)
    before = {name: source.execute(f"TABLE {name} LIMIT 0").description for name in OURS}
    for name, statements in OURS.items():
        for statement in statements.format(t=name).split("; "):
            source.execute(statement)
    touch(source)
    for name in OURS:
        mended(source, name)
        now = source.execute(f"TABLE {name} LIMIT 0").description
        assert [(c.name, c.type_code) for c in now] == [(c.name, c.type_code) for c in before[name]]
    assert source.execute(
        "SELECT count(*) FROM pg_class c JOIN headrace.views v ON v.result_oid = c.oid"
        " WHERE c.relpersistence <> 'p'"
    ).fetchone() == (0,)
    assert indexes(source, "keyless")[0][0] == "keyless_pkey"
    touch(source)
    for name in OURS:
        commander.execute("CALL headrace.wait_for(%s)", (name,))
        assert same(source, name), name


@pytest.mark.slow
def test_what_somebody_added_is_not_fought_for_ever(commander, source):
    for name in ("v", "w", "x", "y"):
        create(commander, name)
    source.execute(
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
    )
    source.execute("CREATE TRIGGER undo BEFORE INSERT ON v FOR EACH ROW EXECUTE FUNCTION nothing()")
    source.execute("ALTER TABLE w ADD mine text DEFAULT 'dear'")
    source.execute("DROP TABLE x; CREATE TABLE x AS SELECT 1 AS theirs")
    for name, why in (
        ("v", "has a trigger or rule: undo"),
        ("w", "has other columns now: mine"),
        ("x", "was replaced by another table; Drop or rename that table, then CALL headrace"),
    ):

        def given_up(name=name, why=why):
            status, message = told(source, name)
            over = "does not try it again: 3 tries" in (message or "")
            return status == "error" and over and why in message

        wait_until(given_up, f"{name} is left stopped")
    touch(source)
    commander.execute("CALL headrace.wait_for('y')")
    assert same(source, "y")
    assert told(source, "y") == ("running", None)
    assert source.execute("SELECT DISTINCT mine FROM w").fetchall() == [("dear",)]
    assert source.execute("TABLE x").fetchall() == [(1,)]
    # Once the user removes the addition, no call is needed.
    source.execute("DROP TRIGGER undo ON v")
    source.execute("ALTER TABLE w DROP mine")
    source.execute("DROP TABLE x")
    for name in ("v", "w", "x"):
        mended(source, name)


@pytest.mark.slow
def test_a_fight_over_rows_ends(commander, source):
    """Each time the view is repaired, a user damages it again."""
    create(commander, "v")
    create(commander, "w")

    def over():
        status, message = told(source, "v")
        if status == "running":
            source.execute("DELETE FROM v")
            touch(source)
        left = "does not try it again: 3 tries" in (message or "")
        return status == "error" and left

    wait_until(over, "nobody fights any more")
    assert "was changed by another program" in told(source, "v")[1]
    commander.execute("CALL headrace.wait_for('w')")
    assert same(source, "w")
    commander.execute("CALL headrace.resync_view('v')")
    assert same(source, "v")
    source.execute("DROP TABLE v")  # some other day
    mended(source, "v")


PUBLICATION = (
    "ALTER PUBLICATION headrace DROP TABLE items",
    "ALTER PUBLICATION headrace SET TABLE items WHERE (id > 3)",
    "ALTER PUBLICATION headrace SET TABLE items (id, g)",
    "ALTER PUBLICATION headrace SET (publish = 'insert')",
    "ALTER PUBLICATION headrace SET (publish_via_partition_root = true)",
    "DROP PUBLICATION headrace",
)


def test_a_changed_publication(commander, source):
    """With other views each time, because one view is not repaired so often."""
    queries = {"sums": QUERY, "rows": "SELECT id, x FROM items"}
    for number, statement in enumerate(PUBLICATION):
        for name, query in queries.items():
            create(commander, f"{name}{number}", query)
        source.execute(statement)
        touch(source)
        for name, query in queries.items():
            mended(source, f"{name}{number}", query, "publication")
        touch(source)
        for name, query in queries.items():
            commander.execute("CALL headrace.wait_for(%s)", (f"{name}{number}",))
            assert same(source, f"{name}{number}", query), statement
            commander.execute(f"CALL headrace.drop_view('{name}{number}')")


def test_stop_is_as_it_was(commander, source):
    create(commander, "v", options='{"on_damage": "stop"}')
    create(commander, "paused")
    create(commander, "w")
    commander.execute("CALL headrace.pause_view('paused')")
    for name in ("v", "w"):
        source.execute(f"DELETE FROM {name} WHERE g = 1")
    source.execute("ALTER PUBLICATION headrace DROP TABLE items")
    touch(source)
    mended(source, "w", because="publication")
    source.execute("DELETE FROM w")
    touch(source)
    mended(source, "w", because="changed by another program")
    for name in ("v", "paused"):
        status, message = told(source, name)
        assert status == "error"
        assert "CALL headrace.resync_view(" in message
        assert "by itself" not in message
        commander.execute("CALL headrace.resync_view(%s)", (name,))
        assert told(source, name) == ("running", None)
        assert same(source, name)
    source.execute("DROP TABLE v")
    wait_until(lambda: told(source, "v")[0] == "error", "it is noticed")
    commander.execute("CALL headrace.drop_view('v')")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="on_damage"):
        create(commander, "v", options='{"on_damage": "ignore"}')
