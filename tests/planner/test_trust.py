"""Functions that are VOLATILE only because their author did not declare otherwise."""

from __future__ import annotations

import psycopg
import pytest

from headrace.errors import UnsupportedError, UserError
from headrace.planner import PlanRequest, plan

FUNCTIONS = """
CREATE SCHEMA s;
CREATE TABLE s.one (id int PRIMARY KEY, g text, at timestamptz);
CREATE FUNCTION s.plain(x int) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN x + random(); END';
CREATE FUNCTION s.plain(x text) RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN x; END';
CREATE FUNCTION s.only(x int) RETURNS int STABLE LANGUAGE plpgsql AS
  'BEGIN EXECUTE ''SELECT 1''; RETURN x + 1; END';
CREATE FUNCTION s.inner_(x int) RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT x * 2; END;
CREATE FUNCTION s.returned(x int) RETURNS int LANGUAGE sql RETURN s.inner_(x) + 1;
CREATE FUNCTION s.shown(x timestamptz) RETURNS text LANGUAGE sql
  BEGIN ATOMIC SELECT concat(to_char(x, 'YYYY'), s.inner_(2)); END;
CREATE FUNCTION s.deep(x int) RETURNS int LANGUAGE sql
  BEGIN ATOMIC SELECT CASE WHEN x > 0 THEN s.inner_(x) + (SELECT max(y) FROM (VALUES (1), (x)) v (y)) END; END;
CREATE FUNCTION s.chance(x int) RETURNS float LANGUAGE sql BEGIN ATOMIC SELECT x * random(); END;
CREATE FUNCTION s.calls(x int) RETURNS float LANGUAGE sql BEGIN ATOMIC SELECT s.chance(x); END;
CREATE FUNCTION s.clock(x int) RETURNS bool LANGUAGE sql BEGIN ATOMIC SELECT now() > 'epoch'; END;
CREATE FUNCTION s.read_as(x text) RETURNS date LANGUAGE sql BEGIN ATOMIC SELECT x::date; END;
CREATE FUNCTION s.who(x int) RETURNS text LANGUAGE sql BEGIN ATOMIC SELECT current_user::text; END;
CREATE FUNCTION s.counts(x int) RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT count(*) FROM s.one; END;
CREATE FUNCTION s.reads(x int) RETURNS bigint LANGUAGE plpgsql AS
  'BEGIN RETURN (SELECT count(*) FROM s.one); END';
CREATE FUNCTION s.by_text(x int) RETURNS float LANGUAGE sql AS 'SELECT x * random()';
"""


@pytest.fixture
def functions(database):
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(FUNCTIONS)
        yield conn


@pytest.mark.parametrize(
    "call",
    ["s.inner_(id)", "s.shown(at)", "s.deep(id)", "s.returned(id)", "s.counts(id)", "s.reads(id)"],
)
def test_a_stored_body_says_what_a_function_depends_on(functions, call):
    assert plan(functions, PlanRequest(f"SELECT id, {call} AS x FROM s.one"))


@pytest.mark.parametrize(
    "call",
    [
        *("s.chance(id)", "s.calls(id)", "s.clock(id)", "s.read_as(g)", "s.who(id)"),
        *("s.by_text(id)", "s.plain(id)", "s.only(id)"),
    ],
)
def test_other_functions_are_refused_and_the_option_is_named(functions, call):
    """The fix in the message works."""
    query = f"SELECT id, {call} AS x FROM s.one"
    with pytest.raises(UnsupportedError) as raised:
        plan(functions, PlanRequest(query))
    assert "trust_stable" in raised.value.hint
    name = call.split("(")[0].replace("plain", "plain(integer)")
    assert plan(functions, PlanRequest(query, trust_stable=(name,)))


@pytest.mark.parametrize("name", ["s.none", "s.plain", "s.plain(bytea)"])
def test_a_name_that_is_none_is_an_error(functions, name):
    with pytest.raises(UserError, match="does not exist, or is not unique") as raised:
        plan(functions, PlanRequest("SELECT id FROM s.one", trust_stable=(name,)))
    assert raised.value.code == "42883"


def test_a_name_without_its_schema_is_an_error(functions):
    with pytest.raises(UserError, match="with its schema") as raised:
        plan(functions, PlanRequest("SELECT id FROM s.one", trust_stable=("only",)))
    assert raised.value.code == "22023"


@pytest.mark.parametrize(
    ("function", "call"),
    [("random()", "random()"), ("now", "now()"), ("nextval", "nextval('s.q')")],
)
def test_functions_of_postgres_are_not_to_be_trusted(functions, function, call):
    functions.execute("CREATE SEQUENCE s.q")
    with pytest.raises(UnsupportedError):
        plan(
            functions,
            PlanRequest(f"SELECT {call} AS x FROM s.one", trust_stable=(f"pg_catalog.{function}",)),
        )
