"""Plans of whole queries at every stage; ``make golden`` rewrites the files."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from headrace.planner import PlanRequest, graph, plan
from tests.planner import specs

FILES = sorted((Path(__file__).parent / "golden").glob("*.spec"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_golden(path, conn, rewrite):
    def expected(case):
        planned = plan(conn, PlanRequest(case.parts["query"]))
        whole = {g.stage: _text(g) for g in planned.graphs}
        return {
            stage: whole.get(stage, text)
            for stage, text in planned.explain.items()
            if stage not in ("sources", "key", "lineage") or path.stem == stage
        }

    specs.check(path, rewrite, expected)


def _text(stage):
    """Return the whole text, with types where nodes are collections."""
    if not stage.named:
        nodes = [structs.replace(n, columns=()) for n in stage.nodes]
        stage = structs.replace(stage, nodes=tuple(nodes))
    return graph.text(stage, width=None)


def test_seed_query_has_the_plans_of_the_seed(conn):
    # The plans of E-6.
    query = "SELECT count(*) FROM example_table e JOIN numbers_table n ON e.b = n.a WHERE e.b > 30"
    explain = plan(conn, PlanRequest(query)).explain
    heads = [line.split()[0] for line in explain["logical"].splitlines()]
    assert heads == ["Project", "Aggregate", "Filter", "InnerJoin", "Scan", "Scan"]
    lines = [line.strip() for line in explain["optimised"].splitlines()]
    assert lines == [
        "Aggregate [count(*)]",
        "InnerJoin e.b = n.a",
        "Scan public.example_table AS e [b] filter (e.b IS NOT NULL) AND (e.b > 30)",
        "Scan public.numbers_table AS n [a] filter (n.a IS NOT NULL) AND (n.a > 30)",
    ]
