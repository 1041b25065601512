"""Every node becomes its collection."""

from __future__ import annotations

import pytest

from headrace.collections import build
from headrace.collections.plan import JoinSpec, Node, kind
from headrace.state.memory import MemoryStore
from tests.plans import all_plans, table

PLANS = all_plans(table(1), table(2))


@pytest.mark.parametrize("name", sorted(PLANS))
def test_every_node_becomes_its_collection(name) -> None:
    whole = PLANS[name]
    node: Node
    for node in whole.nodes:
        made = build.make(node, whole, MemoryStore(), None)
        compared = isinstance(node, JoinSpec) and node.compared is not None
        assert type(made).__name__ == ("Threshold" if compared else kind(type(node)))
        assert (made.id, made.schema) == (node.id, node.schema)
        assert kind(type(node)) in made.describe()
