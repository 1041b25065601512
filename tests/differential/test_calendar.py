"""Units of the clock anywhere in a query: at every instant a view equals Postgres' answer.

The instants are those at which calendars are irregular. A dataflow is driven through them, as the
engine drives it. Postgres computes the query with the instant in place of now(). A failure prints
the seed. ``test_temporal.py`` and ``tests/integration/test_calendar.py`` have engines and real time.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest

from headrace.collections.dataflow import Dataflow
from headrace.collections.source import load_columns
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import text
from headrace.planner import PlanRequest, plan
from headrace.state.memory import MemoryStore
from headrace.types import TIMESTAMPTZ
from tests.compared import multiset
from tests.seeds import every
from tests.streams import DELETE, INSERT, UPDATE, Op, Table, Texts

DDL = """
    CREATE TABLE dues (id int PRIMARY KEY, k int, d date, at timestamptz, n int);
    CREATE TABLE rates (kind int, since date, until date, hour int);
    ALTER TABLE rates REPLICA IDENTITY FULL;
"""
DUES = (("id", 23), ("k", 23), ("d", 1082), ("at", 1184), ("n", 23))
RATES = (("kind", 23), ("since", 1082), ("until", 1082), ("hour", 23))

WHEN = (
    ("Europe/Berlin", "2024-03-31 01:00+00"),  # forward: 02:00 is 03:00
    ("Europe/Berlin", "2024-10-27 01:00+00"),  # back: 03:00 is 02:00
    ("Europe/Berlin", "2024-02-28 23:00+00"),  # the leap day begins
    ("Europe/Berlin", "2024-12-31 23:00+00"),  # a year begins
    ("America/New_York", "2026-11-01 06:00+00"),
    ("America/New_York", "2023-03-01 05:00+00"),  # a month begins, without a leap day
    ("Australia/Lord_Howe", "2025-04-05 15:00+00"),  # back by half an hour
    ("America/Santiago", "2024-09-08 04:00+00"),  # forward at midnight: no 00:00
    ("Pacific/Apia", "2011-12-30 10:00+00"),  # no 30 December
    ("Asia/Kathmandu", "2025-12-31 18:15+00"),
    ("<odd>-05:23", "2025-06-30 18:37+00"),
    ("UTC", "2028-02-29 00:00+00"),
)
"""Time zones, and an instant at which something happens there."""

DAYS = (
    "{today}",
    "{now}::date",
    "({now} AT TIME ZONE 'Europe/Berlin')::date",
    "date_trunc('month', {today})::date",
    "date_trunc('week', {local})::date",
    "({today} - interval '1 month')::date",
    "date_trunc('year', {now} + interval '3 months')::date",
    "({now} AT TIME ZONE '<odd>-05:23:17')::date",
    "date_trunc('day', {now} AT TIME ZONE interval '-05:23:17')::date",
    "CASE WHEN extract(isodow FROM {today}) > 5 THEN {today} - 2 ELSE {today} END",
)
NUMBERS = (
    "extract(hour FROM {now})::int",
    "date_part('minute', {local})::int",
    "extract(month FROM {today})::int",
    "extract(dow FROM {now} AT TIME ZONE 'Asia/Tokyo')::int",
    "extract(timezone_hour FROM {now})::int",
    "(extract(epoch FROM date_trunc('hour', {now})) / 3600 % 1000)::int",
    "to_char({now}, 'HH24MI')::int",
    "(extract(year FROM {today}) * 12 + extract(month FROM {today}))::int",
)
TIMES = (
    "date_trunc('hour', {now})",
    "date_trunc('minute', {now})",
    "date_trunc('day', {now})",
    "date_trunc('day', {now}, 'Australia/Lord_Howe')",
    "date_trunc('month', {today})",
    "date_bin('15 minutes', {now}, '2001-01-01')",
    "date_trunc('hour', {local}) AT TIME ZONE 'America/Santiago'",
    "date_trunc('second', {now} - interval '1 month 30 minutes')",
)
QUERIES = (
    "SELECT id, {today} - d AS overdue FROM dues",
    "SELECT id FROM dues WHERE d < {today}",
    "SELECT k, count(*) AS c FROM dues WHERE at >= date_trunc('hour', {now}) GROUP BY k",
    "SELECT k, {today} AS t, count(*) AS c, sum({today} - d) AS s FROM dues GROUP BY k",
    "SELECT date_trunc('month', {today}) AS m, count(*) AS c FROM dues",
    "SELECT age({today}, d) AS a, k FROM dues WHERE extract(month FROM d) < extract(month FROM {now})",
    "SELECT u.id, r.hour FROM dues u JOIN rates r ON r.kind = u.k"
    " AND {today} BETWEEN r.since AND r.until AND r.hour <= extract(hour FROM {now})",
    "SELECT u.id, r.hour FROM dues u LEFT JOIN rates r ON r.kind = u.k"
    " AND r.hour + u.n > extract(hour FROM {now})",
    "SELECT u.id FROM dues u LEFT JOIN rates r ON u.d + u.n = r.since + ({today} - u.d)",
    "SELECT u.id, r.kind FROM dues u FULL JOIN rates r ON u.d - {today} = r.since - {today}",
    "SELECT id FROM dues u WHERE NOT EXISTS (SELECT FROM rates r WHERE r.kind = u.k"
    " AND r.until - {today} > u.n)",
    "SELECT k FROM dues GROUP BY k HAVING max({today} - d) > 1 OR count(*) > {hour}",
    "SELECT CASE WHEN d < {today} THEN 'late' WHEN d = {today} THEN 'today' ELSE to_char({today},"
    " 'YYYY-MM-DD') END AS w, count(*) AS c FROM dues GROUP BY 1",
    "SELECT CASE WHEN n <> 0 AND {hour} / n > 3 THEN d - {today} END AS x, id FROM dues",
    "SELECT {today} AS today, date_trunc('hour', {now}) AS hour",
    "SELECT DISTINCT {today} - d AS x FROM dues WHERE k = 1 UNION ALL SELECT {hour} FROM rates",
    "SELECT id, d FROM dues WHERE ts_day = {today} ORDER BY {today} - d DESC, id LIMIT 2".replace(
        "ts_day", "d - 1"
    ),
    "SELECT id, row_number() OVER (PARTITION BY {today} - d ORDER BY id) AS r FROM dues",
    "SELECT id, (SELECT count(*) FROM rates r WHERE r.since <= {today} - u.n) AS c FROM dues u",
    "SELECT g, count(*) FROM dues, generate_series(0, {hour}) g WHERE g > n GROUP BY g",
    "WITH c AS (SELECT {today} AS t, {hour} AS h) SELECT id, c.t - d AS x, h FROM dues, c"
    " WHERE d > t - 40",
    "SELECT k, string_agg(({today} - d)::text, ',' ORDER BY id) AS s FROM dues GROUP BY k",
    "SELECT id, at < {now} AS past, {today} - d AS x FROM dues WHERE at > {now} - interval '1 day'",
    "SELECT id FROM dues WHERE {today} - d > n * 2 EXCEPT SELECT {hour} FROM rates",
    "SELECT k, {today} AS t, count(*) AS c FROM dues GROUP BY ROLLUP (k, {today})",
    "SELECT date_trunc('second', {now}) AS s, date_trunc('minute', {local}) AS m, count(*) AS c"
    " FROM dues",
    "WITH RECURSIVE r(d, i) AS (SELECT {today} - 1, 0 UNION ALL SELECT d + 1, i + 1 FROM r WHERE i < 3)"
    " SELECT r.d, count(u.id) AS c FROM r LEFT JOIN dues u ON u.d = r.d GROUP BY r.d",
)


def written(query: str) -> str:
    hour = "extract(hour FROM now())::int"
    return query.format(now="now()", today="current_date", local="localtimestamp", hour=hour)


def as_of(query: str, instant: int) -> str:
    """Return the query with a timestamp, in microseconds since 2000, for the clock."""
    now = f"('2000-01-01 00:00+00'::timestamptz + '{instant} microseconds'::interval)"
    hour = f"extract(hour FROM {now})::int"
    return query.format(now=now, today=f"({now})::date", local=f"({now})::timestamp", hour=hour)


def generated(rng: random.Random) -> str:
    """Return a query with random units of the clock in random places."""
    day, other, number, time = (rng.choice(p) for p in (DAYS, DAYS, NUMBERS, TIMES))
    value = rng.choice([f"{day} - d", number, f"d + {number} % 5", f"{time} - at", f"({other})"])
    test = rng.choice(
        [
            f"d {rng.choice(['<', '=', '>=', '<>'])} {day}",
            f"{day} - d > n",
            f"at {rng.choice(['<', '>='])} {time}",
            f"n < {number}",
            f"CASE WHEN k = 1 THEN {time} > at ELSE {other} > d END",
            f"{day} BETWEEN {other} AND d",
        ]
    )
    return rng.choice(
        [
            f"SELECT id, {value} AS v FROM dues WHERE {test} OR n = 1",
            f"SELECT {value} AS v, count(*) AS c, {time} AS t FROM dues GROUP BY 1",
            f"SELECT k, count(*) FILTER (WHERE {test}) AS c, max({value}) AS m FROM dues GROUP BY k",
            f"SELECT id, r.kind FROM dues LEFT JOIN rates r ON r.kind = dues.k AND {test}",
            f"SELECT id, r.kind FROM dues JOIN rates r ON r.since + n > {day} AND {test}",
            f"SELECT id FROM dues WHERE id IN (SELECT hour + {number} FROM rates) OR {test}",
            f"SELECT k FROM dues GROUP BY k, {other} HAVING count({value}) > 1 AND bool_or({test})",
        ]
    )


@dataclass
class Server:
    """A database with the two tables, whose rows the test knows."""

    conn: psycopg.Connection
    dsn: str
    timezone: str
    tables: dict[str, Table]

    def change(self, rng: random.Random, day: str) -> dict[str, list[Op]]:
        """Change random rows in the database, and return the changes."""
        out: dict[str, list[Op]] = {"dues": [], "rates": []}
        for name, ops in out.items():
            for _ in range(rng.randrange(3)):
                ops.append(self._one(rng, name, day))
        return out

    def _one(self, rng: random.Random, name: str, day: str) -> Op:
        table = self.tables[name]
        new = self._row(rng, name, day)
        if table.rows and rng.random() < 0.6:
            old = rng.choice(table.rows)
            new = (old[0], *new[1:])
            op = Op(UPDATE, new, old) if rng.random() < 0.6 else Op(DELETE, None, old)
        else:
            op = Op(INSERT, new)
        table.carry_out([op])
        if op.old is not None:
            where = " AND ".join(f"{c} IS NOT DISTINCT FROM %s" for c, _ in table.columns)
            one = f"ctid = (SELECT ctid FROM {name} WHERE {where} LIMIT 1)"
            self.conn.execute(f"DELETE FROM {name} WHERE {one}", op.old)
        if op.new is not None:
            self.conn.execute(f"INSERT INTO {name} VALUES ({', '.join(['%s'] * len(new))})", new)
        return op

    def _row(self, rng: random.Random, name: str, day: str) -> Texts:
        def near(unit: str, kind: str) -> str | None:
            if rng.random() < 0.1:
                return None
            shift = rng.choice([-370, -32, -31, -8, -2, -1, -1, 0, 0, 0, 1, 1, 2, 7, 31])
            query = f"SELECT (('{day}'::timestamptz + '{shift} {unit}'::interval)::{kind})::text"
            shown = self.conn.execute(query).fetchone()[0]
            return str(shown)

        k = rng.choice([None, "0", "1", "2"])
        if name == "rates":
            return k, near("days", "date"), near("days", "date"), str(rng.randrange(24))
        self.next_id += 1
        at = near("hours", "timestamptz AT TIME ZONE 'UTC'")
        n = str(rng.choice([-1, 0, 1, 2, 5]))
        return str(self.next_id), k, near("days", "date"), at and f"{at}+00", n

    next_id: int = 0


@pytest.fixture
def server(database) -> Iterator[Server]:
    with psycopg.connect(database, autocommit=True, prepare_threshold=None) as conn:
        conn.execute(DDL)
        oids = [
            conn.execute(f"SELECT '{n}'::regclass::oid").fetchone()[0] for n in ("dues", "rates")
        ]
        tables = {"dues": Table(oids[0], DUES, (0,)), "rates": Table(oids[1], RATES, ())}
        yield Server(conn, database, "UTC", tables)


class Driven:
    """A view as the engine drives it: batches with an instant, some of them without rows."""

    def __init__(self, server: Server, query: str, instant: int) -> None:
        self.server, self.query = server, query
        planned = plan(
            server.conn, PlanRequest(written(query), settings={"TimeZone": server.timezone})
        )
        assert planned.physical.temporal
        self.plan, self.shown, self.txid = planned.physical, Counter[Texts](), 0
        self.store = MemoryStore()
        self.remote = RemoteEvaluator(server.dsn, planned.settings)
        self.flow = self._flow()
        self.flow.begin(0, instant)
        for source in {s.table_oid: s for s in self.plan.sources}.values():
            [table] = [t for t in server.tables.values() if t.oid == source.table_oid]
            places = [c.attnum - 1 for c in load_columns(source)]
            typed = [
                text.parse(_strings([row[i] for row in table.rows]), table.columns[i][1])
                for i in places
            ]
            self.flow.load(source.table_oid, typed)
        self._take(self.flow.end(0))

    def _flow(self) -> Dataflow:
        return Dataflow(self.plan, self.store, self.remote, 0, repeats=True)

    def restart(self) -> None:
        """Build the dataflow again over the state, as after a crash."""
        self.flow = self._flow()

    def step(self, instant: int, ops: dict[str, list[Op]], *, replayed: bool = False) -> None:
        """Process a batch; one without rows for it only if it is due.

        ``replayed``: roll back, and process it again.
        """
        self.store.checkpoint()
        if replayed:
            before, txid = Counter(self.shown), self.txid
            self._process(instant, ops)
            self.store.rollback()
            self.restart()
            self.shown, self.txid = before, txid
        self._process(instant, ops)

    def _process(self, instant: int, ops: dict[str, list[Op]]) -> None:
        read = {s.table_oid for s in self.plan.sources}
        given = {self.server.tables[n].oid: o for n, o in ops.items() if o}
        rows = {oid: o for oid, o in given.items() if oid in read}
        if not rows and not self.flow.due(instant):
            assert self.flow.changed(instant) == 0
            return
        since = self.flow.changed(instant)
        assert since <= instant
        self.txid += 1
        self.flow.begin(self.txid, instant)
        for name, table in self.server.tables.items():
            if table.oid in rows:
                self.flow.ingest(table.oid, table.changes(ops[name]))
        self._take(self.flow.end(self.txid))
        assert not self.flow.changed(instant)

    def _take(self, diffs) -> None:
        fields = self.plan.sink.schema
        columns = [
            text.render(c, f.oid).to_pylist()
            for c, f in zip(diffs.columns[:-1], fields, strict=True)
        ]
        for *row, weight in zip(*columns, diffs.columns[-1].to_pylist(), strict=True):
            self.shown[tuple(row)] += weight
        assert min(self.shown.values(), default=0) >= 0

    def check(self, instant: int, where: str) -> None:
        """Compare with Postgres' answer."""
        utc = [
            f"(x.{f.name} AT TIME ZONE 'UTC')::text || '+00'"
            if f.oid == TIMESTAMPTZ
            else f"x.{f.name}"
            for f in self.plan.sink.schema
        ]
        query = f"SELECT {', '.join(utc)} FROM ({as_of(self.query, instant)}) x"
        want = multiset(self.server.conn, query)
        assert +self.shown == want, f"{where}\n{written(self.query)}\n{query}"


def _strings(values: list[str | None]):
    import pyarrow as pa

    return pa.array(values, pa.string())


def micros(conn: psycopg.Connection, instant: str) -> int:
    query = "SELECT (extract(epoch FROM %s::timestamptz - '2000-01-01 00:00+00') * 1000000)::bigint"
    return int(conn.execute(query, (instant,)).fetchone()[0])


HOUR = 3_600_000_000


def instants(rng: random.Random, middle: int) -> list[int]:
    """Return instants around ``middle``: to the microsecond, and further away."""
    near = [-1, 0, 1, -1_000_000, 999_999, 1_000_000, 60_000_000, -60_000_001]
    far = [rng.randrange(-30, 30) * HOUR + rng.choice(near) for _ in range(5)]
    far += [HOUR - 1, HOUR, 24 * HOUR, 40 * 24 * HOUR, 400 * 24 * HOUR]
    chosen = rng.sample(near, 5) + rng.sample(far, 5)
    return sorted(middle + shift for shift in chosen)


@pytest.mark.parametrize("case", every(3, range(len(WHEN))), ids=[f"{z} {i}" for z, i in WHEN])
def test_units_of_the_clock_equal_postgres_at_every_instant(case, server):
    drive(server, *WHEN[case], seed=case, generated_queries=8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 124))
def test_random_units_of_the_clock_equal_postgres(seed, server):
    drive(server, *WHEN[seed % len(WHEN)], seed=seed, generated_queries=40)


def drive(server: Server, timezone: str, at: str, seed: int, generated_queries: int) -> None:
    rng = random.Random(seed)
    server.timezone = timezone
    server.conn.execute("SELECT set_config('TimeZone', %s, false)", (timezone,))
    for _ in range(8):
        server.change(rng, at)
    first, *later = instants(rng, micros(server.conn, at))
    queries = [*QUERIES, *(generated(rng) for _ in range(generated_queries))]
    views = [Driven(server, query, first) for query in queries]
    with contextlib.ExitStack() as closing:
        for view in views:
            closing.callback(view.remote.close)
            view.check(first, f"seed {seed}, populated at {first}")
        ops = server.change(rng, at)
        for view in views:
            # The first commits after a population may be older than its now().
            view.step(first - rng.choice([1, HOUR, 24 * HOUR]), ops)
            view.check(first, f"seed {seed}, after a batch of before {first}")
        for instant in later:
            ops = server.change(rng, at) if rng.random() < 0.5 else {}
            for view in views:
                if rng.random() < 0.2:
                    view.restart()
                view.step(instant, ops, replayed=rng.random() < 0.2)
                view.check(instant, f"seed {seed}, instant {instant}, changes {ops}")
