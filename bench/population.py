"""population: seconds until a new view over existing rows is running."""

from __future__ import annotations

import time
from typing import ClassVar

import psycopg

from bench.scenario import Bed, Figures, Options, Scenario, bed
from headrace.embedded import shop

_COPIES = (
    "COPY orders (id, customer_id, product_id, quantity, amount, status, placed_at) TO STDOUT",
    "COPY customers (id, country) TO STDOUT",
    "COPY products (id, category) TO STDOUT",
)


class Population(Scenario):
    """The same join-and-aggregate view, populated in-process and by Spark, twice each."""

    name: ClassVar[str] = "population"
    about: ClassVar[str] = "seconds of create_view over a filled table, local and Spark, × COPY"

    def run(self, options: Options) -> list[Figures]:
        """The first Spark population starts the session, the second finds it warm."""
        out = []
        for orders in (options.rows,) if options.rows else (100_000, 1_000_000):
            with bed(options) as on:
                shop.load(on.source, orders)
                on.engine.start()
                copy_s = self._copy(on)
                lines = [("copy", "", copy_s), ("create table as", "", self._postgres(on))]
                for how in ("local", "spark"):
                    lines += [(how, run, self._create(on, how, run)) for run in ("cold", "warm")]
                out += [_line(how, run, orders, took_s, copy_s) for how, run, took_s in lines]
        return out

    def _copy(self, on: Bed) -> float:
        """Reading the columns of the query, and nothing else."""
        begin = time.monotonic()
        with psycopg.connect(on.source) as conn, conn.cursor() as cursor:
            for statement in _COPIES:
                with cursor.copy(statement) as copy:
                    for _ in copy:
                        pass
        return time.monotonic() - begin

    def _postgres(self, on: Bed) -> float:
        """What Postgres itself needs for the query: the scale of the others."""
        with psycopg.connect(on.source, autocommit=True) as conn:
            begin = time.monotonic()
            conn.execute(f"CREATE TABLE by_postgres AS {shop.VIEWS[0].query}")
        return time.monotonic() - begin

    def _create(self, on: Bed, how: str, run: str) -> float:
        """One create_view; the view is dropped again."""
        name = f"{how}_{run}"
        took_s = on.create_view(name, shop.VIEWS[0].query, f'{{"population": "{how}"}}')
        on.drop_view(name)
        return took_s


def _line(how: str, run: str, orders: int, took_s: float, copy_s: float) -> Figures:
    return {
        "population": how,
        "run": run,
        "orders": orders,
        "seconds": round(took_s, 2),
        "x_copy": round(took_s / copy_s, 1),
        "rows_per_s": round(orders / took_s),
    }
