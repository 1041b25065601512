"""What the names and subqueries in an expression mean at its place in the query."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from headrace.errors import BugError
from headrace.planner.analyse.nodetree import Node
from headrace.planner.logical.scalar import Expr
from headrace.planner.logical.sites import Sites

Resolver = Callable[[Node], Expr | None]


class Subqueries(Protocol):
    """Binds the subqueries in expressions of one query level."""

    def value(self, node: Node, scope: Scope) -> Expr:
        """What a subquery is to the expression around it."""

    def filter(self, condition: Node, scope: Scope) -> None:
        """Keep the rows of the scope's only site for which ``condition`` is true."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """What column references mean, and what is known before looking into a node.

    ``outer`` is the scope of the enclosing query, at the place where this query stands in it.
    ``above`` is what an expression of this level becomes for the queries inside of it (grouped
    columns).  ``subqueries`` binds those in expressions; they hang at one of ``sites``.
    ``row`` is a whole row: of which range-table entry, as which type.
    """

    column: Callable[[int, int], Expr]
    special: Resolver | None = None
    case_value: Expr | None = None
    outer: Scope | None = None
    above: Callable[[Expr], Expr] | None = None
    subqueries: Subqueries | None = None
    sites: Sites = ()
    when: tuple[tuple[str, Expr], ...] = ()
    """Tests (``is_true`` and its kin) that are all true wherever the expression around needs the value
    (CASE, COALESCE, AND, OR, FILTER); each is known only where those before it are true."""
    later: frozenset[int] = frozenset()
    """Columns that are made above the sites: window functions."""
    depth: int = 0
    """Levels that stand between the expression and the query that computes it (``below``)."""
    row: Callable[[int, int], Expr] | None = None

    def only(self, test: str, expr: Expr) -> Scope:
        """This scope for what is evaluated only where ``expr`` passes ``test``."""
        return dataclasses.replace(self, when=(*self.when, (test, expr)))

    def up(self, levels: int) -> Scope | None:
        """The scope of the query ``levels`` further out, if there is one."""
        found: Scope | None = self
        for _ in range(levels):
            found = found.outer if found is not None else None
        return found

    def below(self, levels: int) -> Scope:
        """This scope as seen from expressions that stand ``levels`` queries deeper.

        For what such an expression computes in *this* query (an aggregate of an outer query).
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
