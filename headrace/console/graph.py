"""Dataflow graph of a view, from the JSON that ``explain_view`` writes (docs/manual/explain.md).

Only fields that the page draws are read, and other fields are ignored.  Text that is no such JSON
gives an empty graph.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

NODES_MAX: Final = 400
"""Limit of nodes: a larger graph shows people nothing."""


class PlanColumn(msgspec.Struct, frozen=True):
    """Column of a node's output."""

    name: str
    type: str = ""


class PlanEdge(msgspec.Struct, frozen=True):
    """Says that a node is kept once for several views."""

    subplan: int
    shared_with: tuple[str, ...] = ()


class PlanNode(msgspec.Struct, frozen=True):
    """One collection."""

    id: str
    kind: str
    detail: str = ""
    inputs: tuple[str, ...] = ()
    columns: tuple[PlanColumn, ...] = ()
    state: str = ""
    cost: str = ""
    state_rows: int | None = None
    state_bytes: int | None = None
    edge: PlanEdge | None = None


class PlanGraph(msgspec.Struct, frozen=True):
    """The fields that are read."""

    nodes: tuple[PlanNode, ...]
    notes: tuple[str, ...] = ()


_READER: Final = msgspec.json.Decoder(PlanGraph)


def graph(plan: str) -> dict[str, Any]:
    """Return the nodes with their inputs, and notes about the whole plan."""
    try:
        found = _READER.decode(plan)
    except msgspec.MsgspecError:
        return {"nodes": [], "notes": []}
    nodes = found.nodes[:NODES_MAX]
    known = {node.id for node in nodes}
    return {"nodes": [_shown(node, known) for node in nodes], "notes": list(found.notes)}


def _shown(node: PlanNode, known: set[str]) -> dict[str, Any]:
    return {
        "id": node.id,
        "kind": node.kind,
        "inputs": [name for name in node.inputs if name in known],
        "detail": node.detail,
        "columns": ", ".join(f"{c.name} {c.type}".rstrip() for c in node.columns),
        "state": node.state,
        "cost": node.cost,
        "state_rows": node.state_rows,
        "state_bytes": node.state_bytes,
        "subplan": node.edge.subplan if node.edge else None,
        "shared_with": ", ".join(node.edge.shared_with) or "no other view now"
        if node.edge
        else None,
    }
