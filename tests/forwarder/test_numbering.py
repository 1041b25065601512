"""Columns of the stream get the right numbers, or none, compared with the table's columns."""

from __future__ import annotations

import random
from dataclasses import dataclass

import psycopg
import pytest

from headrace.postgres.numbering import Observation, StreamAttribute, VisibleXids, number

READ = """
SELECT pg_current_snapshot()::text, array_agg(ARRAY[attnum::text, attname,
  (NOT attisdropped AND attgenerated = '')::text, xmin::text] ORDER BY attnum)
  FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0"""


def observe(conn: psycopg.Connection) -> Observation:
    seen, rows = conn.execute(READ).fetchone()
    return Observation(
        VisibleXids.of(seen),
        tuple(StreamAttribute(int(n), name, told == "true", w) for n, name, told, w in rows),
    )


def test_snapshots_show_by_32_bits():
    far = 7 << 32
    snapshot = VisibleXids.of(f"{far + 90}:{far + 100}:{far + 95},{far + 97}")
    assert [x for x in range(88, 102) if snapshot.shows(x)] == [
        *range(88, 95), 96, 98, 99,
    ]  # fmt: skip
    assert snapshot.shows((1 << 32) - 5)
    soon = VisibleXids.of(f"{far - 3}:{far - 2}:")
    assert soon.shows((1 << 32) - 3)
    assert not soon.shows(4)
    assert not VisibleXids.of("3:3:").shows(3)


@dataclass(frozen=True)
class ReportedData:
    """A Relation message: its transaction, names, and the true numbers of the columns."""

    xid: int
    names: tuple[str, ...]
    numbers: tuple[int, ...]
    alterations: int
    """Before it."""


class World:
    """A table under random alterations, and its columns as each transaction saw them."""

    def __init__(self, conn: psycopg.Connection, rng: random.Random) -> None:
        self.conn = conn
        self.rng = rng
        self.alterations = 0
        self.told: list[ReportedData] = []

    def transaction(self, *, only_writes: bool = False) -> int:
        """Run a transaction, and return its number."""
        with self.conn.transaction():
            row = self.conn.execute("SELECT pg_current_xact_id()::text").fetchone()
            for _ in range(self.rng.randint(1, 3)):
                if not only_writes and self.rng.random() < 0.5:
                    self.alter()
                else:
                    self.write(int(row[0]))
        return int(row[0])

    def look(self) -> list[tuple[int, str, bool]]:
        return self.conn.execute(
            "SELECT attnum, attname, attgenerated = '' FROM pg_attribute"
            " WHERE attrelid = 't'::regclass AND attnum > 0 AND NOT attisdropped"
            " ORDER BY attnum"
        ).fetchall()

    def write(self, xid: int) -> None:
        have = [(n, name) for n, name, told in self.look() if told]
        numbers, names = zip(*have, strict=True) if have else ((), ())
        self.told.append(ReportedData(xid, names, numbers, self.alterations))

    def alter(self) -> None:
        self.alterations += 1
        rng, have = self.rng, self.look()
        name = rng.choice([name for _, name, _ in have])
        free = rng.choice(sorted(set("abcdef") - {name for _, name, _ in have}) or [""])
        kind = rng.randint(0, 4)
        if kind == 0 and len(have) > 1:
            self.conn.execute(f"ALTER TABLE t DROP {name}")
        elif kind == 1 and free:
            stored = rng.choice(("", "", "GENERATED ALWAYS AS (1) STORED"))
            self.conn.execute(f"ALTER TABLE t ADD {free} int {stored}")
        elif kind == 2 and free:
            self.conn.execute(f"ALTER TABLE t RENAME {name} TO {free}")
        elif kind == 3 and len(have) > 1:
            other = rng.choice([n for _, n, _ in have if n != name])
            for old, new in ((name, "tmp"), (other, name), ("tmp", other)):
                self.conn.execute(f"ALTER TABLE t RENAME {old} TO {new}")
        else:
            self.conn.execute(f"ALTER TABLE t ALTER {name} SET STATISTICS 10")


@pytest.mark.parametrize("seed", range(4))
def test_numbers_are_right_or_none(database, seed):
    """Random alterations and writes, alone and together, observed now and then."""
    rng = random.Random(seed)
    found = missed = 0
    with (
        psycopg.connect(database, autocommit=True) as conn,
        psycopg.connect(database, autocommit=True) as other,
    ):
        for _ in range(12):
            conn.execute("DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b int, c int)")
            world = World(conn, rng)
            seen = [(0, observe(other))]
            for _ in range(rng.randint(1, 8)):
                world.transaction()
                if rng.random() < 0.4:
                    seen.append((world.alterations, observe(other)))
            seen.append((world.alterations, observe(other)))
            world.write(world.transaction(only_writes=True))
            seen.append((world.alterations, observe(other)))
            rng.shuffle(seen)
            for told in world.told:
                got = number(told.names, told.xid, [o for _, o in seen])
                assert got is not None
                true = dict(zip(told.names, told.numbers, strict=True))
                for alterations, began in seen:
                    # Rows under the description matter to transactions that began before it, or
                    # while it holds; and only columns that existed then.
                    shown = began.snapshot.shows(told.xid)
                    if shown and alterations != told.alterations:
                        continue
                    mine = {a.number for a in began.published}
                    assert all(true[c] == n for c, n in got.items() if n in mine), (told, got)
                    if shown:
                        assert got.items() <= true.items(), (told, got)
                found += len(got)
                missed += len(true.keys() - got.keys())
            assert got == true, "what has not been altered lately is known"
    assert found > 2 * missed, (found, missed)


def attributes(*columns: tuple) -> tuple[StreamAttribute, ...]:
    return tuple(StreamAttribute(n, name, bool(name), w) for n, name, w in columns)


def test_the_same_names_may_be_other_columns():
    """Dropped, renamed and added again: both look alike, so the numbers stay unknown."""
    first = Observation(
        VisibleXids.of("10:10:"), attributes((1, "id", "5"), (2, "x", "5"), (3, "a", "5"))
    )
    last = Observation(
        VisibleXids.of("20:20:"),
        attributes((1, "id", "5"), (2, "", "12"), (3, "x", "12"), (4, "a", "12")),
    )
    for xid in (11, 12, 13):
        assert number(["id", "x", "a"], xid, [first, last])["id"] == 1
        assert 3 not in number(["id", "x", "a"], xid, [first, last]).values()
    assert number(["id", "x", "a"], 20, [first, last]) is None
    later = Observation(VisibleXids.of("30:30:"), last.attributes)
    assert number(["id", "x", "a"], 25, [first, last, later]) == {
        "id": 1, "x": 3, "a": 4,
    }  # fmt: skip
    assert number(["id", "x", "a"], 9, [last, first]) == {"id": 1, "x": 2, "a": 3}
    assert number(["id", "y", "a"], 9, [last, first]) == {}
