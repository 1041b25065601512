"""Divides the rows of collections without keys among tasks, by one input port.

Equal rows stay together; every task has all rows of the other port.  That is correct for

* a join without keys: the matches of a row depend on the rows of the other side alone.  A full
  join cannot be divided, because unmatched rows of both sides matter;
* collections that read the clock, which treat each row by itself;
* a top-k or an aggregate without keys, in two steps: each *share* of the rows computes its first
  rows or partial aggregates, and one task combines them (``front``).  The state of a share holds
  its own rows or values only.  Values of several columns take a copy of each row per column.

Division pays if the larger side is the divided one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
import pyarrow as pa

from headrace.collections import partial_reduce, plan
from headrace.collections.base import Collection
from headrace.collections.combined_reduce import CombinedReduce
from headrace.collections.partial_reduce import FinalReduce, PartialReduce
from headrace.collections.plan import Node, PhysicalPlan
from headrace.collections.topk import HEAD, TopK
from headrace.errors import BugError
from headrace.expressions.remote import RemoteEvaluator
from headrace.population import equal_rows
from headrace.types import Schema

_ROWS_PER_SENT: Final = 10
"""Smallest ratio of input rows to rows that a share sends for which shares pay."""


def in_two_steps(node: Node) -> bool:
    """Return whether ``node`` can be computed from partial results of shares of its rows."""
    match node:
        case plan.TopKSpec():
            return not node.keys and node.limit is not None
        case plan.ReduceSpec():
            return partial_reduce.divided_by(node) is not None
        case _:
            return False


def belongs_to_step(node: Node, state: str, *, front: bool) -> bool:
    """Return whether ``state`` of ``node`` belongs to the final step (``front``) or to a share."""
    together = f"{node.id}.{HEAD}" if isinstance(node, plan.TopKSpec) else node.id
    return (state == together) == front


def share(node: Node, in_schema: Schema, remote: RemoteEvaluator | None) -> Collection:
    """Return the collection that computes the partial result of a share."""
    if isinstance(node, plan.ReduceSpec):
        return PartialReduce(node, in_schema, remote)
    if isinstance(node, plan.TopKSpec) and node.limit is not None:
        more = msgspec.structs.replace(node, limit=node.limit + node.offset, offset=0)
        return TopK(more, in_schema, remote)
    raise BugError(f'node "{node.id}" has no shares')


def ports(node: Node) -> int:
    """Return the number of input ports of a share of ``node``."""
    columns = partial_reduce.divided_by(node) if isinstance(node, plan.ReduceSpec) else None
    return max(1, len(columns or ()))


def shared_schema(node: Node, in_schema: Schema) -> Schema:
    """Return the schema of the partial results of ``node``."""
    return (
        partial_reduce.schema(node, in_schema) if isinstance(node, plan.ReduceSpec) else node.schema
    )


def front(node: Node, in_schema: Schema, remote: RemoteEvaluator | None) -> Collection:
    """Return the collection that combines the partial results of all shares."""
    if isinstance(node, plan.ReduceSpec):
        return FinalReduce(node, in_schema, remote)
    if isinstance(node, plan.TopKSpec):
        return TopK(node, in_schema, remote)
    raise BugError(f'node "{node.id}" has no shares')


def combined(node: Node, in_schema: Schema, remote: RemoteEvaluator | None) -> Collection:
    """Return the reduce of rows, some of which were added up before."""
    if isinstance(node, plan.ReduceSpec):
        return CombinedReduce(node, in_schema, remote)
    raise BugError(f'rows of node "{node.id}" cannot be added up')


def copies(node: Node, batch: pa.RecordBatch) -> Iterator[tuple[tuple[int, ...], pa.RecordBatch]]:
    """Yield ``batch`` for each port of a share of ``node``, with the columns that divide its rows.

    () means all columns.  In later copies, columns that the share does not read are NULL.
    """
    columns = partial_reduce.divided_by(node) if isinstance(node, plan.ReduceSpec) else ()
    if not isinstance(node, plan.ReduceSpec) or not columns:
        yield (), batch
        return
    for port, column in enumerate(columns):
        read = partial_reduce.read_by(node, port)
        yield (column,), batch if read is None else equal_rows.reduced(batch, read)


def divided(physical: PhysicalPlan, tables: Mapping[str, int]) -> dict[str, int]:
    """Return the port that divides each divided node; ``tables``: the rows of each source."""
    found = rows(physical, tables)
    out: dict[str, int] = {}
    for node in physical.nodes:
        inputs = [found[name] for name in plan.inputs(node)]
        if isinstance(node, plan.TemporalSpec | plan.CalendarSpec):
            out[node.id] = 0
        if in_two_steps(node) and inputs[0] > _ROWS_PER_SENT * found[node.id]:
            out[node.id] = 0
        if isinstance(node, plan.JoinSpec) and not node.left_keys:
            left, right = inputs
            if node.op != "full" and left >= right:
                out[node.id] = 0
            elif node.op == "inner":
                out[node.id] = 1
    return out


def rows(physical: PhysicalPlan, tables: Mapping[str, int]) -> dict[str, int]:
    """Return a rough upper bound of the rows of each node; ``tables``: the rows of each source."""
    out: dict[str, int] = {}
    for node in physical.nodes:
        out[node.id] = _rows(node, [out[name] for name in plan.inputs(node)], tables)
    return out


def _rows(node: plan.Node, inputs: list[int], tables: Mapping[str, int]) -> int:
    """Return a rough upper bound of the rows of ``node``; groups and matches are not estimated."""
    match node:
        case plan.SourceSpec() | plan.FeedSpec():
            return tables[node.id]
        case plan.ValuesSpec():
            return len(node.rows)
        case plan.ReduceSpec() if not node.keys:
            return 1
        case plan.TopKSpec() if not node.keys and node.limit is not None:
            return min(node.limit + node.offset, *inputs)
        case plan.JoinSpec() if node.left_only:
            return inputs[0]
        case plan.UnionSpec():
            return sum(inputs)
        case _:
            return max(inputs, default=0)
