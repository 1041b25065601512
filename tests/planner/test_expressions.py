"""Every kind of scalar expression of Postgres is planned, and its SQL is proven.

``plan`` analyses the SQL of each remote expression once more and compares the trees. If these
queries are planned, the generated SQL means the same. ``tests/differential/test_expressions.py``
compares the values with Postgres'.
"""

from __future__ import annotations

import psycopg
import pytest

from headrace.collections.plan import from_json, to_json
from headrace.errors import UnsupportedError
from headrace.planner import PlanRequest, plan
from tests.differential.expressions import CASES, DDL, REFUSED


@pytest.fixture(scope="module")
def conn(databases):
    name = databases.take()
    dsn = psycopg.conninfo.make_conninfo(databases.server, dbname=name)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(DDL)
        yield conn
    databases.give_back(name)


def supported(conn, least: int, expression: str) -> bool:
    if conn.info.server_version < least * 10000:
        return False
    if "xml" in expression:
        try:
            conn.execute("SELECT xmlparse(content '<a/>')")
        except psycopg.errors.FeatureNotSupported:
            return False  # the servers of the wheel have no libxml
    return True


@pytest.mark.parametrize(("least", "expression"), CASES, ids=lambda v: str(v)[:60])
def test_planned(conn, least, expression):
    if not supported(conn, least, expression):
        pytest.skip("not in this server")
    planned = plan(conn, PlanRequest(f"SELECT t.id, {expression} AS x FROM t"))
    assert from_json(to_json(planned.physical)) == planned.physical
    # In a condition, in a subquery and under a grouping it is the same expression.
    plan(
        conn,
        PlanRequest(
            f"SELECT count(*) FROM (SELECT t.id, {expression} AS x FROM t) s"
            " WHERE x IS NOT NULL AND id > 0"
        ),
    )


@pytest.mark.parametrize(("expression", "word"), REFUSED, ids=lambda v: str(v)[:60])
def test_refused(conn, expression, word):
    with pytest.raises(UnsupportedError, match=word):
        plan(conn, PlanRequest(f"SELECT t.id, {expression} AS x FROM t"))
