"""Queries as texts: syntax trees, other dialects, display, and origins of columns."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import msgspec
import psycopg
import pytest

from tests.integration.test_resync import wait

pytestmark = pytest.mark.shared_engine
TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int, "Name" text);
CREATE TABLE sold (id int PRIMARY KEY, item int, x numeric);
INSERT INTO items SELECT i, i % 5, 'n' || i FROM generate_series(1, 30) i;
INSERT INTO sold SELECT i, i % 40, i * 1.50 FROM generate_series(1, 100) i;
"""
LONG = """select i.g, -- the group
  sum(s.x) as total, count(*) as c from items i join sold s on s.item = i.id
  where i."Name" <> 'n7' group by i.g"""


def test_a_syntax_tree_with_what_postgres_has_bound(commander, source):
    query = "SELECT i.g, sum(x) AS total FROM items i JOIN sold s ON s.item = i.id GROUP BY i.g"
    [(text,)] = commander.execute(
        "SELECT * FROM headrace.explain_view(%s, 'ast', 'json')", (query,)
    ).fetchall()
    tree = msgspec.json.decode(text)
    (items, sold) = source.execute(
        "SELECT 'items'::regclass::oid, 'sold'::regclass::oid"
    ).fetchone()
    found = {
        (n["kind"], query[n["more"]["position"] - 1 :].split()[0]): n["more"]
        for n in tree["nodes"]
        if "oid" in n.get("more", {})
    }
    assert (found["Table", "items"]["oid"], found["Table", "sold"]["oid"]) == (items, sold)
    # x is not qualified: only one table has it.
    assert (found["Column", "x)"]["oid"], found["Column", "x)"]["attnum"]) == (sold, 3)
    assert (found["Column", "i.g,"]["oid"], found["Column", "i.g,"]["attnum"]) == (items, 2)
    assert tree["notes"] == ["Postgres reads it alike"]
    lines = commander.execute("SELECT * FROM headrace.explain_view(%s, 'ast')", (query,)).fetchall()
    assert lines[0] == ("Select",)
    assert max(len(line) for (line,) in lines) <= 120


def test_what_only_postgres_reads_is_planned_all_the_same(commander):
    query = "SELECT id FROM items WHERE '(0,0,1,1)'::box <<| '(0,2,1,3)'::box AND id < 9"
    with pytest.raises(psycopg.errors.SyntaxError) as raised:
        commander.execute("SELECT * FROM headrace.explain_view(%s, 'ast')", (query,))
    assert "Postgres reads the query" in raised.value.diag.message_detail
    assert "The query has it here:\nLINE 1: " in raised.value.diag.message_detail
    commander.execute("CALL headrace.create_view('alone', %s)", (query,))
    assert commander.execute("SELECT count(*) FROM alone").fetchone() == (8,)
    commander.execute("CALL headrace.drop_view('alone')")


def test_a_text_that_is_read_otherwise_says_so(commander):
    query = "SELECT id FROM items ORDER BY id FETCH FIRST ROW ONLY"
    lines = commander.execute("SELECT * FROM headrace.explain_view(%s, 'ast')", (query,)).fetchall()
    assert lines[-1][0].startswith("it is planned as Postgres reads it: ")


def tree(commander, text: str) -> list[str]:
    rows = commander.execute("SELECT * FROM headrace.explain_view(%s, 'ast')", (text,))
    return [line for (line,) in rows]


def test_a_view_has_its_annotated_tree_as_its_first_stage(commander, source):
    query = 'SELECT i."Name", s.x * 2 AS twice FROM items i JOIN sold s ON s.item = i.id'
    commander.execute("CALL headrace.create_view('staged', %s)", (query,))
    [(stored,)] = source.execute(
        "SELECT explain -> 'graphs' FROM headrace.views WHERE view_name = 'staged'"
    ).fetchall()
    [graph] = [one for one in stored if one["stage"] == "ast"]
    assert graph["notes"] == ["Postgres reads it alike"]
    more = {node["kind"]: node["more"] for node in graph["nodes"]}
    assert more["Mul"]["operator"] == "*(numeric,numeric)"
    assert more["Mul"]["type"] == "numeric"
    assert tree(commander, "staged") == tree(commander, query)
    # The names of its relations are those of now.
    commander.execute("ALTER TABLE sold RENAME TO sales")
    assert "public.sales.x" in " ".join(tree(commander, "staged"))
    commander.execute("ALTER TABLE sales RENAME TO sold")
    # A view that an earlier version has stored has no such stage.
    source.execute(
        "UPDATE headrace.views SET explain = explain - 'graphs' WHERE view_name = 'staged'"
    )
    assert tree(commander, "staged") == tree(commander, query)
    commander.execute("CALL headrace.drop_view('staged')")


def test_a_view_is_created_while_the_parser_dies(engine, commander, source):
    query = "SELECT id, x FROM sold WHERE x > 30"
    for number in range(3):
        for pid in parsers(engine.pid):
            os.kill(pid, signal.SIGKILL)
        commander.execute(f"CALL headrace.create_view('dying{number}', %s)", (query,))
        rows = source.execute(f"SELECT count(*) FROM dying{number}").fetchone()
        assert rows == source.execute("SELECT count(*) FROM sold WHERE x > 30").fetchone()
        commander.execute(f"CALL headrace.drop_view('dying{number}')")


def test_a_hostile_text_is_planned_from_postgres_tree(commander, source):
    """The parser refuses it: too deep for it, and not for Postgres."""
    query = "SELECT id FROM sold WHERE " + "(" * 500 + "id < 4" + ")" * 500
    commander.execute("CALL headrace.create_view('deep', %s)", (query,))
    assert source.execute("SELECT count(*) FROM deep").fetchone() == (3,)
    assert tree(commander, "deep")[-1].startswith("it is planned as Postgres reads it: ")
    commander.execute("CALL headrace.drop_view('deep')")


def parsers(engine: int) -> list[int]:
    """Return the parser processes of an engine, which is the leader of their session."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"headrace.reading.child" in (process / "cmdline").read_bytes():
                found += [int(process.name)] if os.getsid(int(process.name)) == engine else []
    return found


def test_deep_nesting_is_a_clean_error(commander):
    query = "SELECT " + "(" * 10_000 + "1" + ")" * 10_000 + " AS a"
    for stage in ("ast", "physical"):
        with pytest.raises(psycopg.Error) as raised:
            commander.execute("SELECT * FROM headrace.explain_view(%s, %s)", (query, stage))
        assert raised.value.sqlstate[:2] in ("42", "54", "0A")
    # With a dialect, Postgres does not see the text at all.
    with pytest.raises(psycopg.errors.SyntaxError, match="nested too deeply"):
        commander.execute("CALL headrace.check_view(%s, %s)", (query, '{"dialect": "mysql"}'))


def test_a_long_query_is_shown_in_lines(commander, source):
    for name, query in (("long", LONG), ("short", "select g from items")):
        commander.execute("CALL headrace.create_view(%s, %s)", (name, query))
    shown = dict(
        source.execute(
            "SELECT split_part(name, '.', 2), query FROM headrace.list_views()"
        ).fetchall()
    )
    assert shown["short"] == "select g from items"
    assert shown["long"].split("\n")[:3] == [
        "SELECT",
        "  i.g, /* the group */",
        "  SUM(s.x) AS total,",
    ]
    kept = source.execute("SELECT query FROM headrace.views WHERE view_name = 'long'").fetchone()
    assert kept == (LONG,)
    # To Postgres, the displayed text is the same query.
    plans = {
        source.execute(f"CREATE TEMP VIEW v{n} AS {query}")
        and source.execute(f"SELECT pg_get_viewdef('v{n}'::regclass)").fetchone()
        for n, query in enumerate((LONG, shown["long"]))
    }
    assert len(plans) == 1
    # A view that is populated again still has the same query.
    commander.execute("CALL headrace.resync_view('long')")
    again = source.execute(
        "SELECT query FROM headrace.list_views() WHERE name LIKE '%long'"
    ).fetchone()
    assert again == (shown["long"],)
    for name in ("long", "short"):
        commander.execute(f"CALL headrace.drop_view('{name}')")


def test_a_query_of_another_dialect(commander, source):
    """The translation is shown before use, in a notice and in the plan; the result is right."""
    query = "SELECT g, IFF(SUM(x) > 300, 'much', 'little') AS much FROM items JOIN sold ON item = items.id GROUP BY g"
    options = '{"dialect": "snowflake", "commit_group": "a"}'
    told: list[str] = []
    commander.add_notice_handler(lambda d: told.append(d.message_primary))
    commander.execute("CALL headrace.check_view(%s, %s)", (query, options))
    assert "CASE WHEN SUM(x) > 300" in " ".join(told.pop().split())
    plan = commander.execute(
        "SELECT * FROM headrace.explain_view(%s, 'logical', dialect => 'snowflake')", (query,)
    ).fetchall()
    assert "CASE WHEN" in str(plan)
    assert told.pop().startswith("translated from dialect snowflake:\nSELECT")
    commander.execute("CALL headrace.create_view('much', %s, %s)", (query, options))
    assert told[0].startswith("translated from dialect snowflake:\nSELECT")
    # Item i has sales i and i + 40 (and i + 80 up to 20); x is the sale's number times 1.5.
    sums = dict.fromkeys(range(5), 0)
    for item in range(1, 31):
        sums[item % 5] += sum(n for n in range(1, 101) if n % 40 == item)
    expected = {(g, "much" if total * 1.5 > 300 else "little") for g, total in sums.items()}
    assert set(source.execute("SELECT g, much FROM much").fetchall()) == expected
    written = commander.execute("SELECT * FROM headrace.explain_view('much', 'written')").fetchall()
    assert written == [("-- in dialect snowflake",), (query,)]
    assert source.execute(
        "SELECT options FROM headrace.views WHERE view_name = 'much'"
    ).fetchone() == ({"commit_group": "a"},)
    commander.execute("CALL headrace.resync_view('much')")
    assert (
        commander.execute("SELECT * FROM headrace.explain_view('much', 'written')").fetchall()
        == written
    )
    assert commander.execute("SELECT * FROM headrace.verify_view('much')").fetchall() == []
    # It may be altered in that dialect, or another; from then on, the new text is shown.
    other = "SELECT g, IFF(SUM(x) > 1200, 'much', 'little') AS much, COUNT(*) AS n FROM items JOIN sold ON item = items.id GROUP BY g"
    told.clear()
    commander.execute(
        "CALL headrace.alter_view('much', %s, %s)", (other, '{"dialect": "snowflake"}')
    )
    assert told[0].startswith("translated from dialect snowflake:\nSELECT")
    altered = {(g, "much" if total * 1.5 > 1200 else "little") for g, total in sums.items()}
    assert altered != expected
    assert set(source.execute("SELECT g, much FROM much").fetchall()) == altered
    written = commander.execute("SELECT * FROM headrace.explain_view('much', 'written')").fetchall()
    assert written == [("-- in dialect snowflake",), (other,)]
    # The same query again changes nothing, in any dialect.
    replaced = '{"dialect": "snowflake", "commit_group": "a"}'
    told.clear()
    commander.execute(
        "CALL headrace.create_view('much', %s, %s, replace => true)", (other, replaced)
    )
    assert "already has this query" in told[-1]
    commander.execute("CALL headrace.drop_view('much')")


def test_what_a_dialect_says_and_postgres_does_not(commander):
    call = "CALL headrace.create_view('never', %s, %s)"
    options = '{"dialect": "snowflake"}'
    with pytest.raises(psycopg.errors.SyntaxError, match="my_function") as raised:
        commander.execute(call, ("SELECT my_function(g) AS f FROM items", options))
    assert raised.value.diag.internal_position == "8"
    # Postgres' error refers to the translation, so it gives no position in the written query.
    with pytest.raises(psycopg.errors.UndefinedColumn) as raised:
        commander.execute(call, ("SELECT IFF(nope, 1, 2) AS f FROM items", options))
    assert raised.value.diag.internal_position is None
    assert "CASE WHEN nope" in raised.value.diag.message_detail
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="unknown dialect"):
        commander.execute(call, ("SELECT 1 AS a", '{"dialect": "klingon"}'))


def test_lineage_through_views(commander, source):
    """Through an ordinary view and a view of Headrace, with the current column names."""
    source.execute('CREATE VIEW named AS SELECT id, upper("Name") AS up, g FROM items')
    commander.execute(
        "CALL headrace.create_view('base', 'SELECT g, max(up) AS most, count(*) AS c FROM named GROUP BY g')"
    )
    commander.execute(
        "CALL headrace.create_view('upper', 'SELECT most, c + g AS cg, 1 AS one FROM base')"
    )
    expected = [
        ("most", "items", "Name", "aggregated"),
        ("cg", "items", None, "aggregated"),
        ("cg", "items", "g", "computed"),
        ("one", None, None, None),
    ]
    for conn in (commander, source):
        assert conn.execute("SELECT * FROM headrace.lineage('upper')").fetchall() == expected
    source.execute("ALTER TABLE items RENAME COLUMN g TO h")
    assert source.execute(
        "SELECT source_column FROM headrace.lineage('upper') WHERE column_name = 'cg' AND how = 'computed'"
    ).fetchone() == ("h",)
    source.execute("ALTER TABLE items RENAME COLUMN h TO g")
    text = source.execute("SELECT * FROM headrace.explain_view('upper', 'lineage')").fetchall()
    assert text[0] == ("most <- public.items.Name (aggregated)",)
    with pytest.raises(psycopg.errors.UndefinedTable):
        source.execute("SELECT * FROM headrace.lineage('none')")
    for name in ("upper", "base"):
        wait(commander, name)
        commander.execute(f"CALL headrace.drop_view('{name}')")
    source.execute("DROP VIEW named")
