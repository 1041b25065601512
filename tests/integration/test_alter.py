"""alter_view: another query into the same table, at once and only where rows differ."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import psycopg
import pytest

from tests.compared import differs
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int);
INSERT INTO items SELECT i, i % 5 FROM generate_series(1, 50) i;
CREATE TABLE kinds (g int PRIMARY KEY, ok bool);
INSERT INTO kinds SELECT i, i <> 3 FROM generate_series(0, 9) i;
"""

OLD = "SELECT g, count(*) AS n FROM items GROUP BY g"
NEW = "SELECT i.g, count(*) AS n FROM items i JOIN kinds k ON k.g = i.g WHERE k.ok GROUP BY i.g"
WIDE = "SELECT g, count(*) AS n, sum(id) AS total, max(id) AS last FROM items GROUP BY g"
VIEWS = {"v": OLD}


@pytest.fixture
def commander(commander, source):
    """Clean up after each test, so that a failed one does not affect the rest."""
    yield commander
    source.execute("DROP VIEW IF EXISTS reader")
    source.execute("DROP TABLE IF EXISTS refers")
    source.execute("DROP PUBLICATION IF EXISTS part")
    source.execute("DROP ROLE IF EXISTS alters_nothing")


def follows(conn, query, name="v"):
    conn.execute("UPDATE items SET g = g + 1 WHERE id % 3 = 0")
    conn.execute("CALL headrace.wait_for(%s, timeout => '90 s')", (name,))
    return differs(conn, name, query) == []


def alter(conn, query, options="{}", name="v"):
    conn.execute("CALL headrace.alter_view(%s, %s, %s)", (name, query, options))


def published(conn):
    return conn.execute(
        "SELECT prrelid::regclass::text FROM pg_publication_rel ORDER BY 1"
    ).fetchall()


def columns(conn, name="v"):
    return conn.execute(
        "SELECT array_agg(attname || ' ' || format_type(atttypid, atttypmod) ORDER BY attnum)"
        " FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
        (name,),
    ).fetchone()[0]


def oid(conn, name="v"):
    return conn.execute("SELECT %s::regclass::oid", (name,)).fetchone()


def test_the_table_stays_with_all_that_belongs_to_it(commander, source):
    commander.execute("CALL headrace.create_index('v', '(n)')")
    source.execute("GRANT SELECT ON v TO PUBLIC")
    source.execute("CREATE VIEW reader AS SELECT * FROM v")
    before = source.execute("SELECT ctid, * FROM v WHERE g <> 3 ORDER BY g").fetchall()
    notices = []
    commander.add_notice_handler(lambda d: notices.append(d.message_primary))
    commander.execute("CALL headrace.alter_view('v', %s)", (NEW,))
    assert source.execute("SELECT count(*) FROM reader").fetchone() == (4,)
    assert source.execute("SELECT ctid, * FROM v ORDER BY g").fetchall() == before
    assert any("1 row was removed, 0 added" in n for n in notices), notices
    assert follows(commander, NEW)
    assert source.execute("SELECT query FROM headrace.views").fetchone() == (NEW,)
    assert published(source) == [("items",), ("kinds",)]
    source.execute("UPDATE kinds SET ok = NOT ok WHERE g < 3")
    assert follows(source, NEW)
    source.execute(f"CALL headrace.alter_view('v', '{OLD}')")
    assert follows(source, OLD)
    assert published(source) == [("items",)]
    source.execute("DROP VIEW reader")


def test_columns_come_and_go_and_what_hangs_on_others_stays(commander, source):
    commander.execute("CALL headrace.create_index('v', '(g)')")
    source.execute("CREATE VIEW reader AS SELECT g FROM v")
    source.execute("COMMENT ON TABLE v IS 'mine'")
    source.execute("COMMENT ON COLUMN v.n IS 'how many'")
    source.execute("GRANT SELECT ON v TO PUBLIC")
    source.execute("GRANT SELECT (n) ON v TO pg_monitor")
    table = oid(source)
    alter(commander, WIDE)
    assert columns(source) == ["g integer", "n bigint", "total bigint", "last integer"]
    assert follows(commander, WIDE)
    # `last` goes, `total` changes its type, and `n` is added again to stand behind `total`.
    other = (
        "SELECT g, sum(id)::numeric AS total, count(*) AS n, min(id) AS first FROM items GROUP BY g"
    )
    alter(commander, other)
    assert columns(source) == ["g integer", "total numeric", "n bigint", "first integer"]
    assert follows(commander, other)
    assert oid(source) == table
    assert source.execute(
        "SELECT array_agg(g ORDER BY g) = (SELECT array_agg(DISTINCT g ORDER BY g) FROM items)"
        " FROM reader"
    ).fetchone() == (True,)
    assert source.execute(
        "SELECT obj_description('v'::regclass), col_description('v'::regclass, attnum),"
        " has_table_privilege('public', 'v', 'select'),"
        " has_column_privilege('pg_monitor', 'v', 'n', 'select'), attacl IS NOT NULL"
        " FROM pg_attribute WHERE attrelid = 'v'::regclass AND attname = 'n'"
    ).fetchone() == ("mine", "how many", True, True, True)
    indexes = source.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'v'").fetchall()
    assert len(indexes) == 2
    assert any(i[0].endswith("USING btree (g)") for i in indexes)
    assert commander.execute("SELECT * FROM headrace.verify_view('v')").fetchall() == []
    fewer = "SELECT g FROM items GROUP BY g"
    places = source.execute("SELECT g, ctid FROM v ORDER BY g").fetchall()
    alter(commander, fewer)
    assert source.execute("SELECT g, ctid FROM v ORDER BY g").fetchall() == places, "not touched"
    assert columns(source) == ["g integer"]
    assert follows(commander, fewer)
    source.execute("DROP VIEW reader")


def test_what_would_break_is_named_and_nothing_is_changed(commander, source):
    commander.execute("CALL headrace.create_index('v', '(n)')")
    commander.execute("CALL headrace.create_view('above', 'SELECT g, n FROM v')")
    commander.execute("CALL headrace.create_connection_point('p', 'v', storage_key => 'n')")
    source.execute("CREATE VIEW reader AS SELECT n + 1 AS m FROM v")
    source.execute("CREATE PUBLICATION part FOR TABLE v (g, n)")
    before = columns(source), oid(source)
    for query in (
        "SELECT g FROM items GROUP BY g",
        "SELECT g, count(*) AS many FROM items GROUP BY g",
    ):
        with pytest.raises(psycopg.errors.DependentObjectsStillExist, match="depend on") as caught:
            alter(commander, query)
        detail = caught.value.diag.message_detail
        for name in (
            "view public.reader depends on column n",
            "view public.above depends on column n",
            "index public.v_n_idx depends on column n",
            "publication of table public.v in publication part depends on column n",
            'connection point "p" has the storage key n',
        ):
            assert name in detail, detail
        assert "headrace_row_hash" not in detail
    with pytest.raises(psycopg.errors.DependentObjectsStillExist) as caught:
        alter(commander, "SELECT g, count(*)::int AS n FROM items GROUP BY g")
    assert caught.value.diag.message_detail.splitlines() == [
        "view public.reader depends on column n",
        "view public.above depends on column n",
    ]
    assert (columns(source), oid(source)) == before
    # Without a key, Postgres refuses deletes of tables that a publication shows in part.
    source.execute("DROP PUBLICATION part")
    assert follows(commander, OLD)
    assert follows(commander, OLD, "above")
    # Changes of other columns are allowed, and the dependent views follow.
    wide = "SELECT g, count(*) + 1 AS n, sum(id) AS total FROM items GROUP BY g"
    alter(commander, wide)
    assert follows(commander, wide)
    wait_until(
        lambda: (
            source.execute(
                "SELECT query, revision FROM headrace.views WHERE view_name = 'above' AND"
                " status = 'running'"
            ).fetchone()
            and differs(commander, "above", "SELECT g, count(*) + 1 AS n FROM items GROUP BY g")
            == []
        ),
        "the view above it has the other query as well",
    )
    assert follows(commander, "SELECT g, count(*) + 1 AS n FROM items GROUP BY g", "above")
    source.execute("DROP VIEW reader")
    commander.execute("CALL headrace.drop_connection_point('p')")
    commander.execute("CALL headrace.drop_view('above')")


def test_what_is_refused_changes_nothing(commander, source):
    for query, options, error in (
        ("SELECT g, nope AS n FROM items", "{}", "nope"),
        ("SELECT g, random() AS n FROM items", "{}", "random"),
        ("SELECT n AS g, g AS n FROM v", "{}", "read itself"),
        (OLD, '{"history": "1 hour"}', "history"),
        (OLD, '{"placement": "w9"}', "placement"),
        (OLD, '{"from": "p"}', "cannot be changed"),
        (OLD, '{"nope": 1}', "unrecognized option"),
        (OLD, '{"key": ["nope"]}', "nope"),
        (OLD, '{"key": ["n"]}', "have no key"),
        (OLD, "[]", "JSON object"),
    ):
        with pytest.raises(psycopg.Error, match=error):
            alter(commander, query, options)
        assert follows(commander, OLD)
    assert published(source) == [("items",)]
    with pytest.raises(psycopg.errors.UndefinedTable):
        commander.execute("CALL headrace.alter_view('nope', 'SELECT 1')")
    source.execute("CREATE ROLE alters_nothing LOGIN")
    with psycopg.connect(commander.info.dsn, user="alters_nothing", autocommit=True) as other:
        for call in (
            "CALL headrace.alter_view('v', 'SELECT 1 AS one')",
            "CALL headrace.create_view('public.v', 'SELECT 1 AS one', replace => true)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                other.execute(call)
    source.execute("DROP ROLE alters_nothing")
    assert follows(commander, OLD)


def test_options_and_keys_change_and_foreign_keys_stay(commander, source):
    alter(commander, OLD, '{"key": ["g"], "latency_ms": 5}')
    assert source.execute("SELECT options FROM headrace.views").fetchone() == (
        {"key": ["g"], "latency_ms": 5},
    )
    source.execute("CREATE TABLE refers (g int REFERENCES v)")
    source.execute("INSERT INTO refers SELECT g FROM v WHERE g = 2")
    for options in ('{"key": null}', '{"key": ["n"]}'):
        with pytest.raises(psycopg.errors.DependentObjectsStillExist, match="depend on") as caught:
            alter(commander, OLD, options)
        assert "refers" in caught.value.diag.message_detail
    with pytest.raises(psycopg.errors.DependentObjectsStillExist, match="depend on"):
        alter(commander, "SELECT count(*) AS n, g FROM items GROUP BY g")
    alter(commander, WIDE)
    assert columns(source)[2:] == ["total bigint", "last integer"]
    assert source.execute("SELECT count(*) FROM refers JOIN v USING (g)").fetchone() == (1,)
    source.execute("UPDATE items SET id = id + 1000 WHERE g = 2")
    commander.execute("CALL headrace.wait_for('v', timeout => '90 s')")
    assert differs(commander, "v", WIDE) == []
    source.execute("DROP TABLE refers")
    alter(commander, WIDE, '{"key": null, "latency_ms": null}')
    assert source.execute("SELECT options FROM headrace.views").fetchone() == ({},)
    assert follows(commander, WIDE)
    assert source.execute(
        "SELECT count(*) FROM pg_constraint WHERE conrelid = 'v'::regclass AND contype = 'p'"
    ).fetchone() == (0,)


def test_replace_makes_alters_or_does_nothing(commander, source):
    def replace(query, options="{}", name="v"):
        notices.clear()
        commander.execute(
            "CALL headrace.create_view(%s, %s, %s, replace => true)", (name, query, options)
        )
        return source.execute(
            "SELECT id FROM headrace.views WHERE view_name = %s", (name,)
        ).fetchone()[0]

    notices = []
    commander.add_notice_handler(lambda d: notices.append(d.message_primary))
    made = replace(OLD, name="made")
    assert replace(OLD, name="made") == made
    assert any("nothing was changed" in n for n in notices), notices
    # To Postgres, both are the same query.
    assert replace(f"{OLD} -- said otherwise", name="made") == made
    assert replace(OLD, '{"key": ["g"]}', "made") != made
    assert replace(OLD, '{"key": ["g"]}', "made") == replace(OLD, '{"key": ["g"]}', "made")
    source.execute("CALL headrace.set_latency('made', 3)")
    same = replace(OLD, '{"key": ["g"]}', "made")
    assert replace(WIDE, name="made") != same
    assert source.execute(
        "SELECT options FROM headrace.views WHERE view_name = 'made'"
    ).fetchone() == ({"latency_ms": 3},)
    assert follows(commander, WIDE, "made")
    # A view that has stopped is repaired.
    source.execute("ALTER TABLE kinds ADD COLUMN w int DEFAULT 1")
    broken = "SELECT g, w AS n FROM kinds"
    replace(broken, name="made")
    source.execute("ALTER TABLE kinds DROP COLUMN w")
    wait_until(
        lambda: (
            source.execute("SELECT status FROM headrace.views WHERE view_name = 'made'").fetchone()
            == ("error",)
        ),
        "it stops",
    )
    with pytest.raises(psycopg.errors.UndefinedColumn):
        replace(broken, name="made")
    replace(OLD, name="made")
    assert follows(commander, OLD, "made")
    commander.execute("CALL headrace.drop_view('made')")


def test_one_that_stands_still_and_one_whose_table_is_gone(commander, source):
    source.execute("CALL headrace.pause_view('v')")
    alter(commander, WIDE)
    assert follows(commander, WIDE)
    source.execute("DROP TABLE v")
    alter(commander, OLD)
    assert columns(source) == ["g integer", "n bigint"]
    assert follows(commander, OLD)


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", ["cp05", "cp06", "cp07b", "cp08", "cp08b", "cp08c"], ids=lambda p: p
)
def test_killed_at_any_point_it_is_the_old_or_the_new(start_engine, database, point, tmp_path):
    """Under writers, a reader always sees one of the two versions, whole."""
    traps = tmp_path / "traps"
    traps.mkdir()
    engine = start_engine(database, HEADRACE_FAULT_DIR=str(traps))
    over = threading.Event()
    with (
        psycopg.connect(engine.source, autocommit=True) as source,
        psycopg.connect(engine.dsn, autocommit=True) as commander,
    ):
        source.execute(TABLES)
        commander.execute("CALL headrace.create_view('v', %s)", (OLD,))

        def write():
            with psycopg.connect(engine.source, autocommit=True) as conn:
                while not over.wait(0.01):
                    conn.execute("UPDATE items SET g = (g + 1) % 7 WHERE id % 5 = 0")

        seen = []

        def look():
            with psycopg.connect(engine.source, autocommit=True) as conn:
                while not over.wait(0.005):
                    with conn.cursor() as cursor:
                        rows = cursor.execute("SELECT * FROM v", prepare=False).fetchall()
                        names = [d.name for d in cursor.description]
                    seen.append((names, sum(r[1] for r in rows), rows))

        threads = [threading.Thread(target=f) for f in (write, look)]
        for thread in threads:
            thread.start()
        (traps / point).write_text("kill:1")
        with contextlib.suppress(psycopg.Error):
            alter(commander, WIDE)
        wait_until((traps / f"{point}.sprung").exists, "it was killed")
        query = WIDE if len(columns(source)) == 4 else OLD
        wait_until(lambda: follows_now(source, query), "it follows exactly")
        query = WIDE if query == OLD else OLD
        wait_until(lambda: altered(commander, query), "it can be altered")
        over.set()
        for thread in threads:
            thread.join()
        assert follows_now(source, query)
        assert seen
        for names, total, rows in seen:
            assert names in (["g", "n"], ["g", "n", "total", "last"])
            assert total == 50, "a row of items is in one group, at any moment"
            assert all(None not in row for row in rows), rows


def follows_now(conn, query):
    try:
        conn.execute("CALL headrace.wait_for('v', timeout => '20 s')")
    except psycopg.Error:
        return False
    with conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    return differs(conn, "v", query) == [] or differs(conn, "v", query) == []


def altered(conn, query):
    try:
        alter(conn, query)
    except (psycopg.errors.ObjectInUse, psycopg.OperationalError):
        return False
    return True


def test_an_older_snapshot_sees_the_rows_of_then(commander, source, engine):
    before = source.execute("SELECT g, n FROM v ORDER BY g").fetchall()
    with psycopg.connect(engine.source) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert old.execute("SELECT count(*) FROM items").fetchone() == (50,)
        alter(commander, "SELECT g, count(*) * 2 AS n, sum(id) AS total FROM items GROUP BY g")
        assert old.execute("SELECT g, n, total FROM v ORDER BY g").fetchall() == [
            (*row, None) for row in before
        ]
    assert source.execute("SELECT g, n / 2 FROM v ORDER BY g").fetchall() == before


def test_two_at_once_and_a_worker_that_dies(commander, source, engine):
    wide = "SELECT g, count(*) AS n, sum(id) AS total FROM items GROUP BY g"
    results = []

    def one(query):
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            try:
                alter(conn, query)
                results.append(None)
            except psycopg.Error as error:
                results.append(error.sqlstate)

    threads = [threading.Thread(target=one, args=(q,)) for q in (wide, WIDE)]
    for thread in threads:
        thread.start()
    os.kill(engine.child("headrace.runtime.worker"), signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert None in results
    assert set(results) <= {None, "55006"}, results
    assert follows(commander, WIDE if len(columns(source)) == 4 else wide)


def test_a_locked_table_and_a_column_of_a_users_type(commander, source, engine):
    source.execute("CREATE TYPE mood AS ENUM ('good', 'bad')")
    moody = "SELECT g, CASE WHEN count(*) > 8 THEN 'good' ELSE 'bad' END::mood AS n FROM items GROUP BY g"
    with psycopg.connect(engine.source) as reader:
        # The call waits for an open transaction that has read the view, then fails without effect.
        reader.execute("SELECT count(*) FROM v")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            alter(commander, WIDE)
    assert columns(source) == ["g integer", "n bigint"]
    assert follows(commander, OLD)
    more = moody.replace(" FROM", ", max(id) AS last FROM")
    alter(commander, more)
    assert columns(source) == ["g integer", "n mood", "last integer"]
    assert follows(commander, more)
    alter(commander, moody.replace("AS n", "AS mood"))
    assert follows(commander, moody.replace("AS n", "AS mood"))
    alter(commander, OLD)
    assert follows(commander, OLD)
