"""Texts of one PL/pgSQL function as trees, and expressions made of them.

In PL/pgSQL, a name that is both a variable and a column is an error; in the SQL function that
analyses the text it is the column.  Hence each text is analysed twice, the second time with its
variables renamed, and both trees must be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from headrace.errors import UnsupportedError
from headrace.planner.analyse.catalog import Catalog
from headrace.planner.analyse.nodetree import Node, same
from headrace.planner.analyse.nodetypes import targets, type_of
from headrace.planner.bodies import names, trees
from headrace.planner.bodies.routines import Routine
from headrace.planner.bodies.twin import Twins, Variable

NODES_MAX: Final = 20_000
"""Limit of the nodes built from statements: a branch that may not RETURN can double the number."""
_EXTERNAL: Final = 0
"""``paramkind`` of a parameter of a function."""


class Terms:
    """The expressions of one function."""

    def __init__(
        self,
        catalog: Catalog,
        twins: Twins,
        routine: Routine,
        fixed: Callable[[Sequence[Variable], str, Node], object],
    ) -> None:
        """Take ``fixed``, which raises if a text has table names that could mean other tables."""
        self._catalog = catalog
        self._twins = twins
        self._routine = routine
        self._fixed = fixed
        self._size = 0
        self._constants: dict[str, Node] = {}
        self._trees: dict[tuple[tuple[Variable, ...], str], Node] = {}

    def tree(self, variables: Sequence[Variable], text: str) -> Node:
        """Return the tree of a text; raise if a name in it is ambiguous."""
        key = (tuple(variables), text)
        if key not in self._trees:
            self._trees[key] = self._analysed(variables, text)
        return self._trees[key]

    def _analysed(self, variables: Sequence[Variable], text: str) -> Node:
        routine = self._routine
        tree = self._twins.tree(routine.name, variables, text, routine.path)
        parameters = {p.name for p in (*routine.inputs, *routine.outputs)}
        known = {p.name for p in variables if p.name}
        used = names.renamed(text, known, routine.name, parameters)
        if used != text:
            renamed = [
                replace(p, name=names.other_name(p.name)) if p.name else p for p in variables
            ]
            try:
                other = self._twins.tree(routine.name, renamed, used, routine.path)
            except UnsupportedError as error:
                raise UnsupportedError(
                    "a name in its body may be a variable or a column"
                ) from error
            if not same(trees.unlabelled(other), trees.unlabelled(tree)):
                raise UnsupportedError("a name in its body may be a variable or a column")
        self._fixed(variables, text, tree)
        return tree

    def constant(self, text: str) -> Node:
        """Return the tree of the expression ``text``, which has no variables."""
        if text not in self._constants:
            tree = self._twins.tree(self._routine.name, (), f"SELECT {text}")
            [self._constants[text]] = targets(tree)
        return self._constants[text]

    def null_of(self, oid: int) -> Node:
        """Return NULL of a type."""
        return self.constant(f"NULL::{self._catalog.types[oid].name}")

    def declared(self, text: str) -> tuple[int, int, int]:
        """Return type, modifier and collation of a variable declared as ``text``."""
        oid = self._twins.type_of(text, self._routine.path)
        assert oid is not None, "the parser has asked"
        modifier = self._twins.modifier(oid, text) if "(" in text else -1
        return oid, modifier, trees.collation(self.null_of(oid)) or 0

    def parameters(self) -> list[Node]:
        """Return the input parameters as expressions."""
        inputs = self._routine.inputs
        if not inputs:
            return []
        numbers = ", ".join(f"${n + 1}" for n in range(len(inputs)))
        return targets(self._twins.tree(self._routine.name, inputs, f"SELECT {numbers}"))

    def fails(self, expr: Node) -> bool:
        """Return whether evaluating ``expr`` may fail, apart from its parameters."""
        return trees.fails(self._catalog, expr)

    def assigned(self, expr: Node, target: tuple[int, int, int]) -> tuple[Node, bool]:
        """Convert ``expr`` to a type, modifier and collation, as an assignment does.

        Return also whether the conversion may fail.
        """
        oid, modifier, collation = target
        source = type_of(expr)
        if source is None or self._catalog.types[source].kind in "cp":
            raise UnsupportedError("its body has a value that is a row or of unknown type")
        if expr.kind == "CONST" and expr.flag("constisnull"):
            source = self._catalog.types.base(oid)
            expr = self.null_of(source)
        fails = False
        if (source, -1) != (oid, modifier):
            coercion = self._twins.assignment(source, oid, modifier)
            fails = self.fails(coercion)
            expr = self.bound(coercion, {1: expr})
        found = trees.collation(expr)
        if collation and found is None:
            fields = {"arg": expr, "resulttype": str(oid), "resulttypmod": str(modifier)}
            more = {"resultcollid": str(collation), "relabelformat": "2", "location": "-1"}
            expr = Node("RELABELTYPE", {**fields, **more})
        elif collation and found != collation:
            expr = Node("COLLATEEXPR", {"arg": expr, "collOid": str(collation), "location": "-1"})
        return expr, fails

    def case(self, arms: Sequence[tuple[Node, Node]], last: Node, oid: int) -> Node:
        """Return a CASE expression; all its results are of type ``oid``."""
        when = [
            Node(
                "CASEWHEN",
                {"expr": self.duplicate(test), "result": self.duplicate(result), "location": "-1"},
            )
            for test, result in arms
        ]
        collation = max(
            trees.collation(each) or 0 for each in (last, *(result for _, result in arms))
        )
        return Node(
            "CASEEXPR",
            {
                **{"casetype": str(oid), "casecollid": str(collation), "arg": None, "args": when},
                **{"defresult": self.duplicate(last), "location": "-1"},
            },
        )

    def bound(self, tree: Node, exprs: Mapping[int, Node]) -> Node:
        """Return a copy of ``tree`` with parameters replaced by ``exprs``, by number."""
        copy = self._copied(tree, exprs)
        assert isinstance(copy, Node), "a node is copied"
        return copy

    def duplicate(self, tree: Node) -> Node:
        """Return a copy of ``tree``."""
        return self.bound(tree, {})

    def _copied(self, value: object, exprs: Mapping[int, Node]) -> object:
        if isinstance(value, list):
            return [self._copied(each, exprs) for each in value]
        if not isinstance(value, Node):
            return value
        self._size += 1
        if self._size > NODES_MAX:
            raise UnsupportedError("its body has too many branches")
        if value.kind == "PARAM" and value.number("paramkind") == _EXTERNAL and exprs:
            return self._copied(exprs[value.number("paramid")], {})
        fields = {name: self._copied(each, exprs) for name, each in value.fields.items()}
        return Node(value.kind, fields)
