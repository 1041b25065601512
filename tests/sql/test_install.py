"""Installing, upgrading and removing the SQL objects; the eval role."""

from __future__ import annotations

import threading
from importlib import resources

import psycopg
import pytest
import structlog
from psycopg.conninfo import make_conninfo

from headrace.errors import PrerequisiteError
from headrace.postgres.settings import CAPTURED
from headrace.sql import install, installed, upgrades
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def conn(database):
    with psycopg.connect(database, autocommit=True) as conn:
        yield conn


OBJECTS = (
    "SELECT classid::regclass::text, count(*) FROM pg_depend"
    " WHERE refobjid = 'headrace'::regnamespace GROUP BY 1 ORDER BY 1"
)


RENEWED = {"progress", "view_tables", "view_uses"}
"""Tables whose rows of a view are deleted before the view gets another id."""


def test_a_view_that_gets_another_id_keeps_what_refers_to_it(conn):
    """A resync gives the view another id, also while a row says by what the view is held up."""
    install.install(conn)
    found = conn.execute(
        "SELECT c.relname, r.confupdtype::text FROM pg_constraint r"
        " JOIN pg_class c ON c.oid = r.conrelid WHERE r.confrelid = 'headrace.views'::regclass"
    ).fetchall()
    assert {"held", "samples"} <= {table for table, _ in found}
    assert {table for table, update in found if update != "c"} == RENEWED


def test_every_file_is_loaded():
    names = {f.name for f in resources.files("headrace.sql").iterdir() if f.name.endswith(".sql")}
    assert names == {*install.FILES, *upgrades.files()}


def test_install_is_idempotent_and_uninstall_clean(conn):
    count = "SELECT count(*) FROM pg_class WHERE relnamespace <> 'pg_toast'::regnamespace"
    before = conn.execute(count).fetchone()
    install.install(conn)
    conn.execute(
        "INSERT INTO headrace.views (schema_name, view_name, query) VALUES ('s', 'v', 'q')"
    )
    objects = conn.execute(OBJECTS).fetchall()
    install.install(conn)
    assert conn.execute(OBJECTS).fetchall() == objects
    assert conn.execute("SELECT view_name FROM headrace.views").fetchall() == [("v",)]
    assert install.uninstall(conn) == []
    assert conn.execute("SELECT to_regnamespace('headrace')").fetchone() == (None,)
    assert conn.execute(count).fetchone() == before
    assert install.uninstall(conn) == []


def change(conn: psycopg.Connection) -> None:
    """Make the next installation find a change."""
    conn.execute("DELETE FROM headrace.meta WHERE key = 'installed'")


LOCKED = """
SELECT count(*) FROM pg_locks l JOIN pg_class c ON l.locktype = 'relation' AND c.oid = l.relation
 WHERE c.relnamespace = 'headrace'::regnamespace AND l.mode LIKE 'Access%%' AND l.pid = %s"""


def test_a_start_that_changes_nothing_waits_for_no_reader(conn, database):
    """It does not wait for pg_dump either, which locks all tables that it reads."""
    install.install(conn)
    install.install(conn)
    conn.execute("VACUUM FREEZE")
    conn.execute("ANALYZE")
    tables = conn.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'headrace'::regnamespace"
        " AND relkind = 'r'"
    ).fetchall()
    with psycopg.connect(database) as reader:
        for (name,) in tables:
            reader.execute(f"LOCK TABLE headrace.{name} IN ACCESS SHARE MODE")
        reader.execute("SELECT * FROM headrace.list_views()")
        assert conn.execute(LOCKED, (reader.info.backend_pid,)).fetchone()[0] >= len(tables)
        conn.execute("SET statement_timeout = '60s'")
        install.install(conn)


DAMAGES = [
    "DROP FUNCTION headrace.status()",
    "CREATE OR REPLACE FUNCTION headrace.batch_s() RETURNS float8 LANGUAGE sql AS 'SELECT 1'",
    "ALTER FUNCTION headrace.status() SECURITY DEFINER",
    "REVOKE EXECUTE ON FUNCTION headrace.status() FROM PUBLIC",
    "GRANT INSERT ON headrace.views TO PUBLIC",
    "GRANT UPDATE (status) ON headrace.views TO PUBLIC",
    "DROP POLICY own ON headrace.views",
    "ALTER POLICY own ON headrace.views USING (true)",
    "ALTER TABLE headrace.views DISABLE ROW LEVEL SECURITY",
    "GRANT CREATE ON SCHEMA headrace TO PUBLIC",
    "DROP TABLE headrace.samples CASCADE",
    "REVOKE SELECT ON headrace.meta FROM PUBLIC",
]


def test_what_was_altered_is_installed_again(conn):
    """A damaged object that an installation would repair counts as a change."""
    install.install(conn)
    texts = list(install.scripts())
    assert installed.unchanged(conn, texts)
    assert not installed.unchanged(conn, [*texts, "SELECT 1"])
    for damage in DAMAGES:
        with conn.transaction(force_rollback=True):
            conn.execute(damage)
            assert not installed.unchanged(conn, texts), damage
        assert installed.unchanged(conn, texts)
    conn.execute(DAMAGES[0])
    install.install(conn)
    assert conn.execute("SELECT count(*) > 0 FROM headrace.status()").fetchone() == (True,)


def test_a_reader_of_the_catalog_is_no_victim_of_a_start(conn, database):
    """The reader keeps its locks and takes more during the installation, which tries again."""
    install.install(conn)
    change(conn)
    conn.execute("ALTER SYSTEM SET deadlock_timeout = '5s'")
    conn.execute("SELECT pg_reload_conf()")
    done = threading.Event()

    def start() -> None:
        with psycopg.connect(database, autocommit=True) as other:
            install.install(other)
        done.set()

    thread = threading.Thread(target=start, daemon=True)
    try:
        with psycopg.connect(database) as reader:
            # The reader locks the last table that is altered, and then reads an earlier one.
            reader.execute("SELECT * FROM headrace.view_uses")
            thread.start()
            wait_until(
                lambda: conn.execute(
                    "SELECT true FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
                    " WHERE NOT l.granted AND c.relname = 'view_uses'"
                ).fetchone(),
                "the installation waits for the reader",
            )
            reader.execute("SELECT * FROM headrace.views")
            reader.execute("SELECT * FROM headrace.list_views()")
            assert not done.is_set()
        assert done.wait(PATIENCE_S)
    finally:
        conn.execute("ALTER SYSTEM RESET deadlock_timeout")
        conn.execute("SELECT pg_reload_conf()")
        thread.join()


@pytest.mark.parametrize("prepared", [False, True])
def test_an_upgrade_waits_and_says_for_which_transaction(conn, database, prepared):
    """It waits as long as needed, and other readers do not wait behind it."""
    if prepared and conn.execute("SHOW max_prepared_transactions").fetchone() == ("0",):
        pytest.skip("the server takes no prepared transactions")
    install.install(conn)
    change(conn)
    done = threading.Event()

    def start() -> None:
        with psycopg.connect(database, autocommit=True) as other:
            install.install(other)
        done.set()

    thread = threading.Thread(target=start, daemon=True)
    with (
        structlog.testing.capture_logs() as logs,
        psycopg.connect(database, application_name="nightly dump") as reader,
    ):
        reader.execute("SELECT * FROM headrace.views")
        if prepared:
            reader.execute("PREPARE TRANSACTION 'kept open'")
        thread.start()
        words = "kept open" if prepared else "nightly dump"
        told = wait_until(
            lambda: [line for line in logs if words in line.get("waits_for", "")],
            "it says for which transaction it waits",
        )
        assert told[0]["event"] == "installation waits"
        assert told[0]["seconds"] >= 0
        for _ in range(20):
            waiting = conn.execute(
                "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
                " WHERE NOT l.granted AND c.relnamespace = 'headrace'::regnamespace"
            ).fetchone()
            assert waiting == (0,), "it asks for no lock meanwhile"
        assert not done.is_set()
        if prepared:
            conn.execute("ROLLBACK PREPARED 'kept open'")
        else:
            reader.rollback()
        assert done.wait(PATIENCE_S)
    thread.join()


def test_uninstall_keeps_or_drops_result_tables(conn):
    for tables in (False, True):
        install.install(conn)
        conn.execute('CREATE TABLE IF NOT EXISTS "Odd ""name" (x int)')
        conn.execute(
            "INSERT INTO headrace.views (schema_name, view_name, query, result_oid)"
            " SELECT 'public', relname, 'q', oid FROM pg_class WHERE relname LIKE 'Odd%'"
        )
        assert install.uninstall(conn, tables=tables) == ['"public"."Odd ""name"']
        left = conn.execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'Odd%'").fetchone()
        assert left == (0 if tables else 1,)


def test_uninstall_drops_schemas_made_for_views(conn):
    install.install(conn)
    for schema in ("made", "taken"):
        conn.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.v ()")
        conn.execute(
            "INSERT INTO headrace.views (schema_name, view_name, query, result_oid)"
            " VALUES (%(s)s::text, 'v', 'q', (%(s)s::text || '.v')::regclass)",
            {"s": schema},
        )
    conn.execute("CREATE TABLE taken.mine ()")
    conn.execute(
        "INSERT INTO headrace.made_schemas SELECT oid, nspowner FROM pg_namespace"
        " WHERE nspname IN ('made', 'taken')"
    )
    install.uninstall(conn, tables=True)
    assert conn.execute(
        "SELECT to_regnamespace('made'), to_regclass('taken.mine')::text"
    ).fetchone() == (None, "taken.mine")


def test_no_right_to_install_is_told(conn, database):
    conn.execute("DROP ROLE IF EXISTS f_nobody; CREATE ROLE f_nobody LOGIN")
    try:
        with psycopg.connect(make_conninfo(database, user="f_nobody"), autocommit=True) as nobody:
            with pytest.raises(PrerequisiteError, match="permission denied"):
                install.install(nobody)
            install.install(conn)
            with pytest.raises(PrerequisiteError, match="belongs to role"):
                install.install(nobody)
    finally:
        conn.execute("DROP ROLE f_nobody")


def test_installs_for_a_role_that_is_no_superuser(conn, database):
    conn.execute("DROP ROLE IF EXISTS f_engine; CREATE ROLE f_engine LOGIN REPLICATION")
    name = conn.info.dbname
    conn.execute(
        psycopg.sql.SQL("GRANT CREATE ON DATABASE {} TO f_engine").format(
            psycopg.sql.Identifier(name)
        )
    )
    try:
        with psycopg.connect(make_conninfo(database, user="f_engine"), autocommit=True) as engine:
            install.install(engine)
            install.install(engine)
            engine.execute("SELECT * FROM headrace.list_views()")
            install.uninstall(engine)
    finally:
        conn.execute("DROP OWNED BY f_engine; DROP ROLE f_engine")


def test_eval_role_has_no_rights(conn, database, tmp_path):
    dsn = install.ensure_eval_role(conn, tmp_path, database)
    assert dsn is not None
    assert install.ensure_eval_role(conn, tmp_path, database) == dsn
    with psycopg.connect(dsn) as powerless:
        row = powerless.execute(
            "SELECT rolsuper, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls"
            " FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
        assert row == (False,) * 5
    for file in tmp_path.glob("eval_password"):
        assert file.stat().st_mode & 0o077 == 0


def test_what_code_of_users_did_to_the_eval_role_is_undone(conn, database, tmp_path, monkeypatch):
    """The role may alter itself, which must not keep the engine from using it."""
    role = f"{conn.info.dbname}_eval"  # not that of the whole server, which others use
    monkeypatch.setattr(install, "EVAL_ROLE", role)
    dsn = install.ensure_eval_role(conn, tmp_path, database)
    assert psycopg.conninfo.conninfo_to_dict(dsn)["user"] == role
    for change in (
        "PASSWORD 'known'",
        "SET work_mem = '1MB'",
        f"IN DATABASE {conn.info.dbname} SET search_path = x",
    ):
        with psycopg.connect(dsn, autocommit=True) as powerless:
            powerless.execute(f"ALTER ROLE {role} {change}")
        assert install.ensure_eval_role(conn, tmp_path, database) == dsn
        with psycopg.connect(dsn) as powerless:
            shown = powerless.execute("SHOW search_path").fetchone()
        assert shown == ('"$user", public',)
        kept = "SELECT FROM pg_db_role_setting WHERE setrole = %s::regrole"
        assert conn.execute(kept, (role,)).fetchone() is None
    conn.execute(f"DROP ROLE {role}")


def test_captured_settings_are_those_of_the_commander(conn):
    install.install(conn)
    (settings,) = conn.execute("SELECT headrace.captured_settings()").fetchone()
    assert set(settings) == set(CAPTURED)


ENGINE = (
    "INSERT INTO headrace.meta SELECT %s, a.pid || ' ' || extract(epoch FROM a.backend_start)"
    " FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()"
)


def test_list_views(conn, database):
    """The status "running" is believed while a worker's backend is there."""
    install.install(conn)
    conn.execute('CREATE TABLE "Odd name" ()')
    conn.execute(
        "INSERT INTO headrace.views (schema_name, view_name, query, status, result_oid)"
        " VALUES ('public', 'Odd name', 'SELECT 1', 'running', '\"Odd name\"'::regclass)"
    )
    conn.execute(
        "INSERT INTO headrace.progress (view_id, epoch, txid, lsn, source_commit_at)"
        " SELECT id, 1, 7, pg_current_wal_lsn() - 100, now() - interval '2 s' FROM headrace.views"
    )
    cursor = conn.execute("SELECT * FROM headrace.list_views()")
    names = (
        "name status message query rows lag_ms lag_bytes txid lsn owner since held_by p50_ms p99_ms"
        " rows_per_s state_bytes last_error last_error_at cursor"
    )
    assert [c.name for c in cursor.description] == names.split()

    def status() -> str:
        row = conn.execute("SELECT * FROM headrace.list_views()").fetchone()
        assert row[0] == 'public."Odd name"'
        # The worker has not reported its progress yet, so the lag is unknown.
        known = row[1] not in ("running", "sink_error")
        assert row[5] >= 2000 if known else row[5] is None
        assert row[6] >= 100
        assert row[7] == 7
        return row[1]

    assert status() == "stopped"
    with psycopg.connect(database, autocommit=True) as commander:
        commander.execute(ENGINE, ("commander",))
        assert status() == "starting"
        with psycopg.connect(database, autocommit=True) as worker:
            worker.execute(ENGINE, ("worker",))
            assert status() == "running"
            conn.execute("UPDATE headrace.progress SET epoch = 0")
            assert status() == "starting", "nobody has taken it over"
            conn.execute("UPDATE headrace.progress SET epoch = 1")
            conn.execute("UPDATE headrace.views SET status = 'sink_error'")
            assert status() == "sink_error"
    shown = "SELECT status FROM headrace.list_views()"
    # The sessions end while the function looks for them.
    wait_until(lambda: conn.execute(shown).fetchone() == ("stopped",), "the server sees them go")
    assert status() == "stopped"
    for kept in ("paused", "error"):
        conn.execute("UPDATE headrace.views SET status = %s", (kept,))
        assert status() == kept


def test_explain_view_of_names(conn):
    install.install(conn)
    conn.execute("CREATE SCHEMA s")
    for schema in ("public", "s"):
        conn.execute(
            "INSERT INTO headrace.views (schema_name, view_name, query, explain) VALUES"
            " (%s, 'V x', 'q', jsonb_build_object('physical', %s::text, 'logical', 'l'))",
            (schema, f"in {schema}\n  more\n"),
        )
    sql = "SELECT * FROM headrace.explain_view(%s)"
    assert conn.execute(sql, ('"V x"',)).fetchall() == [("in public",), ("  more",)]
    assert conn.execute(sql, ('s."V x"',)).fetchall() == [("in s",), ("  more",)]
    conn.execute("SET search_path = s, public")
    assert conn.execute(sql, ('"V x"',)).fetchone() == ("in s",)
    assert conn.execute("SELECT * FROM headrace.explain_view('\"V x\"', 'logical')").fetchall() == [
        ("l",)
    ]
    with pytest.raises(psycopg.errors.UndefinedTable):
        conn.execute(sql, ("nothing",))
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="no plan of stage"):
        conn.execute("SELECT * FROM headrace.explain_view('\"V x\"', 'x')")
    with pytest.raises(psycopg.errors.CannotConnectNow):
        conn.execute(sql, ("SELECT 1",))


def test_result_tables_of_earlier_versions_get_a_replica_identity(conn, database):
    """Once, as soon as the table is not locked; a table with a key keeps its identity."""
    install.install(conn)
    for name in ("old", "busy", "keyed"):
        conn.execute(f"CREATE TABLE {name} (a int{' PRIMARY KEY' * (name == 'keyed')})")
        conn.execute(
            "INSERT INTO headrace.views (schema_name, view_name, query, owner, status,"
            " result_oid) VALUES ('public', %s, '', 0, 'running', %s::regclass)",
            (name, name),
        )

    def identities():
        return conn.execute(
            "SELECT relname, relreplident::text FROM pg_class"
            " WHERE relname IN ('old', 'busy', 'keyed') ORDER BY 1"
        ).fetchall()

    with psycopg.connect(database) as user:
        user.execute("LOCK TABLE busy IN ACCESS SHARE MODE")
        install.install(conn)
        assert identities() == [("busy", "d"), ("keyed", "d"), ("old", "f")]
    install.install(conn)
    assert identities() == [("busy", "f"), ("keyed", "d"), ("old", "f")]


def test_owners_of_an_earlier_version_are_known_by_oid(conn):
    """That version stored the names of owners, also of roles that are dropped by now."""
    install.install(conn)
    role = f"{conn.info.dbname}_here"
    conn.execute(
        "UPDATE headrace.meta SET value = '1' WHERE key = 'version';"
        "DROP POLICY own ON headrace.views; ALTER TABLE headrace.views DROP COLUMN owner;"
        "ALTER TABLE headrace.views ADD COLUMN owner name;"
        "CREATE POLICY own ON headrace.views FOR SELECT USING (owner IN (SELECT r.rolname"
        " FROM pg_roles r WHERE pg_has_role(r.oid, 'USAGE')))"
    )
    for number, owner in enumerate((role, f"{role} not", None)):
        conn.execute(
            "INSERT INTO headrace.views (schema_name, view_name, query, owner, status)"
            " VALUES ('public', %s, 'SELECT 1', %s, 'paused')",
            (f"v{number}", owner),
        )
    conn.execute(f"CREATE ROLE {role}")
    try:
        for _ in range(2):
            install.install(conn)
            owners = conn.execute(
                "SELECT owner::text FROM headrace.views ORDER BY view_name"
            ).fetchall()
            assert owners == [(role,), ("-",), (None,)]
        listed = conn.execute(
            "SELECT name, status, message FROM headrace.list_views() ORDER BY name"
        ).fetchall()
        assert [status for _, status, _ in listed] == ["paused", "error", "paused"]
        assert "was dropped" in listed[1][2]
        conn.execute(f"SET ROLE {role}")
        seen = conn.execute("SELECT view_name FROM headrace.views").fetchall()
        conn.execute("RESET ROLE")
        assert seen == [("v0",)]
        conn.execute(f"DROP ROLE {role}; CREATE ROLE {role}; SET ROLE {role}")
        assert conn.execute("SELECT view_name FROM headrace.views").fetchall() == []
    finally:
        conn.execute(f"RESET ROLE; DROP ROLE {role}")


def test_messages_of_an_earlier_version_stay_readable(conn):
    """That version stored in one column the parts that have separate columns now."""
    install.install(conn)
    conn.execute(
        "UPDATE headrace.meta SET value = '1' WHERE key = 'version';"
        "DROP FUNCTION headrace.view_message;"
        "ALTER TABLE headrace.views DROP COLUMN detail, DROP COLUMN hint,"
        " DROP COLUMN culprit, DROP COLUMN tried;"
        "INSERT INTO headrace.views (schema_name, view_name, query, status, message)"
        " VALUES ('public', 'v', 'SELECT 1', 'error', 'what; why; Do this. It failed: x')"
    )
    for _ in range(2):
        install.install(conn)
        told = conn.execute("SELECT message FROM headrace.list_views()").fetchall()
        assert told == [("what; why; Do this. It failed: x",)]
