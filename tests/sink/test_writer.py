"""Exact writing of result tables: every kind of value, weights, and refusals."""

from __future__ import annotations

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from headrace.errors import SinkBlocked, SinkTableError
from headrace.kernels import text
from headrace.postgres import connect
from headrace.sink import table
from headrace.sink.table import ResultTable
from headrace.sink.writer import SINK_SETTINGS, SinkWriter
from headrace.types import Field, diff_batch

VALUES = {
    "boolean": ["t", "f"],
    "smallint": ["-32768", "7"],
    "integer": ["0", "-5"],
    "bigint": ["9223372036854775807", "1"],
    "numeric": ["1.0", "1.00", "NaN", "Infinity", "-0.000", "1e400"],
    "numeric(10,2)": ["1.00", "-3.50"],
    "real": ["0.1", "-0", "0", "NaN", "-Infinity", "1e-40"],
    "double precision": ["0.30000000000000004", "-0", "0", "NaN", "Infinity"],
    "text": ["", "a\tb\n\\c", "NULL", "\\N", "ä\u2028😀", " x ", '"{}"'],
    "varchar(5)": ["ab", "ab "],
    "character(6)": ["ab    ", "      "],
    '"char"': ["a", ""],
    "name": ["n"],
    "bytea": ["\\x", "\\x00ff5c"],
    "date": ["infinity", "-infinity", "4714-11-24 BC", "2024-02-29"],
    "time": ["24:00:00", "00:00:00.000001"],
    "timestamp": ["infinity", "294276-12-31 23:59:59.999999", "0001-01-01 00:00:00 BC"],
    "timestamptz": ["2024-03-31 01:30:00+00", "-infinity"],
    "timetz": ["10:00:00+02", "08:00:00+00"],
    "interval": ["1 mon", "30 days", "-1 days +02:03:00", "1 year 2 mons"],
    "uuid": ["00000000-0000-0000-0000-000000000001"],
    "json": ['{"a": 1}', '{"a":1}', "null"],
    "jsonb": ['{"a": 1}', "null", "[1.0]", "[1.00]"],
    "integer[]": ["{1,NULL,3}", "{}", "[0:1]={1,2}", "{{1},{2}}"],
    "text[]": ['{"a,b","\\"",NULL,""}'],
    "numeric[]": ["{1.0}", "{1.00}"],
    "point": ["(1,2)"],
    "box": ["(2,2),(1,1)"],
    "box[]": ["{(2,2),(1,1);(4,4),(3,3)}"],
    "inet": ["10.0.0.1", "10.0.0.1/24"],
    "bit(3)": ["101"],
    "bit varying": ["", "10"],
    "money": ["$1.00"],
    "int4range": ["[1,5)", "empty"],
    "mood": ["sad", "ok"],
    "pair": ['(1,"x y")', "(,)"],
    "mood[]": ["{sad,ok}"],
}


@pytest.fixture
def conn(catalog, database):
    with psycopg.connect(database, autocommit=True) as setup:
        setup.execute("CREATE TYPE mood AS ENUM ('ok', 'sad')")
        setup.execute("CREATE DOMAIN positive AS int CHECK (VALUE > 0)")
        setup.execute("CREATE TYPE pair AS (a int, b text)")
    made = connect.connect(database, name="test", settings=SINK_SETTINGS | {"lock_timeout": "200"})
    yield made
    made.close()


def make(conn, columns: dict[str, str], name: str = "r") -> ResultTable:
    """Create a result table with these columns and types."""
    selected = ", ".join(f'NULL::{kind} AS "{c}"' for c, kind in columns.items())
    conn.execute("SET search_path = public")
    oid = table.create(conn, "public", name, f"SELECT {selected}")
    conn.execute("RESET search_path")
    fields = tuple(Field(a.name, a.base_oid, a.base_mod) for a in table.attributes(conn, oid))
    return ResultTable(1, "public", name, oid, fields)


def diffs(target: ResultTable, rows: list[tuple[tuple[str | None, ...], int]]) -> pa.RecordBatch:
    columns = [
        text.parse(pa.array([r[0][i] for r in rows], pa.string()), field.oid)
        for i, field in enumerate(target.schema)
    ]
    return diff_batch(target.schema, columns, pa.array([r[1] for r in rows], pa.int64()))


def write(conn, target, rows) -> None:
    with conn.transaction():
        SinkWriter(conn).write(target, diffs(target, rows))


def contents(conn, target) -> list:
    names = ", ".join(f'"{f.name}"::text' for f in target.schema)
    return sorted(conn.execute(f"SELECT {names} FROM public.r").fetchall(), key=repr)


@pytest.mark.parametrize("kind", VALUES)
def test_every_value_is_written_and_found_again(conn, kind):
    target = make(conn, {"v": kind, "n": "integer"})
    values = [*VALUES[kind], None]
    write(conn, target, [((v, "1"), 2) for v in values])
    stored = contents(conn, target)
    as_text = conn.execute(
        f"SELECT array_agg(x::public.{kind}::text) FROM unnest(%s::text[]) x"
        if kind in ("mood", "pair", "mood[]")
        else f"SELECT array_agg(x::{kind}::text) FROM unnest(%s::text[]) x",
        (values,),
    ).fetchone()[0]
    assert stored == sorted([(v, "1") for v in as_text for _ in (0, 1)], key=repr)
    # Each one alone, exactly: no similar value may be deleted instead.
    for value, shown in zip(values, as_text, strict=True):
        before = contents(conn, target)
        write(conn, target, [((value, "1"), -1)])
        after = contents(conn, target)
        before.remove((shown, "1"))
        assert before == after
    write(conn, target, [((v, "1"), -1) for v in values])
    assert contents(conn, target) == []


def test_weights_above_one(conn):
    target = make(conn, {"a": "integer", "b": "text"})
    write(conn, target, [(("1", "x"), 5), ((None, None), 3)])
    write(conn, target, [(("1", "x"), -3), ((None, None), -2), (("2", "y"), 1)])
    assert contents(conn, target) == [("1", "x"), ("1", "x"), ("2", "y"), (None, None)]


def test_only_unhashable_columns(conn):
    target = make(conn, {"j": "json"})
    write(conn, target, [(('{"a": 1}',), 2), (('{"a":1}',), 1)])
    write(conn, target, [(('{"a": 1}',), -1)])
    assert contents(conn, target) == [('{"a": 1}',), ('{"a":1}',)]


def test_strange_names(conn):
    names = {'a"b': "integer", "Ü; --": "text", "__weight": "integer", "k k": "numeric"}
    target = make(conn, {n.replace('"', '""'): k for n, k in names.items()})
    assert [f.name for f in target.schema] == list(names)
    write(conn, target, [(("1", "x", "2", "1.0"), 1)])
    write(conn, target, [(("1", "x", "2", "1.0"), -1)])
    assert conn.execute("SELECT count(*) FROM public.r").fetchone() == (0,)


def test_the_next_table_of_a_name_has_statements_of_its_own(conn, database):
    """Statements prepared for the previous table refer to its types by OID."""
    for _ in range(2):
        target = make(conn, {"v": "public.mood"})
        for _ in range(7):  # psycopg prepares repeated statements
            write(conn, target, [(("sad",), 1)])
            write(conn, target, [(("sad",), -1), (("ok",), 1)])
            write(conn, target, [(("ok",), -1)])
        assert contents(conn, target) == []
        with psycopg.connect(database, autocommit=True) as other:
            # (After its own DROP, psycopg prepares everything again.)
            other.execute("DROP TABLE public.r")
            other.execute("DROP TYPE public.mood")
            other.execute("CREATE TYPE public.mood AS ENUM ('ok', 'sad')")


def test_missing_row_is_noticed_and_nothing_remains(conn):
    target = make(conn, {"a": "numeric"})
    write(conn, target, [(("1.0",), 1)])
    with pytest.raises(SinkTableError, match="another program"):
        write(conn, target, [(("1.00",), -1), (("7",), 1)])
    assert contents(conn, target) == [("1.0",)]


def test_deletes_use_the_index(conn):
    target = make(conn, {"a": "integer", "b": "text"})
    conn.execute("INSERT INTO public.r SELECT i, 'x' FROM generate_series(1, 20000) i")
    conn.execute("ANALYZE public.r")
    before = conn.execute(
        "SELECT idx_scan FROM pg_stat_user_indexes WHERE relname = 'r'"
    ).fetchone()
    write(conn, target, [((str(i), "x"), -1) for i in range(1, 1001)])
    assert conn.execute("SELECT count(*) FROM public.r").fetchone() == (19000,)
    conn.execute("SELECT pg_stat_force_next_flush()")
    after = conn.execute("SELECT idx_scan FROM pg_stat_user_indexes WHERE relname = 'r'").fetchone()
    assert after[0] - before[0] >= 1000


def test_locked_table(conn, database):
    target = make(conn, {"a": "integer"})
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE r IN SHARE MODE")
        with pytest.raises(SinkBlocked):
            write(conn, target, [(("1",), 1)])
        assert SinkWriter(conn).blockers(target) == [other.info.backend_pid]


@pytest.mark.parametrize(
    ("harm", "word"),
    [
        ("DROP TABLE r", "dropped"),
        ("ALTER TABLE r RENAME TO s", "renamed"),
        ("ALTER TABLE r ADD COLUMN c int", "columns"),
        ("ALTER TABLE r ADD CHECK (a > 0)", "constraint"),
        ("ALTER TABLE r ENABLE ROW LEVEL SECURITY", "row-level"),
        ("CREATE PUBLICATION headrace FOR TABLE r", "publication"),
        ("CREATE RULE x AS ON INSERT TO r DO INSTEAD NOTHING", "rule"),
        ("CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
         "CREATE TRIGGER t BEFORE INSERT ON r FOR EACH ROW EXECUTE FUNCTION f()", "trigger"),
    ],
)  # fmt: skip
def test_check_says_what_was_altered(conn, database, harm, word):
    target = make(conn, {"a": "integer"})
    table.check(conn, target, "headrace")
    with psycopg.connect(database, autocommit=True) as other:
        other.execute(harm)
    with pytest.raises(SinkTableError, match=word):
        table.check(conn, target, "headrace")


def test_creator_may_read_and_pass_it_on(conn):
    conn.execute("CREATE ROLE e_reader")
    try:
        table.create(conn, "public", "r", "SELECT 1 AS a")
        table.let_read(conn, "public", "r", "e_reader")
        row = conn.execute(
            "SELECT has_table_privilege('e_reader', 'public.r', 'SELECT WITH GRANT OPTION'),"
            " has_table_privilege('e_reader', 'public.r', 'INSERT, UPDATE, DELETE, TRIGGER')"
        ).fetchone()
        assert row == (True, False)
    finally:
        conn.execute("DROP OWNED BY e_reader")
        conn.execute("DROP ROLE e_reader")


FUNCTION = (
    "CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql"
    " AS 'BEGIN NEW.a := 99; RETURN NEW; END';"
)
TRIGGER = "CREATE TRIGGER x BEFORE INSERT ON public.r FOR EACH ROW EXECUTE FUNCTION public.f()"
HARM = {
    "dropped": "DROP TABLE public.r",
    "was replaced by another": "DROP TABLE public.r; CREATE TABLE public.r (a int, b text)",
    "renamed to public.s": "ALTER TABLE public.r RENAME TO s",
    "renamed to public.t": "ALTER TABLE public.r RENAME TO t; CREATE TABLE public.r (a int, b text)",
    "renamed to other.r": "CREATE SCHEMA other; ALTER TABLE public.r SET SCHEMA other",
    "renamed to moved.r": "ALTER SCHEMA public RENAME TO moved",
    "trigger or rule: x": FUNCTION + TRIGGER,
    "trigger or rule: y": FUNCTION + TRIGGER.replace("TRIGGER x", "TRIGGER y")
    + "; ALTER TABLE public.r ENABLE ALWAYS TRIGGER y",
    "trigger or rule: z": "CREATE RULE z AS ON DELETE TO public.r DO INSTEAD NOTHING",
    "trigger or rule: deferrable constraint u": "ALTER TABLE public.r"
    " ADD CONSTRAINT u UNIQUE (a) DEFERRABLE",
    "row-level": "ALTER TABLE public.r FORCE ROW LEVEL SECURITY",
    "other columns": "ALTER TABLE public.r ADD c int GENERATED ALWAYS AS (1) STORED",
    "other columns now": "ALTER TABLE public.r RENAME a TO c",
    'column "a" is of type numeric': "ALTER TABLE public.r ALTER a TYPE numeric(9,1)",
    'column "b" is of type character varying': "ALTER TABLE public.r ALTER b TYPE varchar(1)",
    'column "a" is of type public.positive': "ALTER TABLE public.r ALTER a TYPE public.positive",
    'column "b" is of type public.loud': "CREATE DOMAIN public.loud AS text;"
    "ALTER TABLE public.r ALTER b TYPE public.loud",
    "constraint": "ALTER TABLE public.r ADD CONSTRAINT c CHECK (a < 9)",
    "partition of public.whole": "CREATE TABLE public.whole (a int, b text) PARTITION BY LIST (a);"
    "ALTER TABLE public.whole ATTACH PARTITION public.r DEFAULT",
    "child table: public.child": "CREATE TABLE public.child () INHERITS (public.r)",
    "unlogged": "ALTER TABLE public.r SET UNLOGGED",
    "belongs to role": 'ALTER TABLE public.r OWNER TO "pg_monitor"',
}  # fmt: skip
"""Changes that the next write must notice, by a part of its message."""


@pytest.mark.parametrize("word", HARM)
def test_the_next_write_notices_what_was_altered(conn, database, word):
    target = make(conn, {"a": "integer", "b": "text"})
    writer = SinkWriter(conn)
    with conn.transaction():
        writer.write(target, diffs(target, [(("1", "x"), 1), (("2", "x"), 1)]))
    with psycopg.connect(database, autocommit=True) as other:
        other.execute(HARM[word])
        before = stored(other)
    with pytest.raises(SinkTableError) as caught, conn.transaction():
        writer.write(target, diffs(target, [(("2", "x"), -1), (("3", "long"), 1)]))
    error = writer.explained(target, caught.value)
    assert word in error.message
    assert error.hint
    with psycopg.connect(database) as other:
        assert stored(other) == before, "nothing was written"


def stored(conn) -> dict[str, list[tuple]]:
    """Return the rows of every ordinary user table."""
    names = conn.execute(
        "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND oid >= 16384"
        " AND relnamespace <> 'headrace'::regnamespace"
    ).fetchall()
    return {
        name: conn.execute(f"SELECT x::text FROM ONLY {name} x ORDER BY 1").fetchall()
        for (name,) in names
    }


def test_a_constraint_that_is_broken_is_told(conn):
    """An unbroken constraint has no effect, and may exist until the next start."""
    target = make(conn, {"a": "integer", "b": "text"})
    conn.execute("ALTER TABLE public.r ADD CONSTRAINT one UNIQUE (a)")
    writer = SinkWriter(conn)
    with pytest.raises(SinkTableError) as caught, conn.transaction():
        writer.write(target, diffs(target, [(("1", "x"), 2)]))
    error = writer.explained(target, caught.value)
    assert "has a constraint: one" in error.message


@pytest.mark.parametrize(
    "ddl",
    [
        "CREATE INDEX ON public.r (a)",
        "VACUUM FULL public.r",
        "COMMENT ON TABLE public.r IS 'x'",
        "ALTER TABLE public.r SET (fillfactor = 50)",
        "ALTER TABLE public.r ALTER a SET DEFAULT 7",
        FUNCTION + TRIGGER + "; ALTER TABLE public.r DISABLE TRIGGER x",
        "CREATE TABLE public.child () INHERITS (public.r); DROP TABLE public.child",
    ],
)
def test_what_changes_no_row_is_let_be(conn, database, ddl):
    target = make(conn, {"a": "integer", "b": "text"})
    writer = SinkWriter(conn)
    for n in range(3):
        with conn.transaction():
            writer.write(target, diffs(target, [((str(n), "x"), 1)]))
        if n == 0:
            with psycopg.connect(database, autocommit=True) as other:
                for statement in ddl.split(";")[-2:] if "plpgsql" not in ddl else [ddl]:
                    other.execute(statement)
    assert contents(conn, target) == [("0", "x"), ("1", "x"), ("2", "x")]


def test_rows_of_a_child_table_are_never_touched(conn, database):
    """Even if the child is not noticed: its row may have the same ctid as the deleted row."""
    target = make(conn, {"a": "integer", "b": "text"})
    writer = SinkWriter(conn)
    with conn.transaction():
        writer.write(target, diffs(target, [(("1", "x"), 1)]))
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("CREATE TABLE public.child () INHERITS (public.r)")
        other.execute("INSERT INTO public.child VALUES (1, 'x')")
    made = writer._prepared(target)
    with conn.transaction():
        gone = diffs(target, [(("1", "x"), -1)])
        writer._delete(target, made, gone, np.array([-1]), np.array([0]))
    assert conn.execute("SELECT a, b FROM public.r").fetchall() == [(1, "x")]
    assert conn.execute("SELECT a, b FROM ONLY public.r").fetchall() == []
