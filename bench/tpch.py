"""tpch: the 22 queries of TPC-H as views, under refresh streams."""

from __future__ import annotations

import statistics
import time
from typing import ClassVar

import psycopg

from bench.scenario import Bed, Figures, Options, Scenario, bed, caught_up
from bench.tpch_data import Tpch, queries

_SCALE = 0.1
_ORDERS_AT_1 = 1_500_000
_PART = 0.0005
"""The part of the orders that a step of the refresh stream concerns."""
_SMALL = 9
"""Transactions of one order each."""


class TpchQueries(Scenario):
    """Each query alone: population, cost of a change, and the query itself in Postgres."""

    name: ClassVar[str] = "tpch"
    about: ClassVar[str] = (
        "seconds to create a view; µs per changed row of large transactions; ms until one"
        " order shows; ms of the query in Postgres, and how many changed rows cost as much"
    )

    def run(self, options: Options) -> list[Figures]:
        """Measure at scale 0.1, or with ``options.rows`` orders."""
        scale = options.rows / _ORDERS_AT_1 if options.rows else _SCALE
        out: list[Figures] = []
        with (
            bed(options, HEADRACE_SPARK_WARM="false") as on,
            psycopg.connect(on.source, autocommit=True) as conn,
        ):
            data = Tpch(conn, scale)
            data.load()
            on.engine.start()
            for number, (name, query) in enumerate(queries().items()):
                out.append(self._measure(on, conn, data, number, name, query))
        return out

    def _measure(
        self,
        on: Bed,
        conn: psycopg.Connection[tuple[object, ...]],
        data: Tpch,
        number: int,
        name: str,
        query: str,
    ) -> Figures:
        view = name.lower()
        try:
            created_s = on.create_view(view, query, '{"population": "local"}')
        except psycopg.errors.FeatureNotSupported as error:
            return _refused(name, str(error.diag.message_primary))
        changed = 0
        spent_s = 0.0
        for rows in data.refresh(number, _PART):
            spent_s += caught_up(conn, view)
            changed += rows
        small_s = []
        for order in range(_SMALL):
            data.amend(number * _SMALL + order)
            small_s.append(caught_up(conn, view))
        begin = time.monotonic()
        conn.execute(query.encode())
        query_s = time.monotonic() - begin
        on.check(view, query)
        on.drop_view(view)
        row_s = spent_s / max(changed, 1)
        return {
            "query": name,
            "create_s": round(created_s, 2),
            "changed_rows": changed,
            "us_per_row": round(row_s * 1e6, 1),
            "order_ms": round(statistics.median(small_s) * 1e3, 1),
            "postgres_ms": round(query_s * 1e3, 1),
            "rows_per_rerun": round(query_s / row_s),
            "refused": "-",
        }


def _refused(name: str, why: str) -> Figures:
    figures = [
        "create_s",
        "changed_rows",
        "us_per_row",
        "order_ms",
        "postgres_ms",
        "rows_per_rerun",
    ]
    return {"query": name, **dict.fromkeys(figures, 0), "refused": why}
