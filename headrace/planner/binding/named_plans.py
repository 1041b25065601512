"""Views and WITH queries are bound once, and named at every mention."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.planner.logical.nodes import AgainNode, Node, free
from headrace.planner.logical.repeats import name, reads_iteration, renumbered


class NamedPlans:
    """The named plans of one query, by what they are the plans of."""

    def __init__(self, numbers: Iterator[int]) -> None:
        """``numbers``: ids of columns and numbers of plans."""
        self._numbers = numbers
        # What the key is made of is kept, so that no other object gets its identity.
        self._found: dict[tuple[int, ...], tuple[tuple[object, ...], AgainNode]] = {}

    def mention(self, bind: Callable[[], Node], *bound: object) -> Node:
        """The name of the plan that ``bind`` makes of the objects ``bound``, with ids of its own.

        A plan that reads the work table of a recursion is part of that recursion: it is made anew.
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
