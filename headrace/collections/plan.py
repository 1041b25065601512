"""The physical plan: a description of each collection, as frozen data without behaviour.

A plan is a tuple of nodes in topological order (inputs before users, the sink last).  It is
stored as JSON in ``headrace.views.plan``.  The worker, a Spark executor and a test rebuild it
from there, so that the state on disk and the collections always agree.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.collections.aggregate_traits import AggregateFunction
from headrace.expressions.ir import Column, Expr
from headrace.types import Field, PlanPart, Schema


class SourceColumn(PlanPart, frozen=True):
    """A column of a base table, by ``attnum``; ``name`` is its name at planning time."""

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
    """``wanted`` as SQL that population adds to its COPY: text, index in ``columns``, text, …"""
    schema: Schema = ()
    wanted: tuple[Expr, ...] = ()
    """Predicates: rows for which one is not true are neither stored nor emitted.  None may fail."""
    start_lsn: int = 0
    """LSN before which changes are ignored: the table is newer than the view and was empty."""


class FilterSpec(PlanPart, frozen=True):
    """Rows for which every predicate is true; predicates run in order on the survivors."""

    id: str
    input: str
    predicates: tuple[Expr, ...]
    schema: Schema = ()


class MapSpec(PlanPart, frozen=True):
    """A projection with one output column per expression."""

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


class Comparison(PlanPart, frozen=True):
    """``left operator right``, one of < <= > >=, between columns of one type of each side.

    Canonical keys of the type sort as Postgres does.
    """

    left: int
    operator: str
    right: int


class JoinSpec(PlanPart, frozen=True):
    """Pairs of left x right with equal keys and all ``residual`` true, modified by ``op``.

    ``op``: ``inner``; ``left`` and ``full`` add the unmatched rows, extended with NULLs; ``semi``
    and ``anti`` are the matched or unmatched left rows, with their multiplicity.  A NULL in a key
    equals nothing, except where ``null_safe`` (one per key; empty: none).
    Output columns are the left's, then (not for semi and anti) the right's.  Empty key tuples are a
    cross product; ``residual`` is over the columns of left and right.  ``compared``, of a semi or
    anti join only, is a residual predicate in a form that keeps the left in its order.
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
    compared: Comparison | None = None

    @property
    def left_only(self) -> bool:
        """Whether the output has the columns of the left side only."""
        return self.op in ("semi", "anti")

    @property
    def watched(self) -> tuple[int, ...]:
        """Ports whose rows are output because they have a match, or because they have none."""
        return {"inner": (), "full": (0, 1)}.get(self.op, (0,))

    def keeps_nulls(self, port: int) -> bool:
        """Return whether unmatched rows of ``port`` with a NULL in the key are output."""
        return port in self.watched and self.op != "semi"


class SortKey(PlanPart, frozen=True):
    """One ORDER BY item: input column ``column`` under the ordering operator ``operator``.

    ``native``: the byte order of its canonical keys is that order; else Postgres ranks the rows.
    ``trusted``: the operator and the type are built in.
    """

    column: int
    operator: str
    descending: bool
    nulls_first: bool
    native: bool
    trusted: bool = True


class AggregateSpec(PlanPart, frozen=True):
    """One aggregate: ``function`` over input column ``argument`` where boolean column ``filter``.

    ``function``: ``count_star``, ``count``, ``sum``, ``avg``, ``min``, ``max``, ``any`` (the least
    representation of the values, by length then bytes), ``single`` (the value of the only row, NULL
    over no row, RowError 21000 over more), ``string_agg`` (of texts, with ``delimiter`` between
    two) and ``array_agg`` in ``order``, then in the order of ``row``, or ``remote``: keep the
    multiset, and Postgres evaluates ``sql`` for the touched groups.  In ``sql``, ``$1`` is
    ``argument``, ``$2`` … are ``more``, and ``$0`` is the row's position in the group's canonical
    order.
    """

    function: AggregateFunction
    argument: int | None
    filter: int | None
    result: Field
    sql: str = ""
    distinct: bool = False
    more: tuple[int, ...] = ()
    """Further argument columns, for ``remote``, ``string_agg`` and ``array_agg`` only."""
    direct: int = 0
    """Number of direct arguments (WITHIN GROUP): the last columns, constant within a group."""
    trusted: bool = True
    """As ``Remote.trusted``."""
    row: tuple[int, ...] = ()
    """Columns that order the group's rows, including all columns that it reads.

    Aggregates of one ``ReduceSpec`` with the same ``row`` read the same rows: ``remote`` in their
    order; ``any`` takes the first value that is not NULL.  Empty: each uses its own ``columns``.
    """
    shows_order: bool = False
    """Whether its value depends on an order that the query may leave open."""
    delimiter: str = ""
    order: tuple[SortKey, ...] = ()
    """The columns are among ``columns``; each is native."""

    @property
    def columns(self) -> tuple[int, ...]:
        """The columns that it reads, without the filter: ``argument`` and ``more``."""
        first = () if self.argument is None else (self.argument,)
        return first + self.more


class ReduceSpec(PlanPart, frozen=True):
    """Group by input columns ``keys``; output is the keys, then the aggregates.

    Without keys there is always exactly one output row, also over no input.  The keys ``always``
    (as output text) have an output row likewise.
    """

    id: str
    input: str
    keys: tuple[int, ...]
    aggregates: tuple[AggregateSpec, ...]
    schema: Schema = ()
    always: tuple[tuple[str | None, ...], ...] = ()


class ExpandSpec(PlanPart, frozen=True):
    """Each row once per grouping set.

    Output is the input's columns; then a copy of each input column in ``keys``, NULL where the set
    (indexes into ``keys``) lacks it; then the set's number, an int4.
    """

    id: str
    input: str
    keys: tuple[int, ...]
    sets: tuple[tuple[int, ...], ...]
    schema: Schema = ()


class TopKSpec(PlanPart, frozen=True):
    """In each group of rows equal in columns ``keys``: ``limit`` rows from ``offset`` on.

    Rows are sorted by ``order``, then by the canonical key of the other columns, then by bytes.
    ``limit`` None: no limit.  ``ties``: also the rows equal in ``order`` to the last one.
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
    """A window function that Headrace computes without Postgres.

    ``function``: ``row_number``, ``rank``, ``dense_rank``, ``lag`` and ``lead`` (by ``distance``,
    else ``default`` as output text), ``first_value``, ``last_value``, ``count``, ``sum``, ``avg``,
    ``min``, ``max``; over column ``argument`` (``count`` without: rows) where boolean column
    ``condition``.  ``frame``: the first and the last row of the frame, as numbers of rows behind
    the row; None: all rows up to the row or its peers.
    """

    function: str
    argument: int | None = None
    condition: int | None = None
    distance: int = 0
    default: str | None = None
    frame: tuple[int, int] | None = None


class WindowCallSpec(PlanPart, frozen=True):
    """One window function: ``sql`` is the call, with ``$n`` for input columns ``args``.

    FILTER is part of it, OVER is not.  ``frame`` is the frame clause (empty: the default).
    ``running``: the same call for the collection ``Running``, where that can compute it.
    """

    sql: str
    args: tuple[int, ...]
    result: Field
    trusted: bool = True
    running: RunningSpec | None = None
    frame: str = ""


class WindowSpec(PlanPart, frozen=True):
    """Each row of the input, then the values of ``calls`` over the same partitions and order.

    The windows are PARTITION BY columns ``keys`` ORDER BY ``order``; each call has its own frame.
    Peers have one canonical order, the same for all calls.
    """

    id: str
    input: str
    keys: tuple[int, ...]
    order: tuple[SortKey, ...]
    calls: tuple[WindowCallSpec, ...]
    schema: Schema = ()

    @property
    def native(self) -> bool:
        """Whether the collection ``Running`` computes all calls, not Postgres."""
        return all(c.running is not None for c in self.calls) and all(
            item.native for item in self.order
        )


class DistinctSpec(PlanPart, frozen=True):
    """Each distinct row once, by Postgres' equality, in its least representation."""

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

    Rows are equal as in ``DistinctSpec``; the output has the left side's least representations.
    """

    id: str
    left: str
    right: str
    op: str
    all: bool
    schema: Schema = ()


class FlatMapSpec(PlanPart, frozen=True):
    """Each row joined with the rows that set-returning functions return for it.

    ``calls`` are SQL over ``$1`` …, the input columns ``arguments``; they run in lockstep
    (ROWS FROM).  The last columns of ``schema`` are theirs; with ``ordinality`` the very last one
    is the row's number.  ``outer``: a row without function rows is extended with NULLs.
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
    """First node in the step of a ``RecursiveSpec``: the rows of the previous iteration.

    The last column of ``schema``, and some column of every node computed from it, is ``ITERATION``.
    """

    id: str
    schema: Schema = ()


class RecursiveSpec(PlanPart, frozen=True):
    """WITH RECURSIVE: ``base``, then ``step`` over the rows of the previous iteration.

    ``step`` begins with the ``WorkTableSpec`` and ends with the node whose rows, ``ITERATION``
    last, are the next iteration.  Its nodes read each other and the nodes ``outer`` of the plan.
    ``distinct`` (UNION): a row of an earlier iteration is not new.
    """

    id: str
    base: str
    outer: tuple[str, ...]
    step: tuple[Node, ...]
    distinct: bool
    iterations_max: int
    schema: Schema = ()
    rows_max: int = 10_000_000
    """Maximum rows of one iteration that a txid may change."""


class ValuesSpec(PlanPart, frozen=True):
    """Constant rows, each with weight 1 at txid 0; ``rows`` hold Postgres' output text."""

    id: str
    rows: tuple[tuple[str | None, ...], ...]
    schema: Schema = ()


class FeedSpec(PlanPart, frozen=True):
    """Rows of a shared subplan, in place of the subplan's last node.

    A stored plan contains it only if the view is fed from a connection point.
    """

    id: str
    schema: Schema = ()
    view: str = ""
    """The view that the rows belong to, qualified and quoted; "": rows of a part of a view."""
    table_oid: int = 0
    """OID of that view's table, which population reads."""
    pushdown: tuple[str, ...] = ()
    """Filter of the rows to read, as in ``SourceSpec``; the nodes above drop the other rows."""
    wanted: tuple[Expr, ...] = ()
    """The filter as expressions."""


class TimeTestSpec(PlanPart, frozen=True):
    """A comparison with the clock, which is the column after the input's.

    The order of ``key`` (of the row, type ``oid``) and ``bound`` (of the clock alone, its only
    column) plus ``shift`` (microseconds, or days of a date) determines ``test``.
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
    """How far the bound may fall behind an earlier one, in units of ``shift``; None: unknown."""
    calendar: bool = False
    """Whether ``bound`` changes only at whole seconds."""


class TemporalSpec(PlanPart, frozen=True):
    """Each row with one more boolean column per test, as of the batch's timestamp."""

    id: str
    input: str
    tests: tuple[TimeTestSpec, ...]
    schema: Schema = ()


class CalendarSpec(PlanPart, frozen=True):
    """Each row with one more column per value, as of the batch's timestamp.

    ``values`` read the clock alone, their only column, and change only at whole seconds.
    """

    id: str
    input: str
    values: tuple[Expr, ...]
    schema: Schema = ()


class SinkSpec(PlanPart, frozen=True):
    """The last node: the consolidated rows of the view."""

    id: str
    input: str
    schema: Schema = ()
    key: tuple[str, ...] = ()
    """Columns of the result table's primary key: proved by the planner, or set by the user."""
    conditions: tuple[str, ...] = ()
    """Row security of the result table: SQL conditions over its columns.  A role sees the rows for
    which all are true."""
    discreet: bool = False
    """Whether rows are read with the rights of a role for which the view's owner may not act."""

    @property
    def withholds_rows(self) -> bool:
        """Whether errors show no row, because the view's owner may not be allowed to see it."""
        return self.discreet or bool(self.conditions)


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
    | CalendarSpec
    | FeedSpec
    | SinkSpec
)


class PhysicalPlan(PlanPart, frozen=True):
    """Nodes in topological order; the last is the ``SinkSpec``."""

    nodes: tuple[Node, ...]
    version: int = 3
    """2: aggregates of one level that depend on the order of their input share ``row``.  3: columns
    of result tables that have lost or moved some are the right ones."""
    filled: tuple[tuple[str, int], ...] | msgspec.UnsetType = msgspec.UNSET
    """The result tables (OIDs) that the first rows of the view were read from, by the node that has
    their rows (``stacking.py``).  Not in the JSON of other plans, which must equal the JSON that
    earlier versions have stored."""

    def node(self, node_id: str) -> Node:
        """Return the node with that id; raise KeyError if there is none."""
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
        """All nodes fed by another dataflow."""
        return tuple(n for n in self.nodes if isinstance(n, FeedSpec))

    @property
    def filled_from(self) -> dict[str, int]:
        """``filled`` by node; empty if it is not set."""
        return {} if self.filled is msgspec.UNSET else dict(self.filled)

    @property
    def temporal(self) -> bool:
        """Whether the rows change as time passes."""
        return any(isinstance(n, TemporalSpec | CalendarSpec) for n in self.nodes)

    @property
    def outdated(self) -> bool:
        """Whether the query must be planned again, because a new plan would give other results."""
        return self.version < 2 and any(map(_apart, self.nodes))

    @property
    def sink(self) -> SinkSpec:
        """The sink node."""
        last = self.nodes[-1]
        assert isinstance(last, SinkSpec), "the sink is always last"
        return last

    def keyed(self, key: tuple[str, ...]) -> PhysicalPlan:
        """Return the plan for a result table with that key."""
        return self._with_sink(msgspec.structs.replace(self.sink, key=key))

    def secured(self, conditions: tuple[str, ...], *, discreet: bool) -> PhysicalPlan:
        """Return the plan for a result table with these conditions for its readers."""
        sink = msgspec.structs.replace(self.sink, conditions=conditions, discreet=discreet)
        return self._with_sink(sink)

    def _with_sink(self, sink: SinkSpec) -> PhysicalPlan:
        return msgspec.structs.replace(self, nodes=(*self.nodes[:-1], sink))


def _apart(node: Node) -> bool:
    """Return whether aggregates of the node may each use a separate row order (version 1)."""
    if isinstance(node, RecursiveSpec):
        return any(map(_apart, node.step))
    if not isinstance(node, ReduceSpec):
        return False
    kept = [a for a in node.aggregates if a.function in ("remote", "any")]
    return len(kept) > 1


def inputs(node: Node) -> tuple[str, ...]:
    """Return the ids of the nodes that feed ``node``, in port order."""
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


def emits_once(plan: PhysicalPlan, node: Node) -> bool:
    """Return whether no row occurs twice in what ``node`` emits for a txid, in new memory.

    Then it need not be consolidated.  A map qualifies only if it shows all columns of its input.
    """
    match node:
        case ReduceSpec() | DistinctSpec() | SetOpSpec():
            return True
        case WindowSpec():
            return node.native
        case FilterSpec() | MapSpec() | FusedSpec():
            below = plan.node(node.input)
            steps = node.steps if isinstance(node, FusedSpec) else (node,)
            columns = len(below.schema)
            for step in steps:
                if isinstance(step, MapSpec):
                    shown = {e.index for e in step.expressions if isinstance(e, Column)}
                    if len(shown) < columns:
                        return False
                    columns = len(step.schema)
            return emits_once(plan, below)
        case _:
            return False


def kind(part: type[PlanPart]) -> str:
    """Return the name of a class of this module in stored plans and in messages."""
    return str(part.__struct_config__.tag)


def to_json(value: PlanPart | Schema) -> Any:
    """Return ``value`` as plain JSON data."""
    return msgspec.json.decode(msgspec.json.encode(value))


_READER: Final = msgspec.json.Decoder(PhysicalPlan)
"""Decoder made at import, by one thread (as all JSON decoders here): msgspec inspects a type in
steps, and two threads that read it first at the same time would crash the process."""


def from_json(data: Any) -> PhysicalPlan:
    """Return the plan that ``to_json`` encoded.

    Raises:
        ValueError, TypeError, KeyError: the data is not a plan.
    """
    return _READER.decode(msgspec.json.encode(_as_now(data)))


def _as_now(data: Any) -> Any:
    """Return data of an earlier format in the current one."""
    if not isinstance(data, dict):
        return data
    out = {k: [_as_now(n) for n in v] if k in ("nodes", "step") else v for k, v in data.items()}
    kind = out.get("kind")
    if kind == "Window" and "frame" in out:  # the frame of all calls
        frame = out.pop("frame")
        out["calls"] = [{**call, "frame": frame} for call in out["calls"]]
    if kind == "Source" and out.get("pushdown") == "":  # a text, always empty
        out["pushdown"] = []
    return out
