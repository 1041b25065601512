"""The dataflow of a view out of the text that ``explain_view`` gives.

A line that a node begins is its depth, its id and what it says of itself; its inputs follow, one
deeper.  A node that is met again has no line but the one that says so.  What is no node (points,
workers) is told beside the graph.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

NODES_MAX: Final = 400
"""Of a larger plan people see nothing; the text is there all the same."""
_NODE: Final = re.compile(r"( *)([a-z]+_[0-9]+) ([A-Z]\w*)\b ?(.*)", re.DOTALL)
_PARTS: Final = re.compile(
    r"(?P<head>.*?)(?: ?\((?P<columns>[^()]*(?:\([^()]*\)[^()]*)*)\))?"
    r" state: (?P<state>.*?); cost: (?P<cost>.*?)(?:; edge: (?P<edge>.*))?",
    re.DOTALL,
)
_SHARED: Final = re.compile(r"buffered in the queue of subplan (\d+); kept once, shared with (.*)")


@dataclass(slots=True)
class PlanNode:
    """One collection."""

    id: str
    kind: str
    depth: int
    text: str
    inputs: list[str] = field(default_factory=list)


def graph(plan: str) -> dict[str, Any]:
    """Nodes with their inputs, and lines that are no nodes; what is not understood is text."""
    nodes: dict[str, PlanNode] = {}
    above: list[PlanNode] = []
    notes: list[str] = []
    for line in plan.split("\n"):
        found = _NODE.fullmatch(line)
        if found is None:
            if line.startswith(" ") and above:
                above[-1].text += "\n" + line.strip()  # a node may have several lines
            elif line.strip():
                notes.append(line.strip())
            continue
        depth = len(found[1])
        node = nodes.get(found[2]) or PlanNode(found[2], found[3], depth, found[4])
        while above and above[-1].depth >= depth:
            above.pop()
        if above and node.id not in above[-1].inputs:
            above[-1].inputs.append(node.id)
        if node.id not in nodes and len(nodes) < NODES_MAX:
            nodes[node.id] = node
        above.append(PlanNode(node.id, node.kind, depth, "") if node.depth != depth else node)
    return {"nodes": [_shown(node, nodes) for node in nodes.values()], "notes": notes}


def _shown(node: PlanNode, nodes: dict[str, PlanNode]) -> dict[str, Any]:
    found = _PARTS.fullmatch(node.text)
    told = found.groupdict() if found else {"head": node.text}
    shared = _SHARED.fullmatch(told.get("edge") or "")
    return {
        "id": node.id,
        "kind": node.kind,
        "inputs": [name for name in node.inputs if name in nodes],
        "detail": (told["head"] or "").strip(),
        "columns": told.get("columns"),
        "state": told.get("state"),
        "cost": told.get("cost"),
        "subplan": int(shared[1]) if shared else None,
        "shared_with": shared[2] if shared else None,
    }
