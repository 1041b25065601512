"""Function bodies that are stored as text: dependencies are read from them, or they are refused."""

from __future__ import annotations

import psycopg
import pytest

from headrace.errors import UnsupportedError
from headrace.planner import PlanRequest, plan
from tests.bodies import ACCEPTED, REFUSED, SCHEMA, define


@pytest.fixture(scope="module")
def conn(databases):
    name = databases.take()
    dsn = psycopg.conninfo.make_conninfo(databases.server, dbname=name)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(SCHEMA)
        yield conn
    databases.give_back(name)


@pytest.fixture
def defined(conn):
    """Return a function that creates a SQL function and returns its query."""

    def create(body: tuple[str, str, str, str]) -> str:
        statement, query = define("f", body)
        conn.execute("DROP FUNCTION IF EXISTS f")
        conn.execute(statement)
        return query

    return create


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_text_says_what_a_function_depends_on(conn, defined, name):
    assert plan(conn, PlanRequest(defined(ACCEPTED[name])))


@pytest.mark.parametrize("name", REFUSED)
def test_a_body_in_doubt_is_refused_and_the_option_is_named(conn, defined, name):
    query = defined(REFUSED[name])
    with pytest.raises(UnsupportedError) as raised:
        plan(conn, PlanRequest(query))
    assert raised.value.code == "0A000"
    assert "trust_stable" in raised.value.hint
    assert raised.value.detail.startswith("Of function public.f: ")
