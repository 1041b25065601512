"""Additions of explain_view to a stored plan: shared subplans and the worker's numbers."""

from __future__ import annotations

import pytest

from headrace.errors import UserError
from headrace.planner import graph
from headrace.planner.graph import Graph, GraphNode
from headrace.views.explain import Stages, measured, with_edges

PLAN = Graph(
    "physical",
    "sink_1",
    (
        GraphNode("sink_1", "Sink", "[g]", ("reduce_1",), cost="O(changed result rows)"),
        GraphNode("reduce_1", "Reduce", "[max(x)] by [g]", ("join_1",), state="groups"),
        GraphNode("join_1", "Join", "on a.g = b.g", ("source_1", "source_1"), state="rows"),
        GraphNode("source_1", "Source", "public.t [g]", cost="O(changes)"),
    ),
    named=True,
)


def lines(plan: Graph) -> list[str]:
    return graph.text(plan).split("\n")


def test_a_view_that_shares_nothing() -> None:
    assert with_edges(PLAN, {}) == PLAN
    assert lines(PLAN) == [
        "sink_1 Sink [g]  | O(changed result rows)",
        "  reduce_1 Reduce [max(x)] by [g]  | keeps groups",
        "    join_1 Join on a.g = b.g  | keeps rows",
        "      source_1 Source public.t [g]  | O(changes)",
        "      source_1 Source (shared, see above)",
    ]


def test_a_view_that_shares() -> None:
    """The node at which the plan is cut has a note; the lines of other nodes stay as they are."""
    told = lines(with_edges(PLAN, {"join_1": (-128, ['"public"."w"']), "source_1": (-7, [])}))
    assert told[2] == (
        '    join_1 Join on a.g = b.g  | subplan 128, kept once, shared with "public"."w"; keeps rows'
    )
    assert "subplan 7, kept once, shared with no other view now" in told[3]
    assert [told[0], told[1], told[4]] == [lines(PLAN)[n] for n in (0, 1, 4)]


def row(node: str, **numbers: object) -> dict[str, object]:
    about = {"collection": "x", "shared": False, "worker": "main", "busy_us": 0, "cpu_us": 0}
    return {"node": node, **about, "rows_in": 0, "rows_out": 0, "batches": 1, **numbers}


def test_what_was_measured() -> None:
    found = measured(
        PLAN,
        [
            row("source_1", busy_us=1_000, cpu_us=1_000, rows_in=7, rows_out=7),
            row("join_1", busy_us=3_000, cpu_us=2_000, rows_in=7, rows_out=9, state_rows=40,
                state_bytes=2_048, queued_bytes=20_480, worker="w1"),
            row("reduce_1", state_rows=1_000, state_bytes=20_000_000, state_exact=False),
        ],
    )  # fmt: skip
    assert found.stage == "analyze"
    assert lines(found)[:4] == [
        "sink_1 Sink [g]  | O(changed result rows)",
        "  reduce_1 Reduce [max(x)] by [g]"
        "  | 0 % of time; 0 → 0 rows; cpu 0.0 ms; keeps ~1000 rows, 19 MB",
        "    join_1 Join on a.g = b.g  | 75 % of time; 7 → 9 rows; cpu 2.0 ms;"
        " keeps 40 rows, 2048 B; queued 20 kB; on w1",
        "      source_1 Source public.t [g]  | 25 % of time; 7 → 7 rows; cpu 1.0 ms",
    ]
    # The form that the console draws: all numbers, by name.
    [join] = [n for n in graph.plain(found)["nodes"] if n["id"] == "join_1"]
    assert join["measured"] == {
        "worker": "w1", "rows_in": 7, "rows_out": 9, "batches": 1, "busy_us": 3_000,
        "cpu_us": 2_000, "share_pct": 75.0, "state_rows": 40, "state_bytes": 2_048,
        "queued_bytes": 20_480,
    }  # fmt: skip


def test_a_view_that_does_not_run() -> None:
    assert lines(measured(PLAN, []))[-1] == "it does not run: nothing is counted"


def test_what_an_earlier_version_has_kept() -> None:
    stages = Stages.stored({"physical": "sink_1 Sink\n  source_1 Source\n", "key": "key: none"})
    assert stages.lines("physical", "text") == ["sink_1 Sink", "  source_1 Source"]
    assert '"lines": ["key: none"]' in " ".join(stages.lines("key", "json")[0].split()).replace(
        "[ ", "["
    ).replace(" ]", "]")
    with pytest.raises(UserError, match='"key" cannot be drawn'):
        stages.lines("key", "dot")
    with pytest.raises(UserError, match="no plan of stage"):
        stages.lines("optimized", "text")
    with pytest.raises(UserError, match='no format "xml"'):
        stages.lines("key", "xml")
