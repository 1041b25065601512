"""Every function, operator and cast of the server's catalogs: planned, or refused with a reason.

A table has a column of every type; each callable is applied to columns, many in one query, and
one by one where a query is refused.
"""

from __future__ import annotations

import re
from collections import Counter

import psycopg
import pytest

from headrace.errors import UnsupportedError
from headrace.planner import PlanRequest, plan
from headrace.planner.analyse.catalog import Catalog
from headrace.planner.scalars import functions

PER_QUERY = 150

TYPES = """
SELECT t.oid, format_type(t.oid, -1) FROM pg_type t
 WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.typtype IN ('b', 'r', 'm')
   AND t.typcategory NOT IN ('Z') AND t.typname !~ '^(_?pg_|_?reg|gtsvector|aclitem|refcursor)'
   AND t.typname NOT IN ('int2vector', 'oidvector', '_int2vector', '_oidvector', '_aclitem',
                         '_refcursor', '_gtsvector', '_cstring', 'cid', '_cid', 'tid', '_tid')"""
FUNCTIONS = """
SELECT format('%%I.%%I(%%s)', 'pg_catalog', p.proname, args), p.provolatile::text, p.proname
  FROM pg_proc p, LATERAL (
       SELECT string_agg('c' || a, ', ' ORDER BY o) AS args, bool_and(a = ANY (%(types)s)) AS known
         FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS u(a, o)) x
 WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND NOT p.proretset
   AND p.provariadic = 0 AND p.provolatile = 'i'
   AND p.pronargs > 0 AND known AND p.prorettype = ANY (%(types)s)
   AND p.proname !~ '(recv|send|in|out|typmodin|typmodout|sel|support)$' ORDER BY p.oid"""
OPERATORS = """
SELECT CASE WHEN o.oprleft = 0 THEN format('(OPERATOR(pg_catalog.%%s) c%%s)', o.oprname, o.oprright)
       ELSE format('(c%%s OPERATOR(pg_catalog.%%s) c%%s)', o.oprleft, o.oprname, o.oprright) END,
       p.provolatile::text, o.oprname
  FROM pg_operator o JOIN pg_proc p ON p.oid = o.oprcode
 WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprresult = ANY (%(types)s)
   AND o.oprright = ANY (%(types)s) AND (o.oprleft = 0 OR o.oprleft = ANY (%(types)s))
 ORDER BY o.oid"""
CASTS = """
SELECT format('(c%%s::%%s)', c.castsource, format_type(c.casttarget, -1)),
       coalesce(p.provolatile::text, 'i'), 'cast'
  FROM pg_cast c LEFT JOIN pg_proc p ON p.oid = c.castfunc
 WHERE c.castsource = ANY (%(types)s) AND c.casttarget = ANY (%(types)s) ORDER BY c.oid"""

GENERIC = re.compile(r'function "(\w+)" is not supported because its result depends on time')
CLOCK = {
    "age", "mxid_age", "timezone", "timetz", "current_setting", "now", "statement_timestamp",
    "transaction_timestamp", "txid_current", "txid_current_if_assigned",
    "txid_current_snapshot", "version", "json_to_record", "jsonb_to_record", "ts_typanalyze",
}  # fmt: skip
"""Stable functions that read the clock, a setting or the transaction."""


@pytest.fixture(scope="module")
def swept(databases):
    name = databases.take()
    dsn = psycopg.conninfo.make_conninfo(databases.server, dbname=name)
    with psycopg.connect(dsn, autocommit=True) as conn:
        types = conn.execute(TYPES).fetchall()
        columns = ", ".join(f"c{oid} {kind}" for oid, kind in types)
        conn.execute(f"CREATE TABLE sweep (id int PRIMARY KEY, {columns})")
        yield conn, [oid for oid, _ in types]
    databases.give_back(name)


def sweep(conn, calls) -> dict[str, str]:
    """Return the messages of refused calls; any other error fails."""
    refused = {}
    for start in range(0, len(calls), PER_QUERY):
        chunk = calls[start : start + PER_QUERY]
        try:
            attempt(conn, chunk)
        except UnsupportedError as error:
            if len(chunk) == 1:
                refused[chunk[0]] = error.message
                continue
            half = len(chunk) // 2
            refused |= sweep(conn, chunk[:half]) | sweep(conn, chunk[half:])
    return refused


def attempt(conn, calls) -> None:
    listed = ", ".join(f"{call} AS x{i}" for i, call in enumerate(calls))
    plan(conn, PlanRequest(f"SELECT id, {listed} FROM sweep"))


@pytest.mark.slow
@pytest.mark.parametrize("catalog", [FUNCTIONS, OPERATORS, CASTS], ids=["proc", "operator", "cast"])
def test_everything_is_planned_or_refused_with_a_reason(swept, catalog):
    conn, types = swept
    rows = conn.execute(catalog, {"types": types}).fetchall()
    assert len(rows) > 100
    volatility = {call: (v, name) for call, v, name in rows}
    refused = sweep(conn, list(volatility))
    for call, message in refused.items():
        kind, _ = volatility[call]
        if kind == "i" and "because different queries have one text" not in message:
            pytest.fail(f"{call}: {message}")
        if kind == "v":
            assert "volatile" in message, call
        elif (found := GENERIC.search(message)) is not None:
            assert found[1] in CLOCK, (call, message)
    accepted = Counter(v for call, (v, _) in volatility.items() if call not in refused)
    assert accepted["v"] == 0
    assert accepted["i"] > 100


def test_stable_functions_are_allowed_or_refused_with_a_reason(swept):
    conn, _ = swept
    catalog = Catalog(conn)
    rows = conn.execute(
        "SELECT oid FROM pg_proc WHERE provolatile = 's' AND prokind = 'f' AND NOT proretset"
        " AND pronamespace = 'pg_catalog'::regnamespace AND proname !~ '(recv|send|in|out|sel)$'"
        " AND proname !~ '^pg_|typanalyze|validator|transfn|finalfn'"
    ).fetchall()
    reasons = [functions.refusal(catalog.functions[oid]) for (oid,) in rows]
    assert reasons.count(None) > 50
    found = {m[1] for r in reasons if r is not None and (m := GENERIC.search(r))}
    assert found <= CLOCK
