"""tpch: the 22 queries of TPC-H as views, under refresh streams."""

from __future__ import annotations

import time
from typing import ClassVar

import psycopg

from bench.scenario import Bed, Figures, Options, Scenario, bed
from bench.tpch_data import Tpch, queries
from headrace.embedded.shop import View, differing_rows
from headrace.errors import BugError

_SCALE = 0.1
_ORDERS_AT_1 = 1_500_000


class TpchQueries(Scenario):
    """Each query alone: population, cost of a change, and the query itself in Postgres."""

    name: ClassVar[str] = "tpch"
    about: ClassVar[str] = (
        "seconds to create a view, µs per changed row, ms of the query in Postgres"
    )

    def run(self, options: Options) -> list[Figures]:
        """Scale 0.1, or so many ``options.rows`` orders."""
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
            return _line(name, refused=str(error.diag.message_primary))
        changed = 0
        spent_s = 0.0
        for rows in data.refresh(number, 0.0005):
            begin = time.monotonic()
            conn.execute(
                "CALL headrace.wait_for(%s, pg_current_wal_lsn(), '600 s')", (view,)
            )
            spent_s += time.monotonic() - begin
            changed += rows
        begin = time.monotonic()
        conn.execute(query.encode())
        query_s = time.monotonic() - begin
        _, differing = differing_rows(on.source, View(view, query, ""))
        if differing:
            raise BugError(f"{name}: the view differs by {differing} rows")
        on.drop_view(view)
        return _line(
            name,
            created_s=created_s,
            changed=changed,
            change_us=spent_s / max(changed, 1) * 1e6,
            query_ms=query_s * 1e3,
        )


def _line(
    name: str,
    *,
    created_s: float = 0.0,
    changed: int = 0,
    change_us: float = 0.0,
    query_ms: float = 0.0,
    refused: str = "",
) -> Figures:
    return {
        "query": name,
        "create_s": round(created_s, 2),
        "changed_rows": changed,
        "us_per_row": round(change_us, 1),
        "postgres_ms": round(query_ms, 1),
        "refused": refused or "-",
    }
