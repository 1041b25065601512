"""Pieces of a plan that one Spark task runs, with our own collections.

Between tasks a row travels as bytes, so Spark never touches a value:

    key (binary): decides the task      port: input of the node       row (binary): exact row
    w: weight

A *segment* is a collection that needs all rows of a key together (or reads a table), and the
stateless ones after it.  It leaves by an *exit*: keyed, for the node that needs the rows by key;
plain, for several users; or as result rows, into a file.  The states that its collections have
built are written as sorted runs when its input has ended.

Invariant 1: a repeated task writes the same files: parts are named by what is in them (the
least key; the number of the reading partition), never by the attempt.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from headrace.collections import build, plan
from headrace.collections.base import Collection, columns_of, decode, encode
from headrace.collections.join import keys_of as join_keys
from headrace.collections.plan import Node, PhysicalPlan, SourceSpec
from headrace.collections.source import load_batch, load_columns
from headrace.errors import BugError, HeadraceError, from_wire, to_wire
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import rows as row_kernel
from headrace.population import rows
from headrace.population.snapshot import SnapshotRef
from headrace.population.staging import Staging
from headrace.process import bounds
from headrace.process.bounds import Bound, Limits
from headrace.state.memory import MemoryStore
from headrace.types import Diffs, Field, Schema, TimeEnd

SPARK_SCHEMA: Final = "key binary, port int, row binary, w bigint"
ARROW_SCHEMA: Final = pa.schema(
    [("key", pa.binary()), ("port", pa.int32()), ("row", pa.binary()), ("w", pa.int64())]
)
ERROR_FILE: Final = "error.json"

PLAIN: Final = "plain"
RESULT: Final = "result"
KEYED: Final = "keyed"


@dataclass(frozen=True, slots=True)
class Exit:
    """How rows leave a segment; ``node`` and ``port`` are those of a keyed exit."""

    kind: str
    node: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """Collection ``head`` (or '': rows of node ``schema_of`` pass), then those of ``tail``."""

    head: str
    tail: tuple[str, ...] = ()
    schema_of: str = ""

    def then(self, node_id: str) -> Segment:
        """The segment with one more stateless collection."""
        return Segment(self.head, (*self.tail, node_id), self.schema_of)


@dataclass(frozen=True, slots=True)
class Spec:
    """Everything a task needs, as it stands in ``job.json``."""

    plan: PhysicalPlan
    dsn: str
    eval_dsn: str | None
    settings: dict[str, str]
    ref: SnapshotRef
    staging: Staging
    blocks: dict[str, list[list[int | None]]]
    """Per source: [first, last] block ranges, one for each reading partition."""
    idle_ms: int = 0
    """Milliseconds that a step may take; 0: any time."""

    def write(self) -> Path:
        """Put it where the tasks find it."""
        return self.staging.write_json("job.json", self)


_SPECS: Final = msgspec.json.Decoder(Spec, dec_hook=lambda kind, at: kind(at))


@functools.lru_cache(maxsize=2)
def load_spec(path: str) -> Spec:
    """The spec in file ``path``; kept, as one Python worker runs many tasks."""
    data = Path(path).read_bytes()
    return _SPECS.decode(data)


# --- running


def run(
    spec: Spec, segment: Segment, exit_: Exit, part: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run ``segment`` over encoded ``batches``; yields encoded ones."""
    inputs = _Inputs(spec.plan, segment)
    yield from _leave(
        spec,
        exit_,
        part,
        _schema(spec.plan, segment),
        _drive(spec, segment, inputs.decoded(batches), lambda: inputs.part or part),
    )


def run_source(
    spec: Spec, segment: Segment, exit_: Exit, number: int, batches: Iterable[list[pa.Array]]
) -> Iterator[pa.RecordBatch]:
    """Run ``segment``, whose head is a source, over typed columns as they were read."""
    node = spec.plan.node(segment.head)
    assert isinstance(node, SourceSpec), "a reading segment begins with a source"
    loads = ((0, load_batch(node, columns)) for columns in batches)
    schema = _schema(spec.plan, segment)
    produced = _drive(spec, segment, loads, lambda: str(number))
    yield from _leave(spec, exit_, str(number), schema, produced)


def spread_source(
    source: SourceSpec, batches: Iterable[list[pa.Array]]
) -> Iterator[pa.RecordBatch]:
    """Rows of a table without a key, sent so that equal rows meet in one task."""
    schema = load_schema(source)
    for columns in batches:
        count = len(columns[0])
        encoded = encode(columns, count)
        yield _encoded(encoded, 0, encoded, [1] * count)
    assert schema, "a table of no columns is refused by the reader"


def load_schema(source: SourceSpec) -> Schema:
    """What the reader reads, as a schema."""
    return tuple(Field(c.name, c.oid, c.typmod, c.collation) for c in load_columns(source))


def keys_of(node: Node, port: int) -> tuple[int, ...] | None:
    """Columns of the key by which ``node`` needs its input; None: all columns."""
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


@dataclass(slots=True)
class _Inputs:
    """Decodes a segment's input, and names its part by the least key."""

    plan: PhysicalPlan
    segment: Segment
    least: bytes | None = None

    @property
    def part(self) -> str | None:
        if self.least is None:
            return None
        return hashlib.sha256(self.least).hexdigest()[:24]

    def decoded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        schemas = self._schemas()
        source = self.segment.head and self.plan.node(self.segment.head)
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if self.segment.head:
                least = min(batch.column("key").to_pylist())
                self.least = least if self.least is None else min(self.least, least)
            ports = batch.column("port").to_numpy()
            for port, schema in enumerate(schemas):
                mask = ports == port
                if not mask.any():
                    continue
                piece = batch if mask.all() else batch.filter(pa.array(mask))
                found = decode(
                    piece.column("row").to_pylist(), schema, piece.column("w").to_numpy()
                )
                if isinstance(source, SourceSpec):
                    found = load_batch(source, columns_of(found))
                yield port, found

    def _schemas(self) -> list[Schema]:
        """Schema of each input port."""
        if not self.segment.head:
            return [self.plan.node(self.segment.schema_of).schema]
        node = self.plan.node(self.segment.head)
        if isinstance(node, SourceSpec):
            return [load_schema(node)]
        return [self.plan.node(name).schema for name in plan.inputs(node)]


def _drive(
    spec: Spec,
    segment: Segment,
    inputs: Iterable[tuple[int, pa.RecordBatch]],
    part: Callable[[], str],
) -> Iterator[pa.RecordBatch]:
    """Typed diffs of the segment's last collection; its states are written at the end."""
    store = MemoryStore(undo=False)
    remote = RemoteEvaluator(spec.dsn, spec.settings, spec.eval_dsn)
    try:
        chain = [
            build.make(spec.plan.node(name), spec.plan, store, remote, int(spec.ref.start_lsn))
            for name in (segment.head, *segment.tail)
            if name
        ]
        for collection in chain:
            collection.insert_only = True
        sent: Counter[int] = Counter()
        limits = Limits(time_ms=spec.idle_ms, time_name=bounds.IDLE)
        bound = Bound(limits, "a step of its population")
        for port, batch in inputs:
            sent[port] += batch.num_rows
            step = _pushed(bound, chain, port, Diffs(0, 0, batch), batch.num_rows)
            yield from step
        if chain:
            for port in range(chain[0].ports):
                end = TimeEnd(0, 0, sent[port])
                yield from _pushed(bound, chain, port, end, sent.total())
        spec.staging.write_state(part(), store.runs())
    finally:
        remote.close()


def _pushed(
    bound: Bound, chain: list[Collection], port: int, message: Diffs | TimeEnd, count: int
) -> list[pa.RecordBatch]:
    """What comes out at the end: one step, over ``count`` rows, whatever others do in between."""
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
        yield _encoded([b""], 0, [b""], [count])
        return
    for batch in batches:
        columns = columns_of(batch)
        encoded = encode(columns, batch.num_rows)
        weights = batch.column(batch.num_columns - 1).to_numpy().tolist()
        if exit_.kind == PLAIN:
            yield _encoded([b""] * batch.num_rows, 0, encoded, weights)
            continue
        keys = _keys(spec.plan.node(exit_.node), exit_.port, schema, batch)
        kept = [i for i, key in enumerate(keys) if key is not None]
        yield _encoded(
            [keys[i] for i in kept],
            exit_.port,
            [encoded[i] for i in kept],
            [weights[i] for i in kept],
        )


def _keys(node: Node, port: int, schema: Schema, batch: pa.RecordBatch) -> list[bytes | None]:
    """Key of each row; None where a NULL keeps it from being of any interest (joins)."""
    if isinstance(node, plan.JoinSpec) and not node.keeps_nulls(port):
        return join_keys(node, port, schema, batch)
    places = keys_of(node, port)
    if places is None:
        places = tuple(range(len(schema)))
    if not places:
        return [b""] * batch.num_rows
    return row_kernel.encode_keys(
        [batch.column(i) for i in places], [schema[i].oid for i in places], nulls=True
    )


def _schema(whole: PhysicalPlan, segment: Segment) -> Schema:
    """Schema of what comes out of ``segment``."""
    last = segment.tail[-1] if segment.tail else segment.head or segment.schema_of
    return whole.node(last).schema


def _encoded(
    keys: list[bytes] | list[bytes | None], port: int, encoded: list[bytes], weights: list[int]
) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.binary()),
            pa.array([port] * len(keys), pa.int32()),
            pa.array(encoded, pa.binary()),
            pa.array(weights, pa.int64()),
        ],
        schema=ARROW_SCHEMA,
    )


# --- errors cross the JVM as a file: Spark only passes on a text


def save_error(staging: Staging, error: HeadraceError) -> None:
    """Keep what went wrong in a task, for the builder to raise."""
    staging.write_json(ERROR_FILE, to_wire(error))


def saved_error(staging: Staging) -> HeadraceError | None:
    """The error of a task, if one failed for a reason of ours."""
    path = staging.path / ERROR_FILE
    if not path.exists():
        return None
    return from_wire(msgspec.json.decode(path.read_bytes(), type=dict[str, str]))


def single(node: Node) -> bool:
    """Whether all rows at all must meet in one task."""
    match node:
        case plan.JoinSpec():
            return not node.left_keys
        case plan.ReduceSpec():
            # Each task makes the groups that are always there.
            return not node.keys or bool(node.always)
        case plan.TopKSpec() | plan.WindowSpec():
            return not node.keys
        case plan.RecursiveSpec():
            return True
        case _:
            return False
