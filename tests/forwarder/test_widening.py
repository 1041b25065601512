"""A wider type has all values of the old one: Postgres is asked to convert samples."""

from __future__ import annotations

import psycopg
import pytest

from headrace.postgres.widening import widens

WIDER = [
    ("smallint", "int"), ("int", "bigint"), ("int", "numeric"), ("int", "numeric(12,2)"),
    ("bigint", "numeric(19)"), ("real", "double precision"), ("int", "double precision"),
    ("varchar(5)", "varchar(9)"), ("varchar(5)", "text"), ("varchar(5)", "varchar"),
    ("varchar", "text"), ("text", "varchar"), ("char(3)", "char(5)"), ("char(3)", "varchar(3)"),
    ("char(3)", "text"), ("numeric(6,2)", "numeric(8,2)"), ("numeric(6,2)", "numeric"),
    ("numeric(6,2)", "numeric(8,4)"), ("numeric(3,-2)", "numeric(5)"), ("date", "timestamp"),
    ("timestamp(3)", "timestamp"), ("timestamp(2)", "timestamp(4)"), ("time(0)", "time"),
    ("bit(3)", "varbit(3)"), ("varbit(3)", "varbit"), ("int[]", "bigint[]"),
    ("varchar(3)[]", "varchar(7)[]"),
]  # fmt: skip
NARROWER = [
    ("bigint", "int"), ("int", "text"), ("text", "varchar(5)"), ("varchar(9)", "varchar(5)"),
    ("numeric", "numeric(6,2)"), ("numeric(8,2)", "numeric(8,4)"), ("bigint", "numeric(18)"),
    ("numeric(5)", "numeric(3,-2)"), ("double precision", "real"), ("int", "real"),
    ("timestamp", "timestamp(3)"), ("timestamp", "timestamptz"), ("text", "char(5)"),
    ("bit(3)", "bit(5)"), ("int", "int[]"), ("int[]", "int"), ("bigint", "double precision"),
    ("numeric(6,2)", "bigint"), ("json", "jsonb"),
]  # fmt: skip
SAMPLES = {
    "smallint": ["32767", "-32768"], "int": ["2147483647", "-2147483648"],
    "bigint": ["9223372036854775807"], "real": ["0.1", "3.4e38", "NaN"],
    "varchar(5)": ["abcde", "a b  "], "varchar": ["abc"], "text": ["abc"],
    "char(3)": ["abc", "a"], "numeric(6,2)": ["9999.99", "0.01"], "numeric(3,-2)": ["99900"],
    "date": ["2024-02-29", "infinity", "4713-01-01 BC"], "timestamp(3)": ["2024-02-29 01:02:03.123"],
    "timestamp(2)": ["2024-02-29 01:02:03.12"], "time(0)": ["24:00:00"], "bit(3)": ["101"],
    "varbit(3)": ["1"], "int[]": ["{2147483647,NULL}"], "varchar(3)[]": ["{abc,d}"],
}  # fmt: skip


@pytest.fixture
def kind(database):
    with psycopg.connect(database, autocommit=True) as conn:

        def read(name: str) -> tuple[int, int]:
            conn.execute(f"DROP TABLE IF EXISTS k; CREATE TABLE k (v {name})")
            return conn.execute(
                "SELECT atttypid::int, atttypmod FROM pg_attribute"
                " WHERE attrelid = 'k'::regclass AND attnum = 1"
            ).fetchone()

        read.conn = conn
        yield read


def test_wider_types_keep_every_value(kind):
    for old, new in WIDER:
        assert widens(kind(old), kind(new)), (old, new)
        for sample in SAMPLES[old]:
            same = kind.conn.execute(
                f"SELECT (v::{new})::{old} IS NOT DISTINCT FROM v FROM (SELECT '{sample}'::{old}) x (v)"
            ).fetchone()
            assert same == (True,), (old, new, sample)


def test_narrower_and_other_types_are_not_wider(kind):
    for old, new in NARROWER:
        assert not widens(kind(old), kind(new)), (old, new)
