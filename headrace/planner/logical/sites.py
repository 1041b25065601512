"""Where subqueries in expressions are hung: below the node that evaluates the expression."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Final

from headrace.planner.logical.nodes import (
    Apply,
    Filter,
    Functions,
    Join,
    Node,
    Values,
    free,
    ids,
)
from headrace.planner.logical.scalar import Expr, conjuncts

UNIT: Final = Values((), ((),))
"""One row without columns."""


def joined(
    left: Node, right: Node, condition: tuple[Expr, ...] = (), kind: str = "inner"
) -> Node:
    """A join; an ``Apply`` where the right side reads the left one."""
    if free(right) & ids(left):
        if (node := _beside(left, right, condition, kind)) is not None:
            return node
        return Apply(left, right, condition, kind)
    return Join(left, right, condition, kind)


def _beside(
    left: Node, right: Node, condition: tuple[Expr, ...], kind: str
) -> Node | None:
    """``left`` joined with the functions ``right`` that read it, if that is one ``Functions``."""
    if not isinstance(right, Functions) or right.input != UNIT:
        return None
    if kind == "inner":
        node = dataclasses.replace(right, input=left)
        return Filter(node, condition) if condition else node
    if kind == "left" and not condition:
        return dataclasses.replace(right, input=left, outer=True)
    return None


_Hung = tuple[Node, tuple[Expr, ...], str, tuple[Expr, ...]]


@dataclass(slots=True)
class Site:
    """A node over which expressions are lowered; what hangs here joins it, in order."""

    node: Node

    def hang(
        self,
        right: Node,
        condition: tuple[Expr, ...] = (),
        kind: str = "left",
        asks: tuple[Expr, ...] = (),
    ) -> None:
        """Join ``right``, which may read columns of the node.

        An ``Apply`` in any case: a subquery without rows to ask for it is not evaluated.
        """
        self.node = Apply(self.node, right, condition, kind, asks)

    def filter(self, predicate: Expr) -> None:
        """Keep the rows for which ``predicate`` is true."""
        parts = tuple(conjuncts(predicate))
        if isinstance(self.node, Filter):
            self.node = Filter(self.node.input, (*self.node.predicates, *parts))
        else:
            self.node = Filter(self.node, parts)


@dataclass(slots=True)
class LateSite:
    """A site whose node is not known yet: groups are, when all that reads them is lowered."""

    _hung: list[_Hung | Expr] = field(default_factory=list)

    def hang(
        self,
        right: Node,
        condition: tuple[Expr, ...] = (),
        kind: str = "left",
        asks: tuple[Expr, ...] = (),
    ) -> None:
        """See ``Site``."""
        self._hung.append((right, condition, kind, asks))

    def filter(self, predicate: Expr) -> None:
        """See ``Site``."""
        self._hung.append(predicate)

    def over(self, node: Node) -> Node:
        """``node`` with all that was hung here."""
        site = Site(node)
        for item in self._hung:
            if isinstance(item, tuple):
                site.hang(*item)
            else:
                site.filter(item)
        return site.node


Sites = tuple[Site, ...] | tuple[LateSite]


def home(sites: Sites, read: frozenset[int]) -> Site | LateSite:
    """The first of ``sites`` that has all columns of ``read`` that any of them has, or the last."""
    known = [s for s in sites if isinstance(s, Site)]
    if len(known) > 1:
        read &= frozenset().union(*(ids(s.node) for s in known))
        for site in known:
            if read <= ids(site.node):
                return site
    return sites[-1]
