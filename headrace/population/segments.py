"""Segments: pieces of a plan that one Spark task runs, with Headrace's collections.

A *segment* is a collection that needs all rows of a key together (or reads a table), and the
stateless ones after it.  Its rows leave by an *exit*: keyed, for the node that needs the rows by
key; plain, for several readers; or as result rows, into a file.  Between segments diffs travel as
blocks (``edges``).  At the end of its input a segment writes its states as sorted runs.

Invariant 1: a repeated task writes the same files: parts are named by their content (the part of
the key, or the number of the reading partition), never by the attempt.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import re
import uuid
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from headrace.collections import build, combined_reduce, plan, reduce
from headrace.collections.base import Collection, columns_of, cut
from headrace.collections.calendar import Calendar
from headrace.collections.combined_reduce import FrequentGroups
from headrace.collections.plan import FeedSpec, Node, PhysicalPlan, SourceSpec
from headrace.collections.source import load_batch, load_columns
from headrace.collections.temporal import Temporal
from headrace.errors import BugError, HeadraceError, from_wire, to_wire
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import packed
from headrace.population import division, edges, equal_rows, fed_rows, merging, ranges, rows
from headrace.population.edges import Arrivals
from headrace.population.fed_rows import FedRows, Remaining
from headrace.population.frequent_keys import NONE, FrequentKeys
from headrace.population.ranges import RangeNode, Ranges, RowOrder
from headrace.population.reader import TableOrigin
from headrace.population.snapshot import SnapshotRef
from headrace.population.staging import Staging
from headrace.process import bounds
from headrace.process.bounds import Bound, Limits
from headrace.state.loaded import Pieces
from headrace.state.memory import MemoryStore
from headrace.types import Diffs, Field, Schema, TimeEnd, diff_batch

ERROR_FILE: Final = "error.json"

PLAIN: Final = "plain"
RESULT: Final = "result"
KEYED: Final = "keyed"
SAMPLE: Final = "sample"

BlockStream = Generator[pa.RecordBatch, None, None]
"""Rows of a task, as blocks (``edges``)."""

FIRST_PART: Final = "k0"
_TASK_ERROR: Final = re.compile(r"\bTaskError: ([0-9A-Za-z+/=]+)")

WHOLE: Final = "whole"
SHARE: Final = "share"
FRONT: Final = "front"
COMBINED: Final = "combined"
SUMMARY: Final = "summary"
RANGE: Final = "range"


class TaskError(Exception):
    """An error of a task, encoded so that its text has all of it."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How rows leave a segment; a keyed exit also has the receiving node, its port, the parts.

    A sample is of the rows that ``node`` is to receive.
    """

    kind: str
    node: str = ""
    port: int = 0
    parts: int = 1
    frequent: FrequentKeys = NONE
    ranges: Ranges = ranges.NONE
    """The ranges that divide the rows of the node, if it is divided like that."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Collection ``head`` (or '': rows of node ``schema_of`` pass through), then ``tail``."""

    head: str
    tail: tuple[str, ...] = ()
    schema_of: str = ""
    step: str = WHOLE
    """Step of the head: WHOLE, or one of two steps (``division``): SHARE, then FRONT; COMBINED:
    the rows before may have been added up (``combined_reduce``); or of ranges (``ranges``):
    SUMMARY, then RANGE."""
    parts: int = 1
    """Number of tasks that the rows of the head are divided among."""
    frequent: FrequentKeys = NONE
    """The frequent keys of the head, a join."""
    ranges: Ranges = ranges.NONE
    """The ranges of the head."""

    def then(self, node_id: str) -> Segment:
        """Return the segment with one more stateless collection."""
        return replace(self, tail=(*self.tail, node_id))


@dataclass(frozen=True, slots=True)
class Spec:
    """All inputs of a task, as stored in ``job-<n>.json``."""

    plan: PhysicalPlan
    dsn: str
    eval_dsn: str | None
    settings: dict[str, str]
    ref: SnapshotRef
    staging: Staging
    blocks: dict[str, list[list[int | None]]]
    """By source: [first, last] block ranges, one for each reading partition."""
    divided: dict[str, int]
    """By node: the port whose rows are divided without a key; rows of other ports go to all."""
    instant: int = 0
    """``now()``, the same in all tasks, in microseconds since 2000-01-01 UTC."""
    idle_ms: int = 0
    """Milliseconds that a step may take; 0 means no limit."""
    owner: str = ""
    """Owner label that the evaluator separates user code by."""
    turns: str = ""
    """Directory in which the machine's processes take turns to run user code; '' on a cluster."""
    origins: dict[str, TableOrigin] = field(default_factory=dict)
    """By source: the table of another database that is read in its place."""
    fed: dict[str, FedRows] = field(default_factory=dict)
    """By node: the rows of a feeding view."""
    returned: bool = False
    """Whether the files of tasks come back with their rows: they see no shared directory."""

    def given(self) -> str:
        """Return the spec for tasks: a file in the shared directory, or its text."""
        if self.returned:
            return msgspec.json.encode(self, enc_hook=os.fspath).decode()
        # A worker that runs tasks of a second attempt must not find the spec of the first.
        return str(self.staging.write_json(f"job-{uuid.uuid4().hex}.json", self))


_SPECS: Final = msgspec.json.Decoder(Spec, dec_hook=lambda kind, at: kind(at))


@functools.lru_cache(maxsize=2)
def load_spec(given: str) -> Spec:
    """Return the spec of ``Spec.given``; cached, because one Python worker runs many tasks."""
    return _SPECS.decode(given if given.startswith("{") else Path(given).read_bytes())


# --- running


def run(
    spec: Spec, segment: Segment, exit_: Exit, part: str, batches: Iterable[pa.RecordBatch]
) -> BlockStream:
    """Run ``segment`` over blocks; yield blocks."""
    blocks = Arrivals(_schemas(spec.plan, segment))
    batches = blocks.begin(batches)
    inputs = _loads(spec, segment, blocks.read(batches))
    head = spec.plan.node(segment.head) if segment.head else None
    if isinstance(head, plan.ReduceSpec):
        head = _of_part(spec.plan, head, blocks.part, segment.parts)
    named = part if blocks.part is None or not segment.head else f"k{blocks.part}"
    produced = _drive(spec, segment, head, inputs, named)
    yield from _leave(spec, exit_, part, _schema(spec.plan, segment), produced)


def run_source(
    spec: Spec, segment: Segment, exit_: Exit, number: int, batches: Iterable[list[pa.Array]]
) -> Iterator[pa.RecordBatch]:
    """Run ``segment``, whose head is a source or a feed, over typed columns from the reader."""
    node = spec.plan.node(segment.head)
    loads: Iterable[tuple[int, pa.RecordBatch]]
    if isinstance(node, SourceSpec):
        loads = ((0, load_batch(node, columns)) for columns in batches)
    else:
        loads = fed_rows.read(spec.fed[node.id], batches, first=number == 0)
    schema = _schema(spec.plan, segment)
    produced = _drive(spec, segment, node, loads, str(number))
    yield from _leave(spec, exit_, str(number), schema, produced)


def by_content(spec: Spec, node: SourceSpec | FeedSpec) -> bool:
    """Return whether equal rows of a table must meet in one task (``scan_source``)."""
    return node.full_identity if isinstance(node, SourceSpec) else bool(spec.fed[node.id].removed)


def scan_source(
    spec: Spec,
    node: SourceSpec | FeedSpec,
    parts: int,
    number: int,
    batches: Iterable[list[pa.Array]],
) -> Iterator[pa.RecordBatch]:
    """Yield blocks of block range ``number``, divided so that equal rows meet in one task."""
    if isinstance(node, FeedSpec):
        for port, batch in fed_rows.read(spec.fed[node.id], batches, first=number == 0):
            yield edges.spread(batch, port, edges.identities(batch), parts)
        return
    schema = load_schema(node)
    for columns in batches:
        ones = pa.array(np.ones(len(columns[0]), np.int64))
        for batch in cut(diff_batch(schema, columns, ones)):
            yield edges.spread(batch, 0, edges.identities(batch), parts)


def load_schema(source: SourceSpec) -> Schema:
    """Return the schema of the columns that the reader reads."""
    return tuple(Field(c.name, c.oid, c.typmod, c.collation) for c in load_columns(source))


def keys_of(node: Node, port: int) -> tuple[int, ...] | None:
    """Return the key columns by which ``node`` needs its input; None means all columns."""
    match node:
        case plan.JoinSpec():
            return node.left_keys if port == 0 else node.right_keys
        case plan.ReduceSpec() | plan.TopKSpec() | plan.WindowSpec():
            return node.keys
        case plan.DistinctSpec() | plan.SetOpSpec():
            return None
        case plan.RecursiveSpec():
            return ()
        case _:
            raise BugError(f'node "{node.id}" needs no keys')


def _schemas(whole: PhysicalPlan, segment: Segment) -> list[Schema]:
    """Return the schema of each input port of ``segment``."""
    if not segment.head:
        return [whole.node(segment.schema_of).schema]
    node = whole.node(segment.head)
    if isinstance(node, SourceSpec):
        return [load_schema(node)]
    if isinstance(node, FeedSpec):
        return [node.schema, node.schema]  # rows, removed rows
    schemas = [whole.node(name).schema for name in plan.inputs(node)]
    if segment.step == SHARE:
        return schemas * division.ports(node)
    if segment.step == COMBINED:
        assert isinstance(node, plan.ReduceSpec), "only rows of a reduce are added up"
        return [schemas[0], combined_reduce.schema(node, schemas[0])]
    return [division.shared_schema(node, schemas[0])] if segment.step == FRONT else schemas


def _loads(
    spec: Spec, segment: Segment, inputs: Iterable[tuple[int, pa.RecordBatch]]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Convert ``inputs`` to the form that the head of ``segment`` takes."""
    head = segment.head and spec.plan.node(segment.head)
    if isinstance(head, FeedSpec):
        yield from Remaining(spec.fed[head.id]).run(inputs)
        return
    if not isinstance(head, SourceSpec):
        yield from inputs
        return
    for port, batch in inputs:
        yield port, load_batch(head, columns_of(batch))


def _drive(
    spec: Spec,
    segment: Segment,
    head: Node | None,
    inputs: Iterable[tuple[int, pa.RecordBatch]],
    part: str,
) -> Iterator[pa.RecordBatch]:
    """Yield the typed diffs of the segment's last collection; write its states at the end.

    ``head``: the head's node, as far as task ``part`` computes it.
    """
    store = MemoryStore(undo=False)
    with contextlib.closing(evaluator(spec)) as remote:
        chain = _chain(spec, segment, head, part, store, remote)
        sent: Counter[int] = Counter()
        bound = bound_of_step(spec)
        for port, batch in inputs:
            sent[port] += batch.num_rows
            yield from pushed(bound, chain, port, Diffs(0, 0, batch), batch.num_rows)
        if chain:
            for port in range(chain[0].ports):
                end = TimeEnd(0, 0, sent[port])
                yield from pushed(bound, chain, port, end, sent.total())
        _write_states(spec, segment, part, store.runs())


def evaluator(spec: Spec) -> RemoteEvaluator:
    """Return an evaluator for the expressions of a task; the caller closes it."""
    turns = Path(spec.turns) if spec.turns else None
    return RemoteEvaluator(spec.dsn, spec.settings, spec.eval_dsn, owner=spec.owner, folder=turns)


def bound_of_step(spec: Spec) -> Bound:
    """Return the bound of one step of a task."""
    limits = Limits(time_ms=spec.idle_ms, time_name=bounds.IDLE)
    return Bound(limits, "a step of its population")


def _chain(
    spec: Spec,
    segment: Segment,
    head: Node | None,
    part: str,
    store: MemoryStore,
    remote: RemoteEvaluator,
) -> list[Collection]:
    whole, lsn = spec.plan, int(spec.ref.start_lsn)
    nodes = [whole.node(name) for name in segment.tail]
    chain = []
    if head is not None and (segment.step != WHOLE or ranges.is_range(head)):
        [schema] = (whole.node(name).schema for name in plan.inputs(head))
        made = _step(segment, head, schema, part, remote)
        made.open(store)
        chain.append(made)
    elif head is not None:
        nodes.insert(0, head)
    chain += [build.make(node, whole, store, remote, lsn) for node in nodes]
    for collection in chain:
        collection.insert_only = True
        if isinstance(collection, Temporal | Calendar):
            collection.instant = spec.instant
    return chain


def _step(
    segment: Segment, head: Node, schema: Schema, part: str, remote: RemoteEvaluator
) -> Collection:
    """Return the collection of one of several steps of ``head``."""
    if segment.step == SUMMARY:
        return ranges.summary(head, schema, part)
    if segment.step in (RANGE, WHOLE):
        return ranges.started(head, schema, segment.ranges, part, remote)
    steps = {SHARE: division.share, FRONT: division.front, COMBINED: division.combined}
    return steps[segment.step](head, schema, remote)


def _write_states(spec: Spec, segment: Segment, part: str, states: dict[str, Pieces]) -> None:
    """Stage the states of task ``part``; states that all tasks share are written by the first."""
    own, parts = dict(states), {}
    if segment.head:
        head = spec.plan.node(segment.head)
        divided = spec.divided.get(head.id)
        if isinstance(head, plan.JoinSpec) and divided is not None and part != FIRST_PART:
            own.pop(_state_of(head, 1 - divided), None)
        if isinstance(head, plan.JoinSpec) and segment.frequent and part != FIRST_PART:
            for port in (0, 1):
                name = _state_of(head, port)
                if name in own:
                    own[name] = segment.frequent.without_shared(port, own[name])
        if segment.step in (SHARE, FRONT):
            front = segment.step == FRONT
            own = {n: s for n, s in own.items() if division.belongs_to_step(head, n, front=front)}
        parts = {name: own.pop(name) for name in merging.shared(head) if name in own}
    merging.leave(spec.staging, part, parts)
    spec.staging.write_state(part, own)


def _state_of(node: plan.JoinSpec, port: int) -> str:
    """Return the name of the state that a join keeps the rows of ``port`` in."""
    return f"{node.id}.{('left', 'right')[port]}"


def pushed(
    bound: Bound, chain: list[Collection], port: int, message: Diffs | TimeEnd, count: int
) -> list[pa.RecordBatch]:
    """Push a message through the chain as one bounded step of ``count`` rows; return the output."""
    bound.begin()
    bound.admit(count, 0)
    with bound.applied():
        return list(_push(chain, port, message))


def _push(chain: list[Collection], port: int, message: Diffs | TimeEnd) -> Iterator[pa.RecordBatch]:
    if not chain:
        if isinstance(message, Diffs):
            yield message.batch
        return
    for outgoing in chain[0].receive(port, message):
        yield from _push(chain[1:], 0, outgoing)


def _leave(
    spec: Spec, exit_: Exit, part: str, schema: Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    if exit_.kind == RESULT:
        pieces = (p for batch in batches for p in rows.render(schema, batch))
        count = spec.staging.write_rows(part, pieces)
        yield edges.counted(count)
        return
    if exit_.kind == KEYED:
        yield from _announced(spec.plan, exit_)
    if exit_.kind == KEYED and combined(spec, spec.plan.node(exit_.node)):
        yield from _leave_combined(spec, exit_, batches)
        return
    if exit_.kind == PLAIN:
        yield from map(edges.whole, batches)
        return
    node = spec.plan.node(exit_.node)
    if exit_.kind == SAMPLE:
        yield from map(edges.whole, ranges.sampled(_order(node, schema), batches))
        return
    if exit_.ranges:
        order = _order(node, schema)
        for batch in batches:
            numbers = exit_.ranges.numbers(order.keys(batch))
            yield edges.placed(batch, exit_.port, numbers, exit_.parts)
        return
    divided = spec.divided.get(node.id)
    for batch in equal_rows.added_up(node, schema, batches):
        if divided not in (None, exit_.port):
            yield edges.to_all(batch, exit_.port, exit_.parts)
            continue
        if divided is None:
            keys = edges.keys_for(node, exit_.port, keys_of(node, exit_.port), schema, batch)
            yield from exit_.frequent.spread(batch, exit_.port, keys, exit_.parts)
            continue
        for number, (places, copy) in enumerate(division.copies(node, batch)):
            port = exit_.port + number
            keys = (
                edges.keys_for(node, port, places, schema, copy)
                if places
                else edges.identities(copy)
            )
            yield edges.spread(copy, port, keys, exit_.parts)


def _order(node: Node, schema: Schema) -> RowOrder:
    assert isinstance(node, RangeNode), "only these are divided into ranges"
    return RowOrder(node, schema)


def _announced(whole: PhysicalPlan, exit_: Exit) -> Iterator[pa.RecordBatch]:
    """Yield blocks without rows to the parts of the groups that always exist, maybe without rows.

    A task knows its part from the blocks that it gets.
    """
    node = whole.node(exit_.node)
    if isinstance(node, plan.ReduceSpec):
        for part in sorted(set(_parts_of_always(whole, node, exit_.parts))):
            yield edges.without_rows(whole.node(node.input).schema, part)


def _parts_of_always(whole: PhysicalPlan, node: plan.ReduceSpec, parts: int) -> list[int]:
    """Return the part of each group of ``node`` that always exists."""
    if not node.always:
        return []
    schema = whole.node(node.input).schema
    keys, _ = reduce.always(node, [schema[i].oid for i in node.keys])
    return [*edges.parts_of(packed.all_valid(keys), parts).tolist()]


def _of_part(
    whole: PhysicalPlan, node: plan.ReduceSpec, part: int | None, parts: int
) -> plan.ReduceSpec:
    """Return ``node`` with only those groups that always exist in ``part``; None: it is empty."""
    owners = _parts_of_always(whole, node, parts)
    own = tuple(key for key, owner in zip(node.always, owners, strict=True) if owner == part)
    return msgspec.structs.replace(node, always=own)


def _leave_combined(
    spec: Spec, exit_: Exit, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield blocks for a reduce; rows of frequent groups are added up first."""
    node = spec.plan.node(exit_.node)
    assert isinstance(node, plan.ReduceSpec), "only rows of a reduce are added up"
    schema = spec.plan.node(node.input).schema
    groups = FrequentGroups(node, schema)

    def spread(
        port: int, places: tuple[int, ...], schema: Schema, batch: pa.RecordBatch
    ) -> pa.RecordBatch:
        keys = edges.keys_for(node, port, places, schema, batch)
        return edges.spread(batch, port, keys, exit_.parts)

    for batch in batches:
        rest = groups.rest(batch)
        if rest.num_rows:
            yield spread(combined_reduce.ROWS, node.keys, schema, rest)
    places, shown = tuple(range(len(node.keys))), combined_reduce.schema(node, schema)
    for batch in groups.partials():
        yield spread(combined_reduce.PARTIALS, places, shown, batch)


def combined(spec: Spec, node: Node) -> bool:
    """Return whether rows of frequent groups are added up before they reach ``node``."""
    return isinstance(node, plan.ReduceSpec) and combined_reduce.is_combinable(
        node, spec.plan.node(node.input).schema
    )


def _schema(whole: PhysicalPlan, segment: Segment) -> Schema:
    """Return the output schema of ``segment``."""
    last = segment.tail[-1] if segment.tail else segment.head or segment.schema_of
    return whole.node(last).schema


# --- errors cross the JVM as a file, or in their text, which is all that Spark passes on


def save_error(spec: Spec, error: HeadraceError) -> None:
    """Save the error of a task, for the builder to raise.

    Raises:
        TaskError: the same error, whose text the builder reads; if no directory is shared.
    """
    if not spec.returned:
        spec.staging.write_json(ERROR_FILE, to_wire(error))
        return
    raise TaskError(base64.b64encode(msgspec.json.encode(to_wire(error))).decode()) from None


def saved_error(spec: Spec, text: str) -> HeadraceError | None:
    """Return the saved error of a task, if there is one; ``text``: that of Spark's error."""
    path = spec.staging.path / ERROR_FILE
    if path.exists():
        return from_wire(msgspec.json.decode(path.read_bytes(), type=dict[str, str]))
    found = _TASK_ERROR.search(text)
    if not spec.returned or found is None:
        return None
    try:
        return from_wire(msgspec.json.decode(base64.b64decode(found[1]), type=dict[str, str]))
    except (ValueError, msgspec.MsgspecError):
        return None  # Spark has cut it off


def single(spec: Spec, node: Node) -> bool:
    """Return whether all rows must meet in one task."""
    match node:
        case plan.JoinSpec():
            return not node.left_keys and node.id not in spec.divided
        case plan.ReduceSpec() | plan.TopKSpec():
            return not node.keys and node.id not in spec.divided
        case plan.WindowSpec():
            return not node.keys
        case plan.RecursiveSpec():
            return True
        case _:
            return False
