"""Binds views and WITH queries once, and refers to the plan by name at every use."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.planner.logical.nodes import AgainNode, Node, free
from headrace.planner.logical.repeats import name, reads_iteration, renumbered


class NamedPlans:
    """The named plans of one query, by the objects that they were bound from."""

    def __init__(self, numbers: Iterator[int]) -> None:
        """``numbers`` yields ids of columns and numbers of plans."""
        self._numbers = numbers
        # The objects of a key are kept alive, so that no other object gets the same id().
        self._found: dict[tuple[int, ...], tuple[tuple[object, ...], AgainNode]] = {}

    def mention(self, bind: Callable[[], Node], *bound: object) -> Node:
        """Return a reference, with new ids, to the plan that ``bind`` makes of ``bound``.

        A plan that reads the work table of a recursion belongs to it, so it is bound every time.
        """
        key = tuple(map(id, bound))
        if key in self._found:
            return renumbered(self._found[key][1], self._numbers)
        node = bind()
        if reads_iteration(node):
            return node
        again = name(node, next(self._numbers), free(node))
        self._found[key] = (bound, again)
        return again
