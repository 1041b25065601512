"""Objects that stand ready before our start are not adopted: they could be traps.

A role that may create a schema in the database, or once had rights on ours, prepares objects before
the first start or between two starts. Start and ``headrace check`` refuse and name the object; no
code of it has run by then.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql

from headrace.config import Settings
from headrace.errors import PrerequisiteError
from headrace.server import cli, main
from headrace.sql import install
from tests.security.roles import connect, role

TRAP = """
CREATE TABLE {low}.trace (who name, what text);
GRANT INSERT ON {low}.trace TO PUBLIC;
CREATE FUNCTION {low}.note(what text) RETURNS text LANGUAGE plpgsql AS $f$
BEGIN INSERT INTO {low}.trace VALUES (current_user, what); RETURN what; END $f$;
CREATE FUNCTION {low}.trap() RETURNS trigger LANGUAGE plpgsql AS $f$
BEGIN PERFORM {low}.note('trigger'); RETURN NEW; END $f$;
"""
META = "CREATE TABLE headrace.meta (key text PRIMARY KEY, value text);"
TRIGGER = (
    "CREATE TRIGGER trap BEFORE INSERT OR UPDATE ON headrace.meta"
    " FOR EACH ROW EXECUTE FUNCTION {low}.trap();"
)
VIEWS = "CREATE VIEW headrace.views AS SELECT {low}.note('view') AS query, 0::oid AS result_oid;"


@pytest.fixture
def server(database):
    with psycopg.connect(database, autocommit=True) as conn:
        yield conn


@pytest.fixture
def low(server):
    with role(server, "low") as name:
        statement = sql.SQL("GRANT CREATE ON DATABASE {} TO {}")
        server.execute(statement.format(sql.Identifier(server.info.dbname), sql.Identifier(name)))
        with connect(server.info.dsn, name) as conn:
            conn.execute(TRAP.format(low=name))
            yield conn
        server.execute("DROP SCHEMA IF EXISTS headrace CASCADE")


def run(server: psycopg.Connection, tmp_path, *words: str) -> tuple[int, str]:
    """Run ``headrace …`` as the superuser; return exit status and output."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace.server.cli", *words,
         "--source", server.info.dsn, "--slot-name", f"s_{server.info.dbname}"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def refused(server: psycopg.Connection, low: psycopg.Connection, tmp_path) -> str:
    """Check that check and start refuse and that no code of ``low`` ran; return the output."""
    status, checked = run(server, tmp_path, "check")
    assert status == 1, checked
    begin = ("start", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
    status, started = run(server, tmp_path, *begin)
    assert status == 1, started
    told = checked.splitlines()
    marked = [n for n, line in enumerate(told) if line.startswith("✗")]
    assert marked, checked
    for n in marked:
        assert "\n".join(told[n : n + 2]) in started, started
    assert low.execute("SELECT * FROM trace").fetchall() == []
    return checked


@pytest.fixture
def here(server, capsys) -> Callable[[str], tuple[int, str]]:
    """A function like ``run``, in this process: a new process takes a second to start."""

    def run(word: str) -> tuple[int, str]:
        slot = ("--slot-name", f"s_{server.info.dbname}") if word != "status" else ()
        status = cli.main([word, "--source", server.info.dsn, *slot])
        done = capsys.readouterr()
        return status, done.out + done.err

    return run


@pytest.fixture
def refused_here(server, low, tmp_path, here) -> Callable[[], str]:
    """A function like ``refused``, with the same code in this process."""

    def judged() -> str:
        status, checked = here("check")
        assert status == 1
        slot = f"s_{server.info.dbname}"
        settings = Settings(source=server.info.dsn, data_dir=tmp_path / "data", slot_name=slot)
        with pytest.raises(PrerequisiteError) as started:
            main.prepare(settings)
        assert f"\n    {started.value.message}\n" in checked, checked
        assert low.execute("SELECT * FROM trace").fetchall() == []
        return checked

    return judged


@pytest.mark.parametrize("prepared", ["", META + TRIGGER, VIEWS], ids=["empty", "trigger", "view"])
def test_a_schema_of_somebody_else(low, refused_here, here, prepared):
    low.execute("CREATE SCHEMA headrace; GRANT ALL ON SCHEMA headrace TO PUBLIC")
    low.execute(prepared.format(low=low.info.user))
    said = refused_here()
    assert f'schema "headrace" belongs to role "{low.info.user}"' in said
    # The commands that remove or query it do not touch it either.
    for word in ("uninstall", "status"):
        status, said = here(word)
        assert status == 1
        assert "belongs to role" in said
    assert low.execute("SELECT * FROM trace").fetchall() == []
    assert low.execute("SELECT 'headrace'::regnamespace").fetchone()


@pytest.mark.parametrize(
    ("prepared", "named"),
    [
        (META + TRIGGER, "table headrace.meta"),
        (VIEWS, "view headrace.views"),
        (
            "CREATE FUNCTION headrace.engine_running() RETURNS boolean LANGUAGE sql"
            " AS $$ SELECT {low}.note('function') IS NULL $$;",
            "function headrace.engine_running()",
        ),
        ("CREATE TYPE headrace.t AS (n int);", "type headrace.t"),
        ("CREATE SEQUENCE headrace.s;", "sequence headrace.s"),
        (
            "CREATE OPERATOR headrace.= (LEFTARG = text, RIGHTARG = text,"
            " FUNCTION = pg_catalog.texteq);",
            "operator",
        ),
    ],
    ids=["table", "view", "function", "type", "sequence", "operator"],
)
def test_objects_of_somebody_else_in_our_schema(server, low, refused_here, prepared, named):
    server.execute("CREATE SCHEMA headrace; GRANT ALL ON SCHEMA headrace TO PUBLIC")
    low.execute(prepared.format(low=low.info.user))
    said = refused_here()
    assert named in said
    assert f'belongs to role "{low.info.user}"' in said


@pytest.mark.parametrize(
    ("prepared", "named"),
    [
        (TRIGGER, 'trigger "trap" on headrace.meta'),
        (
            "CREATE TRIGGER stamp BEFORE INSERT OR UPDATE ON headrace.meta"
            " FOR EACH ROW EXECUTE FUNCTION {low}.trap();",
            'trigger "stamp" on headrace.meta',
        ),
        (
            "CREATE RULE trap AS ON UPDATE TO headrace.meta DO ALSO SELECT {low}.note('rule');",
            'rule "trap"',
        ),
        (
            "CREATE POLICY trap ON headrace.commands USING ({low}.note('policy') = '');",
            'policy "trap"',
        ),
        ("CREATE TABLE {low}.child () INHERITS (headrace.meta);", "inheritance between"),
        (
            "CREATE TABLE {low}.refers (id bigint REFERENCES headrace.views);",
            'constraint "refers_id_fkey"',
        ),
        (
            "ALTER TABLE headrace.views ALTER message SET DEFAULT {low}.note('default');",
            "default value",
        ),
        (
            "ALTER TABLE headrace.meta ADD CHECK ({low}.note('check') IS NOT NULL) NOT VALID;",
            "constraint",
        ),
        ("CREATE INDEX trap ON headrace.meta ({low}.pure(key));", "index"),
        (
            "CREATE FUNCTION headrace.more() RETURNS int LANGUAGE sql SECURITY DEFINER"
            " AS 'SELECT 1';",
            "function headrace.more()",
        ),
        (
            "CREATE FUNCTION headrace.list_views(int) RETURNS int LANGUAGE sql"
            " SECURITY DEFINER AS 'SELECT 1';",
            "function headrace.list_views(integer)",
        ),
        ("CREATE PUBLICATION part FOR TABLE headrace.meta (key);", 'publication "part"'),
        (
            "CREATE PUBLICATION headrace; ALTER PUBLICATION headrace OWNER TO {low};",
            'publication "headrace" belongs to role',
        ),
    ],
    ids=[
        *("trigger", "namesake", "rule", "policy", "child", "reference", "default"),
        *("check", "index", "function", "overload", "columns", "publication"),
    ],
)
def test_what_hangs_on_our_objects(server, low, refused_here, prepared, named):
    """Objects left by a role that once had our rights, or handed over with REASSIGN OWNED."""
    low.execute("CREATE FUNCTION pure(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT $1'")
    install.install(server)
    server.execute(prepared.format(low=low.info.user))
    assert named in refused_here()


def test_rights_that_were_given_on_our_tables_are_taken_back(server, low):
    """As default privileges grant them; a role with them could change a view's owner."""
    install.install(server)
    server.execute("GRANT ALL ON ALL TABLES IN SCHEMA headrace TO PUBLIC")
    server.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA headrace TO {low.info.user}")
    server.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA headrace TO {low.info.user}")
    server.execute(f"GRANT UPDATE (owner) ON headrace.views TO {low.info.user}")
    server.execute(f"GRANT CREATE ON SCHEMA headrace TO {low.info.user}")
    install.install(server)
    rights = server.execute(
        "SELECT c.relname, a.privilege_type FROM pg_class c, aclexplode(c.relacl) a"
        " WHERE c.relnamespace = 'headrace'::regnamespace AND a.grantee <> c.relowner"
        " AND a.privilege_type <> 'SELECT'"
        " UNION ALL SELECT c.relname || '.' || t.attname, a.privilege_type"
        " FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid,"
        " aclexplode(t.attacl) a WHERE c.relnamespace = 'headrace'::regnamespace"
        " AND NOT (c.relname IN ('views', 'assertion_states') AND a.privilege_type = 'SELECT')"
        " ORDER BY 1, 2"
    ).fetchall()
    assert rights == [
        ("commands.arguments", "INSERT"),
        ("commands.procedure", "INSERT"),
        ("commands.queued", "INSERT"),
        ("commands.settings", "INSERT"),
        ("feeds.history_id", "INSERT"),
        ("feeds.name", "INSERT"),
        ("feeds.name", "UPDATE"),
        ("feeds.txid", "INSERT"),
        ("feeds.txid", "UPDATE"),
    ]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        low.execute("CREATE TABLE headrace.mine (n int)")


def test_the_commands_refuse_and_end(server, low, tmp_path):
    low.execute("CREATE SCHEMA headrace; GRANT ALL ON SCHEMA headrace TO PUBLIC")
    low.execute((META + TRIGGER).format(low=low.info.user))
    assert "belongs to role" in refused(server, low, tmp_path)
    status, said = run(server, tmp_path, "uninstall")
    assert status == 1
    assert "belongs to role" in said
    assert low.execute("SELECT * FROM trace").fetchall() == []


def test_what_we_made_is_ours(server, tmp_path):
    """Repeated installs, and the check after them, accept our own objects."""
    install.install(server)
    install.install(server)
    status, said = run(server, tmp_path, "check")
    assert (status, "ready for headrace" in said) == (0, True), said


@pytest.mark.parametrize("name", ["headrace_eval", "headrace_eval_{oid}"])
@pytest.mark.parametrize(
    "prepared",
    [
        "GRANT {group} TO {role}",
        "GRANT {role} TO {low}",
        "ALTER ROLE {role} SET search_path = {low}",
        "ALTER ROLE {role} CREATEROLE",
    ],
    ids=["membership", "member", "setting", "attribute"],
)
def test_a_role_that_was_prepared_evaluates_nothing(server, low, tmp_path, name, prepared):
    oid = server.execute(
        "SELECT oid FROM pg_database WHERE datname = current_database()"
    ).fetchone()[0]
    name = name.format(oid=oid)
    there = "SELECT FROM pg_roles WHERE rolname = %s"
    made = not server.execute(there, (name,)).fetchall()
    if made:
        server.execute(f"CREATE ROLE {name} LOGIN NOINHERIT")
    with role(server, "group") as group:
        names = {"role": name, "low": low.info.user, "group": group}
        server.execute(prepared.format(**names))
        try:
            dsn = install.ensure_eval_role(server, tmp_path, server.info.dsn)
            assert dsn is None or psycopg.conninfo.conninfo_to_dict(dsn)["user"] != name
        finally:
            for undo in (
                "REVOKE {group} FROM {role}",
                "REVOKE {role} FROM {low}",
                "ALTER ROLE {role} RESET ALL",
                "ALTER ROLE {role} NOCREATEROLE",
            ):
                server.execute(undo.format(**names))
            if made:
                server.execute(f"DROP ROLE {name}")
