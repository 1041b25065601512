"""Every page of the documentation is followed; every block on it is run or checked by a test."""

import contextlib
import dataclasses
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.server.explained import strangers
from tests.outside import checks, pages, shells
from tests.outside.following import SYNTAX, Follower, assert_shown, emptied
from tests.outside.pages import DOCS, MANUAL, ROOT, Block, Typed
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

PAGES = pages.documents()
FOLLOWED = [page for page in PAGES if checks.is_followed(page)]
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PLACED = """
CALL headrace.create_view('there', 'SELECT count(*) AS n FROM t', options => '{"placement": "w2"}')
"""
FILE = re.compile(r"(?:[\w.-]+/)+[\w.-]+\.\w+|(?:[\w-]+/)+")
ROOTS = (ROOT, ROOT / "headrace")
FOLDERS = {p.name for root in ROOTS for p in root.iterdir() if p.is_dir()}


def named(page: Path) -> str:
    return page.stem


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_nothing_stands_in_a_page_that_nobody_runs_or_checks(page):
    for block in pages.blocks(page):
        checks.check(block)


def test_there_is_something_to_exempt():
    kinds = {(str(b.page.relative_to(ROOT)), b.kind) for p in PAGES for b in pages.blocks(p)}
    assert {*checks.EXEMPT, *checks.ELSEWHERE} <= kinds
    assert {p.stem for p in MANUAL.glob("*.md")} - {p.stem for p in FOLLOWED} == {
        # Tables and prose: tests/test_config.py, test_troubleshooting.py.
        *("settings", "troubleshooting"),
        "high-availability",  # tests/failover
        "copies",  # prose: tests/faults/test_copies.py, test_moving_name.py, test_certificates.py
        "spark",  # tests/population/test_spark_masters.py
        "frameworks",  # test_frameworks.py
        *("providers", "faq"),  # prose; tests/server/test_doctor.py
    }


@pytest.fixture(scope="module")
def elsewhere(databases) -> Iterator[str]:
    """Another database, with the table of the reference."""
    name = databases.take()
    dsn = make_conninfo(databases.server, dbname=name)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(pages.fences("reference", "sql")[0].encode())
    yield dsn
    databases.give_back(name)


@pytest.mark.parametrize("page", FOLLOWED, ids=named)
def test_a_page_is_followed(engine, elsewhere, page):
    with emptied(engine.dsn) as conn:
        stand_ins = {"host=db.eu dbname=shop user=headrace": elsewhere}
        assert Follower(conn, engine.source, stand_ins).follow(page)


def test_what_a_page_has_made_goes_with_it_however_it_ends(engine):
    def fail() -> None:
        with emptied(engine.dsn) as conn:
            conn.execute("CREATE TABLE items (id int PRIMARY KEY)")
            conn.execute("CALL headrace.create_view('large', 'SELECT id FROM items')")
            conn.execute("CREATE ROLE bookkeeper; GRANT SELECT ON items TO bookkeeper")
            conn.execute("CREATE ROLE other_than_pages")
            conn.execute("CREATE VIEW hangs AS SELECT * FROM large")
            conn.execute("CALL headrace.add_worker('w1')")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        query = "SELECT rolname FROM pg_roles WHERE rolname IN ('bookkeeper', 'other_than_pages')"
        assert conn.execute(query).fetchall() == [("other_than_pages",)], "nobody else's"
        conn.execute("DROP ROLE other_than_pages")
        assert conn.execute("SELECT name FROM headrace.list_views()").fetchall() == []
        assert len(conn.execute("SELECT * FROM headrace.workers()").fetchall()) == 1


@pytest.mark.slow  # starts another server
@pytest.mark.parametrize("page", [MANUAL / "workers.md", DOCS / "operating.md"], ids=named)
def test_a_worker_joins_as_the_page_says(engine, tmp_path, page):
    """The other machine is simulated here; all else is literally as on the page."""
    with contextlib.ExitStack() as stack, emptied(engine.dsn) as conn:

        def join(typed: Typed, token: str) -> None:
            with socket.create_server(("127.0.0.1", 0)) as free:
                address = f"127.0.0.1:{free.getsockname()[1]}"
            (tmp_path / "token").touch(mode=0o600)
            (tmp_path / "token").write_text(token)
            words = shlex.split(typed.words)
            assert words[:2] == ["headrace", "worker"]
            here = {
                "--join": engine.source,
                "--token-file": str(tmp_path / "token"),
                "--listen": address,
                "--address": address,
                "--data-dir": str(tmp_path / "data"),
            }
            assert set(here) == set(words[2::2])
            words = [word for flag in words[2::2] for word in (flag, here[flag])]
            with (tmp_path / "log").open("w") as log:
                child = subprocess.Popen(
                    [sys.executable, "-m", "headrace.server.cli", "worker", *words],
                    stdout=log,
                    stderr=log,
                )
            stack.callback(child.wait)
            stack.callback(child.kill)

            def ready() -> bool:
                told = (tmp_path / "log").read_text()
                assert child.poll() is None, told
                return f"headrace worker w2 ready on {address}" in told

            wait_until(ready, "it has joined")
            rows = conn.execute("SELECT * FROM headrace.workers()").fetchall()
            assert ("w2", "running") in [row[:2] for row in rows]
            conn.execute("CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY)")
            conn.execute(PLACED)
            conn.execute("INSERT INTO t VALUES (1)")
            conn.execute("CALL headrace.wait_for('there')")
            assert conn.execute("SELECT n FROM there").fetchall() == [(1,)]
            conn.execute("CALL headrace.drop_view('there')")
            joined.append(address)

        joined: list[str] = []
        assert Follower(conn, engine.source, run=join).follow(page)
        assert len(joined) == 1


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_command_lines_in_the_prose_are_right(page):
    for said in SPAN.findall(page.read_text()):
        if re.match(r"(headrace [a-z]|make [a-z]|docker compose )", said) and "|" not in said:
            shells.check(said)


def test_postgres_reads_statements_in_the_prose(engine):
    """Complete statements only; text with … in it, or of keywords alone, is no statement."""
    read, wrong = 0, []
    with psycopg.connect(engine.source, autocommit=True) as conn:
        for page in PAGES:
            for said in SPAN.findall(page.read_text()):
                plain = re.sub(r"'[^']*'", "''", said)
                if not pages.SQL.match(said) or re.fullmatch(r"CALL [\w.]+", said):
                    continue  # only the name of a call
                if "…" in plain or not re.search(r"[a-z0-9(]", plain):
                    continue
                try:
                    conn.execute(SYNTAX.format(said.rstrip(";")).encode())
                except psycopg.errors.SyntaxError:
                    wrong.append((page.name, said))
                read += 1
    assert wrong == []
    assert read > 25


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_variables_settings_and_calls_that_are_named_are_there(page):
    text = page.read_text()
    variables = set(re.findall(r"\bHEADRACE_[A-Z_]+\b", text)) - {"HEADRACE_NAME"}  # any setting
    assert strangers(dict.fromkeys(variables, "")) == []
    names = {field.name for field in dataclasses.fields(Settings)}
    for head, rows in re.findall(r"^\| (setting) .*\n\|[- |]+\n((?:\|.*\n)+)", text, re.MULTILINE):
        assert head
        said = re.findall(r"^\| `(\w+)`", rows, re.MULTILINE)
        assert said
        assert set(said) <= names
    reference = (MANUAL / "reference.md").read_text()
    known = set(re.findall(r"^    (?:CALL )?headrace\.(\w+)\(", reference, re.MULTILINE))
    assert set(re.findall(r"\bheadrace\.(\w+)\(", text)) <= known


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_that_are_named_are_there(page):
    for said in SPAN.findall(page.read_text()):
        if FILE.fullmatch(said) and said.split("/")[0] in FOLDERS:
            assert any((root / said).exists() for root in (*ROOTS, page.parent)), said


# --- each of these sees what is wrong


def block(kind: str, body: str, page: Path = MANUAL / "start.md", before: str = "") -> Block:
    return Block(page, 1, kind, body, before)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("ruby", "puts 1"),
        ("none", "anything"),
        ("console", "$ headrace begin"),
        ("console", "$ headrace start --sauce x"),
        ("console", "$ headrace start --listen nowhere"),
        ("console", "$ HEADRACE_SAUCE=x headrace check"),
        ("console", "$ headrace check --source 'host=db databse=shop'"),
        ("console", "$ rm -rf /"),
        ("console", "$ make coffee"),
        ("console", "$ make bench ARGS='coffee'"),
        ("console", "$ pip install headrace-9.9.9-….whl"),
        ("console", "$ pip install 'headrace[coffee]'"),
        ("console", "$ docker run -d -p 6432:6432 -v headrace:/var/lib/headrace headrace:0.2.0"),
        ("console", "$ docker compose --profile coffee up"),
        ("console", "$ kubectl apply -k deploy/coffee"),
        ("console", "$ kubectl create secret generic coffee --from-file=headrace.toml"),
        ("console", "$ kubectl create secret generic headrace-source --from-file=coffee.toml"),
        ("console", "$ systemctl start coffee"),
        ("console", "$ psql -p 5432 shop"),
        ("console", "$ headrace version\nheadrace 9.9.9"),
        ("sh", 'echo "#token=$(cat /coffee)"'),
        ("toml", "admin_databse = 'x'"),
        ("yaml", "coffee: [1]"),
        ("yaml", "packages: [{git: x, subdirectory: coffee}]"),
        ("yaml", "models: [{data_tests: [{headrace.headrace_follows: {arguments: {late: 1}}}]}]"),
        ("jinja", "{{ config(materialized='headrace_view', coffee=1) }}\nselect 1"),
        ("json", '{"event": "coffee", "level": "info"}'),
    ],
)
def test_what_is_wrong_is_noticed(kind, body):
    with pytest.raises((AssertionError, HeadraceError, KeyError, psycopg.Error, SystemExit)):
        checks.check(block(kind, body))


def test_what_nobody_follows_is_noticed():
    with pytest.raises(AssertionError, match="nobody follows"):
        checks.check(block("sql", "SELECT 1;", DOCS / "glossary.md"))
    with pytest.raises(AssertionError, match="sent by nobody"):
        pages.statements("SELECT 1;\nSELECT 2")


def test_another_answer_is_noticed():
    answer = ["name | lag", "a | 1", "b | 2"]
    assert_shown(block("shown", " name | lag \n------+-----\n b    |   2"), answer)
    assert_shown(block("shown", "name | …\na…"), answer)
    for wrong in ("name | lag\n c | 3", "b | 2\na | 1", "a | 2"):
        with pytest.raises(AssertionError):
            assert_shown(block("shown", wrong), answer)


def test_blocks_are_all_that_stand_in_a_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# T\n\n```sql\nSELECT 1;\n```\n\nSee:\n\n    a | b\n\n    c\n\n```\nx\n```\n")
    found = [(b.kind, b.body, b.before) for b in pages.blocks(page)]
    assert found == [
        ("sql", "SELECT 1;", "# T"),
        ("shown", "a | b\n\nc", "See:"),
        ("none", "x", "See:"),
    ]


def test_a_session_is_what_is_typed_and_what_is_answered():
    typed = pages.session("$ a \\\n    b\none\nshop=# SELECT\n  1;\nheadrace=> SHOW x;\n")
    assert [(t.prompt, t.words, t.answer) for t in typed] == [
        ("$", "a  b", ("one",)),
        ("shop=#", "SELECT 1;", ()),
        ("headrace=>", "SHOW x;", ()),
    ]
    assert [t.words for t in pages.session("make a\nmake b")] == ["make a", "make b"]
