"""Logical plan nodes: frozen and typed, without behaviour beyond their columns.

Columns have plan-wide unique ids.  The order of a node's output matters only at the root, at the
inputs of ``UnionNode`` and ``SetOpNode``, and for ``ValuesNode``.

``ApplyNode`` is a join whose right side may read columns of its left side (LATERAL, subqueries in
expressions).  ``decorrelate.py`` replaces every one of them.  No rule and no collection sees a node
with a *free* reference, that is one to a column that none of its inputs has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, assert_never

from headrace.collections.aggregate_traits import AggregateFunction
from headrace.collections.plan import RunningSpec
from headrace.planner.analyse.tables import Table, TableColumn
from headrace.planner.logical.scalar import Expr, Ref, refs


@dataclass(frozen=True, slots=True)
class Col:
    """An output column."""

    id: int
    name: str
    oid: int
    typmod: int = -1
    collation: int = 0
    qualifier: str = ""

    @property
    def ref(self) -> Ref:
        """A reference to this column."""
        label = f"{self.qualifier}.{self.name}" if self.qualifier else self.name
        return Ref(self.id, self.oid, self.typmod, self.collation, label)


@dataclass(frozen=True, slots=True)
class ScanNode:
    """The rows of a base table for which all ``predicates`` are true.

    ``hidden`` columns are read by the predicates only.
    """

    table: Table
    alias: str
    fields: tuple[tuple[Col, TableColumn], ...]
    predicates: tuple[Expr, ...] = ()
    hidden: tuple[tuple[Col, TableColumn], ...] = ()

    @property
    def columns(self) -> tuple[Col, ...]:
        """Output columns."""
        return tuple(c for c, _ in self.fields)


@dataclass(frozen=True, slots=True)
class ValuesNode:
    """Constant rows, as output text."""

    columns: tuple[Col, ...]
    rows: tuple[tuple[str | None, ...], ...]


@dataclass(frozen=True, slots=True)
class FilterNode:
    """Rows for which all ``predicates`` are true."""

    input: Node
    predicates: tuple[Expr, ...]

    @property
    def columns(self) -> tuple[Col, ...]:
        """Output columns."""
        return self.input.columns


@dataclass(frozen=True, slots=True)
class ProjectNode:
    """One output column per expression."""

    input: Node
    items: tuple[tuple[Col, Expr], ...]

    @property
    def columns(self) -> tuple[Col, ...]:
        """Output columns."""
        return tuple(c for c, _ in self.items)


@dataclass(frozen=True, slots=True)
class JoinNode:
    """Pairs of rows for which all of ``condition`` is true.

    ``kind``: ``inner``; ``left`` and ``full`` add the rows without a match, padded with NULLs.
    ``semi`` and ``anti`` return the rows of the left side that have a match, or have none, with
    their multiplicity.  (A right join is a left one with its sides exchanged.)
    """

    left: Node
    right: Node
    condition: tuple[Expr, ...] = ()
    kind: str = "inner"

    @property
    def columns(self) -> tuple[Col, ...]:
        """Output columns."""
        if self.kind in LEFT_ONLY:
            return self.left.columns
        return self.left.columns + self.right.columns


@dataclass(frozen=True, slots=True)
class ApplyNode:
    """For every row of ``left`` the rows of ``right`` for it, joined as ``kind`` says.

    ``right`` and ``condition`` may read columns of ``left``.  ``kind``: ``inner``, ``left``,
    ``semi``, ``anti``.  ``asks`` (of a left join whose right side has at most one row): the columns
    of ``right`` are read only in rows for which all of it is true.  So ``right`` must not fail for
    other rows.
    """

    left: Node
    right: Node
    condition: tuple[Expr, ...] = ()
    kind: str = "inner"
    asks: tuple[Expr, ...] = ()

    @property
    def columns(self) -> tuple[Col, ...]:
        """Output columns."""
        if self.kind in LEFT_ONLY:
            return self.left.columns
        return self.left.columns + self.right.columns


PLAIN_ORDERS: Final = ("OPERATOR(pg_catalog.<)", "OPERATOR(pg_catalog.>)")
"""Ascending and descending order of built-in types."""


@dataclass(frozen=True, slots=True)
class ArgumentOrder:
    """One ORDER BY item of an aggregate: its place among the arguments; see ``OrderNode``."""

    place: int
    operator: str
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Agg:
    """One aggregate; ``function`` and the other fields are as in ``AggregateSpec``."""

    column: Col
    function: AggregateFunction
    argument: Expr | None = None
    filter: Expr | None = None
    distinct: bool = False
    sql: str = ""
    name: str = ""
    """Name of the SQL aggregate, for people."""
    more: tuple[Expr, ...] = ()
    direct: int = 0
    trusted: bool = True
    shows_order: bool = False
    """Whether its value depends on the order in which it sees its rows."""
    delimiter: str = ""
    order: tuple[ArgumentOrder, ...] = ()
    row: tuple[Expr, ...] = ()
    """Expressions that determine an order common to several aggregates (``alignment``)."""

    @property
    def arguments(self) -> tuple[Expr, ...]:
        """Every expression over the input that its function reads."""
        first = () if self.argument is None else (self.argument,)
        return first + self.more

    @property
    def inputs(self) -> tuple[Expr, ...]:
        """Every expression over the input that it needs: arguments, filter, the order's."""
        condition = () if self.filter is None else (self.filter,)
        return self.arguments + condition + self.row

    def over(self, value: Callable[[Expr], Expr]) -> Agg:
        """Return the aggregate over other expressions; equal ones must stay equal."""
        return dataclasses.replace(
            self,
            argument=None if self.argument is None else value(self.argument),
            filter=None if self.filter is None else value(self.filter),
            more=tuple(map(value, self.more)),
            row=tuple(map(value, self.row)),
        )


def over(aggs: Iterable[Agg], value: Callable[[Expr], Expr]) -> tuple[Agg, ...]:
    """Return ``aggs`` of one level over other expressions; each expression is replaced once."""
    known: dict[Expr, Expr] = {}

    def once(expr: Expr) -> Expr:
        if expr not in known:
            known[expr] = value(expr)
        return known[expr]

    return tuple(agg.over(once) for agg in aggs)


@dataclass(frozen=True, slots=True)
class AggregateNode:
    """Groups by ``keys``; without keys always exactly one row.

    The groups ``always`` (values of the keys as output text) exist also over no row of theirs:
    so a predicate over keys is not the same above and below.
    """

    input: Node
    keys: tuple[tuple[Col, Expr], ...]
    aggs: tuple[Agg, ...]
    always: tuple[tuple[str | None, ...], ...] = ()

    @property
    def columns(self) -> tuple[Col, ...]:
        """Output columns: keys, then aggregates."""
        return (*(c for c, _ in self.keys), *(a.column for a in self.aggs))


@dataclass(frozen=True, slots=True)
class DistinctNode:
    """Each distinct row once."""

    input: Node

    @property
    def columns(self) -> tuple[Col, ...]:
        """Output columns."""
        return self.input.columns


@dataclass(frozen=True, slots=True)
class UnionNode:
    """All rows of all inputs; columns correspond by position."""

    inputs: tuple[Node, ...]
    columns: tuple[Col, ...]


@dataclass(frozen=True, slots=True)
class SetOpNode:
    """INTERSECT and EXCEPT; columns correspond by position, rows are equal as in ``DistinctNode``.

    ``kind``: ``intersect`` or ``except``.  ``all`` keeps as many equal rows as SQL says.
    """

    kind: str
    all: bool
    left: Node
    right: Node
    columns: tuple[Col, ...]


@dataclass(frozen=True, slots=True)
class OrderNode:
    """One ORDER BY item over a column of the input.

    ``operator`` is its ordering operator as qualified SQL (``OPERATOR(pg_catalog.<)``).
    """

    column: Ref
    operator: str
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class TopKNode:
    """From each group of rows with equal ``keys``, ``limit`` rows starting at ``offset``.

    Rows equal in ``order`` are in one canonical order.  ``limit`` None: no limit.  ``ties``: also
    the rows that are equal in ``order`` to the last one.  DISTINCT ON (k) is ``limit`` 1 by k.
    """

    input: Node
    keys: tuple[Ref, ...]
    order: tuple[OrderNode, ...]
    limit: int | None
    offset: int = 0
    ties: bool = False

    @property
    def columns(self) -> tuple[Col, ...]:
        """Output columns."""
        return self.input.columns


@dataclass(frozen=True, slots=True)
class WindowCall:
    """One window function.

    ``sql`` is the call with ``$n`` for ``args`` (columns of the input), with FILTER and without the
    OVER clause.  ``frame`` is its frame clause as SQL, offsets as constants; it is empty for the
    default and where a frame has no meaning.  ``trusted``: only built-in functions take part.
    ``running``: the same for the collection ``Running``; its columns are places in ``args``.
    """

    column: Col
    function: str
    args: tuple[Ref, ...]
    sql: str
    show: str = ""
    trusted: bool = True
    running: RunningSpec | None = None
    frame: str = ""


@dataclass(frozen=True, slots=True)
class WindowNode:
    """Every row of ``input`` with the values of ``calls`` over the same partitions and order.

    Tied rows are in the same order for all calls.  Each call has its own frame.
    """

    input: Node
    keys: tuple[Ref, ...]
    order: tuple[OrderNode, ...]
    calls: tuple[WindowCall, ...]

    @property
    def columns(self) -> tuple[Col, ...]:
        """Output columns."""
        return (*self.input.columns, *(c.column for c in self.calls))


@dataclass(frozen=True, slots=True)
class FunctionsNode:
    """Each row of ``input``, joined with the rows that set-returning ``calls`` give for it.

    The calls run in lockstep, shorter ones padded with NULLs (ROWS FROM).  ``outputs`` are the
    columns of all calls in order; ``ordinality`` is the column of WITH ORDINALITY.  ``outer``: a
    row without results appears once, with NULLs.
    """

    input: Node
    calls: tuple[Expr, ...]
    outputs: tuple[Col, ...]
    ordinality: Col | None = None
    outer: bool = False

    @property
    def columns(self) -> tuple[Col, ...]:
        """Output columns."""
        more = () if self.ordinality is None else (self.ordinality,)
        return (*self.input.columns, *self.outputs, *more)


@dataclass(frozen=True, slots=True)
class ExpandNode:
    """Each row once per grouping set.

    ``sets[i]`` names the ``keys`` that stay, the others become NULL, and column ``number`` is i.
    """

    input: Node
    keys: tuple[tuple[Col, Ref], ...]
    """(output column, its value in sets that have the key)."""
    sets: tuple[frozenset[int], ...]
    """Places in ``keys``."""
    number: Col

    @property
    def columns(self) -> tuple[Col, ...]:
        """Output columns: the input's, the keys, the number of the set."""
        return (*self.input.columns, *(c for c, _ in self.keys), self.number)


@dataclass(frozen=True, slots=True)
class TimeTest:
    """A comparison with the clock: see ``collections.plan.TimeTestSpec``."""

    column: Col
    test: Expr
    """Reads columns of the input and ``scalar.CLOCK``."""
    key: Expr
    bound: Expr
    shift: int
    ordered: bool
    ranged: bool
    slack: int | None
    calendar: bool


@dataclass(frozen=True, slots=True)
class TemporalNode:
    """Every row of ``input`` with the values of ``tests`` at the instant of the batch.

    ``planner/passes/temporal.py`` makes it after all rules; before, expressions read
    ``scalar.CLOCK``.
    """

    input: Node
    tests: tuple[TimeTest, ...]

    @property
    def columns(self) -> tuple[Col, ...]:
        """Output columns."""
        return (*self.input.columns, *(t.column for t in self.tests))


@dataclass(frozen=True, slots=True)
class CalendarNode:
    """As ``TemporalNode``, with ``values`` that read the clock alone."""

    input: Node
    values: tuple[tuple[Col, Expr], ...]
    """(output column, its value)."""

    @property
    def columns(self) -> tuple[Col, ...]:
        """Output columns."""
        return (*self.input.columns, *(c for c, _ in self.values))


@dataclass(frozen=True, slots=True)
class WorkTableNode:
    """Inside the step of a ``RecursiveNode``: the rows of the iteration before."""

    name: str
    columns: tuple[Col, ...]


@dataclass(frozen=True, slots=True)
class RecursiveNode:
    """WITH RECURSIVE: ``base``, then ``step`` over the rows of the iteration before until none.

    ``distinct`` (UNION): a row that an earlier iteration had is not new.
    """

    base: Node
    step: Node
    name: str
    """That of the ``WorkTableNode`` leaves in ``step`` that are meant."""
    distinct: bool
    columns: tuple[Col, ...]


@dataclass(frozen=True, slots=True)
class AgainNode:
    """The rows of ``plan``, which has other readers too, under separate column ids.

    So a plan is a graph, and contains a subplan with several readers once.  The ids inside ``plan``
    are valid only there.  All nodes with the same ``number`` have the same ``plan``.
    ``outer``: during decorrelation the plan may read columns of outer queries, by these names.
    """

    plan: Node = field(compare=False, repr=False)
    number: int
    pairs: tuple[tuple[Col, int], ...]
    """(output column, id of the same in ``plan``)."""
    fails: bool
    """Whether something in it may fail on a row: ``facts.serious``."""
    outer: tuple[tuple[int, Ref], ...] = ()
    """(id of a free reference in ``plan``, the column it stands for here)."""
    rows: tuple[int, int | None] = (0, None)
    """Least and greatest number of rows for one row of the queries around it; None: unknown."""

    @property
    def columns(self) -> tuple[Col, ...]:
        """Output columns."""
        return tuple(c for c, _ in self.pairs)

    def inside(self, column: int) -> int:
        """Return the id that the output column ``column`` has in ``plan``."""
        return next(i for c, i in self.pairs if c.id == column)


Node = (
    ScanNode
    | ValuesNode
    | FilterNode
    | ProjectNode
    | JoinNode
    | ApplyNode
    | AggregateNode
    | DistinctNode
    | UnionNode
    | SetOpNode
    | TopKNode
    | WindowNode
    | FunctionsNode
    | ExpandNode
    | TemporalNode
    | CalendarNode
    | WorkTableNode
    | RecursiveNode
    | AgainNode
)
LEFT_ONLY: Final = ("semi", "anti")
"""Kinds of joins that show columns of the left side only."""


def children(node: Node) -> tuple[Node, ...]:
    """Return the inputs of ``node``; the plan that an ``AgainNode`` names is not one."""
    match node:
        case ScanNode() | ValuesNode() | WorkTableNode() | AgainNode():
            return ()
        case JoinNode() | ApplyNode() | SetOpNode():
            return (node.left, node.right)
        case RecursiveNode():
            return (node.base, node.step)
        case UnionNode():
            return node.inputs
        case (
            FilterNode()
            | ProjectNode()
            | AggregateNode()
            | DistinctNode()
            | TopKNode()
            | WindowNode()
            | FunctionsNode()
            | ExpandNode()
            | TemporalNode()
            | CalendarNode()
        ):
            return (node.input,)
        case _:
            assert_never(node)


def with_children(node: Node, new: tuple[Node, ...]) -> Node:
    """Return ``node`` over other inputs."""
    if all(a is b for a, b in zip(new, children(node), strict=True)):
        return node
    match node:
        case ScanNode() | ValuesNode() | WorkTableNode() | AgainNode():
            return node
        case RecursiveNode():
            return dataclasses.replace(node, base=new[0], step=new[1])
        case JoinNode() | ApplyNode() | SetOpNode():
            return dataclasses.replace(node, left=new[0], right=new[1])
        case UnionNode():
            return dataclasses.replace(node, inputs=new)
        case (
            FilterNode()
            | ProjectNode()
            | AggregateNode()
            | DistinctNode()
            | TopKNode()
            | WindowNode()
            | FunctionsNode()
            | ExpandNode()
            | TemporalNode()
            | CalendarNode()
        ):
            return dataclasses.replace(node, input=new[0])
        case _:
            assert_never(node)


def ids(node: Node) -> frozenset[int]:
    """Return the ids of the output columns."""
    return frozenset(c.id for c in node.columns)


def expressions(node: Node) -> tuple[Expr, ...]:
    """Return the expressions that ``node`` itself evaluates, references included."""
    match node:
        case ScanNode() | FilterNode():
            return node.predicates
        case (
            ProjectNode(items=pairs)
            | ExpandNode(keys=pairs)
            | AgainNode(outer=pairs)
            | CalendarNode(values=pairs)
        ):
            return tuple(e for _, e in pairs)
        case JoinNode():
            return node.condition
        case ApplyNode():
            return node.condition + node.asks
        case AggregateNode():
            keys = (e for _, e in node.keys)
            return (*keys, *(e for a in node.aggs for e in a.inputs))
        case TopKNode():
            return (*node.keys, *(o.column for o in node.order))
        case WindowNode():
            order = (o.column for o in node.order)
            return (*node.keys, *order, *(a for c in node.calls for a in c.args))
        case FunctionsNode():
            return node.calls
        case TemporalNode():
            return tuple(e for t in node.tests for e in (t.test, t.key, t.bound))
        case (
            ValuesNode()
            | DistinctNode()
            | UnionNode()
            | SetOpNode()
            | WorkTableNode()
            | RecursiveNode()
        ):
            return ()
        case _:
            assert_never(node)


Known = dict[int, tuple[Node, frozenset[int]]]
"""Cached facts of nodes, by ``id()``; holding the node prevents reuse of its id."""


def free(node: Node, known: Known | None = None) -> frozenset[int]:
    """Return ids of the columns that ``node`` or a node below it reads and that no input has.

    ``known`` caches the result per node.
    """
    if known is None:
        known = {}
    if id(node) not in known:
        known[id(node)] = (node, _free(node, known))
    return known[id(node)][1]


def _free(node: Node, known: Known) -> frozenset[int]:
    below = children(node)
    read: frozenset[int] = frozenset().union(*(refs(e) for e in expressions(node)))
    if isinstance(node, ScanNode):
        return read - {c.id for c, _ in (*node.fields, *node.hidden)}
    for child in below:
        read -= ids(child)
    if isinstance(node, ApplyNode):
        right = free(node.right, known) - ids(node.left)
        return read | free(node.left, known) | right
    return read.union(*(free(c, known) for c in below))


def kind(node: Node) -> str:
    """Return the name of a node for people."""
    return type(node).__name__.removesuffix("Node")
