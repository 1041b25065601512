"""The driver of expressions: what a node of Postgres' tree becomes is said by the form of its kind.

Forms are functions of the modules above this one, listed in ``forms``; they come back here for the
parts of their node.  A kind without a form is refused.  Types, collations and the functions behind
operators are what Postgres resolved, never guessed again.
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
    """A query whose expressions are lowered; who only makes some takes the context."""

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
        """See ``QueryContext``; ``forms`` are by kind of node."""
        super().__init__(conn, analysis, catalog, constants, places, money_plain=money_plain)
        self._forms = forms
        self.known: dict[int, Expr] = {}
        """What a node of the tree (by ``id``) is: set-returning calls of a select list."""
        self.conversions: dict[tuple[int, int, int], Node] = {}
        """What Postgres has made of casts from a type and collation to a type."""

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
