"""The driver of expression lowering: the *form* of a node's kind translates the node.

Forms are functions of the modules above this one, listed in ``forms``; they call this module for
the parts of their node.  A kind without a form is refused.  Types, collations and operator
functions are those that Postgres resolved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from headrace.planner import limits
from headrace.planner.analyse.analysis import Analysis
from headrace.planner.analyse.catalog import Catalog
from headrace.planner.analyse.nodetree import Node
from headrace.planner.logical.scalar import Expr
from headrace.planner.scalars.constants import Constants
from headrace.planner.scalars.context import Find, Position, QueryContext
from headrace.planner.scalars.scope import Scope
from headrace.postgres.connect import Connection

_REFUSED: Final = {
    "WINDOWFUNC": "a window function",
    "GROUPINGFUNC": "GROUPING",
    "PARAM": "a parameter",
    "NEXTVALUEEXPR": "nextval",
    "AGGREF": "an aggregate here",
    "MERGESUPPORTFUNC": "merge_action",
    "RETURNINGEXPR": "RETURNING",
}


class Lowering(QueryContext):
    """A query whose expressions are lowered; code that only makes some uses the context."""

    def __init__(
        self,
        forms: Mapping[str, Form],
        conn: Connection,
        analysis: Analysis,
        catalog: Catalog,
        constants: Constants,
        places: tuple[Position, Find],
        *,
        money_plain: bool = True,
    ) -> None:
        """Arguments are as in ``QueryContext``; ``forms`` are by kind of node."""
        super().__init__(conn, analysis, catalog, constants, places, money_plain=money_plain)
        self._forms = forms
        self.known: dict[int, Expr] = {}
        """Known expressions by ``id`` of their node: set-returning calls of a select list."""
        self.conversions: dict[tuple[int, int, int], Node] = {}
        """Postgres' trees of casts, by source type, source collation and target type."""

    def lower(self, node: Node, scope: Scope) -> Expr:
        """Return the expression of ``node``."""
        limits.check()
        if (found := self.known.get(id(node))) is not None:
            return found
        levels = node.number("agglevelsup")  # also of GROUPING
        home = scope.up(levels)
        if home is not None and home.special is not None:
            known = home.special(node)
            if known is not None:
                return known
        form = self._forms.get(node.kind)
        if form is not None:
            return form(self, node, scope)
        what = _REFUSED.get(node.kind, "an expression of this kind")
        return self.refuse(what, node)

    def all(self, nodes: Sequence[Node], scope: Scope) -> tuple[Expr, ...]:
        """Return the expressions of ``nodes``."""
        return tuple(self.lower(n, scope) for n in nodes)


Form = Callable[[Lowering, Node, Scope], Expr]
