"""population: seconds until a new view over existing rows is running, in process and by Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import ClassVar, Final, LiteralString

import psycopg

from bench import cpu
from bench.scenario import Bed, Figures, Options, Scenario, bed
from bench.shapes import SHAPES, streaming
from headrace.embedded import shop

_SHOP_COPIES = (
    "COPY orders (id, customer_id, product_id, quantity, amount, status, placed_at) TO STDOUT",
    "COPY customers (id, country) TO STDOUT",
    "COPY products (id, category) TO STDOUT",
)


COPIES: Final[dict[str, tuple[LiteralString, ...]]] = {
    "group_sum": ("COPY orders (id, customer, amount) TO STDOUT",),
    "join": (
        "COPY orders (id, customer, amount) TO STDOUT",
        "COPY customers (id, region) TO STDOUT",
    ),
}
"""Shapes to populate, and the COPY statements that read their tables."""
_BUILDER = "headrace.views.builder"


class Population(Scenario):
    """Two shapes in process, then a join-and-aggregate view in process and by Spark, twice each."""

    name: ClassVar[str] = "population"
    about: ClassVar[str] = "seconds of create_view over a filled table, local and Spark, × COPY"

    def run(self, options: Options) -> list[Figures]:
        """Measure; the first Spark population starts the session, and the second finds it warm."""
        sizes = (options.rows,) if options.rows else (100_000, 1_000_000)
        out = [line for orders in sizes for line in _shapes(options, orders)]
        if options.only:
            return out
        for orders in sizes:
            with bed(options) as on:
                shop.load(on.source, orders)
                on.engine.start()
                copy_s = copy_seconds(on, _SHOP_COPIES)
                lines = [("copy", "", copy_s), ("create table as", "", self._postgres(on))]
                for how in ("local", "spark"):
                    lines += [(how, run, self._create(on, how, run)) for run in ("cold", "warm")]
                out += [_line(how, run, orders, took_s, copy_s) for how, run, took_s in lines]
        return out

    def _postgres(self, on: Bed) -> float:
        """Return Postgres' own seconds for the query, as a scale for the other figures."""
        with psycopg.connect(on.source, autocommit=True) as conn:
            begin = time.monotonic()
            conn.execute(f"CREATE TABLE by_postgres AS {shop.VIEWS[0].query}")
        return time.monotonic() - begin

    def _create(self, on: Bed, how: str, run: str) -> float:
        """Return the seconds of one create_view, and drop the view again."""
        name = f"{how}_{run}"
        took_s = on.create_view(name, shop.VIEWS[0].query, f'{{"population": "{how}"}}')
        on.drop_view(name)
        return took_s


def copy_seconds(on: Bed, statements: tuple[LiteralString, ...]) -> float:
    """Return the seconds for only reading the columns of a query."""
    begin = time.monotonic()
    with psycopg.connect(on.source) as conn, conn.cursor() as cursor:
        for statement in statements:
            with cursor.copy(statement) as copy:
                for _ in copy:
                    pass
    return time.monotonic() - begin


def _shapes(options: Options, orders: int) -> Iterator[Figures]:
    """Measure each shape in process, right after a start of the server and once more."""
    with streaming(options, orders) as (on, stream):
        stream.conn.execute("VACUUM ANALYZE")
        for shape, statements in COPIES.items():
            if options.only and shape not in options.only:
                continue
            on.engine.stop()
            copy_s = min(copy_seconds(on, statements) for _ in range(3))
            yield _line(shape, "copy", orders, copy_s, copy_s)
            on.engine.start()
            for run in ("after a start", "again"):
                builder = on.engine.child(_BUILDER)
                assert builder is not None, "the engine runs"
                cpu_s = cpu.of_process(builder)
                took_s = on.create_view(shape, SHAPES[shape], '{"population": "local"}')
                cpu_s = cpu.of_process(builder) - cpu_s
                peak_mb = cpu.status(builder, "VmHWM") // 1024
                yield _line(shape, run, orders, took_s, copy_s) | {
                    "cpu_s": round(cpu_s, 1),
                    "peak_mb": peak_mb,
                }
                on.check(shape, SHAPES[shape])
                on.drop_view(shape)


def _line(how: str, run: str, orders: int, took_s: float, copy_s: float) -> Figures:
    return {
        "population": how,
        "run": run,
        "orders": orders,
        "seconds": round(took_s, 2),
        "x_copy": round(took_s / copy_s, 1),
        "rows_per_s": round(orders / took_s),
        "cpu_s": "",
        "peak_mb": "",
    }
