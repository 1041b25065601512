"""Population by Spark: the same collections in many tasks, in one snapshot.

The plan becomes a few DataFrames of blocks of rows (``segments``, ``edges``): a scan per table, a
shuffle before each collection that needs all rows of a key, one action.  Adaptive execution is off,
because it could change a shuffle, and the states of each task are named by its keys.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from headrace import clock
from headrace.collections import plan
from headrace.collections.plan import PhysicalPlan, SourceSpec
from headrace.config import Settings, turns_dir
from headrace.errors import BugError, HeadraceError, SparkUnavailable
from headrace.population import (
    division,
    edges,
    merging,
    returned_files,
    segments,
    spark_session,
    tables,
    tasks,
)
from headrace.population.inputs import Inputs
from headrace.population.job import Job
from headrace.population.segments import Exit, Segment, Spec
from headrace.population.snapshot import Snapshot
from headrace.population.spark_session import SparkSummary
from headrace.population.staging import Staging
from headrace.population.tables import TableSize
from headrace.redaction import printable

_log = structlog.get_logger(__name__)
_START_POLL_S: Final = 0.1
_ROWS_WORTH_A_TASK: Final = 20_000
_BLOCKS_FETCHED: Final = 16
"""Blocks of files that the driver fetches at a time, on average."""
_START_S: Final = 15.0
"""How long a population that could do without Spark waits for its start."""


class Spark:
    """The builder's Spark session, which starts on demand and ends when idle."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._making = threading.Lock()
        """Held while a session starts or ends: pyspark has one per process."""
        self._starting: Future[Any] | None = None
        self._began = 0.0
        """When the start began that ``_starting`` is."""
        self._users = 0
        self._used_at = 0.0
        self._summary: SparkSummary | None = None
        """The executors of the session."""
        self.status = "cold"
        """``cold``, ``warming``, ``warm`` or ``failed: <why>``."""

    def begin(self) -> None:
        """Start the session and its Python workers in the background."""
        self._start()

    def await_start(self, job: Job) -> None:
        """Wait until Spark has started, for ``_START_S`` from the begin of the start at most.

        Cancelling the job ends the wait.

        Raises:
            SparkUnavailable: it cannot be started, or takes longer; the next call tries again.
        """
        self.session(job)

    def session(self, job: Job) -> Any:
        """Return the session; as ``await_start``.

        REQUIRES: the caller is inside ``_used``, or the session does not end meanwhile.
        """
        starting = self._start()
        if not starting.done():
            job.phase("starting", message="starting Spark")
        while not starting.done():
            job.wait(_START_POLL_S)
            if clock.monotonic() - self._began > _START_S and not starting.done():
                where = printable("spark_master", self._settings.spark_master)
                raise SparkUnavailable(f"Spark at {where} has not started within {_START_S:.0f} s")
        return starting.result()

    def stop(self) -> None:
        """End the session and its JVM."""
        with self._lock:
            starting, self._starting = self._starting, None
        # A session that is still starting ends with this process, whose pipe its JVM reads.
        if starting is not None and starting.done() and not starting.exception():
            with contextlib.suppress(Exception):
                starting.result().stop()

    def _start(self) -> Future[Any]:
        """Return the start that is under way or done; begin one if there is none, or it failed."""
        with self._lock:
            starting = self._starting
            if starting is None or (starting.done() and starting.exception()):
                starting = self._starting = Future()
                self.status, self._began = "warming", clock.monotonic()
                # A daemon thread: a stopping engine does not wait for Spark to start.
                threading.Thread(
                    target=self._run_start, args=(starting,), name="spark start", daemon=True
                ).start()
            return starting

    def _run_start(self, starting: Future[Any]) -> None:
        started = clock.monotonic()
        try:
            with self._making:
                session = spark_session.start(self._settings)
            # The first query compiles code and forks workers, which later queries use.
            self._summary = told = spark_session.probe(session, self._settings)
        except HeadraceError as error:
            self.status = f"failed: {error.message}"
            starting.set_exception(
                SparkUnavailable(error.message, detail=error.detail, hint=error.hint)
            )
        except Exception as error:  # noqa: BLE001  Spark fails in many ways; retried later
            cause = spark_session.cause_of(error)
            self.status = f"failed: {cause}"
            _log.warning("spark could not be started", reason=str(error)[:2000])
            starting.set_exception(SparkUnavailable(f"Spark could not be started: {cause}"))
        else:
            self.status = "warm"
            seconds = round(clock.monotonic() - started, 1)
            _log.info("spark is warm", seconds=seconds, found=str(told))
            starting.set_result(session)
            self._await_idle()

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        """Keep the session during the block."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
            self._await_idle()

    def _await_idle(self) -> None:
        """End the session if it is idle for ``spark_idle_ms`` from now on."""
        with self._lock:
            self._used_at = clock.monotonic()
        idle_s = 0 if self._settings.spark_warm else self._settings.spark_idle_ms / 1000
        if idle_s:
            timer = threading.Timer(idle_s, self._let_go, (self._used_at,))
            timer.daemon = True
            timer.start()

    def _let_go(self, used_at: float) -> None:
        """End the session and its JVM, unless it was used after ``used_at``."""
        with self._making:
            with self._lock:
                starting = self._starting
                if self._users or self._used_at != used_at:
                    return
                if starting is None or not starting.done() or starting.exception():
                    return
                self._starting, self.status = None, "cold"
            _log.info("spark let go")
            spark_session.end(starting.result())

    def populate(
        self,
        job: Job,
        inputs: Inputs,
        snapshot: Snapshot,
        settings: dict[str, str],
        staged: Staging,
        owner: str,
    ) -> int:
        """Fill ``staged`` with the result rows and states; return the number of rows.

        ``owner``: label that the evaluator separates user code by.

        Raises:
            HeadraceError: the error of a task, as raised there.
            SparkUnavailable: Spark failed.
        """
        physical, sizes = inputs.plan, inputs.sizes
        with self._used():
            session = self.session(job)
            job.phase("reading", total=tables.expected(physical, sizes))
            cores = spark_session.parallelism(session, self._settings)
            spec = Spec(
                physical,
                self._settings.source,
                self._settings.eval_dsn or None,
                settings,
                snapshot.ref,
                staged,
                self._blocks(physical, sizes, cores),
                division.divided(physical, {name: size.rows for name, size in sizes.items()}),
                inputs.clock(self._settings.source, snapshot.ref),
                self._settings.population_idle_ms_max,
                owner,
                "" if self._settings.spark_cluster else str(turns_dir(self._settings)),
                inputs.origins(),
                dict(inputs.fed),
                returned=self._summary is not None and not self._summary.shared,
            )
            total = sum(size.rows for size in sizes.values())
            parts = max(cores, -(-total // max(self._settings.spark_partition_rows, 1)))
            graph = _Graph(session, spec, parts)
            try:
                with spark_session.watched(session, job, staged.rows_read):
                    counted = graph.run()
                if not spec.returned:
                    job.complete(staged.rows_read())
            except SparkUnavailable:
                self._forget(session)
                raise
            except HeadraceError:
                raise
            except Exception as error:
                self._forget_if_dead(session)
                job.check()
                known = segments.saved_error(spec, str(error))
                if known is not None:
                    raise known from error
                _log.warning("spark job failed", reason=str(error)[:2000])
                raise SparkUnavailable(
                    f"the job on Spark failed: {spark_session.cause_of(error)}"
                ) from error
            finally:
                graph.close()
                for path in staged.path.glob("job-*.json"):
                    path.unlink(missing_ok=True)
            job.check()
            merging.merge(staged, physical)
            if counted != staged.row_count():
                raise BugError(f"{counted} rows counted, {staged.row_count()} in files")
            return int(counted)

    def _blocks(
        self, physical: PhysicalPlan, sizes: Mapping[str, TableSize], cores: int
    ) -> dict[str, list[list[int | None]]]:
        rows = self._settings.spark_partition_rows
        read: list[SourceSpec | plan.FeedSpec] = [*physical.sources, *physical.feeds]
        return {node.id: split_blocks(sizes[node.id], rows, cores) for node in read}

    def _forget_if_dead(self, session: Any) -> None:
        """Drop a session whose driver has died; the next population starts another."""
        if spark_session.is_dead(session):
            self._forget(session)

    def _forget(self, session: Any) -> None:
        """End a session; the next population starts another."""
        with self._making:
            with self._lock:
                self._starting = None
                self.status = "cold"
            spark_session.end(session)


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
    frame: Any = None
    """Encoded input; None means that the segment reads a table."""


class _Graph:
    """The DataFrames of a plan."""

    def __init__(self, session: Any, spec: Spec, parts: int) -> None:
        """``parts``: number of tasks that rows are divided among by key."""
        self._session = session
        self._spec = spec
        self._plan = spec.plan
        self._given = spec.given()
        self._tasks = parts
        self._ranges = {name: len(found) for name, found in spec.blocks.items()}
        self._flows: dict[str, _Flow] = {}
        self._persisted: list[Any] = []
        self._uses: dict[str, int] = {}
        for node in spec.plan.nodes:
            for name in plan.inputs(node):
                self._uses[name] = self._uses.get(name, 0) + 1

    def run(self) -> int:
        """Run the job, and return the number of result rows that the tasks have written."""
        action = self._emit(self._flow(self._plan.sink.input), Exit(segments.RESULT))
        if not self._spec.returned:
            return sum(int(row["n"]) for row in action.collect())
        from pyspark.storagelevel import StorageLevel  # it is installed where a session is

        # The files are fetched after all tasks have run side by side, a few blocks at a time.
        action = action.persist(StorageLevel.DISK_ONLY)
        self._persisted.append(action)
        of_file = f"port = {returned_files.PORT}"
        [(counted, count)] = action.selectExpr("sum(n)", f"count_if({of_file})").collect()
        files = action.where(of_file).select("block").repartition(count // _BLOCKS_FETCHED + 1)
        blocks = (bytes(row["block"]) for row in files.toLocalIterator(prefetchPartitions=True))
        returned_files.receive(blocks, self._spec.staging)
        return int(counted or 0)

    def close(self) -> None:
        """Release the DataFrames that were persisted for several readers."""
        for frame in self._persisted:
            with contextlib.suppress(Exception):
                frame.unpersist()

    def _flow(self, name: str) -> _Flow:
        flow = self._flows.get(name)
        if flow is None:
            flow = self._make(self._plan.node(name))
            if self._uses[name] > 1:
                frame = self._emit(flow, Exit(segments.PLAIN)).persist()
                self._persisted.append(frame)
                flow = _Flow(Segment("", (), name), frame)
            self._flows[name] = flow
            if self._uses[name] > 1 and self._spec.returned:
                # The files below come back by way of the first reader.
                rows = flow.frame.where(f"port <> {returned_files.PORT}")
                self._flows[name] = replace(flow, frame=rows)
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
                said = self._emit(share, Exit(segments.PLAIN)).repartitionById(1, "part")
                return _Flow(Segment(node.id, step=segments.FRONT), said)
            case plan.ReduceSpec() if segments.combined(self._spec, node):
                return _Flow(Segment(node.id, step=segments.COMBINED), self._met(node))
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
                return _Flow(Segment(node.id), self._met(node))
            case plan.UnionSpec():
                frames = [
                    self._emit(self._flow(name), Exit(segments.PLAIN)) for name in node.inputs
                ]
                return _Flow(Segment("", (), node.id), _union(frames))
            case plan.WorkTableSpec():
                raise BugError("a work table stands inside of its recursive query")
            case plan.SinkSpec():
                raise BugError("the sink is no input")

    def _met(self, node: plan.Node) -> Any:
        """Return the inputs of ``node``, shuffled so that each task has one part."""
        return self._meeting(
            node,
            [
                self._emit(self._flow(name), Exit(segments.KEYED, node.id, port, self._parts(node)))
                for port, name in enumerate(plan.inputs(node))
            ],
        )

    def _meeting(self, node: plan.Node, frames: list[Any]) -> Any:
        """Shuffle ``frames``, whose rows are keyed for ``node``, so that each task has one part."""
        return _union(frames).repartitionById(self._parts(node), "part")

    def _parts(self, node: plan.Node) -> int:
        return 1 if segments.single(self._spec, node) else self._tasks

    def _emit(self, flow: _Flow, exit_: Exit) -> Any:
        what, frame = tasks.run, flow.frame
        if frame is None:
            # A table without a key is read separately from its collection.
            ranges = self._ranges.get(flow.segment.head or flow.segment.schema_of, 1)
            what, frame = tasks.scan, self._session.range(0, ranges, 1, ranges)
        function = functools.partial(what, self._given, flow.segment, exit_)
        return frame.mapInArrow(function, edges.SPARK_SCHEMA)


def _union(frames: list[Any]) -> Any:
    return functools.reduce(lambda a, b: a.union(b), frames)
