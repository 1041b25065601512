"""``headrace start --setup``: from a fresh server with its defaults to a view, without other steps."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headrace.embedded.postgres import EmbeddedPostgres
from headrace.server import provisioning
from tests.security.roles import PASSWORD
from tests.waiting import wait_until

WAIT_S = 90.0


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    """A server as Postgres makes it: ``wal_level`` is ``replica``."""
    settings = {"wal_level": "replica", "max_replication_slots": "1"}
    version = int(os.environ.get("HEADRACE_TEST_PG", "16"))
    with EmbeddedPostgres(None, version, {}, durable=False) as made:
        # ALTER SYSTEM overrides the settings of the server's file.
        made._settings |= settings
        made.restart()
        with psycopg.connect(made.dsn(), autocommit=True) as conn:
            conn.execute("CREATE ROLE app LOGIN")
            conn.execute("CREATE TABLE orders (id int PRIMARY KEY, x int)")
            conn.execute("ALTER TABLE orders OWNER TO app")
            conn.execute("CREATE TABLE theirs (id int PRIMARY KEY)")
            conn.execute("INSERT INTO orders SELECT i, i FROM generate_series(1, 10) i")
        yield made


GRANTED = re.compile(r'GRANT ("(?:[^"]|"")+"|\w+) TO (?!PUBLIC)')
"""A membership; rights on objects have ON."""


def proposes_no_superuser(server: EmbeddedPostgres, text: str) -> None:
    """Check the roles of all grants in a message: none has the rights of a superuser."""
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        for role in GRANTED.findall(text):
            if role in ("role", "owner"):
                continue  # the sentence names the roles
            found = conn.execute(
                "SELECT bool_or(pg_has_role(%s, oid, 'MEMBER')) FROM pg_roles WHERE rolsuper",
                (role.strip('"'),),
            ).fetchone()
            assert found == (False,), role


class Terminal:
    """A command at a terminal."""

    def __init__(self, *words: str, **env: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headrace.server.cli", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=os.environ | env,
        )
        os.close(slave)
        self.text = ""

    def read_until(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + WAIT_S
        while not (found := re.search(pattern, self.text)):
            assert time.monotonic() < deadline, self.text
            if select.select([self._master], [], [], 0.1)[0]:
                self.text += os.read(self._master, 4096).decode().replace("\r\n", "\n")
        return found

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        os.close(self._master)


def start(server: EmbeddedPostgres, folder: Path, *more: str) -> tuple[str, ...]:
    return (
        *("start", "--setup", server.dsn(), "--data-dir", str(folder / "data")),
        *("--listen", "127.0.0.1:0", *more),
    )


def environment(server: EmbeddedPostgres) -> dict[str, str]:
    source = make_conninfo(server.dsn(), user="headrace", password=PASSWORD)
    return {"HEADRACE_SOURCE": source, "HEADRACE_ALLOW_TRUST": "true", "HEADRACE_SPARK_WARM": "0"}


def test_a_fresh_server_is_prepared(server, tmp_path):
    terminal = Terminal(*start(server, tmp_path), **environment(server))
    try:
        terminal.read_until("Then press Enter: ")
        assert "CREATE ROLE \"headrace\" LOGIN REPLICATION PASSWORD '…';" in terminal.text
        assert "ALTER SYSTEM SET wal_level = 'logical';" in terminal.text
        assert 'GRANT "app" TO "headrace";' in terminal.text
        assert 'cannot read 1 table of superuser "postgres"' in terminal.text
        assert PASSWORD not in terminal.text
        server.restart()
        terminal.type("\n")
        port = terminal.read_until(r"headrace ready on 127\.0\.0\.1:(\d+)")[1]
        dsn = make_conninfo(server.dsn(), port=port, user="app")
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as conn:
            with psycopg.connect(server.dsn(), autocommit=True) as admin:
                admin.execute("GRANT CREATE ON SCHEMA public TO app")
            conn.execute("CALL headrace.create_view('big', 'SELECT id FROM orders WHERE x > 5')")
            assert conn.execute("SELECT count(*) FROM big").fetchone() == (5,)
        with psycopg.connect(
            make_conninfo(dsn, user="postgres"), autocommit=True, prepare_threshold=None
        ) as boss:
            refused = "CALL headrace.create_view('one', 'SELECT id FROM orders')"
            with pytest.raises(psycopg.errors.InsufficientPrivilege) as error:
                boss.execute(refused)
            assert "as a member of" in error.value.diag.message_detail
            proposes_no_superuser(server, error.value.diag.message_hint)
            # The remedies of the hint: that role, by SET ROLE or by a connection.
            assert "ordinary role that owns the tables" in error.value.diag.message_hint
            assert "SET ROLE" in error.value.diag.message_hint
            boss.execute("SET ROLE app")
            boss.execute(refused)
            assert boss.execute("SELECT count(*) FROM one").fetchone() == (10,)
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            query = "SELECT rolsuper, rolcreaterole, rolbypassrls FROM pg_roles WHERE rolname = %s"
            assert conn.execute(query, ("headrace",)).fetchone() == (False, False, False)
    finally:
        terminal.close()
    again = Terminal(*start(server, tmp_path), **environment(server))
    try:
        again.read_until("headrace ready on")
        assert "press Enter" not in again.text, "nothing is left to do"
        assert ";" not in again.text.split("headrace ready on")[0].split("cannot read")[1]
    finally:
        again.close()


def run(*words: str, **env: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.server.cli", *words],
        env=os.environ | env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_without_a_terminal_the_restart_is_named(server, tmp_path):
    status, text = run(*start(server, tmp_path), **environment(server))
    assert status == 1
    assert "Postgres must be restarted" in text


def test_what_only_a_restart_lacks(server, tmp_path):
    env = environment(server) | {"HEADRACE_DATA_DIR": str(tmp_path)}
    boss = env | {"HEADRACE_SOURCE": server.dsn()}
    restart = "Restart Postgres: the new value of {} takes effect then."
    assert "ALTER SYSTEM SET wal_level = 'logical'; and restart" in run("check", **boss)[1]
    assert run("init", "--run", "--admin", server.dsn(), **env)[0] == 1
    # A superuser may read the files; other roles see what the server has read.
    text = run("check", **boss)[1]
    assert restart.format("wal_level") in text
    assert restart.format("max_replication_slots") in text
    assert "ALTER SYSTEM" not in text
    text = run("check", **env)[1]
    assert "If it was run already, only the restart is missing." in text
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute("SELECT pg_reload_conf()")

        def seen() -> bool:
            return "takes effect then" in run("check", **env)[1]

        wait_until(seen, "the server reads its files")
    assert "ALTER SYSTEM" not in run("check", **env)[1]
    text = run("init", "--admin", server.dsn(), **env)[1]
    assert "ALTER SYSTEM" not in text
    assert "-- The new value of wal_level takes effect after a restart.\n" in text
    assert "-- Restart Postgres afterwards" in text
    assert run("init", "--run", "--admin", server.dsn(), **env)[0] == 1
    server.restart()
    text = run("check", **env)[1]
    assert "✓ server" in text
    assert "Restart" not in run("init", "--admin", server.dsn(), **env)[1]


def test_a_refused_connection_has_a_hint(server, tmp_path):
    env = environment(server) | {"HEADRACE_DATA_DIR": str(tmp_path)}
    text = run("check", **env)[1]
    assert 'role "headrace" does not exist' in text
    assert (
        '    If role "headrace" does not exist yet, or lacks rights, headrace init prepares it.'
        in text
    )
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE ROLE boss LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
    rules = server.data_dir / "pg_hba.conf"
    rules.write_text("host all boss,headrace all scram-sha-256\n" + rules.read_text())
    server.restart()
    boss = make_conninfo(server.dsn(), user="boss")
    for words in (("init",), ("init", "--run")):
        status, text = run(*words, "--admin", boss, **env)
        assert status == 1
        assert "no password supplied" in text
        assert 'made as role "boss"' in text
        assert "PGPASSWORD" in text
        assert "--admin DSN" in text
    text = run("start", "--setup", boss, "--data-dir", str(tmp_path), **env)[1]
    assert "--setup DSN" in text
    # With passwords a role that does not exist is not told apart.
    text = run("check", **env)[1]
    assert "password authentication failed" in text
    assert "headrace init prepares it. Otherwise check the password." in text
    silent = env | {"HEADRACE_SOURCE": make_conninfo(server.dsn(), user="headrace")}
    for command in ("check", "views", "status"):
        text = run(command, **silent)[1]
        assert "no password supplied" in text
        assert 'made as role "headrace": give its password in PGPASSWORD' in text, command
    # The hint of init helps.
    assert run("init", "--admin", boss, **env | {"PGPASSWORD": PASSWORD})[0] == 0


def test_what_is_refused(server, tmp_path):
    env = environment(server)
    secret = make_conninfo(server.dsn(), password="hidden")
    status, text = run("start", "--setup", secret, **env)
    assert (status, "hidden" in text) == (2, False)
    assert "PGPASSWORD" in text
    poor = make_conninfo(server.dsn(), user="app")
    status, text = run("start", "--setup", poor, "--data-dir", str(tmp_path), **env)
    assert status == 1
    assert 'role "app" is not a superuser' in text
    other = make_conninfo(server.dsn(), dbname="template1")
    status, text = run("start", "--setup", other, "--data-dir", str(tmp_path), **env)
    assert status == 2
    assert 'leads to database "template1"' in text


def psql(server: EmbeddedPostgres, dsn: str, text: str) -> None:
    """Run a script as its head says."""
    done = subprocess.run(
        [server.bin_dir / "psql", "--no-psqlrc", "-v", "ON_ERROR_STOP=1", dsn],
        input=text,
        text=True,
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr


def uncommented(text: str) -> str:
    """Return a script with the statements that the user decides about."""
    return re.sub(r"(?m)^-- (?=(CREATE|GRANT)\b.*;$)", "", text)


def test_the_script_is_all_that_is_needed(server, tmp_path):
    env = environment(server)
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute("CREATE ROLE reader LOGIN; GRANT SELECT ON orders TO reader")
        admin.execute("GRANT CREATE ON SCHEMA public TO reader")
    status, text = run("init", "--admin", server.dsn(), **env)
    assert status == 0
    assert PASSWORD not in text
    assert '\n-- GRANT "reader" TO "headrace";\n' in text
    assert "\n-- Restart Postgres afterwards, for its new settings.\n" in text
    psql(server, server.dsn(), uncommented(text))
    server.restart()
    status, text = run("init", "--admin", server.dsn(), **env)
    assert (status, ";\n" in text) == (0, False)
    assert "Nothing else is missing" in text
    terminal = Terminal("start", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0", **env)
    try:
        port = terminal.read_until(r"headrace ready on 127\.0\.0\.1:(\d+)")[1]
        dsn = make_conninfo(server.dsn(), port=port, user="reader")
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as conn:
            conn.execute("CALL headrace.create_view('big', 'SELECT id FROM orders WHERE x > 5')")
            assert conn.execute("SELECT count(*) FROM big").fetchone() == (5,)
    finally:
        terminal.close()


def test_check_names_the_roles_that_cannot_create_views(server, tmp_path):
    env = environment(server) | {"HEADRACE_DATA_DIR": str(tmp_path)}
    status, text = run("init", "--run", "--admin", server.dsn(), "--data-dir", str(tmp_path), **env)
    assert (status, "must be restarted" in text) == (1, True)
    server.restart()
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute("CREATE ROLE reader LOGIN")
        text = run("check", **env)[1]
        assert 'Headrace may not act for "reader"' in text
        assert 'GRANT role TO "headrace";' in text
        admin.execute("GRANT reader TO headrace")
    text = run("check", **env)[1]
    assert (
        '✓ callers: every role that may log in can create views, except superusers ("postgres")\n'
        in text
    )


def test_one_function_writes_memberships():
    """So that its requirement can be checked where it is called: no superuser."""
    package = Path(provisioning.__file__).parent.parent
    found = [
        p.name for p in package.rglob("*.py") if re.search(r"GRANT \{[^}]*\} TO", p.read_text())
    ]
    assert found == ["acting.py"]


def test_no_command_proposes_to_grant_a_superuser(server, tmp_path):
    env = environment(server) | {"HEADRACE_DATA_DIR": str(tmp_path)}
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(
            "CREATE ROLE boss LOGIN IN ROLE postgres; CREATE ROLE copier REPLICATION LOGIN"
        )
        admin.execute(
            "CREATE TABLE of_boss (id int PRIMARY KEY); ALTER TABLE of_boss OWNER TO boss"
        )
        status, text = run("init", "--admin", server.dsn(), **env)
        assert (status, GRANTED.findall(text)) == (0, ['"app"'])
        proposes_no_superuser(server, text)
        line = text.replace("\n-- ", " ")
        assert text.splitlines()[1] == "--   headrace init … | psql …"
        assert 'A superuser cannot create views ("boss", "postgres")' in line
        assert 'cannot read 1 table of superuser "boss"' in line
        server_made = uncommented(text)
        psql(server, server.dsn(), server_made)
        server.restart()
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        text = run("check", **env)[1]
        proposes_no_superuser(server, text)
        assert (
            "✓ callers: every role that may log in can create views, except superusers"
            ' ("boss", "postgres") and roles for replication ("copier")\n' in text
        )
        [_, warning] = text.split("Views cannot read ")
        assert warning.startswith("public.of_boss, public.theirs, which belong to a superuser.")
        assert "ALTER TABLE … OWNER TO …" in warning.splitlines()[0]
        # The remedy of the tables.
        admin.execute("ALTER TABLE of_boss OWNER TO app; ALTER TABLE theirs OWNER TO app")
        text = run("check", **env)[1]
        assert "✓ tables: views can read 3 of 3\n" in text
        admin.execute("CREATE ROLE reader LOGIN")
        text = run("check", **env)[1]
        assert (
            "! callers: 1 role cannot create views, nor can superusers"
            ' ("boss", "postgres") and roles for replication ("copier")\n' in text
        )


def test_run_makes_the_role_that_evaluates_functions(server, tmp_path):
    """The engine's role could not create it."""
    env = environment(server)
    words = ("--data-dir", str(tmp_path))
    assert run("init", "--run", "--admin", server.dsn(), *words, **env)[0] == 1
    server.restart()
    status, text = run("init", "--run", "--admin", server.dsn(), *words, **env)
    assert (status, "CREATE" in text) == (0, False)
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(
            "CREATE FUNCTION twice(int) RETURNS int IMMUTABLE AS 'SELECT 2 * $1' LANGUAGE sql"
        )
        admin.execute("GRANT CREATE ON SCHEMA public TO app")
    terminal = Terminal("start", *words, "--listen", "127.0.0.1:0", **env)
    try:
        port = terminal.read_until(r"headrace ready on 127\.0\.0\.1:(\d+)")[1]
        dsn = make_conninfo(server.dsn(), port=port, user="app")
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as conn:
            conn.execute("CALL headrace.create_view('t', 'SELECT id, twice(x) AS y FROM orders')")
            assert conn.execute("SELECT sum(y) FROM t").fetchone() == (110,)
    finally:
        terminal.close()


def test_a_server_that_refuses_alter_system_is_prepared_but_for_its_settings(tmp_path):
    """Operators of Kubernetes forbid it, from Postgres 17 on."""
    settings = {"wal_level": "replica", "allow_alter_system": "off"}
    with EmbeddedPostgres(None, 18, settings, durable=False) as server:
        env = environment(server)
        text = run("init", "--admin", server.dsn(), **env)[1]
        wanted = "Set wal_level = logical where the settings of Postgres are managed"
        assert f"-- {wanted}" in text and "ALTER SYSTEM SET" not in text
        words = ("init", "--run", "--admin", server.dsn(), "--data-dir", str(tmp_path))
        status, text = run(*words, **env)
        assert status == 1 and wanted in text and "must be restarted" in text
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute(f"ALTER ROLE headrace PASSWORD '{PASSWORD}'")
        status, text = run("check", **env | {"HEADRACE_DATA_DIR": str(tmp_path)})
        assert status == 1 and "where the server's settings are managed" in text
        server._settings["wal_level"] = "logical"
        server.restart()
        status, text = run(*words, **env)
        assert (status, wanted in text) == (0, False)


HARDENED = """
REVOKE ALL ON DATABASE postgres FROM PUBLIC;
REVOKE ALL ON SCHEMA public FROM PUBLIC;
REVOKE USAGE ON LANGUAGE plpgsql, sql FROM PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE USAGE ON TYPES FROM PUBLIC;
"""


def test_a_hardened_server_is_prepared(server, tmp_path):
    """PUBLIC has none of the rights that it has by default."""
    env = environment(server)
    words = ("--data-dir", str(tmp_path))
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute("CREATE ROLE reader LOGIN; CREATE ROLE headrace LOGIN REPLICATION")
        admin.execute(f"ALTER ROLE headrace PASSWORD '{PASSWORD}'")
        admin.execute(
            "CREATE FUNCTION twice(int) RETURNS int IMMUTABLE AS 'SELECT 2 * $1' LANGUAGE sql"
        )
        admin.execute(HARDENED)
        admin.execute(
            "GRANT CREATE ON SCHEMA public TO app, reader; GRANT SELECT ON orders TO reader"
        )
        admin.execute("GRANT CONNECT ON DATABASE postgres TO reader, app")
        admin.execute("CREATE ROLE retired LOGIN; CREATE TABLE old (id int PRIMARY KEY)")
        admin.execute("ALTER TABLE old OWNER TO retired")
        text = run("init", "--admin", server.dsn(), *words, **env)[1]
        optional = [line for line in text.splitlines() if '"reader"' in line]
        assert optional == [
            '-- GRANT "reader" TO "headrace";',
            '-- GRANT TEMPORARY ON DATABASE "postgres" TO "reader";',
            '-- GRANT USAGE ON LANGUAGE "plpgsql" TO "reader";',
            '-- GRANT USAGE ON LANGUAGE "sql" TO "reader";',
        ]
        assert '-- GRANT CONNECT ON DATABASE "postgres" TO "headrace_eval";' in text
        # A role that may not connect stays outside.
        assert re.findall(r'DATABASE .* TO "(app|retired)"', text) == ["app"]
        status, text = run("init", "--run", "--admin", server.dsn(), *words, **env)
        assert (status, "eval role cannot log in" in text) == (1, False)
        roles = admin.execute("SELECT rolname FROM pg_roles WHERE rolname ~ '^headrace_eval'")
        assert roles.fetchall() == [("headrace_eval",)]
        server.restart()
    status, text = run("init", "--run", "--admin", server.dsn(), *words, **env)
    assert (status, ";" in text) == (0, False), "nothing is left to do"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        text = run("check", **env | {"HEADRACE_DATA_DIR": str(tmp_path)})[1]
        assert re.findall(r"^[✗!] (?!tables|callers).*", text, re.MULTILINE) == []
        admin.execute("GRANT reader TO headrace")
        admin.execute("GRANT USAGE ON SCHEMA public TO reader")
        text = run("check", **env | {"HEADRACE_DATA_DIR": str(tmp_path)})[1]
        assert "! rights of callers: 1 role cannot create views" in text
        # The role is one that Headrace acts for now, so its rights are not left to choose.
        text = run("init", "--run", "--admin", server.dsn(), *words, **env)[1]
        assert 'GRANT TEMPORARY ON DATABASE "postgres" TO "reader";' in text
        admin.execute("GRANT EXECUTE ON FUNCTION twice TO app, headrace_eval")
    terminal = Terminal("start", *words, "--listen", "127.0.0.1:0", **env)
    try:
        port = terminal.read_until(r"headrace ready on 127\.0\.0\.1:(\d+)")[1]
        queries = {
            "app": "SELECT id, twice(x) AS y FROM orders",
            "reader": "SELECT x % 3 AS k, count(*) AS y FROM orders GROUP BY x % 3",
        }
        for number, (user, query) in enumerate(queries.items()):
            dsn = make_conninfo(server.dsn(), port=port, user=user)
            with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as conn:
                conn.execute(f"CALL headrace.create_view('v{number}', '{query}')")
                conn.execute(f"CALL headrace.resync_view('v{number}')")
                if user == "reader":  # the other view computes with a user's function
                    conn.execute(f"CALL headrace.verify('v{number}')")
                expected = conn.execute(f"SELECT sum(y) FROM ({query}) q").fetchone()
                assert conn.execute(f"SELECT sum(y) FROM v{number}").fetchone() == expected
        direct = make_conninfo(server.dsn(), user="app")
        with psycopg.connect(direct, autocommit=True) as conn:
            conn.execute("CALL headrace.create_view('direct', 'SELECT id FROM orders')")
    finally:
        terminal.close()


def test_a_name_cannot_add_a_statement(server):
    """The script is run by a superuser, and names are anybody's."""
    evil = '"a\n; CREATE TABLE pwned (x int); --\r; CREATE TABLE pwned (x int)"'
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {evil} LOGIN")
        admin.execute(f"CREATE ROLE {evil.replace('a', 'b', 1)} SUPERUSER")
        admin.execute("CREATE TABLE t1 (id int)")
        admin.execute(f"ALTER TABLE t1 OWNER TO {evil.replace('a', 'b', 1)}")
        database = evil.replace("\r", " ")  # text from a pipe has no carriage returns
        admin.execute(f"CREATE DATABASE {database}")
        other = make_conninfo(server.dsn(), dbname=database.strip('"'))
        for dsn in (server.dsn(), other):
            source = make_conninfo(dsn, user="headrace")
            status, text = run("init", "--admin", dsn, HEADRACE_SOURCE=source)
            assert status == 0
            psql(server, dsn, text)
            with psycopg.connect(dsn) as conn:
                assert conn.execute("SELECT to_regclass('pwned')").fetchone() == (None,)


def test_without_a_superuser_at_hand(server):
    """Role ``postgres`` is tried, as in the example of the manual."""
    status, text = run("init", **environment(server))
    assert (status, "CREATE ROLE" in text) == (0, True)
    text = run("init", **environment(server) | {"HEADRACE_ALLOW_TRUST": "false"})[1]
    with psycopg.connect(server.dsn()) as conn:
        rules = conn.execute(
            "SELECT line_number::text FROM pg_hba_file_rules WHERE auth_method = 'trust'"
            " AND type = 'host' AND 'all' = ANY (database) ORDER BY line_number"
        ).fetchall()
    assert len(rules) > 1
    lines = ", ".join(line for (line,) in rules)
    assert f"(trust, lines {lines})" in text.replace("\n-- ", " ")
    secret = make_conninfo(server.dsn(), password="hidden")
    status, text = run("init", "--admin", secret, **environment(server))
    assert (status, "hidden" in text, "PGPASSWORD" in text) == (2, False, True)
    status, text = run("init", "--run", **environment(server) | {"PGUSER": "x"})
    assert "must be restarted" in text
