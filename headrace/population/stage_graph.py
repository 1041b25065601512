"""The tasks of a population by parts, as a graph of frames: on Spark, or in this process.

A frame is blocks of rows in tasks.  The plan becomes a few frames (``segments``, ``edges``): a scan
per table, and a shuffle before each collection that needs all rows of a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from headrace.collections import plan
from headrace.collections.plan import PhysicalPlan, SourceSpec
from headrace.config import Settings
from headrace.errors import BugError
from headrace.population import division, edges, ranges, segments
from headrace.population.frequent_keys import NONE, FrequentKeys
from headrace.population.inputs import Inputs
from headrace.population.join_sample import JoinSample
from headrace.population.ranges import RangeNode, Ranges, RowOrder
from headrace.population.segments import Exit, Segment, Spec
from headrace.population.snapshot import Snapshot
from headrace.population.staging import Staging
from headrace.population.tables import TableSize

_ROWS_WORTH_A_TASK: Final = 20_000

Frame = Any


class TaskFrames(Protocol):
    """The operations on frames that a population needs."""

    def scan(self, segment: Segment, exit_: Exit, ranges: int) -> Frame:
        """Return the rows of a segment that reads a table: one task for each block range."""
        ...

    def run(self, frame: Frame, segment: Segment, exit_: Exit) -> Frame:
        """Return the rows of a segment over those of ``frame``, in as many tasks."""
        ...

    def union(self, frames: list[Frame]) -> Frame:
        """Return the tasks of all ``frames``."""
        ...

    def shuffle(self, frame: Frame, parts: int) -> Frame:
        """Return the blocks of ``frame`` in ``parts`` tasks, one for each part."""
        ...

    def keep(self, frame: Frame) -> tuple[Frame, Frame]:
        """Compute ``frame`` once for several readers; return it for the first, and the others."""
        ...

    def shuffle_twice(self, frame: Frame, parts: int) -> tuple[Frame, Frame]:
        """Return the tasks of ``shuffle`` for two readers; the first one reads after the other."""
        ...

    def collect(self, frame: Frame) -> list[bytes]:
        """Compute ``frame`` now, and return its blocks, of which there are few."""
        ...

    def total(self, frame: Frame) -> int:
        """Compute ``frame``, and return the number of result rows that its tasks have written."""
        ...


def spec_of(
    inputs: Inputs,
    snapshot: Snapshot,
    of_session: dict[str, str],
    staged: Staging,
    owner: str,
    settings: Settings,
    cores: int = 1,
) -> Spec:
    """Return the inputs of the tasks.

    ``of_session``: the settings that the query is evaluated under.  ``owner``: label that the
    evaluator separates user code by.  ``cores``: number of tasks that run at the same time.
    """
    physical, sizes = inputs.plan, inputs.sizes
    return Spec(
        physical,
        settings.source,
        settings.eval_dsn or None,
        of_session,
        snapshot.ref,
        staged,
        _blocks(physical, sizes, settings.spark_partition_rows, cores),
        division.divided(physical, {name: size.rows for name, size in sizes.items()}),
        inputs.clock(settings.source, snapshot.ref),
        settings.population_idle_ms_max,
        owner,
        "" if settings.spark_cluster else str(settings.turns_dir),
        inputs.origins(),
        dict(inputs.fed),
    )


def _blocks(
    physical: PhysicalPlan, sizes: Mapping[str, TableSize], rows: int, cores: int
) -> dict[str, list[list[int | None]]]:
    read: list[SourceSpec | plan.FeedSpec] = [*physical.sources, *physical.feeds]
    return {node.id: split_blocks(sizes[node.id], rows, cores) for node in read}


def split_blocks(size: TableSize, rows_per_task: int, tasks_min: int) -> list[list[int | None]]:
    """Return [first, last] block ranges of about ``rows_per_task`` rows; the last one is open.

    The table may have grown.  New rows are not in the snapshot, but no row of the snapshot may be
    omitted.
    """
    tasks = -(-size.rows // max(rows_per_task, 1))
    if size.rows >= _ROWS_WORTH_A_TASK:
        tasks = max(tasks, tasks_min)
    tasks = 1 if size.whole else max(1, min(tasks, size.blocks))
    bounds = [size.blocks * i // tasks for i in range(tasks)]
    lasts: list[int | None] = [*bounds[1:], None]
    return [[first, last] for first, last in zip(bounds, lasts, strict=True)]


@dataclass(frozen=True, slots=True)
class _Flow:
    """Rows of a node that have not left their segment yet."""

    segment: Segment
    frame: Frame = None
    """Encoded input; None means that the segment reads a table."""


class StageGraph:
    """The frames of a plan."""

    def __init__(
        self, frames: TaskFrames, spec: Spec, sizes: Mapping[str, TableSize], parts: int
    ) -> None:
        """``sizes``: by source.  ``parts``: number of tasks that rows are divided among by key."""
        self._frames = frames
        self._spec = spec
        self._plan = spec.plan
        self._tasks = edges.even(parts)
        self._sample = JoinSample(spec, sizes, self._tasks)
        self._ranges = {name: len(found) for name, found in spec.blocks.items()}
        self._flows: dict[str, _Flow] = {}
        self._uses: dict[str, int] = {}
        for node in spec.plan.nodes:
            for name in plan.inputs(node):
                self._uses[name] = self._uses.get(name, 0) + 1

    def run(self) -> int:
        """Run the job, and return the number of result rows that the tasks have written."""
        result = self._emit(self._flow(self._plan.sink.input), Exit(segments.RESULT))
        return self._frames.total(result)

    def _flow(self, name: str) -> _Flow:
        flow = self._flows.get(name)
        if flow is None:
            flow = self._make(self._plan.node(name))
            later = flow
            if self._uses[name] > 1:
                first, others = self._frames.keep(self._emit(flow, Exit(segments.PLAIN)))
                flow = _Flow(Segment("", (), name), first)
                later = replace(flow, frame=others)
            self._flows[name] = later
        return flow

    def _make(self, node: plan.Node) -> _Flow:
        match node:
            case SourceSpec() | plan.FeedSpec():
                if not segments.by_content(self._spec, node):
                    return _Flow(Segment(node.id))
                exit_ = Exit(segments.KEYED, node.id, 0, self._parts(node))
                scan = self._emit(_Flow(Segment("", (), node.id)), exit_)
                return _Flow(Segment(node.id), self._meeting(node, [scan]))
            case plan.ValuesSpec():
                return _Flow(Segment(node.id))
            case (
                plan.FilterSpec()
                | plan.MapSpec()
                | plan.FusedSpec()
                | plan.FlatMapSpec()
                | plan.ExpandSpec()
            ):
                flow = self._flow(node.input)
                return _Flow(flow.segment.then(node.id), flow.frame)
            case plan.TopKSpec() | plan.ReduceSpec() if node.id in self._spec.divided:
                share = _Flow(Segment(node.id, step=segments.SHARE), self._met(node))
                said = self._frames.shuffle(self._emit(share, Exit(segments.PLAIN)), 1)
                return _Flow(Segment(node.id, step=segments.FRONT), said)
            case plan.WindowSpec() | plan.TopKSpec() if self._may_have_ranges(node):
                return self._in_ranges(node)
            case plan.ReduceSpec() if segments.combined(self._spec, node):
                step = Segment(node.id, step=segments.COMBINED, parts=self._parts(node))
                return _Flow(step, self._met(node))
            case plan.JoinSpec() if node.id not in self._spec.divided:
                frequent = self._sample.frequent(node)
                segment = Segment(node.id, parts=self._parts(node), frequent=frequent)
                return _Flow(segment, self._met(node, frequent))
            case (
                plan.JoinSpec()
                | plan.ReduceSpec()
                | plan.TopKSpec()
                | plan.WindowSpec()
                | plan.DistinctSpec()
                | plan.SetOpSpec()
                | plan.RecursiveSpec()
                | plan.TemporalSpec()
                | plan.CalendarSpec()
            ):
                return _Flow(Segment(node.id, parts=self._parts(node)), self._met(node))
            case plan.UnionSpec():
                frames = [
                    self._emit(self._flow(name), Exit(segments.PLAIN)) for name in node.inputs
                ]
                return _Flow(Segment("", (), node.id), self._frames.union(frames))
            case plan.WorkTableSpec() | plan.SinkSpec():
                raise BugError(f'node "{node.id}" is no input of a node of the plan')

    # --- ranges

    def _may_have_ranges(self, node: RangeNode) -> bool:
        """Return whether the rows of ``node`` may be divided into ranges."""
        if self._tasks == 1 or self._sample.rows(node.input) < ranges.ROWS_MIN:
            return False
        return ranges.divisible(node)

    def _in_ranges(self, node: RangeNode) -> _Flow:
        """Return the rows of ``node``, computed in ranges if it has any."""
        flow = self._flow(node.input)
        schema = self._plan.node(node.input).schema
        order = RowOrder(node, schema)
        found: tuple[bytes, ...] = ()
        batches = self._sample.batches(node.input, whole=not node.keys)
        if batches is not None:
            frequent = bool(node.keys)
            found = ranges.splitters_of_rows(order, batches, self._tasks, frequent=frequent)
        elif not node.keys:
            # Not of a table: the rows themselves are sampled.
            first, others = self._frames.keep(self._emit(flow, Exit(segments.PLAIN)))
            flow = _Flow(Segment("", (), node.input), first)
            again = replace(flow, frame=others)
            samples = self._collected(self._emit(again, Exit(segments.SAMPLE, node.id)))
            found = ranges.splitters(samples, self._tasks)
        exit_ = Exit(segments.KEYED, node.id, 0, self._parts(node))
        if not found:
            shuffled = self._frames.shuffle(self._emit(flow, exit_), exit_.parts)
            return _Flow(Segment(node.id, parts=exit_.parts), shuffled)
        divided = Ranges(found)
        exit_ = replace(exit_, parts=self._tasks, ranges=divided)
        last, first = self._frames.shuffle_twice(self._emit(flow, exit_), self._tasks)
        step = Segment(node.id, step=segments.SUMMARY, parts=self._tasks, ranges=divided)
        summaries = self._collected(self._emit(_Flow(step, first), Exit(segments.PLAIN)))
        starts = ranges.starts(node, schema, summaries)
        if starts is None:
            whole = Exit(segments.KEYED, node.id, 0, 1)
            apart = _Flow(Segment("", (), node.input), last)
            return _Flow(Segment(node.id), self._frames.shuffle(self._emit(apart, whole), 1))
        divided = replace(divided, starts=starts)
        return _Flow(replace(step, step=segments.RANGE, ranges=divided), last)

    def _collected(self, frame: Frame) -> list[str]:
        return ranges.texts(self._frames.collect(frame))

    def _met(self, node: plan.Node, frequent: FrequentKeys = NONE) -> Frame:
        """Return the inputs of ``node``, shuffled so that each task has one part."""
        exit_ = Exit(segments.KEYED, node.id, 0, self._parts(node), frequent)
        return self._meeting(
            node,
            [
                self._emit(self._flow(name), replace(exit_, port=port))
                for port, name in enumerate(plan.inputs(node))
            ],
        )

    def _meeting(self, node: plan.Node, frames: list[Frame]) -> Frame:
        """Shuffle ``frames``, whose rows are keyed for ``node``, so that each task has one part."""
        return self._frames.shuffle(self._frames.union(frames), self._parts(node))

    def _parts(self, node: plan.Node) -> int:
        return 1 if segments.single(self._spec, node) else self._tasks

    def _emit(self, flow: _Flow, exit_: Exit) -> Frame:
        if flow.frame is not None:
            return self._frames.run(flow.frame, flow.segment, exit_)
        # A table without a key is read separately from its collection.
        ranges = self._ranges.get(flow.segment.head or flow.segment.schema_of, 1)
        return self._frames.scan(flow.segment, exit_, ranges)
