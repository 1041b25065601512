"""The dataflow graph is made from the JSON of ``explain_view``."""

from __future__ import annotations

import json

from headrace.console.graph import NODES_MAX, graph

PLAN = {
    "stage": "physical",
    "root": "sink_1",
    "version": 1,
    "nodes": [
        {"id": "sink_1", "kind": "Sink", "inputs": ["join_1"], "cost": "O(1)"},
        {
            "id": "join_1",
            "kind": "Join",
            "detail": "on a = b",
            "inputs": ["source_1", "source_1"],
            "columns": [{"name": "a", "type": "text"}, {"name": "n"}],
            "state": "rows of both sides",
            "state_rows": 3,
            "state_bytes": 99,
            "something": {"new": True},
        },
        {
            "id": "source_1",
            "kind": "Source",
            "edge": {"subplan": 4, "shared_with": ["public.w", '"A"."b; c"']},
        },
    ],
    "notes": ['on worker "w1"'],
}


def test_nodes_and_what_they_say():
    found = graph(json.dumps(PLAN))
    sink, join, source = found["nodes"]
    assert found["notes"] == ['on worker "w1"']
    assert (sink["kind"], sink["inputs"], sink["state"]) == ("Sink", ["join_1"], "")
    assert join["inputs"] == ["source_1", "source_1"]
    assert join["columns"] == "a text, n"
    assert (join["state_rows"], join["state_bytes"]) == (3, 99)
    assert join["shared_with"] is None
    assert (source["subplan"], source["shared_with"]) == (4, 'public.w, "A"."b; c"')


def test_what_is_no_plan_is_no_graph():
    for text in ("", "sink_1 Sink", "{}", '{"nodes": [7]}', "[" * 100_000, '"<script>"'):
        assert graph(text) == {"nodes": [], "notes": []}


def test_a_plan_without_end_has_an_end():
    nodes = [
        {"id": f"map_{n}", "kind": "Map", "inputs": [f"map_{n + 1}"]} for n in range(3 * NODES_MAX)
    ]
    found = graph(json.dumps({"nodes": nodes}))
    assert len(found["nodes"]) == NODES_MAX
    known = {n["id"] for n in found["nodes"]}
    assert all(set(n["inputs"]) <= known for n in found["nodes"])
