"""Top-Down: each operator as near to the sink as there is room (N-22, R-8); Bottom-Up's mirror.

Operators are assigned from the sink downwards.  One with several readers waits until all of them
have a node.
"""

from __future__ import annotations

from headrace.planner.placement.failed import PlacementFailed
from headrace.planner.placement.operators import Operators
from headrace.planner.placement.rooms import Rooms, Slots
from headrace.planner.placement.topology import Topology
from headrace.planner.placement.ways import Ways


def top_down(
    operators: Operators, topology: Topology, ways: Ways, *, reserve: bool = True
) -> dict[str, str] | PlacementFailed:
    """Return the node of each operator; ``reserve``: see ``Slots``."""
    rooms, slots = Rooms(operators, ways), Slots(operators, topology, reserve)
    if failed := rooms.unreachable() or slots.reserved():
        return failed
    done: set[str] = set()
    left = [operators.sink.name]
    while left:
        operator = operators.by_name[left.pop()]
        if operator.name in done or not done.issuperset(operators.readers[operator.name]):
            continue  # the last of its readers brings it here again
        if operator.pin is not None:
            failed = slots.pinned(operator)
            if failed:
                return failed
        else:
            found = slots.first(operator, reversed(rooms.legal(operator.name)))
            if isinstance(found, PlacementFailed):
                return found
            rooms.put(operator.name, found)
        done.add(operator.name)
        left += reversed(operator.inputs)
    return rooms.nodes
