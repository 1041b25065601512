"""lanes: a quick view beside a slow one, which is in a commit group of its own.

Every transaction concerns both. The slow view either waits (for a user's function in the user's
Postgres) or computes (a running sum, in which a row in the middle changes all later ones). With
``slow_batch_ms`` 50, the default, the slow view's group is separated; with 0 it is not.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import ClassVar, Final

import numpy as np
import psycopg

from bench.scenario import Bed, Figures, Options, Scenario, bed, caught_up
from headrace.embedded.shop import percentile

_TABLES: Final = """
CREATE TABLE events (id int PRIMARY KEY, place int NOT NULL, x int NOT NULL);
CREATE INDEX ON events (place);
CREATE FUNCTION asked(n bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS
  $$ BEGIN PERFORM pg_sleep(0.2); RETURN n; END $$;
"""
_QUICK: Final = "SELECT id, x FROM events WHERE id > 1000000"
_SLOW: Final = {
    "waits": "SELECT asked(count(*)) AS c FROM events",
    "works": "SELECT id, sum(x) OVER (ORDER BY place, id) AS s FROM events",
}
_ROWS: Final = 10_000
_PROBES: Final = 100
_PAUSE_S: Final = 0.05
_POLL_S: Final = 0.001


class Lanes(Scenario):
    """The cost of a slow view for a quick one."""

    name: ClassVar[str] = "lanes"
    about: ClassVar[str] = (
        "ms from commit to visible of a quick view, alone, and beside a slow one of another commit"
        " group, in lanes of their own and in one; late_ms: the slow view at the end"
    )

    def run(self, options: Options) -> list[Figures]:
        """Measure the quick view alone, then beside each kind of slow view."""
        lines = []
        for slow_batch_ms in (50, 0):
            with bed(
                options, HEADRACE_SPARK_WARM="false", HEADRACE_SLOW_BATCH_MS=str(slow_batch_ms)
            ) as on:
                with psycopg.connect(on.source, autocommit=True) as conn:
                    conn.execute(_TABLES)
                    conn.execute(
                        "INSERT INTO events SELECT i, i, i %% 10 FROM generate_series(1, %s) i",
                        (options.rows or _ROWS,),
                    )
                on.engine.start()
                on.create_view("quick", _QUICK)
                if slow_batch_ms:
                    lines.append(_measure(on, "alone", slow_batch_ms, options))
                for kind, query in _SLOW.items():
                    on.create_view("slow", query, json.dumps({"commit_group": "slow"}))
                    lines.append(_measure(on, kind, slow_batch_ms, options))
                    on.check("quick", _QUICK)
                    on.check("slow", query)
                    on.drop_view("slow")
        return lines


def _measure(on: Bed, slow: str, slow_batch_ms: int, options: Options) -> Figures:
    rng = np.random.default_rng(1)
    took = []
    with psycopg.connect(on.source, autocommit=True) as conn:
        row = conn.execute("SELECT greatest(max(id), 1000000) FROM events").fetchone()
        assert row is not None, "the query gives one row"
        following = int(row[0]) + 1
        # The first probes show which view is slow, and are not measured.
        for number in range((int(options.seconds / _PAUSE_S) or _PROBES) + 10):
            place = int(rng.integers(_ROWS // 2, _ROWS))
            conn.execute("INSERT INTO events VALUES (%s, %s, 1)", (following, place))
            begun = time.perf_counter()
            while not conn.execute("SELECT FROM quick WHERE id = %s", (following,)).rowcount:
                time.sleep(_POLL_S)
            if number >= 10:
                took.append((time.perf_counter() - begun) * 1000)
            following += 1
            time.sleep(_PAUSE_S)
        late_s = caught_up(conn, "slow") if slow != "alone" else 0.0
    return {
        "slow": slow,
        "slow_batch_ms": slow_batch_ms,
        "probes": len(took),
        "p50_ms": round(statistics.median(took), 1),
        "p90_ms": round(percentile(took, 90), 1),
        "max_ms": round(max(took), 1),
        "late_ms": round(late_s * 1000),
    }
