"""Upgrade from the previous version, on the same database and data directory.

Its source is a commit of this repository, which the environment of these tests runs.  Its kernels
are compiled only if their sources differ.
"""

import filecmp
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Collection
from io import BytesIO
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from headrace.embedded.engine import EmbeddedEngine
from headrace.sql import upgrades
from tests.compared import differs
from tests.conftest import environment
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
PREVIOUS = "cf91307"
"""The last commit of version 0.1.0, catalog 1."""
DROPPED = {"elsewhere": "states dropped", "delayed": "view is rebuilt"}
"""Messages in the log about views that are populated again.

``elsewhere``: other workers did not record by which records their batches were cut, so their
states may not fit.  ``delayed``: unequal intervals had one key.
"""
ROOMS_OF_KERNELS = ("headrace/kernels", "headrace/state/map")

VIEWS = {
    "revenue": "SELECT c.country, count(*) AS n, sum(o.amount) AS s, max(o.rate) AS r"
    " FROM orders o JOIN customers c ON c.id = o.customer_id GROUP BY c.country",
    "best": "SELECT id, customer_id, amount FROM orders ORDER BY amount DESC, id LIMIT 10",
    "running": "SELECT id, customer_id, sum(amount) OVER (PARTITION BY customer_id ORDER BY id) AS s"
    " FROM orders",
    "strange": "SELECT o.id, o.amount FROM orders o LEFT JOIN customers c ON c.id = o.customer_id"
    " WHERE c.id IS NULL",
    "kinds": "SELECT DISTINCT country, tags FROM customers",
    "deep": "WITH RECURSIVE t AS (SELECT id, 0 AS d FROM customers WHERE parent IS NULL"
    " UNION SELECT c.id, t.d + 1 FROM customers c JOIN t ON t.id = c.parent) SELECT * FROM t",
    "of_revenue": "SELECT country FROM revenue WHERE n > 20",
    "elsewhere": "SELECT customer_id, max(amount) AS m, count(DISTINCT amount) AS d"
    " FROM orders GROUP BY customer_id",
    "delayed": "SELECT delay, count(*) AS n FROM delays GROUP BY delay",
}
TABLES = """
    CREATE TABLE customers (id int PRIMARY KEY, country text, parent int, tags text[]);
    CREATE TABLE orders (
        id int PRIMARY KEY, customer_id int, amount numeric(9, 2), rate float8);
    INSERT INTO customers SELECT i, 'c' || i % 5, nullif(i / 2, 0), ARRAY['t' || i % 3]
      FROM generate_series(1, 60) i;
    INSERT INTO orders SELECT i, i % 70, i * 1.25, 1.0 / i FROM generate_series(1, 900) i;
    CREATE TABLE delays (id int PRIMARY KEY, delay interval);
    INSERT INTO delays SELECT i, make_interval(months => i % 5, days => 1)
      FROM generate_series(1, 20) i;
"""


def writes(conn: psycopg.Connection, first: int) -> None:
    """Write some transactions; ``first`` is the least new id."""
    conn.execute(
        "INSERT INTO orders SELECT i, i %% 70, i * 1.5, 1.0 / i FROM generate_series(%s::int, %s::int) i",
        (first, first + 99),
    )
    conn.execute("UPDATE orders SET amount = amount + 3.5 WHERE id %% 7 = %s::int %% 7", (first,))
    conn.execute("DELETE FROM orders WHERE id %% 11 = %s::int %% 11", (first,))
    conn.execute(
        "UPDATE customers SET country = country || 'x', parent = 1 WHERE id %% 13 = %s::int %% 13"
        " AND id > 1",
        (first,),
    )
    conn.execute(
        "INSERT INTO delays SELECT i, make_interval(years => i %% 3, days => 1)"
        " FROM generate_series(%s::int, %s::int) i",
        (first, first + 9),
    )
    conn.execute("DELETE FROM delays WHERE id % 4 = 1")


@pytest.fixture(scope="module")
def previous(tmp_path_factory) -> Path:
    """Return the previous version's source, with its kernels compiled."""
    tree = tmp_path_factory.mktemp("previous")
    packed = subprocess.run(
        [
            "git",
            "archive",
            PREVIOUS,
            "headrace",
            "pyproject.toml",
            "setup.py",
            "README.md",
            "LICENSE",
        ],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if packed.returncode:
        pytest.skip(f"commit {PREVIOUS} is not in this checkout")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(tree, filter="data")
    sources = [p for room in ROOMS_OF_KERNELS for p in (tree / room).glob("*.p*")]
    same = all(
        (now := ROOT / path.relative_to(tree)).exists() and filecmp.cmp(path, now, shallow=False)
        for path in sources
    )
    if same:
        for room in ROOMS_OF_KERNELS:
            for path in (ROOT / room).glob("*.so"):
                shutil.copy(path, tree / room)
    else:
        subprocess.run(
            [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=tree, check=True
        )
    return tree


def engine_of(database: str, data_dir: Path, tree: Path | None = None) -> EmbeddedEngine:
    """Return an engine of this version, or of the one in ``tree``."""
    env = environment(str(conninfo_to_dict(database)["dbname"]))
    if tree is not None:
        # Not the modules of the directory that the tests run in, either.
        env |= {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
    return EmbeddedEngine(database, data_dir, env=env)


def ids(conn: psycopg.Connection) -> dict[str, int]:
    return dict(conn.execute("SELECT view_name, id FROM headrace.views ORDER BY id").fetchall())


def follow(engine: EmbeddedEngine, conn: psycopg.Connection, wrong: Collection[str] = ()) -> None:
    """Check that all views are at the last commit, and equal their queries, but for ``wrong``."""
    with psycopg.connect(engine.dsn, autocommit=True) as client:
        for name in VIEWS:
            client.execute("CALL headrace.wait_for(%s, timeout => '60 s')", (name,))
    for name, query in VIEWS.items():
        assert name in wrong or differs(conn, name, query) == [], name


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_views_go_on_where_they_were(previous, database, tmp_path, how):
    """No view is populated again, and none misses a change in between."""
    data = tmp_path / "engine"
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(TABLES)
        old = engine_of(database, data, previous)
        try:
            old.start()
            with psycopg.connect(old.dsn, autocommit=True) as client:
                client.execute("CALL headrace.add_worker('w1')")
                for name, query in VIEWS.items():
                    options = '{"history": "1 hour"}' if name == "revenue" else "{}"
                    if name == "elsewhere":
                        options = '{"placement": "w1"}'
                    client.execute(
                        "CALL headrace.create_view(%s, %s, %s::jsonb)", (name, query, options)
                    )
            writes(conn, 1000)
            follow(old, conn, wrong=["delayed"])
            made = ids(conn)
            told = conn.execute("SELECT * FROM headrace.view_changes('revenue')").fetchall()
            assert told
            assert upgrades.found(conn) == 1, "it is the previous version"
            writes(conn, 2000)
            assert (old.stop() == 0) if how == "stopped" else (old.kill9() is None)
        finally:
            old.kill9()
        writes(conn, 3000)
        new = engine_of(database, data)
        begin = len(new.log)
        try:
            new.start()
            wait_until(
                lambda: all(ids(conn).get(name) not in (None, made[name]) for name in DROPPED),
                "they are filled anew by themselves",
            )
            follow(new, conn)
            assert upgrades.found(conn) == upgrades.CATALOG
            writes(conn, 4000)
            follow(new, conn)
            same = {name for name, number in ids(conn).items() if number == made[name]}
            assert same == VIEWS.keys() - DROPPED, "a view that is filled anew gets another id"
            log = new.log[begin:]
            assert "catalog upgraded" in log
            assert all(words in log for words in DROPPED.values())
            anew = [line for line in log.splitlines() if '"view is rebuilt"' in line]
            assert all(any(f"public.{name}" in line for name in DROPPED) for line in anew)
            others = [line for line in log.splitlines() if not any(n in line for n in DROPPED)]
            for word in ("set aside", "state damaged", "of another version"):
                assert not any(word in line for line in others)
            again = conn.execute("SELECT * FROM headrace.view_changes('revenue')").fetchall()
            assert again[: len(told)] == told, "the history goes on, too"
            assert len(again) > len(told)
            with psycopg.connect(new.dsn, autocommit=True) as client:
                for name in VIEWS:
                    proved = client.execute("SELECT * FROM headrace.verify_view(%s)", (name,))
                    assert proved.fetchall() == [], name
        finally:
            new.kill9()


def test_states_of_another_format_are_made_anew(database, tmp_path):
    """No call is needed, and the log gives the reason."""
    data = tmp_path / "engine"
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(TABLES)
        engine = engine_of(database, data)
        try:
            engine.start()
            with psycopg.connect(engine.dsn, autocommit=True) as client:
                for name, query in VIEWS.items():
                    client.execute("CALL headrace.create_view(%s, %s)", (name, query))
            writes(conn, 1000)
            follow(engine, conn)
            made = ids(conn)
            engine.stop()
            (data / "state" / "FORMAT").write_text("3\n")
            writes(conn, 2000)
            engine.start()
            wait_until(
                lambda: not set(ids(conn).values()) & set(made.values()), "all are filled anew"
            )
            follow(engine, conn)
            assert "state of another version" in engine.log
            assert 'has format \\"3\\"' in engine.log or 'has format "3"' in engine.log
            assert list(data.glob("state.damaged-*"))
        finally:
            engine.kill9()
