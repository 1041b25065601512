"""Populations on masters of Spark that run beside Headrace: standalone, and Spark Connect.

Each engine has its own processes, since pyspark has one session for each process.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from bench import masters
from headrace import spark_options
from headrace.config import Settings
from headrace.embedded.engine import EmbeddedEngine
from headrace.errors import UserError
from headrace.redaction import printable
from headrace.server import doctor
from tests.outside import pages
from tests.waiting import wait_until

QUERIES = {
    "groups": "SELECT k, count(*) AS n, sum(x) AS s FROM t GROUP BY k",
    "joined": "SELECT t.id, u.name FROM t JOIN u ON u.k = t.k WHERE t.x > 50",
    "ranked": "SELECT id, rank() OVER (PARTITION BY k ORDER BY x) AS r FROM t",
    "total": "SELECT count(*) AS n, min(x) AS low, avg(x) AS mean FROM t",
    "first": "SELECT id, x FROM t ORDER BY x DESC, id LIMIT 20",
    "extremes": "SELECT min(x) AS low, max(id) AS last, count(DISTINCT k) AS ks FROM t",
    "cube": "SELECT k, x % 3 AS r, count(*) AS n, sum(x) AS s FROM t GROUP BY CUBE (k, x % 3)",
}
BY_SPARK = '{"population": "spark"}'


class Started:
    """An engine and a session; the notices of the last call."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.engine = engine
        self.conn = psycopg.connect(engine.source, autocommit=True)
        self.told: list[str] = []
        self.conn.add_notice_handler(lambda notice: self.told.append(notice.message_primary))

    def fill(self, rows: int) -> None:
        self.conn.execute(
            "CREATE TABLE t (id int PRIMARY KEY, k int, x int);"
            "CREATE TABLE u (k int PRIMARY KEY, name text);"
            f"INSERT INTO t SELECT i, i % 97, i::bigint * 7919 % 1009 FROM generate_series(1, {rows}) i;"
            "INSERT INTO u SELECT i, 'name ' || i FROM generate_series(0, 90) i; ANALYZE t, u"
        )

    def create(self, name: str, query: str) -> None:
        self.told.clear()
        self.conn.execute("CALL headrace.create_view(%s, %s, %s)", (name, query, BY_SPARK))

    def equal(self, name: str, query: str) -> bool:
        both = [self.conn.execute(f"SELECT x::text FROM ({q}) x ORDER BY 1").fetchall()
                for q in (f"TABLE {name}", query)]  # fmt: skip
        return both[0] == both[1]

    def check_after_changes(self, views: dict[str, str]) -> None:
        """Change rows, and check that the views, whose states Spark has made, follow."""
        self.conn.execute("UPDATE t SET x = x + 1 WHERE id % 5 = 0; DELETE FROM t WHERE id % 7 = 0")
        self.conn.execute(
            "INSERT INTO t (id, k, x) VALUES (-1, 3, 2000), (-2, 96, 60) ON CONFLICT DO NOTHING"
        )
        for name, query in views.items():
            self.conn.execute("CALL headrace.wait_for(%s)", (name,))
            assert self.equal(name, query), name


@pytest.fixture
def started(database: str, tmp_path: Path) -> Iterator[Callable[..., Started]]:
    with contextlib.ExitStack() as stack:

        def start(**settings: str) -> Started:
            env = {f"HEADRACE_{name.upper()}": value for name, value in settings.items()}
            engine = stack.enter_context(EmbeddedEngine(database, tmp_path / "data", env=env))
            found = Started(engine)
            stack.callback(found.conn.close)
            return found

        yield start


@pytest.fixture(scope="module")
def connect_url(tmp_path_factory) -> Iterator[str]:
    pytest.importorskip("grpc")
    with masters.connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


@pytest.mark.slow
def test_views_by_spark_connect(started, connect_url):
    it = started(spark_master=connect_url)
    it.fill(20_000)
    for name, query in QUERIES.items():
        it.create(name, query)
        assert any("on Spark" in text for text in it.told), it.told
        assert it.equal(name, query), name
    it.check_after_changes(QUERIES)
    assert "spark is warm" in it.engine.log


@pytest.mark.slow
def test_a_cancel_reaches_spark_connect(started, connect_url):
    it = started(spark_master=connect_url)
    it.fill(1_000_000)
    it.create("first", QUERIES["first"])
    cancel = threading.Timer(0.3, it.conn.cancel)
    it.conn.add_notice_handler(
        lambda notice: "on Spark" in notice.message_primary and cancel.start()
    )
    with pytest.raises(psycopg.errors.QueryCanceled):
        it.create("joined", QUERIES["joined"])
    it.conn.remove_notice_handler(it.conn._notice_handlers[-1])
    views = "SELECT FROM headrace.views WHERE view_name = 'joined'"
    wait_until(lambda: it.conn.execute(views).fetchone() is None, "the job goes on")
    it.create("joined", QUERIES["joined"])
    assert it.equal("joined", QUERIES["joined"])


@pytest.mark.slow
def test_views_by_a_standalone_master(started, tmp_path):
    with masters.standalone(tmp_path) as (url, workers):
        options = "spark.executor.cores=1; spark.ui.enabled=true"
        given = {"spark_options": options, "spark_memory_mb": "512"}
        it = started(spark_master=url, spark_warm="true", **given)
        it.fill(20_000)
        wait_until(lambda: "spark is warm" in it.engine.log, "Spark does not start", 400)
        assert "pages at http://" in it.engine.log
        for name, query in QUERIES.items():
            it.create(name, query)
            assert any("on Spark" in text for text in it.told), it.told
            assert it.equal(name, query), name
        # One executor dies at work: its tasks are repeated on the other.
        threading.Timer(0.5, workers[0].kill).start()
        it.create("again", QUERIES["joined"])
        assert it.equal("again", QUERIES["joined"])
    # The master is gone, so a view that fits is computed in this process.
    it.create("alone", QUERIES["groups"])
    assert any("in process" in text for text in it.told), it.told
    it.check_after_changes(QUERIES | {"again": QUERIES["joined"], "alone": QUERIES["groups"]})


NO_DIRECTORY = QUERIES | {
    "lately": "SELECT k, count(*) AS n FROM t WHERE at > now() - interval '1 day' GROUP BY k",
    "named": "SELECT t.id, rank() OVER w AS r, sum(t.x) OVER w AS s FROM t JOIN u ON u.k = t.k"
    " WINDOW w AS (ORDER BY u.name, t.x)",
    "kept": "SELECT DISTINCT a, b FROM keyless",
    "united": "SELECT k, sum(n) AS n FROM (SELECT k, count(*) AS n FROM t GROUP BY k"
    " UNION ALL SELECT k, count(*) FROM u GROUP BY k) x GROUP BY k",
    "paired": "SELECT a.k, a.n, b.n AS m FROM (SELECT k, count(*) AS n FROM t GROUP BY k) a"
    " JOIN (SELECT k, count(*) AS n FROM t GROUP BY k) b ON b.n = a.n",
}


@pytest.mark.slow
@pytest.mark.skipif(not masters.can_hide(), reason="no directory can be hidden from a process")
@pytest.mark.parametrize("kind", ["standalone", "connect"])
def test_files_come_back_where_no_directory_is_shared(started, tmp_path, kind):
    with contextlib.ExitStack() as stack:
        hidden, given = tmp_path / "data", {}
        if kind == "connect":
            pytest.importorskip("grpc")
            url = stack.enter_context(masters.connect_server(tmp_path, hidden=hidden))
        else:
            url, workers = stack.enter_context(masters.standalone(tmp_path, hidden=hidden))
            given = {"spark_options": "spark.executor.cores=1", "spark_memory_mb": "512"}
        it = started(spark_master=url, spark_warm="true", **given)
        it.fill(20_000)
        it.conn.execute(
            "ALTER TABLE t ADD at timestamptz DEFAULT now(); CREATE TABLE keyless (a int, b text);"
            "ALTER TABLE keyless REPLICA IDENTITY FULL;"
            "INSERT INTO keyless SELECT i % 50, i % 3 FROM generate_series(1, 3000) i"
        )
        wait_until(lambda: "spark is warm" in it.engine.log, "Spark does not start", 400)
        assert "files come back through Spark" in it.engine.log
        for name, query in NO_DIRECTORY.items():
            it.create(name, query)
            assert any("on Spark" in text for text in it.told), it.told
            assert it.equal(name, query), name
        with pytest.raises(psycopg.errors.DivisionByZero):
            it.create("fails", "SELECT id, 1 / (x - 500) AS d FROM t")
        it.check_after_changes(NO_DIRECTORY)
        if kind == "standalone":
            # One executor dies at work: its tasks are repeated on the other.
            threading.Timer(0.5, workers[0].kill).start()
            it.create("again", NO_DIRECTORY["joined"])
            it.check_after_changes(NO_DIRECTORY | {"again": NO_DIRECTORY["joined"]})


@pytest.mark.slow
def test_what_executors_lack_is_said(started, connect_url, tmp_path):
    """The remedy that the message names works."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    with masters.connect_server(tmp_path, str(bare / "bin" / "python")) as url:
        it = started(spark_master=url)
        it.fill(100)
        it.create("v", QUERIES["total"])
        [told] = [text for text in it.told if "in process" in text]
        assert "Headrace is not installed in the Python of Spark's executors" in told
        assert it.equal("v", QUERIES["total"])


def test_options_of_spark_are_checked():
    given = " spark.executor.cores = 2;spark.x=a=b; "
    assert spark_options.parse(given) == {"spark.executor.cores": "2", "spark.x": "a=b"}
    assert Settings(spark_options=given).spark_options == given
    for wrong in ("cores=2", "spark.executor.cores", "spark.sql.adaptive.enabled=true"):
        with pytest.raises(UserError, match="spark_options"):
            Settings(spark_options=wrong)


def test_secrets_of_spark_are_not_shown():
    given = Settings(
        spark_master="sc://host:1/;token=hidden;user_id=me",
        spark_options="spark.a=1;spark.authenticate.secret=hidden; spark.ssl.keyPassword = hidden",
    )
    assert "hidden" not in repr(given)
    shown = printable("spark_master", given.spark_master)
    assert shown == "sc://host:1/;token=***;user_id=me"


def test_the_file_of_the_manual(tmp_path):
    [block] = [b for b in pages.blocks(pages.MANUAL / "spark.md") if b.kind == "ini"]
    file = tmp_path / "headrace.toml"
    file.write_text(block.body)
    settings = Settings.load(file=file, env={})
    assert settings.spark_cluster
    assert spark_options.parse(settings.spark_options)["spark.executor.cores"] == "2"


@pytest.mark.slow
def test_the_check_tries_a_cluster(database, connect_url, tmp_path):
    given = Settings(source=database, data_dir=tmp_path, spark_master=connect_url)
    assert "kernels compiled" in doctor.try_spark(given).found
    found = doctor.try_spark(given.replace(spark_master="sc://127.0.0.1:1"))
    assert "could not be started" in found.warning
