"""cdc: rows per second of a WAL backlog, compared with pg_recvlogical on the same WAL."""

from __future__ import annotations

from typing import ClassVar, Final

import psycopg
from psycopg import sql

from bench.recvlogical import Backlog
from bench.scenario import Bed, Figures, Options, Scenario, bed, scalar, wait_for

_QUERY = """SELECT k, count(*) AS n, sum(quantity) AS quantity, sum(amount) AS amount
FROM events GROUP BY k"""
_TABLE = """CREATE TABLE events (
    id bigint PRIMARY KEY, k int NOT NULL, quantity int NOT NULL,
    amount numeric(12,2) NOT NULL, note text)"""
# Commits inside a DO block: the backlog is written at the server's own speed.
_BACKLOG = """DO $do$ BEGIN
    FOR low IN 1 .. {rows} BY {rows_per_transaction} LOOP
        INSERT INTO events
        SELECT i, i::bigint * 7919 % 1000, i % 10, (i % 10007) / 100.0, 'note ' || i
        FROM generate_series(low, least(low + {rows_per_transaction} - 1, {rows})) i;
        COMMIT;
    END LOOP;
END $do$"""
_STREAMING: Final = """
SELECT extract(epoch FROM clock_timestamp() - r.backend_start)::float8
    FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid
    WHERE s.slot_name = 'headrace'
"""


class Cdc(Scenario):
    """Drain a prepared backlog into an aggregate view."""

    name: ClassVar[str] = "cdc"
    about: ClassVar[str] = "rows/s drained from a WAL backlog, beside pg_recvlogical"
    rows_default: ClassVar[int] = 500_000
    rows_per_transaction: ClassVar[int] = 100

    def run(self, options: Options) -> list[Figures]:
        """Write the backlog while the engine is down, then time both on it."""
        rows = options.rows or self.rows_default
        # A Spark session would compete for the CPU and is not used here.
        with bed(options, HEADRACE_SPARK_WARM="false") as on:
            written = self._prepare(on, rows)
            recv_s = written.receive().seconds
            written.close()
            engine_s = self._time_engine(on, rows)
        return [
            {
                "rows": rows,
                "rows_per_transaction": self.rows_per_transaction,
                "headrace_s": round(engine_s, 2),
                "headrace_rows_per_s": round(rows / engine_s),
                "recvlogical_s": round(recv_s, 2),
                "recvlogical_rows_per_s": round(rows / recv_s),
                "ratio": round(recv_s / engine_s, 3),
            }
        ]

    def _prepare(self, on: Bed, rows: int) -> Backlog:
        """Create a view on an empty table, stop the engine, create a slot, then the backlog."""
        with psycopg.connect(on.source, autocommit=True) as conn:
            conn.execute(_TABLE)
        on.engine.start()
        on.create_view("totals", _QUERY)
        on.engine.stop()
        written = Backlog(on)
        with psycopg.connect(on.source, autocommit=True) as conn:
            conn.execute(
                sql.SQL(_BACKLOG).format(rows=rows, rows_per_transaction=self.rows_per_transaction)
            )
            # Neither side may wait for the WAL writer.
            conn.execute("CHECKPOINT")
        written.end()
        return written

    def _time_engine(self, on: Bed, rows: int) -> float:
        """Return the seconds from the engine's stream connecting until the view shows all rows.

        The server's clock counts, because a small backlog is processed before ``start`` returns.
        """
        on.engine.start()
        with psycopg.connect(on.source, autocommit=True) as conn:

            def complete() -> bool:
                found = conn.execute("SELECT sum(n) FROM totals").fetchone()
                return found is not None and found[0] == rows

            wait_for("all rows in the view", complete)
            return float(scalar(on.source, _STREAMING))
