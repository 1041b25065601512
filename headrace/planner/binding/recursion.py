"""WITH RECURSIVE: binding, and the iteration number in the plan of the step.

All iterations run in one set of collections, so every row of the step has the number of its
iteration.  ``Carrier`` adds that column to all nodes between the work table and the root of the
step: to their output, and to the keys of nodes that combine several rows.  All other nodes are the
same for every iteration and stay outside.

Equation: with W = {(i, row) : row in R(i)}, carried(step)(W) = {(i, row) : row in step(R(i))}.
Counter-examples: in a FULL JOIN, unmatched rows of the other side belong to no iteration.  An
aggregate without GROUP BY returns a row for an empty iteration, at which Postgres would have
stopped.  Both are refused, as is every other construct that returns rows for empty input.

CYCLE is rewritten as Postgres does it (manual, 7.8.2.2): one column has the path so far, another
marks a row that is already in the path, and a marked row is not followed.  An element of the path
is the text of the row.  Only types whose equal values have the same text are accepted.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import psycopg

from headrace import types as t
from headrace.collections.plan import ITERATION
from headrace.errors import UnsupportedError
from headrace.expressions import keys as key_types
from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.binding.setops import SetOperations
from headrace.planner.logical.node_names import construct
from headrace.planner.logical.nodes import (
    AggregateNode,
    Col,
    DistinctNode,
    ExpandNode,
    FilterNode,
    FunctionsNode,
    JoinNode,
    Node,
    ProjectNode,
    RecursiveNode,
    SetOpNode,
    TopKNode,
    UnionNode,
    WindowNode,
    WorkTableNode,
    children,
    free,
    ids,
    with_children,
)
from headrace.planner.logical.scalar import Call, Const, Expr, quote, raises, refs
from headrace.planner.scalars import build
from headrace.planner.scalars.context import QueryContext
from headrace.planner.scalars.lower import Lowering
from headrace.planner.scalars.scope import Scope
from headrace.planner.scalars.typekeys import require_key

_REFUSED: Final = "in the recursive term of WITH RECURSIVE"
_FLAT: Final = (
    "Let the recursive term join and filter only, and apply the rest to the result of the"
    " recursive query."
)
_TEXTS: Final = 1009
"""text[]"""


class Recursions:
    """Binds the recursive queries of a plan."""

    def __init__(self, lowering: Lowering, column: Callable[[str, Expr], Col]) -> None:
        self._lowering = lowering
        self._column = column
        self._names: dict[int, str] = {}

    def bind(self, cte: Tree, operations: SetOperations) -> Node:
        """Return the plan of a recursive WITH query; ``operations`` binds its UNION."""
        union = cte.child("ctequery").child("setOperations")
        if cte.child("ctequery").nodes("sortClause"):
            self._lowering.refuse("ORDER BY in a recursive query")
        cycle = None
        if cte.node("cycle_clause") is not None:
            if cte.node("search_clause") is not None:
                self._lowering.refuse("SEARCH beside CYCLE")
            cycle = _Cycle(self._lowering, self._column, cte)
        base = operations.converted(operations.bind(union.child("larg")), union)
        columns = operations.columns(union, [c.name for c in base.columns])
        name = f"{cte.text('ctename')} {columns[0].id if columns else 0}"
        before = self._names.get(id(cte))
        self._names[id(cte)] = name
        step = operations.converted(operations.bind(union.child("rarg")), union)
        if before is not None:
            self._names[id(cte)] = before
        shown = columns
        if cycle is not None:
            base, step = cycle.begin(base), cycle.follow(step, name)
            shown, columns = columns + cycle.mark, columns + cycle.columns
        distinct = not union.flag("all")
        if distinct:
            operations.require_keys(base, "UNION")
        node = RecursiveNode(base, step, name, distinct, columns)
        return node if shown == columns else ProjectNode(node, _items(shown))

    def work_table(self, cte: Tree) -> Node:
        """Return the reference of ``cte`` to itself."""
        base = self._lowering.catalog.types.base
        types = [base(oid) for oid in cte.numbers("ctecoltypes")]
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
        return WorkTableNode(self._names[id(cte)], columns)


def _items(columns: tuple[Col, ...]) -> tuple[tuple[Col, Expr], ...]:
    return tuple((c, c.ref) for c in columns)


class _Cycle:
    """The columns of a CYCLE clause: the visible mark and the hidden path."""

    def __init__(self, lowering: Lowering, column: Callable[[str, Expr], Col], cte: Tree) -> None:
        clause = cte.child("cycle_clause")
        self._lowering = lowering
        self._column = column
        self._clause = clause
        names = [str(n) for n in cte.items("ctecolnames")]
        self._places = [names.index(str(n)) for n in clause.items("cycle_col_list")]
        nowhere = Scope(_nowhere)
        self._value = lowering.lower(clause.child("cycle_mark_value"), nowhere)
        self._default = lowering.lower(clause.child("cycle_mark_default"), nowhere)
        self.columns = self._made()

    @property
    def mark(self) -> tuple[Col, ...]:
        """The visible column."""
        return self.columns[:1]

    def _made(self) -> tuple[Col, ...]:
        mark = Const(
            None,
            self._lowering.catalog.types.base(self._clause.number("cycle_mark_type")),
            self._clause.number("cycle_mark_typmod", -1),
            self._clause.number("cycle_mark_collation"),
        )
        return (
            self._column(self._clause.text("cycle_mark_column") or "", mark),
            self._column("path", Const(None, _TEXTS, -1, _DEFAULT_COLLATION)),
        )

    def begin(self, base: Node) -> Node:
        """Return ``base`` with a new path for each row."""
        row = self._row(base)
        [path] = self._lowered([f"ARRAY[{row}]"], base.columns)
        new = zip(self._made(), (self._default, path), strict=True)
        return ProjectNode(base, (*_items(base.columns), *new))

    def follow(self, step: Node, name: str) -> Node:
        """Return ``step`` over only those rows of the work table ``name`` that close no cycle."""
        before = self._made()
        carrier = Carrier(self._lowering, name, lambda: before, alone=True)
        rows, _ = carrier.carried(step)
        every = (*step.columns, *before)
        mark, path = (f"s.a{len(step.columns) + n}" for n in (1, 2))
        row = self._row(step)
        value, default = (self._sql(e) for e in (self._value, self._default))
        goes_on, marked, longer = self._lowered(
            [
                f"{mark} OPERATOR(pg_catalog.<>) {value}",
                f"CASE WHEN {row} = ANY ({path}) THEN {value} ELSE {default} END",
                f"{path} || {row}",
            ],
            every,
        )
        new = zip(self._made(), (marked, longer), strict=True)
        return ProjectNode(FilterNode(rows, (goes_on,)), (*_items(step.columns), *new))

    def _row(self, node: Node) -> str:
        """Return SQL for the text of the cycle columns, over ``s.a1`` and so on."""
        for place in self._places:
            column = node.columns[place]
            require_key(self._lowering, column.ref, "CYCLE")
            if not key_types.is_canonical(column.oid):
                name = self._lowering.type_name(column.oid)
                self._lowering.refuse(f"CYCLE over type {name}")
        return f"ROW({', '.join(f's.a{p + 1}' for p in self._places)})::text"

    def _sql(self, expr: Expr) -> str:
        assert isinstance(expr, Const), "Postgres takes constants only"
        return quote(expr.text, self._lowering.type_name(expr.oid))

    def _lowered(self, sqls: list[str], columns: tuple[Col, ...]) -> list[Expr]:
        """Lower generated SQL over ``columns``, which are named ``s.a1`` and so on."""
        inputs = ", ".join(
            f"{quote(None, self._lowering.type_name(c.oid))} AS a{place}"
            for place, c in enumerate(columns, 1)
        )
        targets = ", ".join(f"{sql} AS c{n}" for n, sql in enumerate(sqls))
        query = f"SELECT {targets} FROM (SELECT {inputs}) s"  # noqa: S608  our own text
        try:
            tree = self._lowering.analysed(query)
        except psycopg.ProgrammingError as error:
            raise UnsupportedError(
                "the CYCLE clause cannot be converted to SQL text",
                detail=error.diag.message_primary,
            ) from error
        scope = Scope(lambda _, attno: columns[attno - 1].ref)
        return [self._lowering.lower(e.child("expr"), scope) for e in tree.nodes("targetList")]


_DEFAULT_COLLATION: Final = 100


def _nowhere(varno: int, attno: int) -> Expr:
    raise AssertionError(f"column {attno} of entry {varno} in a constant")


def reads(node: Node, name: str) -> bool:
    """Return whether ``node`` depends on the work table ``name``."""
    if isinstance(node, WorkTableNode):
        return node.name == name
    if isinstance(node, RecursiveNode) and node.name == name:
        return reads(node.base, name)  # a copy, whose step reads its own work table
    return any(reads(child, name) for child in children(node))


def step_of(context: QueryContext, node: RecursiveNode) -> tuple[Node, WorkTableNode]:
    """Return the step with the iteration number as its last column, and its work table.

    Raises:
        UnsupportedError: a row cannot be assigned to an iteration, or an iteration after an
            empty one may have rows.
    """
    numbers = itertools.count(_FIRST_NUMBER, -1)

    def fresh() -> tuple[Col, ...]:
        return (Col(next(numbers), ITERATION, t.INT4),)

    if not reads(node.step, node.name):
        context.refuse(f"no recursive reference {_REFUSED}")
    step, number = Carrier(context, node.name, fresh).carried(node.step)
    work = next(w for w in _work_tables(step) if w.name == node.name)
    return ProjectNode(step, _items((*node.step.columns, *number))), work


_FIRST_NUMBER: Final = -2_000_000
"""First id of iteration columns; ids count down, below those of the clock and of physical/."""


def _work_tables(node: Node) -> list[WorkTableNode]:
    if isinstance(node, WorkTableNode):
        return [node]
    return [w for child in children(node) for w in _work_tables(child)]


@dataclass(frozen=True, slots=True)
class Carrier:
    """Adds columns of the work table ``name`` to all nodes that depend on it.

    ``fresh`` makes new columns for each reference.  ``alone``: refuse nodes that combine several
    references or several rows.  ``outside`` replaces the other side of a join if that side reads
    the columns; it returns the replacement and the join conditions.
    """

    context: QueryContext
    name: str
    fresh: Callable[[], tuple[Col, ...]]
    alone: bool = False
    outside: Callable[[Node], tuple[Node, tuple[Expr, ...]]] | None = None

    def carried(self, node: Node) -> tuple[Node, tuple[Col, ...]]:
        """Add the columns to ``node``, which reads the work table; return both."""
        if isinstance(node, WorkTableNode):
            columns = self.fresh()
            return dataclasses.replace(node, columns=node.columns + columns), columns
        if isinstance(node, JoinNode):
            return self._join(node)
        if isinstance(node, UnionNode | SetOpNode):
            return self._together(node)
        below = children(node)
        if len(below) != 1:
            self._refuse(node)
        new, columns = self.carried(below[0])
        refs_ = tuple(c.ref for c in columns)
        several = isinstance(node, DistinctNode | AggregateNode | TopKNode | WindowNode)
        if several and self.alone:
            self._refuse(node)
        match node:
            case FilterNode() | DistinctNode() | FunctionsNode() | ExpandNode():
                return with_children(node, (new,)), columns
            case ProjectNode():
                return ProjectNode(new, (*node.items, *_items(columns))), columns
            case AggregateNode() if node.keys:
                keys = (*node.keys, *_items(columns))
                return dataclasses.replace(node, input=new, keys=keys), columns
            case TopKNode() | WindowNode():
                return dataclasses.replace(node, input=new, keys=(*node.keys, *refs_)), columns
            case _:
                return self._refuse(node)

    def _join(self, join: JoinNode) -> tuple[Node, tuple[Col, ...]]:
        left, right = (reads(n, self.name) for n in (join.left, join.right))
        if join.kind == "full" or not (left or join.kind == "inner"):
            self._refuse(join)
        if left and right and (self.alone or self.outside is not None):
            self._refuse(join)
        columns: tuple[Col, ...] = ()
        same: tuple[Expr, ...] = ()
        new_left, new_right = join.left, join.right
        if right:
            new_right, columns = self.carried(join.right)
        if left:
            new_left, mine = self.carried(join.left)
            same = tuple(
                build.comparison(self.context, "=", a.ref, b.ref, 0)
                for a, b in zip(mine, columns, strict=False)
            )
            columns = mine
        if self.outside is not None:
            other = join.right if left else join.left
            if free(other) & {c.id for c in columns}:
                found, same = self.outside(other)
                new_left, new_right = (new_left, found) if left else (found, new_right)
        late = tuple(p for p in join.condition if raises(p) and not _separates(join, p))
        if late and join.kind != "inner":
            self.context.refuse(f"a condition of an outer join that may fail {_REFUSED}")
        rest = tuple(p for p in join.condition if p not in late)
        node = dataclasses.replace(join, left=new_left, right=new_right, condition=(*same, *rest))
        # A condition that may fail must see only pairs of rows of the same iteration.
        result = FilterNode(node, late) if late else node
        if self.outside is None:
            return result, columns
        return ProjectNode(result, _items(join.columns + columns)), columns

    def _together(self, node: UnionNode | SetOpNode) -> tuple[Node, tuple[Col, ...]]:
        """Add the columns to each input of ``node``.

        Either side of INTERSECT, or the second of EXCEPT, may be independent of the work table:
        it then belongs to every iteration that has rows, and affects no other.  For UNION this is
        refused: Postgres evaluates the step once even if the first iteration is empty, and would
        return the independent rows.
        """
        inputs = children(node)
        there = [reads(n, self.name) for n in inputs]
        with_outside = isinstance(node, SetOpNode) and (there[0] or node.kind == "intersect")
        if self.alone or not (all(there) or (with_outside and self.outside is None)):
            self._refuse(node)
        new: list[Node] = []
        for each in inputs:
            if reads(each, self.name):
                below, mine = self.carried(each)
            else:
                iterations, mine = self._iterations(node)
                below = JoinNode(iterations, each)
            new.append(ProjectNode(below, _items((*each.columns, *mine))))
        columns = self.fresh()
        changed = with_children(node, tuple(new))
        assert isinstance(changed, UnionNode | SetOpNode), "the same kind of node"
        return dataclasses.replace(changed, columns=node.columns + columns), columns

    def _iterations(self, node: Node) -> tuple[Node, tuple[Col, ...]]:
        """Return the iterations that have rows."""
        work = next(w for w in _work_tables(node) if w.name == self.name)
        copied = tuple(
            dataclasses.replace(c, id=new.id) for c in work.columns for new in self.fresh()
        )
        again, columns = self.carried(WorkTableNode(work.name, copied))
        return DistinctNode(ProjectNode(again, _items(columns))), columns

    def _refuse(self, node: Node) -> tuple[Node, tuple[Col, ...]]:
        where = "beside CYCLE" if self.alone else _REFUSED
        return self.context.refuse(
            f"{construct(node)} over the recursive reference {where}", hint=_FLAT
        )


def _separates(join: JoinNode, predicate: Expr) -> bool:
    """Return whether ``predicate`` equates expressions of the two sides."""
    if not isinstance(predicate, Call) or predicate.symbol != "=":
        return False
    sides = {
        tuple(refs(a) <= ids(side) for side in (join.left, join.right)) for a in predicate.args
    }
    return sides == {(True, False), (False, True)}
