"""Change batches to diffs, op by op."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.collections.base import Diffed
from headrace.collections.changes import TableChanges
from headrace.collections.source import Source, load_batch, load_columns
from headrace.errors import BugError, DefiniteFailure, StructureChanged, UnsupportedError
from headrace.state.memory import MemoryStore
from headrace.types import INT4, TEXT
from tests.ledger import lines
from tests.plans import col, native, number, table
from tests.streams import DELETE, INSERT, TRUNCATE, UPDATE, Op, Table

A, B, C = ("1", "1", "x", "1.0"), ("2", "2", "y", "2.0"), ("3", None, "z", "3")


def opened(here: Table) -> tuple[Source, MemoryStore]:
    store = MemoryStore()
    made = Source(here.source("s"), 0)
    made.open(store)
    return made, store


def send(made: Source, here: Table, *ops: Op) -> list[str]:
    net = Diffed(made.schema)
    for batch in made.apply(0, here.changes(ops)):
        net.add(batch)
    return lines(*net.take())


@pytest.fixture(params=[True, False], ids=["key", "full"])
def here(request) -> Table:
    return table(1, keyed=request.param)


def test_ops_become_diffs(here: Table) -> None:
    made, store = opened(here)
    assert send(made, here, Op(INSERT, A), Op(INSERT, B)) == ["+ 1 1 x 1.0", "+ 2 2 y 2.0"]
    new = ("1", None, "x", "1.0")
    assert send(made, here, Op(UPDATE, new, A)) == ["+ 1 . x 1.0", "- 1 1 x 1.0"]
    assert send(made, here, Op(DELETE, None, B), Op(DELETE, None, new)) == [
        "- 1 . x 1.0",
        "- 2 2 y 2.0",
    ]
    assert store.dump() == {"s": []}


def test_what_ends_as_it_was_yields_nothing(here: Table) -> None:
    made, _ = opened(here)
    send(made, here, Op(INSERT, A))
    other = ("1", "1", "other", "1.0")
    assert (
        send(
            made,
            here,
            Op(UPDATE, other, A),
            Op(UPDATE, A, other),
            Op(DELETE, None, A),
            Op(INSERT, A),
            Op(INSERT, B),
            Op(DELETE, None, B),
            Op(UPDATE, A, A),
        )
        == []
    )


def test_display_scale_is_a_change(here: Table) -> None:
    made, _ = opened(here)
    send(made, here, Op(INSERT, A))
    new = (*A[:3], "1.00")
    assert send(made, here, Op(UPDATE, new, A)) == ["+ 1 1 x 1.00", "- 1 1 x 1.0"]


def test_keys_can_be_swapped(here: Table) -> None:
    made, _ = opened(here)
    send(made, here, Op(INSERT, A), Op(INSERT, B))
    parked = ("9", *A[1:])
    swapped_a, swapped_b = ("2", *A[1:]), ("1", *B[1:])
    assert send(
        made, here, Op(UPDATE, parked, A), Op(UPDATE, swapped_b, B), Op(UPDATE, swapped_a, parked)
    ) == ["+ 1 2 y 2.0", "+ 2 1 x 1.0", "- 1 1 x 1.0", "- 2 2 y 2.0"]
    assert send(made, here, Op(DELETE, None, swapped_a)) == ["- 2 1 x 1.0"]


def test_unchanged_values_come_from_the_old_row(here: Table) -> None:
    made, _ = opened(here)
    send(made, here, Op(INSERT, A), Op(INSERT, B))
    first, second = ("1", "5", "x", "1.0"), ("1", "6", "x", "1.5")
    moved = ("4", "2", "y", "2.0")
    assert send(
        made,
        here,
        Op(UPDATE, first, A, frozenset({2, 3})),
        Op(UPDATE, second, first, frozenset({2})),
        Op(UPDATE, moved, B, frozenset({2})),
    ) == ["+ 1 6 x 1.5", "+ 4 2 y 2.0", "- 1 1 x 1.0", "- 2 2 y 2.0"]
    again = ("5", "2", "y", "7")
    inserted, changed = ("4", "0", "new", "0"), ("4", "1", "new", "0")
    assert send(
        made,
        here,
        Op(UPDATE, again, moved, frozenset({2})),
        Op(INSERT, inserted),
        Op(UPDATE, changed, inserted, frozenset({2, 3})),
    ) == ["+ 4 1 new 0", "+ 5 2 y 7", "- 4 2 y 2.0"]


def test_rows_that_nobody_wants_are_not_kept(here: Table) -> None:
    here.wanted = (native(">", col(1), number(1)),)
    made, store = opened(here)
    assert send(made, here, Op(INSERT, A), Op(INSERT, B), Op(INSERT, C)) == ["+ 2 2 y 2.0"]
    assert len(store.dump()["s"]) == 1
    first = ("1", "5", "x", "1.0")
    assert send(made, here, Op(UPDATE, first, A)) == ["+ 1 5 x 1.0"]
    assert send(made, here, Op(UPDATE, A, first)) == ["- 1 5 x 1.0"]
    moved = ("7", "9", "x", "1.0")
    assert send(
        made,
        here,
        Op(UPDATE, first, A),
        Op(UPDATE, moved, first),
        Op(DELETE, None, C),
        Op(INSERT, C),
        Op(UPDATE, ("2", None, "y", "2.0"), B),
    ) == ["+ 7 9 x 1.0", "- 2 2 y 2.0"]
    assert send(made, here, Op(DELETE, None, C)) == []
    assert send(made, here, Op(TRUNCATE)) == ["- 7 9 x 1.0"]
    assert store.dump() == {"s": []}


def test_a_value_that_was_not_kept_stops_the_view() -> None:
    here = table(1)
    here.wanted = (native(">", col(1), number(1)),)
    made, _ = opened(here)
    send(made, here, Op(INSERT, A), Op(INSERT, B))
    kept = ("2", "3", "y", "2.0")
    assert send(made, here, Op(UPDATE, kept, B, frozenset({2}))) == ["+ 2 3 y 2.0", "- 2 2 y 2.0"]
    with pytest.raises(StructureChanged, match="not stored"):
        send(made, here, Op(UPDATE, ("1", "5", "x", "1.0"), A, frozenset({2})))


def test_an_unchanged_null_stays_null() -> None:
    here = table(1)
    made, _ = opened(here)
    row = ("1", "1", None, "1")
    send(made, here, Op(INSERT, row))
    new = ("1", "2", None, "1")
    assert send(made, here, Op(UPDATE, new, row, frozenset({2}))) == ["+ 1 2 . 1", "- 1 1 . 1"]


def test_a_key_stored_apart_comes_with_the_old_key() -> None:
    columns = (("id", TEXT), ("v", TEXT))
    here = Table(1, columns, (0,))
    made, _ = opened(here)
    send(made, here, Op(INSERT, ("long", "x")))
    op = Op(UPDATE, ("long", "y"), ("long", "x"), frozenset({0}))
    assert send(made, here, op) == ["+ long y", "- long x"]


def test_truncate_takes_everything_before_it(here: Table) -> None:
    made, store = opened(here)
    send(made, here, Op(INSERT, A), Op(INSERT, B))
    late = ("1", "7", "late", "7")
    assert send(made, here, Op(INSERT, ("3", "3", "z", "3")), Op(TRUNCATE)) == [
        "- 1 1 x 1.0",
        "- 2 2 y 2.0",
    ]
    assert send(made, here, Op(TRUNCATE), Op(TRUNCATE), Op(INSERT, late)) == ["+ 1 7 late 7"]
    assert len(store.dump()["s"]) == 1


def test_equal_rows_are_kept_apart_by_weight() -> None:
    here = table(1, keyed=False)
    made, _ = opened(here)
    assert send(made, here, Op(INSERT, A), Op(INSERT, A), Op(INSERT, A)) == ["+3 1 1 x 1.0"]
    assert send(made, here, Op(DELETE, None, A)) == ["- 1 1 x 1.0"]
    assert send(made, here, Op(TRUNCATE)) == ["-2 1 1 x 1.0"]


def test_the_key_need_not_be_read() -> None:
    here = table(1, needed=(2,))
    made, _ = opened(here)
    assert [c.name for c in load_columns(here.source("s"))] == ["v", "id"]
    here.rows = [A, B]
    assert lines(*made.apply(0, load_batch(here.source("s"), here.load()))) == ["+ x", "+ y"]
    assert send(made, here, Op(UPDATE, ("1", "8", "x", "9"), A)) == []
    assert send(made, here, Op(UPDATE, ("7", "1", "q", "1"), A)) == ["+ q", "- x"]
    assert send(made, here, Op(DELETE, None, ("7", "1", "q", "1"))) == ["- q"]


@pytest.mark.parametrize("keyed", [True, False])
def test_a_source_of_no_columns_counts_rows(keyed) -> None:
    here = table(1, keyed=keyed, needed=())
    made, _ = opened(here)
    if keyed:
        here.rows = [A, B]
        batches = made.apply(0, load_batch(here.source("s"), here.load()))
        assert sum(b.columns[-1].to_pylist()[0] * b.num_rows for b in batches) == 2
    else:
        send(made, here, Op(INSERT, A), Op(INSERT, B))
    assert send(made, here, Op(INSERT, C), Op(UPDATE, ("1", "2", "n", "3"), A)) == ["+"]
    assert send(made, here, Op(TRUNCATE)) == ["-3"] or keyed


@pytest.mark.parametrize(
    "op",
    [Op(INSERT, A), Op(DELETE, None, B), Op(UPDATE, C, B), Op(UPDATE, A, C)],
    ids=["insert", "delete", "update", "update of key"],
)
def test_what_does_not_fit_is_a_bug(op: Op) -> None:
    here = table(1)
    made, _ = opened(here)
    send(made, here, Op(INSERT, A))
    with pytest.raises(BugError, match="public"):
        send(made, here, op)


def test_a_delete_of_an_unknown_row_is_a_bug_without_key_too() -> None:
    here = table(1, keyed=False)
    made, _ = opened(here)
    with pytest.raises(BugError):
        send(made, here, Op(DELETE, None, A))


def test_rows_loaded_twice_are_a_bug() -> None:
    here = table(1)
    here.rows = [A, A]
    made, _ = opened(here)
    with pytest.raises(BugError, match="twice"):
        made.apply(0, load_batch(here.source("s"), here.load()))


def test_a_column_without_number_stops_the_view(here: Table) -> None:
    made, _ = opened(here)
    batch = here.changes([Op(INSERT, A)])
    left = [name for name in batch.schema.names if not name.endswith(":3")]
    with pytest.raises(StructureChanged, match='column "v" of table'):
        made.apply(0, batch.select(left))


def test_what_others_made_of_a_batch_is_not_made_again(monkeypatch) -> None:
    here = table(1, keyed=True)
    batch = here.changes([Op(INSERT, A), Op(INSERT, B), Op(UPDATE, C, B), Op(DELETE, None, A)])
    asked: list[str] = []
    monkeypatch.setattr(TableChanges, "_once", _counting(TableChanges._once, asked))
    shared = TableChanges(batch)
    found = []
    for _ in range(3):
        made, store = opened(here)
        made.made = shared
        found.append(([b.to_pydict() for b in made.apply(0, batch)], store.dump()))
        made.made = None
    alone, store = opened(here)
    assert found == [([b.to_pydict() for b in alone.apply(0, batch)], store.dump())] * 3
    # Once for the three of them, and once for the separate one.
    assert asked
    assert all(asked.count(what) == 2 for what in asked)


def _counting(real, asked: list[str]):
    def once(self, make, *of):
        def noted(*of):
            asked.append(f"{make.__name__} {of}")
            return make(*of)

        noted.__name__ = make.__name__
        return real(self, noted, *of)

    return once


def test_what_was_made_of_another_batch_is_not_taken() -> None:
    here = table(1, keyed=True)
    shared = TableChanges(here.changes([Op(INSERT, A)]))
    made, _ = opened(here)
    made.made = shared
    assert send(made, here, Op(INSERT, A)) == ["+ 1 1 x 1.0"]
    assert send(made, here, Op(INSERT, B)) == ["+ 2 2 y 2.0"]


def test_errors_tell_the_table_also_where_batches_are_shared() -> None:
    here = table(1, keyed=True)
    batch = here.changes([Op(INSERT, ("1", "no number", "x", "1"))])
    made, _ = opened(here)
    made.made = TableChanges(batch)
    with pytest.raises(DefiniteFailure, match='column "k" of table "'):
        made.apply(0, batch)


def test_another_type_stops_the_view(here: Table) -> None:
    made, _ = opened(here)
    with pytest.raises(DefiniteFailure, match='column "k" of table'):
        send(made, here, Op(INSERT, ("1", "no number", "x", "1")))


def test_another_replica_identity_stops_the_view(here: Table) -> None:
    made, _ = opened(here)
    send(made, here, Op(INSERT, A))
    batch = here.changes([Op(DELETE, None, A)])
    place = batch.schema.get_field_index("__old")
    none = pa.array([0], pa.int8())
    with pytest.raises(DefiniteFailure, match="replica identity"):
        made.apply(0, batch.set_column(place, "__old", none))


def test_a_key_of_two_columns() -> None:
    here = Table(1, (("a", INT4), ("b", TEXT), ("c", INT4)), (1, 0))
    made, _ = opened(here)
    send(made, here, Op(INSERT, ("1", "x", "1")), Op(INSERT, ("1", "y", "2")))
    assert send(made, here, Op(UPDATE, ("2", "x", "5"), ("1", "x", "1"))) == ["+ 2 x 5", "- 1 x 1"]


def test_rows_without_any_column_cannot_be_loaded() -> None:
    with pytest.raises(UnsupportedError):
        load_batch(table(1, keyed=False, needed=()).source("s"), [])
