"""Where a population runs, in this process or on Spark, by what it costs; and why, in words.

In this process all states of the view are in memory until they are written, so it is for what
fits its share.  Spark spills, and reads side by side, but needs a JVM; it takes what does not fit,
and what is worth a cluster's while where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.collections import plan
from headrace.collections.plan import PhysicalPlan
from headrace.config import Settings
from headrace.population.options import ViewOptions
from headrace.population.tables import TableSize

LOCAL: Final = "local"
SPARK: Final = "spark"
ENTRY_BYTES: Final = 250
"""Of a row in a state, besides its values: two byte strings, a place in a dictionary, the pair
that is sorted, a part in the result.  Measured as resident memory."""
ROWS_WORTH_TELLING: Final = 100_000
_ROWS_WORTH_A_CLUSTER: Final = 100_000
_STATEFUL: Final = (
    plan.JoinSpec,
    plan.ReduceSpec,
    plan.TopKSpec,
    plan.WindowSpec,
    plan.DistinctSpec,
    plan.SetOpSpec,
    plan.RecursiveSpec,
    plan.TemporalSpec,
)
_UNITS: Final = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"))


@dataclass(frozen=True, slots=True)
class Choice:
    """How to load, and the estimate that it rests on."""

    mode: str
    """LOCAL or SPARK."""
    rows: int
    """So many are to be read."""
    bytes: int
    """What the states take in this process."""
    share: int
    """What they may take."""
    large: bool
    """Whether nothing else should load beside it, if it runs here."""
    why: str = ""
    """What decided, where it was not the memory."""

    def __str__(self) -> str:
        """For users and logs."""
        where = "on Spark" if self.mode == SPARK else "in process"
        rows = f"{self.rows:_}".replace("_", " ")
        text = f"population: {where}, about {rows} rows, {_size(self.bytes)} of {_size(self.share)}"
        return f"{text}; {self.why}" if self.why else text


def choose(
    physical: PhysicalPlan,
    sizes: Mapping[str, TableSize],
    settings: Settings,
    options: ViewOptions,
) -> Choice:
    """Where to load: as options or settings say, else by what fits into memory.

    ``sizes``: of the sources, by id.
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
        # What takes more than an equal part of the share has it alone.
        alone = large or needed * max(settings.populations_max, 1) > share
        return Choice(mode, rows, needed, share, alone, why)

    if options.population != "auto":
        return chosen(options.population, "as its options say")
    if threshold is None and rows >= _ROWS_WORTH_A_CLUSTER and settings.spark_cluster:
        return chosen(SPARK, "there is a cluster")
    return chosen(SPARK if large else LOCAL, why)


def states_of(physical: PhysicalPlan, source: str) -> int:
    """In how many states a row of ``source`` may be kept, its own among them."""
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
