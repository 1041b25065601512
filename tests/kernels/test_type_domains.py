"""Every parser of a type's text against Postgres, over random values of the type's whole domain.

Keys must be equal where Postgres says that values are equal, and in its order where they have one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from headrace.expressions import kernels, moments
from headrace.expressions import keys as key_types
from headrace.expressions.arrays import elements
from headrace.kernels import copytext, decimals, numeric, rows, text
from headrace.postgres.settings import PINNED_SETTINGS
from headrace.types import INT8, arrow_type
from tests.kernels.domains import DOMAINS, FUNCTIONS

VALUES = 2000
FIXED = (
    "bool", "int2", "int4", "int8", "oid", "float4", "float8", "date", "time", "timestamp", "timestamptz",
)  # fmt: skip
COMPARED = (*FIXED, "numeric", "uuid", "bytea", "text", "varchar", "bpchar")
LISTS = tuple(
    f"{name}[]" for name in COMPARED if name not in ("oid", "float4", "float8", "numeric", "bytea")
)
"""Arrays of which IN lists may be made."""


@pytest.fixture(scope="module")
def conn(postgres: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres, autocommit=True) as connection:
        for name, value in PINNED_SETTINGS.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.execute(FUNCTIONS)
        yield connection


def oids(conn) -> dict[str, int]:
    """OIDs of the types of Postgres, an array by the name of its element and ``[]``."""
    names = conn.execute(
        "SELECT coalesce(e.typname || '[]', t.typname), t.oid FROM pg_type t"
        " LEFT JOIN pg_type e ON e.typarray = t.oid"
        " WHERE t.typtype IN ('b', 'r', 'm') AND t.typnamespace = 'pg_catalog'::regnamespace"
    )
    return dict(names.fetchall())


def draw(conn, name: str) -> None:
    """Put random values of a type into a table ``k``."""
    domain = DOMAINS[name]
    conn.execute("SELECT setseed(0.5)")
    conn.execute("DROP TABLE IF EXISTS pg_temp.k")
    conn.execute(f"CREATE TEMP TABLE k (i int, v {domain.sql})")
    value = domain.draw(conn.info.server_version // 10000)
    conn.execute(f"INSERT INTO k SELECT i, {value} FROM generate_series(1, {VALUES}) i")


def copied(conn, query: str, count: int) -> list[pa.StringArray]:
    """Columns of a query, as text that Postgres prints."""
    with conn.cursor().copy(f"COPY ({query}) TO STDOUT") as copy:
        content = b"".join(bytes(piece) for piece in copy)
    return copytext.split(content, count)


def grouped(conn, name: str) -> tuple[list[int], pa.StringArray]:
    """The number of each value's group, and the values; in their order if they have one."""
    draw(conn, name)
    query = (
        "SELECT g.n, k.v FROM k JOIN (SELECT row_number() OVER () AS n, v FROM k GROUP BY v) g"
        " ON g.v IS NOT DISTINCT FROM k.v"
        if DOMAINS[name].hashed
        else "SELECT dense_rank() OVER (ORDER BY v), v FROM k ORDER BY v"
    )
    groups, values = copied(conn, query, 2)
    return text.parse(groups, INT8).to_pylist(), values


@pytest.mark.parametrize("name", DOMAINS)
def test_keys_are_equal_where_values_are(conn, name):
    oid = oids(conn)[name]
    groups, texts = grouped(conn, name)
    keys = rows.encode_keys([text.parse(texts, oid)], [oid], nulls=True)
    assert len(set(groups)) > 1
    shown = texts.to_pylist()
    by_group: dict[int, int] = {}
    by_key: dict[bytes, int] = {}
    for i, (group, key) in enumerate(zip(groups, keys, strict=True)):
        first = by_group.setdefault(group, i)
        assert keys[first] == key, f"equal values, two keys: {shown[first]!r}, {shown[i]!r}"
        first = by_key.setdefault(key, i)
        assert groups[first] == group, f"one key, different: {shown[first]!r}, {shown[i]!r}"
    for key, following in itertools.pairwise(sorted(by_key)):
        assert not following.startswith(key)
    if key_types.order_native(oid):
        for i, key in enumerate(keys[1:]):
            assert keys[i] <= key, f"wrong order: {shown[i]!r}, {shown[i + 1]!r}"


def test_every_type_that_may_be_a_key_has_a_domain(conn):
    known = {name for name, oid in oids(conn).items() if key_types.key_class(oid) is not None}
    assert known
    assert known <= set(DOMAINS)


@pytest.mark.parametrize("name", FIXED)
def test_values_are_read_and_printed_exactly(conn, name):
    oid = oids(conn)[name]
    draw(conn, name)
    if name not in ("float4", "float8"):
        (texts,) = copied(conn, "SELECT v FROM k", 1)
        assert text.render(text.parse(texts, oid), oid).to_pylist() == texts.to_pylist()
        return
    bits = f"('x' || encode({name}send(v), 'hex'))::bit({arrow_type(oid).bit_width})::bigint"
    texts, wanted = copied(conn, f"SELECT v, {bits} FROM k", 2)
    got = text.parse(texts, oid).to_numpy()
    same_width = got.view(np.uint32 if name == "float4" else np.int64)
    assert same_width.tolist() == text.parse(wanted, INT8).to_pylist()


@pytest.mark.parametrize("name", COMPARED)
def test_neighbours_compare_as_in_postgres(conn, name):
    oid = oids(conn)[name]
    groups, texts = grouped(conn, name)
    values = text.parse(texts, oid)
    equal = [a == b for a, b in itertools.pairwise(groups)]
    first, second = values.slice(0, VALUES - 1), values.slice(1)
    assert kernels.compare("=", first, second, oid).to_pylist() == equal
    assert kernels.compare("<", first, second, oid).to_pylist() == [not e for e in equal]
    assert kernels.compare(">=", second, first, oid).to_pylist() == [True] * (VALUES - 1)


def test_numerics_are_read_exactly(conn):
    draw(conn, "numeric")
    (texts,) = copied(conn, "SELECT v FROM k", 1)
    parsed = numeric.parse(texts)
    small = parsed.kinds == decimals.SMALL
    back = numeric.render(parsed.kinds, parsed.mantissas, parsed.scales)
    for i, shown in enumerate(texts.to_pylist()):
        assert back[i].as_py() == (shown if small[i] else None)
        assert decimals.write(decimals.read(shown)) == shown
    words = {"NaN": decimals.NAN, "Infinity": decimals.PLUS_INF, "-Infinity": decimals.MINUS_INF}
    special = np.array([words.get(t, decimals.BIG) for t in texts.to_pylist()])
    assert (parsed.kinds[~small] == special[~small]).all()
    assert small.any()


def test_intervals_are_read_exactly(conn):
    draw(conn, "interval")
    sent = "SELECT v::text, interval_send(v) FROM k"
    for shown, parts in conn.execute(sent, prepare=False):
        micros, days, months = (
            int.from_bytes(parts[a:b], "big", signed=True) for a, b in ((0, 8), (8, 12), (12, 16))
        )
        found = moments.parse_interval(shown)
        if found is None:  # left to Postgres
            assert "infinity" in shown or -(2**31) in (days, months) or micros == -(2**63)
        else:
            assert (found.months, found.days, found.micros) == (months, days, micros), shown


@pytest.mark.parametrize("name", LISTS)
def test_elements_of_arrays_are_read_exactly(conn, name):
    draw(conn, name)
    query = (
        "SELECT v::text, ARRAY(SELECT CASE WHEN e IS NOT NULL THEN format('%s', e) END"
        " FROM unnest(v) WITH ORDINALITY a(e, n) ORDER BY n)"
        " FROM k WHERE array_ndims(v) = 1 AND array_lower(v, 1) = 1"
    )
    for shown, wanted in conn.execute(query, prepare=False).fetchall():
        assert elements(shown) == wanted, shown
