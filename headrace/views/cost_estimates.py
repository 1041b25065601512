"""Cost estimates of a plan with the current rates of change of its tables, for ``advise``."""

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
"""Upper limit of batches per second, for any rate of transactions (``bench freshness``)."""
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
    """A table of a plan: the cost of one changed row, and its rate of change."""

    name: str
    cost: ChangeCost | None
    """None: the table was never analysed."""
    per_s: float
    """Rows inserted or deleted per second, an update counting twice, since the last statistics
    reset."""


def row(
    topic: str,
    subject: str | None,
    finding: str,
    value: float | None = None,
    unit: str | None = None,
    advice: str | None = None,
) -> Row:
    """Return one row of the answer; the number is rounded to three significant digits."""
    shown = None if value is None or not math.isfinite(value) else float(f"{value:.3g}")
    return [topic, subject, finding, shown, unit, advice]


def weighed(conn: Connection, planned: Planned) -> tuple[ExpectedCosts, list[WeighedTable]]:
    """Return the costs of a plan, and of its tables in order of their names."""
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
    """Return a view's share of a processor: in large batches, and with single rows.

    Even single rows are gathered into batches once there are many.
    """
    least = most = 0.0
    for table in tables:
        if table.cost is not None:
            least += table.per_s * table.cost.us / 1e6
            fixed = table.cost.alone_us - table.cost.us
            most += min(table.per_s, BATCHES_PER_S) * fixed / 1e6
    return least, least + most
