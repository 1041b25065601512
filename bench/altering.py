"""altering: seconds of alter_view that adds a column, compared with a new create_view."""

from __future__ import annotations

import itertools
import time
from typing import ClassVar, Final

import psycopg

from bench.scenario import Bed, Figures, Options, Scenario, bed

_OLD: Final = "SELECT {0}, count(*) AS n, sum(amount) AS total FROM sales GROUP BY {0}"
_NEW: Final = {
    "computed": f"SELECT s.*, total / n AS mean FROM ({_OLD}) s",
    "aggregate": _OLD.replace(" FROM", ", sum(units) AS units FROM"),
}
"""A column computed from existing ones; a column that needs another table column."""
_OPTIONS: Final = {
    "customer": '{"population": "local"}',
    "account": '{"population": "local", "key": ["account"]}',
}
"""Options by the grouping column: without a key of the result table, and with one."""
_SETTLE_S: Final = 3.0


class Altering(Scenario):
    """An aggregate over a million rows, with a million groups or a thousand."""

    name: ClassVar[str] = "altering"
    about: ClassVar[str] = (
        "seconds of alter_view that adds a column, and of create_view of the same; ratio: of both"
    )

    def run(self, options: Options) -> list[Figures]:
        """Measure each number of groups and each kind of column."""
        rows = options.rows or 1_000_000
        out: list[Figures] = []
        for groups in (1_000, rows):
            with bed(options, HEADRACE_SPARK_WARM="false") as on:
                with psycopg.connect(on.source, autocommit=True) as conn:
                    conn.execute(
                        "CREATE TABLE sales (id int PRIMARY KEY, customer int,"
                        " account int NOT NULL, amount numeric(10, 2), units int)"
                    )
                    conn.execute(
                        "INSERT INTO sales SELECT i, i %% %s, i %% %s, i %% 1000 * 1.25, i %% 7"
                        " FROM generate_series(1, %s) i",
                        (groups, groups, rows),
                    )
                    conn.execute("VACUUM ANALYZE sales")
                on.engine.start()
                for by, (kind, shape) in itertools.product(_OPTIONS, _NEW.items()):
                    query = shape.format(by)
                    _settle(on)
                    made_s = on.create_view("v", query, _OPTIONS[by])
                    on.drop_view("v")
                    on.create_view("v", _OLD.format(by), _OPTIONS[by])
                    _settle(on)
                    begin = time.monotonic()
                    with psycopg.connect(on.engine.dsn, autocommit=True) as conn:
                        conn.execute("CALL headrace.alter_view('v', %s)", (query,))
                    took_s = time.monotonic() - begin
                    on.check("v", query)
                    on.drop_view("v")
                    out.append(
                        {
                            "rows": rows,
                            "groups": groups,
                            "key": "key" in _OPTIONS[by],
                            "added": kind,
                            "create_s": round(made_s, 2),
                            "alter_s": round(took_s, 2),
                            "ratio": round(took_s / made_s, 2),
                        }
                    )
        return out


def _settle(on: Bed) -> None:
    """Finish the background work of earlier steps, so that neither measurement includes it."""
    with psycopg.connect(on.source, autocommit=True) as conn:
        conn.execute("CHECKPOINT")
    time.sleep(_SETTLE_S)
