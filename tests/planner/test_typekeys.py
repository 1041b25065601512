"""Keys decide equality as Postgres does, for every type that may be a key.

Per type all pairs of odd values: equal in Postgres exactly if their canonical keys are.
"""

from __future__ import annotations

import psycopg
import pyarrow as pa
import pytest

from headrace.kernels import rows, text
from headrace.planner.analyse.catalog import Catalog
from headrace.planner.scalars.typekeys import is_key
from headrace.postgres.settings import PINNED_SETTINGS
from tests.differential.expressions import DDL, VALUES

MORE: dict[str, list[str]] = {
    "jsonb": [
        '"\\"1.00"', '"\\"1.0"', '{"a": "x.00"}', '{"a": "x.0"}', "[1.50, 1.05]", "[1.5, 1.05]",
        "[1.5, 1.050]", "0", "0.0", "-0.0", "1.000000000000000000001", "[]", "[[]]", "null",
        '"null"', "1e400", '{"b": 1, "a": 2.0}', '{"a": 2, "b": 1}', "10", "100.0", '"é.10"',
    ],
    "numeric[]": ["{NaN}", "{Infinity,1.0}", "{Infinity,1}", "{{1.0,2},{3,4}}", "{{1,2},{3,4.00}}"],
    "float8[]": ["{0}", "{-0}", "{-0,1}", "{0,1}", "{-0.5}", "{NaN}", "{1e-05,-0}", "{1e-05,0}"],
    "float4[]": ["{0}", "{-0}", "{0.1}"],
    "numrange[]": ['{"[1,2.0)"}', '{"[1.0,2)"}', "{empty}"],
    "nummultirange": ["{[1,2.0)}", "{[1.0,2)}", "{}", "{[1,2),[3.10,4]}", "{[1,2),[3.1,4]}"],
    "mood[]": ["{}", "{sad,NULL}", "{sad}"],
    "inet[]": ["{10.0.0.1,10.0.0.1/32}", "{10.0.0.1/32,10.0.0.1}"],
    "money": ["1.00", "1", "-1"],
    "tid": ["(0,1)", "(0,2)"],
    "xid": ["1", "4294967295"],
    "tsrange": ["[2000-01-01,2000-01-02)", "[2000-01-01 00:00,2000-01-02 00:00)", "empty"],
    "daterange": ["[2000-01-01,2000-01-02)", "[2000-01-01,2000-01-01]", "(,)"],
    "tsrange[]": ['{"[2000-01-01,2000-01-02)"}'],
    "oid": ["0", "4294967295"],
    "time[]": ["{00:00,24:00}", "{00:00:00,24:00}"],
    "timetz[]": ["{12:00+02}", "{11:00+01}"],
    "span_multirange": ["{[a,b]}", "{}"],
}  # fmt: skip


@pytest.fixture(scope="module")
def conn(databases):
    name = databases.take()
    dsn = psycopg.conninfo.make_conninfo(databases.server, dbname=name)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(DDL)
        for setting, value in PINNED_SETTINGS.items():
            if setting != "search_path":
                conn.execute("SELECT set_config(%s, %s, false)", (setting, value))
        yield conn
    databases.give_back(name)


def types(conn) -> dict[str, list[str]]:
    declared = conn.execute(
        "SELECT attname, format_type(atttypid, -1) FROM pg_attribute"
        " WHERE attrelid = 't'::regclass AND attnum > 0 AND NOT attisdropped"
    ).fetchall()
    found = {kind: list(values) for kind, values in MORE.items()}
    for column, kind in declared:
        found.setdefault(kind, []).extend(VALUES.get(column, []))
    return found


NO_EQUALITY = {"json", "point"}
NOT_YET = {"comp", "holder", "comp[]"}  # a numeric inside of a row


def test_equal_keys_are_equal_values(conn):
    refused = set()
    for kind, values in types(conn).items():
        row = conn.execute("SELECT %s::regtype::oid", (kind,)).fetchone()
        catalog = Catalog(conn)
        oid = catalog.types.base(row[0])
        if not is_key(catalog, oid, catalog.types[oid].collation):
            refused.add(kind)
            continue
        listed = ", ".join(f"{lit(v)}::{kind}" for v in values)
        shown = conn.execute(f"SELECT {listed}").pgresult
        texts = [shown.get_value(0, i).decode() for i in range(len(values))]
        column = text.parse(pa.array(texts, pa.string()), oid)
        keys = rows.encode_keys([column], [oid], nulls=True)
        for i, a in enumerate(values):
            tests = ", ".join(f"{lit(a)}::{kind} = {lit(b)}::{kind}" for b in values)
            equal = conn.execute(f"SELECT {tests}").fetchone()
            for j, same in enumerate(equal):
                assert (keys[i] == keys[j]) == same, (kind, a, values[j])
    assert refused == NO_EQUALITY | NOT_YET


def lit(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def test_rows_of_plain_columns_are_keys(conn):
    conn.execute("CREATE TYPE plain AS (a int, b text, c mood, d date[])")
    conn.execute("CREATE TYPE nested AS (p plain, s span)")
    catalog = Catalog(conn)
    for kind in ("plain", "nested", "nested[]"):
        row = conn.execute("SELECT %s::regtype::oid", (kind,)).fetchone()
        assert is_key(catalog, row[0], 0), kind
