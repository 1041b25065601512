"""H4, H5, H6: a value has one text, under all settings of database and role.

Every row is updated to itself. If population and stream spelled a value differently, the view would
lose a row and gain another; so the view's rows must stay untouched.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.compared import differs
from tests.waiting import bump, create_marker, settle, wait_for

TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN positive AS numeric(8, 3) CHECK (VALUE > 0);
CREATE TABLE vals (
    id int PRIMARY KEY, i2 int2, i8 int8, n numeric, n2 numeric(38, 18), f4 float4, f8 float8,
    t text, v varchar(20), c char(6), b bytea, d date, ts timestamp, tz timestamptz, tm time,
    tmz timetz, iv interval, u uuid, bo bool, j json, jb jsonb, ai int[], at text[], an numeric[],
    af float8[], atz timestamptz[], aiv interval[], ab bytea[], ad date[], m mood, p positive,
    bi bit(5), vb varbit, ip inet, ci cidr, ma macaddr, ir int4range, tr tstzrange, nr numrange,
    o oid, na name, tv tsvector
);
INSERT INTO vals VALUES
(1, -32768, 9223372036854775807, 1.500, 0.1, 0.1, 0.1::float8 + 0.2, E'a\\tb\\\\c\\nd', 'x ', 'ab',
 '\\x00ff5c', '2024-02-03', '2024-02-03 04:05:06.789', '2024-07-01 12:00+02', '24:00', '01:02:03+05:30',
 '1 mon -2 days 3:04', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', true, '{"a": 1.0 }', '{"a": 1.0}',
 '[0:1]={1,2}', '{"a,b",NULL,"\\""}', '{1.0,1.00,NaN}', '{0.1,-0,Infinity}', '{2024-07-01 12:00+02}',
 '{1 year 2 mons,-00:00:01}', '{"\\\\x5c"}', '{2024-02-03,-infinity}', 'happy', 1.250, '10101', '1', '10.0.0.1/8',
 '10.0.0.0/8', '08:00:2b:01:02:03', '[1,5)', '[2024-01-01 00:00+00,2024-06-01 00:00+02)', '(1.0,2.50]',
 4294967295, 'nm', 'a fat cat'),
(2, 0, -1, 'NaN', -0.000000000000000001, '-0', '-0', '', '', '', '', '4714-11-24 BC',
 '294276-12-31 23:59:59', 'infinity', '00:00', '23:59:59.999999-15:59', '-1 year', NULL, false, 'null', 'null',
 '{}', '{}', '{}', '{}', '{infinity}', '{}', '{}', '{}', 'sad', 0.001, B'00000', '', '::1', '::/0',
 '00:00:00:00:00:00', 'empty', '(,)', 'empty', 0, '', ''),
(3, NULL, 7, 1e-20, 99999999999999999999.000000000000000001, '1e-45', 'NaN', 'äöü€😀', 'é', 'x  ', '\\x5c5c',
 'infinity', '-infinity', '4714-11-24 00:00:00+00 BC', '12:34:56.000001', '00:00+00', '178000000 years', NULL, NULL,
 '[1, 2 ]', '[]', NULL, NULL, '{1e100}', '{NaN,1e308,4.9e-324}', '{-infinity}', NULL, NULL, '{infinity}', 'ok', NULL,
 NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
(4, 1, 1, 123456789012345678901234567890.1234567890, 0, 3.4028235e38, 2.2250738585072014e-308, 'T', 'NULL', '\\N',
 '\\xdeadbeef', '0001-01-01', '0001-01-01 BC', '1900-01-01 00:00:00+00', '00:00:00.1', '12:00+00', '0', NULL, NULL,
 '"x"', '"x"', '{{1,2},{3,4}}', '{{a,b},{c,d}}', NULL, NULL, NULL, '{-1 days +01:00:00}', NULL, NULL, NULL, NULL,
 NULL, NULL, '1.2.3.4', NULL, NULL, '(,5)', NULL, NULL, NULL, NULL, NULL);
"""
SETTINGS = {
    "TimeZone": ("Asia/Kolkata", "America/St_Johns"),
    "DateStyle": ("SQL, DMY", "German"),
    "IntervalStyle": ("sql_standard", "iso_8601"),
    "extra_float_digits": ("-5", "0"),
    "bytea_output": ("escape", "escape"),
    "xmloption": ("document", "content"),
    "array_nulls": ("off", "off"),
    "quote_all_identifiers": ("on", "on"),
    "standard_conforming_strings": ("off", "off"),
    "search_path": ("pg_catalog", "nowhere"),
    "client_encoding": ("LATIN1", "SQL_ASCII"),
    "default_transaction_isolation": ("serializable", "repeatable read"),
}
VIEWS = {
    "every": "SELECT * FROM vals",
    "grouped": "SELECT tz, count(*) AS n, max(f8) AS top, sum(n) AS s FROM vals GROUP BY tz",
}


def connect(dsn: str) -> psycopg.Connection:
    """Open a session whose settings are pinned, so that the test does not change them."""
    pinned = "-c search_path=public -c client_encoding=UTF8 -c standard_conforming_strings=on"
    pinned += " -c extra_float_digits=3 -c default_transaction_isolation=read\\ committed"
    return psycopg.connect(dsn, autocommit=True, prepare_threshold=None, options=pinned)


def change(source: psycopg.Connection, which: int) -> None:
    """Change settings of the database, and of the current role in it; those of the role win."""
    name = source.info.dbname
    for setting, values in SETTINGS.items():
        value = f"'{values[which]}'" if setting != "search_path" else values[which]
        if setting == "DateStyle":
            value = values[which]
        source.execute(f"ALTER DATABASE {name} SET {setting} = {value}")
        source.execute(f"ALTER ROLE CURRENT_USER IN DATABASE {name} SET {setting} = {value}")


def reconnect(source: psycopg.Connection) -> None:
    """End every other session of the database, so that new ones start with the new settings."""
    source.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND application_name LIKE 'headrace %'"
    )


def touched(source: psycopg.Connection) -> list[tuple[object, ...]]:
    return [
        tuple(row)
        for view in ("every", "spark")
        if source.execute("SELECT to_regclass(%s)", (f"public.{view}",)).fetchone()[0]
        for row in source.execute(f"SELECT id, xmin::text, ctid::text FROM {view} ORDER BY id")
    ]


def self_update(source: psycopg.Connection, views: dict[str, str]) -> None:
    """Update rows to themselves, together and singly; the rows of the views must not move."""
    settle(source)
    before = touched(source)
    assert before
    source.execute("UPDATE vals SET id = id")
    for number in range(1, 5):
        source.execute("UPDATE vals SET t = t WHERE id = %s", (number,))
    settle(source)
    assert touched(source) == before
    for name, query in views.items():
        assert not (wrong := differs(source, name, query)), "\n".join([name, *wrong])
    # A deleted row leaves the view: its stored text equals that of the stream.
    with source.transaction():
        source.execute("CREATE TEMP TABLE kept ON COMMIT DROP AS SELECT * FROM vals WHERE id = 2")
        source.execute("DELETE FROM vals WHERE id = 2")
        bump(source)
        source.execute("INSERT INTO vals SELECT * FROM kept")
        number = bump(source)
    wait_for(source, number, 90)
    for name, query in views.items():
        assert not (wrong := differs(source, name, query)), "\n".join([name, *wrong])


def scenario(start_engine, database: str, more: dict[str, str]) -> None:
    with connect(database) as source:
        source.execute(TYPES)
        change(source, 0)
        engine = start_engine(database)
        with connect(engine.dsn) as commander:
            create_marker(source, commander)
            for name, query in VIEWS.items():
                commander.execute(f"CALL headrace.create_view('{name}', $q${query}$q$)")
            for name, query in more.items():
                commander.execute(
                    f"CALL headrace.create_view('{name}', $q${query}$q$,"
                    ' options => \'{"population": "spark"}\')'
                )
        views = VIEWS | more
        self_update(source, views)
        change(source, 1)
        reconnect(source)
        self_update(source, views)


def test_settings_change_before_and_meanwhile(start_engine, database):
    scenario(start_engine, database, {})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_settings_change_around_a_spark_population(start_engine, database):
    scenario(start_engine, database, {"spark": "SELECT * FROM vals"})
