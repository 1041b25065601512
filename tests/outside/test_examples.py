"""The examples, run as their README says, each against one running server."""

import json
import os
import subprocess
import sys
from importlib import util
from pathlib import Path

import psycopg
import pytest
import yaml

from headrace.embedded.binaries import account, install_dir
from tests.compared import differs
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.shared_engine

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def module(path: str):
    """Import an example's program."""
    spec = util.spec_from_file_location(Path(path).stem, EXAMPLES / path)
    assert spec is not None
    assert spec.loader is not None
    loaded = util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def conn(engine):
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        yield conn


def psql(engine, *words: str, **how) -> subprocess.Popen[str]:
    program = install_dir(16, account()) / "bin" / "psql"
    return subprocess.Popen(
        [program, "-X", "-v", "ON_ERROR_STOP=1", *words],
        env=os.environ | {"PGOPTIONS": "", "DATABASE": engine.dsn},
        text=True,
        **how,
    )


def test_a_leaderboard_is_shown_whenever_it_changes(engine, conn):
    leaderboard = module("leaderboard/leaderboard.py")
    leaderboard.prepare(conn)
    conn.execute("INSERT INTO players SELECT i, 'p' || i FROM generate_series(1, 30) i")
    conn.execute("INSERT INTO scores (player_id, points) SELECT i, i FROM generate_series(1, 30) i")
    conn.execute("CALL headrace.wait_for('leaderboard')")
    with psycopg.connect(engine.dsn, autocommit=True) as other:
        shown = leaderboard.boards(other, PATIENCE_S)
        first = next(shown)
        assert len(first) == 10
        assert first[0].split()[:3] == ["1", "p30", "30"]
        # Equal scores share a rank.
        conn.execute("INSERT INTO scores (player_id, points) VALUES (1, 100), (29, 1)")
        then = [line.split()[:3] for line in next(shown)]
    assert then[:3] == [["1", "p1", "101"], ["2", "p29", "30"], ["2", "p30", "30"]]
    assert differs(conn, "leaderboard", leaderboard.QUERY) == []
    # A start from the command line, when all objects exist already.
    done = subprocess.run(
        [sys.executable, EXAMPLES / "leaderboard/leaderboard.py", "--once", engine.dsn],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert [line.split()[:3] for line in done.stdout.strip().splitlines()] == then


def test_an_index_follows_each_change_once(engine, conn, tmp_path):
    example = module("search_index/search_index.py")
    example.prepare(conn)
    conn.execute("INSERT INTO authors SELECT i, 'author' || i FROM generate_series(1, 3) i")
    conn.execute(
        "INSERT INTO articles SELECT i, 1 + i % 3, 'Title ' || i, 'the body of ' || i"
        " FROM generate_series(1, 20) i"
    )
    conn.execute("CALL headrace.wait_for('documents')")
    index = example.SearchIndex(str(tmp_path / "index.sqlite"))
    index.fill(conn)
    assert index.follow(conn) == 0
    assert {n for n, _ in index.search("author2")} == set(range(1, 21, 3))

    conn.execute("UPDATE authors SET name = 'somebody' WHERE id = 2")
    conn.execute("INSERT INTO tags VALUES (5, 'green'), (5, 'blue'), (6, 'green')")
    conn.execute("DELETE FROM articles WHERE id = 4")
    conn.execute("CALL headrace.wait_for('documents')")
    # Read and applied, but killed before the acknowledgement: the change comes again.
    place = conn.execute("SELECT txid FROM headrace.feeds WHERE name = %s", (example.FEED,))
    before = place.fetchone()[0]
    while index.follow(conn):
        pass
    conn.execute("UPDATE headrace.feeds SET txid = %s WHERE name = %s", (before, example.FEED))
    assert index.follow(conn) == 0, "nothing is new"
    assert index.search("author2") == []
    assert {n for n, _ in index.search("somebody")} == set(range(1, 21, 3)) - {4}
    assert {n for n, _ in index.search("green")} == {5, 6}
    assert index.search("blue green") == [(5, "Title 5")]
    held = index._index.execute(f"SELECT {example.COLUMNS} FROM documents ORDER BY id").fetchall()
    assert held == conn.execute(f"SELECT {example.COLUMNS} FROM documents ORDER BY id").fetchall()
    index.close()
    # A start from the command line; the found documents include the changes made meanwhile.
    conn.execute("INSERT INTO tags VALUES (7, 'green')")
    conn.execute("CALL headrace.wait_for('documents')")
    program = EXAMPLES / "search_index/search_index.py"
    done = subprocess.run(
        [sys.executable, program, "--search", "green", engine.dsn, tmp_path / "index.sqlite"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert {int(line.split()[0]) for line in done.stdout.splitlines()} == {5, 6, 7}
    conn.execute("CALL headrace.drop_feed(%s)", (example.FEED,))


def test_boards(engine, conn):
    """psql shows the board repeatedly; every Grafana panel has a query that runs."""
    folder = EXAMPLES / "dashboard"
    made = psql(engine, "-q", "-d", engine.dsn, "-f", str(folder / "views.sql"))
    assert made.wait(PATIENCE_S) == 0
    conn.execute("INSERT INTO customers SELECT i, 'c' || i % 3 FROM generate_series(1, 9) i")
    conn.execute("INSERT INTO orders SELECT i, 1 + i % 9, i FROM generate_series(1, 50) i")
    for name in ("orders_by_minute", "revenue_by_country", "open_orders"):
        conn.execute("CALL headrace.wait_for(%s)", (name,))
    panels = json.loads((folder / "grafana.json").read_text())["panels"]
    source = yaml.safe_load((folder / "datasource.yaml").read_text())["datasources"][0]
    told = {}
    for panel in panels:
        assert panel["datasource"]["uid"] == source["uid"]
        assert panel["datasource"]["type"] == source["type"]
        (target,) = panel["targets"]
        cursor = conn.execute(target["rawSql"])
        names = [column.name for column in cursor.description]
        assert target["format"] != "time_series" or names[0] == "time"
        told[panel["title"]] = cursor.fetchall()
    assert sum(row[1] for row in told["Orders per minute"]) == 50
    assert sum(row[1] for row in told["Revenue by country"]) == 50 * 51 / 2
    assert told["Open orders"] == [(50,)]
    assert {row[1] for row in told["How late are these numbers?"]} == {"running"}
    watching = psql(
        engine, "-d", engine.dsn, "-f", str(folder / "watch.sql"), stdout=subprocess.PIPE
    )
    try:
        shown: list[str] = []

        def twice() -> bool:
            shown.append(watching.stdout.readline())
            return sum("ms late" in line for line in shown) == 2

        wait_until(twice, lambda: "".join(shown), every_s=0)
    finally:
        watching.kill()
        watching.wait()
    assert any("c1" in line for line in shown)
