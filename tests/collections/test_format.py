"""States keep their format: this release reads the states of an earlier one.

For each collection there is a digest of its output and of the pairs in its states, over the same
random txids. A digest changes only with the format; then existing views' states are unreadable.
(``running`` changed once: it stores fewer of the same rows, and reads both, see ``test_running``.)
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter

import pytest

from headrace.collections import build, plan
from headrace.expressions.remote import RemoteEvaluator
from headrace.types import INT4, INT8, NUMERIC, TEXT, Field
from tests.disturbed import WAYS, Disturbed, fitting, line
from tests.plans import col, join, native

SCHEMA = (Field("k", INT4), Field("v", TEXT), Field("n", NUMERIC), Field("i", INT4))
UP = plan.SortKey(2, "OPERATOR(pg_catalog.<)", False, False, True)
DOWN = plan.SortKey(3, "OPERATOR(pg_catalog.>)", True, True, True)
DOWN_BY_NUMBER = plan.SortKey(2, "OPERATOR(pg_catalog.>)", True, False, True)
ASKED = plan.SortKey(2, "OPERATOR(pg_catalog.<)", False, False, False)
LESS = (native("<", col(3), col(7)),)

INPUTS = tuple(plan.ValuesSpec(name, (), SCHEMA) for name in ("l", "r"))


def aggregate(function: str, argument: int | None, oid: int, **more) -> plan.AggregateSpec:
    return plan.AggregateSpec(function, argument, None, Field("x", oid), **more)


AGGREGATES = (
    aggregate("count_star", None, INT8),
    aggregate("sum", 3, INT8),
    aggregate("avg", 2, NUMERIC),
    aggregate("min", 2, NUMERIC),
    aggregate("max", 1, TEXT),
    aggregate("any", 2, NUMERIC),
    aggregate("count", 2, INT8, distinct=True),
    aggregate("sum", 2, NUMERIC, distinct=True),
    aggregate("remote", 1, TEXT, sql="string_agg($1, ',')"),
)
RUNNING = {
    "row_number": (plan.RunningSpec("row_number"), INT8),
    "lag": (plan.RunningSpec("lag", 1, None, 1), TEXT),
    "lead": (plan.RunningSpec("lead", 3, None, 2), INT4),
    "sum": (plan.RunningSpec("sum", 2), NUMERIC),
    "max": (plan.RunningSpec("max", 3), INT4),
}


def window(calls: tuple[plan.WindowCallSpec, ...], order: plan.SortKey) -> plan.WindowSpec:
    schema = (*SCHEMA, *(call.result for call in calls))
    return plan.WindowSpec("x", "l", (0,), (order,), calls, schema)


def reduce(*keys: int, aggregates=AGGREGATES) -> plan.ReduceSpec:
    schema = (*(SCHEMA[i] for i in keys), *(a.result for a in aggregates))
    return plan.ReduceSpec("x", "l", keys, aggregates, schema)


NODES: dict[str, plan.Node] = {
    "distinct": plan.DistinctSpec("x", "l", SCHEMA),
    **{
        f"{kind} {every}": plan.SetOpSpec("x", "l", "r", kind, every, SCHEMA)
        for kind in ("intersect", "except")
        for every in (True, False)
    },
    "first": plan.TopKSpec("x", "l", (0,), (UP,), 2, 1, False, SCHEMA),
    "ties": plan.TopKSpec("x", "l", (), (DOWN,), 2, 0, True, SCHEMA),
    "behind": plan.TopKSpec("x", "l", (0,), (UP,), None, 2, False, SCHEMA),
    "none": plan.TopKSpec("x", "l", (0,), (UP,), 0, 0, False, SCHEMA),
    "ranked": plan.TopKSpec("x", "l", (0,), (ASKED,), 2, 1, False, SCHEMA),
    "ranked ties": plan.TopKSpec("x", "l", (), (ASKED,), 2, 0, True, SCHEMA),
    "ranked behind": plan.TopKSpec("x", "l", (0,), (ASKED,), None, 2, False, SCHEMA),
    "window": window(
        (
            plan.WindowCallSpec("pg_catalog.row_number()", (), Field("c", INT8)),
            plan.WindowCallSpec("pg_catalog.sum($1)", (2,), Field("d", NUMERIC)),
        ),
        ASKED,
    ),
    "running": window(
        tuple(
            plan.WindowCallSpec("", (), Field(name, oid), True, spec)
            for name, (spec, oid) in RUNNING.items()
        ),
        UP,
    ),
    "reduce": reduce(0),
    "reduce all": reduce(),
    "reduce rows": reduce(0, 1, 2, 3, aggregates=(aggregate("avg", 3, NUMERIC),)),
    **{
        f"{op} {len(rest)}": join("x", *INPUTS, (0, 1), (0, 1), rest, op)
        for op in ("inner", "left", "full", "semi", "anti")
        for rest in ((), LESS)
    },
    **{
        f"{op} {symbol}": join(
            "x", *INPUTS, (0, 1), (0, 1), (), op, (), plan.Comparison(2, symbol, 2)
        )
        for op, symbol in (("semi", ">"), ("anti", "<="))
    },
    "texts": reduce(
        0,
        aggregates=(
            aggregate("string_agg", 1, TEXT, delimiter="-", more=(2,), order=(DOWN_BY_NUMBER,)),
        ),
    ),
    "variances": reduce(
        0,
        aggregates=(
            aggregate("stddev_samp", 2, NUMERIC),
            aggregate("var_pop", 3, NUMERIC),
            aggregate("stddev_pop", 2, NUMERIC, distinct=True),
        ),
    ),
}

DIGESTS = {
    "distinct": "0f2a16205f0355ed",
    "intersect True": "1c104b79c12b1a2f",
    "intersect False": "df9b1836d978d494",
    "except True": "4d5f01b27b237d04",
    "except False": "1f8f19b994ff3b8b",
    "first": "69a9aef9f90e3c43",
    "ties": "c75945d12cf4a338",
    "behind": "f2e6e2f769f58f3e",
    "none": "6c0364032ad25702",
    "ranked": "b655b2d1bb3404cd",
    "ranked ties": "56b4a8ec00056a42",
    "ranked behind": "129405c7c7ba08c5",
    "window": "e2fee157573e4d5e",
    "running": "bba4a4a07b8ee0be",
    "reduce": "7c6788a81b1c31eb",
    "reduce all": "05e5262dc28b50f1",
    "reduce rows": "44302ccd9ad18345",
    "inner 0": "13ceed33b097ec71",
    "inner 1": "65c72e175f82246e",
    "left 0": "1a01ee7eed535c73",
    "left 1": "0120513a1fa4d831",
    "full 0": "56d131e22102a138",
    "full 1": "2c149c758c12ed0d",
    "semi 0": "41289c0169b79798",
    "semi 1": "cec0fa4d9528a8ea",
    "anti 0": "80e26374d8c2279a",
    "anti 1": "6c509f21ceb824f5",
    "semi >": "73d779111bb4e96d",
    "anti <=": "1a732aca3620d873",
    "texts": "9a923068d09e365e",
    "variances": "6c95bdad91f7feb9",
}


def rows(rng: random.Random, now: Counter) -> list[tuple[int, str]]:
    """Return diffs of both ports that fit the current rows."""
    chosen = []
    for _ in range(rng.choice((1, 5, 60))):
        row = (
            rng.choice((None, 1, 2, 3)),
            rng.choice((None, "a", "bb")),
            rng.choice((None, "1", "1.0", "1.00", "-2.5", "NaN")),
            rng.choice((None, 1, 2, -3)),
        )
        chosen.append(((rng.randrange(2), row), rng.choice((-2, -1, 1, 1, 2))))
    return [(at, line(row, w)) for (at, row), w in fitting(now, chosen)]


@pytest.mark.parametrize("name", NODES)
def test_what_is_sent_and_stored_is_what_it_was(name, postgres) -> None:
    node = NODES[name]
    remote = RemoteEvaluator(postgres, {})
    whole = plan.PhysicalPlan((*INPUTS, node))
    ports = len(plan.inputs(node))
    rng = random.Random(7)
    digest = hashlib.sha256()
    now: Counter = Counter()

    def made():
        return build._make(node, whole, remote, 0)

    try:
        work = Disturbed(made, *[SCHEMA] * ports)
        for txid in range(12):
            sent = [one for one in rows(rng, now) if one[0] < ports]
            out = work.txid(txid, sent, rng.choice(WAYS))
            digest.update(repr(sorted((repr(r), w) for r, w in out.items() if w)).encode())
            digest.update(repr(work.store.dump()).encode())
        assert sum(map(len, work.left().values())) > 5
    finally:
        remote.close()
    assert digest.hexdigest()[:16] == DIGESTS[name]
