"""The cost of the same changes in Headrace and in Postgres itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import psycopg

from bench import cpu, shapes
from bench.drain import held
from bench.engine import check_weight, unit_of
from bench.peers.data import VIEWS, change
from bench.peers.lines import Line
from bench.recording import Recorder, rows_in
from bench.scenario import Bed, Options, bed, caught_up

_KEYS: Final = {"filter": "id", "group_sum": "customer", "join": "id"}
_BATCH_ROWS: Final = 30_000

Answer = tuple[int, float]


def end_to_end(options: Options, names: tuple[str, ...], rows: int, changes: int) -> Iterator[Line]:
    """Measure Headrace with its processes, from Postgres' WAL to result tables in Postgres."""
    for name, query in shapes.queries(names):
        with shapes.streaming(options, rows) as (on, stream):
            on.create_view(name, query, '{"population": "local"}')
            with held(on.worker):
                change(stream, changes)
                before = _spent(on, on.worker)
                begin = time.monotonic()
            caught_up(stream.conn, name)
            seconds = time.monotonic() - begin
            spent = _spent(on, on.worker) - before
            on.check(name, query)
        yield Line(
            "headrace",
            name,
            "WAL of Postgres, answers in its tables, durable; CPU of worker, walsender, backends",
            seconds,
            spent,
        )


def beside(
    options: Options, names: tuple[str, ...], rows: int, changes: int
) -> tuple[list[Line], dict[str, Answer], int]:
    """Return lines of the engine alone and of Postgres, answers by view, and changed rows."""
    lines: list[Line] = []
    answers: dict[str, Answer] = {}
    with bed(options) as on, psycopg.connect(on.source, autocommit=True) as conn:
        recorder = Recorder(conn)
        stream = shapes.Stream(conn, rows)
        stream.fill()
        fill = recorder.take()
        for name, query in shapes.queries(names):
            conn.execute(f"CREATE MATERIALIZED VIEW kept_{name} AS {query}".encode())
            conn.execute(f"CREATE UNIQUE INDEX ON kept_{name} ({_KEYS[name]})".encode())
        change(stream, changes)
        tape = recorder.take()
        conn.execute("ANALYZE")
        for name, query in shapes.queries(names):
            lines += _by_postgres(on, conn, name, query)
            total = f"SELECT count(*), sum({VIEWS[name]})::float8 FROM ({query}) q"
            row = conn.execute(total.encode()).fetchone()
            assert row is not None, "an aggregate gives one row"
            answers[name] = (int(str(row[0])), float(str(row[1])))
            with unit_of(on, query) as unit:
                unit.play(fill, _BATCH_ROWS)
                wall, spent = time.monotonic(), time.process_time()
                unit.process(tape, _BATCH_ROWS)
                unit.checkpoint(sync=True)
                wall, spent = time.monotonic() - wall, time.process_time() - spent
                check_weight(on, name, query, unit.weight)
            given = "changes as pgoutput in memory; no answers written, state durable; one thread"
            lines.append(Line("headrace, engine alone", name, given, wall, spent))
    return lines, answers, rows_in(tape)


def _by_postgres(
    on: Bed, conn: psycopg.Connection[tuple[object, ...]], name: str, query: str
) -> Iterator[Line]:
    for what, text, given in (
        ("postgres, query", f"CREATE TABLE again_{name} AS {query}", "whole tables; one answer"),
        (
            "postgres, refresh",
            f"REFRESH MATERIALIZED VIEW CONCURRENTLY kept_{name}",
            "whole tables; one answer, and its difference to the last one",
        ),
    ):
        before, begin = _spent(on), time.monotonic()
        conn.execute(text.encode())
        yield Line(what, name, given, time.monotonic() - begin, _spent(on) - before)
    conn.execute(f"DROP TABLE again_{name}".encode())


def _spent(on: Bed, *others: int) -> float:
    """Return the CPU seconds of Postgres and of ``others``."""
    pid = on.server.pid
    ours = sum(cpu.of_process(other) for other in others)
    return cpu.of_children(pid) + cpu.of_ended_children(pid) + ours
