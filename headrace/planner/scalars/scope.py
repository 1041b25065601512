"""The meaning of names and subqueries in an expression at its place in the query.

Subqueries are attached at *sites*, below the node that evaluates the expression.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from headrace.errors import BugError
from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.logical.nodes import (
    ApplyNode,
    FilterNode,
    FunctionsNode,
    JoinNode,
    Node,
    ValuesNode,
    free,
    ids,
)
from headrace.planner.logical.scalar import Expr, conjuncts

Resolver = Callable[[Tree], Expr | None]


class BindsSubqueries(Protocol):
    """Binds the subqueries in expressions of one query level."""

    def value(self, node: Tree, scope: Scope) -> Expr:
        """Return the expression that replaces a subquery in the enclosing expression."""

    def filter(self, condition: Tree, scope: Scope) -> None:
        """Keep the rows of the scope's only site for which ``condition`` is true."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The meaning of column references, and results that take precedence over a node's form.

    ``outer`` is the scope of the enclosing query at the position of this query.  ``above``
    translates an expression of this level for use in inner queries (grouped columns).
    ``subqueries`` binds subqueries in expressions; they are attached at one of ``sites``.
    ``row`` returns a whole row, by range-table index and type.
    """

    column: Callable[[int, int], Expr]
    special: Resolver | None = None
    case_value: Expr | None = None
    outer: Scope | None = None
    above: Callable[[Expr], Expr] | None = None
    subqueries: BindsSubqueries | None = None
    sites: Sites = ()
    when: tuple[tuple[str, Expr], ...] = ()
    """Tests (``is_true`` and so on) that all hold whenever the enclosing expression needs the
    value (CASE, COALESCE, AND, OR, FILTER); a test is evaluated only if those before it hold."""
    later: frozenset[int] = frozenset()
    """Columns that are computed above the sites: window functions."""
    depth: int = 0
    """Number of levels between the expression and the query that computes it (``below``)."""
    row: Callable[[int, int], Expr] | None = None

    def only(self, test: str, expr: Expr) -> Scope:
        """Return this scope for expressions evaluated only if ``expr`` passes ``test``."""
        return dataclasses.replace(self, when=(*self.when, (test, expr)))

    def up(self, levels: int) -> Scope | None:
        """Return the scope of the query ``levels`` further out, if there is one."""
        found: Scope | None = self
        for _ in range(levels):
            found = found.outer if found is not None else None
        return found

    def below(self, levels: int) -> Scope:
        """Return this scope as seen from expressions ``levels`` queries deeper.

        It is for the parts of such an expression that are computed in *this* query (an aggregate
        of an outer query).
        """
        found = self
        for _ in range(levels):
            found = Scope(
                _no_column,
                outer=found,
                subqueries=self.subqueries,
                sites=self.sites,
                depth=found.depth + 1,
            )
        return found


def _no_column(varno: int, attno: int) -> Expr:
    raise BugError(f"column {attno} of entry {varno} in an aggregate of an outer query")


UNIT: Final = ValuesNode((), ((),))
"""One row without columns."""


def joined(left: Node, right: Node, condition: tuple[Expr, ...] = (), kind: str = "inner") -> Node:
    """Return a join, or an ``Apply`` if the right side reads the left one."""
    if free(right) & ids(left):
        if (node := _beside(left, right, condition, kind)) is not None:
            return node
        return ApplyNode(left, right, condition, kind)
    return JoinNode(left, right, condition, kind)


def _beside(left: Node, right: Node, condition: tuple[Expr, ...], kind: str) -> Node | None:
    """Return the join of ``left`` with functions ``right`` as one ``Functions``, or None."""
    if not isinstance(right, FunctionsNode) or right.input != UNIT:
        return None
    if kind == "inner":
        node = dataclasses.replace(right, input=left)
        return FilterNode(node, condition) if condition else node
    if kind == "left" and not condition:
        return dataclasses.replace(right, input=left, outer=True)
    return None


_Hung = tuple[Node, tuple[Expr, ...], str, tuple[Expr, ...]]


@dataclass(slots=True)
class Site:
    """A node over which expressions are lowered; attached plans are joined to it, in order."""

    node: Node

    def hang(
        self,
        right: Node,
        condition: tuple[Expr, ...] = (),
        kind: str = "left",
        asks: tuple[Expr, ...] = (),
    ) -> None:
        """Join ``right``, which may read columns of the node.

        The join is always an ``Apply``: a subquery that no row needs is not evaluated.
        """
        self.node = ApplyNode(self.node, right, condition, kind, asks)

    def filter(self, predicate: Expr) -> None:
        """Keep the rows for which ``predicate`` is true."""
        parts = tuple(conjuncts(predicate))
        if isinstance(self.node, FilterNode):
            self.node = FilterNode(self.node.input, (*self.node.predicates, *parts))
        else:
            self.node = FilterNode(self.node, parts)


@dataclass(slots=True)
class LateSite:
    """A site whose node is known later: groups are complete when all their readers are lowered."""

    _hung: list[_Hung | Expr] = field(default_factory=list)

    def hang(
        self,
        right: Node,
        condition: tuple[Expr, ...] = (),
        kind: str = "left",
        asks: tuple[Expr, ...] = (),
    ) -> None:
        """Join ``right`` later, as ``Site.hang`` does."""
        self._hung.append((right, condition, kind, asks))

    def filter(self, predicate: Expr) -> None:
        """Filter later, as ``Site.filter`` does."""
        self._hung.append(predicate)

    def over(self, node: Node) -> Node:
        """Apply everything attached here to ``node``."""
        site = Site(node)
        for item in self._hung:
            if isinstance(item, tuple):
                site.hang(*item)
            else:
                site.filter(item)
        return site.node


Sites = tuple[Site, ...] | tuple[LateSite]


def hung(node: Node, base: Node | None = None) -> list[Node]:
    """Return the plans that ``Site.hang`` has joined to ``base`` to make ``node``.

    Without ``base``, stop at the first node that is not an ``Apply``.
    """
    found = []
    while node is not base and isinstance(node, ApplyNode):
        found.append(node.right)
        node = node.left
    return found


def home(sites: Sites, read: frozenset[int]) -> Site | LateSite:
    """Return the first of ``sites`` that has all columns of ``read`` that any has, or the last."""
    known = [s for s in sites if isinstance(s, Site)]
    if len(known) > 1:
        read &= frozenset().union(*(ids(s.node) for s in known))
        for site in known:
            if read <= ids(site.node):
                return site
    return sites[-1]
