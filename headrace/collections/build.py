"""Construction of collections from plan nodes."""

from __future__ import annotations

from typing import assert_never

from headrace.collections import plan
from headrace.collections.base import Collection
from headrace.collections.calendar import Calendar
from headrace.collections.chain import Filter, Fused, Map
from headrace.collections.distinct import Distinct
from headrace.collections.expand import Expand
from headrace.collections.flatmap import FlatMap
from headrace.collections.given import Feed, Values
from headrace.collections.join import Join
from headrace.collections.plan import Node, PhysicalPlan
from headrace.collections.recursive import Recursive
from headrace.collections.reduce import Reduce
from headrace.collections.running import Running
from headrace.collections.setop import SetOp
from headrace.collections.sink import Sink
from headrace.collections.source import Source
from headrace.collections.temporal import Temporal
from headrace.collections.threshold import Threshold
from headrace.collections.topk import TopK
from headrace.collections.union import Union
from headrace.collections.window import Window
from headrace.errors import BugError
from headrace.expressions.remote import RemoteEvaluator
from headrace.state.contract import StateStore


def make(
    node: Node,
    whole: PhysicalPlan,
    store: StateStore,
    remote: RemoteEvaluator | None,
    start_lsn: int = 0,
) -> Collection:
    """Return the collection of ``node``, opened over ``store``.

    ``whole`` is the plan that holds the node and its inputs' schemas.  Sources ignore changes
    before ``start_lsn``.
    """
    made = _make(node, whole, remote, start_lsn)
    made.open(store)
    return made


def _make(  # noqa: C901  one case per node
    node: Node, whole: PhysicalPlan, remote: RemoteEvaluator | None, start_lsn: int
) -> Collection:
    schemas = [whole.node(name).schema for name in plan.inputs(node)]
    match node:
        case plan.SourceSpec():
            return Source(node, start_lsn)
        case plan.FilterSpec():
            return Filter(node, schemas[0], remote)
        case plan.MapSpec():
            return Map(node, schemas[0], remote)
        case plan.FusedSpec():
            return Fused(node, schemas[0], remote)
        case plan.JoinSpec() if node.compared is not None:
            return Threshold(node, schemas[0], schemas[1])
        case plan.JoinSpec():
            return Join(node, schemas[0], schemas[1], remote)
        case plan.ExpandSpec():
            return Expand(node)
        case plan.ReduceSpec():
            return Reduce(node, schemas[0], remote)
        case plan.DistinctSpec():
            return Distinct(node)
        case plan.TopKSpec():
            return TopK(node, schemas[0], remote)
        case plan.WindowSpec():
            if node.native:
                return Running(node, schemas[0])
            return Window(node, schemas[0], remote)
        case plan.UnionSpec():
            return Union(node)
        case plan.SetOpSpec():
            return SetOp(node)
        case plan.FlatMapSpec():
            return FlatMap(node, schemas[0], remote)
        case plan.RecursiveSpec():
            outer = tuple(whole.node(name) for name in node.outer)
            inner = PhysicalPlan((*outer, *node.step))
            return Recursive(node, lambda n: _make(n, inner, remote, start_lsn))
        case plan.WorkTableSpec():
            raise BugError("a work table is made by its recursive query")
        case plan.ValuesSpec():
            return Values(node)
        case plan.TemporalSpec():
            return Temporal(node, schemas[0], remote)
        case plan.CalendarSpec():
            return Calendar(node, schemas[0], remote)
        case plan.FeedSpec():
            return Feed(node)
        case plan.SinkSpec():
            return Sink(node, once=plan.emits_once(whole, whole.node(node.input)))
        case _:
            assert_never(node)
