"""The physical plan: what each collection is, as frozen data without behaviour.

A plan is a tuple of nodes in topological order (inputs before users, the sink last).  It is
stored as JSON in ``headrace.views.plan`` and rebuilt from there in the worker, in a Spark
executor and in a test, so that the state on disk and the collections always agree.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.expressions.ir import Expr
from headrace.types import Field, PlanPart, Schema


class SourceColumn(PlanPart, frozen=True):
    """A column of a base table: ``attnum``; ``name`` is what it was called when it was planned."""

    attnum: int
    name: str
    oid: int
    typmod: int = -1
    collation: int = 0


class SourceSpec(PlanPart, frozen=True):
    """The rows of one base table (one node per table of a view, shared by its scans).

    ``columns`` are the output; ``key`` are the primary-key (or replica-identity index) columns,
    empty when the table has REPLICA IDENTITY FULL and rows are kept as a multiset.
    """

    id: str
    table_oid: int
    schema_name: str
    table_name: str
    columns: tuple[SourceColumn, ...]
    key: tuple[SourceColumn, ...]
    full_identity: bool
    pushdown: tuple[str, ...] = ()
    """``wanted`` as SQL that population adds to its COPY: text, place in ``columns``, text, …"""
    schema: Schema = ()
    wanted: tuple[Expr, ...] = ()
    """Rows for which one of these is not true are not kept, nor shown.  None of them may fail."""
    start_lsn: int = 0
    """Earlier changes are ignored: the table was empty there, and came later than the view."""


class FilterSpec(PlanPart, frozen=True):
    """Rows for which every predicate is true; predicates run in order on the survivors."""

    id: str
    input: str
    predicates: tuple[Expr, ...]
    schema: Schema = ()


class MapSpec(PlanPart, frozen=True):
    """One output column per expression."""

    id: str
    input: str
    expressions: tuple[Expr, ...]
    schema: Schema = ()


class FusedSpec(PlanPart, frozen=True):
    """A chain of Filter and Map run as one collection on a synchronous edge."""

    id: str
    input: str
    steps: tuple[FilterSpec | MapSpec, ...]
    schema: Schema = ()


class JoinSpec(PlanPart, frozen=True):
    """Pairs of left x right with equal keys and all ``residual`` true, and what ``op`` adds.

    ``op``: ``inner``; ``left`` and ``full`` add the rows without a partner, NULLs beside them;
    ``semi`` and ``anti`` are the left rows that have a partner, or have none, each as often as it
    is there.  A NULL in a key has no equal, save where ``null_safe`` (one per key; empty: none).
    Output columns are the left's, then (not for semi and anti) the right's.  Empty key tuples mean
    that all rows meet; ``residual`` is over the columns of left and right.
    """

    id: str
    left: str
    right: str
    left_keys: tuple[int, ...]
    right_keys: tuple[int, ...]
    residual: tuple[Expr, ...] = ()
    schema: Schema = ()
    op: str = "inner"
    null_safe: tuple[bool, ...] = ()

    @property
    def left_only(self) -> bool:
        """Whether it has the columns of the left side only."""
        return self.op in ("semi", "anti")

    @property
    def watched(self) -> tuple[int, ...]:
        """Ports whose rows are shown for having a partner, or for having none."""
        return {"inner": (), "full": (0, 1)}.get(self.op, (0,))

    def keeps_nulls(self, port: int) -> bool:
        """Whether rows of ``port`` matter that have a NULL in the key, and so no partner."""
        return port in self.watched and self.op != "semi"


class AggregateSpec(PlanPart, frozen=True):
    """One aggregate: ``function`` over input column ``argument`` where boolean column ``filter``.

    ``function``: ``count_star``, ``count``, ``sum``, ``avg``, ``min``, ``max``, ``any`` (the least
    representation of the values, by length then bytes), ``single`` (the value of the only row, NULL
    over no row, RowError 21000 over more) or ``remote``: keep the multiset and let Postgres
    evaluate ``sql`` for the touched groups.  There ``$1`` is ``argument``, ``$2`` … are ``more``,
    and ``$0`` is the row's place in the group's canonical order.
    """

    function: str
    argument: int | None
    filter: int | None
    result: Field
    sql: str = ""
    distinct: bool = False
    more: tuple[int, ...] = ()
    """Further columns, of ``remote`` alone."""
    direct: int = 0
    """So many of the last columns have one value in a group: direct arguments (WITHIN GROUP)."""
    trusted: bool = True
    """As ``Remote.trusted``."""
    row: tuple[int, ...] = ()
    """Columns, all it reads among them, that give the order of the group's rows.

    Aggregates of one ``ReduceSpec`` with the same row see its values together: ``remote`` in that
    order, ``any`` is the first value that is not NULL.  Without: each by ``columns`` of its own.
    """
    shows_order: bool = False
    """Whether its value depends on an order that the query may leave open."""

    @property
    def columns(self) -> tuple[int, ...]:
        """The columns it reads, but for the filter: ``argument`` and ``more``."""
        first = () if self.argument is None else (self.argument,)
        return first + self.more


class ReduceSpec(PlanPart, frozen=True):
    """Group by input columns ``keys``; output is the keys, then the aggregates.

    With no keys there is always exactly one output row, also over no input; so it is for the keys
    ``always`` (as output text).
    """

    id: str
    input: str
    keys: tuple[int, ...]
    aggregates: tuple[AggregateSpec, ...]
    schema: Schema = ()
    always: tuple[tuple[str | None, ...], ...] = ()


class ExpandSpec(PlanPart, frozen=True):
    """Each row once per grouping set.

    Output is the input's columns; then a copy of each input column ``keys``, NULL where the set
    (places in ``keys``) has it not; then the set's number, an int4.
    """

    id: str
    input: str
    keys: tuple[int, ...]
    sets: tuple[tuple[int, ...], ...]
    schema: Schema = ()


class SortKey(PlanPart, frozen=True):
    """One ORDER BY item: input column ``column`` under the ordering operator ``operator``.

    ``native``: the byte order of its canonical keys is that order; else Postgres is asked.
    ``trusted``: the operator and the type are built in.
    """

    column: int
    operator: str
    descending: bool
    nulls_first: bool
    native: bool
    trusted: bool = True


class TopKSpec(PlanPart, frozen=True):
    """Of each group of rows equal in columns ``keys``, ``limit`` rows from ``offset`` on.

    Rows stand in the order of ``order``, then of the canonical key of the other columns, then of
    their bytes.  ``limit`` None: no end.  ``ties``: also the rows equal in ``order`` to the last.
    """

    id: str
    input: str
    keys: tuple[int, ...]
    order: tuple[SortKey, ...]
    limit: int | None
    offset: int = 0
    ties: bool = False
    schema: Schema = ()


class RunningSpec(PlanPart, frozen=True):
    """A window function that needs nobody's help: its value follows from the rows before.

    ``function``: ``row_number``, ``rank``, ``dense_rank``, ``lag`` and ``lead`` (by ``distance``,
    else ``default`` as output text), ``first_value``, ``last_value``, ``count``, ``sum``, ``min``,
    ``max``; over column ``argument`` (``count`` without: rows) where boolean column ``condition``.
    """

    function: str
    argument: int | None = None
    condition: int | None = None
    distance: int = 0
    default: str | None = None


class WindowCallSpec(PlanPart, frozen=True):
    """One window function: ``sql`` is the call, with ``$n`` for input columns ``args``.

    FILTER is part of it, OVER is not.  ``frame`` is the frame clause (empty: the default).
    ``running``: the same for the collection ``RunningSpec``.
    """

    sql: str
    args: tuple[int, ...]
    result: Field
    trusted: bool = True
    running: RunningSpec | None = None
    frame: str = ""


class WindowSpec(PlanPart, frozen=True):
    """Each row of the input, then the values of ``calls`` over the same partitions and order.

    The windows are PARTITION BY columns ``keys`` ORDER BY ``order``, each call with a frame of its
    own.  Peers stand in one canonical order, the same for all calls.
    """

    id: str
    input: str
    keys: tuple[int, ...]
    order: tuple[SortKey, ...]
    calls: tuple[WindowCallSpec, ...]
    schema: Schema = ()

    @property
    def native(self) -> bool:
        """Whether ``RunningSpec`` computes it, not Postgres."""
        return all(c.running is not None for c in self.calls) and all(
            item.native for item in self.order
        )


class DistinctSpec(PlanPart, frozen=True):
    """Each distinct row once (equal as Postgres says; shown is the least representation)."""

    id: str
    input: str
    schema: Schema = ()


class UnionSpec(PlanPart, frozen=True):
    """The multiset sum of all inputs (UNION ALL)."""

    id: str
    inputs: tuple[str, ...]
    schema: Schema = ()


class SetOpSpec(PlanPart, frozen=True):
    """INTERSECT or EXCEPT (``op``: ``intersect``, ``except``), ``all`` or distinct.

    Rows are equal as in ``DistinctSpec``; shown are the least representations of the left side.
    """

    id: str
    left: str
    right: str
    op: str
    all: bool
    schema: Schema = ()


class FlatMapSpec(PlanPart, frozen=True):
    """Each row beside the rows that set-returning functions give for it.

    ``calls`` are SQL over ``$1`` …, the input columns ``arguments``; they run in lockstep
    (ROWS FROM).  The last columns of ``schema`` are theirs, the very last one the number of the
    row if ``ordinality``.  ``outer``: a row for which there is nothing appears with NULLs.
    """

    id: str
    input: str
    calls: tuple[str, ...]
    arguments: tuple[int, ...]
    ordinality: bool
    outer: bool
    trusted: bool
    schema: Schema = ()


ITERATION = "number of the iteration: no identifier of Postgres is as long as that"
"""Name of the column that the nodes in the step of a ``RecursiveSpec`` carry."""


class WorkTableSpec(PlanPart, frozen=True):
    """First node in the step of a ``RecursiveSpec``: rows of the iteration before.

    The last column of ``schema``, and some column of all that follows from it, is ``ITERATION``.
    """

    id: str
    schema: Schema = ()


class RecursiveSpec(PlanPart, frozen=True):
    """WITH RECURSIVE: ``base``, then ``step`` over the rows of the iteration before.

    ``step`` begins with the ``WorkTableSpec`` and ends with the node whose rows, ``ITERATION``
    last, are the next iteration; its nodes read each other and the nodes ``outer`` of the plan.
    ``distinct`` (UNION): a row that an earlier iteration had is not new.
    """

    id: str
    base: str
    outer: tuple[str, ...]
    step: tuple[Node, ...]
    distinct: bool
    iterations_max: int
    schema: Schema = ()
    rows_max: int = 10_000_000
    """Rows of one iteration that a txid may change."""


class ValuesSpec(PlanPart, frozen=True):
    """Constant rows, each with weight 1 at txid 0; ``rows`` hold Postgres' output text."""

    id: str
    rows: tuple[tuple[str | None, ...], ...]
    schema: Schema = ()


class FeedSpec(PlanPart, frozen=True):
    """Rows of a subplan that the worker keeps elsewhere: it stands in place of its last node.

    Part of a stored plan only where a view is fed from a connection point.
    """

    id: str
    schema: Schema = ()
    view: str = ""
    """The view whose rows they are, qualified and quoted; "": those of a part of a view."""
    table_oid: int = 0
    """That view's table, whose rows are read for the first contents."""
    pushdown: tuple[str, ...] = ()
    """Which of them are, as of ``SourceSpec``; the others are left out by what follows."""
    wanted: tuple[Expr, ...] = ()
    """The same as expressions."""


class TimeTestSpec(PlanPart, frozen=True):
    """A comparison with the clock, which is the column after the input's.

    How ``key`` (of the row, type ``oid``) stands to ``bound`` (of the clock alone, its only column)
    plus ``shift`` (microseconds, or days of a date) decides ``test``.
    """

    test: Expr
    key: Expr
    bound: Expr
    oid: int
    shift: int = 0
    ordered: bool = True
    """``oid`` is date, timestamp or timestamptz; else only equality matters."""
    ranged: bool = True
    """Rows between two bounds may change; false: only rows equal to one of them."""
    slack: int | None = None
    """How far the bound may fall behind one it has had, in units of ``shift``; None: unknown."""


class TemporalSpec(PlanPart, frozen=True):
    """Each row with one boolean column more per test, as of the batch's instant."""

    id: str
    input: str
    tests: tuple[TimeTestSpec, ...]
    schema: Schema = ()


class SinkSpec(PlanPart, frozen=True):
    """The end: consolidated rows of the view."""

    id: str
    input: str
    schema: Schema = ()
    key: tuple[str, ...] = ()
    """Columns of the result table's primary key: as proved, or as the user wants it."""


Node = (
    SourceSpec
    | FilterSpec
    | MapSpec
    | FusedSpec
    | JoinSpec
    | ExpandSpec
    | ReduceSpec
    | TopKSpec
    | WindowSpec
    | DistinctSpec
    | UnionSpec
    | SetOpSpec
    | FlatMapSpec
    | WorkTableSpec
    | RecursiveSpec
    | ValuesSpec
    | TemporalSpec
    | FeedSpec
    | SinkSpec
)


class PhysicalPlan(PlanPart, frozen=True):
    """Nodes in topological order; the last is the ``SinkSpec``."""

    nodes: tuple[Node, ...]
    version: int = 2
    """2: aggregates of one level that show the order of their input have a row in common."""

    def node(self, node_id: str) -> Node:
        """The node of that id (KeyError if there is none)."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise KeyError(node_id)

    @property
    def sources(self) -> tuple[SourceSpec, ...]:
        """All source nodes."""
        return tuple(n for n in self.nodes if isinstance(n, SourceSpec))

    @property
    def feeds(self) -> tuple[FeedSpec, ...]:
        """All nodes whose rows come from elsewhere."""
        return tuple(n for n in self.nodes if isinstance(n, FeedSpec))

    @property
    def temporal(self) -> bool:
        """Whether its rows change as time passes."""
        return any(isinstance(n, TemporalSpec) for n in self.nodes)

    @property
    def outdated(self) -> bool:
        """Whether the query would now be planned to other answers: it must be planned again."""
        return self.version < 2 and any(map(_apart, self.nodes))

    @property
    def sink(self) -> SinkSpec:
        """The sink node."""
        last = self.nodes[-1]
        assert isinstance(last, SinkSpec), "the sink is always last"
        return last

    def keyed(self, key: tuple[str, ...]) -> PhysicalPlan:
        """The same for a result table with that key."""
        nodes = (*self.nodes[:-1], msgspec.structs.replace(self.sink, key=key))
        return msgspec.structs.replace(self, nodes=nodes)


def _apart(node: Node) -> bool:
    """Whether values may stand in aggregates that each had an order of its own (version 1)."""
    if isinstance(node, RecursiveSpec):
        return any(map(_apart, node.step))
    if not isinstance(node, ReduceSpec):
        return False
    kept = [a for a in node.aggregates if a.function in ("remote", "any")]
    return len(kept) > 1


def inputs(node: Node) -> tuple[str, ...]:
    """Ids of the nodes that feed ``node``, in port order."""
    match node:
        case SourceSpec() | ValuesSpec() | WorkTableSpec() | FeedSpec():
            return ()
        case RecursiveSpec():
            return (node.base, *node.outer)
        case JoinSpec() | SetOpSpec():
            return (node.left, node.right)
        case UnionSpec():
            return node.inputs
        case _:
            return (node.input,)


def kind(part: type[PlanPart]) -> str:
    """What stored plans, and people, call a class of this module."""
    return str(part.__struct_config__.tag)


def to_json(value: PlanPart | Schema) -> Any:
    """``value`` as plain JSON data."""
    return msgspec.json.decode(msgspec.json.encode(value))


_READER: Final = msgspec.json.Decoder(PhysicalPlan)
"""Made while we are imported, by one thread (here as wherever JSON becomes objects): msgspec finds
out about a type in steps, and two threads that were the first to read it would end the process."""


def from_json(data: Any) -> PhysicalPlan:
    """The plan that ``to_json`` has given.

    Raises:
        ValueError, TypeError, KeyError: it is none.
    """
    return _READER.decode(msgspec.json.encode(_as_now(data)))


def _as_now(data: Any) -> Any:
    """Data of earlier as it is written now."""
    if not isinstance(data, dict):
        return data
    out = {k: [_as_now(n) for n in v] if k in ("nodes", "step") else v for k, v in data.items()}
    kind = out.get("kind")
    if kind == "Window" and "frame" in out:  # that of all its calls
        frame = out.pop("frame")
        out["calls"] = [{**call, "frame": frame} for call in out["calls"]]
    if kind == "Source" and out.get("pushdown") == "":  # a text, which never was another
        out["pushdown"] = []
    return out
