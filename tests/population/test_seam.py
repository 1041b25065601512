"""Hazards H1 to H6: no row is lost or doubled where population ends and the stream begins.

The stub worker stores the state that adopt receives. Afterwards the permanent slot's stream runs
through the same collections on top of it; the result table plus the diffs must equal the query.
"""

from __future__ import annotations

import collections
import random
import shutil
import threading
from pathlib import Path

import psycopg
import pytest

from headrace.collections import plan
from headrace.collections.dataflow import Dataflow
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import text
from headrace.kernels.pgoutput import Changes, Decoder
from headrace.runtime import views
from headrace.state.rocks import RocksDatabase
from headrace.types import parse_lsn
from tests.streams import numbered
from tests.waiting import PATIENCE_S, time_passes, wait_until

QUERIES = [
    "SELECT id, customer, amount FROM orders",
    "SELECT c.region, count(*) AS n, sum(o.amount) AS total FROM orders o"
    " JOIN customers c ON o.customer = c.id GROUP BY c.region",
    "SELECT tag, customer FROM tags",
]


class Writers:
    """Writers on the shop, one of which keeps each transaction open for a while."""

    def __init__(self, dsn: str, count: int, seed: int) -> None:
        self.dsn = dsn
        self.stop = threading.Event()
        self.commits = 0
        self.errors: list[BaseException] = []
        self.threads = [
            threading.Thread(target=self._run, args=(n, random.Random(seed * 100 + n)))
            for n in range(count)
        ]
        for thread in self.threads:
            thread.start()

    def _run(self, number: int, rng: random.Random) -> None:
        try:
            with psycopg.connect(self.dsn, prepare_threshold=None) as conn:
                while not self.stop.is_set():
                    for _ in range(rng.randint(1, 4)):
                        self._statement(conn, rng, number)
                    # Writer 0 stays open across ADD TABLE and slot creation.
                    self.stop.wait(0.15 if number == 0 else 0.002)
                    if rng.random() < 0.15:
                        conn.rollback()
                    else:
                        conn.commit()
                        self.commits += 1
        except BaseException as error:  # noqa: BLE001  reported by finish
            self.errors.append(error)

    @staticmethod
    def _statement(conn: psycopg.Connection, rng: random.Random, number: int) -> None:
        # Each writer has separate rows, so that writers never wait for each other.
        key = 1_000_000 * (number + 1) + rng.randint(1, 60)
        match rng.randint(0, 4):
            case 0 | 1:
                conn.execute(
                    "INSERT INTO orders VALUES (%s, %s, %s, 1) ON CONFLICT (id) DO UPDATE"
                    " SET customer = EXCLUDED.customer, amount = EXCLUDED.amount",
                    (key, rng.randint(1, 60), rng.randint(1, 9999) / 100),
                )
            case 2:
                conn.execute("DELETE FROM orders WHERE id = %s", (key,))
            case 3:
                conn.execute("INSERT INTO tags VALUES (%s, %s)", (number, f"w{rng.randint(1, 5)}"))
            case 4:
                conn.execute(
                    "DELETE FROM tags WHERE customer = %s AND tag = %s",
                    (number, f"w{rng.randint(1, 5)}"),
                )

    def finish(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()
        assert not self.errors
        assert self.commits > 0


class Handover:
    """Stores the staged state that ``adopt`` receives."""

    def __init__(self, bench, path: Path) -> None:
        self.bench = bench
        self.path = path
        self.manifests: dict[int, views.Manifest] = {}
        bench.worker.on_call = self._on_call

    def _on_call(self, method: str) -> None:
        if method != "adopt":
            return
        for folder in self.bench.settings.staging_dir.iterdir():
            kept = self.path / "kept"
            shutil.copytree(folder, kept / folder.name)
            settings = self.bench.settings.replace(staging_dir_override=str(kept))
            manifest = views.manifest(settings, int(folder.name))
            assert manifest is not None
            self.manifests[int(folder.name)] = manifest


def changes(conn: psycopg.Connection, slot: str) -> list[Changes]:
    rows = conn.execute(
        "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'headrace')",
        (slot,),
    ).fetchall()
    decoder = Decoder()
    events = [*decoder.feed([bytes(row[0]) for row in rows]), *decoder.flush()]
    return [event for event in events if isinstance(event, Changes)]


def shown(columns: list, fields) -> list[tuple]:
    texts = [text.render(c, f.oid).to_pylist() for c, f in zip(columns, fields, strict=True)]
    return list(zip(*texts, strict=True))


def check(bench, handover: Handover, view_id: int, name: str, query: str, stream) -> None:
    """Check that the view's table plus the diffs of ``stream`` equals the query now."""
    conn = bench.conn
    row = conn.execute(
        "SELECT plan, start_lsn::text FROM headrace.views WHERE id = %s", (view_id,)
    ).fetchone()
    physical = plan.from_json(row[0])
    manifest = handover.manifests[view_id]
    assert manifest.lsn == parse_lsn(row[1])
    database = RocksDatabase(handover.path / f"db_{view_id}")
    database.ingest(view_id, manifest.runs)
    remote = RemoteEvaluator(bench.dsn, {})
    store = database.view(view_id, 7)
    store.begin(8)
    flow = Dataflow(physical, store, remote, manifest.lsn)
    for event in stream:
        flow.ingest(event.relation.oid, numbered(event))
    diffs = flow.end(8)
    remote.close()
    database.close()
    fields = physical.sink.schema
    casts = ", ".join(f"x.{f.name}::text" for f in fields)
    have = collections.Counter(conn.execute(f"SELECT {casts} FROM {name} x").fetchall())
    weights = diffs.column("__weight").to_pylist()
    for row, weight in zip(shown(diffs.columns[:-1], fields), weights, strict=True):
        have[row] += weight
    want = collections.Counter(conn.execute(f"SELECT {casts} FROM ({query}) x").fetchall())
    assert {k: v for k, v in have.items() if v} == want


def populate_under_load(bench, path, rounds: int, seed: int, **options) -> None:
    conn = bench.conn
    conn.execute(
        "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (bench.settings.slot_name,)
    )
    handover = Handover(bench, path)
    made = []
    writers = Writers(bench.dsn, 8, seed)
    try:
        for number in range(rounds):
            query = QUERIES[number % len(QUERIES)]
            done = bench.create(f"v{number}", query, options=options)
            made.append((done["view_id"], f"v{number}", query))
            time_passes(0.05)
    finally:
        writers.finish()
    stream = changes(conn, bench.settings.slot_name)
    assert stream
    for view_id, name, query in made:
        check(bench, handover, view_id, name, query, stream)


def test_populations_under_eight_writers(bench, tmp_path):
    populate_under_load(bench, tmp_path, 6, seed=1)


@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_spark_populations_under_eight_writers(spark_bench, tmp_path, rounds):
    populate_under_load(spark_bench, tmp_path, rounds, seed=2, population="spark")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_populations_under_eight_writers(bench, tmp_path):
    populate_under_load(bench, tmp_path, 60, seed=3)


def test_transaction_open_across_add_table(bench, tmp_path, in_thread):
    """H2: written before the table is published, committed after it; neither side alone has it."""
    bench.conn.execute(
        "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (bench.settings.slot_name,)
    )
    handover = Handover(bench, tmp_path)
    with psycopg.connect(bench.dsn) as writer:
        writer.execute("INSERT INTO orders VALUES (777777, 1, 1, 1)")
        made = {}
        thread = in_thread(lambda: made.update(bench.create("v", QUERIES[0])))
        wait_until(lambda: "orders" in bench.published(), "the table is published")
        writer.execute("INSERT INTO orders VALUES (777778, 1, 1, 1)")
        wait_until(bench.waits_for_writer, "the snapshot waits for the open transaction")
        writer.commit()
        thread.join(PATIENCE_S)
    bench.conn.execute("INSERT INTO orders VALUES (777779, 1, 1, 1)")
    stream = changes(bench.conn, bench.settings.slot_name)
    check(bench, handover, made["view_id"], "v", QUERIES[0], stream)
    got = bench.rows("SELECT id FROM v WHERE id >= 777777")
    assert got == [("(777777)",), ("(777778)",)]


@pytest.mark.parametrize(
    "setting",
    [
        "TimeZone = 'Asia/Kolkata'", "DateStyle = 'SQL, DMY'", "IntervalStyle = 'iso_8601'",
        "extra_float_digits = 0", "bytea_output = 'escape'",
    ],
)  # fmt: skip
def test_settings_of_the_database_do_not_reach_values(bench, tmp_path, setting):
    """H5, H6: an update of every row to itself changes nothing under any database settings."""
    conn = bench.conn
    name = conn.info.dbname
    conn.execute(
        "CREATE TABLE vals (id int PRIMARY KEY, ts timestamptz, d date, i interval,"
        " f float8, r float4, n numeric, c char(6), b bytea, j jsonb, a int[], t time, u bool)"
    )
    conn.execute(
        "INSERT INTO vals VALUES (1, '2024-07-01 12:00+02', '2024-02-03', '1 mon -2 days 3:04',"
        " 0.1::float8 + 0.2, 0.1, 1.500, 'ab', '\\x00ff', '{\"a\": 1.0}', '[0:1]={1,2}', '24:00', true),"
        " (2, 'infinity', '4714-11-24 BC', NULL, 'NaN', '-0', 'NaN', '', '', 'null', '{}', '0:0', false),"
        " (3, '294276-12-31 23:59:59+00', 'infinity', '-1 year', '-0', '1e-45', 'Infinity', 'x  ',"
        " '\\x5c', '[]', NULL, NULL, NULL)"
    )
    conn.execute(f"ALTER DATABASE {name} SET {setting}")
    conn.execute(
        "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (bench.settings.slot_name,)
    )
    handover = Handover(bench, tmp_path)
    made = bench.create("v", "SELECT * FROM vals")
    conn.execute("UPDATE vals SET id = id")
    # The walsender's own settings are pinned; here the test's session decodes.
    conn.execute(
        "SET TimeZone = 'UTC'; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = postgres;"
        "SET extra_float_digits = 3; SET bytea_output = hex"
    )
    stream = changes(conn, bench.settings.slot_name)
    assert sum(event.batch.num_rows for event in stream) == 3
    row = conn.execute(
        "SELECT plan FROM headrace.views WHERE id = %s", (made["view_id"],)
    ).fetchone()
    manifest = handover.manifests[made["view_id"]]
    database = RocksDatabase(tmp_path / "db")
    database.ingest(1, manifest.runs)
    store = database.view(1, 7)
    store.begin(8)
    flow = Dataflow(plan.from_json(row[0]), store, None, manifest.lsn)
    for event in stream:
        flow.ingest(event.relation.oid, numbered(event))
    assert flow.end(8).num_rows == 0
    database.close()
    assert bench.rows("TABLE v") == bench.rows("TABLE vals")
