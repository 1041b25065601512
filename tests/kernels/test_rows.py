"""Row identity and canonical keys; the order and equality of keys are Postgres' own."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import types as pg
from headrace.kernels import copytext, keys, packed, rows, text
from headrace.state.map import keygroups

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
KINDS = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): TEXTS | TEXTS.map(lambda s: s * 50),
    pa.binary(): st.binary(max_size=200),
}


@st.composite
def tables(draw) -> list[pa.Array]:
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=20))
    n = draw(st.integers(0, 12))
    whole = [
        pa.array(draw(st.lists(st.none() | KINDS[k], min_size=n, max_size=n)), k) for k in kinds
    ]
    first = draw(st.integers(0, n))
    length = draw(st.integers(0, n - first))
    return [column.slice(first, length) for column in whole]


@given(tables())
def test_rows_round_trip(columns):
    encoded = rows.pack_rows(columns)
    assert len(encoded) == len(columns[0])
    decoded = rows.decode_rows(encoded, [c.type for c in columns])
    for got, want in zip(decoded, columns, strict=True):
        got.validate(full=True)
        assert got.type == want.type
        assert repr(got.to_pylist()) == repr(want.to_pylist())
    assert rows.pack_rows(decoded).strings() == encoded.strings()


@given(tables())
def test_rows_are_equal_exactly_when_their_values_are(columns):
    encoded = rows.pack_rows(columns).strings()
    values = list(zip(*(map(repr, c.to_pylist()) for c in columns), strict=True))
    assert len(set(encoded)) == len(set(values))


@st.composite
def batches(draw) -> tuple[pa.RecordBatch, rows.Layout]:
    """A slice of a diff batch; the layout is of a batch with other names."""
    columns = draw(tables())
    count = len(columns[0])
    weights = draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=count, max_size=count))
    columns = [*columns, pa.array(weights, pa.int64())]
    names = [f"c{place}" for place in range(len(columns))]
    whole = pa.RecordBatch.from_arrays(columns, names)
    types = whole.schema.types[:-1]
    named = pa.schema([pa.field(f"d{n}", kind) for n, kind in enumerate(whole.schema.types)])
    first = draw(st.integers(0, count))
    return whole.slice(first), rows.Layout(types, named)


@given(tables())
def test_rows_are_those_of_the_reference(columns):
    assert rows.pack_rows(columns).strings() == rows._pack(columns).strings()


@given(batches())
def test_a_batch_is_packed_and_unpacked_as_by_the_reference(given_):
    batch, layout = given_
    encoded, weights = rows.pack_batch(batch, layout)
    assert encoded.strings() == rows._pack(batch.columns[:-1]).strings()
    assert weights.tolist() == batch.columns[-1].to_pylist()
    again = rows.unpack_batch(encoded, layout, weights)
    again.validate(full=True)
    assert again.schema.equals(layout.schema)
    assert repr(again.to_pydict().values()) == repr(batch.to_pydict().values())
    relabelled = rows.relabel(batch, layout.schema)
    assert repr(relabelled.to_pydict()) == repr(again.to_pydict())


@given(batches(), batches(), st.data())
def test_parts_in_any_order_are_those_of_the_reference(left, right, data):
    encoded = [rows.pack_batch(*side)[0] for side in (left, right)]
    count = data.draw(st.integers(0, 8))
    orders = [
        np.array(
            data.draw(st.lists(st.integers(-1, len(some) - 1), min_size=count, max_size=count))
        )
        for some in encoded
    ]
    parts = [
        (some, layout, order.astype(np.int64))
        for some, (_, layout), order in zip(encoded, (left, right), orders, strict=True)
    ]
    types = [kind for _, layout in (left, right) for kind in layout.types]
    schema = pa.schema([pa.field(f"p{n}", kind) for n, kind in enumerate([*types, pa.int64()])])
    weights = np.arange(count)
    found = rows.unpack_parts(parts, schema, weights)
    found.validate(full=True)
    assert repr(found.to_pydict()) == repr(rows._unpack_parts(parts, schema, weights).to_pydict())


def test_parts_that_do_not_fit_are_refused():
    layout = rows.Layout([pa.int32()], pa.schema([("a", pa.int32()), ("w", pa.int64())]))
    encoded = rows.pack_rows([pa.array([1, 2], pa.int32())])
    with pytest.raises(ValueError, match="differ in number"):
        rows.unpack_batch(encoded, layout, np.ones(1, np.int64))
    for beyond in (2, -2):
        order = np.array([0, beyond])
        with pytest.raises(IndexError, match="beyond the rows"):
            rows.unpack_parts(((encoded, layout, order),), layout.schema, np.ones(2, np.int64))


def test_a_batch_of_other_types_is_packed_by_its_own():
    layout = rows.Layout([pa.int32()], pa.schema([("a", pa.int32()), ("w", pa.int64())]))
    batch = pa.RecordBatch.from_arrays([pa.array(["x"]), pa.array([3])], ["a", "w"])
    encoded, weights = rows.pack_batch(batch, layout)
    assert encoded.strings() == [b"\0\1x"]
    assert weights.tolist() == [3]


@given(
    st.one_of(
        st.tuples(st.just(pa.int64()), st.lists(st.none() | KINDS[pa.int64()], max_size=80)),
        st.tuples(st.just(pa.float64()), st.lists(st.none() | KINDS[pa.float64()], max_size=80)),
        st.tuples(st.just(pa.string()), st.lists(st.none() | TEXTS, max_size=80)),
        st.tuples(st.just(pa.bool_()), st.lists(st.none() | st.booleans(), max_size=8)),
    )
)
def test_an_array_of_values_is_arrow_s_own(given_):
    kind, values = given_
    found = rows.array_of(values, kind)
    found.validate(full=True)
    assert found.type == kind
    assert repr(found.to_pylist()) == repr(pa.array(values, kind).to_pylist())


def test_values_that_do_not_fit_raise():
    with pytest.raises((OverflowError, pa.ArrowInvalid)):
        rows.array_of([1, 2**63], pa.int64())


@pytest.mark.skipif(not rows.__file__.endswith(".so"), reason="Arrow would make two arrays of it")
def test_texts_beyond_the_offsets_of_an_array_are_refused():
    one = "x" * 2**26
    with pytest.raises(ValueError, match="too many bytes"):
        rows.array_of([one] * 32, pa.string())


@given(tables())
def test_keys_are_those_of_the_reference(columns):
    texts = {pa.string(): (pg.TEXT, pg.BPCHAR), pa.binary(): (pg.BYTEA,)}
    for choice in range(2):
        oids = [(texts.get(column.type, (pg.INT8,)) * 2)[choice] for column in columns]
        padded = [oid == pg.BPCHAR for oid in oids]
        expected = keys._pack(columns, [None] * len(columns), padded, len(columns[0]))
        assert rows.pack_keys(columns, oids).strings() == expected.strings()


def test_large_batches_are_packed_without_the_interpreter_lock():
    count = 5000
    columns = [
        pa.array([None if n % 7 == 0 else n for n in range(count)], pa.int32()),
        pa.array([None if n % 5 == 0 else "x" * (n % 300) for n in range(count)]),
        pa.array([n % 3 == 0 for n in range(count)]),
    ]
    encoded = rows.pack_rows(columns)
    assert encoded.strings() == rows._pack(columns).strings()
    for got, want in zip(
        rows.decode_rows(encoded, [c.type for c in columns]), columns, strict=True
    ):
        assert got.equals(want)
    oids = [pg.INT4, pg.TEXT, pg.BOOL]
    expected = keys._pack(columns, [None] * 3, [False] * 3, count)
    assert rows.pack_keys(columns, oids).strings() == expected.strings()


def test_every_nan_is_one_row_but_zeros_differ():
    nans = [struct.unpack("<d", b)[0] for b in (b"\1\0\0\0\0\0\xf0\x7f", b"\xff" * 8)]
    column = pa.array(np.array([math.nan, *nans, -0.0, 0.0]))
    assert len(set(rows.pack_rows([column]).strings())) == 3
    assert len(set(rows.pack_rows([column.cast(pa.float32())]).strings())) == 3


def test_numeric_scale_is_part_of_a_row_but_not_of_a_key():
    column = pa.array(["1.0", "1.00", "1"])
    assert len(set(rows.pack_rows([column]).strings())) == 3
    assert len(set(rows.encode_keys([column], [pg.NUMERIC], nulls=True))) == 1


@given(st.lists(st.binary(max_size=30), max_size=5), st.data())
def test_corrupt_rows_raise(corrupt, data):
    kinds = data.draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=10))
    try:
        columns = rows.decode_rows(packed.pack(corrupt), kinds)
    except ValueError:
        return
    assert len(rows.pack_rows(columns).strings()) == len(corrupt)


def test_rows_without_columns_are_refused():
    with pytest.raises(ValueError, match="without columns"):
        rows.pack_rows([]).strings()
    with pytest.raises(TypeError, match="no kernel"):
        rows.pack_rows([pa.array([1], pa.uint64())]).strings()


@pytest.fixture(scope="module")
def conn(postgres: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("SET timezone = 'UTC'; SET intervalstyle = 'postgres'")
        connection.execute("SET datestyle = 'ISO, YMD'; SET extra_float_digits = 3")
        yield connection


NUMERICS = st.one_of(
    st.decimals(allow_nan=True, allow_infinity=True).map(str),
    st.decimals(-1000, 1000, places=2).map(str),
    st.integers(-(10**40), 10**40).map(str),
    st.sampled_from(["0.00", "-0", "1e200", "-1e200", "1e-300", "-1e-300", "NaN"]),
    st.sampled_from(["1e127", "1e126", "1e125", "1e-127", "1e-128", "1e-129", "99"]),
).filter(
    lambda v: (
        "sNaN" not in v and v != "-NaN" and not ("E" in v and abs(int(v.split("E")[1])) > 9000)
    )
)
INTERVALS = st.builds(
    "{} mons {} days {} secs {} us".format,
    st.integers(-50, 50) | st.integers(-(2**30), 2**30),
    st.integers(-1000, 1000) | st.integers(-(2**30), 2**30),
    st.integers(-200000, 200000),
    st.integers(-(10**6), 10**6) | st.integers(-(2**62), 2**62),
)
STRINGS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6
) | st.text(alphabet="ab \x01\x02", max_size=4)
FLOATS = st.sampled_from([0.0, -0.0, 1.5, -1.5, math.nan, math.inf, -math.inf])
KEYS = {
    "int2": (pg.INT2, st.integers(-(2**15), 2**15 - 1) | st.integers(-2, 2)),
    "int4": (pg.INT4, st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 2)),
    "int8": (pg.INT8, st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2)),
    "oid": (pg.OID, st.integers(0, 2**32 - 1)),
    "bool": (pg.BOOL, st.booleans()),
    "float4": (pg.FLOAT4, FLOATS | st.floats(width=32)),
    "float8": (pg.FLOAT8, FLOATS | st.floats()),
    "numeric": (pg.NUMERIC, NUMERICS),
    "interval": (pg.INTERVAL, INTERVALS),
    "date": (pg.DATE, st.dates().map(str) | st.sampled_from(["infinity", "-infinity"])),
    "timestamp": (pg.TIMESTAMP, st.datetimes().map(str) | st.just("infinity")),
    "time": (pg.TIME, st.times().map(str)),
    'text COLLATE "C"': (pg.TEXT, STRINGS),
    'char(6) COLLATE "C"': (pg.BPCHAR, STRINGS),
    "bytea": (pg.BYTEA, st.binary(max_size=5).map(lambda b: "\\x" + b.hex())),
    "uuid": (pg.UUID, st.uuids().map(str)),
}


def ordered(conn, declared: list[str], values: list[list[object]]):
    """Return rows as Postgres stores them, in its order, each with its group of equals."""
    names = [f"c{i}" for i in range(len(declared))]
    columns = ", ".join(f"{n} {t}" for n, t in zip(names, declared, strict=True))
    conn.execute("DROP TABLE IF EXISTS pg_temp.k")
    conn.execute(f"CREATE TEMP TABLE k ({columns})")
    with conn.cursor().copy("COPY k FROM STDIN") as copy:
        for row in values:
            copy.write_row([None if v is None else str(v) for v in row])
    key = ", ".join(names)
    query = f"SELECT dense_rank() OVER (ORDER BY {key}), {key} FROM k ORDER BY {key}"
    with conn.cursor().copy(f"COPY ({query}) TO STDOUT") as copy:
        content = b"".join(bytes(piece) for piece in copy)
    columns = copytext.split(content, len(names) + 1)
    return text.parse(columns[0], pg.INT8).to_pylist(), columns[1:]


def check_keys(conn, declared, oids, values):
    ranks, columns = ordered(conn, declared, values)
    typed = [text.parse(c, oid) for c, oid in zip(columns, oids, strict=True)]
    keys = rows.encode_keys(typed, oids, nulls=True)
    distinct = sorted(set(keys))
    numbers = {key: i for i, key in enumerate(distinct, 1)}
    assert [numbers[key] for key in keys] == ranks
    for key, following in itertools.pairwise(distinct):
        assert not following.startswith(key)
    without = rows.encode_keys(typed, oids, nulls=False)
    for i, key in enumerate(without):
        holds_null = any(c[i].as_py() is None for c in columns)
        assert key == (None if holds_null else keys[i])


@pytest.mark.parametrize("name", KEYS)
def test_keys_sort_and_compare_as_in_postgres(conn, name):
    oid, values = KEYS[name]

    @settings(max_examples=30)
    @given(st.lists(st.tuples(st.none() | values), min_size=1, max_size=40))
    def check(drawn):
        check_keys(conn, [name], [oid], drawn)

    check()


def test_keys_of_many_columns_sort_as_in_postgres(conn):
    @settings(max_examples=30)
    @given(st.data())
    def check(data):
        names = data.draw(st.lists(st.sampled_from(list(KEYS)), min_size=2, max_size=4))
        one = st.tuples(*(st.none() | KEYS[n][1] for n in names))
        drawn = data.draw(st.lists(one, min_size=1, max_size=20))
        check_keys(conn, names, [KEYS[n][0] for n in names], drawn)

    check()


def test_numbers_of_different_width_have_one_key():
    def key(value, oid):
        return rows.encode_keys([pa.array([value], pg.arrow_type(oid))], [oid], nulls=True)

    assert key(7, pg.INT2) == key(7, pg.INT4) == key(7, pg.INT8) == key(7, pg.OID)
    assert key(0.5, pg.FLOAT4) == key(0.5, pg.FLOAT8)


@pytest.mark.parametrize("count", [1, 2, 7, 32, 64, 256, 1000])
@pytest.mark.parametrize(
    ("oid", "values"),
    [
        (pg.INT8, range(20_000)),
        (pg.INT4, range(-(2**31), 2**31 - 1, 214_748)),
        (pg.TEXT, [f"customer-{i:06}" for i in range(20_000)]),
        (pg.NUMERIC, [f"{i}.25" for i in range(20_000)]),
    ],
)
def test_keys_are_divided_evenly_and_by_key_group(count, oid, values):
    made = [*values]
    found = rows.encode_keys([pa.array(made, pg.arrow_type(oid))], [oid], nulls=True)
    numbers = keys.divide(packed.nullable(found), count)
    groups = np.array([key[0] for key in keygroups.physical([*found])])
    sizes = np.bincount(numbers, minlength=count)
    assert len(sizes) == count
    assert sizes.max() < 1.2 * len(made) / count + 6 * math.sqrt(len(made) / count)
    ends = [
        (numbers[groups == group].min(), numbers[groups == group].max())
        for group in sorted(set(groups.tolist()))
    ]
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(ends))
    if count <= 256:
        assert all(least == greatest for least, greatest in ends)


def test_a_key_of_none_is_in_no_part():
    assert keys.divide(packed.nullable([b"x", None]), 1).tolist() == [0, -1]


@pytest.mark.parametrize(
    ("oid", "wrong"),
    [
        *((pg.NUMERIC, v) for v in ("", "-", ".", "1e5", "1.2.3", "x", "-NaN", "1 ")),
        *((pg.INTERVAL, v) for v in ("", "1", "x", "1 xx", "01:02", "1:2:3")),
    ],
)
def test_malformed_keys_raise(oid, wrong):
    with pytest.raises(ValueError, match=f"OID {oid}$"):
        rows.encode_keys([pa.array([wrong])], [oid], nulls=True)


def test_late_minutes_of_an_interval():
    """36 minutes and more are beyond 32 bits in microseconds."""
    values = ["00:35:59", "00:36:00", "00:59:59.999999", "01:00:00", "1 day"]
    keys = rows.encode_keys([pa.array(values)], [pg.INTERVAL], nulls=True)
    assert keys == sorted(set(keys))
    same = rows.encode_keys([pa.array(["-1 days +24:36:00"])], [pg.INTERVAL], nulls=True)
    assert same == [keys[1]]


def test_infinite_intervals_are_the_ends():
    # Postgres 17 has them; the server of this test may not.
    ends = ["-infinity", "-178956970 years -8 mons", "178956970 years 7 mons", "infinity"]
    keys = rows.encode_keys([pa.array(ends)], [pg.INTERVAL], nulls=True)
    assert sorted(set(keys)) == keys
