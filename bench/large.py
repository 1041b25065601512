"""large: one transaction of a million rows, from its commit until a view shows it."""

from __future__ import annotations

import time
from typing import ClassVar

import psycopg

from bench import cpu
from bench.scenario import Figures, Options, Scenario, bed, caught_up, scalar

_WALSENDER = (
    "SELECT active_pid FROM pg_replication_slots WHERE active AND database = current_database()"
)


class Large(Scenario):
    """Rows for a view of sums, and meanwhile rows of another table for another view."""

    name: ClassVar[str] = "large"
    about: ClassVar[str] = (
        "seconds from the commit of a large transaction until its view shows it, and until another"
        " view shows what came right after it; CPU seconds of walsender and worker"
    )

    def run(self, options: Options) -> list[Figures]:
        """Measure three transactions, one after the other."""
        rows = options.rows or 1_000_000
        out: list[Figures] = []
        with (
            bed(options, HEADRACE_SPARK_WARM="false") as on,
            psycopg.connect(on.source, autocommit=True) as conn,
        ):
            conn.execute(
                "CREATE TABLE sales (id int PRIMARY KEY, g int, x numeric(10, 2));"
                " CREATE TABLE small (id int PRIMARY KEY, v int)"
            )
            on.engine.start()
            query = "SELECT g, count(*) AS n, sum(x) AS total FROM sales GROUP BY g"
            on.create_view("v", query)
            on.create_view("w", "SELECT v, count(*) AS n FROM small GROUP BY v")
            sender = int(scalar(on.source, _WALSENDER))
            for n in range(3):
                before = cpu.of_process(sender), cpu.of_process(on.worker)
                begin = time.monotonic()
                conn.execute(
                    "INSERT INTO sales SELECT %s + i, i %% 1000, i FROM generate_series(1, %s) i",
                    (n * rows, rows),
                )
                committed = time.monotonic()
                conn.execute("INSERT INTO small VALUES (%s, 1)", (n,))
                caught_up(conn, "w")
                other = time.monotonic()
                caught_up(conn, "v")
                shown = time.monotonic()
                out.append(
                    {
                        "rows": rows,
                        "written_s": round(committed - begin, 2),
                        "shown_s": round(shown - committed, 2),
                        "other_s": round(other - committed, 2),
                        "walsender_cpu_s": round(cpu.of_process(sender) - before[0], 2),
                        "worker_cpu_s": round(cpu.of_process(on.worker) - before[1], 2),
                    }
                )
            on.check("v", query)
        return out
