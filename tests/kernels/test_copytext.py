"""COPY text and array literals against a real Postgres."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels import copytext

LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
SPECIAL = st.text(alphabet='\\\t\n\r\b\f\vN"{},. a', max_size=6)
TEXTS = st.none() | st.text(LETTERS, max_size=10) | SPECIAL


@pytest.fixture(scope="module")
def conn(postgres: str) -> Iterator[psycopg.Connection]:
    # An open transaction would block slot creation in other tests.
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE TEMP TABLE t (i int, a text, b text)")
        yield connection


@given(values=st.lists(st.tuples(TEXTS, TEXTS), max_size=20))
def test_postgres_reads_and_writes_it(conn, values):
    columns = [pa.array([v[i] for v in values], pa.string()) for i in (0, 1)]
    numbers = pa.array([str(i) for i in range(len(values))], pa.string())
    joined = copytext.join([numbers, *columns])
    conn.execute("TRUNCATE t")
    with conn.cursor().copy("COPY t FROM STDIN") as copy:
        copy.write(joined)
    stored = conn.execute("SELECT a, b FROM t ORDER BY i").fetchall()
    assert stored == values
    with conn.cursor().copy("COPY (SELECT a, b FROM t ORDER BY i) TO STDOUT") as copy:
        sent = b"".join(bytes(piece) for piece in copy)
    back = copytext.split(sent, 2)
    for got, want in zip(back, columns, strict=True):
        got.validate(full=True)
        assert got.equals(want)


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=20), st.data())
def test_join_and_split_are_inverse_also_for_slices(values, data):
    first = data.draw(st.integers(0, len(values)))
    columns = [pa.array([v[i] for v in values], pa.string())[first:] for i in range(3)]
    back = copytext.split(copytext.join(columns), 3)
    assert [c.to_pylist() for c in back] == [c.to_pylist() for c in columns]


@pytest.mark.parametrize(
    "wrong",
    [b"a", b"a\n", b"a\tb\tc\n", b"a\tb\nc\n", b"\n\n", b"a\\q\tb\n", b"a\tb\\\n", b"\\x41\tb\n"],
)
def test_wrong_lines_raise(wrong):
    with pytest.raises(ValueError, match="COPY data"):
        copytext.split(wrong, 2)


@given(st.binary(max_size=60), st.integers(1, 4))
def test_any_bytes_split_or_raise_cleanly(content, ncols):
    try:
        columns = copytext.split(content, ncols)
    except ValueError:
        return
    assert {len(c) for c in columns} == {content.count(b"\n")}


def test_nothing():
    assert copytext.join([]) == b""
    assert [c.to_pylist() for c in copytext.split(b"", 2)] == [[], []]


@given(values=st.lists(TEXTS, max_size=20))
def test_postgres_reads_array_literals(conn, values):
    column = pa.array([None, *values], pa.string())
    for part, want in ((column, [None, *values]), (column[1:], values)):
        literal = copytext.array_literal(part)
        assert conn.execute("SELECT %s::text[]", [literal]).fetchone() == (want,)


NULLS = st.sampled_from(["NULL", "null", "nUlL", "NULLs", "nul"])
ELEMENTS = st.lists(st.tuples(st.integers(0, 3), TEXTS | NULLS, st.integers(1, 2)), max_size=12)


@given(ELEMENTS)
def test_arrays_of_groups_are_those_that_postgres_prints(conn, values):
    values = sorted(values, key=lambda each: each[0])
    groups = {group: [] for group in range(4)}
    for group, element, weight in values:
        groups[group] += [element] * weight
    printed = [
        conn.execute("SELECT %s::text[]::text", (some,)).fetchone()[0] if some else None
        for some in groups.values()
    ]
    found = copytext.arrays(
        np.array([group for group, *_ in values], np.int64),
        pa.array(["before", *(element for _, element, _ in values)], pa.string())[1:],
        np.array([weight for *_, weight in values], np.int64),
        4,
    )
    found.validate(full=True)
    assert found.to_pylist() == printed
