"""WITH RECURSIVE: binding it, and the number of the iteration in the plan of its step.

All iterations run in one set of collections, so every row of the step says to which one it
belongs: ``carried`` adds that column along the way from the work table to the root of the step,
to the output of each node and to the keys of those that look at several rows at once.  What is not on
that way is the same for every iteration and stands outside.

Equation: with W = {(i, row) : row in R(i)}, carried(step)(W) = {(i, row) : row in step(R(i))}.
Counter-examples: of a FULL JOIN the rows of the other side without a partner belong to no iteration;
an aggregate without GROUP BY gives a row for an iteration without any, where Postgres would have
stopped.  Both are refused, as is everything else whose result over nothing is not nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from headrace import types as t
from headrace.collections.plan import ITERATION
from headrace.planner.logical import (
    Aggregate,
    Col,
    Distinct,
    Expand,
    Filter,
    Functions,
    Join,
    Node,
    Project,
    Recursive,
    TopK,
    Window,
    WorkTable,
    children,
    ids,
    with_children,
)
from headrace.planner.lower import Lowering
from headrace.planner.nodetree import Node as Tree
from headrace.planner.scalar import Call, Const, Expr, raises, refs
from headrace.planner.setops import SetOperations

_REFUSED: Final = "in the recursive term of WITH RECURSIVE"


class Recursions:
    """The recursive queries of a plan that are being bound."""

    def __init__(self, lowering: Lowering, column: Callable[[str, Expr], Col]) -> None:
        self._lowering = lowering
        self._column = column
        self._names: dict[int, str] = {}

    def bind(self, cte: Tree, operations: SetOperations) -> Node:
        """The plan of a recursive WITH query; ``operations`` binds its UNION."""
        for clause in ("search_clause", "cycle_clause"):
            if cte.node(clause) is not None:
                self._lowering.refuse(f"the {clause.split('_')[0].upper()} clause")
        union = cte.child("ctequery").child("setOperations")
        if cte.child("ctequery").nodes("sortClause"):
            self._lowering.refuse("ORDER BY in a recursive query")
        base = operations.converted(operations.bind(union.child("larg")), union)
        columns = operations.columns(union, [c.name for c in base.columns])
        distinct = not union.flag("all")
        if distinct:
            operations.distinct(base, "UNION")
        name = f"{cte.text('ctename')} {columns[0].id if columns else 0}"
        before = self._names.get(id(cte))
        self._names[id(cte)] = name
        step = operations.converted(operations.bind(union.child("rarg")), union)
        if before is not None:
            self._names[id(cte)] = before
        carried(self._lowering, step, name, _number(0))
        return Recursive(base, step, name, distinct, columns)

    def work_table(self, cte: Tree) -> Node:
        """The reference of ``cte`` to itself."""
        types = [self._lowering.catalog.base(o) for o in cte.numbers("ctecoltypes")]
        columns = tuple(
            self._column(str(name), Const(None, oid, int(str(typmod)), collation))
            for name, oid, typmod, collation in zip(
                cte.items("ctecolnames"),
                types,
                cte.items("ctecoltypmods"),
                cte.numbers("ctecolcollations"),
                strict=True,
            )
        )
        return WorkTable(self._names[id(cte)], columns)


def _number(place: int) -> Col:
    """The column of the iteration of the ``place``-th recursion; outside of the binder's ids."""
    return Col(-1_000_000 - place, ITERATION, t.INT4)


def reads(node: Node, name: str) -> bool:
    """Whether ``node`` depends on the work table ``name``."""
    if isinstance(node, WorkTable):
        return node.name == name
    return any(reads(child, name) for child in children(node))


def step_of(lowering: Lowering, node: Recursive, place: int) -> tuple[Node, WorkTable]:
    """The step with the number of the iteration as its last column, and its work table's shape.

    ``place`` tells the recursions of a plan apart.
    """
    number = _number(place)
    step = carried(lowering, node.step, node.name, number)
    items = tuple((c, c.ref) for c in (*node.step.columns, number))
    work = next(w for w in _work_tables(step) if w.name == node.name)
    return Project(step, items), work


def _work_tables(node: Node) -> list[WorkTable]:
    if isinstance(node, WorkTable):
        return [node]
    return [w for child in children(node) for w in _work_tables(child)]


def carried(lowering: Lowering, node: Node, name: str, number: Col) -> Node:
    """``node``, which reads the work table ``name``, with the column ``number``.

    Raises:
        UnsupportedError: it cannot be said to which iteration a row belongs, or there may be
            rows of an iteration that follows an empty one.
    """
    below = children(node)
    on_way = [reads(child, name) for child in below]
    if sum(on_way) > 1:
        lowering.refuse(f"more than one recursive reference {_REFUSED}")
    new = tuple(
        carried(lowering, child, name, number) if on else child
        for child, on in zip(below, on_way, strict=True)
    )
    match node:
        case WorkTable():
            return dataclasses.replace(node, columns=(*node.columns, number))
        case Filter() | Distinct() | Functions() | Expand():
            return with_children(node, new)
        case Project():
            return Project(new[0], (*node.items, (number, number.ref)))
        case Aggregate() if node.keys:
            keys = (*node.keys, (number, number.ref))
            return dataclasses.replace(node, input=new[0], keys=keys)
        case TopK() | Window():
            keys_ = (*node.keys, number.ref)
            return dataclasses.replace(node, input=new[0], keys=keys_)
        case Join() if node.kind == "inner" or (on_way[0] and node.kind != "full"):
            return _join(lowering, dataclasses.replace(node, left=new[0], right=new[1]))
        case _:
            return lowering.refuse(f"{_what(node)} over the recursive reference")


def _join(lowering: Lowering, join: Join) -> Node:
    """``join`` without conditions that may fail: they see rows of one iteration at a time."""
    late = tuple(p for p in join.condition if raises(p) and not _separates(join, p))
    if not late:
        return join
    if join.kind != "inner":
        lowering.refuse(f"a condition of an outer join that may fail {_REFUSED}")
    rest = tuple(p for p in join.condition if p not in late)
    return Filter(dataclasses.replace(join, condition=rest), late)


def _separates(join: Join, predicate: Expr) -> bool:
    """Whether ``predicate`` compares something of one side with something of the other."""
    if not isinstance(predicate, Call) or predicate.symbol != "=":
        return False
    sides = {
        tuple(refs(a) <= ids(side) for side in (join.left, join.right))
        for a in predicate.args
    }
    return sides == {(True, False), (False, True)}


def _what(node: Node) -> str:
    match node:
        case Aggregate():
            return "an aggregate without GROUP BY"
        case Join():
            return f"the other side of a {node.kind} join"
        case Recursive():
            return "another recursion"
        case _:
            return f"{type(node).__name__.upper()}"
