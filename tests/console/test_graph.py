"""The dataflow is read out of the plan's text."""

from __future__ import annotations

from headrace.console.graph import NODES_MAX, graph

PLAN = """\
sink_1 Sink (a text, n numeric(10,2)) state: none; cost: O(changed result rows)
  join_1 Join on 0 = 0 (a text) state: all rows of both sides, about 3 rows of 9 kB; cost: O(c × m); edge: synchronous
    source_1 Source public.t by key id (a text) state: all rows; cost: O(changes); edge: buffered in the queue of subplan 4; kept once, shared with public.w, "A"."b; c"
    map_1 Map (a text) state: none; cost: O(changes); edge: synchronous
      source_1 Source (shared, see above)
on worker "w1"
is connection point "p": history 2 hours"""


def test_nodes_and_what_they_read():
    found = graph(PLAN)
    assert {n["id"]: n["inputs"] for n in found["nodes"]} == {
        "sink_1": ["join_1"],
        "join_1": ["source_1", "map_1"],
        "source_1": [],
        "map_1": ["source_1"],
    }
    assert found["notes"] == ['on worker "w1"', 'is connection point "p": history 2 hours']


def test_what_a_node_says_of_itself():
    sink, join, source, _ = graph(PLAN)["nodes"]
    assert (sink["kind"], sink["detail"], sink["columns"]) == (
        "Sink",
        "",
        "a text, n numeric(10,2)",
    )
    assert join["detail"] == "on 0 = 0"
    assert join["state"] == "all rows of both sides, about 3 rows of 9 kB"
    assert join["cost"] == "O(c × m)"
    assert join["shared_with"] is None
    assert source["detail"] == "public.t by key id"
    assert (source["subplan"], source["shared_with"]) == (4, 'public.w, "A"."b; c"')


def test_lines_of_a_node_that_has_several_are_its_own():
    text = "sink_1 Sink (a int) state: none; cost: O(1)\n  reduce_1 Reduce [f('x\ny (z')] by [0] (a int) state: s; cost: c"
    found = graph(text)
    # The second line begins like nothing that is known: it is told, and nothing is lost.
    assert [n["id"] for n in found["nodes"]] == ["sink_1", "reduce_1"]
    assert found["notes"] == ["y (z')] by [0] (a int) state: s; cost: c"]


def test_what_is_no_plan_is_no_graph():
    assert graph("") == {"nodes": [], "notes": []}
    assert graph("<script>alert(1)</script>") == {
        "nodes": [],
        "notes": ["<script>alert(1)</script>"],
    }


def test_a_plan_without_end_has_an_end():
    text = "\n".join(f"{' ' * n}map_{n} Map" for n in range(3 * NODES_MAX))
    found = graph(text)
    assert len(found["nodes"]) == NODES_MAX
    known = {n["id"] for n in found["nodes"]}
    assert all(set(n["inputs"]) <= known for n in found["nodes"])
