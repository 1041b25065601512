"""Names in function bodies are looked up as for the owner of the view, not as for headrace_eval.

Postgres skips a schema of a search path that the role may not use, without an error.
"""

from __future__ import annotations

import re

import psycopg
import pytest

from tests.compared import differs
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE SCHEMA first;
CREATE SCHEMA apart;
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t SELECT i, i FROM generate_series(1, 4) i;
CREATE FUNCTION first.k(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION public.k(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 2';
CREATE FUNCTION sets(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql SET search_path = first, public
    AS 'BEGIN RETURN k(x); END';
CREATE FUNCTION takes(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN k(x); END';
CREATE FUNCTION adds(int, int) RETURNS int IMMUTABLE LANGUAGE plpgsql
    AS 'BEGIN RETURN $1 + $2; END';
CREATE OPERATOR #+# (LEFTARG = int, RIGHTARG = int, FUNCTION = adds);
"""
PATHS = {"sets": "public", "takes": "first, public"}
"""Search path of the caller by function."""


def granted(error: psycopg.Error) -> str:
    """Return the statement that the hint of an error tells to run."""
    found = re.search(r"GRANT USAGE ON SCHEMA \w+ TO \w+;", error.diag.message_hint or "")
    assert found is not None, error
    return found[0]


@pytest.mark.parametrize("function", PATHS)
def test_a_schema_in_the_path_is_not_skipped(commander, source, function):
    commander.execute(f"SET search_path = {PATHS[function]}")
    source.execute(f"SET search_path = {PATHS[function]}")
    query = f"SELECT id, {function}(v) AS y FROM public.t"
    create = f"CALL headrace.create_view('public.v', '{query}')"
    with pytest.raises(psycopg.errors.InsufficientPrivilege) as refused:
        commander.execute(create)
    source.execute(granted(refused.value))
    commander.execute(create)
    source.execute("INSERT INTO public.t VALUES (9, 9)")
    commander.execute("CALL headrace.wait_for('public.v')")
    assert not differs(source, "public.v", query)


def test_a_schema_without_such_names_needs_no_right(commander, source):
    commander.execute("SET search_path = apart, public")
    commander.execute("CALL headrace.create_view('public.v', 'SELECT id, takes(v) AS y FROM t')")
    assert not differs(source, "public.v", "SELECT id, takes(v) AS y FROM t")


def test_the_remedy_of_a_moved_operator_helps(commander, source):
    query = "SELECT id, v #+# id AS y FROM t"
    commander.execute(f"CALL headrace.create_view('v', '{query}')")
    source.execute("ALTER OPERATOR #+# (int, int) SET SCHEMA apart")
    stopped = "SELECT status = 'error' FROM headrace.views WHERE view_name = 'v'"
    wait_until(lambda: source.execute(stopped).fetchone()[0], "it stops")
    with pytest.raises(psycopg.errors.InsufficientPrivilege) as refused:
        commander.execute("CALL headrace.resync_view('v')")
    source.execute(granted(refused.value))
    commander.execute("CALL headrace.resync_view('v')")
    source.execute("UPDATE t SET v = v + 1 WHERE id < 3")
    commander.execute("CALL headrace.wait_for('v')")
    assert not differs(source, "v", query.replace("#+#", "OPERATOR(apart.#+#)"))
