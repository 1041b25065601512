"""standby_tax: the cost of views for a primary whose changes a standby decodes."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

import psycopg

from bench import cpu, pgbench
from bench.oltp_tax import VIEWS, finish
from bench.scenario import Bed, Figures, Options, Scenario
from headrace.embedded.binaries import account
from headrace.embedded.engine import EmbeddedEngine
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.errors import PrerequisiteError

_KINDS: Final = ("none", "primary", "standby")
_ROUNDS: Final = 3
_SLOT: Final = "to_standby"
_VERSION: Final = 18
_SETTINGS: Final = {"hot_standby_feedback": "on", "wal_receiver_status_interval": "1s"}


class StandbyTax(Scenario):
    """The same load in turns: no engine, an engine that decodes on the primary, on a standby."""

    name: ClassVar[str] = "standby_tax"
    about: ClassVar[str] = (
        "pgbench as in oltp_tax with 3 views on Postgres 18, the primary alone on a core, all else"
        " on the other: transactions/s and the primary's CPU, without an engine, and decoded on the"
        " primary or a standby (decode_from)"
    )

    def run(self, options: Options) -> list[Figures]:
        """Measure ``options.seconds`` (10) of each, in three rounds; the median round counts."""
        seconds = str(max(round(options.seconds or 10), 1))
        load = ("--client", "8", "--jobs", "2", "--time", seconds)
        if options.rate:
            load = (*load, "--rate", str(options.rate))
        rates: dict[str, list[float]] = {kind: [] for kind in _KINDS}
        used: dict[str, list[float]] = {kind: [] for kind in _KINDS}
        with _servers() as (primary, standby):
            with _engine(primary, standby, "none", 0) as on:
                pgbench.ran(on, on.source, "--initialize", "--quiet", "--scale", "10")
            for number in range(_ROUNDS):
                for kind in _KINDS:
                    with _engine(primary, standby, kind, number) as on:
                        before = _cpu_s(primary)
                        rate = pgbench.rate(pgbench.ran(on, on.source, *load))
                        if kind != "none":
                            finish(on)
                        used[kind].append((_cpu_s(primary) - before) / (rate * float(seconds)))
                        rates[kind].append(rate)
        plain, cost = (statistics.median(found["none"]) for found in (rates, used))
        return [
            {
                "decoded": kind,
                "tps": round(statistics.median(rates[kind])),
                "ratio": round(statistics.median(rates[kind]) / plain, 3),
                "primary_us": round(statistics.median(used[kind]) * 1e6),
                "cpu_ratio": round(cost / statistics.median(used[kind]), 3),
                "slowest": round(min(rates[kind])),
                "fastest": round(max(rates[kind])),
            }
            for kind in _KINDS
        ]


def _cpu_s(server: EmbeddedPostgres) -> float:
    """Return the CPU seconds of a server's processes, living and ended."""
    return cpu.of_children(server.pid) + cpu.of_ended_children(server.pid)


@contextlib.contextmanager
def _servers() -> Iterator[tuple[EmbeddedPostgres, EmbeddedPostgres]]:
    """Yield a primary on a core of its own with pgbench's tables, and its standby."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise PrerequisiteError("standby_tax needs two cores")
    os.sched_setaffinity(0, cores[:1])
    try:
        with EmbeddedPostgres(None, _VERSION, _SETTINGS) as primary:
            os.sched_setaffinity(0, cores[1:])
            with psycopg.connect(primary.dsn(), autocommit=True) as conn:
                conn.execute("CREATE DATABASE bench")
                conn.execute("SELECT pg_create_physical_replication_slot(%s, true)", (_SLOT,))
            with tempfile.TemporaryDirectory(prefix="headrace-bench-") as home:
                account().take(Path(home))
                standby = EmbeddedPostgres(Path(home) / "standby", _VERSION, _SETTINGS)
                _copy(primary, standby)
                with standby:
                    yield primary, standby
    finally:
        os.sched_setaffinity(0, cores)


def _copy(primary: EmbeddedPostgres, standby: EmbeddedPostgres) -> None:
    """Make the directory of a standby, which was not started yet."""
    subprocess.run(
        [
            *(standby.bin_dir / "pg_basebackup", "-D", standby.data_dir, "-d", primary.dsn()),
            *("-X", "stream", "--checkpoint=fast", "-R"),
        ],
        check=True,
        cwd="/",
        capture_output=True,
        **account().popen_args(),
    )
    with (standby.data_dir / "postgresql.auto.conf").open("a") as conf:
        conf.write(f"primary_slot_name = '{_SLOT}'\n")


@contextlib.contextmanager
def _engine(
    primary: EmbeddedPostgres, standby: EmbeddedPostgres, kind: str, number: int
) -> Iterator[Bed]:
    """Yield the servers with an engine of a kind and its views; all of it is removed."""
    env = {"HEADRACE_SPARK_WARM": "false"}
    if kind == "standby":
        env["HEADRACE_DECODE_FROM"] = standby.dsn("bench")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as home:
        engine = EmbeddedEngine(primary.dsn("bench"), Path(home) / f"{kind}{number}", env=env)
        on = Bed(primary, engine)
        if kind == "none":
            yield on
            return
        try:
            engine.start()
            for name, query in VIEWS.items():
                on.create_view(name, query, '{"population": "local"}')
            yield on
            engine.stop()
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "headrace.server.cli",
                    "uninstall",
                    "--source",
                    engine.source,
                ],
                check=True,
                capture_output=True,
                env=os.environ | engine.env | {"HEADRACE_DATA_DIR": str(engine.data_dir)},
            )
        finally:
            engine.kill9()
