"""The walk over both trees of a query: sqlglot's, and the one that Postgres has analysed.

The walk composes a third tree in Postgres' form.  Its structure is that of sqlglot's tree; types,
operators, functions and coercions are those of the Postgres node that each node of sqlglot's is
bound to.  ``shell`` makes sure of that: it leaves out all nodes below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from headrace.planner import limits
from headrace.planner.analyse.check import GROUP
from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.front.names import Names
from headrace.planner.front.syntax import Ast, Different, bare

_IMPLICIT: Final = {
    "FUNCEXPR": "funcformat",
    "RELABELTYPE": "relabelformat",
    "COERCEVIAIO": "coerceformat",
    "ARRAYCOERCEEXPR": "coerceformat",
    "COERCETODOMAIN": "coercionformat",
    "CONVERTROWTYPEEXPR": "convertformat",
}
"""Field with the form of a coercion, by kind of node."""
EXPLICIT, IMPLICIT, SYNTAX = "1", "2", "3"
"""CoercionForm: a cast, none is written, a construct such as EXTRACT."""


@dataclass(slots=True)
class QueryLevel:
    """One query level of Postgres' tree."""

    query: Tree
    outer: QueryLevel | None = None
    targets: dict[int, Tree] = field(default_factory=dict)
    """Composed expressions of target entries, by ``id`` of the entry."""
    windows: dict[int, Tree] = field(default_factory=dict)
    """Composed window definitions, by ``winref``."""
    definitions: dict[str, Ast] = field(default_factory=dict)
    """The WINDOW clause, by name."""

    def up(self, levels: int) -> QueryLevel:
        """Return the level ``levels`` further out."""
        found: QueryLevel | None = self
        for _ in range(levels):
            found = found.outer if found is not None else None
        if found is None:
            raise Different("a column is of no query around it")
        return found

    def entry(self, index: int) -> Tree:
        """Return the range-table entry with that 1-based index."""
        return self.query.nodes("rtable")[index - 1]


Form = Callable[["Walk", Ast, Tree, QueryLevel], Tree]
"""Compose the Postgres node of an expression; raises ``Different``."""
FormOf = tuple[Form, tuple[str, ...]]
"""A form, and the kinds of Postgres' nodes that it is for; empty: it checks them itself."""
Forms = Mapping[str, FormOf]


class Walk:
    """The walk over one query."""

    def __init__(
        self, names: Names, forms: Forms, call: FormOf, query: Form, steps_max: int
    ) -> None:
        """``call`` is the form of other classes; ``query`` composes a query.

        ``steps_max`` limits the attempts to bind a node: alternatives inside of each other
        multiply.
        """
        self.names = names
        self.query = query
        self._forms = forms
        self._call = call
        self.bound: dict[str, Tree] = {}
        """Nodes of Postgres, by id of the syntax tree's node."""
        self.coercions: list[tuple[str, Tree]] = []
        """Coercions that are not written, by id of the node inside of them, outermost first."""
        self.places: dict[str, tuple[Tree, int]] = {}
        """Range-table entry and number of each column."""
        self._read: dict[str, None] = {}
        self._steps_left = steps_max

    def bind(self, ast: Ast, node: Tree) -> None:
        """Record that ``ast`` is ``node``."""
        self.mark(ast.id)
        self.bound[ast.id] = node

    def mark(self, *ids: str) -> None:
        """Mark nodes of the syntax tree as read."""
        self._read.update(dict.fromkeys(ids))

    def has_read(self, ast: Ast) -> bool:
        """Return whether a node has been read."""
        return ast.id in self._read

    def take(self, ast: Ast | None) -> None:
        """Mark a part as read that Postgres has in another form (a literal, a name)."""
        if ast is not None:
            self.mark(*(node.id for node in ast.walk()))

    def expr(self, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
        """Compose the expression ``ast``, which Postgres has analysed as ``node``."""
        limits.check()
        self._steps_left -= 1
        if self._steps_left < 0:
            raise Different("the query has too many alternatives")
        ast = bare(ast)
        if (grouped := _grouped(node, level)) is not None:
            self.expr(ast, *grouped)
            return shell(node)
        if implicit(node) or self._is_plus(node):
            self.coercions.append((ast.id, node))
            return recast(node, self.expr(ast, operand(node), level))
        form, kinds = self._forms.get(ast.kind, self._call)
        if kinds:
            require(ast, node, *kinds)
        composed = form(self, ast, node, level)
        self.bind(ast, node)
        return composed

    def _is_plus(self, node: Tree) -> bool:
        """Return whether the node is the operator +x, which sqlglot leaves out."""
        args = node.nodes("args")
        return (
            node.kind == "OPEXPR"
            and len(args) == 1
            and self.names.name("operator", node.number("opno")) == "+"
        )

    def all(self, asts: list[Ast], nodes: list[Tree], level: QueryLevel, above: Ast) -> list[Tree]:
        """Compose expressions in order; there must be as many of both."""
        if len(asts) != len(nodes):
            refuse(above, f"it has {len(asts)} parts, and {len(nodes)} for Postgres")
        return [self.expr(a, n, level) for a, n in zip(asts, nodes, strict=True)]

    def maybe(
        self, ast: Ast | None, node: Tree | None, level: QueryLevel, above: Ast
    ) -> Tree | None:
        """Compose an expression that may be missing in both trees."""
        if ast is None or node is None:
            if ast is not None or node is not None:
                refuse(above, "only one of the trees has a clause")
            return None
        return self.expr(ast, node, level)

    def attempt(self, ast: Ast, node: Tree, level: QueryLevel) -> Tree | None:
        """Compose an expression; None if ``ast`` is not ``node``."""
        read, coercions = len(self._read), len(self.coercions)
        try:
            return self.expr(ast, node, level)
        except Different:
            # The latest ones go: to copy all at each attempt would take most of the walk's time.
            while len(self._read) > read:
                self._read.popitem()
            del self.coercions[coercions:]
            if self._steps_left < 0:
                raise
            return None


def refuse(ast: Ast, why: str) -> NoReturn:
    """Raise ``Different`` at ``ast``."""
    raise Different(f"{ast.kind}: {why}", ast.at)


def require(ast: Ast, node: Tree, *kinds: str) -> None:
    """Refuse a node of Postgres that is of another kind."""
    if node.kind not in kinds:
        refuse(ast, "Postgres reads something else here")


def shell(node: Tree, **parts: Any) -> Tree:
    """Return a copy of ``node`` with ``parts`` in place of all nodes below it.

    The parts that the caller does not give are missing, so the composed tree would differ.
    """
    fields = {k: v for k, v in node.fields.items() if not _has_nodes(v)}
    return Tree(node.kind, fields | {k: (v or None) for k, v in parts.items()})


def _has_nodes(value: object) -> bool:
    if isinstance(value, list):
        return any(map(_has_nodes, value))
    return isinstance(value, Tree)


def implicit(node: Tree) -> bool:
    """Return whether ``node`` is a coercion that the text does not write."""
    return form_of(node) == IMPLICIT


def form_of(node: Tree) -> str:
    """Return the form of a coercion; empty if it is none."""
    found = node.text(_IMPLICIT.get(node.kind, "")) or ""
    return _FORMS.get(found, found)


_FORMS: Final = {
    "COERCE_EXPLICIT_CALL": "0",
    "COERCE_EXPLICIT_CAST": EXPLICIT,
    "COERCE_IMPLICIT_CAST": IMPLICIT,
    "COERCE_SQL_SYNTAX": SYNTAX,
}


def operand(node: Tree) -> Tree:
    """Return the operand of a coercion."""
    return node.nodes("args")[0] if node.kind in ("FUNCEXPR", "OPEXPR") else node.child("arg")


def recast(node: Tree, inner: Tree) -> Tree:
    """Return the coercion ``node`` with another operand."""
    made = Tree(node.kind, dict(node.fields))
    if node.kind in ("FUNCEXPR", "OPEXPR"):
        _, *more = node.nodes("args")
        if any(n.kind != "CONST" for n in more):
            raise Different("a coercion has a computed argument")
        made.fields["args"] = [inner, *more]
    else:
        made.fields["arg"] = inner
    return made


def _grouped(node: Tree, level: QueryLevel) -> tuple[Tree, QueryLevel] | None:
    """Return the grouped expression that a column stands for (Postgres 18), and its level."""
    if node.kind != "VAR":
        return None
    home = level.up(node.number("varlevelsup"))
    entry = home.entry(node.number("varno"))
    if entry.number("rtekind") != GROUP:
        return None
    return entry.nodes("groupexprs")[node.number("varattno") - 1], home
