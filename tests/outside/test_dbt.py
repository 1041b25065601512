"""The dbt package with the real dbt: on the server's port, and directly on the database.

dbt gets its own environment at the first run (``.bench/dbt``); ``HEADRACE_TEST_DBT`` names an
installed program to use instead.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests import environments
from tests.compared import differs
from tests.outside import pages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("dbt-core>=1.10,<1.12", "dbt-postgres>=1.9,<1.11")
TABLES = """
    CREATE TABLE customers (id int PRIMARY KEY, country text NOT NULL);
    CREATE TABLE orders (id int PRIMARY KEY, customer_id int NOT NULL, amount numeric(9, 2) NOT NULL);
    INSERT INTO customers SELECT i, 'c' || i % 3 FROM generate_series(1, 9) i;
    INSERT INTO orders SELECT i, 1 + i % 9, i FROM generate_series(1, 50) i;
"""
REVENUE = (
    "SELECT c.country, count(*) AS orders, sum(o.amount) AS amount FROM orders o"
    " JOIN customers c ON c.id = o.customer_id GROUP BY c.country"
)


@pytest.fixture(scope="session")
def dbt() -> Path:
    """The path of the program."""
    given = os.environ.get("HEADRACE_TEST_DBT")
    if given:
        return Path(given)
    return environments.programs("dbt", "dbt", PACKAGES, 900) / "dbt"


class Project:
    """A copy of the example project, for one database and one connection."""

    def __init__(self, program: Path, folder: Path, dsn: str) -> None:
        shutil.copytree(ROOT / "integrations" / "dbt", folder)
        self.folder = folder / "example"
        parts = conninfo_to_dict(dsn)
        self._program = program
        self._environment = os.environ | {
            "SHOP_HOST": str(parts.get("host", "127.0.0.1")),
            "SHOP_PORT": str(parts["port"]),
            "SHOP_USER": str(parts["user"]),
            "SHOP_PASSWORD": "",
            "SHOP_DATABASE": str(parts["dbname"]),
            "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
            "DO_NOT_TRACK": "1",
        }
        self.run("deps")

    def run(self, *words: str, fails: bool = False) -> str:
        """Return the output of ``dbt …``; with ``fails`` it must fail."""
        done = subprocess.run(
            [self._program, "--no-use-colors", *words, "--profiles-dir", "."],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert bool(done.returncode) == fails, done.stdout + done.stderr
        return done.stdout

    def did(self, *words: str) -> dict[str, str]:
        """Return model -> message of a run."""
        self.run("run", *words)
        results = json.loads((self.folder / "target" / "run_results.json").read_text())["results"]
        return {r["unique_id"].rpartition(".")[2]: r["message"] for r in results}

    def model(self, name: str, config: str, query: str) -> None:
        """Write a model."""
        text = f"{{{{ config(materialized='headrace_view', {config}) }}}}\n{query}\n"
        (self.folder / "models" / f"{name}.sql").write_text(text)


@pytest.fixture(params=["port", "direct"])
def project(request, dbt, tmp_path, engine, database) -> Project:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(TABLES)
    return Project(dbt, tmp_path / "dbt", engine.dsn if request.param == "port" else database)


@pytest.fixture
def conn(database):
    with psycopg.connect(database, autocommit=True) as conn:
        yield conn


def ids(conn: psycopg.Connection) -> dict[str, int]:
    return dict(conn.execute("SELECT view_name, id FROM headrace.views").fetchall())


def indexes(conn: psycopg.Connection, table: str) -> set[str]:
    rows = conn.execute(
        "SELECT regexp_replace(indexdef, '^.* USING ', '') FROM pg_indexes"
        " WHERE schemaname = 'analytics' AND tablename = %s",
        (table,),
    )
    return {row[0] for row in rows}


def test_a_project_of_views(project, conn):
    """Views are created, unchanged, altered in place, recreated; their rows are always right."""
    assert project.did() == {"revenue": "CREATE VIEW", "large": "CREATE VIEW"}
    assert differs(conn, "analytics.revenue", REVENUE) == []
    assert "(country)" in " ".join(indexes(conn, "revenue"))
    assert "btree (orders)" in indexes(conn, "revenue")
    reads = "SELECT has_table_privilege('pg_read_all_data', 'analytics.revenue', 'SELECT')"
    granted = (
        "SELECT count(*) FROM information_schema.role_table_grants"
        " WHERE table_name = 'revenue' AND grantee = %s"
    )
    assert conn.execute(reads).fetchone() == (True,)
    assert conn.execute(granted, ("pg_read_all_data",)).fetchone() == (1,)
    assert re.search(r"PASS=4 .*ERROR=0", project.run("test"))
    made = ids(conn)

    # Rows committed before a run are in the views after it; no view is populated again.
    conn.execute("INSERT INTO orders SELECT i, 1, 5 FROM generate_series(51, 60) i")
    assert project.did() == {"revenue": "UP TO DATE", "large": "UP TO DATE"}
    assert differs(conn, "analytics.revenue", REVENUE) == []
    assert ids(conn) == made

    # Altered in place: history, latency, indexes, grants.
    query = "SELECT c.country, count(*) AS orders, sum(o.amount) AS amount FROM orders o JOIN customers c ON c.id = o.customer_id GROUP BY c.country"
    config = "key=['country'], history='1 hour', latency_ms=20, indexes=[{'columns': ['amount', 'orders']}, {'columns': ['amount'], 'type': 'hash'}], grants={'select': ['pg_monitor']}"
    project.model("revenue", config, query)
    # A changed query; where create_view can replace, dbt uses that.
    assert project.did("--select", "revenue")["revenue"] in ("ALTER VIEW", "REPLACE VIEW")
    assert indexes(conn, "revenue") & {"btree (orders)"} == set()
    assert indexes(conn, "revenue") >= {"btree (amount, orders)", "hash (amount)"}
    assert conn.execute(granted, ("pg_read_all_data",)).fetchone() == (0,)
    assert conn.execute(granted, ("pg_monitor",)).fetchone() == (1,)
    options = "SELECT (options->>'history')::interval = '1 hour', options->'latency_ms' FROM headrace.views WHERE view_name = 'revenue'"
    assert conn.execute(options).fetchone() == (True, 20)
    now = ids(conn)["revenue"]
    project.model("revenue", config.replace("1 hour", "2 hours").replace("20", "0"), query)
    # An equivalent query keeps its first text, so replacing changes nothing.
    assert project.did("--select", "revenue")["revenue"] in ("UP TO DATE", "REPLACE VIEW")
    assert conn.execute(options).fetchone()[0] is False
    assert ids(conn)["revenue"] == now

    # Populated again, in its table; views over an altered view were populated automatically.
    before = ids(conn)["large"]
    assert project.did("--select", "large", "--full-refresh") == {"large": "RESYNC VIEW"}
    assert ids(conn)["large"] != before


def test_what_cannot_be_altered_is_made_anew(project, conn):
    """Other columns or another key need a new view, unless create_view can replace it."""
    project.run("run", "--select", "revenue")
    more = REVENUE.replace("count(*) AS orders", "count(*) AS orders, min(o.id) AS first")
    project.model("revenue", "key=[]", more)
    again = project.did("--select", "revenue")["revenue"]
    assert again in ("CREATE VIEW AGAIN", "REPLACE VIEW")
    assert differs(conn, "analytics.revenue", more) == []
    # A relation with the model's name that is no view of Headrace is dropped, as dbt does.
    (project.folder / "models" / "plain.sql").write_text("select 1 as a")
    assert project.did("--select", "plain") == {"plain": "CREATE VIEW"}
    project.model("plain", "", "select id as a from public.orders")
    assert project.did("--select", "plain") == {"plain": "CREATE VIEW"}
    assert differs(conn, "analytics.plain", "SELECT id FROM orders") == []
    told = project.run("run-operation", "headrace_verify", "--args", "{name: analytics.plain}")
    assert "exactly" in told
    project.run("run-operation", "headrace_drop", "--args", "{name: analytics.plain}")
    assert "plain" not in ids(conn)
    # A test that fails.
    conn.execute("CALL headrace.pause_view('analytics.revenue')")
    told = project.run("test", "--select", "revenue,test_name:headrace_follows", fails=True)
    assert "FAIL 1" in told
    project.model("revenue", "", "select clock_timestamp() as t")
    told = project.run("run", "--select", "revenue", fails=True)
    assert "not supported" in told or "volatile" in told
    assert sys.version_info >= (3, 11)


def test_the_models_of_the_page(project, conn):
    """The models of the manual work in place of the example's."""
    conn.execute("CREATE ROLE reporting")
    try:
        models = project.folder / "models"
        (models / "large.sql").unlink()
        [model] = pages.fences("integrations", "jinja")
        (models / "revenue.sql").write_text(model)
        _, said = pages.fences("integrations", "yaml")
        sources = (models / "schema.yml").read_text().split("\nmodels:")[0]
        (models / "schema.yml").write_text(f"{sources}\n{said}\n")
        assert project.did() == {"revenue": "CREATE VIEW"}
        assert differs(conn, "analytics.revenue", REVENUE) == []
        assert "btree (orders)" in indexes(conn, "revenue")
        options = (
            "SELECT options->'key', (options->>'history')::interval = '2 hours' FROM headrace.views"
        )
        assert conn.execute(options).fetchall() == [(["country"], True)]
        granted = "SELECT has_table_privilege('reporting', 'analytics.revenue', 'SELECT')"
        assert conn.execute(granted).fetchone() == (True,)
        assert re.search(r"PASS=1 .*ERROR=0", project.run("test"))
        assert project.did() == {"revenue": "UP TO DATE"}
    finally:
        conn.execute("DROP OWNED BY reporting; DROP ROLE reporting")
