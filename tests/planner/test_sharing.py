"""Equal subplans are built once for all kinds of nodes that read them."""

from __future__ import annotations

import pytest

from headrace.collections import plan as p
from headrace.planner import PlanRequest, plan

QUERIES = {
    # A query, and the number of nodes of each kind in its plan.
    "SELECT a.id, (SELECT max(b.id) FROM t b WHERE b.k = a.k) AS m, 1 + (SELECT max(b.id) FROM t b"
    " WHERE b.k = a.k) AS n, CASE WHEN a.k > 1 THEN (SELECT max(b.id) FROM t b WHERE b.k = a.k)"
    " END AS o FROM t a": {"Reduce": 1, "Join": 1},
    "WITH x AS (SELECT k, count(*) AS c FROM t GROUP BY k) SELECT a.k FROM x a JOIN x b ON"
    " a.k = b.k AND a.c = b.c": {"Reduce": 1, "Join": 1},
    "SELECT k, sum(id) AS s FROM t GROUP BY k UNION ALL SELECT k AS j, sum(id) FROM t GROUP BY 1": {
        "Reduce": 1,
        "Union": 1,
    },
    "SELECT k, sum(id) AS s FROM t GROUP BY k UNION ALL SELECT k, sum(DISTINCT id) FROM t"
    " GROUP BY 1": {"Reduce": 2},
    "(SELECT k FROM t WHERE k > 3) EXCEPT ALL (SELECT k FROM t WHERE k > 3)": {
        "SetOp": 1,
        "Filter": 1,
    },
    "WITH RECURSIVE r(n) AS (SELECT max(k) FROM t UNION SELECT a.m FROM r JOIN (SELECT max(k) AS m"
    " FROM t) a ON a.m > n JOIN (SELECT max(k) AS m FROM t) b ON b.m = a.m) SELECT n FROM r": {
        "Reduce": 1
    },
}


@pytest.mark.parametrize("query", QUERIES)
def test_nodes(conn, query):
    physical = plan(conn, PlanRequest(query)).physical
    found = [p.kind(type(node)) for node in physical.nodes]
    wanted = QUERIES[query]
    assert {kind: found.count(kind) for kind in wanted} == wanted
    known: set[str] = set()
    for node in physical.nodes:
        assert set(p.inputs(node)) <= known, "inputs come first"
        known.add(node.id)
