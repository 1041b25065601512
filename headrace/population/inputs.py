"""Tables that a population reads: their plan, their sizes, and where they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.collections.plan import PhysicalPlan
from headrace.population import reader
from headrace.population.elsewhere import SourceSnapshots
from headrace.population.fed_rows import FedRows
from headrace.population.reader import TableOrigin
from headrace.population.snapshot import SnapshotRef
from headrace.population.tables import TableSize
from headrace.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of a population, in process or on Spark."""

    plan: PhysicalPlan
    sizes: Mapping[str, TableSize]
    """Sizes of the tables, by source ID."""
    elsewhere: SourceSnapshots | None = None
    """Snapshots of the sources that some of the tables are in."""
    instant: int | None = None
    """``now()`` of the query, in microseconds since 2000-01-01 UTC; None: the snapshot's."""
    fed: Mapping[str, FedRows] = field(default_factory=dict)
    """The rows of feeding views, by node, for a population on Spark."""

    def origins(self) -> dict[str, TableOrigin]:
        """Return the tables that are read in another database, by source ID of the plan."""
        if self.elsewhere is None:
            return {}
        found = {source.id: self.elsewhere.origin(source) for source in self.plan.sources}
        return {name: origin for name, origin in found.items() if origin is not None}

    def clock(self, dsn: str, ref: SnapshotRef) -> int:
        """Return ``instant``; that of snapshot ``ref`` if it is not given, 0 without a clock."""
        if not self.plan.temporal:
            return 0
        if self.instant is not None:
            return self.instant
        with reader.joined(dsn, ref) as conn:
            return _now(conn)


def _now(conn: Connection) -> int:
    """Return ``now()`` of the reading transaction, in microseconds since 2000-01-01 UTC."""
    row = conn.execute(
        "SELECT pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.now()"
        " - '2000-01-01 00:00:00+00'::pg_catalog.timestamptz) * 1000000)"
        "::pg_catalog.int8"
    ).fetchone()
    assert row is not None, "the time is a row"
    return int(row[0])
