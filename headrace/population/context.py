"""What all jobs of one builder share."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.collections.plan import PhysicalPlan
from headrace.config import Settings
from headrace.population.job import Job
from headrace.population.places import Places
from headrace.population.shared import Snapshots
from headrace.population.snapshot import Snapshot
from headrace.population.staging import Staging
from headrace.population.tables import TableSize
from headrace.reading.reader import TextReader


class WorkerProtocol(Protocol):
    """The worker process, as the builder sees it."""

    def call(
        self,
        method: str,
        params: dict[str, Any],
        job: Job | None = None,
        *,
        cancellable: bool = True,
    ) -> Any:
        """A request; TransientError while the worker is down.

        ``job`` tells its user what it waits for, and ends the waiting when it is cancelled,
        if it is ``cancellable``.  What the worker had begun by then, it does.
        """


class SparkPopulation(Protocol):
    """Population by Spark (``population.spark``)."""

    def begin(self) -> None:
        """Start Spark in the background: a population will need it."""

    def populate(
        self,
        job: Job,
        plan: PhysicalPlan,
        snapshot: Snapshot,
        sizes: dict[str, TableSize],
        settings: dict[str, str],
        staged: Staging,
        owner: str,
    ) -> int:
        """Fill ``staged`` with the result rows and states; returns the rows."""


@dataclass(slots=True)
class JobContext:
    """What all jobs of one builder share."""

    settings: Settings
    worker: WorkerProtocol
    spark: SparkPopulation
    reader: TextReader = field(default_factory=TextReader)
    """Reads texts with a parser of many dialects, in a process of its own."""
    publication_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held from registering a view's tables to publishing them, and from finding unused
    tables to unpublishing them: else a drop could take a table from a new view."""
    snapshots: Snapshots = field(init=False)
    """What populations read from, made for several at once."""
    places: Places = field(init=False)
    """Where populations load and write their rows."""
    spark_place: Places = field(default_factory=lambda: Places(1))
    """Spark has one heap for all: those that use it come one after the other."""
    live: dict[int, Job] = field(default_factory=dict)
    """The job that populates a view now, by the view's id."""

    def __post_init__(self) -> None:
        """As many side by side as the settings allow."""
        side_by_side = max(self.settings.populations_max, 1)
        # Each snapshot that is there has somebody who has a place, or gets the next.
        self.snapshots = Snapshots(side_by_side)
        self.places = Places(side_by_side)
