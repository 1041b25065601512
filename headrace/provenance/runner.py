"""One collection, run once over complete inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from headrace.collections import base, build, plan
from headrace.collections.calendar import Calendar
from headrace.collections.temporal import Temporal
from headrace.expressions.remote import RemoteEvaluator
from headrace.process import bounds
from headrace.state.memory import MemoryStore
from headrace.types import Diffs, Schema, TimeEnd, arrow_schema

Input = tuple[Schema, Iterable[pa.RecordBatch]]


class Runner:
    """Runs collections of one view, as a population does: all rows are insertions of one txid."""

    def __init__(self, remote: RemoteEvaluator | None, instant: int) -> None:
        """``instant``: the query's ``now()``, in microseconds since 2000-01-01 UTC."""
        self._remote = remote
        self._instant = instant

    def run(self, node: plan.Node, inputs: Sequence[Input]) -> pa.RecordBatch:
        """Return the output of ``node``, in which equal rows may occur more than once."""
        names = [str(port) for port in range(len(inputs))]
        stubs = (plan.ValuesSpec(n, (), s) for n, (s, _) in zip(names, inputs, strict=True))
        node = _renamed(node, names)
        made = build.make(
            node, plan.PhysicalPlan((*stubs, node)), MemoryStore(undo=False), self._remote
        )
        made.insert_only = True
        if isinstance(made, Temporal | Calendar):
            made.instant = self._instant
        diffed = base.Diffed(node.schema)
        for port, (_, batches) in enumerate(inputs):
            count = 0
            for batch in batches:
                bounds.progress()
                for piece in base.cut(batch):
                    count += piece.num_rows
                    _take(made.receive(port, Diffs(0, 0, piece)), diffed)
            _take(made.receive(port, TimeEnd(0, 0, count)), diffed)
        return joined(node.schema, diffed.take())


def joined(schema: Schema, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return diff batches as one."""
    wanted = arrow_schema(schema)
    if len(batches) == 1:
        return pa.RecordBatch.from_arrays(batches[0].columns, schema=wanted)
    renamed = [pa.RecordBatch.from_arrays(b.columns, schema=wanted) for b in batches]
    found = pa.Table.from_batches(renamed, schema=wanted).combine_chunks().to_batches()
    return found[0] if found else pa.RecordBatch.from_pylist([], schema=wanted)


def consolidated(schema: Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return diffs with each row once."""
    diffed = base.Diffed(schema)
    diffed.add(batch)
    return joined(schema, diffed.take())


def _take(messages: Sequence[base.Message], diffed: base.Diffed) -> None:
    for message in messages:
        if isinstance(message, Diffs):
            diffed.add(message.batch)


def _renamed(node: plan.Node, names: Sequence[str]) -> Any:
    """Return ``node`` with other names of its inputs: a node may read one twice."""
    match node:
        case plan.JoinSpec() | plan.SetOpSpec():
            return replace(node, left=names[0], right=names[1])
        case plan.UnionSpec():
            return replace(node, inputs=tuple(names))
        case plan.ValuesSpec():
            return node
        case _:
            return replace(node, input=names[0])
