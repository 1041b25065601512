"""population: seconds until a new view over existing rows is running."""

from __future__ import annotations

import time
from typing import ClassVar

import psycopg

from bench.scenario import Bed, Figures, Options, Scenario, bed
from headrace.embedded import shop


class Population(Scenario):
    """The same join-and-aggregate view, populated in-process and by Spark, twice each."""

    name: ClassVar[str] = "population"
    about: ClassVar[str] = "seconds of create_view over a filled table, local and Spark"

    def run(self, options: Options) -> list[Figures]:
        """The first Spark population starts the session, the second finds it warm."""
        orders = options.rows or 1_000_000
        with bed(options, HEADRACE_SPARK_WARM="false") as on:
            shop.load(on.source, orders)
            on.engine.start()
            out = [self._postgres(on, orders)]
            for how in ("local", "spark"):
                out += [self._create(on, orders, how, r) for r in ("first", "second")]
        return out

    def _postgres(self, on: Bed, orders: int) -> Figures:
        """What Postgres itself needs for the query: the scale of the others."""
        with psycopg.connect(on.source, autocommit=True) as conn:
            begin = time.monotonic()
            conn.execute(f"CREATE TABLE by_postgres AS {shop.VIEWS[0].query}")
        return _line("create table as", "", orders, time.monotonic() - begin)

    def _create(self, on: Bed, orders: int, how: str, run: str) -> Figures:
        """One create_view; the view is dropped again."""
        name = f"{how}_{run}"
        options = f'{{"population": "{how}"}}'
        took_s = on.create_view(name, shop.VIEWS[0].query, options)
        on.drop_view(name)
        return _line(how, run, orders, took_s)


def _line(how: str, run: str, orders: int, took_s: float) -> Figures:
    return {
        "population": how,
        "run": run,
        "orders": orders,
        "seconds": round(took_s, 2),
        "rows_per_s": round(orders / took_s),
    }
