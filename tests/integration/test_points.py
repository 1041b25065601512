"""Connection points: named outputs of views, whose history and index last (A-25, A-26, A-28)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from headrace.errors import UndefinedError, UserError
from headrace.population import names
from tests.compared import differs
from tests.integration.conftest import ITEMS
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

TABLES = ITEMS + "ALTER TABLE items ADD COLUMN doc json DEFAULT '{}';"
QUERY = "SELECT id, g, x, doc FROM items"
VIEWS = {"v": QUERY}
POINTS = "SELECT name, view, history::text, storage_key, attached FROM headrace.connection_points()"


def refused(conn, call: str) -> psycopg.errors.Diagnostic:
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(call)
    return caught.value.diag


def indexed(conn, column: str) -> list[str]:
    """Return the indexes of the table of ``v`` that begin with ``column``."""
    return [
        row[0]
        for row in conn.execute(
            "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
            " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]"
            " WHERE i.indrelid = 'v'::regclass AND a.attname = %s",
            (column,),
        )
    ]


def keep(conn) -> str | None:
    row = conn.execute("SELECT keep::text FROM headrace.histories").fetchone()
    return row and row[0]


def test_a26_a_point_keeps_history_and_index(commander, source):
    commander.execute(
        "CALL headrace.create_connection_point('p', 'v', history => '2 hours', storage_key => 'g')"
    )
    assert source.execute(POINTS).fetchall() == [("p", "public.v", "02:00:00", "g", [])]
    wait_until(
        lambda: source.execute("SELECT since FROM headrace.connection_points()").fetchone()[0],
        "the history begins",
    )
    since = source.execute("SELECT headrace.view_txid('v')").fetchone()[0]
    source.execute("UPDATE items SET x = x + 1 WHERE g = 3")
    commander.execute("CALL headrace.wait_for('v')")
    told = source.execute(
        "SELECT weight, (data::v).g FROM headrace.view_changes('v', since => %s)", (since,)
    ).fetchall()
    assert sorted(told) == sorted([(-1, 3)] * 20 + [(1, 3)] * 20)
    assert differs(source, "v", QUERY) == []

    [index] = indexed(source, "g")
    why = refused(commander, f"CALL headrace.drop_index('{index}')")
    assert (why.sqlstate, '"p"' in why.message_primary) == ("2BP01", True)
    for less in ("NULL", "'119 minutes'"):
        why = refused(commander, f"CALL headrace.set_history('v', {less})")
        assert (why.sqlstate, '"p"' in why.message_primary) == ("55006", True)
    assert (keep(source), indexed(source, "g")) == ("02:00:00", [index])
    commander.execute("CALL headrace.set_history('v', '3 hours')")

    commander.execute("CALL headrace.drop_connection_point('p')")
    assert source.execute(POINTS).fetchall() == []
    assert (keep(source), indexed(source, "g")) == ("03:00:00", [index])
    commander.execute("CALL headrace.set_history('v', NULL)")
    commander.execute(f"CALL headrace.drop_index('{index}')")


def test_a28_a_lookup_by_the_storage_key_uses_its_index(commander, source):
    source.execute("INSERT INTO items SELECT i, i % 5000, i FROM generate_series(101, 20000) i")
    commander.execute("CALL headrace.wait_for('v')")
    commander.execute("CALL headrace.create_connection_point('p', 'v', storage_key => 'g')")
    [index] = indexed(source, "g")
    source.execute("ANALYZE v")
    plan = "\n".join(r[0] for r in source.execute("EXPLAIN SELECT * FROM v WHERE g = 4242"))
    assert index in plan
    # Another point shares the index, which is dropped when neither needs it.
    commander.execute("CALL headrace.create_connection_point('q', 'v', storage_key => 'g')")
    assert indexed(source, "g") == [index]
    commander.execute("CALL headrace.drop_connection_point('p')")
    assert refused(commander, f"CALL headrace.drop_index('{index}')").sqlstate == "2BP01"


def test_a26_months_are_as_long_as_they_are(commander, source):
    """'1 month' and '30 days' are equal to Postgres, but either can be the shorter one."""
    make = "CALL headrace.create_connection_point({}, 'v', history => {})"
    commander.execute(make.format("'p'", "'30 days'"))
    # 1 February to 1 March is 28 days, 1 December to 1 January is 31.
    why = refused(commander, "CALL headrace.set_history('v', '1 month')")
    assert (why.sqlstate, '"p"' in why.message_primary) == ("55006", True)
    assert keep(source) == "30 days"
    commander.execute(make.format("'q'", "'1 month'"))
    assert keep(source) == "31 days"
    for enough in ("31 days", "1 year", "2 mons"):
        commander.execute(f"CALL headrace.set_history('v', '{enough}')")
    for less in ("30 days 23:59:59", "28 days", "1 month"):
        assert refused(commander, f"CALL headrace.set_history('v', '{less}')").sqlstate == "55006"
    commander.execute("CALL headrace.drop_connection_point('p')")
    commander.execute("CALL headrace.set_history('v', '1 month')")
    commander.execute("CALL headrace.drop_connection_point('q')")
    commander.execute("CALL headrace.set_history('v', NULL)")


def test_a27_a_point_needs_no_more_than_there_is(commander, source):
    commander.execute("CALL headrace.set_history('v', '1 day')")
    commander.execute("CALL headrace.create_connection_point('p', 'v', history => '1 hour')")
    assert keep(source) == "1 day"
    commander.execute("CALL headrace.create_connection_point('q', 'v', history => '2 days')")
    assert keep(source) == "2 days"


def test_a25_views_that_read_it_are_attached_and_keep_it(commander, source):
    commander.execute("CALL headrace.create_connection_point('p', 'v', storage_key => 'g')")
    commander.execute("CALL headrace.create_view('w', 'SELECT g, sum(x) AS s FROM v GROUP BY g')")
    assert source.execute(POINTS).fetchone()[4] == ["public.w"]
    assert refused(commander, "CALL headrace.drop_view('v')").sqlstate == "2BP01"
    assert len(source.execute(POINTS).fetchall()) == 1
    commander.execute("CALL headrace.drop_view('w')")
    commander.execute("CALL headrace.drop_view('v')")
    assert source.execute(POINTS).fetchall() == []
    assert refused(commander, "CALL headrace.drop_connection_point('p')").sqlstate == "42704"


def test_a_point_follows_its_view(commander, source):
    commander.execute(
        "CALL headrace.create_connection_point('p', 'v', history => '2 hours', storage_key => 'g')"
    )
    commander.execute("CALL headrace.resync_view('v')")
    commander.execute("CALL headrace.rename_view('v', 'u')")
    source.execute("DROP TABLE u")
    wait_until(
        lambda: source.execute("SELECT to_regclass('u') IS NOT NULL").fetchone()[0],
        "the table is made again",
    )
    commander.execute("CALL headrace.rename_view('u', 'v')")
    assert source.execute(POINTS).fetchall() == [("p", "public.v", "02:00:00", "g", [])]
    assert len(indexed(source, "g")) == 1
    assert refused(commander, "CALL headrace.set_history('v', NULL)").sqlstate == "55006"


def test_a26_a_view_that_changes_its_owner_keeps_its_point(commander, source):
    """The history begins anew, since its earlier rows belong to the former owner."""
    commander.execute(
        "CALL headrace.create_connection_point('p', 'v', history => '2 hours', storage_key => 'g')"
    )
    wait_until(
        lambda: source.execute("SELECT since FROM headrace.connection_points()").fetchone()[0],
        "the history begins",
    )
    before = source.execute("SELECT headrace.view_txid('v')").fetchone()[0]
    heir = f"heir_{source.info.backend_pid}"
    source.execute(f"CREATE ROLE {heir}; GRANT SELECT ON items TO {heir}")
    source.execute(f"GRANT CREATE ON SCHEMA public TO {heir}")
    try:
        commander.execute(f"CALL headrace.set_owner('v', '{heir}')")
        source.execute("UPDATE items SET x = x - 1 WHERE g = 2")
        commander.execute("CALL headrace.wait_for('v')")
        assert differs(source, "v", QUERY) == []
        assert len(indexed(source, "g")) == 1
        source.execute(f"SET ROLE {heir}")
        assert source.execute(POINTS).fetchall() == [("p", "public.v", "02:00:00", "g", [])]
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            source.execute("SELECT * FROM headrace.view_changes('v', since => %s)", (before,))
        why = refused(source, "CALL headrace.set_history('v', '1 hour')")
        assert (why.sqlstate, '"p"' in why.message_primary) == ("55006", True)
        source.execute("CALL headrace.drop_connection_point('p')")
        assert source.execute(POINTS).fetchall() == []
    finally:
        source.execute("RESET ROLE")
        commander.execute("CALL headrace.drop_view('v')")
        source.execute(f"DROP OWNED BY {heir}; DROP ROLE {heir}")


def test_a_view_that_was_filled_anew_was_not_dropped(commander, source):
    """A caller that found it before, and locks it now, gets an error that says so."""
    found = names.find(source, "v", None, {})
    assert found is not None
    commander.execute("CALL headrace.resync_view('v')")
    with pytest.raises(UserError, match='view "v" was rebuilt meanwhile') as again:
        names.lock(source, found)
    assert (again.value.code, again.value.hint) == ("55006", "Call this once more.")
    found = names.find(source, "v", None, {})
    assert found is not None
    names.lock(source, found)
    commander.execute("CALL headrace.drop_view('v')")
    with pytest.raises(UndefinedError, match='view "v" was dropped'):
        names.lock(source, found)


def outcome(dsn: str, text: str) -> str | None:
    """Call over a new connection; return the SQLSTATE, or None on success."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        try:
            conn.execute(f"CALL headrace.{text}")
        except psycopg.Error as error:
            return error.sqlstate
    return None


def waiting(source) -> int:
    """Return the number of sessions that wait for a lock."""
    row = source.execute(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    ).fetchone()
    return int(row[0])


def test_a26_no_index_goes_behind_a_resync(engine, commander, source):
    """The drop finds the index, waits for the table, and then the view has another id."""
    commander.execute("CALL headrace.create_connection_point('p', 'v', storage_key => 'g')")
    [index] = indexed(source, "g")
    with psycopg.connect(engine.source) as holder, ThreadPoolExecutor() as threads:
        holder.execute("LOCK TABLE v IN ROW EXCLUSIVE MODE")
        resync = threads.submit(outcome, engine.dsn, "resync_view('v')")
        wait_until(lambda: waiting(source) == 1, "the resync waits for the table", every_s=0.001)
        drop = threads.submit(outcome, engine.dsn, f"drop_index('{index}')")
        wait_until(lambda: waiting(source) == 2, "who drops the index waits", every_s=0.001)
        holder.rollback()
        assert (resync.result(), drop.result()) == (None, "55006")
    assert indexed(source, "g") == [index]
    assert refused(commander, f"CALL headrace.drop_index('{index}')").sqlstate == "2BP01"


def test_a26_no_point_relies_on_an_index_that_goes(engine, commander, source):
    """The drop has not committed, so the session that creates the point still sees the index."""
    commander.execute("CALL headrace.create_index('v', '(g)')")
    [index] = indexed(source, "g")
    point = "create_connection_point('p', 'v', storage_key => 'g')"
    with psycopg.connect(engine.source) as holder, ThreadPoolExecutor() as threads:
        holder.execute("SELECT FROM headrace.views WHERE view_name = 'v' FOR KEY SHARE")
        drop = threads.submit(outcome, engine.dsn, f"drop_index('{index}')")
        wait_until(lambda: waiting(source) == 1, "who drops waits for the view", every_s=0.001)
        create = threads.submit(outcome, engine.dsn, point)
        wait_until(lambda: waiting(source) == 2, "who makes the point waits", every_s=0.001)
        holder.rollback()
        assert drop.result() is None
        made = create.result()
    if made is not None:
        assert made == "55006"
        assert (source.execute(POINTS).fetchall(), indexed(source, "g")) == ([], [])
        commander.execute(f"CALL headrace.{point}")
    # A call that came after the drop has created another index.
    assert len(indexed(source, "g")) == 1


def explained(conn, name: str) -> list[str]:
    """Return the part of explain_view about connection points."""
    rows = conn.execute("SELECT * FROM headrace.explain_view(%s)", (name,)).fetchall()
    return [str(line) for (line,) in rows if "connection point" in str(line)]


def test_a25_explain_view_tells_of_points(commander, source):
    commander.execute("CALL headrace.create_view('w', 'SELECT g, sum(x) AS s FROM v GROUP BY g')")
    assert explained(commander, "v") == explained(commander, "w") == []
    commander.execute(
        "CALL headrace.create_connection_point('p', 'v', history => '2 hours', storage_key => 'g')"
    )
    commander.execute("CALL headrace.create_connection_point('q', 'v')")
    assert explained(commander, "v") == [
        'is connection point "p": history 02:00:00, storage key "g"',
        'is connection point "q"',
    ]
    assert explained(commander, "w") == [
        'reads connection point "p" of view "public"."v": history 02:00:00, storage key "g"',
        'reads connection point "q" of view "public"."v"',
    ]
    # Points of other owners are not listed.
    name = f"reader_{source.info.backend_pid}"
    source.execute(f"CREATE ROLE {name}; GRANT SELECT ON v TO {name}")
    source.execute(f"GRANT CREATE ON SCHEMA public TO {name}")
    try:
        commander.execute(f"SET ROLE {name}")
        commander.execute("CALL headrace.create_view('theirs', 'SELECT g FROM public.v')")
        assert explained(commander, "theirs") == []
    finally:
        commander.execute("RESET ROLE")
        commander.execute("CALL headrace.drop_view('theirs')")
        source.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.mark.parametrize(
    ("arguments", "sqlstate"),
    [
        ("'p', 'v'", "42710"),
        ("'', 'v'", "42602"),
        ("repeat('x', 64), 'v'", "42602"),
        ("'q', 'nobodys'", "42P01"),
        ("'q', 'v', at => 'join_1'", "0A000"),
        ("'q', 'v', storage_key => 'z'", "42703"),
        ("'q', 'v', storage_key => 'doc'", "0A000"),
        ("'q', 'v', history => '-1 s'", "22023"),
        ("'q', 'v', history => 'long'", "22023"),
        ("'p', 'v', history => '1 s', storage_key => 'x'", "42710"),
    ],
)
def test_what_is_no_point_leaves_nothing(commander, source, arguments, sqlstate):
    source.execute("CALL headrace.create_connection_point('p', 'v')")
    why = refused(source, f"CALL headrace.create_connection_point({arguments})")
    assert why.sqlstate == sqlstate, why.message_primary
    assert source.execute(POINTS).fetchall() == [("p", "public.v", None, None, [])]
    assert (keep(source), indexed(source, "x")) == (None, [])


def test_a_strangers_points_are_nobodys_business(commander, source):
    commander.execute("CALL headrace.create_connection_point('p', 'v')")
    name = f"stranger_{source.info.backend_pid}"
    source.execute(f"CREATE ROLE {name}")
    try:
        source.execute(f"SET ROLE {name}")
        assert source.execute(POINTS).fetchall() == []
        for call in ("create_connection_point('q', 'public.v')", "drop_connection_point('p')"):
            assert refused(source, f"CALL headrace.{call}").sqlstate == "42501"
        assert refused(source, "DELETE FROM headrace.points").sqlstate == "42501"
    finally:
        source.execute("RESET ROLE")
        source.execute(f"DROP ROLE {name}")
    assert len(source.execute(POINTS).fetchall()) == 1
