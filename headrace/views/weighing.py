"""What a plan costs in a database as it is now: how often its tables change; rows of advise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.planner import Planned
from headrace.planner.physical import costs
from headrace.planner.physical.costs import ChangeCost, ExpectedCosts
from headrace.postgres.connect import Connection

Row = list[Any]
BATCHES_PER_S: Final = 100.0
"""More are not made, however many transactions come (``bench freshness``)."""
_RATES: Final = """
SELECT t.oid::bigint,
       pg_stat_get_tuples_inserted(t.oid) + pg_stat_get_tuples_deleted(t.oid)
         + 2 * pg_stat_get_tuples_updated(t.oid),
       extract(epoch FROM clock_timestamp() - coalesce(d.stats_reset, pg_postmaster_start_time()))
         ::float8
  FROM unnest(%s::oid[]) t (oid)
  JOIN pg_stat_database d ON d.datname = current_database()"""


@dataclass(frozen=True, slots=True)
class WeighedTable:
    """A table of a plan: what a change of it costs, and how often it changes."""

    name: str
    cost: ChangeCost | None
    """None: it was never analysed."""
    per_s: float
    """Rows inserted or deleted a second, an update counts twice; since statistics are kept."""


def row(
    topic: str,
    subject: str | None,
    finding: str,
    value: float | None = None,
    unit: str | None = None,
    advice: str | None = None,
) -> Row:
    """One row of the answer; numbers as exact as they are known."""
    shown = None if value is None or not math.isfinite(value) else float(f"{value:.3g}")
    return [topic, subject, finding, shown, unit, advice]


def weighed(conn: Connection, planned: Planned) -> tuple[ExpectedCosts, list[WeighedTable]]:
    """A plan's costs, and those of its tables, in order of their names."""
    known = costs.statistics(planned.optimised)
    expected = ExpectedCosts(planned.physical, planned.sizes, known)
    sources = planned.physical.sources
    rates = _rates(conn, [source.table_oid for source in sources])
    tables = [
        WeighedTable(
            f"{source.schema_name}.{source.table_name}",
            expected.change(source.id),
            rates.get(source.table_oid, 0.0),
        )
        for source in sources
    ]
    return expected, sorted(tables, key=lambda table: table.name)


def _rates(conn: Connection, tables: Sequence[int]) -> dict[int, float]:
    found = conn.execute(_RATES, (list(tables),)).fetchall()
    return {int(oid): float(changes) / max(float(s), 1.0) for oid, changes, s in found}


def load(tables: Sequence[WeighedTable]) -> tuple[float, float]:
    """The part of a processor that a view takes: in large batches, and where rows come one by one.

    Even these gather to batches, once there are many.
    """
    least = most = 0.0
    for table in tables:
        if table.cost is not None:
            least += table.per_s * table.cost.us / 1e6
            fixed = table.cost.alone_us - table.cost.us
            most += min(table.per_s, BATCHES_PER_S) * fixed / 1e6
    return least, least + most
