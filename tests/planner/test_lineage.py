"""Origins of columns, from bound plans."""

from __future__ import annotations

import pytest

from headrace.planner import PlanRequest, plan

COMPUTED, AGGREGATED = "computed", "aggregated"


def origins(conn, query: str) -> dict[str, dict[str, str]]:
    """Return the lineage by column: table.column -> how."""
    found = plan(conn, PlanRequest(query)).lineage
    return {name: {f"{o.table}.{o.name or '*'}": o.how for o in mine} for name, mine in found}


def same(*columns: str) -> dict[str, str]:
    return dict.fromkeys(columns, "same")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT id AS a, 1 AS one FROM t", {"a": same("t.id"), "one": {}}),
        (
            "SELECT t.k + u.n AS x, upper(t.s) AS y FROM t JOIN u ON u.k = t.id WHERE t.d > '2020-1-1'",
            {"x": {"t.k": COMPUTED, "u.n": COMPUTED}, "y": {"t.s": COMPUTED}},
        ),
        (
            "SELECT k, count(*) AS c, sum(n) FILTER (WHERE ok) AS m, max(s) || 'x' AS z"
            " FROM t GROUP BY k HAVING min(f) > 0",
            {
                "k": same("t.k"),
                "c": {"t.*": AGGREGATED},
                "m": {"t.n": AGGREGATED, "t.ok": AGGREGATED},
                "z": {"t.s": AGGREGATED},
            },
        ),
        # One of several forms of n (1.0, 1.00) is shown, which depends on all columns together.
        (
            "SELECT n, c, array_agg(s ORDER BY d) AS l FROM t GROUP BY n, c",
            {
                "n": same("t.n"),
                "c": same("t.c"),
                "l": {"t.s": AGGREGATED, "t.d": AGGREGATED},
            },
        ),
        # Through a WITH query that is used twice, a subquery, and an ambiguous name.
        (
            "WITH w AS (SELECT id, k + 1 AS k FROM t)"
            " SELECT a.k, b.id AS k2 FROM w a JOIN (SELECT * FROM w) b ON a.id = b.k",
            {"k": {"t.k": COMPUTED}, "k2": same("t.id")},
        ),
        # Correlated: the value is of u; the correlation is no origin.
        (
            "SELECT id, (SELECT max(u.n) FROM u WHERE u.k = t.id) AS most FROM t",
            {"id": same("t.id"), "most": {"u.n": AGGREGATED}},
        ),
        ("SELECT id FROM u UNION ALL SELECT k + 1 FROM u", {"id": {"u.id": "same", "u.k": COMPUTED}}),
        ("SELECT id FROM u EXCEPT SELECT k FROM u", {"id": same("u.id")}),
        ("SELECT DISTINCT ON (k) k, s FROM t ORDER BY k, d", {"k": same("t.k"), "s": same("t.s")}),
        (
            "SELECT id, rank() OVER (PARTITION BY k ORDER BY d) AS r FROM t",
            {"id": same("t.id"), "r": {"t.k": AGGREGATED, "t.d": AGGREGATED}},
        ),
        (
            "SELECT CASE WHEN ok THEN s ELSE v END AS x FROM t",
            {"x": {"t.ok": COMPUTED, "t.s": COMPUTED, "t.v": COMPUTED}},
        ),
        # Each round of the column depends on another column: all three in the end.
        (
            "WITH RECURSIVE r (a, b, c) AS (SELECT id, k, 0::bigint FROM u"
            " UNION SELECT r.b, r.c + 1, r.a FROM r WHERE r.c < 5) SELECT a, c FROM r",
            {
                "a": {"u.id": COMPUTED, "u.k": COMPUTED},
                "c": {"u.id": COMPUTED, "u.k": COMPUTED},
            },
        ),
        (
            "SELECT k, s, sum(n) AS n FROM t GROUP BY ROLLUP (k, s)",
            {"k": same("t.k"), "s": same("t.s"), "n": {"t.n": AGGREGATED}},
        ),
        ("SELECT t.id, g FROM t, generate_series(1, t.k) g",
         {"id": same("t.id"), "g": {"t.k": COMPUTED}}),
    ],
)  # fmt: skip
def test_lineage(conn, query, expected):
    assert origins(conn, query) == expected


def test_through_the_views_of_users(conn):
    with conn.transaction(force_rollback=True):
        conn.execute("CREATE VIEW inner_v AS SELECT k AS x, s || v AS y FROM t")
        conn.execute("CREATE VIEW outer_v (p, q) AS SELECT y, count(*) FROM inner_v GROUP BY y")
        found = origins(conn, "SELECT q, p FROM outer_v")
    assert found == {
        "q": {"t.*": AGGREGATED},
        "p": {"t.s": COMPUTED, "t.v": COMPUTED},
    }


def test_the_stage_of_that_name(conn):
    planned = plan(conn, PlanRequest("SELECT id, count(*) AS c, 1 AS one FROM u GROUP BY id"))
    assert planned.explain["lineage"].split("\n") == [
        "id <- public.u.id",
        "c <- public.u.* (aggregated)",
        "one <- no table",
    ]
    [drawn] = [g for g in planned.graphs if g.stage == "lineage"]
    nodes = drawn.by_id()
    first, second, third = (nodes[name] for name in nodes["query"].inputs)
    assert [nodes[i].detail for i in first.inputs] == ["public.u.id"]
    assert [nodes[i].detail for i in second.inputs] == ["public.u.*"]
    assert (third.detail, third.inputs) == ("one", ())
    assert list(second.more.values()) == ["aggregated"]
