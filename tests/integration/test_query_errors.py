"""Errors about the query of a call: on the port with a position, on a direct connection in words."""

from __future__ import annotations

import psycopg
import pytest

from tests.integration.conftest import ITEMS
from tests.security.roles import role

pytestmark = pytest.mark.shared_engine

TABLES = ITEMS + "CREATE TABLE keyless (a int);"
CREATE = "CALL headrace.create_view('v', $q${}$q$)"
PASS = "Pass one SELECT, VALUES, TABLE or WITH query."

CASES = {
    # Query: SQLSTATE, message, its place in the query, words of the hint.
    "": ("42601", "the query is empty", None, PASS),
    " ;; -- nothing": ("42601", "the query is empty", None, PASS),
    "SELECT 1 AS a; SELECT 2": ("42601", "the text has more than one statement", "SELECT 2", PASS),
    "DELETE FROM items": ("42601", "a view cannot be made of DELETE", "DELETE", PASS),
    "/* first */ Explain SELECT 1": ("42601", "a view cannot be made of EXPLAIN", "Explain", PASS),
    "SELECT id INTO t FROM items": ("0A000", "SELECT INTO is not supported", "INTO", "Leave out"),
    "SELECT id, g AS id FROM items": (
        "42701",
        'column "id" specified more than once',
        None,
        "Give each column a name of its own",
    ),
    "SELECT i.id FROM items i, keyless AS k": (
        "55000",
        'table "keyless" has neither a primary key nor REPLICA IDENTITY FULL',
        "keyless",
        "Add a primary key",
    ),
    "SELECT idd\n  FROM items": ("42703", 'column "idd" does not exist', "idd", "Perhaps"),
    "SELECT id\n,\trandom() FROM items": (
        "0A000",
        'volatile function "random" is not supported',
        "random",
        "",
    ),
}
ACCEPTED = (
    "SELECT id AS into FROM items",
    "SELECT i.into FROM (SELECT id AS into FROM items) i;",
    "(SELECT id FROM items) ; -- ; SELECT 2",
    "SELECT id, ';' AS semicolon FROM items",
)


@pytest.mark.parametrize("query", CASES, ids=[c[1] for c in CASES.values()])
def test_it_says_where_and_what_to_do(query, source, commander):
    code, message, place, hint = CASES[query]
    call = CREATE.format(query)
    at = None if place is None else query.index(place) + 1
    for conn in (commander, source):
        with pytest.raises(psycopg.Error) as caught:
            conn.execute(call)
        diag = caught.value.diag
        assert (diag.sqlstate, diag.message_primary) == (code, message)
        assert hint in (diag.message_hint or "")
        if conn is commander:
            assert diag.context is None
            moved = None if at is None else str(call.index(query) + at)
            assert diag.statement_position == moved
            continue
        assert diag.context.count("\n") == 0, diag.context
        if at is not None:
            told, line, mark, *_ = diag.message_detail.split("\n")
            assert told == "The query has it here:"
            shown = line.partition(": ")[2][len(mark) - 1 - line.index(": ") - 2 :]
            assert shown.startswith(place), diag.message_detail


@pytest.mark.parametrize("query", ACCEPTED)
def test_what_only_looks_like_it_is_accepted(query, source, commander):
    commander.execute(CREATE.format(query))
    assert source.execute("SELECT count(*) FROM v").fetchone() == (100,)


def test_an_excerpt_of_a_long_line(source, commander):
    sums = " + ".join(["id"] * 60)
    query = f"SELECT {sums} + idd + {sums} AS s FROM items"
    with pytest.raises(psycopg.errors.UndefinedColumn) as caught:
        source.execute(CREATE.format(query))
    _, line, mark = caught.value.diag.message_detail.split("\n")
    assert (line[:9], line[-1], len(line) < 85) == ("LINE 1: …", "…", True)
    assert line[len(mark) - 1 :].startswith("idd + ")


def test_a_table_that_the_role_may_not_read(source, commander):
    with role(source, "poor") as name:
        source.execute(f"GRANT CREATE ON SCHEMA public TO {name}")
        commander.execute(f"SET ROLE {name}")
        call = CREATE.format("SELECT k.a FROM (SELECT 1 AS a) k JOIN public.items ON true")
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
            commander.execute(call)
        assert caught.value.diag.statement_position == str(call.index("items") + 1)
        commander.execute("RESET ROLE")


def test_a_misspelt_option_and_procedure(source, commander):
    for conn in (source, commander):
        with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
            conn.execute("CALL headrace.create_view('v', 'SELECT 1 AS a', '{\"latncy_ms\": 5}')")
        assert caught.value.diag.message_hint.startswith('Perhaps you mean "latency_ms". Options')
    with pytest.raises(psycopg.errors.UndefinedFunction) as caught:
        commander.execute("CALL headrace.create_veiw('v', 'SELECT 1 AS a')")
    assert caught.value.diag.message_hint == "Perhaps you mean headrace.create_view."
    # Other names are the database's, where a user may have made such a procedure.
    source.execute("CREATE PROCEDURE headrace.mine() LANGUAGE sql AS 'SELECT 1'")
    commander.execute("CALL headrace.mine()")
    source.execute("DROP PROCEDURE headrace.mine()")


def test_a_quoted_name_is_not_quoted_again(source, commander):
    said = []
    commander.add_notice_handler(lambda d: said.append(d.message_primary))
    commander.execute("CALL headrace.create_view('\"My View\"', 'SELECT 1 AS a')")
    assert 'preparing "My View"' in said
    assert not any('""' in text for text in said)
