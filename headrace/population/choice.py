"""Chooses by estimated cost whether a population runs in this process or on Spark.

In this process all states of the view are in memory until they are written, so they must fit into
the memory share.  Spark spills to disk and reads in parallel, but needs a JVM.  It populates views
that do not fit, and large ones where there is a cluster.  Without Spark, this process populates
views that do not fit as well, but by parts, over files (``out_of_core``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from headrace.collections import plan
from headrace.collections.plan import PhysicalPlan
from headrace.config import Settings
from headrace.population.tables import TableSize
from headrace.sql.view_spec import ViewSpec

LOCAL: Final = "local"
OUT_OF_CORE: Final = "out_of_core"
SPARK: Final = "spark"
ENTRY_BYTES: Final = 250
"""Overhead of a row in a state, besides its values: two byte strings, a dictionary entry, the
sorted pair, its part of the result.  Measured as resident memory."""
ROWS_WORTH_TELLING: Final = 100_000
_ROWS_WORTH_A_CLUSTER: Final = 100_000
_PARTS_MIN: Final = 2
_WHERE: Final = {
    LOCAL: "in process",
    OUT_OF_CORE: "in process, over files",
    SPARK: "on Spark",
}
_STATEFUL: Final = (
    plan.JoinSpec,
    plan.ReduceSpec,
    plan.TopKSpec,
    plan.WindowSpec,
    plan.DistinctSpec,
    plan.SetOpSpec,
    plan.RecursiveSpec,
    plan.TemporalSpec,
    plan.CalendarSpec,
)
_UNITS: Final = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"))


@dataclass(frozen=True, slots=True)
class Choice:
    """Where to load, and the estimate behind it."""

    mode: str
    """LOCAL, OUT_OF_CORE or SPARK."""
    rows: int
    """Number of rows to read."""
    bytes: int
    """Memory that the states would take in this process."""
    share: int
    """Memory that the states may take."""
    large: bool
    """Whether no other population should run concurrently, if it runs here in memory."""
    why: str = ""
    """The reason, if it was not the memory."""

    def without_spark(self, cause: str) -> Choice:
        """Return the choice of this process because of ``cause``."""
        return replace(self, mode=_here(self.bytes, self.share), why=cause)

    def parts(self, populations: int) -> int:
        """Return how many parts it needs out of core, beside other ``populations`` of its size."""
        return max(_PARTS_MIN, -(-self.bytes * max(populations, 1) // max(self.share, 1)))

    def __str__(self) -> str:
        """Return a description for users and logs."""
        rows = f"{self.rows:_}".replace("_", " ")
        text = f"population: {_WHERE[self.mode]}, about {rows} rows, states of {_size(self.bytes)}"
        text += f" (limit in process: {_size(self.share)})"
        return f"{text}; {self.why}" if self.why else text


def choose(
    physical: PhysicalPlan,
    sizes: Mapping[str, TableSize],
    settings: Settings,
    options: ViewSpec,
) -> Choice:
    """Choose where to load: by option or setting, otherwise by whether the states fit into memory.

    ``sizes``: by source ID.
    """
    rows = sum(size.rows for size in sizes.values())
    needed = sum(
        size.rows * (size.width + ENTRY_BYTES) * states_of(physical, name)
        for name, size in sizes.items()
    )
    share = settings.population_memory_bytes
    threshold = options.threshold_rows
    if threshold is None:
        threshold = settings.spark_threshold_rows or None
    if threshold is None:
        large, why = needed > share, ""
    else:
        large, why = rows > 0 and rows >= threshold, f"Spark from {threshold} rows on"

    def chosen(mode: str, why: str) -> Choice:
        # A population that needs more than an equal part of the share gets all of it.
        alone = large or needed * max(settings.populations_max, 1) > share
        return Choice(mode, rows, needed, share, alone, why)

    here = _here(needed, share)
    if options.population != "auto":
        mode = SPARK if options.population == SPARK else here
        return chosen(mode, "by option population")
    if threshold is None and rows >= _ROWS_WORTH_A_CLUSTER and settings.spark_cluster:
        return chosen(SPARK, "spark_master is a cluster")
    return chosen(SPARK if large else here, why)


def _here(needed: int, share: int) -> str:
    """Return how states of ``needed`` bytes are built in this process."""
    return LOCAL if needed <= share else OUT_OF_CORE


def states_of(physical: PhysicalPlan, source: str) -> int:
    """Return how many states may keep a row of ``source``, including its own."""
    reached, found = {source}, 1
    for node in physical.nodes:
        ports = sum(name in reached for name in plan.inputs(node))
        if ports:
            reached.add(node.id)
            found += ports * isinstance(node, _STATEFUL)
    return found


def _size(count: int) -> str:
    for unit, name in _UNITS:
        if count >= unit:
            number = count / unit
            return f"{number:.0f} {name}" if number >= 10 else f"{number:.1f} {name}"
    return f"{count} bytes"
