"""Whole dataflows equal the naive evaluator after every txid, for any batches of the stream."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.collections.dataflow import Dataflow
from headrace.collections.plan import PhysicalPlan, ReduceSpec, from_json, to_json
from headrace.errors import BugError
from headrace.state.memory import MemoryStore
from headrace.state.rocks import RocksDatabase
from headrace.types import WEIGHT
from tests.amounts import examples
from tests.plans import all_plans, table
from tests.reference import Row, evaluate
from tests.streams import DELETE, INSERT, TRUNCATE, UPDATE, Op, Table

NAMES = sorted(all_plans(table(1), table(2)))

texts = st.tuples(
    st.one_of(st.none(), st.sampled_from(["0", "1", "2", "-3"])),
    st.one_of(st.none(), st.sampled_from(["", "x", "yy"])),
    st.one_of(st.none(), st.sampled_from(["1", "1.0", "1.00", "0.5", "NaN"])),
)
choices = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 9), st.integers(0, 5), st.integers(1, 5), texts),
    max_size=8,
)
streams = st.lists(st.tuples(choices, st.integers(1, 4)), min_size=1, max_size=5)
Choice = tuple[int, int, int, int, tuple[str | None, ...]]


def play(tables: Sequence[Table], chosen: Sequence[Choice]) -> list[tuple[int, Op]]:
    """Return ops that fit the tables' rows, and apply them to the tables."""
    out: list[tuple[int, Op]] = []
    for which, kind, place, number, values in chosen:
        here = tables[which]
        new = (str(number), *values)
        if values[2] == "NaN":  # only values that the reference can compare
            new = (*new[:3], "7")
        free = not here.key or all(row[0] != new[0] for row in here.rows)
        old = here.rows[place % len(here.rows)] if here.rows else None
        if kind == 0 and place == 0:
            op = Op(TRUNCATE)
        elif old is None or kind < 4:
            if not free:
                continue
            op = Op(INSERT, new)
        elif kind < 8:
            if not (free or new[0] == old[0]):
                new = (old[0], *new[1:])
            same = {i for i, value in enumerate(new) if value == old[i] and i > 1}
            op = Op(UPDATE, new, old, frozenset(same if kind == 7 else ()))
        else:
            op = Op(DELETE, None, old)
        here.carry_out([op])
        out.append((which, op))
    return out


def feed(flow: Dataflow, tables: Sequence[Table], ops: list[tuple[int, Op]], size: int) -> None:
    """Send ops in change batches of up to ``size`` consecutive ops of one table."""
    batch: list[Op] = []
    for at, (which, op) in enumerate(ops):
        batch.append(op)
        last = at + 1 == len(ops) or ops[at + 1][0] != which
        if last or len(batch) == size:
            flow.ingest(tables[which].oid, tables[which].changes(batch))
            batch = []


def counted(batch) -> Counter[Row]:
    """Return diffs as a counter; weights may be negative."""
    out: Counter[Row] = Counter()
    names = batch.schema.names
    assert names[-1] == WEIGHT
    for raw in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        # In Python -0.0 equals 0.0 and NaNs differ; for a user it is the other way round.
        row = tuple(repr(value) if isinstance(value, float) else value for value in raw)
        assert row[-1] != 0
        assert row[:-1] not in out, "a row comes once"
        out[row[:-1]] = row[-1]
    return out


def expected(physical: PhysicalPlan, tables: Sequence[Table]) -> Counter[Row]:
    return evaluate(physical, {t.oid: t.typed() for t in tables})


def start(physical: PhysicalPlan, tables: Sequence[Table], store) -> Dataflow:
    flow = Dataflow(physical, store, None, 0)
    for here in tables:
        flow.load(here.oid, here.load())
    return flow


def always_there(physical: PhysicalPlan) -> dict[str, int]:
    """Return the number of groups that exist over no row, by state."""
    reduces = [n for n in physical.nodes if isinstance(n, ReduceSpec)]
    counts = {n.id: len(n.always) if n.keys else 1 for n in reduces}
    return {name: count for name, count in counts.items() if count}


def accumulate(shown: Counter[Row], diffs: Counter[Row]) -> Counter[Row]:
    total = Counter(shown)
    total.update(diffs)
    return Counter({row: weight for row, weight in total.items() if weight})


@pytest.mark.parametrize("keyed", [True, False], ids=["key", "full"])
@pytest.mark.parametrize("name", NAMES)
@examples(25)
@given(first=choices, stream=streams)
def test_equals_the_reference_after_every_txid(name, keyed, first, stream) -> None:
    tables = [table(1, keyed=keyed), table(2, keyed=keyed)]
    play(tables, first)
    physical = from_json(to_json(all_plans(*tables)[name]))
    store, other = MemoryStore(), MemoryStore()
    flow, singles = start(physical, tables, store), start(physical, tables, other)
    shown = counted(flow.end(0))
    assert shown == counted(singles.end(0)) == expected(physical, tables)
    for txid, (chosen, size) in enumerate(stream, 1):
        ops = play(tables, chosen)
        feed(flow, tables, ops, 100)
        feed(singles, tables, ops, size)
        diffs = counted(flow.end(txid))
        assert diffs == counted(singles.end(txid)), "cut differently"
        shown = accumulate(shown, diffs)
        assert shown == expected(physical, tables)
        assert store.dump() == other.dump()
        store.checkpoint()
    # Deleted rows leave nothing behind, in the output and in the state.
    last = [(at, Op(DELETE, None, row)) for at, t in enumerate(tables) for row in t.rows]
    for here in tables:
        here.rows.clear()
    feed(flow, tables, last, 3)
    shown = accumulate(shown, counted(flow.end(len(stream) + 1)))
    assert shown == expected(physical, tables)
    left = {name: len(entries) for name, entries in store.dump().items() if entries}
    assert left == always_there(physical)


@pytest.mark.parametrize("name", NAMES)
@examples(10)
@given(first=choices, stream=streams)
def test_rollback_and_replay_change_nothing(name, first, stream) -> None:
    tables = [table(1), table(2)]
    play(tables, first)
    physical = all_plans(*tables)[name]
    store, undisturbed = MemoryStore(), MemoryStore()
    flow, straight = (start(physical, tables, store), start(physical, tables, undisturbed))
    assert flow.end(0).equals(straight.end(0))
    store.checkpoint()
    for txid, (chosen, size) in enumerate(stream, 1):
        ops = play(tables, chosen)
        feed(straight, tables, ops, size)
        diffs = straight.end(txid)
        # Once half of the batch, once all of it: both are rolled back, then replayed.
        for part in (ops[: len(ops) // 2], ops):
            flow = Dataflow(physical, store, None, 0)
            feed(flow, tables, part, 100)
            flow.end(txid)
            store.rollback()
        flow = Dataflow(physical, store, None, 0)
        feed(flow, tables, ops, size)
        assert flow.end(txid).equals(diffs)
        store.checkpoint()
        assert store.dump() == undisturbed.dump()


def checkpoint(database: RocksDatabase, store, txid: int) -> None:
    store.prepare()
    store.commit(txid)
    made = database.begin_checkpoint([(store, txid)], {})
    made.write(sync=False)
    database.end_checkpoint(made)


@pytest.mark.parametrize("name", NAMES)
def test_rocks_holds_what_memory_holds(name, tmp_path) -> None:
    tables = [table(1), table(2)]
    rows = [("1", "0", "x", "1"), ("2", "1", None, "1.0"), ("3", None, "x", None)]
    for here in tables:
        here.rows.extend(rows)
    physical = all_plans(*tables)[name]
    database = RocksDatabase(tmp_path / "db")
    rocks, memory = database.view(1), MemoryStore()
    rocks.begin(1)
    flow, straight = start(physical, tables, rocks), start(physical, tables, memory)
    assert flow.end(0).equals(straight.end(0))
    checkpoint(database, rocks, 1)
    chosen: list[list[Choice]] = [
        [(0, 5, 0, 4, ("1", "x", "1")), (1, 9, 1, 1, (None, None, None))],
        [(0, 7, 1, 9, ("0", "x", "1.00")), (1, 1, 1, 5, ("1", "x", "1"))],
        [(0, 0, 0, 1, (None, None, None)), (0, 1, 0, 1, ("1", "x", "1"))],
    ]
    for txid, each in enumerate(chosen, 2):
        ops = play(tables, each)
        # Reopened before every txid: nothing is held outside the state.
        database.close()
        database = RocksDatabase(tmp_path / "db")
        rocks = database.view(1, txid - 1)
        rocks.begin(txid)
        flow = Dataflow(physical, rocks, None, 0)
        for each_flow in (flow, straight):
            feed(each_flow, tables, ops, 100)
        assert flow.end(txid).equals(straight.end(txid))
        checkpoint(database, rocks, txid)
        assert rocks.dump() == memory.dump()
    database.close()


def test_rows_before_the_start_are_ignored() -> None:
    here = table(1)
    flow = Dataflow(all_plans(here, table(2))["source"], MemoryStore(), None, 50)
    flow.end(0)
    row = ("1", "1", "x", "1")
    flow.ingest(1, here.changes([Op(INSERT, row)], lsn=49))
    flow.ingest(1, here.changes([Op(INSERT, row)], lsn=50))
    flow.ingest(99, here.changes([Op(INSERT, row)]))
    assert counted(flow.end(1)) == Counter({(1, 1, "x", "1"): 1})


def test_what_comes_and_goes_within_a_txid_is_not_shown() -> None:
    here = table(1)
    flow = Dataflow(all_plans(here, table(2))["source"], MemoryStore(), None, 0)
    flow.end(0)
    row, other = ("1", "1", "x", "1"), ("2", "1", "x", "1")
    flow.ingest(1, here.changes([Op(INSERT, row)]))
    flow.ingest(1, here.changes([Op(DELETE, None, row), Op(INSERT, other)]))
    assert counted(flow.end(1)) == Counter({(2, 1, "x", "1"): 1})
    assert flow.end(2).num_rows == 0
    assert flow.metrics()["a"]["rows_in"] == [3]


def test_after_a_failure_nothing_goes_on() -> None:
    here = table(1)
    flow = Dataflow(all_plans(here, table(2))["source"], MemoryStore(), None, 0)
    flow.end(0)
    with pytest.raises(BugError, match="DELETE"):
        flow.ingest(1, here.changes([Op(DELETE, None, ("1", None, None, None))]))
    with pytest.raises(BugError, match="failed"):
        flow.end(1)


def test_txids_only_go_up() -> None:
    flow = Dataflow(all_plans(table(1), table(2))["join"], MemoryStore(), None, 0)
    flow.end(0)
    flow.end(7)
    with pytest.raises(BugError):
        copy.copy(flow).end(7)
    with pytest.raises(BugError):
        flow.load(1, [])
