"""Bottom-Up: each operator as near to its sources as there is room (N-5, N-12 … N-20).

Operators are assigned from a source upwards.  An operator with several inputs waits until all of
them have a node; sources below it that have none go first.
"""

from __future__ import annotations

from headrace.planner.placement.failed import PlacementFailed
from headrace.planner.placement.operators import Operators
from headrace.planner.placement.rooms import Rooms, Slots
from headrace.planner.placement.topology import Topology
from headrace.planner.placement.ways import Ways


def bottom_up(
    operators: Operators, topology: Topology, ways: Ways, *, reserve: bool = True
) -> dict[str, str] | PlacementFailed:
    """Return the node of each operator; ``reserve``: see ``Slots``."""
    rooms, slots = Rooms(operators, ways), Slots(operators, topology, reserve)
    if failed := rooms.unreachable() or slots.reserved():
        return failed
    done: set[str] = set()
    left = [operators.sink.name, *reversed(operators.sources)]
    while left:
        operator = operators.by_name[left.pop()]
        if operator.name in done:
            continue
        waits_for = [name for name in operator.inputs if name not in done]
        if waits_for:
            # When the last of them has its node, this comes again, as its reader.
            left += _sources_below(operators, waits_for[0], done)
            continue
        if operator.pin is not None:
            failed = slots.pinned(operator)
            if failed:
                return failed
        else:
            found = slots.first(operator, rooms.legal(operator.name))
            if isinstance(found, PlacementFailed):
                return found
            rooms.put(operator.name, found)
        done.add(operator.name)
        left += reversed(operators.readers[operator.name])
    return rooms.nodes


def _sources_below(operators: Operators, name: str, done: set[str]) -> list[str]:
    """Return the first unassigned source that an operator waits for, if there is one (N-18)."""
    below = operators.upstream[name] | {name}
    return [s for s in operators.sources if s in below and s not in done][:1]
