"""Reduce against Postgres: after every txid its rows are those of the GROUP BY query."""

from __future__ import annotations

import random
from collections import Counter

import psycopg
import pyarrow as pa
import pytest
from msgspec.structs import replace

from headrace.collections import plan
from headrace.collections.reduce import Reduce
from headrace.errors import BugError, RowError
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import copytext, text
from headrace.planner.logical.nodes import PLAIN_ORDERS
from headrace.postgres.settings import PINNED_SETTINGS
from headrace.state.memory import MemoryStore
from headrace.types import Field, diff_batch

INT2, INT4, INT8, TEXT, BOOL, NUMERIC, FLOAT4, FLOAT8 = (21, 23, 20, 25, 16, 1700, 700, 701)
INTERVAL, MONEY, DATE, TIMESTAMPTZ = 1186, 790, 1082, 1184

IN = (
    Field("k", INT4),
    Field("i2", INT2),
    Field("i4", INT4),
    Field("i8", INT8),
    Field("n", NUMERIC),
    Field("f4", FLOAT4),
    Field("f8", FLOAT8),
    Field("t", TEXT, -1, 950),
    Field("d", DATE),
    Field("iv", INTERVAL),
    Field("m", MONEY),
    Field("b", BOOL),
)
NAMES = [f.name for f in IN]
TYPES = [
    "int4", "int2", "int4", "int8", "numeric", "float4", "float8", "text", "date",
    "interval", "money", "bool",
]  # fmt: skip
VALUES = {
    "k": ["1", "2", "3", None],
    "i2": ["1", "-32768", "32767", None],
    "i4": ["5", "-2147483648", "2147483647", "0", None],
    "i8": ["7", "-9223372036854775808", "9223372036854775807", None],
    "n": ["1.50", "1.5", "-0.001", "12345678901234567890.123456789", "0", "7", None],
    "f4": ["1.5", "0.25", "-1024", None],
    "f8": ["1.5", "0", "0.25", "-123456.75", None],
    "t": ["a", "B", "", "é", None],
    "d": ["2024-01-01", "infinity", "1999-12-31", None],
    "iv": ["1 day", "24:00:00", "1 mon", "-00:00:01", None],
    "m": ["$1.00", "-$2.50", None],
    "b": ["t", "f", None],
}
SPECIALS = {"n": ["NaN", "Infinity", "-Infinity"], "f4": ["NaN", "Infinity"],
            "f8": ["NaN", "Infinity", "-Infinity"]}  # fmt: skip


RESULTS = {
    "sum": {INT2: INT8, INT4: INT8, INT8: NUMERIC},
    "avg": {INT2: NUMERIC, INT4: NUMERIC, INT8: NUMERIC, FLOAT4: FLOAT8},
    **dict.fromkeys(
        ("stddev_samp", "stddev_pop", "var_samp", "var_pop"),
        dict.fromkeys((INT2, INT4, INT8), NUMERIC),
    ),
}
"""Result types of aggregates that differ from the argument's type."""


def agg(function, column=None, *, result=None, where=None, distinct=False, sql=""):
    argument = None if column is None else NAMES.index(column)
    oid = None if column is None else IN[argument].oid
    if result is None and function == "single":
        result = oid
    if result is None:
        result = RESULTS.get(function, {}).get(oid, INT8 if "count" in function else oid)
    mask = None if where is None else NAMES.index(where)
    return plan.AggregateSpec(function, argument, mask, Field("x", result), sql, distinct)


def listed(delimiter, *order, where=None):
    """Return ``string_agg`` of t in that order, whose ties the query also breaks by t."""
    keys = [(NAMES.index(name), down, first) for name, down, first in (*order, ("t", False, False))]
    return replace(
        agg("string_agg", "t", where=where),
        more=tuple(place for place, *_ in keys[:-1]),
        delimiter=delimiter,
        order=tuple(
            plan.SortKey(place, PLAIN_ORDERS[down], down, first, native=True)
            for place, down, first in keys
        ),
    )


def sql_of(a):
    if a.function in ("string_agg", "array_agg"):
        order = ", ".join(
            f"{NAMES[k.column]} {'DESC' if k.descending else 'ASC'}"
            f" NULLS {'FIRST' if k.nulls_first else 'LAST'}"
            for k in a.order
        )
        delimiter = "" if a.function == "array_agg" else f", '{a.delimiter}'"
        out = f"{a.function}({NAMES[a.argument]}{delimiter} ORDER BY {order})"
    elif a.function == "count_star":
        out = "count(*)"
    elif a.function == "remote":
        out = a.sql.replace("$1", NAMES[a.argument])
    else:
        name = {"any": "min"}.get(a.function, a.function)
        out = f"{name}({'DISTINCT ' if a.distinct else ''}{NAMES[a.argument]})"
    return out + (f" FILTER (WHERE {NAMES[a.filter]})" if a.filter is not None else "")


AGGREGATES = [
    agg("count_star"),
    agg("count_star", where="b"),
    agg("count", "t"),
    agg("count", "n", distinct=True),
    *[agg(f, c) for f in ("sum", "avg") for c in ("i2", "i4", "i8", "n", "f4", "f8")],
    *[
        agg(f"{f}_{over}", c)
        for f in ("stddev", "var")
        for over in ("samp", "pop")
        for c in ("i2", "i4", "i8", "n")
    ],
    agg("var_samp", "n", distinct=True),
    agg("stddev_pop", "i4", where="b"),
    agg("bool_and", "b"),
    agg("bool_or", "b"),
    listed(""),
    listed(", ", ("i4", True, True), ("i8", False, False), where="b"),
    listed("é", ("n", True, False)),
    *[
        replace(
            agg("array_agg", c, result=oid),
            order=(plan.SortKey(NAMES.index(c), PLAIN_ORDERS[0], False, True, native=True),),
        )
        for c, oid in (
            ("i2", 1005),
            ("i4", 1007),
            ("i8", 1016),
            ("t", 1009),
            ("d", 1182),
            ("b", 1000),
        )
    ],
    agg("sum", "i4", where="b", distinct=True),
    agg("avg", "i8", distinct=True),
    agg("sum", "f8", distinct=True),
    *[agg(f, c) for f in ("min", "max") for c in ("i4", "i8", "t", "d")],
    agg("max", "i4", where="b"),
    agg("any", "i2", where="b"),
    agg("remote", "iv", result=INTERVAL, sql="sum($1)"),
    agg("remote", "iv", result=INTERVAL, sql="avg($1)"),
    agg("remote", "m", result=MONEY, sql="sum($1)"),
    agg("remote", "b", result=BOOL, sql="bool_and($1)"),
]
# "any" stands for the only value here: of several values Postgres' min would choose another.
CHECKED = [a for a in AGGREGATES if a.function != "any"]


def node_of(keys, aggregates):
    schema = tuple(IN[k] for k in keys) + tuple(a.result for a in aggregates)
    return plan.ReduceSpec("r", "in", tuple(keys), tuple(aggregates), schema)


def batch(rows):
    columns = [
        text.parse(pa.array([r[i] for r, _ in rows], pa.string()), f.oid) for i, f in enumerate(IN)
    ]
    return diff_batch(IN, columns, pa.array([w for _, w in rows], pa.int64()))


class Driver:
    """Holds the output rows."""

    def __init__(self, node, remote=None):
        self.node, self.remote = node, remote
        self.store = MemoryStore()
        self.out = Counter()
        self.txid = 0
        self.reopen()

    def reopen(self):
        self.reduce = Reduce(self.node, IN, self.remote)
        self.reduce.open(self.store)

    def run(self, *batches):
        for rows in batches:
            assert self.reduce.apply(0, batch(rows)) == []
        weights = Counter()
        for out in self.reduce.time_end(self.txid):
            texts = [
                text.render(c, f.oid) for c, f in zip(out.columns, self.node.schema, strict=False)
            ]
            rows = zip(*(c.to_pylist() for c in texts), strict=True)
            for row, weight in zip(rows, out.columns[-1].to_pylist(), strict=True):
                weights[row] += weight
                self.out[row] += weight
        self.txid += 1
        for key in [k for k, w in self.out.items() if w == 0]:
            del self.out[key]
        assert not weights or all(w != 0 for w in weights.values())
        return weights


class Oracle:
    """The same query in Postgres, over the multiset of rows."""

    def __init__(self, dsn, node):
        self.conn = psycopg.connect(dsn, autocommit=True)
        for name, value in PINNED_SETTINGS.items():
            self.conn.execute("SELECT set_config(%s, %s, false)", (name, value))
        self.node = node
        keys = [NAMES[k] for k in node.keys]
        self.outs = keys + [sql_of(a) for a in node.aggregates]
        self.group = f" GROUP BY {', '.join(keys)}" if keys else ""

    def rows(self, live):
        rows = list(live.elements())
        arrays = ", ".join(f"%s::{t}[]" for t in TYPES)
        params = [
            copytext.array_literal(pa.array([r[i] for r in rows], pa.string()))
            for i in range(len(IN))
        ]
        outs = ", ".join(f"({o})::text" for o in self.outs)
        # Ordered input: float sums in Postgres depend on it, exact ones do not.
        columns = ", ".join(f'{n} COLLATE "C"' if n == "t" else n for n in NAMES)
        query = (
            f"SELECT {outs} FROM (SELECT {columns} FROM unnest({arrays})"
            f" AS u({', '.join(NAMES)})) AS s({', '.join(NAMES)}){self.group}"
        )
        out = Counter()
        for row in self.conn.execute(query, params).fetchall():
            out[tuple(map(self.canonical, row, self.node.schema))] += 1
        return out

    @staticmethod
    def canonical(value, field):
        if value is None or field.oid not in (BOOL, FLOAT4, FLOAT8):
            return value
        if field.oid == BOOL:
            return value[:1]
        parsed = text.parse(pa.array([value], pa.string()), field.oid)
        return text.render(parsed, field.oid)[0].as_py()


def random_row(rng, specials):
    row = []
    for name in NAMES:
        pool = VALUES[name]
        if specials and rng.random() < 0.1 and name in SPECIALS:
            pool = SPECIALS[name]
        row.append(rng.choice(pool))
    return tuple(row)


def changes(rng, live, count, specials):
    diffs = []
    for _ in range(count):
        if live and rng.random() < 0.5:
            row = rng.choice(list(live))
            live[row] -= 1
            if not live[row]:
                del live[row]
            diffs.append((row, -1))
        else:
            row = random_row(rng, specials)
            weight = rng.choice([1, 1, 1, 3])
            live[row] += weight
            diffs.append((row, weight))
    return diffs


@pytest.mark.parametrize("keys", [(0,), (), (7, 11), (4,)], ids=["k", "none", "t,b", "n"])
@pytest.mark.parametrize("seed", range(6))
def test_equals_postgres_after_every_txid(postgres, keys, seed):
    rng = random.Random(seed)
    chosen = CHECKED
    if keys == (4,):
        # The planner decides which form of equal numerics is shown: compare per value.
        chosen = [agg("count_star"), agg("sum", "i4")]
    node = node_of(keys, chosen)
    remote = RemoteEvaluator(postgres, {})
    driver, oracle = Driver(node, remote), Oracle(postgres, node)
    live = Counter()
    for step in range(6):
        diffs = changes(rng, live, rng.choice([0, 1, 10, 60]), specials=step % 2)
        rng.shuffle(diffs)  # order within a txid does not matter
        cut = rng.randint(0, len(diffs))
        driver.run(*[part for part in (diffs[:cut], diffs[cut:]) if part])
        expected = oracle.rows(live)
        if keys == (4,):
            assert normal(driver.out) == normal(expected)
        else:
            assert driver.out == expected
        if step == 3:
            driver.reopen()
    driver.run([(row, -weight) for row, weight in live.items()] or [])
    assert driver.out == oracle.rows(Counter())
    leftovers = {k: v for k, v in driver.store.dump().items() if v}
    assert set(leftovers) <= ({"r"} if not keys else set())
    oracle.conn.close()
    remote.close()


def plain_row(rng):
    """Return a row of one of 40 groups, most of whose numbers are small."""
    seldom = rng.random() < 0.03
    n = rng.choice([*VALUES["n"], *SPECIALS["n"]]) if seldom else f"{rng.randrange(-999, 999)}.25"
    i8 = rng.choice(VALUES["i8"]) if seldom else str(rng.randrange(-(10**6), 10**6))
    i4 = rng.choice([None, str(rng.randrange(100))])
    return row(k=str(rng.randrange(40)), n=n, i8=i8, i4=i4, i2="7", b=rng.choice("tf"))


@pytest.mark.parametrize("seed", range(4))
def test_many_groups_equal_postgres(postgres, seed, monkeypatch):
    exact, merged = [], []
    for name, seen in (("_exact", exact), ("_merged", merged)):
        own = getattr(Reduce, name)

        def spy(self, values, *rest, own=own, seen=seen):
            seen.append(len(values))
            return own(self, values, *rest)

        monkeypatch.setattr(Reduce, name, spy)
    rng = random.Random(seed)
    chosen = [a for a in CHECKED if a.argument is None or IN[a.argument].oid not in (700, 701)]
    node = node_of((0,), [a for a in chosen if a.function != "remote"])
    driver, oracle = Driver(node), Oracle(postgres, node)
    live = Counter()
    for step in range(12):
        diffs = []
        for _ in range(rng.choice([30, 200])):
            if live and rng.random() < 0.5:
                old = rng.choice(list(live))
                diffs.append((old, -live.pop(old) if rng.random() < 0.3 else -1))
                live[old] += diffs[-1][1] if old in live else 0
                if not live[old]:
                    del live[old]
            else:
                new = plain_row(rng)
                live[new] += 1
                diffs.append((new, 1))
        driver.run(diffs)
        assert driver.out == oracle.rows(live)
        if step == 5:
            driver.reopen()
    driver.run([(old, -weight) for old, weight in live.items()])
    assert driver.out == Counter()
    assert not any(driver.store.dump().values())
    assert len(merged) > 8
    assert any(part < 20 for part in exact), "few groups have large numbers"
    oracle.conn.close()


@pytest.mark.parametrize("seed", range(24))
def test_groups_that_change_alike_equal_postgres(postgres, seed):
    """All groups get and lose numbers of the same kind: states of the same, not usual, form."""
    rng = random.Random(seed)
    numeric = [agg(f, "n", where=w) for f in ("sum", "avg", "var_pop") for w in (None, "b")]
    others = [agg("count", "n"), agg("sum", "i4"), agg("var_samp", "i8", where="b")]
    chosen = rng.sample(numeric, rng.choice((1, 2, 3))) + rng.sample(others, rng.choice((0, 1)))
    rng.shuffle(chosen)
    node = node_of((0,), chosen)
    driver, oracle = Driver(node), Oracle(postgres, node)
    live = Counter()
    kinds = rng.choice((["1.5", "2.5", "NaN"], ["1.5", "-Infinity", None], ["1.5", "1.25", None]))
    for step in range(30):
        if live and rng.random() < 0.3:
            kind, flag = rng.choice([(old[NAMES.index("n")], old[-1]) for old in live])
            gone = [old for old in live if (old[NAMES.index("n")], old[-1]) == (kind, flag)]
            diffs = [(old, -live.pop(old)) for old in gone]
        else:
            n, b = rng.choice(kinds), rng.choice("tf")
            diffs = [(row(k=str(k), n=n, b=b, i4="1", i8="2"), 1) for k in range(12)]
            live.update(dict(diffs))
        driver.run(diffs)
        assert driver.out == oracle.rows(live), (seed, step)
        if step == 15:
            driver.reopen()
    driver.run([(old, -weight) for old, weight in live.items()])
    assert driver.out == Counter()
    assert not any(driver.store.dump().values())
    oracle.conn.close()


def normal(rows):
    out = Counter()
    for (n, *rest), weight in rows.items():
        short = n.rstrip("0").rstrip(".") if n is not None and "." in n else n
        out[short, *rest] += weight
    return out


def row(**values):
    return tuple(values.get(name) for name in NAMES)


def test_no_keys_have_one_row_before_any_input():
    driver = Driver(node_of((), [agg("count_star"), agg("sum", "i4"), agg("max", "n")]))
    assert driver.run() == {("0", None, None): 1}
    assert driver.run() == {}
    driver.reopen()
    assert driver.run() == {}
    assert driver.run([(row(i4="5"), 1)]) == {("0", None, None): -1, ("1", "5", None): 1}


def test_nothing_is_sent_when_nothing_changes():
    driver = Driver(node_of((0,), [agg("sum", "i4")]))
    assert driver.run([(row(k="1", i4="5"), 1)]) == {("1", "5"): 1}
    assert driver.run([(row(k="1", i4="0"), 1)]) == {}
    assert driver.run([(row(k="2", i4="1"), 1)], [(row(k="2", i4="1"), -1)]) == {}
    assert driver.run([(row(k="1", i4="5"), -1), (row(k="1", i4="0"), -1)]) == {("1", "5"): -1}


def test_groups_without_aggregates_are_distinct_keys():
    driver = Driver(node_of((7,), []))
    assert driver.run([(row(t="a"), 2), (row(t=None), 1)]) == {("a",): 1, (None,): 1}
    assert driver.run([(row(t="a"), -1)]) == {}
    assert driver.run([(row(t="a"), -1)]) == {("a",): -1}


def test_float_sums_do_not_drift():
    driver = Driver(node_of((), [agg("sum", "f8"), agg("avg", "f8")]))
    driver.run([(row(f8="0.1"), 1), (row(f8="1e300"), 1), (row(f8="-0"), 1)])
    driver.run([(row(f8="1e300"), -1)])
    assert list(driver.out) == [("0.1", "0.05")]
    driver.run([(row(f8="0.1"), -1)])
    assert list(driver.out) == [("-0", "0")]


def test_any_is_the_least_form_by_length_then_bytes():
    driver = Driver(node_of((), [agg("any", "n")]))
    driver.run([(row(n="1.00"), 1), (row(n="1.0"), 2)])
    assert list(driver.out) == [("1.0",)]
    driver.run([(row(n="1.0"), -2)])
    assert list(driver.out) == [("1.00",)]


def test_single_is_the_value_of_the_only_row():
    driver = Driver(node_of((0,), [agg("single", "t")]))
    assert driver.run([(row(k="1", t="a"), 1), (row(k="2"), 1)]) == {("1", "a"): 1, ("2", None): 1}
    # Two rows before the end of a transaction are no error.
    assert driver.run([(row(k="1", t="b"), 1)], [(row(k="1", t="a"), -1)]) == {
        ("1", "a"): -1,
        ("1", "b"): 1,
    }
    assert driver.run([(row(k="1", t="b"), -1)]) == {("1", "b"): -1}
    assert driver.store.dump()["r.values"]


def test_single_of_no_row_is_null():
    driver = Driver(node_of((), [agg("single", "n"), agg("single", "t", where="b")]))
    assert driver.run() == {(None, None): 1}
    assert driver.run([(row(n="1.0", t="x", b="f"), 1)]) == {(None, None): -1, ("1.0", None): 1}


@pytest.mark.parametrize("extra", [{"t": "a"}, {"t": "b"}, {}])
def test_single_of_two_rows_is_an_error_of_the_row(extra):
    driver = Driver(node_of((0,), [agg("single", "t")]))
    driver.run([(row(k="1", t="a"), 1)])
    driver.reduce.apply(0, batch([(row(k="1", **extra), 1)]))
    with pytest.raises(RowError) as raised:
        driver.reduce.time_end(1)
    assert raised.value.code == "21000"
    assert "more than one row returned by a subquery" in str(raised.value)


@pytest.mark.parametrize(
    ("function", "column", "value"),
    [
        ("sum", "f8", "1.7e308"),
        ("sum", "f8", "-1.7e308"),
        ("avg", "f8", "1.7e308"),
        ("sum", "f4", "3e38"),
        ("sum", "i8", "9223372036854775807"),
        ("sum", "n", "9" + "0" * 131071),
    ],
)
def test_a_sum_out_of_range_fails_in_the_words_of_postgres(function, column, value, postgres):
    call = agg(function, column)
    driver = Driver(node_of((), [call]))
    kind = {"f8": "float8", "f4": "float4", "i8": "int8", "n": "numeric"}
    given = f"VALUES ('{value}'::{kind[column]}), ('{value}')"
    with psycopg.connect(postgres) as conn:
        try:
            conn.execute(f"SELECT {function}(x) FROM ({given}) v (x)")
            theirs = None
        except psycopg.Error as error:
            theirs = error.sqlstate, error.diag.message_primary
    driver.reduce.apply(0, batch([(row(**{column: value}), 2)]))
    try:
        driver.reduce.time_end(0)
        mine = None
    except RowError as error:
        mine = error.code, error.message
    assert mine == theirs


@pytest.mark.parametrize(
    ("a", "first", "bad"),
    [
        (agg("count_star"), [], [(row(k="1"), -1)]),
        (agg("sum", "n"), [(row(k="1"), 1)], [(row(k="1", n="1"), -1), (row(k="1"), 1)]),
        (agg("sum", "n"), [(row(k="1", n="1"), 2)], [(row(k="1", n="1.0"), -1)]),
        (agg("max", "i4"), [(row(k="1", i4="1"), 2)], [(row(k="1", i4="2"), -1)]),
        (agg("sum", "i4"), [(row(k="1", i4="1"), 1)], [(row(k="1", i4="2"), -1)]),
    ],
)
def test_taking_away_what_was_not_there_is_a_bug(a, first, bad):
    driver = Driver(node_of((0,), [a]))
    driver.run(first)
    driver.reduce.apply(0, batch(bad))
    with pytest.raises(BugError):
        driver.reduce.time_end(1)


def test_batches_of_any_size_leave_the_same_state():
    rng = random.Random(5)
    chosen = [a for a in AGGREGATES if a.function != "remote"]
    rows = [(random_row(rng, specials=True), 1) for _ in range(300)]
    whole, single = Driver(node_of((0,), chosen)), Driver(node_of((0,), chosen))
    whole.run(rows)
    single.run(*[[r] for r in rows])
    assert whole.out == single.out
    assert whole.store.dump() == single.store.dump()


# --- aggregates that show the order of their rows


def together(function, column, *, sql="", where=None):
    """Return an aggregate over common rows of i4, t and b."""
    result = {"i4": 1007, "t": 1009}[column] if sql else IN[NAMES.index(column)].oid
    made = agg(function, column, result=result, where=where, sql=sql)
    return replace(made, row=tuple(map(NAMES.index, ("i4", "t", "b"))))


TOGETHER = [
    together("remote", "i4", sql="array_agg($1)"),
    together("remote", "t", sql="array_agg($1)"),
    together("remote", "t", sql="array_agg($1)", where="b"),
    together("any", "t"),
    together("any", "i4", where="b"),
]


def test_rows_in_common(postgres):
    """Elements of one row stand beside each other, and first values come from the first row."""
    rng = random.Random(9)
    order = 'ORDER BY i4, t COLLATE "C", b'
    firsts = (
        f"(array_agg(t {order}) FILTER (WHERE t IS NOT NULL))[1]",
        f"(array_agg(i4 {order}) FILTER (WHERE b AND i4 IS NOT NULL))[1]",
    )
    remote = RemoteEvaluator(postgres, {})
    driver = Driver(node_of((0,), TOGETHER), remote)
    oracle = Oracle(postgres, driver.node)
    oracle.outs = [
        "k",
        f"array_agg(i4 {order})",
        f"array_agg(t {order})",
        f"array_agg(t {order}) FILTER (WHERE b)",
        *firsts,
    ]
    live = Counter()
    for step in range(6):
        diffs = changes(rng, live, rng.choice([1, 20, 60]), specials=False)
        cut = rng.randint(0, len(diffs))
        driver.run(*[part for part in (diffs[:cut], diffs[cut:]) if part])
        assert driver.out == oracle.rows(live)
        if step == 3:
            driver.reopen()
    kept = driver.store.dump()["r.values"]
    shared = Counter((r[0], *(r[NAMES.index(n)] for n in ("i4", "t", "b"))) for r in live)
    firsts_of = [
        len([k for k in shared if k[2] is not None]),
        len([k for k in shared if k[1] is not None and k[3] == "t"]),
    ]
    assert len(kept) == len(shared) + sum(firsts_of), "rows are kept once for all arrays"
    driver.run([(row, -weight) for row, weight in live.items()])
    assert driver.out == Counter()
    assert not any(driver.store.dump().values())
    oracle.conn.close()
    remote.close()


@pytest.mark.parametrize("a", TOGETHER, ids=lambda a: f"{a.function} {a.filter}")
def test_taking_away_a_row_in_common_that_was_not_there_is_a_bug(postgres, a):
    remote = RemoteEvaluator(postgres, {})
    driver = Driver(node_of((0,), [a, TOGETHER[0]]), remote)
    driver.run([(row(k="1", i4="1", t="a", b="t"), 2)])
    driver.reduce.apply(0, batch([(row(k="1", i4="1", t="b", b="t"), -1)]))
    with pytest.raises(BugError):
        driver.reduce.time_end(1)
    remote.close()
