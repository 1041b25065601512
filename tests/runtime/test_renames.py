"""Columns are followed by number: renamed, swapped, with other columns added and dropped."""

from __future__ import annotations

import random

import psycopg
import pytest
from msgspec.structs import replace

from headrace.collections.plan import PhysicalPlan, SinkSpec
from headrace.types import Field
from tests.compared import differs
from tests.runtime.harness import create_view, settle, source_plan

USED = (1, 3, 4)
"""Numbers of the columns that the view reads."""


TABLES = """
CREATE TABLE t (id int PRIMARY KEY, junk text, v int, w text, more int);
INSERT INTO t SELECT i, 'j', i, 'w' || i FROM generate_series(1, 9) i;
"""


def plan(conn: psycopg.Connection, full: bool) -> PhysicalPlan:
    source = source_plan(conn, "t").sources[0]
    columns = tuple(c for c in source.columns if c.attnum in USED)
    schema = tuple(Field(c.name, c.oid, c.typmod, c.collation) for c in columns)
    key = () if full else source.key
    node = replace(source, columns=columns, key=key, full_identity=full, schema=schema)
    return PhysicalPlan((node, SinkSpec("sink", "s", schema)))


def names(conn: psycopg.Connection) -> dict[int, str]:
    return dict(
        conn.execute(
            "SELECT attnum, attname FROM pg_attribute WHERE attrelid = 't'::regclass"
            " AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        ).fetchall()
    )


def write(conn: psycopg.Connection, rng: random.Random) -> None:
    id_, v, w = (names(conn)[number] for number in USED)
    key = rng.randint(1, 30)
    conn.execute(
        rng.choice(
            (
                f"INSERT INTO t ({id_}, {v}, {w}) VALUES ({key}, {key}, 'n')"
                " ON CONFLICT DO NOTHING",
                f"UPDATE t SET {v} = {v} + 1 WHERE {id_} % 3 = {key % 3}",
                f"UPDATE t SET {w} = {w} || 'x', {id_} = {rng.randint(1000, 10**9)} WHERE {id_} = {key}",
                f"DELETE FROM t WHERE {id_} = {key}",
            )
        )
    )


def alter(conn: psycopg.Connection, rng: random.Random, *, drop: bool) -> None:
    have = names(conn)
    free = rng.choice(sorted(set("abcdefghijklmnopqrsuvwxyz") - set(have.values())))
    others = [name for number, name in have.items() if number not in USED]
    kinds = ["rename", "rename", "swap", "add", "statistics", "drop"]
    kind = rng.choice(kinds if drop and others else kinds[:-1])
    name, other = rng.sample(list(have.values()), 2)
    if kind == "rename":
        conn.execute(f"ALTER TABLE t RENAME {name} TO {free}")
    elif kind == "swap":
        for old, new in ((name, "tmp"), (other, name), ("tmp", other)):
            conn.execute(f"ALTER TABLE t RENAME {old} TO {new}")
    elif kind == "add":
        conn.execute(f"ALTER TABLE t ADD {free} int DEFAULT 7")
    elif kind == "drop":
        conn.execute(f"ALTER TABLE t DROP {rng.choice(others)}")
    else:
        conn.execute(f"ALTER TABLE t ALTER {name} SET STATISTICS 10")


@pytest.mark.parametrize(
    ("seed", "poll_ms", "full"), [(0, 5, False), (1, 600_000, False), (2, 5, True)]
)
def test_a_view_goes_on_under_any_names(source, start, database, seed, poll_ms, full):
    """Between two polls no column that is read is renamed while one below it is dropped."""
    rng = random.Random(seed)
    if full:
        source.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    running = start(catalog_poll_ms=poll_ms)
    create_view(running, database, "v", plan(source, full), "SELECT id, v, w FROM t")
    down = None
    for number in range(40):
        drop = down is None and rng.random() < 0.25
        if drop:
            source.execute(f"UPDATE t SET {names(source)[1]} = {names(source)[1]}")
            settle(running, source)
        with source.transaction():
            for _ in range(rng.randint(1, 4)):
                if rng.random() < 0.5 and not drop:
                    alter(source, rng, drop=False)
                else:
                    write(source, rng)
            if drop:
                alter(source, rng, drop=True)
                write(source, rng)
        if down is not None and number - down == 3:
            running, down = start(catalog_poll_ms=poll_ms), None
        elif down is None and number % 9 == 8:
            running.stop()
            down = number
        if down is None and (drop or rng.random() < 0.5):
            settle(running, source)
            read = ", ".join(names(source)[n] for n in USED)
            assert differs(source, "v", f"SELECT {read} FROM t") == [], number
    found = source.execute(
        "SELECT status, headrace.view_message(id) FROM headrace.views"
    ).fetchall()
    assert found == [("running", None)]
