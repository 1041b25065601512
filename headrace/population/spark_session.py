"""Sessions of Spark, by the URL of any master: local[n], spark://, yarn, k8s://, or Spark Connect.

With Spark Connect (``sc://``) the driver runs elsewhere: this process sends plans over gRPC and
needs no Java.  Other masters start a JVM beside this process, which is the driver.

An executor needs three things, which ``probe`` looks for in a task: Headrace in the Python that
runs there, the directory of the files of a population (``staging_dir``), and a way to the source.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Final
from urllib.parse import urlsplit

import msgspec
import structlog

from headrace import clock, spark_options
from headrace.config import Settings
from headrace.errors import HeadraceError, PrerequisiteError, QueryCancelled, SparkUnavailable
from headrace.population import tasks
from headrace.population.job import Job
from headrace.process.java import java_home

_log = structlog.get_logger(__name__)
_POLL_S: Final = 0.25
_IDLE_S: Final = 30.0
"""How long a job may be without any executor."""
_BLOCKS_PER_ARROW_BATCH: Final = 8
_LINE_MAX: Final = 2_000
_CAUSE_MAX: Final = 300
_CONNECT_PORT: Final = 15002
_PACKAGES: Final = ("pyspark", "pandas")
_ANSWER_S: Final = 5.0
_TASKS_BY_CONNECT: Final = 4
"""Tasks side by side where the server does not say how many it can run."""
_JAVA_CLASS: Final = re.compile(r"^(?:[\w$]+\.)+[\w$]+: *")
_REPORTS: Final = msgspec.json.Decoder(tasks.ExecutorReport)
_GRAVE: Final = re.compile(r"\b(ERROR|FATAL|Exception|Error)\b")
"""Marks a line of the JVM's output as a problem."""
_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The JVM only moves bytes, so the optimising compiler would not pay."""


def start(settings: Settings) -> Any:
    """Start a session, which fetches nothing from the network; or connect to one.

    Raises:
        PrerequisiteError: a package or Java is missing.
        Exception: Spark fails in many ways.
    """
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise PrerequisiteError(
            "Spark is not installed (to install it: pip install 'headrace[spark]')",
            detail=f"Python package {missing[0]} is missing.",
        )
    options = _options(settings)
    if settings.spark_master.startswith("sc://"):
        return _connect(settings, options)
    os.environ["JAVA_HOME"] = java_home()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    local = settings.spark_master.startswith("local")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    scratch = settings.tmp_dir / "spark"
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    from pyspark.sql import SparkSession  # after the environment is set

    fixed = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": f"{settings.spark_memory_mb}m",
        "spark.executor.memory": f"{settings.spark_memory_mb}m",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.python.worker.reuse": "true",
        # Blocks are already compressed.
        "spark.shuffle.compress": "false",
        "spark.shuffle.spill.compress": "false",
        # A task repeated on another executor reads the same snapshot: two tries are enough.
        "spark.task.maxFailures": "2",
        # The files of a task may be larger, and are fetched a block at a time.
        "spark.driver.maxResultSize": "0",
        "spark.log.level": "ERROR",
    }
    if local:
        fixed["spark.driver.host"] = "127.0.0.1"
        fixed["spark.driver.bindAddress"] = "127.0.0.1"
        fixed["spark.driver.extraJavaOptions"] = _JVM
        # Other users of the machine can reach the ports, too.  Spark generates the secret itself at
        # each start; an option would be visible in the arguments of its process.
        fixed["spark.authenticate"] = "true"
        fixed["spark.network.crypto.enabled"] = "true"
    options = fixed | options
    _gateway(settings.spark_master, options)
    builder = SparkSession.builder.master(settings.spark_master).appName("headrace")
    for key, value in options.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _options(settings: Settings) -> dict[str, str]:
    """Return the options of the user, and those that the results depend on."""
    return spark_options.parse(settings.spark_options) | {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(_BLOCKS_PER_ARROW_BATCH),
    }


def _connect(settings: Settings, options: dict[str, str]) -> Any:
    missing = [name for name in ("grpc", "grpc_status") if importlib.util.find_spec(name) is None]
    if missing:
        raise PrerequisiteError(
            "Spark Connect needs Python packages that are not installed",
            hint="Run: pip install 'headrace[connect]'.",
        )
    from pyspark.sql.connect.session import SparkSession

    where = urlsplit(settings.spark_master)
    # Spark itself tries for minutes.
    socket.create_connection((where.hostname or "", where.port or _CONNECT_PORT), _ANSWER_S).close()
    session = SparkSession.builder.remote(settings.spark_master).create()
    for key, value in options.items():
        session.conf.set(key, value)
    return session


# --- a session at work


def parallelism(session: Any, settings: Settings) -> int:
    """Return how many tasks can run at the same time."""
    if settings.spark_parallelism:
        return settings.spark_parallelism
    if _is_connect(session):
        return int(session.conf.get("spark.default.parallelism", str(_TASKS_BY_CONNECT)))
    return max(1, int(session.sparkContext.defaultParallelism))


@contextlib.contextmanager
def watched(session: Any, job: Job, read: Callable[[], int]) -> Iterator[None]:
    """Report progress (``read``: rows so far) during the block, and pass a cancel on to Spark.

    Raises:
        SparkUnavailable: for a while no executor has worked on the job.
    """
    interrupt = _tag(session, f"headrace-{job.name}")
    done, idle = threading.Event(), _Idle(session)

    def watch() -> None:
        while not done.wait(_POLL_S):
            try:
                job.rows(read())
            except QueryCancelled:
                return  # the job repeats the interrupt
            with contextlib.suppress(Exception):  # a driver that has died ends the job itself
                if idle.too_long():
                    interrupt()

    watcher = threading.Thread(target=watch, name=f"watch {job.name}", daemon=True)
    watcher.start()
    try:
        with job.cancelling(interrupt):
            yield
    except Exception as error:
        if idle.over:
            raise SparkUnavailable(
                f"the job on Spark failed: it had no executor for {_IDLE_S:.0f} s"
            ) from error
        raise
    finally:
        done.set()
        watcher.join()


def _tag(session: Any, name: str) -> Callable[[], object]:
    """Give the jobs of this thread a name; return a function that interrupts them."""
    if _is_connect(session):
        session.clearTags()
        session.addTag(name)
        return functools.partial(session.interruptTag, name)
    # Here the tags of sessions do not reach the jobs of DataFrames.
    context = session.sparkContext
    context.setJobGroup(name, "headrace population", interruptOnCancel=True)
    return functools.partial(context.cancelJobGroup, name)


def _is_connect(session: Any) -> bool:
    """Return whether the session is one of Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect")


class _Idle:
    """Tells whether the jobs of a session have had no executor for too long.

    A server of Spark Connect does not tell which tasks run: then it is never too long.
    """

    def __init__(self, session: Any) -> None:
        connected = _is_connect(session)
        self._tracker = None if connected else session.sparkContext.statusTracker()
        self._since: float | None = None
        self.over = False

    def too_long(self) -> bool:
        if self._tracker is None or self.over:
            return self.over
        stages = [self._tracker.getStageInfo(i) for i in self._tracker.getActiveStageIds()]
        if not stages or any(stage is not None and stage.numActiveTasks for stage in stages):
            self._since = None
        elif self._since is None:
            self._since = clock.monotonic()
        else:
            self.over = clock.monotonic() - self._since > _IDLE_S
        return self.over


def is_dead(session: Any) -> bool:
    """Return whether the session cannot be used again."""
    try:
        if _is_connect(session):
            session.range(1).collect()
            return bool(session.is_stopped)
        return bool(session.sparkContext._jsc.sc().isStopped())  # noqa: SLF001  there is no other
    except Exception as error:  # noqa: BLE001  any error of py4j without a JVM, or of gRPC
        _log.warning("the session of spark is gone", reason=str(error)[:500])
        return True


def end(session: Any) -> None:
    """End the session and its JVM, and clear pyspark's references, which it keeps for good."""
    with contextlib.suppress(Exception):
        session.stop()
    if _is_connect(session):
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway  # noqa: SLF001  pyspark has no other way
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


# --- needs of executors


@dataclass(frozen=True, slots=True)
class SparkSummary:
    """The executors of a session."""

    version: str
    """Of Spark."""
    hosts: tuple[str, ...]
    compiled: bool
    """Whether Headrace's kernels are compiled there."""
    shared: bool
    """Whether they see the directory of the files of a population."""
    page: str = ""
    """Address of Spark's own pages (option ``spark.ui.enabled``), if they are known to be on."""

    def __str__(self) -> str:
        """Return a description for users."""
        kernels = "compiled" if self.compiled else "not compiled, so they are slow"
        text = f"Spark {self.version}, executors on {', '.join(self.hosts)}, kernels {kernels}"
        if self.page:
            text += f", pages at {self.page}"
        if not self.shared:
            text += ", no shared directory: files come back through Spark"
        return text


def probe(session: Any, settings: Settings) -> SparkSummary:
    """Run tasks on the session, and return what they have found.

    Raises:
        PrerequisiteError: executors lack something.
    """
    count = parallelism(session, settings)
    settings.staging_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    marker = settings.staging_dir / f".probe.{uuid.uuid4().hex}"
    marker.touch(mode=0o600)
    try:
        look = functools.partial(tasks.probe, str(marker), settings.source)
        rows = session.range(0, count, 1, count).mapInArrow(look, "told string").collect()
    except Exception as error:
        if "ModuleNotFoundError" in str(error):
            raise PrerequisiteError(
                "Headrace is not installed in the Python of Spark's executors",
                hint="Install the same version there, or set spark.pyspark.python in spark_options"
                " to a Python that has it.",
            ) from error
        raise
    finally:
        marker.unlink()
    found = [_REPORTS.decode(row["told"]) for row in rows]
    hosts = tuple(sorted({told.host for told in found}))
    cut_off = {told.host: told.source for told in found if told.source}
    if cut_off:
        host, why = min(cut_off.items())
        raise PrerequisiteError(
            f"Spark's executors on {host} cannot connect to the source: {why}",
            hint="The connection string of setting source must lead there from these machines, too.",
        )
    compiled, shared = (all(getattr(t, n) for t in found) for n in ("compiled", "staging"))
    page = None if _is_connect(session) else session.sparkContext.uiWebUrl
    return SparkSummary(session.version, hosts, compiled, shared, page or "")


def try_out(settings: Settings) -> str:
    """Start a session, probe it and end it; return what was found, for users.

    Raises:
        PrerequisiteError: a package, or something on the executors, is missing.
        SparkUnavailable: it cannot be started.
    """
    try:
        session = start(settings)
        try:
            return str(probe(session, settings))
        finally:
            end(session)
    except HeadraceError:
        raise
    except Exception as error:  # Spark fails in many ways
        raise SparkUnavailable(f"Spark could not be started: {cause_of(error)}") from error


def cause_of(error: Exception) -> str:
    """Return the innermost cause of an error of Spark in a line, without Java's classes and stack.

    The output of Python workers may quote rows, so it is only in the log.
    """
    text = str(error)
    if "Traceback (most recent call last)" in text:
        return "a Python worker of Spark failed (see the log)"
    found = re.findall(r"^(?:Caused by)?: +(.+)$", text, re.MULTILINE)
    found = found or re.findall(r'^\s*details = "(.+)"$', text, re.MULTILINE) or [text]
    line = _JAVA_CLASS.sub("", found[-1].strip()).splitlines() or [type(error).__name__]
    return line[0][:_CAUSE_MAX] or type(error).__name__


# --- a JVM beside this process


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
