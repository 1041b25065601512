"""Result tables with a key: it holds at each statement, and rows whose key stays are updated."""

from __future__ import annotations

import dataclasses
import itertools
import random

import psycopg
import pytest

from headrace.errors import ResultTableChanged, SinkBlocked, SinkTableError, UserError
from headrace.postgres import connect
from headrace.sink import keyed, keys, table
from headrace.sink.table import ResultTable
from headrace.sink.writer import SINK_SETTINGS, SinkWriter
from headrace.types import Field
from tests.sink.test_writer import VALUES, contents, diffs

COLUMNS = {"k": "integer", "v": "text"}


@pytest.fixture
def setup(catalog, database):
    with psycopg.connect(database, autocommit=True) as setup:
        setup.execute("CREATE TYPE mood AS ENUM ('ok', 'sad')")
        setup.execute("CREATE TYPE pair AS (a int, b text)")
        yield setup


@pytest.fixture
def conn(database, setup):
    made = connect.connect(database, name="test", settings=SINK_SETTINGS | {"lock_timeout": "200"})
    yield made
    made.close()


def make(conn, columns: dict[str, str], key: tuple[str, ...]) -> ResultTable:
    selected = ", ".join(f'NULL::{kind} AS "{c}"' for c, kind in columns.items())
    conn.execute("SET search_path = public")
    oid = table.create(conn, "public", "r", f"SELECT {selected}", keyed=True)
    conn.execute("RESET search_path")
    keys.add(conn, psycopg.sql.Identifier("public", "r"), key)
    fields = tuple(Field(a.name, a.base_oid, a.base_mod) for a in table.attributes(conn, oid))
    return ResultTable(1, "public", "r", oid, fields, key)


def write(conn, target, *rows) -> None:
    with conn.transaction():
        SinkWriter(conn).write(target, diffs(target, list(rows)))


def test_every_type_is_found_by_its_key(conn):
    """For every form of a value, and for any number of parameter arrays."""
    for kind in VALUES:
        if kind in ("mood[]", "box[]", *NO_KEYS):
            continue
        named = f"public.{kind}" if kind in ("mood", "pair") else kind
        target = make(conn, {"v": named, "n": "integer"}, ("v",))
        for given in VALUES[kind]:
            write(conn, target, ((given, "1"), 1))
            [(stored, _)] = contents(conn, target)
            # In Postgres' output format, like values from the stream.
            value = stored if kind == "numeric" else given
            write(conn, target, ((value, "1"), -1), ((value, "2"), 1))
            assert contents(conn, target) == [(stored, "2")]
            write(conn, target, ((value, "2"), -1))
            assert contents(conn, target) == []
        conn.execute("DROP TABLE public.r")


NO_KEYS = ("json", "point", "box")


@pytest.mark.parametrize("kind", NO_KEYS)
def test_types_that_can_be_no_key_are_refused_in_the_words_of_postgres(conn, setup, kind):
    with pytest.raises(psycopg.errors.UndefinedObject) as asked:
        setup.execute(f"CREATE TABLE asked (v {kind} PRIMARY KEY)")
    with pytest.raises(UserError) as refused:
        make(conn, {"v": kind}, ("v",))
    assert refused.value.code == "42704"
    assert refused.value.message.endswith(asked.value.diag.message_primary)


def test_rows_whose_key_stays_are_updated_others_come_and_go(conn):
    target = make(conn, COLUMNS, ("k",))
    write(conn, target, *[((str(i), "a"), 1) for i in range(4)])
    conn.execute("CREATE TABLE public.refers (k int REFERENCES public.r)")
    conn.execute("INSERT INTO public.refers VALUES (1), (2)")
    write(
        conn,
        target,
        *[((str(i), "a"), -1) for i in range(4)],
        *[((str(i), "b"), 1) for i in range(1, 5)],
    )
    assert contents(conn, target) == [(str(i), "b") for i in range(1, 5)]
    # Several values change at once: no row is deleted.
    write(
        conn,
        target,
        (("1", "b"), -1), (("2", "c"), 1), (("2", "b"), -1), (("1", "d"), 1),
    )  # fmt: skip
    assert contents(conn, target)[:2] == [("1", "d"), ("2", "c")]
    with pytest.raises(SinkBlocked, match='table "refers" refers to') as caught:
        write(conn, target, (("1", "d"), -1))
    assert caught.value.code == "23503"
    assert "(1)" not in str(caught.value.fields())
    assert contents(conn, target)[:2] == [("1", "d"), ("2", "c")]


def test_pages_have_room_for_updates_from_the_start(conn):
    """So updates leave the index alone."""
    target = make(conn, {"k": "integer", "n": "integer"}, ("k",))
    write(conn, target, *(((str(k), "0"), 1) for k in range(2000)))
    some = range(0, 2000, 20)
    with conn.transaction():
        changed = [((str(k), n), w) for k in some for n, w in (("0", -1), ("1", 1))]
        SinkWriter(conn).write(target, diffs(target, changed))
        done = conn.execute(
            "SELECT pg_stat_get_xact_tuples_updated(%(t)s), pg_stat_get_xact_tuples_hot_updated(%(t)s)",
            {"t": target.oid},
        ).fetchone()
    assert done == (len(some), len(some))


def test_only_columns_that_change_are_set(conn):
    """The out-of-line part of an unchanged wide value stays; a changed one is stored again."""
    target = make(conn, {"k": "integer", "n": "integer", "wide": "text"}, ("k",))
    conn.execute("ALTER TABLE public.r ALTER wide SET STORAGE EXTERNAL")
    long = ["x" * 10_000, "y" * 10_000]
    write(conn, target, *(((str(k), "0", long[0]), 1) for k in range(3)))
    stored = (
        "SELECT pg_stat_get_xact_tuples_inserted(reltoastrelid) FROM pg_class WHERE oid = %s",
        (target.oid,),
    )

    def apart(*rows) -> int:
        with conn.transaction():
            [before] = conn.execute(*stored).fetchone()
            SinkWriter(conn).write(target, diffs(target, list(rows)))
            [after] = conn.execute(*stored).fetchone()
        return after - before

    some = [((str(k), n, long[0]), w) for k in range(3) for n, w in (("0", -1), ("1", 1))]
    assert apart(*some) == 0
    chunks = apart((("0", "1", long[0]), -1), (("0", "1", long[1]), 1))
    assert chunks > 0
    # One of two rows has another wide value: both set all columns that change in either.
    both = apart(
        *((("0", "1", long[1]), -1), (("0", "1", long[0]), 1)),
        *((("1", "1", long[0]), -1), (("1", "2", long[0]), 1)),
    )
    assert both == 2 * chunks
    assert contents(conn, target) == [
        ("0", "1", long[0]), ("1", "2", long[0]), ("2", "1", long[0])
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("double precision", ["0", "-0", "NaN", "1", None, "Infinity"]),
        ("real", ["-0", "0", None, "NaN"]),
        ("numeric", ["1.0", "1.00", "NaN", "0"]),
        ("text", ["", "a", None]),
        ("bytea", ["\\x00", "\\x", None]),
    ],
)
def test_values_that_are_only_equal_change(conn, kind, values):
    """Only a column with identical values in all rows is left out of the update."""
    target = make(conn, {"k": "integer", "v": kind, "w": kind}, ("k",))
    write(conn, target, (("1", values[0], values[0]), 1))
    for old, new in itertools.pairwise([*values, values[0]]):
        row, with_v, with_both = ("1", old, old), ("1", new, old), ("1", new, new)
        write(conn, target, (row, -1), (with_v, 1))
        assert contents(conn, target) == [with_v]
        write(conn, target, (with_v, -1), (with_both, 1))
        assert contents(conn, target) == [with_both]


def test_many_sets_of_columns(conn):
    """Beyond a number of such sets all columns are set, with the same outcome."""
    target = make(conn, {"k": "integer", **{f"c{i}": "integer" for i in range(4)}}, ("k",))
    rows = {k: [str(k), "0", "0", "0", "0"] for k in range(2)}
    write(conn, target, *((tuple(row), 1) for row in rows.values()))
    writer = SinkWriter(conn)
    for chosen in itertools.product((0, 1), repeat=4):
        changed = []
        for row in rows.values():
            changed.append((tuple(row), -1))
            row[1:] = [str(int(v) + c) for v, c in zip(row[1:], chosen, strict=True)]
            changed.append((tuple(row), 1))
        if any(chosen):
            with conn.transaction():
                writer.write(target, diffs(target, changed))
        assert contents(conn, target) == sorted(tuple(row) for row in rows.values())
    assert len(writer._statements[1].update._made) == keyed._VARIANTS_MAX + 1


def test_a_foreign_key_holds_where_the_key_only_looks_otherwise(conn):
    target = make(conn, {"k": "numeric", "v": "text"}, ("k",))
    write(conn, target, (("1.0", "a"), 1), (("2", "a"), 1))
    conn.execute("CREATE TABLE public.refers (k numeric REFERENCES public.r)")
    conn.execute("INSERT INTO public.refers VALUES (1)")
    write(conn, target, (("1.0", "a"), -1), (("1.00", "a"), 1))
    assert contents(conn, target) == [("1.00", "a"), ("2", "a")]


def test_keys_that_are_equal_without_being_alike(conn):
    """The index decides about equality, also for types whose equality is unknown here."""
    target = make(conn, {"k": "jsonb", "v": "text"}, ("k",))
    write(conn, target, (("[1.0]", "1"), 1))
    write(conn, target, (("[1.0]", "1"), -1), (("[1.00]", "1"), 1))
    assert contents(conn, target) == [("[1.00]", "1")]
    with pytest.raises(SinkTableError, match=r"the same key \(k\)") as caught:
        write(conn, target, (("[1]", "2"), 1))
    assert caught.value.code == "23505"
    assert contents(conn, target) == [("[1.00]", "1")]


def test_duplicates_and_nulls_change_nothing_and_tell_no_value(conn):
    target = make(conn, COLUMNS, ("k",))
    write(conn, target, (("77", "a"), 1))
    for rows, code in (
        ([(("77", "b"), 1)], "23505"),
        ([(("77", "a"), -1), (("77", "b"), 1), (("77", "c"), 1)], "23505"),
        ([(("78", "b"), 2)], "23505"),
        ([(("77", "a"), -1), ((None, "b"), 1)], "23502"),
    ):
        with pytest.raises(SinkTableError, match=r"key \(k\)") as caught:
            write(conn, target, *rows)
        assert caught.value.code == code
        assert "77" not in str(caught.value.fields())
        assert contents(conn, target) == [("77", "a")]


@pytest.mark.parametrize("state", ["23000", "23502", "23503", "23505", "23514", "23P01"])
def test_what_code_of_users_raises_is_no_constraint(conn, setup, state):
    """The error is passed on as it is, without a key."""
    target = make(conn, {"k": "integer"}, ("k",))
    setup.execute(
        "CREATE OR REPLACE FUNCTION boom(k int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE 'boom' USING ERRCODE = '{state}'; END $$"
    )
    setup.execute("CREATE INDEX ON r (boom(k))")
    with pytest.raises(SinkTableError, match="cannot be written: boom") as caught:
        write(conn, target, (("1",), 1))
    assert caught.value.code == state


def test_values_move_between_rows_under_a_unique_index_of_a_user(conn):
    target = make(conn, COLUMNS, ("k",))
    conn.execute("CREATE UNIQUE INDEX other ON public.r (v)")
    names = ["a", "b", "c", "d"]
    write(conn, target, *[((str(i), v), 1) for i, v in enumerate(names)])
    for moved in ("badc", "cdab", "dcba", "bcda"):
        rows = [((str(i), v), -1) for i, v in enumerate(names)]
        write(conn, target, *rows, *[((str(i), v), 1) for i, v in enumerate(moved)])
        names = list(moved)
        assert contents(conn, target) == [(str(i), v) for i, v in enumerate(names)]


@pytest.mark.parametrize("key", [("k",), ()])
def test_what_a_user_demands_of_the_rows_is_told_without_a_value(conn, key):
    target = make(conn, {"k": "integer", "v": "integer"}, ("k",))
    if not key:
        keys.drop(conn, target)
        target = dataclasses.replace(target, key=())
    conn.execute("CREATE UNIQUE INDEX other ON public.r (v)")
    conn.execute("ALTER TABLE public.r ALTER v SET NOT NULL")
    write(conn, target, (("1", "77"), 1))
    writer = SinkWriter(conn)
    for rows, told in (
        ([(("2", "77"), 1)], 'has a unique index "other", which its rows violate'),
        ([(("1", "77"), -1), (("1", None), 1)], 'column "v" of result table "public"."r" is NOT'),
    ):
        with pytest.raises(SinkTableError) as caught, conn.transaction():
            writer.write(target, diffs(target, rows))
        error = writer.explained(target, caught.value)
        assert isinstance(error, ResultTableChanged)
        assert told in error.message
        assert "77" not in str(error.fields()) + str(caught.value.fields())
        assert contents(conn, target) == [("1", "77")]


def test_rows_changed_by_somebody_else_are_told(conn):
    target = make(conn, COLUMNS, ("k",))
    write(conn, target, (("1", "a"), 1))
    conn.execute("UPDATE public.r SET v = 'x'")
    for rows in (
        [(("1", "a"), -1)],
        [(("1", "a"), -1), (("1", "b"), 1)],
        [(("1", "x"), -2), (("1", "b"), 1)],
    ):
        with pytest.raises(SinkTableError, match="changed by another program"):
            write(conn, target, *rows)
        assert contents(conn, target) == [("1", "x")]


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("ALTER TABLE r DROP CONSTRAINT r_pkey", "has lost its key"),
        ("CREATE TABLE f (k int REFERENCES r ON DELETE CASCADE)", "has a trigger"),
        ("CREATE TABLE f (k int REFERENCES r ON UPDATE SET NULL)", "has a trigger"),
        (
            "CREATE TABLE f (k int); ALTER TABLE f OWNER TO {other};"
            " ALTER TABLE f ADD FOREIGN KEY (k) REFERENCES r",
            "has a trigger",
        ),
        ("ALTER TABLE r ADD UNIQUE (v)", "has a constraint"),
    ],
)
def test_what_must_not_be_made_of_the_table(conn, setup, statement, told):
    other = f"other_{setup.info.dbname}"
    setup.execute(f"CREATE ROLE {other}")
    try:
        target = make(conn, COLUMNS, ("k",))
        write(conn, target, (("1", "a"), 1))
        setup.execute(f"GRANT ALL ON SCHEMA public TO {other}")
        setup.execute(f"GRANT ALL ON TABLE r TO {other}")
        setup.execute(statement.format(other=other))
        with pytest.raises(SinkTableError, match=told):
            SinkWriter(conn).write(target, diffs(target, [(("1", "a"), -1)]))
        conn.rollback()
    finally:
        setup.execute(f"DROP OWNED BY {other} CASCADE")
        setup.execute(f"DROP ROLE {other}")


def test_a_reader_that_locks_a_key_holds_up_its_deletion_only(conn, database):
    """An ORM, or the check of a foreign key, takes such a lock."""
    target = make(conn, COLUMNS, ("k",))
    write(conn, target, (("1", "a"), 1))
    with psycopg.connect(database) as reader:
        reader.execute("SELECT FROM r WHERE k = 1 FOR KEY SHARE")
        write(conn, target, (("1", "a"), -1), (("1", "b"), 1))
        with pytest.raises(SinkBlocked):
            write(conn, target, (("1", "b"), -1))
    write(conn, target, (("1", "b"), -1))


def test_random_changes(conn):
    """Any change of a table with a key, in one write; the index proves the order of statements."""
    rng = random.Random(11)
    target = make(conn, {"k": "integer", "v": "numeric", "j": "text"}, ("j", "k"))
    now: dict = {}
    for _ in range(40):
        after = {
            (str(rng.randrange(12)), rng.choice("ab")): rng.choice(["1", "1.0", "2", None])
            for _ in range(rng.randrange(16))
        }
        before, now = now, after
        rows = [((k, v, j), -1) for (k, j), v in before.items()]
        rows += [((k, v, j), 1) for (k, j), v in after.items()]
        weights: dict = {}
        for row, weight in rows:
            weights[row] = weights.get(row, 0) + weight
        left = [(r, w) for r, w in weights.items() if w]
        rng.shuffle(left)
        write(conn, target, *left)
        assert contents(conn, target) == sorted(((k, v, j) for (k, j), v in now.items()), key=repr)
