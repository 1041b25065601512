"""Population by Spark: the same collections in many tasks, in one snapshot.

The frames of the plan (``stage_graph``) are DataFrames of blocks, computed by one action.  Adaptive
execution is off, because it could change a shuffle, and the states of each task are named by its
keys.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final

import structlog

from headrace import clock
from headrace.config import Settings
from headrace.errors import HeadraceError, SparkUnavailable
from headrace.population import (
    edges,
    merging,
    returned_files,
    segments,
    spark_session,
    stage_graph,
    tables,
    tasks,
)
from headrace.population.inputs import Inputs
from headrace.population.job import Job
from headrace.population.segments import Exit, Segment, Spec
from headrace.population.snapshot import Snapshot
from headrace.population.spark_session import SparkSummary
from headrace.population.stage_graph import StageGraph
from headrace.population.staging import Staging
from headrace.redaction import printable

_log = structlog.get_logger(__name__)
_START_POLL_S: Final = 0.1
_BLOCKS_FETCHED: Final = 16
"""Blocks of files that the driver fetches at a time, on average."""
_START_S: Final = 15.0
"""How long a population waits for the start of Spark, before it goes on without."""


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
            spec = replace(
                stage_graph.spec_of(
                    inputs, snapshot, settings, staged, owner, self._settings, cores
                ),
                returned=self._summary is not None and not self._summary.shared,
            )
            total = sum(size.rows for size in sizes.values())
            parts = max(cores, -(-total // max(self._settings.spark_partition_rows, 1)))
            frames = _SparkFrames(session, spec)
            try:
                with spark_session.watched(session, job, staged.rows_read):
                    counted = StageGraph(frames, spec, sizes, parts).run()
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
                frames.close()
                for path in staged.path.glob("job-*.json"):
                    path.unlink(missing_ok=True)
            job.check()
            merging.finish(staged, physical, counted)
            return counted

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


class _SparkFrames:
    """Frames as DataFrames of ``edges.SPARK_SCHEMA``; see ``TaskFrames``."""

    def __init__(self, session: Any, spec: Spec) -> None:
        self._session = session
        self._spec = spec
        self._given = spec.given()
        self._persisted: list[Any] = []

    def scan(self, segment: Segment, exit_: Exit, ranges: int) -> Any:
        function = functools.partial(tasks.scan, self._given, segment, exit_)
        numbers = self._session.range(0, ranges, 1, ranges)
        return numbers.mapInArrow(function, edges.SPARK_SCHEMA)

    def run(self, frame: Any, segment: Segment, exit_: Exit) -> Any:
        function = functools.partial(tasks.run, self._given, segment, exit_)
        return frame.mapInArrow(function, edges.SPARK_SCHEMA)

    def union(self, frames: list[Any]) -> Any:
        return functools.reduce(lambda a, b: a.union(b), frames)

    def shuffle(self, frame: Any, parts: int) -> Any:
        return frame.repartitionById(parts, "part")

    def shuffle_twice(self, frame: Any, parts: int) -> tuple[Any, Any]:
        return self.keep(self.shuffle(frame, parts))

    def collect(self, frame: Any) -> list[bytes]:
        return [bytes(row["block"]) for row in frame.select("block").collect()]

    def keep(self, frame: Any) -> tuple[Any, Any]:
        kept = frame.persist()
        self._persisted.append(kept)
        if not self._spec.returned:
            return kept, kept
        # The files of the tasks below come back by way of the first reader.
        return kept, kept.where(f"port <> {returned_files.PORT}")

    def total(self, frame: Any) -> int:
        if not self._spec.returned:
            return sum(int(row["n"]) for row in frame.collect())
        from pyspark.storagelevel import StorageLevel  # it is installed where a session is

        # The files are fetched after all tasks have run side by side, a few blocks at a time.
        kept = frame.persist(StorageLevel.DISK_ONLY)
        self._persisted.append(kept)
        of_file = f"port = {returned_files.PORT}"
        [(counted, count)] = kept.selectExpr("sum(n)", f"count_if({of_file})").collect()
        files = kept.where(of_file).select("block").repartition(count // _BLOCKS_FETCHED + 1)
        blocks = (bytes(row["block"]) for row in files.toLocalIterator(prefetchPartitions=True))
        returned_files.receive(blocks, self._spec.staging)
        return int(counted or 0)

    def close(self) -> None:
        """Release the DataFrames that were persisted for several readers."""
        for frame in self._persisted:
            with contextlib.suppress(Exception):
                frame.unpersist()
