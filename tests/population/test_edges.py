"""Blocks between Spark tasks, and states that several tasks write; without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.collections.base import ROWS_PER_BATCH_MAX
from headrace.collections.plan import PhysicalPlan, SinkSpec, TemporalSpec
from headrace.errors import BugError
from headrace.kernels import packed
from headrace.population import edges, merging
from headrace.population.edges import Arrivals
from headrace.population.staging import Staging
from headrace.state import layout, loaded
from headrace.state.rocks import RocksDatabase
from headrace.types import FLOAT8, INT4, INT8, TEXT, Field, diff_batch

SCHEMA = (Field("a", INT4), Field("a", FLOAT8), Field("t", TEXT))


def batch_of(rows: int, text: str = "é"):
    columns = [
        pa.array([None if i % 5 == 0 else i for i in range(rows)], pa.int32()),
        pa.array([float("nan") if i % 3 == 0 else -0.0 for i in range(rows)], pa.float64()),
        pa.array([None if i % 7 == 0 else text for i in range(rows)], pa.string()),
    ]
    return diff_batch(SCHEMA, columns, pa.array([1 + i % 2 for i in range(rows)], pa.int64()))


def sorted_rows(batches):
    return sorted(
        repr(row) for b in batches for row in zip(*(c.to_pylist() for c in b), strict=True)
    )


def received(sent, part, schemas=(SCHEMA,)):
    """Return the batches that part ``part`` reads of the blocks of ``sent``."""
    mine = [b.filter(pa.compute.equal(b.column("part"), part)) for b in sent]
    return read(mine, schemas)


def read(sent, schemas=(SCHEMA,)):
    """Return the batches that a task reads of its blocks."""
    blocks = Arrivals(list(schemas))
    return list(blocks.read(blocks.begin(sent)))


def test_every_row_comes_to_the_part_of_its_key():
    batch = batch_of(1000)
    sent = [edges.spread(batch.slice(i, 100), 0, edges.identities(batch.slice(i, 100)), 3)
            for i in range(0, 1000, 100)]  # fmt: skip
    parts = [[b for _, b in received(sent, part)] for part in range(3)]
    assert all(parts)
    assert sorted_rows(b for part in parts for b in part) == sorted_rows([batch])
    found = [set(key for b in part for key in edges.identities(b).strings()) for part in parts]
    assert not (found[0] & found[1] or found[0] & found[2] or found[1] & found[2])


def test_a_row_without_a_key_goes_nowhere():
    batch = batch_of(4)
    sent = edges.spread(batch, 0, packed.nullable([None, b"x", None, b"x"]), 2)
    assert sent.column("n").to_pylist() == [2]
    assert edges.spread(batch, 0, packed.nullable([None] * 4), 2).num_rows == 0
    ((port, found),) = received([sent], sent.column("part")[0].as_py())
    assert port == 0
    assert sorted_rows([found]) == sorted_rows([batch.take(pa.array([1, 3]))])


def test_all_parts_get_what_is_for_all():
    batch = batch_of(10)
    sent = edges.to_all(batch, 1, 2)
    for part in range(2):
        ((port, found),) = received([sent], part, ((), SCHEMA))
        assert port == 1
        assert sorted_rows([found]) == sorted_rows([batch])


def test_small_blocks_are_put_together_and_large_ones_cut():
    one = batch_of(100)
    many = [edges.whole(one) for _ in range(ROWS_PER_BATCH_MAX // 100 + 1)]
    sizes = [found.num_rows for _, found in received(many, 0)]
    assert sum(sizes) == 100 * len(many)
    assert len(sizes) == 2 and max(sizes) <= ROWS_PER_BATCH_MAX
    large = edges.whole(batch_of(100, "x" * 1_000_000))
    assert large.num_rows > 10
    assert sum(found.num_rows for _, found in received([large], 0)) == 100


def test_rows_without_columns_are_counted():
    batch = diff_batch((), [], pa.array([1, 2], pa.int64()))
    ((_, found),) = received([edges.spread(batch, 0, packed.nullable([b""] * 2), 1)], 0, ((),))
    assert found.column(0).to_pylist() == [1, 2]


def test_what_does_not_fit_is_refused():
    sent = edges.whole(batch_of(3))
    with pytest.raises(BugError, match="types"):
        received([sent], 0, ((SCHEMA[0], Field("b", INT8), SCHEMA[2]),))
    other = edges.spread(batch_of(3), 0, edges.identities(batch_of(3)), 1)
    mixed = pa.RecordBatch.from_arrays(
        [pa.array([7], pa.int32()), *other.columns[1:]], schema=other.schema
    )
    with pytest.raises(BugError, match="part"):
        read([sent, mixed])


def merged(path, parts):
    """Merge the tasks' states, one of them repeated, and return the result."""
    staged = Staging(path / "staged")
    staged.make()
    for part, states in [*parts.items(), *parts.items()]:
        runs = {name: loaded.pieces(*map(list, zip(*p, strict=True))) for name, p in states.items()}
        merging.leave(staged, part, runs)
    clock = TemporalSpec("t", "s", ())
    merging.merge(staged, PhysicalPlan((clock, SinkSpec("sink", "t"))))
    database = RocksDatabase(path / "db")
    database.ingest(1, staged.runs())
    out = database.view(1).dump()
    database.close()
    return out


def test_weights_are_added_and_a_repeated_task_counts_once(tmp_path):
    one, two = layout.encode_weight(1), layout.encode_weight(2)
    parts = {
        "k0": {"t.pages": [(b"\1a", one), (b"\1b", one)], "t.clock": [(b"\1now", b"x")]},
        "k1": {"t.pages": [(b"\0z", two), (b"\1b", one)], "t.clock": [(b"\1now", b"x")]},
        "p2": {"t.clock": [(b"\1now", b"x")]},
    }
    assert merged(tmp_path, parts) == {
        "t.clock": [(b"\1now", b"x")],
        "t.pages": [(b"\0z", two), (b"\1a", one), (b"\1b", two)],
    }


def test_tasks_that_differ_are_a_bug(tmp_path):
    parts = {part: {"t.clock": [(b"\1now", part.encode())]} for part in ("k0", "k1")}
    with pytest.raises(BugError, match="differ"):
        merged(tmp_path, parts)
