"""Population by Spark: the same collections in many tasks, in one snapshot.

The plan becomes a few DataFrames of blocks of rows (``segments``, ``edges``): a scan per table, a
shuffle before each collection that needs all rows of a key, one action.  Adaptive execution is off,
because it could change a shuffle, and the states of each task are named by its keys.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import IO, Any, Final

import structlog

from headrace import clock
from headrace.collections import plan
from headrace.collections.plan import PhysicalPlan, SourceSpec
from headrace.config import Settings, turns_dir
from headrace.errors import BugError, HeadraceError, QueryCancelled, TransientError
from headrace.population import division, edges, local, merging, segments, tables, tasks
from headrace.population.job import Job
from headrace.population.segments import Exit, Segment, Spec
from headrace.population.snapshot import Snapshot
from headrace.population.staging import Staging
from headrace.population.tables import TableSize
from headrace.process.java import java_home

_log = structlog.get_logger(__name__)
_POLL_S: Final = 0.25
_START_POLL_S: Final = 0.1
_BLOCKS_PER_ARROW_BATCH: Final = 8
_ROWS_WORTH_A_TASK: Final = 20_000
_LINE_MAX: Final = 2_000
_GRAVE: Final = re.compile(r"\b(ERROR|FATAL|Exception|Error)\b")
"""Marks a line of the JVM's output as a problem."""
_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The JVM only moves bytes, so the optimising compiler would not pay."""


class Spark:
    """The builder's Spark session, which starts on demand and ends when idle."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._making = threading.Lock()
        """Held while a session starts or ends: pyspark has one per process."""
        self._starting: Future[Any] | None = None
        self._users = 0
        self._used_at = 0.0
        self.status = "cold"
        """``cold``, ``warming``, ``warm`` or ``failed: <why>``."""

    def begin(self) -> None:
        """Start the session and its Python workers in the background."""
        self._start()

    def session(self, job: Job) -> Any:
        """Return the session, after waiting for its start; cancelling the job ends the wait.

        Raises:
            HeadraceError: the session cannot be started; the next call tries again.

        REQUIRES: the caller is inside ``_used``, or the session does not end meanwhile.
        """
        starting = self._start()
        if not starting.done():
            job.phase("starting", message="starting Spark")
        while not starting.done():
            job.wait(_START_POLL_S)
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
                self.status = "warming"
                # A daemon thread: a stopping engine does not wait for Spark to start.
                threading.Thread(
                    target=self._run_start, args=(starting,), name="spark start", daemon=True
                ).start()
            return starting

    def _run_start(self, starting: Future[Any]) -> None:
        started = clock.monotonic()
        try:
            with self._making:
                session = _start(self._settings)
            # The first query compiles code and forks workers, which later queries use.
            session.range(2, numPartitions=2).mapInArrow(tasks.ready, "id bigint").collect()
        except HeadraceError as error:
            self.status = f"failed: {error.message}"
            starting.set_exception(error)
        except Exception as error:  # noqa: BLE001  Spark fails in many ways; retried later
            self.status = f"failed: {error}"
            _log.warning("spark could not be started", reason=str(error)[:2000])
            starting.set_exception(
                TransientError("spark could not be started", detail=str(error)[:2000])
            )
        else:
            self.status = "warm"
            seconds = round(clock.monotonic() - started, 1)
            _log.info("spark is warm", seconds=seconds)
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
            _forget(starting.result())

    def populate(
        self,
        job: Job,
        physical: PhysicalPlan,
        snapshot: Snapshot,
        sizes: dict[str, TableSize],
        settings: dict[str, str],
        staged: Staging,
        owner: str,
    ) -> int:
        """Fill ``staged`` with the result rows and states; return the number of rows.

        ``owner``: label that the evaluator separates user code by.

        Raises:
            HeadraceError: the error of a task, as raised there; TransientError if Spark failed.
        """
        with self._used():
            session = self.session(job)
            job.phase("reading", total=tables.expected(physical.sources, sizes))
            spec = Spec(
                physical,
                self._settings.source,
                self._settings.eval_dsn or None,
                settings,
                snapshot.ref,
                staged,
                self._blocks(physical, sizes, _cores(session)),
                division.divided(physical, {name: size.rows for name, size in sizes.items()}),
                local.instant(self._settings.source, snapshot.ref) if physical.temporal else 0,
                self._settings.population_idle_ms_max,
                owner,
                "" if self._settings.spark_cluster else str(turns_dir(self._settings)),
            )
            path = str(spec.write())
            total = sum(size.rows for size in sizes.values())
            parts = max(_cores(session), -(-total // max(self._settings.spark_partition_rows, 1)))
            graph = _Graph(session, spec, path, parts)
            action = graph.result()
            try:
                with _watched(session, job, staged):
                    counted = sum(row["n"] for row in action.collect())
                job.complete(staged.rows_read())
            except HeadraceError:
                raise
            except Exception as error:
                self._forget_if_dead(session)
                job.check()
                known = segments.saved_error(staged)
                if known is not None:
                    raise known from error
                raise TransientError(
                    "the spark job of the population failed", detail=str(error)[-2000:]
                ) from error
            finally:
                graph.close()
                (staged.path / "job.json").unlink(missing_ok=True)
            job.check()
            merging.merge(staged, physical)
            if counted != staged.row_count():
                raise BugError(f"{counted} rows counted, {staged.row_count()} in files")
            return int(counted)

    def _blocks(
        self, physical: PhysicalPlan, sizes: dict[str, TableSize], cores: int
    ) -> dict[str, list[list[int | None]]]:
        rows = self._settings.spark_partition_rows
        return {
            source.id: split_blocks(sizes[source.id], rows, cores) for source in physical.sources
        }

    def _forget_if_dead(self, session: Any) -> None:
        """Drop a session whose JVM has died; the next population starts another."""
        try:
            if not session.sparkContext._jsc.sc().isStopped():  # noqa: SLF001
                return
        except Exception as error:  # noqa: BLE001  any error of py4j without a JVM
            _log.warning("the JVM of spark has died", reason=str(error)[:500])
        with self._making:
            with self._lock:
                self._starting = None
                self.status = "cold"
            _forget(session)


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

    def __init__(self, session: Any, spec: Spec, spec_path: str, parts: int) -> None:
        """``parts``: number of tasks that rows are divided among by key."""
        self._session = session
        self._spec = spec
        self._plan = spec.plan
        self._path = spec_path
        self._tasks = parts
        self._ranges = {name: len(found) for name, found in spec.blocks.items()}
        self._flows: dict[str, _Flow] = {}
        self._persisted: list[Any] = []
        self._uses: dict[str, int] = {}
        for node in spec.plan.nodes:
            for name in plan.inputs(node):
                self._uses[name] = self._uses.get(name, 0) + 1

    def result(self) -> Any:
        """Return the final DataFrame: one row per task, with the number of result rows written."""
        return self._emit(self._flow(self._plan.sink.input), Exit(segments.RESULT))

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
        return flow

    def _make(self, node: plan.Node) -> _Flow:
        match node:
            case SourceSpec():
                if not node.full_identity:
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
            case (
                plan.JoinSpec()
                | plan.ReduceSpec()
                | plan.TopKSpec()
                | plan.WindowSpec()
                | plan.DistinctSpec()
                | plan.SetOpSpec()
                | plan.RecursiveSpec()
                | plan.TemporalSpec()
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
            case plan.FeedSpec():
                raise BugError("a view is populated whole")

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
        function = functools.partial(what, self._path, flow.segment, exit_)
        return frame.mapInArrow(function, edges.SPARK_SCHEMA)


def _union(frames: list[Any]) -> Any:
    return functools.reduce(lambda a, b: a.union(b), frames)


@contextlib.contextmanager
def _watched(session: Any, job: Job, staged: Staging) -> Iterator[None]:
    """Report progress during the block, and pass a cancel on to the Spark job."""
    context = session.sparkContext
    context.setJobGroup(job.name, "headrace population", interruptOnCancel=True)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            try:
                job.rows(staged.rows_read())
            except QueryCancelled:
                # Repeat it: a cancel before the job has begun has no effect.
                with contextlib.suppress(Exception):
                    context.cancelJobGroup(job.name)

    watcher = threading.Thread(target=watch, name=f"watch {job.name}", daemon=True)
    watcher.start()
    try:
        with job.cancelling(lambda: context.cancelJobGroup(job.name)):
            yield
    finally:
        done.set()
        watcher.join()


def _cores(session: Any) -> int:
    return max(1, int(session.sparkContext.defaultParallelism))


def _forget(session: Any) -> None:
    """End the session and its JVM, and clear pyspark's references, which it keeps for good."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway  # noqa: SLF001  pyspark has no other way
    with contextlib.suppress(Exception):
        session.stop()
    with contextlib.suppress(Exception):
        gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.stdin.close()
        process.kill()
        process.wait()
    SparkContext._active_spark_context = None  # noqa: SLF001
    SparkContext._gateway = None  # noqa: SLF001
    SparkContext._jvm = None  # noqa: SLF001
    SparkSession._instantiatedSession = None  # noqa: SLF001


def _gateway(master: str, options: dict[str, str]) -> None:
    """Start the JVM as pyspark would, but with its output in the log."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:  # noqa: SLF001  pyspark has no other way
        return  # left by a start that failed later
    conf = SparkConf(loadDefaults=False).setAll([("spark.master", master), *options.items()])
    gateway = launch_gateway(conf, {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT})
    said = gateway.proc.stdout
    threading.Thread(target=_tell_lines, args=(said,), name="spark log", daemon=True).start()
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)  # noqa: SLF001


def _tell_lines(said: IO[bytes]) -> None:
    """Log the output of the JVM and its workers, until they end."""
    with said:
        for line in said:
            text = line.decode(errors="replace").rstrip()[:_LINE_MAX]
            if _GRAVE.search(text):
                _log.warning("spark", line=text)
            else:
                _log.info("spark", line=text)


def _start(settings: Settings) -> Any:
    """Start a session, which fetches nothing from the network."""
    os.environ["JAVA_HOME"] = java_home()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    local = settings.spark_master.startswith("local")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    scratch = settings.tmp_dir / "spark"
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    from pyspark.sql import SparkSession  # after the environment is set

    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": f"{settings.spark_memory_mb}m",
        "spark.executor.memory": f"{settings.spark_memory_mb}m",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(_BLOCKS_PER_ARROW_BATCH),
        "spark.python.worker.reuse": "true",
        # Blocks are already compressed.
        "spark.shuffle.compress": "false",
        "spark.shuffle.spill.compress": "false",
        # A task repeated on another executor reads the same snapshot: two tries are enough.
        "spark.task.maxFailures": "2",
        "spark.log.level": "ERROR",
    }
    if local:
        options["spark.driver.host"] = "127.0.0.1"
        options["spark.driver.bindAddress"] = "127.0.0.1"
        options["spark.driver.extraJavaOptions"] = _JVM
        # Other users of the machine can reach the ports, too.  Spark generates the secret itself at
        # each start; an option would be visible in the arguments of its process.
        options["spark.authenticate"] = "true"
        options["spark.network.crypto.enabled"] = "true"
    _gateway(settings.spark_master, options)
    builder = SparkSession.builder.master(settings.spark_master).appName("headrace")
    for key, value in options.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
