"""An upgraded catalog equals that of a new database; one of a later version is left alone.

``catalogs/N.sql`` is the dump, with rows, of a database with catalog N.
"""

import subprocess
from pathlib import Path

import psycopg
import pytest

from headrace.embedded.binaries import account, install_dir
from headrace.errors import PrerequisiteError, StateDamaged
from headrace.sql import install, meta, upgrades

CATALOGS = Path(__file__).with_name("catalogs")

OBJECTS = {
    "schema": "SELECT nspacl::text, obj_description(oid, 'pg_namespace') FROM pg_namespace"
    " WHERE nspname = 'headrace'",
    "relations": "SELECT c.relname, c.relkind, c.relpersistence, coalesce(c.relacl, acldefault("
    "CASE c.relkind WHEN 'S' THEN 's'::\"char\" ELSE 'r' END, c.relowner))::text, c.reloptions,"
    " c.relrowsecurity, c.relforcerowsecurity, c.relreplident, obj_description(c.oid, 'pg_class')"
    " FROM pg_class c WHERE c.relnamespace = 'headrace'::regnamespace",
    "columns": "SELECT c.relname, a.attname, row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum),"
    " format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated,"
    " a.attstorage, a.attacl::text, pg_get_expr(d.adbin, d.adrelid)"
    " FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
    " LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum"
    " WHERE c.relnamespace = 'headrace'::regnamespace AND NOT a.attisdropped AND a.attnum > 0",
    "constraints": "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid)"
    " FROM pg_constraint WHERE connamespace = 'headrace'::regnamespace",
    "indexes": "SELECT pg_get_indexdef(i.indexrelid) FROM pg_index i JOIN pg_class c"
    " ON c.oid = i.indrelid WHERE c.relnamespace = 'headrace'::regnamespace",
    "policies": "SELECT polrelid::regclass::text, polname, polcmd, polpermissive, polroles::text,"
    " pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid) FROM pg_policy"
    " WHERE polrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'headrace'::regnamespace)",
    "triggers": "SELECT pg_get_triggerdef(t.oid), tgenabled FROM pg_trigger t JOIN pg_class c"
    " ON c.oid = t.tgrelid WHERE c.relnamespace = 'headrace'::regnamespace AND NOT tgisinternal",
    "routines": "SELECT pg_get_functiondef(oid), coalesce(proacl, acldefault('f', proowner))::text FROM pg_proc"
    " WHERE pronamespace = 'headrace'::regnamespace",
}


def objects(conn: psycopg.Connection) -> dict[str, list[tuple]]:
    """Return all objects of schema ``headrace``, described without OIDs."""
    conn.execute("SET search_path = pg_catalog")
    found = {
        what: sorted(conn.execute(query).fetchall(), key=repr) for what, query in OBJECTS.items()
    }
    conn.execute("RESET search_path")
    return found


def load(conn: psycopg.Connection, number: int) -> None:
    """Create the catalog of a number from its dump."""
    conn.execute((CATALOGS / f"{number}.sql").read_bytes())
    # The restored tables have other OIDs; in a database that is upgraded, the record is right.
    conn.execute(
        "UPDATE headrace.meta SET value = 'headrace.views'::regclass::oid::text"
        " WHERE key = 'catalog_oid'"
    )
    conn.execute("RESET ALL")


@pytest.fixture
def conn(database):
    with psycopg.connect(database, autocommit=True) as conn:
        yield conn


def test_every_number_has_its_step_and_its_predecessor():
    texts = [install.statements(name) for name in upgrades.files()]
    assert all(texts)
    assert {int(path.stem) for path in CATALOGS.glob("*.sql")} >= {upgrades.CATALOG - 1}


def test_what_tables_lack_stands_in_a_step():
    """CREATE TABLE has all columns; ADD COLUMN belongs into the steps of upgrades."""
    for name in install.FILES:
        text = install.statements(name).upper()
        assert "ADD COLUMN" not in text, (
            f"{name}: into the table itself, and into a step for databases that have the table"
            " already (sql/upgrades.py)"
        )


VIEWS = {
    1: ["revenue", "large"],
    2: ["groups", "several"],
    3: ["groups", "several"],
    4: ["groups", "several"],
    5: ["groups", "several"],
}
FILLED_ANEW = {1: set(), 2: {"groups"}, 3: set(), 4: set(), 5: set()}
KEPT = {
    1: (1, 1, 1, 2, 0),
    2: (0, 0, 0, 2, 0),
    3: (0, 0, 0, 2, 0),
    4: (0, 0, 0, 2, 0),
    5: (1, 0, 0, 2, 0),
}
"""By catalog: rows of history, points, feeds and progress; views without a time."""


@pytest.mark.parametrize("number", range(1, upgrades.CATALOG))
def test_an_upgraded_catalog_is_a_new_one(conn, databases, number):
    name = databases.take()
    with psycopg.connect(psycopg.conninfo.make_conninfo(databases.server, dbname=name)) as fresh:
        install.install(fresh)
        expected = objects(fresh)
    databases.give_back(name)
    load(conn, number)
    assert upgrades.found(conn) == number
    before = conn.execute(
        "SELECT id, view_name, query, plan, status, owner::oid FROM headrace.views ORDER BY id"
    ).fetchall()
    assert [row[1] for row in before] == VIEWS[number]
    for _ in range(2):
        install.install(conn)
        assert upgrades.found(conn) == upgrades.CATALOG
        now = objects(conn)
        for what, rows in expected.items():
            assert [r for r in now[what] if r not in rows] == [], what
            assert [r for r in rows if r not in now[what]] == [], what
    after = conn.execute(
        "SELECT id, view_name, query, plan, status, owner::oid FROM headrace.views ORDER BY id"
    ).fetchall()
    # Views whose states have intervals as keys are populated again.
    assert [row for row in after if row[4] != "error"] == [
        row for row in before if row[1] not in FILLED_ANEW[number]
    ]
    kept = conn.execute(
        "SELECT (SELECT count(*) FROM headrace.history), (SELECT count(*) FROM headrace.points),"
        " (SELECT count(*) FROM headrace.feeds), (SELECT count(*) FROM headrace.progress),"
        " (SELECT count(*) FROM headrace.views WHERE since IS NULL)"
    ).fetchone()
    assert kept == KEPT[number]


def test_views_whose_states_have_keys_of_intervals_are_filled_anew(conn):
    """Earlier versions gave unequal intervals one key; views without intervals go on."""
    load(conn, 2)
    states = "SELECT view_name, status, sqlstate, hint IS NOT NULL FROM headrace.views ORDER BY id"
    assert conn.execute(states).fetchall() == [
        ("groups", "running", None, False),
        ("several", "running", None, False),
    ]
    install.install(conn)
    assert conn.execute(states).fetchall() == [
        ("groups", "error", StateDamaged.sqlstate, True),
        ("several", "running", None, False),
    ]
    conn.execute("UPDATE headrace.views SET status = 'running', sqlstate = NULL, hint = NULL")
    install.install(conn)
    assert {row[1] for row in conn.execute(states)} == {"running"}


@pytest.mark.parametrize(
    ("canonical", "oid", "status"),
    [
        ("SELECT count(DISTINCT t.s COLLATE public.blurred) AS n FROM public.t", 25, "error"),
        ("SELECT t.id FROM public.t ORDER BY t.pair NULLS FIRST LIMIT 3", 16400, "error"),
        ("SELECT t.id FROM public.t ORDER BY t.s NULLS FIRST LIMIT 3", 25, "running"),
        ("SELECT t.id FROM public.t ORDER BY t.pair LIMIT 3", 16400, "running"),
    ],
)
def test_views_whose_order_or_collation_was_ignored_are_filled_anew(conn, canonical, oid, status):
    load(conn, 5)
    conn.execute(
        "UPDATE headrace.views SET status = 'running', canonical = %s, plan = %s"
        " WHERE view_name = 'several'",
        (canonical, f'{{"nodes": [{{"schema": [{{"oid": {oid}}}, {{"oid": 23}}]}}]}}'),
    )
    install.install(conn)
    found = conn.execute("SELECT status FROM headrace.views WHERE view_name = 'several'").fetchone()
    assert found == (status,)


def test_a_later_catalog_is_left_alone(conn, monkeypatch):
    """It is neither overwritten nor removed, and its new objects do not count as foreign."""
    install.install(conn)
    meta.put(conn, "version", str(upgrades.CATALOG + 1))
    conn.execute("CREATE TABLE headrace.of_tomorrow ()")
    before = objects(conn)
    for act in (install.install, install.uninstall):
        with pytest.raises(PrerequisiteError, match="later version") as caught:
            act(conn)
        assert caught.value.code == "55000"
        assert caught.value.hint
    assert [(p.code, "later version" in p.message) for p in install.problems(conn)] == [
        ("55000", True)
    ]
    assert objects(conn) == before
    monkeypatch.setattr(upgrades, "CATALOG", upgrades.CATALOG + 1)
    assert upgrades.problem(conn) is None


def test_an_object_that_goes_is_no_foreign_one(conn, monkeypatch):
    """A step must drop it; an upgrade without such a step fails."""
    install.install(conn)
    conn.execute("CREATE FUNCTION headrace.former() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    with pytest.raises(PrerequisiteError, match="former"):
        install.install(conn)
    number = upgrades.CATALOG + 1
    text = install.statements
    drop = "DROP FUNCTION IF EXISTS headrace.former();"
    step = {"is": "SELECT 1;"}
    monkeypatch.setattr(upgrades, "CATALOG", number)
    monkeypatch.setattr(upgrades, "GONE", ("former",))
    monkeypatch.setattr(
        install, "statements", lambda n: step["is"] if n == upgrades.file(number) else text(n)
    )
    with pytest.raises(PrerequisiteError, match="former"):
        install.install(conn)
    assert upgrades.found(conn) == number - 1, "all of it or nothing"
    step["is"] = drop
    install.install(conn)
    assert conn.execute("SELECT to_regproc('headrace.former')").fetchone() == (None,)
    assert upgrades.found(conn) == number
    assert install.problems(conn) == []


def test_a_routine_that_takes_other_arguments_by_now_is_no_foreign_one(conn):
    """An earlier version has created the other one; in a current catalog it is a foreign object."""
    load(conn, 1)
    former = "CREATE PROCEDURE headrace.drop_view(name text, how int) LANGUAGE sql AS 'SELECT 1'"
    conn.execute("DROP PROCEDURE headrace.drop_view(text, boolean)")
    conn.execute(former)
    install.install(conn)
    arguments = (
        "SELECT p.oid::regprocedure::text FROM pg_proc p"
        " WHERE pronamespace = 'headrace'::regnamespace AND proname = 'drop_view'"
    )
    assert conn.execute(arguments).fetchall() == [("headrace.drop_view(text,boolean)",)]
    conn.execute(former)
    with pytest.raises(PrerequisiteError, match="drop_view"):
        install.install(conn)


def test_who_uses_our_functions_is_told_what_hinders(conn):
    load(conn, 1)
    conn.execute("CREATE VIEW mine AS SELECT name FROM headrace.list_views()")
    with pytest.raises(PrerequisiteError, match="could not upgrade") as caught:
        install.install(conn)
    assert caught.value.code == "2BP01"
    assert "mine" in str(caught.value.detail)
    assert upgrades.found(conn) == 1
    conn.execute("DROP VIEW mine")
    install.install(conn)


def test_a_catalog_from_a_dump_is_not_worked_with(conn, databases, tmp_path):
    """Its OIDs refer to other tables in this database; a copy block by block keeps them."""
    if conn.info.server_version // 10_000 != 16:
        pytest.skip("programs of that version are at hand")
    programs = install_dir(16, account()) / "bin"
    install.install(conn)
    conn.execute("CREATE TABLE v (a int); INSERT INTO v VALUES (1)")
    conn.execute(
        "INSERT INTO headrace.views (schema_name, view_name, query, result_oid)"
        " VALUES ('public', 'v', 'SELECT 1', 'v'::regclass)"
    )
    install.install(conn)
    dump = tmp_path / "dump"
    source = psycopg.conninfo.make_conninfo(databases.server, dbname=conn.info.dbname)
    subprocess.run([programs / "pg_dump", "-Fc", "-f", dump, "-d", source], check=True)
    copy, block = databases.take(), f"{conn.info.dbname}_copy"
    where = psycopg.conninfo.make_conninfo(databases.server, dbname=copy)
    with psycopg.connect(where, autocommit=True) as other:
        # It may have the OID that the table had in the source.
        other.execute("CREATE TABLE precious (a int)")
        subprocess.run([programs / "pg_restore", "-d", where, dump], check=True)
        other.execute("UPDATE headrace.views SET result_oid = 'precious'::regclass")
        for noted in (True, False):
            assert install.problems(other) == []
            assert [p.code for p in install.hindrances(other)] == ["55000"]
            with pytest.raises(PrerequisiteError, match="from a dump"):
                install.install(other)
            with pytest.raises(PrerequisiteError, match="from a dump"):
                install.uninstall(other, tables=True)
            if noted:  # an earlier version did not record it
                other.execute("DELETE FROM headrace.meta WHERE key = 'catalog_oid'")
        assert install.uninstall(other) == []
        assert other.execute("SELECT count(*) FROM precious, v").fetchone() == (0,)
        install.install(other)
    databases.give_back(copy)
    with psycopg.connect(databases.server, autocommit=True) as server:
        conn.close()
        server.execute(
            f"CREATE DATABASE {block} TEMPLATE {psycopg.conninfo.conninfo_to_dict(source)['dbname']}"
        )
    with psycopg.connect(databases.server, dbname=block, autocommit=True) as other:
        assert install.hindrances(other) == []
        install.install(other)
    with psycopg.connect(databases.server, autocommit=True) as server:
        server.execute(f"DROP DATABASE {block}")


@pytest.mark.parametrize(
    "prepared",
    [
        "CREATE VIEW headrace.meta AS SELECT 'version' AS key, mine() AS value",
        "CREATE TABLE headrace.meta (key text, value text);"
        "CREATE INDEX ON headrace.meta ((mine() || key))",
        "CREATE DOMAIN d AS text CHECK (mine() <> VALUE);"
        "CREATE TABLE headrace.meta (key d, value text)",
        "CREATE TABLE headrace.meta (key text, value text);"
        "CREATE STATISTICS headrace.s ON (mine() || key), key FROM headrace.meta",
        "CREATE TABLE headrace.meta (key text, value text CHECK (value <> mine()))",
    ],
    ids=["view", "index", "domain", "statistics", "check"],
)
def test_what_was_prepared_is_not_read(conn, prepared):
    """Expressions of the catalog are not evaluated before its owner is known."""
    conn.execute(
        "CREATE FUNCTION mine() RETURNS text IMMUTABLE LANGUAGE plpgsql"
        " AS $$ BEGIN IF current_setting('my.armed', true) = 'on' THEN RAISE EXCEPTION 'run';"
        " END IF; RETURN ''; END $$; CREATE SCHEMA headrace"
    )
    conn.execute(prepared)
    conn.execute("SET my.armed = on")
    assert upgrades.found(conn) is None
    assert [problem.code for problem in install.problems(conn)][:1] == ["42501"]


def test_a_catalog_without_a_number_we_know_is_none(conn):
    assert upgrades.found(conn) is None
    install.install(conn)
    conn.execute("UPDATE headrace.meta SET value = 'x' WHERE key = 'version'")
    assert upgrades.found(conn) is None
