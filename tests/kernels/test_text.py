"""``parse`` and ``render`` against a real Postgres' output and input."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import types as pg
from headrace.kernels import text
from headrace.postgres.settings import PINNED_SETTINGS

NAMES = {
    pg.BOOL: "bool",
    pg.INT2: "int2",
    pg.INT4: "int4",
    pg.INT8: "int8",
    pg.OID: "oid",
    pg.FLOAT4: "float4",
    pg.FLOAT8: "float8",
    pg.DATE: "date",
    pg.TIME: "time",
    pg.TIMESTAMP: "timestamp",
    pg.TIMESTAMPTZ: "timestamptz",
}
STAMP_LEAST, STAMP_END = -211813488000000000, 9223371331200000000
INFINITE = st.sampled_from([-(2**63), 2**63 - 1])
MOMENTS = st.one_of(
    INFINITE,
    st.integers(STAMP_LEAST, STAMP_END - 1),
    st.integers(-(10**15), 10**15),
    st.sampled_from([STAMP_LEAST, STAMP_END - 1, 0, -1, 1]),
)
VALUES = {
    pg.BOOL: st.booleans(),
    pg.INT2: st.integers(-(2**15), 2**15 - 1),
    pg.INT4: st.integers(-(2**31), 2**31 - 1),
    pg.INT8: st.integers(-(2**63), 2**63 - 1),
    pg.OID: st.integers(0, 2**32 - 1),
    pg.FLOAT4: st.floats(width=32),
    pg.FLOAT8: st.floats(),
    pg.DATE: st.one_of(
        st.sampled_from([-(2**31), 2**31 - 1]),
        st.integers(-2451545, 2145031948),
        st.integers(-1000000, 100000),
    ),
    pg.TIME: st.integers(0, 86400000000),
    pg.TIMESTAMP: MOMENTS,
    pg.TIMESTAMPTZ: MOMENTS,
}
BITS = {pg.FLOAT4: "float4send", pg.FLOAT8: "float8send"}


@pytest.fixture(scope="module")
def conn(postgres: str) -> Iterator[psycopg.Connection]:
    options = " ".join(
        f"-c {name}={value.replace(' ', chr(92) + ' ')}"
        for name, value in PINNED_SETTINGS.items()
        if name != "client_encoding"
    )
    with psycopg.connect(postgres, options=options, autocommit=True) as connection:
        yield connection


def same(a: list[object], b: list[object]) -> bool:
    """Return whether the lists are equal; -0.0 differs from 0.0, and NaN equals itself."""
    return [repr(x) for x in a] == [repr(x) for x in b]


@pytest.mark.parametrize("oid", NAMES)
def test_postgres_reads_and_prints_the_same_values(conn, oid):
    @settings(max_examples=50)
    @given(st.lists(st.none() | VALUES[oid], min_size=1, max_size=40))
    def check(values):
        column = pa.array(values, pg.arrow_type(oid))
        rendered = text.render(column, oid)
        rendered.validate(full=True)
        printed = [
            row[0]
            for row in conn.execute(
                f"SELECT v::{NAMES[oid]}::text FROM"
                " unnest(%s::text[]) WITH ORDINALITY AS u(v, i) ORDER BY i",
                [rendered.to_pylist()],
            )
        ]
        if oid == pg.BOOL:  # the cast spells them out, output functions do not
            printed = [v and v[0] for v in printed]
        parsed = text.parse(pa.array(printed, pa.string()), oid)
        parsed.validate(full=True)
        assert parsed.type == pg.arrow_type(oid)
        assert same(parsed.to_pylist(), column.to_pylist())
        assert same(text.parse(rendered, oid).to_pylist(), column.to_pylist())
        if oid not in BITS:
            assert rendered.to_pylist() == printed

    check()


@pytest.mark.parametrize("oid", BITS)
def test_postgres_reads_floats_to_the_last_bit(conn, oid):
    @given(st.lists(VALUES[oid].filter(lambda v: not math.isnan(v)), min_size=1))
    def check(values):
        column = pa.array(values, pg.arrow_type(oid))
        query = f"SELECT {BITS[oid]}(v::{NAMES[oid]}) FROM unnest(%s::text[]) AS u(v)"
        got = conn.execute(query, [text.render(column, oid).to_pylist()]).fetchall()
        width = pg.arrow_type(oid).bit_width // 8
        buffer = column.buffers()[1].to_pybytes()
        want = [buffer[i * width : (i + 1) * width][::-1] for i in range(len(values))]
        assert [row[0] for row in got] == want

    check()


@pytest.mark.parametrize("oid", NAMES)
def test_slices_and_empty_columns(oid):
    @settings(max_examples=40)
    @given(st.lists(st.none() | VALUES[oid], max_size=30), st.data())
    def check(values, data):
        first = data.draw(st.integers(0, len(values)))
        length = data.draw(st.integers(0, len(values) - first))
        column = pa.array(values, pg.arrow_type(oid))
        whole = text.render(column, oid)
        part = text.render(column.slice(first, length), oid)
        assert part.to_pylist() == whole.to_pylist()[first : first + length]
        parsed = text.parse(whole.slice(first, length), oid)
        want = column.to_pylist()[first : first + length]
        assert same(parsed.to_pylist(), want)

    check()


MALFORMED = {
    pg.BOOL: ["", "true", "T", "1"],
    pg.INT2: ["", "-", "+1", "32768", "-32769", "1 ", " 1", "1.0", "0x1", "١"],
    pg.INT4: ["2147483648", "-2147483649"],
    pg.INT8: ["9223372036854775808", "-9223372036854775809", "1" * 20, "1" * 300],
    pg.OID: ["-1", "4294967296"],
    pg.FLOAT4: ["", "1.2.3", "x", "1e"],
    pg.FLOAT8: ["", " ", "--1", "1_0"],
    pg.DATE: [
        *("", "2000", "2000-1-01", "2000-13-01", "2000-02-30", "1900-02-29"),
        *("0000-01-01", "99999999-01-01", "2000-01-01x", "2000-01-01 AD", "infinitx"),
        *("2000-01-01 00:00:00", "5874898-01-01", "4714-11-23 BC", "-2000-01-01"),
    ],
    pg.TIME: ["", "1:00:00", "24:00:01", "25:00:00", "00:60:00", "00:00:00.", "00:00:0"],
    pg.TIMESTAMP: ["2000-01-01", "2000-01-01T00:00:00", "2000-01-01 00:00:00+00"],
    pg.TIMESTAMPTZ: ["2000-01-01 00:00:00", "2000-01-01 00:00:00+01", "+00"],
}
MALFORMED[pg.TIMESTAMP] += ["294277-01-01 00:00:00", "2000-01-01 ", "2000-01-01 00:00"]


@pytest.mark.parametrize("oid", NAMES)
def test_malformed_text_names_the_type_not_the_value(oid):
    for wrong in MALFORMED[oid]:
        with pytest.raises(ValueError, match=f"OID {oid}$") as raised:
            text.parse(pa.array([None, wrong], pa.string()), oid)
        assert not wrong or f"'{wrong}'" not in str(raised.value)


@given(st.binary(max_size=40), st.sampled_from(sorted(NAMES)))
def test_any_bytes_parse_or_raise_cleanly(content, oid):
    offsets = pa.py_buffer(b"\0\0\0\0" + len(content).to_bytes(4, "little"))
    column = pa.StringArray.from_buffers(1, offsets, pa.py_buffer(content))
    with contextlib.suppress(ValueError):
        text.parse(column, oid)


def test_values_out_of_range_are_not_rendered():
    for oid, wrong in ((pg.DATE, -2451546), (pg.TIME, -1), (pg.TIMESTAMP, STAMP_END)):
        with pytest.raises(ValueError, match="out of range"):
            text.render(pa.array([wrong], pg.arrow_type(oid)), oid)


def test_text_types_pass_through():
    column = pa.array(["1.00", None])
    assert text.parse(column, pg.NUMERIC) is column
    assert text.render(column, pg.TEXT) is column
