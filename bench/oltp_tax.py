"""oltp_tax: the cost of views for a busy database, in pgbench's own transactions."""

from __future__ import annotations

import statistics
from typing import ClassVar, Final

import psycopg

from bench import pgbench
from bench.scenario import Bed, Figures, Options, Scenario, bed, caught_up

_ROWS_AT_1: Final = 100_000
_ROUNDS: Final = 3
_CLIENTS: Final = 8
VIEWS: Final = {
    "by_branch": """SELECT bid, count(*) AS accounts, sum(abalance) AS balance
        FROM pgbench_accounts GROUP BY bid""",
    "in_debt": "SELECT aid, bid, abalance FROM pgbench_accounts WHERE abalance < 0",
    "tellers": """SELECT t.tid, t.tbalance, b.bbalance
        FROM pgbench_tellers t JOIN pgbench_branches b ON b.bid = t.bid""",
}


class OltpTax(Scenario):
    """The same load in turns: no engine, an engine without views, an engine with three."""

    name: ClassVar[str] = "oltp_tax"
    about: ClassVar[str] = (
        "transactions/s of pgbench's TPC-B-like transaction, straight to Postgres, without and"
        " with 3 views on its tables; ratio: to no engine at all, on the same machine"
    )

    def run(self, options: Options) -> list[Figures]:
        """Measure ``options.seconds`` (10) of each, in three rounds; the median round counts."""
        seconds = str(max(round(options.seconds or 10), 1))
        scale = max((options.rows or 10 * _ROWS_AT_1) // _ROWS_AT_1, 1)
        rates: dict[str, list[float]] = {"none": [], "no views": [], "3 views": []}
        late_s = 0.0
        with bed(options, HEADRACE_SPARK_WARM="false") as on:
            pgbench.ran(on, on.source, "--initialize", "--quiet", "--scale", str(scale))

            def measured(what: str) -> None:
                words = ("--client", str(_CLIENTS), "--jobs", "2", "--time", seconds)
                rates[what].append(pgbench.rate(pgbench.ran(on, on.source, *words)))

            for _ in range(_ROUNDS):
                measured("none")
                on.engine.start()
                measured("no views")
                for name, query in VIEWS.items():
                    on.create_view(name, query, '{"population": "local"}')
                measured("3 views")
                late_s = max(late_s, finish(on))
                on.engine.stop()
        plain = statistics.median(rates["none"])
        return [
            {
                "engine": what,
                "scale": scale,
                "clients": _CLIENTS,
                "tps": round(statistics.median(found)),
                "ratio": round(statistics.median(found) / plain, 3),
                "slowest": round(min(found)),
                "fastest": round(max(found)),
                "behind_s": round(late_s, 2) if what == "3 views" else 0.0,
            }
            for what, found in rates.items()
        ]


def finish(on: Bed) -> float:
    """Check and drop the views; returns by how many seconds they were behind at the end."""
    with psycopg.connect(on.source, autocommit=True) as conn:
        late_s = caught_up(conn, *VIEWS)
    for name, query in VIEWS.items():
        on.check(name, query)
        on.drop_view(name)
    return late_s
