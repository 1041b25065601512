"""The manual's page on pools, dashboards and jobs, with the tools themselves.

All are slow, and skipped without the tool: Debian's pgbouncer, and libpostgresql-jdbc-java with a
Java. Airflow gets an environment of its own at the first run (``.bench/airflow``);
``HEADRACE_TEST_AIRFLOW`` names the Python of another one.
"""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace.embedded.postgres import EmbeddedPostgres
from tests import environments
from tests.compared import differs
from tests.engines import Engine
from tests.outside import pages
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.shared_engine, pytest.mark.timeout(1800)]

PASSWORD = "s3cret"
CLIENTS = 20
JDBC = Path("/usr/share/java/postgresql.jar")
AIRFLOW_PACKAGES = ("apache-airflow==3.1.*", "apache-airflow-providers-postgres")
HBA = """
local all all trust
host all postgres 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
"""
VIEW = "SELECT id, amount FROM orders WHERE amount > 40"


def tables() -> list[str]:
    """Return the statements that create the tables and the view of the page."""
    return pages.statements(pages.fences("integrations", "sql")[0])


# --- PgBouncer


@pytest.fixture(scope="module")
def secured(tmp_path_factory) -> Iterator[Engine]:
    """An engine on a server that asks all roles but its superuser for passwords."""
    folder = tmp_path_factory.mktemp("secured")
    with EmbeddedPostgres(None, durable=False) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("CREATE DATABASE shop")
            conn.execute(f"CREATE ROLE app LOGIN PASSWORD '{PASSWORD}'")
            conn.execute("GRANT ALL ON DATABASE shop TO app")
        (server.data_dir / "pg_hba.conf").write_text(HBA)
        server.restart()
        source = make_conninfo(server.dsn(), dbname="shop")
        with psycopg.connect(source, autocommit=True) as conn:
            conn.execute("ALTER SCHEMA public OWNER TO app")
        off = {"HEADRACE_ALLOW_TRUST": "off"}
        with Engine(source, folder / "data", env=off) as engine:
            yield engine


@contextlib.contextmanager
def pool(folder: Path, host: str, port: int) -> Iterator[str]:
    """Run PgBouncer with the configuration of the page, two connections large; yield its DSN."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        here = free.getsockname()[1]
    [text] = pages.fences("tools", "text")
    users = folder / "userlist.txt"
    for said, meant in (
        ("host=headrace port=6432", f"host={host} port={port}"),
        ("0.0.0.0", "127.0.0.1"),
        ("6543", str(here)),
        ("/etc/pgbouncer/userlist.txt", str(users)),
        ("default_pool_size = 20", "default_pool_size = 2"),
    ):
        assert text.count(said) == 1, said
        text = text.replace(said, meant)
    users.write_text(f'"app" "{PASSWORD}"\n')
    (folder / "pgbouncer.ini").write_text(f"{text}\nunix_socket_dir =\n")
    words = ["pgbouncer", str(folder / "pgbouncer.ini")]
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody").pw_uid
        for path in (folder, *folder.iterdir()):
            os.chown(path, nobody, -1)
        words = ["setpriv", f"--reuid={nobody}", "--clear-groups", *words]
    with (folder / "log").open("w") as log:
        child = subprocess.Popen(words, stdout=log, stderr=log, cwd="/")
    try:
        dsn = f"host=127.0.0.1 port={here} dbname=shop user=app password={PASSWORD}"

        def up() -> bool:
            assert child.poll() is None, (folder / "log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", here)):
                return True
            return False

        wait_until(up, "PgBouncer listens")
        yield dsn
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()


@pytest.fixture(params=["port", "direct"])
def pooled(request, secured, tmp_path_factory) -> Iterator[str]:
    if not shutil.which("pgbouncer"):
        pytest.skip("needs Debian's pgbouncer")
    at = conninfo_to_dict(secured.dsn if request.param == "port" else secured.source)
    folder = tmp_path_factory.mktemp("pool")
    for parent in folder.parents:
        if parent.owner() == "root" and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)  # so that PgBouncer reads its files
    with pool(folder, str(at.get("host", "127.0.0.1")), int(at["port"])) as dsn:
        yield dsn
    with psycopg.connect(secured.source, autocommit=True) as conn:
        for (name,) in conn.execute("SELECT name FROM headrace.list_views()").fetchall():
            conn.execute("CALL headrace.drop_view(%s)", (name,))
        conn.execute("DROP TABLE orders, customers")


def connected(dsn: str) -> psycopg.Connection:
    return psycopg.connect(dsn, autocommit=True, prepare_threshold=None)


def test_pgbouncer(pooled):
    """All that the page promises, over two connections."""
    with connected(pooled) as conn:
        for statement in tables():
            conn.execute(statement.encode())
        assert conn.execute("SELECT count(*) FROM revenue").fetchone() == (3,)
        with psycopg.connect(pooled, prepare_threshold=None) as other:
            other.execute("CALL headrace.create_view('large', %s)", (VIEW,))
        conn.execute("CALL headrace.wait_for('large')")
        failed: list[object] = []
        threads = [
            threading.Thread(target=client, args=(pooled, i, failed)) for i in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert failed == []
        assert not any(thread.is_alive() for thread in threads)
        assert differs(conn, "large", VIEW) == []
        assert conn.execute("SELECT * FROM headrace.verify_view('large')").fetchall() == []
        conn.execute("CALL headrace.set_history('large', '1 hour')")
        conn.execute("CALL headrace.create_feed('copy', 'large')")
        conn.execute("INSERT INTO orders VALUES (1000, 1, 77)")
        conn.execute("CALL headrace.wait_for('large')")
        assert len(conn.execute("SELECT * FROM headrace.feed_read('copy')").fetchall()) == 1
        conn.execute("CALL headrace.drop_feed('copy')")
        unblocked = (
            "CALL headrace.create_view('later', 'SELECT id FROM orders', '{\"block\": false}')"
        )
        conn.execute(unblocked)
        state = "SELECT status FROM headrace.list_views() WHERE name = 'public.later'"
        wait_until(lambda: conn.execute(state).fetchone() == ("running",), "it is created")
        assert differs(conn, "later", "SELECT id FROM orders") == []
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            conn.execute("CALL headrace.create_view('bad', 'SELECT random()')")
        assert conn.execute("SELECT 1").fetchone() == (1,)


def client(dsn: str, number: int, failed: list[object]) -> None:
    """Write a row and read it, each time over any connection of the pool."""
    try:
        with connected(dsn) as conn:
            conn.execute("INSERT INTO orders VALUES (%s, 1, 50)", (100 + number,))
            conn.execute("CALL headrace.wait_for('large')")
            found = conn.execute("SELECT 1 FROM large WHERE id = %s", (100 + number,)).fetchone()
            assert found == (1,), number
    except Exception as error:  # noqa: BLE001 - the test reports it
        failed.append(error)


# --- Metabase's driver

DASHBOARD = """
import java.sql.*;
import java.util.*;

public class Dashboard {
    public static void main(String[] a) throws Exception {
        try (Connection c = DriverManager.getConnection(a[0])) {
            c.setReadOnly(true);
            List<String> said = new ArrayList<>();
            try (ResultSet r = c.getMetaData().getTables(null, "public", "revenue", new String[]{"TABLE"})) {
                while (r.next()) said.add(r.getString("TABLE_NAME"));
            }
            try (ResultSet r = c.getMetaData().getColumns(null, "public", "revenue", null)) {
                while (r.next()) said.add(r.getString("COLUMN_NAME") + ":" + r.getString("TYPE_NAME"));
            }
            try (ResultSet r = c.getMetaData().getPrimaryKeys(null, "public", "revenue")) {
                while (r.next()) said.add("key " + r.getString("COLUMN_NAME"));
            }
            try (PreparedStatement p = c.prepareStatement("SELECT orders FROM revenue WHERE country = ?")) {
                for (int i = 0; i < 8; i++) {  // from the fifth on, a prepared statement of the server
                    p.setString(1, "c1");
                    try (ResultSet r = p.executeQuery()) { r.next(); if (i == 7) said.add(r.getString(1)); }
                }
            }
            c.setAutoCommit(false);
            int rows = 0;
            try (Statement s = c.createStatement()) {
                s.setFetchSize(1);  // a cursor
                try (ResultSet r = s.executeQuery("SELECT * FROM revenue")) { while (r.next()) rows++; }
                said.add(rows + " rows");
                try (ResultSet r = s.executeQuery(a[1])) { r.next(); said.add(r.getString("status")); }
            }
            c.rollback();
            System.out.println(String.join(" ", said));
        }
    }
}
"""


@pytest.mark.parametrize("way", ["port", "direct"])
def test_metabases_driver(engine, tmp_path, way):
    if not JDBC.exists() or not shutil.which("java"):
        pytest.skip("needs Java, and Debian's libpostgresql-jdbc-java")
    (tmp_path / "Dashboard.java").write_text(DASHBOARD)
    rights, question = (pages.statements(body) for body in pages.fences("tools", "sql"))
    parts = conninfo_to_dict(engine.dsn if way == "port" else engine.source)
    at = f"{parts.get('host', '127.0.0.1')}:{parts['port']}/{parts['dbname']}"
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        try:
            for statement in (*tables(), *rights):
                conn.execute(statement.encode())
            url = f"jdbc:postgresql://{at}?user=metabase"
            words = ["java", "-cp", str(JDBC), "Dashboard.java", url, question[0]]
            done = subprocess.run(
                words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
            )
            assert done.stdout.strip() == (
                "revenue country:text orders:int8 amount:numeric key country 16 3 rows running"
            ), done.stderr
        finally:
            conn.execute("CALL headrace.drop_view('revenue', if_exists => true)")
            conn.execute("DROP TABLE IF EXISTS orders, customers")
            conn.execute("DROP OWNED BY metabase; DROP ROLE metabase")


# --- Airflow

RUN = """
import sys
import jobs
for made in (jobs.report, jobs.nightly):
    ran = made().test()
    states = {task.task_id: str(task.state) for task in ran.get_task_instances()}
    print("ended", ran.state, sorted(states.items()), file=sys.stderr)
    assert set(states.values()) == {"success"}, states
"""


@pytest.fixture(scope="session")
def airflow() -> Path:
    """The Python of an environment with Airflow."""
    given = os.environ.get("HEADRACE_TEST_AIRFLOW")
    if given:
        return Path(given)
    return environments.programs("airflow", "airflow", AIRFLOW_PACKAGES, 1500) / "python"


@pytest.mark.parametrize("way", ["port", "direct"])
def test_airflow(airflow, engine, tmp_path, way):
    jobs = tmp_path / "home" / "dags"
    jobs.mkdir(parents=True)
    (jobs / "jobs.py").write_text("\n".join(pages.fences("tools", "python")))
    (tmp_path / "run.py").write_text(RUN)
    parts = conninfo_to_dict(engine.dsn if way == "port" else engine.source)
    at = f"{parts['user']}@{parts.get('host', '127.0.0.1')}:{parts['port']}/{parts['dbname']}"
    env = os.environ | {
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_SHOP": f"postgresql://{at}",
        "PYTHONPATH": str(jobs),
    }

    def run(*words: str) -> None:
        done = subprocess.run(
            [airflow, *words], env=env, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        try:
            for statement in tables():
                conn.execute(statement.encode())
            run("-m", "airflow", "db", "migrate")
            run(str(tmp_path / "run.py"))
            total = "SELECT amount FROM revenue WHERE country = 'c1'"
            assert conn.execute(total).fetchone()[0] > 5000
        finally:
            conn.execute("CALL headrace.drop_view('revenue', if_exists => true)")
            conn.execute("DROP TABLE IF EXISTS orders, customers")
