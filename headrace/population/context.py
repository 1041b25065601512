"""Shared context of all jobs of one builder."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.config import Settings
from headrace.planner import limits
from headrace.population.inputs import Inputs
from headrace.population.job import Job
from headrace.population.places import Places, RolePlaces
from headrace.population.planner_processes import PlannerProcesses
from headrace.population.shared import Snapshots
from headrace.population.snapshot import Snapshot
from headrace.population.staging import Staging
from headrace.reading.reader import TextReader


class WorkerProtocol(Protocol):
    """The builder's interface to the worker process."""

    def call(
        self,
        method: str,
        params: dict[str, Any],
        job: Job | None = None,
        *,
        cancellable: bool = True,
    ) -> Any:
        """Send a request and return the answer; raise TransientError while the worker is down.

        ``job`` reports the wait to its user.  If ``cancellable``, cancelling it ends the wait;
        the worker still completes work that it has begun.
        """


class SparkPopulation(Protocol):
    """Population by Spark (``population.spark``)."""

    def begin(self) -> None:
        """Start Spark in the background, for a population that will need it."""

    def await_start(self, job: Job) -> None:
        """Wait until Spark has started; raise SparkUnavailable if it does not."""

    def populate(
        self,
        job: Job,
        inputs: Inputs,
        snapshot: Snapshot,
        settings: dict[str, str],
        staged: Staging,
        owner: str,
    ) -> int:
        """Fill ``staged`` with the result rows and states; return the number of rows."""


@dataclass(slots=True)
class JobContext:
    """Shared context of all jobs of one builder."""

    settings: Settings
    worker: WorkerProtocol
    spark: SparkPopulation
    reader: TextReader = field(default_factory=lambda: TextReader(limits.check))
    """Parses queries in other SQL dialects, in a separate process."""
    publication_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held from registering a view's tables to publishing them, and from finding unused tables
    to unpublishing them; otherwise a drop could unpublish a table of a new view."""
    planners: PlannerProcesses = field(init=False)
    """Plans large queries, in separate processes."""
    snapshots: Snapshots = field(init=False)
    """Snapshots that populations read from; several populations may share one."""
    places: Places = field(init=False)
    """Permits for populations that load and write rows."""
    explanations: RolePlaces = field(default_factory=lambda: RolePlaces(3))
    """Permits for calls of ``why``, ``why_not`` and ``what_if`` that hold rows."""
    held: dict[int, Any] = field(default_factory=dict)
    """States that are held for calls of ``what_if`` (``views/what_if.py``), by their number."""
    spark_place: Places = field(default_factory=lambda: Places(1))
    """The permit for Spark, whose one heap serves one population at a time."""
    moved: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Views that were moved to an executor since this process began, by ID: executor, and when and
    why."""
    staying: dict[int, float] = field(default_factory=dict)
    """Views that could not be moved to an executor or home, with the time of the next try."""
    live: dict[int, Job] = field(default_factory=dict)
    """The running population jobs, by view ID."""

    def __post_init__(self) -> None:
        """Allow as many concurrent populations as ``populations_max``."""
        self.planners = PlannerProcesses(self.settings)
        side_by_side = max(self.settings.populations_max, 1)
        # Each open snapshot belongs to a job that has a permit, or gets the next one.
        self.snapshots = Snapshots(side_by_side)
        self.places = Places(side_by_side)
