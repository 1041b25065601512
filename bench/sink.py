"""sink: CPU of writing result tables, in one round trip and view by view."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

import psycopg
import pyarrow as pa
from psycopg import sql

from bench import cpu
from bench.scenario import Figures, Options, Scenario
from headrace.config import Settings
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.runtime import pipelined_commit
from headrace.runtime.crash_attribution import CrashAttribution
from headrace.runtime.jobs import CommitJob, ViewPart
from headrace.runtime.ownership import Owner
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.writing import SinkThread
from headrace.sink import keys, table
from headrace.sink.table import ResultTable
from headrace.sql import install, progress
from headrace.types import INT4, INT8, TEXT, Field, diff_batch

_SCHEMA: Final = (Field("k", INT4), Field("n", INT8), Field("t", TEXT))
_VIEWS: Final = (1, 10, 50)
_ROWS: Final = (1, 100, 1_000, 10_000)
_CHANGED_MAX: Final = 50_000
"""Rows that one transaction changes, over all views."""
_ROUNDS: Final = 3
_WAYS: Final = {"quick": 1 << 40, "careful": -1}
"""Maximum changed rows of a view that is written in one round trip."""


class Sink(Scenario):
    """Transactions that update rows of result tables; nothing but the sink runs."""

    name: ClassVar[str] = "sink"
    about: ClassVar[str] = (
        "CPU µs of the sink's thread and of its backend, per view and per updated row, where a"
        " transaction updates so many rows of each of so many result tables; ms it takes: in one"
        " round trip (quick) and view by view (careful)"
    )

    def run(self, options: Options) -> list[Figures]:
        """Measure up to ``options.rows`` rows of each view, or 10 000."""
        most = options.rows or _ROWS[-1]
        lines: list[Figures] = []
        with (
            tempfile.TemporaryDirectory(prefix="headrace-bench-") as home,
            EmbeddedPostgres(None, options.version) as server,
        ):
            for key in ((), ("k",)):
                name = "keyed" if key else "unkeyed"
                with psycopg.connect(server.dsn(), autocommit=True) as conn:
                    conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
                with _Bench(server.dsn(name), Path(home) / name, key) as on:
                    for views in _VIEWS:
                        for rows in _ROWS:
                            if rows > most or rows * views > _CHANGED_MAX:
                                continue
                            lines += [{"table": name, **line} for line in on.measure(views, rows)]
        return lines


class _Bench:
    """A sink and its tables in one database."""

    def __init__(self, dsn: str, home: Path, key: tuple[str, ...]) -> None:
        self._conn = psycopg.connect(dsn, autocommit=True)
        install.install(self._conn)
        self._key = key
        self._owner = Owner(
            Settings(source=dsn, data_dir=home, slot_name="bench", publication_name="bench")
        )
        self._pipeline = Pipeline(4)
        self._sink = SinkThread(self._pipeline, CrashAttribution(home), lambda: None)
        self._parts: list[ViewPart] = []
        self._txid = 0
        self._at: dict[int, int] = {}
        self._now: dict[int, dict[int, int]] = {}
        """Values of the rows of each view, where they are not 0."""

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipeline.close()
        self._sink.close()
        self._owner.close()
        self._conn.close()

    def measure(self, views: int, rows: int) -> Iterator[Figures]:
        """Measure both ways in turn, and yield the cheapest round of each."""
        while len(self._parts) < views:
            self._make_view(len(self._parts) + 1)
        best: dict[str, Figures] = {}
        usual = pipelined_commit.ROWS_MAX
        try:
            for turn in range(_ROUNDS * len(_WAYS)):
                way = list(_WAYS)[turn % len(_WAYS)]
                pipelined_commit.ROWS_MAX = _WAYS[way]  # type: ignore[misc]
                self._write(views, rows)
                found = self._round(views, rows)
                now = best.setdefault(way, found)
                if _total(found) < _total(now):
                    best[way] = found
        finally:
            pipelined_commit.ROWS_MAX = usual  # type: ignore[misc]
        for way, line in best.items():
            yield {"views": views, "rows": rows, "way": way, **line}

    def _round(self, views: int, rows: int) -> Figures:
        # The kernel counts the time of processes in hundredths of a second.
        count = max(3, min(400 // views, 20_000 // (views * rows)))
        jobs = [self._job(views, rows) for _ in range(count)]
        began, ours = time.monotonic(), time.thread_time()
        theirs = cpu.of_process(self._owner.pid)
        for job in jobs:
            answer = self._sink.write(self._owner, job)
            assert not answer.failed, answer.failed
        ours, took = time.thread_time() - ours, time.monotonic() - began
        theirs = cpu.of_process(self._owner.pid) - theirs
        written = len(jobs) * views
        return {
            "client_us": round(ours * 1e6 / written, 1),
            "backend_us": round(theirs * 1e6 / written, 1),
            "client_us_row": round(ours * 1e6 / written / rows, 2),
            "backend_us_row": round(theirs * 1e6 / written / rows, 2),
            "ms": round(took * 1e3 / len(jobs), 2),
        }

    def _write(self, views: int, rows: int) -> None:
        self._sink.write(self._owner, self._job(views, rows))

    def _job(self, views: int, rows: int) -> CommitJob:
        """Return a job that gives ``rows`` rows of each view another value."""
        self._txid += 1
        return CommitJob(
            self._txid, 0, self._txid * 16, 1, 0,
            tuple(self._changed(part, rows) for part in self._parts[:views]),
        )  # fmt: skip

    def _changed(self, part: ViewPart, rows: int) -> ViewPart:
        at, now = self._at[part.view_id], self._now[part.view_id]
        self._at[part.view_id] = at + rows
        ids = [i % _ROWS[-1] for i in range(at, at + rows)]
        old = [now.get(i, 0) for i in ids]
        new = [value + 1 for value in old]
        now.update(zip(ids, new, strict=True))
        columns = [
            pa.array(ids + ids, pa.int32()),
            pa.array(old + new, pa.int64()),
            pa.array([f"row {i}" for i in ids] * 2),
        ]
        weights = pa.array([-1] * rows + [1] * rows, pa.int64())
        diffs = diff_batch(_SCHEMA, columns, weights)
        return ViewPart(part.view_id, part.target, "", part.progress, diffs, None, part.rights)

    def _make_view(self, number: int) -> None:
        conn, name = self._conn, f"v{number}"
        conn.execute(
            "INSERT INTO headrace.views (id, schema_name, view_name, query)"
            " VALUES (%s, 'public', %s, '')",
            (number, name),
        )
        progress.begin(conn, number, 0, "0/0")
        query = "SELECT 1::int AS k, 0::bigint AS n, ''::text AS t"
        oid = table.create(conn, "public", name, query, keyed=bool(self._key))
        fill = "INSERT INTO {} SELECT i, 0, 'row ' || i FROM generate_series(0, %s) i"
        conn.execute(sql.SQL(fill).format(sql.Identifier(name)), (_ROWS[-1] - 1,))
        if self._key:
            keys.add(conn, sql.Identifier("public", name), self._key)
        target = ResultTable(number, "public", name, oid, _SCHEMA, self._key)
        owned = progress.take_over(conn, [number])[number]
        role = conn.execute("SELECT current_user::regrole::oid::int").fetchone()
        assert role is not None, "there is one"
        self._at[number], self._now[number] = 0, {}
        rights = (("select", role[0], int(oid), (1, 2), 0), ("owner", role[0], 0, (), 0))
        self._parts.append(ViewPart(number, target, "", owned, None, None, rights))


def _total(line: Figures) -> float:
    return float(line["client_us"]) + float(line["backend_us"])
