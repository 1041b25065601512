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
from headrace.kernels import copytext, decimals, numeric, rows, structures, text
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
"""Arrays that IN lists may become."""


@pytest.fixture(scope="module")
def conn(postgres: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres, autocommit=True) as connection:
        for name, value in PINNED_SETTINGS.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.execute(FUNCTIONS)
        yield connection


def oids(conn) -> dict[str, int]:
    """Return the OIDs of Postgres' types, an array by the name of its element and ``[]``."""
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
    """Return the columns of a query, as text that Postgres prints."""
    with conn.cursor().copy(f"COPY ({query}) TO STDOUT") as copy:
        content = b"".join(bytes(piece) for piece in copy)
    return copytext.split(content, count)


def grouped(conn, name: str) -> tuple[list[int], pa.StringArray]:
    """Return the group number of each value, and the values; in their order if they have one."""
    draw(conn, name)
    query = (
        "SELECT g.n, k.v FROM k JOIN (SELECT row_number() OVER () AS n, v FROM k GROUP BY v) g"
        " ON g.v IS NOT DISTINCT FROM k.v"
        if DOMAINS[name].hashed
        else "SELECT dense_rank() OVER (ORDER BY v), v FROM k ORDER BY v"
    )
    groups, values = copied(conn, query, 2)
    return text.parse(groups, INT8).to_pylist(), values


def check_equal(groups, keys, shown) -> None:
    """Check that keys are equal exactly where groups are, and that none is a prefix of another."""
    by_group: dict[int, int] = {}
    by_key: dict[bytes, int] = {}
    for i, (group, key) in enumerate(zip(groups, keys, strict=True)):
        first = by_group.setdefault(group, i)
        assert keys[first] == key, f"equal values, two keys: {shown[first]!r}, {shown[i]!r}"
        first = by_key.setdefault(key, i)
        assert groups[first] == group, f"one key, different: {shown[first]!r}, {shown[i]!r}"
    for key, following in itertools.pairwise(sorted(by_key)):
        assert not following.startswith(key)


@pytest.mark.parametrize("name", DOMAINS)
def test_keys_are_equal_where_values_are(conn, name):
    oid = oids(conn)[name]
    groups, texts = grouped(conn, name)
    keys = rows.encode_keys([text.parse(texts, oid)], [oid], nulls=True)
    assert len(set(groups)) > 1
    check_equal(groups, keys, texts.to_pylist())
    if key_types.order_native(oid):
        for i, key in enumerate(keys[1:]):
            assert keys[i] <= key, f"wrong order: {texts[i]!r}, {texts[i + 1]!r}"


ROWS = {
    "(1700,1186,1042,701,3802,25,1187)": (
        "n numeric, i interval, c char(4), f float8, j jsonb, t text, s interval[]",
        "pg_temp.pick('1', '1.0', NULL)::numeric, pg_temp.pick('1 mon', '30 days', '1 mon 1 day')::interval,"
        " pg_temp.pick('a', 'a  ', '')::char(4), pg_temp.pick('0', '-0')::float8,"
        " pg_temp.pick('[1.0]', '[1]')::jsonb, pg_temp.pick('', 'a\"b', E'\\\\', ',', NULL, '(', ' '),"
        " pg_temp.pick('{1 day}', '{24:00}', '{1 day,NULL}', '{}', NULL)::interval[]",
    ),
    "(25,(1700,25),[(1700,25)])": (
        "a int, b pg_temp.inner_, c pg_temp.inner_[]",
        "pg_temp.n(0, 1)::int, ROW(pg_temp.pick('1', '1.0', NULL)::numeric, pg_temp.word())::pg_temp.inner_,"
        " CASE i % 4 WHEN 0 THEN NULL ELSE ARRAY[ROW(pg_temp.pick('2', '2.0')::numeric,"
        " pg_temp.pick('{', '\"', ''))::pg_temp.inner_, NULL] END",
    ),
}  # fmt: skip
"""Rows by their form: the types of the columns, and random values of these."""


@pytest.mark.parametrize("form", ROWS)
def test_keys_of_rows_are_equal_where_values_are(conn, form):
    declared, values = ROWS[form]
    conn.execute(
        "SELECT setseed(0.5); DROP TABLE IF EXISTS pg_temp.k;"
        " DROP TYPE IF EXISTS pg_temp.whole, pg_temp.inner_;"
        " CREATE TYPE pg_temp.inner_ AS (n numeric, t text);"
        f" CREATE TYPE pg_temp.whole AS ({declared}); CREATE TEMP TABLE k (v pg_temp.whole);"
        f" INSERT INTO k SELECT ROW({values})::pg_temp.whole FROM generate_series(1, {VALUES}) i"
    )
    query = "SELECT dense_rank() OVER (ORDER BY v), v FROM k"
    groups, texts = copied(conn, query, 2)
    content, starts = structures.contents(texts, form, rows.encode_keys)
    keys = [bytes(content[a:b]) for a, b in itertools.pairwise(starts.tolist())]
    found = text.parse(groups, INT8).to_pylist()
    assert 1 < len(set(found)) < VALUES
    check_equal(found, keys, texts.to_pylist())


@pytest.mark.parametrize("wrong", ["", "(", "1", "(1", "(1)", "(1,2,3)", '(1,"2)', "(1,2)x"])
def test_a_malformed_row_is_refused(wrong):
    with pytest.raises(ValueError, match="malformed"):
        structures.contents(pa.array([wrong]), "(25,25)", rows.encode_keys)


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
