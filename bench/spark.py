"""spark: populations of large tables in process, on local Spark, and on a standalone master.

Each place has a cold run, right after a start of the server, and a warm one.  The places take
turns on the same tables.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import psycopg
from psycopg import sql

from bench import cpu, masters
from bench.population import COPIES, copy_seconds
from bench.scenario import Bed, Figures, Options, Scenario
from bench.shapes import SHAPES, streaming
from headrace.errors import BugError

_VIEWS: Final = ("group_sum", "join")
_SIZES: Final = (1_000_000, 10_000_000)
_PLACES: Final = ("local", "spark", "standalone")
_KINDS: Final = ("builder", "python", "jvm")
"""Kinds of processes that are shown one by one; ``python``: the workers of Spark."""
_WRITING: Final = "writing"


class Spark(Scenario):
    """Two shapes at each place, cold and warm."""

    name: ClassVar[str] = "spark"
    about: ClassVar[str] = (
        "seconds, CPU seconds of Headrace with Spark and of Postgres, and peak MB of a population"
        " in process, on local Spark and on a standalone master; × COPY of the same rows"
    )

    def run(self, options: Options) -> Iterator[Figures]:
        """Measure 1 and 10 million orders, or ``options.rows``."""
        for orders in (options.rows,) if options.rows else _SIZES:
            with (
                streaming(options, orders) as (on, stream),
                tempfile.TemporaryDirectory(prefix="headrace-spark-") as folder,
                masters.standalone(Path(folder)) as (url, workers),
            ):
                stream.conn.execute("VACUUM ANALYZE")
                on.engine.stop()
                for view in options.only or _VIEWS:
                    copy_s = min(copy_seconds(on, COPIES[view]) for _ in range(3))
                    local_s: dict[str, float] = {}
                    for place in _PLACES:
                        roots = [worker.pid for worker in workers] if place == _PLACES[2] else []
                        _start(on, place, url)
                        for run in ("cold", "warm"):
                            figures = _measure(on, view, place, roots, copy_s)
                            took_s = float(figures["seconds"])
                            yield {
                                "view": view,
                                "place": place,
                                "run": run,
                                "orders": orders,
                                "x_local": round(took_s / local_s.setdefault(run, took_s), 2),
                                **figures,
                            }
                        on.engine.stop()


def _start(on: Bed, place: str, url: str) -> None:
    for name in ("HEADRACE_SPARK_MASTER", "HEADRACE_SPARK_OPTIONS", "HEADRACE_SPARK_MEMORY_MB"):
        on.engine.env.pop(name, None)
    if place == "standalone":
        on.engine.env["HEADRACE_SPARK_MASTER"] = url
        on.engine.env["HEADRACE_SPARK_OPTIONS"] = "spark.executor.cores=1"
        on.engine.env["HEADRACE_SPARK_MEMORY_MB"] = "512"
    on.engine.start()


def _measure(on: Bed, view: str, place: str, roots: list[int], copy_s: float) -> Figures:
    """Return the figures of one create_view; the view is checked and dropped again."""
    mode = "local" if place == "local" else "spark"
    server = on.server.pid
    with cpu.sampled([on.engine.pid, server, *roots], _kind) as used:
        took_s, writing_s, ran = _create(on, view, mode)
    _check(on, view)
    on.drop_view(view)
    postgres_s = used.cpu_s.pop("postgres", 0.0)
    return {
        "ran": ran,
        "seconds": round(took_s, 2),
        "writing_s": round(writing_s, 2),
        "x_copy": round(took_s / copy_s, 1),
        "cpu_s": round(sum(used.cpu_s.values()), 1),
        **{f"{name}_s": round(used.cpu_s.get(name, 0.0), 1) for name in _KINDS},
        "postgres_s": round(postgres_s, 1),
        **{f"{name}_mb": used.peak_bytes.get(name, 0) >> 20 for name in _KINDS},
    }


def _check(on: Bed, view: str) -> None:
    """Compare the view's rows with those of its query by the sum of their hashes.

    Raises:
        BugError: they differ.
    """
    hashed = "SELECT count(*), sum(hashtextextended(x::text, 0)::numeric) FROM ({}) x"
    with psycopg.connect(on.source) as conn:
        seen, wanted = (
            conn.execute(sql.SQL(hashed).format(sql.SQL(query))).fetchone()
            for query in (f'TABLE "{view}"', SHAPES[view])
        )
    if seen != wanted:
        raise BugError(f"{view}: rows and their hashes are {seen}, expected {wanted}")


def _create(on: Bed, view: str, mode: str) -> tuple[float, float, str]:
    """Create a view; return its seconds, those from the begin of writing, and where it ran.

    Where Spark does not start in time, it runs in process.
    """
    begin, ran = time.monotonic(), "local"
    writing: list[float] = []

    def told(notice: Any) -> None:
        nonlocal ran
        text = notice.message_primary
        if text.startswith("population: "):
            ran = "spark" if "on Spark" in text else "local"
        if _WRITING in text and not writing:
            writing.append(time.monotonic())

    with psycopg.connect(on.engine.dsn, autocommit=True) as conn:
        conn.add_notice_handler(told)
        options = f'{{"population": "{mode}"}}'
        conn.execute("CALL headrace.create_view(%s, %s, %s)", (view, SHAPES[view], options))
    end = time.monotonic()
    return end - begin, end - writing[0] if writing else 0.0, ran


def _kind(line: str) -> str:
    """Return the kind of a process: builder, python (a worker of Spark), jvm, postgres, server."""
    if "java" in line.partition(" ")[0]:
        return "jvm"
    if "pyspark" in line:
        return "python"
    if line.startswith("postgres") or "/postgres" in line.partition(" ")[0]:
        return "postgres"
    return "builder" if "builder" in line else "server"
