"""Texts that sqlglot reads in a separate process, also hostile ones."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from headrace.errors import SyntaxUserError, UserError
from headrace.process.subprocess_pool import Subprocess
from headrace.reading import DIALECTS, child, reader
from headrace.reading.reader import TextReader
from tests.waiting import wait_until

LONG = f"SELECT 1 -- {'x' * 200_000}"
COLUMNS = {"t": {"a": "int4", "b": "text", "c": "int8", "f": "float8"}}


@pytest.fixture(scope="module")
def asked():
    reader = TextReader(lambda: None)
    yield reader
    reader.close()


def test_a_tree_has_positions_comments_and_names(asked):
    query = 'SELECT t.k AS "Key" /* why */ FROM public.T AS t\nJOIN u ON u.k = t.k'
    every = asked.read(query).nodes
    nodes = {n["detail"]: n for n in every}
    for detail, at in (
        ("public.T AS t", "public.T"),
        ("u", "u ON"),
        ("u.k", "u.k"),
        ("t.k", "t.k ="),
    ):
        found = [n for n in every if n["detail"] == detail][-1]
        assert query[found["at"] :].startswith(at.split(" ")[0])
    assert nodes["public.T AS t"]["table"] == "t", "Postgres folds it"
    assert nodes["Key"]["comments"] == ["why"]
    assert (nodes["u.k"]["column"], nodes["u.k"]["of"]) == ("k", "u")
    [root] = {n["id"] for n in every} - {i for n in every for i in n["inputs"]}
    assert root == "1"


@pytest.mark.parametrize(
    ("query", "words", "at"),
    [
        ("SELECT a b c FROM t", 'near "c"', "c FROM"),
        ("SELECT a,\n b FROM t WHERE x IN (1", None, None),
        ("SELECT 'abc", "no end", None),
        ("SELECT 1; SELECT 2", "2 statements", None),
        ("", "0 statements", None),
        ("VACUUM t", "the parser does not know this statement", "VACUUM"),
        ("SELECT " + "(" * 10_000 + "1" + ")" * 10_000, "nested too deeply", None),
        ("SELECT " + "(SELECT " * 2_000 + "1" + ")" * 2_000, "nested too deeply", None),
        ("SELECT " + "+".join("1" * 20_000), "more than 20000 nodes", None),
        ("SELECT 1, " + "x" * reader.TEXT_MAX, "characters", None),
    ],
    ids=lambda v: str(v)[:20],
)
def test_what_cannot_be_read_says_why(asked, query, words, at):
    with pytest.raises(UserError) as raised:
        asked.read(query)
    assert words is None or words in raised.value.message
    if at is not None:
        assert query[raised.value.position - 1 :].startswith(at)
    # The next query is answered.
    assert asked.read("SELECT 1 AS a").text == "SELECT\n  1 AS a"


def idle(parser) -> Subprocess:
    """Return the process that will answer the next request."""
    [(process, _)] = parser._pool._idle
    return process


@pytest.mark.parametrize("text", ["SELECT 1", LONG], ids=["waiting", "writing"])
def test_who_takes_too_long_is_ended(asked, monkeypatch, text):
    """A parse that is too slow is stopped; the next query gets another process.

    The long text does not fit into the pipe of a process that reads nothing.
    """
    monkeypatch.setattr(reader, "_WAIT_S", 0.5)
    asked.read(text)
    process = idle(asked._short if text is not LONG else asked._long)
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(UserError, match="too long") as raised:
        asked.read(text)
    assert raised.value.code == "54001"
    assert process.has_exited
    monkeypatch.undo()
    assert asked.read(text).nodes[0]["kind"] == "Select"


def test_a_process_that_has_ended_by_itself_is_started_again(asked):
    asked.read("SELECT 1")
    process = idle(asked._short)
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: process.has_exited, "it ends")
    assert asked.read("SELECT 1").nodes[0]["kind"] == "Select"


@pytest.mark.slow
def test_processor_time_and_memory_are_bounded(tmp_path):
    """The limits are set: the system ends a process that works or allocates for ever."""
    import subprocess
    import sys

    for work in ("while True: pass", "x = []\nwhile True: x.append(bytearray(1 << 20))"):
        text = (
            "import resource\nfrom headrace.reading import child\nchild.CPU_S = 1\n"
            "resource.setrlimit(resource.RLIMIT_AS, (child.MEMORY_BYTES,) * 2)\n"
            f"child._more_time()\n{work}\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, timeout=60, check=False
        )
        assert done.returncode != 0
    assert child.CPU_S <= 5


@pytest.mark.parametrize(
    ("dialect", "query", "expected"),
    [
        ("snowflake", "SELECT IFF(a > 1, 'x', 'y') AS f, ZEROIFNULL(c) AS z FROM t",
         "SELECT CASE WHEN a > 1 THEN 'x' ELSE 'y' END AS f,"
         " CASE WHEN c IS NULL THEN 0 ELSE c END AS z FROM t"),
        ("bigquery", "SELECT COUNTIF(a > 1) AS c FROM `t` GROUP BY b",
         'SELECT COUNT(CASE WHEN a > 1 THEN 1 END) AS c FROM "t" GROUP BY b'),
        ("mysql", "SELECT IFNULL(`c`, 0) AS d FROM t LIMIT 5, 10",
         'SELECT COALESCE("c", 0) AS d FROM t LIMIT 10 OFFSET 5'),
        ("tsql", "SELECT TOP 3 [a], ISNULL(a, 0) AS z FROM t ORDER BY a",
         'SELECT "a", COALESCE(a, 0) AS z FROM t ORDER BY a NULLS FIRST LIMIT 3'),
        ("spark", "SELECT a, nvl(c, 0) AS z FROM t ORDER BY a LIMIT 1",
         "SELECT a, COALESCE(c, 0) AS z FROM t ORDER BY a NULLS FIRST LIMIT 1"),
        ("redshift", "SELECT LISTAGG(b, ',') WITHIN GROUP (ORDER BY b) AS l FROM t",
         "SELECT STRING_AGG(b, ',' ORDER BY b) AS l FROM t"),
        ("mysql", "SELECT STDDEV(f) AS s, CAST(b AS char(3)) AS x FROM t",
         "SELECT STDDEV_POP(f) AS s, CAST(b AS VARCHAR(3)) AS x FROM t"),
        ("duckdb", "SELECT a, count(*) AS c FROM t GROUP BY a",
         "SELECT a, COUNT(*) AS c FROM t GROUP BY a"),
        ("SNOWFLAKE", "SELECT public.f(a) AS f FROM t", "SELECT public.f(a) AS f FROM t"),
        # INTERSECT binds no tighter than UNION there.
        ("oracle", "SELECT a FROM t UNION SELECT c FROM t INTERSECT SELECT a FROM t",
         "(SELECT a FROM t UNION SELECT c FROM t) INTERSECT SELECT a FROM t"),
        ("tsql", "SELECT a FROM t UNION SELECT c FROM t INTERSECT SELECT a FROM t",
         "SELECT a FROM t UNION (SELECT c FROM t INTERSECT SELECT a FROM t)"),
    ],
)  # fmt: skip
def test_other_dialects(asked, dialect, query, expected):
    found = " ".join(asked.translated(query, dialect, COLUMNS).split())
    assert found.replace("( ", "(").replace(" )", ")") == expected


@pytest.mark.parametrize(
    ("dialect", "query", "words", "at"),
    [
        ("snowflake", "SELECT a, my_function(b) FROM t", 'function "my_function"', "my_function"),
        ("snowflake", "SELECT a, TRY_CAST(b AS int) FROM t", "NULL where it fails", "b AS"),
        ("snowflake", "SELECT GREATEST(a, b) FROM t", "GREATEST of dialect snowflake", "GREATEST"),
        ("spark", "SELECT a, TRY_CAST(b AS int) FROM t", "NULL where it fails", "b AS"),
        ("mysql", "SELECT 1, CAST(f AS char) FROM t", "type float", "f AS"),
        ("mysql", "SELECT 1, CAST(b AS decimal) FROM t", "type DECIMAL without", "b AS"),
        ("snowflake", "SELECT a + a AS b FROM t GROUP BY b", '"b" is a column of a table', "b"),
        ("tsql", "WITH t AS (SELECT a FROM t) SELECT a FROM t", "reads itself", "t) SELECT"),
        (
            "duckdb",
            "SELECT DISTINCT a FROM t QUALIFY row_number() OVER (ORDER BY a) = 1",
            "come after it",
            "row_number",
        ),
        ("bigquery", "SELECT * EXCEPT (a) FROM t", '"except" has no equivalent', "* EXCEPT"),
        ("mysql", "SELECT a, count(*) FROM t GROUP BY a WITH ROLLUP", "WITH ROLLUP", "a WITH"),
        ("snowflake", "SELECT unknown_column / 2 AS x FROM t", "an unknown type", "unknown"),
        ("tsql", "SELECT TOP 5 PERCENT a FROM t", "no equivalent", "5"),
        ("bigquery", "SELECT FORMAT('%d', a) FROM t", "FORMAT of dialect", "FORMAT"),
        (
            "snowflake",
            "SELECT * FROM t PIVOT (sum(a) FOR b IN ('x'))",
            '"pivots" has no equivalent',
            "t PIVOT",
        ),
        ("mysql", "DELETE FROM t", "made of a query", "t"),
        ("mysql", "SELECT a FRM t WHERE", "near", "t WHERE"),
    ],
)
def test_what_cannot_be_said_is_refused_with_its_place(asked, dialect, query, words, at):
    with pytest.raises(SyntaxUserError) as raised:
        asked.translated(query, dialect, COLUMNS)
    assert words in raised.value.message
    assert query[raised.value.position - 1 :].startswith(at)


def test_unknown_dialects(asked):
    with pytest.raises(UserError, match='unknown dialect "klingon"') as raised:
        asked.translated("SELECT 1", "klingon", {})
    assert all(name in raised.value.hint for name in DIALECTS)


def test_a_short_text_does_not_wait_for_a_long_one():
    """A long text may be cancelled while it is sent, and while it waits for another one."""
    cancelled: set[str] = set()

    class Cancelled(Exception):
        pass

    def check() -> None:
        if threading.current_thread().name in cancelled:
            raise Cancelled

    def parse() -> None:
        try:
            asked.read(LONG)
        except Cancelled:
            ended.append(threading.current_thread().name)

    asked, ended = TextReader(check), []
    asked.read(LONG)
    process = idle(asked._long)
    os.kill(process.pid, signal.SIGSTOP)
    threads = {name: threading.Thread(target=parse, name=name) for name in ("sends", "waits")}
    threads["sends"].start()
    wait_until(lambda: not asked._long._pool._idle, "the process is in use")
    threads["waits"].start()
    assert asked.read("SELECT 1").nodes[0]["kind"] == "Select"
    assert ended == []
    for name in ("waits", "sends"):
        cancelled.add(name)
        threads[name].join()
    assert ended == ["waits", "sends"]
    assert process.has_exited, "its answer is not wanted"
    assert asked.read(LONG).nodes[0]["kind"] == "Select"
    asked.close()
