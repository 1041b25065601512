"""Sources say whether changes concern them: constants that their filters allow, and stored rows."""

from __future__ import annotations

import random

import pytest

from headrace.collections.allowed_values import allowed_values
from headrace.collections.changes import TableChanges
from headrace.collections.source import Source
from headrace.expressions.ir import Column, Expr, Literal, Native
from headrace.state.memory import MemoryStore
from headrace.types import (
    BOOL,
    BPCHAR,
    DATE,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    NUMERIC,
    TEXT,
    UUID,
    VARCHAR,
)
from tests.plans import native, number
from tests.streams import DELETE, INSERT, TRUNCATE, UPDATE, Op, Table

IDS = [f"0000000{i}-0000-0000-0000-000000000000" for i in range(3)]
VALUES: dict[int, list[str | None]] = {
    INT2: ["-1", "0", "7", None],
    INT4: ["-1", "0", "7", "40000", None],
    INT8: ["-1", "0", "7", "40000", "5000000000", None],
    TEXT: ["", "a", "A", "a ", "ä", None],
    VARCHAR: ["", "a", "A", "a ", None],
    DATE: ["2024-02-29", "1999-12-31", "infinity", "0001-01-01 BC", None],
    UUID: [*IDS, None],
    NUMERIC: ["1", "1.0", "7", None],
    FLOAT8: ["1", "-0", "7", None],
    BPCHAR: ["a", "a ", None],
    BOOL: ["t", "f", None],
}
OIDS = list(VALUES)
NAMED = tuple((f"c{i}", oid) for i, oid in enumerate((INT4, *OIDS)))
ARRAYS = {
    INT2: 1005, INT4: 1007, INT8: 1016, TEXT: 1009, VARCHAR: 1015, DATE: 1182, UUID: 2951,
    BPCHAR: 1014, BOOL: 1000,
}  # fmt: skip
FAMILIES = ((INT2, INT4, INT8), (TEXT, VARCHAR))


def constant_type(rng: random.Random, oid: int) -> int:
    """Return the type of a constant that a column of that type is compared with."""
    return rng.choice(next((f for f in FAMILIES if oid in f), (oid,)))


def predicate(rng: random.Random) -> Expr:
    """Return a comparison of a column with constants, mostly an equality."""
    place = rng.randrange(len(OIDS))
    column = Column(place + 1, OIDS[place])
    oid = constant_type(rng, column.oid)
    if oid in ARRAYS and rng.random() < 0.4:
        some = rng.sample(VALUES[oid], rng.randint(1, 3))
        inside = ",".join("NULL" if one is None else f'"{one}"' for one in some)
        op = rng.choice(("= ANY", "= ANY", "<> ALL"))
        return native(op, column, Literal(f"{{{inside}}}", ARRAYS[oid]))
    sides: list[Expr] = [column, Literal(rng.choice(VALUES[oid][:-1]), oid)]
    rng.shuffle(sides)
    return native(rng.choice(("=", "=", "=", "<>", "<")), *sides)


def predicates(rng: random.Random) -> tuple[Expr, ...]:
    some = tuple(predicate(rng) for _ in range(rng.randint(1, 2)))
    turn = rng.random()
    if turn < 0.2:
        return (native("or", *some, predicate(rng)),)
    return (native("and", *some, predicate(rng)),) if turn < 0.4 else some


def row(rng: random.Random, key: int) -> tuple[str | None, ...]:
    return (str(key), *(rng.choice(VALUES[oid]) for oid in OIDS))


def ops(rng: random.Random, here: Table) -> list[Op]:
    """Return changes of one kind, or of several, and carry them out."""
    kinds = rng.choice(((INSERT,), (UPDATE,), (DELETE,), (INSERT, UPDATE, DELETE), (TRUNCATE,)))
    out: list[Op] = []
    for _ in range(rng.randint(1, 3)):
        kind = rng.choice(kinds)
        taken = {int(one[0] or 0) for one in here.rows}
        if kind in (UPDATE, DELETE) and not here.rows:
            continue
        old = rng.choice(here.rows) if kind in (UPDATE, DELETE) else None
        new = row(rng, min(set(range(1000)) - taken)) if kind == INSERT else None
        if kind == UPDATE and old is not None:
            new = row(rng, int(old[0] or 0))
        out.append(Op(kind, new, old))
        here.carry_out(out[-1:])
    return out


@pytest.mark.parametrize("seed", range(60))
def test_changes_that_do_not_reach_a_source_leave_it_as_it_is(seed):
    rng = random.Random(seed)
    here = Table(1, NAMED, (0,), wanted=predicates(rng))
    made, store = Source(here.source("s"), 0), MemoryStore()
    made.open(store)
    for _ in range(30):
        batch = here.changes(ops(rng, here))
        if not batch.num_rows:
            continue
        says = made.reached(TableChanges(batch))
        before = store.dump()
        diffs = sum(diff.num_rows for diff in made.apply(0, batch))
        moved = diffs > 0 or store.dump() != before
        assert says or not moved, batch.to_pylist()
        if (batch.column("__op").to_numpy() == INSERT).all():
            assert says == moved, batch.to_pylist()


@pytest.mark.parametrize(
    ("expr", "allowed"),
    [
        (native("=", Column(1, INT4), number(7)), ((1, {7}),)),
        (native("=", Literal("5000000000", INT8), Column(1, INT4)), ((1, {5_000_000_000}),)),
        (native("= ANY", Column(2, TEXT), Literal('{a,NULL,"b c"}', 1015)), ((2, {"a", "b c"}),)),
        (
            native("and", native("=", Column(1, INT4), number(7)), native("<", Column(2, INT4), number(1))),
            ((1, {7}),),
        ),
        (native("or", native("=", Column(1, INT4), number(7)), native("=", Column(1, INT4), number(8))), ()),
        (native("=", Column(1, NUMERIC), Literal("1", NUMERIC)), ()),
        (native("=", Column(1, INT4), Literal(None, INT4)), ((1, set()),)),
        (native("=", Native("+", (Column(1, INT4), number(1)), INT4), number(7)), ()),
    ],
)  # fmt: skip
def test_what_equalities_allow(expr, allowed):
    assert list(allowed_values((expr,))) == [(place, frozenset(known)) for place, known in allowed]
