"""The source on a real Postgres' stream: after every transaction it equals the table."""

from __future__ import annotations

import random
from collections import Counter

import psycopg
import pyarrow as pa
import pytest

from headrace.collections import plan
from headrace.collections.dataflow import Dataflow
from headrace.collections.plan import PhysicalPlan, SourceColumn, SourceSpec
from headrace.expressions.ir import Column, Literal, Native
from headrace.kernels import text
from headrace.kernels.pgoutput import Changes, Decoder
from headrace.postgres.settings import PINNED_SETTINGS
from headrace.state.memory import MemoryStore
from headrace.types import FLOAT8, Field
from tests.collections.test_dataflow import accumulate, counted
from tests.plans import native
from tests.streams import numbered

COLUMNS = "id, k, big, doc, n, f, ts"
TABLE = """
CREATE TABLE {name} (id int, k text COLLATE "C", big text, doc jsonb, n numeric, f float8,
    ts timestamptz{key})
"""
# Values of `big` are out of line and uncompressed, so updates of other columns omit them.
APART = "ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL"


WANTED = "f > 0"


def describe(conn, name: str, *, wanted: bool = False) -> PhysicalPlan:
    rows = conn.execute(
        "SELECT attnum, attname, atttypid::int, atttypmod, attcollation::int"
        " FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY 1",
        (name,),
    ).fetchall()
    columns = tuple(SourceColumn(*row) for row in rows)
    oid, identity = conn.execute(
        "SELECT oid::int, relreplident FROM pg_class WHERE oid = %s::regclass", (name,)
    ).fetchone()
    full = identity in ("f", b"f")
    key = () if full else columns[:2]
    tests: tuple[Native, ...] = ()
    if wanted:
        # As in the planner: of a keyed table no out-of-line value is read.
        columns = tuple(c for c in columns if full or c.name not in ("big", "doc"))
        place = [c.name for c in columns].index("f")
        tests = (native(">", Column(place, FLOAT8), Literal("0", FLOAT8)),)
    schema = tuple(Field(c.name, c.oid) for c in columns)
    source = SourceSpec("s", oid, "public", name, columns, key, full, (), schema, tests)
    return PhysicalPlan((source, plan.SinkSpec("k", "s", schema)))


def shown(conn, physical: PhysicalPlan) -> Counter:
    """Return the table's rows as the dataflow shows them after a load."""
    source = physical.sources[0]
    flow = Dataflow(physical, MemoryStore(), None, 0)
    rows = conn.execute(
        f"SELECT {', '.join(c.name + '::text' for c in source.columns)}"
        f" FROM {source.table_name} WHERE {WANTED if source.wanted else 'true'}"
    ).fetchall()
    flow.load(
        source.table_oid,
        [
            text.parse(pa.array([row[i] for row in rows], pa.string()), column.oid)
            for i, column in enumerate(source.columns)
        ],
    )
    return counted(flow.end(0))


def random_statement(rng: random.Random, name: str) -> str:
    big = f"repeat('{rng.choice('abc')}', {rng.choice([3, 3000, 9000])})"
    doc = rng.choice(["null", "'{\"a\": [1.0, 1.00]}'", f"to_jsonb({big})"])
    n = rng.choice(["1", "1.0", "1.00", "null", "'NaN'", "12345678901234567890.5"])
    f = rng.choice(["0", "'-0'", "'NaN'", "'-Infinity'", "0.1", "null"])
    ts = rng.choice(["'infinity'", "'2024-02-29 12:00+03'", "'0044-03-15 BC'", "null"])
    key = rng.randint(1, 8)
    where = f"id <= {rng.randint(0, 4)}" if rng.random() < 0.4 else f"id = {key}"
    kind = rng.randint(0, 19)
    if kind == 0:
        return f"TRUNCATE {name}"
    if kind <= 6:
        return (
            f"INSERT INTO {name} SELECT i, 'k' || i % 2, {big}, {doc}, {n}, {f}, {ts}"
            f" FROM generate_series({key}, {key + 1}) i ON CONFLICT DO NOTHING"
        )
    if kind <= 8:
        return f"DELETE FROM {name} WHERE {where}"
    if kind <= 10:
        return (
            f"UPDATE {name} t SET id = {key} WHERE {where} AND ctid IN (SELECT min(ctid)"
            f" FROM {name} WHERE {where}) AND NOT EXISTS"
            f" (SELECT FROM {name} u WHERE u.id = {key} AND u.k = t.k)"
        )
    column, value = rng.choice(
        [("big", big), ("doc", doc), ("n", n), ("f", f), ("ts", ts), ("n", "n")]
    )
    return f"UPDATE {name} SET {column} = {value} WHERE {where}"


@pytest.mark.parametrize("wanted", [False, True], ids=["all", "wanted"])
@pytest.mark.parametrize("identity", ["key", "full"])
@pytest.mark.parametrize("seed", range(3))
def test_it_follows_a_table(database: str, identity: str, seed: int, wanted: bool) -> None:
    rng = random.Random(seed)
    with psycopg.connect(database, autocommit=True) as conn:
        for name, value in PINNED_SETTINGS.items():
            conn.execute(f"SET {name} = '{value}'")
        conn.execute("SET search_path = public")
        name = "t"
        key = ", PRIMARY KEY (id, k)" if identity == "key" else ""
        conn.execute(TABLE.format(name=name, key=key))
        conn.execute(APART.format(name=name))
        if identity == "full":
            conn.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
        conn.execute(f"CREATE PUBLICATION p FOR TABLE {name}")
        slot = f"c_source_{identity}_{seed}_{wanted}".lower()
        conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        try:
            follow(conn, describe(conn, name, wanted=wanted), slot, rng)
        finally:
            conn.execute("SELECT pg_drop_replication_slot(%s)", (slot,))


def follow(conn, physical: PhysicalPlan, slot: str, rng: random.Random) -> None:
    name = physical.sources[0].table_name
    store = MemoryStore()
    flow = Dataflow(physical, store, None, 0)
    decoder = Decoder()
    rows = counted(flow.end(0))
    unchanged = 0
    for txid in range(1, 15):
        for _ in range(rng.randint(1, 2)):
            with conn.transaction():
                for _ in range(rng.randint(1, 6)):
                    conn.execute(random_statement(rng, name))
        messages = conn.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL,"
            " 'proto_version', '1', 'publication_names', 'p')",
            (slot,),
        ).fetchall()
        events = decoder.feed([bytes(data) for (data,) in messages])
        for event in [*events, *decoder.flush()]:
            if isinstance(event, Changes):
                unchanged += "u:big" in event.batch.schema.names
                flow.ingest(event.relation.oid, numbered(event))
        rows = accumulate(rows, counted(flow.end(txid)))
        same = rows == shown(conn, physical)  # pytest would compare long texts for ever
        assert same, f"txid {txid}"
        store.checkpoint()
    assert unchanged, "some update left a value out"
