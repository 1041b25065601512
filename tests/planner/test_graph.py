"""Plans as text: the width of a line, and the input of drawing programs."""

from __future__ import annotations

import re

import msgspec
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UserError
from headrace.planner import PlanRequest, graph, plan
from headrace.planner.graph import Graph, GraphNode

QUERY = """
SELECT t.k, count(*) AS c, sum(u.n) AS "n;]", max(t.s) FILTER (WHERE t.s <> '"a\\<b>#1') AS m
  FROM t JOIN u ON u.k = t.id WHERE t.d > '2020-01-01' AND t.s LIKE '%|%'
 GROUP BY t.k HAVING count(*) > 1"""
STAGES = ("logical", "optimised", "physical")
DOT_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


@pytest.fixture(scope="module")
def graphs(planner_dsn):
    with psycopg.connect(planner_dsn) as conn:
        return {g.stage: g for g in plan(conn, PlanRequest(QUERY)).graphs}


@pytest.mark.parametrize("stage", STAGES)
def test_a_line_for_each_node(graphs, stage):
    lines = graph.text(graphs[stage]).split("\n")
    assert max(map(len, lines)) <= graph.WIDTH
    assert len(lines) == len(graphs[stage].nodes)


def test_names_stand_in_place_of_positions(graphs):
    words = {node.kind: node.detail for node in graphs["physical"].nodes}
    assert words["Join"] == "on u.k = t.id"
    assert words["Reduce"].startswith("[count(*), sum(u.n), max(t.s) FILTER (t.s <> ")
    assert words["Reduce"].endswith("by [t.k]")
    assert words["Sink"] == "[k, c, n;], m]"
    sources = [node for node in graphs["physical"].nodes if node.kind == "Source"]
    assert {s.detail.split(" where ")[0] for s in sources} == {
        "public.t [id, k, s, d] key id",
        "public.u [k, n] key id",
    }
    [sink] = [node for node in graphs["physical"].nodes if node.kind == "Sink"]
    assert [(c.name, c.type) for c in sink.columns] == [
        ("k", "integer"), ("c", "bigint"), ("n;]", "numeric"), ("m", "text"),
    ]  # fmt: skip


@pytest.mark.parametrize("stage", STAGES)
def test_json_has_all_of_it(graphs, stage):
    data = msgspec.json.decode(graph.json(graphs[stage]))
    assert graph.of_plain(data) == graphs[stage]
    assert data["version"] == 1
    names = {node["id"] for node in data["nodes"]}
    assert {data["root"], *(i for n in data["nodes"] for i in n.get("inputs", ()))} <= names


@pytest.mark.parametrize("stage", STAGES)
def test_dot(graphs, stage):
    nodes, edges = read_dot(graph.dot(graphs[stage]))
    drawn(graphs[stage], nodes, edges)


@pytest.mark.parametrize("stage", STAGES)
def test_mermaid(graphs, stage):
    nodes, edges = read_mermaid(graph.mermaid(graphs[stage]))
    drawn(graphs[stage], nodes, edges)


@given(st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\r\n\0")))
def test_nothing_that_is_written_breaks_a_drawing(detail):
    plan = Graph("physical", "a", (GraphNode("a", "Filter", detail),))
    for read, write in ((read_dot, graph.dot), (read_mermaid, graph.mermaid)):
        nodes, edges = read(write(plan))
        assert (len(nodes), edges) == (1, set())
        said = nodes["n0"].partition("Filter")[2].strip()
        assert said == shown(detail).strip()


def shown(detail: str) -> str:
    detail = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", f"{detail}")
    return detail if len(detail) <= 60 else detail[:59].rstrip() + "…"


def drawn(plan: Graph, nodes: dict[str, str], edges: set[tuple[str, str]]) -> None:
    """Check that the drawing has each node with its text, and each edge."""
    places = {node.id: f"n{number}" for number, node in enumerate(plan.nodes)}
    assert nodes.keys() == set(places.values())
    for node in plan.nodes:
        assert node.kind in nodes[places[node.id]]
        assert node.detail[:50] in nodes[places[node.id]]
    assert edges == {(places[i], places[n.id]) for n in plan.nodes for i in n.inputs}


def read_dot(text: str) -> tuple[dict[str, str], set[tuple[str, str]]]:
    """Parse a drawing by the part of Graphviz' grammar that is used here."""
    first, *lines, last = text.split("\n")
    assert (re.fullmatch(r'digraph "\w+" \{', first) is not None, last) == (True, "}")
    nodes, edges = {}, set()
    for line in lines[2:]:
        if found := re.fullmatch(r"  (n\d+) -> (n\d+);", line):
            edges.add((found[1], found[2]))
            continue
        found = re.fullmatch(r"  (n\d+) \[label=(.*)\];", line)
        assert found, line
        quoted = DOT_STRING.fullmatch(found[2])
        assert quoted, line
        nodes[found[1]] = re.sub(
            r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], quoted[1], flags=re.DOTALL
        )
    return nodes, edges


def read_mermaid(text: str) -> tuple[dict[str, str], set[tuple[str, str]]]:
    """Parse Mermaid: labels are in quotes, with entities for special characters."""
    first, *lines = text.split("\n")
    assert first == "flowchart BT"
    nodes, edges = {}, set()
    for line in lines:
        if found := re.fullmatch(r"  (n\d+) --> (n\d+)", line):
            edges.add((found[1], found[2]))
            continue
        found = re.fullmatch(r'  (n\d+)\["([^"]*)"\]', line)
        assert found, line
        label = found[2].replace("<br/>", "\n")
        assert not re.search("[<>`]", label)
        nodes[found[1]] = re.sub(r"#(\w+);", entity, label)
    return nodes, edges


def entity(found: re.Match[str]) -> str:
    return {"lt": "<", "gt": ">"}.get(found[1]) or chr(int(found[1]))


def test_there_is_no_other_format(graphs):
    with pytest.raises(UserError, match='no format "xml"'):
        graph.written(graphs["logical"], "xml")


def test_a_deep_plan_stays_narrow():
    nodes = tuple(
        GraphNode(str(n), "Filter", "x" * 200, (str(n + 1),) if n < 99 else (), state="all rows")
        for n in range(100)
    )
    lines = graph.text(Graph("logical", "0", nodes)).split("\n")
    assert len(lines) == 100
    assert max(map(len, lines)) <= graph.WIDTH
    assert lines[50].lstrip().startswith("(50) Filter xxx")
