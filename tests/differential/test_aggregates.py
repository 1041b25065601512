"""Every aggregate function and grouping sets: the result table equals the query at every txid.

Where an aggregate sees its rows in no particular order, its view has the canonical one, and the
reference query has it by ORDER BY. Sums of floats depend on the order in Postgres: floats are
compared at nine digits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import psycopg
import pytest

from tests.compared import commit, create_view, difference, multiset
from tests.waiting import create_marker

TRANSACTIONS = 7

COLUMNS: dict[str, tuple[str, list[str]]] = {
    "bool": ("boolean", ["true", "false"]),
    "int2": ("smallint", ["1", "-3", "32767", "12"]),
    "int4": ("integer", ["1", "-3", "7", "12"]),
    "int8": ("bigint", ["1", "-3", "9007199254740993", "12"]),
    "numeric": ("numeric(12,2)", ["1.5", "-3", "0", "12345.67"]),
    "float4": ("real", ["1.5", "-3", "0.25", "12"]),
    "float8": ("double precision", ["1.5", "-3", "0.25", "12"]),
    "text": ("text", ["'a'", "'B'", "''", "'ä'", "'zz'"]),
    "bpchar": ("char(3)", ["'a'", "'B'", "'abc'"]),
    "bytea": ("bytea", ["'\\x00ff'", "'\\x'", "'\\x61'"]),
    "date": ("date", ["'2024-02-29'", "'1999-12-31'", "'infinity'"]),
    "time": ("time", ["'10:00'", "'24:00'", "'00:00:00.5'"]),
    "timetz": ("timetz", ["'10:00+00'", "'12:00+02'", "'23:59:59-08'"]),
    "timestamp": ("timestamp", ["'2024-01-31 10:00'", "'1969-12-31 23:59:59.5'"]),
    "timestamptz": ("timestamptz", ["'2024-01-31 10:00+00'", "'2024-07-01 00:00+02'"]),
    "interval": (
        "interval",
        ["'1 mon'", "'1 mon 1 day'", "'1 year 1 day'", "'1 day'", "'-1 day'", "'03:00'"],
    ),
    "money": ("money", ["0", "1.5", "-2"]),
    "oid": ("oid", ["1", "4294967295", "77"]),
    "pg_lsn": ("pg_lsn", ["'0/1'", "'A/0'"]),
    "xid8": ("xid8", ["'5'", "'18446744073709551615'"]),
    "tid": ("tid", ["'(0,1)'", "'(5,2)'"]),
    "inet": ("inet", ["'10.0.0.1'", "'::1'", "'10.0.0.0/8'"]),
    "bit": ("bit(4)", ["B'0011'", "B'1001'", "B'1111'"]),
    "int4range": ("int4range", ["'[1,5)'", "'[3,9)'", "'empty'", "'[20,)'"]),
    "int4multirange": ("int4multirange", ["'{[1,3),[5,7)}'", "'{[2,9)}'"]),
    "mood": ("mood", ["'sad'", "'ok'", "'happy'"]),
    "_int4": ("integer[]", ["'{1,2}'", "'{3,NULL}'", "'{-1,0}'"]),
    "json": ("json", ["'{\"a\": 1}'", "'[1, 2]'", "'null'"]),
    "jsonb": ("jsonb", ["'{\"a\": 1}'", "'[1, 2.50]'", "'\"s\"'"]),
    "xml": ("xml", ["'<a/>'", "'<b>x</b>'"]),
}
POLYMORPHIC = {
    "anyelement": ["int4", "text", "numeric", "jsonb", "mood", "timestamptz", "bool"],
    "anynonarray": ["int4", "text", "numeric", "date", "json"],
    "anyarray": ["_int4"],
    "anyenum": ["mood"],
    "anyrange": ["int4range"],
    "anymultirange": ["int4multirange"],
    "any": ["int4", "text"],
    "character": ["bpchar"],
}
NO_ORDER = {"json", "xml"}
IN_ORDER = ("array_agg", "string_agg", "json", "xmlagg", "any_value")
"""Prefixes of the names of aggregates whose value depends on the order of the rows."""
UNTESTABLE = {
    "max(record)": "its result is of pseudo-type record",
    "min(record)": "its result is of pseudo-type record",
}


def nine_digits(value: float) -> str:
    return f"{round(value, 9) + 0.0:.9g}"


class Player:
    """Random transactions on table ``t``, and views that must follow them."""

    def __init__(self, source, commander, seed: int, columns: dict) -> None:
        self.rng = random.Random(seed)
        self.source, self.commander = source, commander
        self.columns = columns
        self.views: dict[str, tuple[str, str]] = {}
        self.next = 1
        source.execute("CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')")
        types = ", ".join(f"v_{n} {kind}" for n, (kind, _) in columns.items())
        source.execute(f"CREATE TABLE t (id int PRIMARY KEY, k int, b bool, {types})")
        create_marker(source, commander)

    def view(self, query: str, judge: str | None = None) -> None:
        name = f"view{len(self.views)}"
        create_view(self.commander, name, query)
        self.views[name] = query, judge or query

    def value(self, name: str) -> str:
        pool = self.columns[name][1]
        return "NULL" if self.rng.random() < 0.2 else self.rng.choice(pool)

    def insert(self, count: int) -> str:
        rows = []
        for _ in range(count):
            own = [str(self.next), self.rng.choice(["1", "2", "3", "NULL"])]
            own.append(self.rng.choice(["true", "false", "NULL"]))
            self.next += 1
            rows.append(f"({', '.join(own + [self.value(n) for n in self.columns])})")
        return f"INSERT INTO t VALUES {', '.join(rows)}"

    def statement(self) -> str:
        kind = self.rng.randint(0, 9)
        k = self.rng.randint(1, 3)
        if kind < 4:
            return self.insert(self.rng.randint(1, 6))
        if kind < 7:
            name = self.rng.choice(list(self.columns))
            value = self.value(name)
            return f"UPDATE t SET v_{name} = {value}, k = nullif(k, {k}) WHERE id % 3 = {k % 3}"
        if kind < 9:
            return f"DELETE FROM t WHERE k = {k} OR id % 5 = {k}"
        return self.rng.choice(["TRUNCATE t", "DELETE FROM t"])

    def check(self, where: str) -> None:
        for name, (query, judge) in self.views.items():
            want = multiset(self.source, judge, nine_digits)
            got = multiset(self.source, f"SELECT * FROM {name}", nine_digits)
            assert want == got, f"{where}\n{query}\n{difference(want, got)}"

    def play(self, transactions: int = TRANSACTIONS) -> None:
        self.check("population")
        for number in range(transactions):
            statements = [self.statement() for _ in range(self.rng.randint(1, 4))]
            if number == transactions - 2:
                statements = ["DELETE FROM t"]
            commit(self.source, statements)
            self.check(f"transaction {number}: {statements}")


def calls_of(conn: psycopg.Connection) -> dict[str, list[str]]:
    """Return calls over columns of ``t`` for each row of pg_aggregate."""
    out: dict[str, list[str]] = {}
    for name, kind, direct, args in conn.execute(
        "SELECT p.proname, a.aggkind::text, a.aggnumdirectargs,"
        " array(SELECT t.typname::text FROM unnest(p.proargtypes) WITH ORDINALITY u(o, n)"
        " JOIN pg_type t ON t.oid = u.o ORDER BY n)"
        " FROM pg_aggregate a JOIN pg_proc p ON p.oid = a.aggfnoid"
        " WHERE p.oid < 16384 ORDER BY 1, 4"
    ).fetchall():
        label = f"{name}({', '.join(args)})"
        if label not in UNTESTABLE:
            out[label] = list(calls(name, kind, direct, args))
    return out


def calls(name: str, kind: str, direct: int, args: list[str]) -> Iterator[str]:
    if kind == "h":
        yield f"{name}(5) WITHIN GROUP (ORDER BY v_int4)"
        yield f"{name}('b', 1.5) WITHIN GROUP (ORDER BY v_text DESC, v_numeric NULLS FIRST)"
        yield f"{name}(k) WITHIN GROUP (ORDER BY v_int4 DESC) FILTER (WHERE b)"
    elif kind == "o":
        yield from ordered_sets(name, direct, args)
    elif not args:
        yield f"{name}(*)"
        yield f"{name}(*) FILTER (WHERE b)"
    elif "object_agg" in name:
        yield f"{name}('k' || id, v_int4 ORDER BY id)"
        yield f"{name}(v_text || id, v_numeric ORDER BY id) FILTER (WHERE v_text <> '')"
    elif name == "string_agg":
        column = f"v_{args[0]}"
        comma = "'\\x2c'::bytea" if args[0] == "bytea" else "', '"
        yield f"{name}({column}, {comma} ORDER BY id)"
        yield f"{name}(DISTINCT {column}, {comma})"
        yield f"{name}({column}, {comma} ORDER BY {column} DESC, id) FILTER (WHERE b)"
    elif len(args) == 2:
        yield f"{name}(v_{args[0]}, v_float8)"
        yield f"{name}(v_float8, v_{args[1]}) FILTER (WHERE b)"
    else:
        yield from plain(name, args[0])


def ordered_sets(name: str, direct: int, args: list[str]) -> Iterator[str]:
    values = {"float8": "0.4", "_float8": "ARRAY[0.25, NULL, 0.5, 1]"}
    value = values[args[0]] if direct else ""
    for column in POLYMORPHIC.get(args[-1], [args[-1]]):
        if column not in NO_ORDER:
            one = f"v_{column}"
            yield f"{name}({value}) WITHIN GROUP (ORDER BY {one})"
            yield f"{name}({value}) WITHIN GROUP (ORDER BY {one} DESC) FILTER (WHERE b)"
            if args[0] == "float8" and direct:
                yield f"{name}(k / 4.0) WITHIN GROUP (ORDER BY {one})"


def plain(name: str, kind: str) -> Iterator[str]:
    order = " ORDER BY id" if name.startswith(IN_ORDER) else ""
    for column in POLYMORPHIC.get(kind, [kind]):
        one = f"v_{column}"
        if name == "array_agg" and column == "_int4":
            one = f"coalesce({one}, '{{0,0}}')"
        if name == "xmlagg":
            one = "xmlelement(name e, v_text)"  # a column of type xml is not received completely
        yield f"{name}({one}{order})"
        yield f"{name}({one}{order}) FILTER (WHERE b)"
        if column not in NO_ORDER and name != "any_value":
            yield f"{name}(DISTINCT {one})"


@pytest.mark.parametrize("over", ["groups", pytest.param("all", marks=pytest.mark.slow)])
def test_every_aggregate_of_postgres(source, commander, over):
    """Every row of pg_aggregate, over groups or over all, with FILTER and DISTINCT."""
    columns = dict(COLUMNS)
    try:
        source.execute("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        del columns["xml"]
    every = calls_of(source)
    player = Player(source, commander, 1, columns)
    source.execute(player.insert(25))
    found = [
        c for label, own in every.items() for c in own
        if "xml" in columns or "xml" not in c
    ]  # fmt: skip
    assert len(every) > 140 and len(found) > 250
    for start in range(0, len(found), 25):
        part = found[start : start + 25]
        if over == "all":
            part = [c for c in part if "(k" not in c]
        listed = ", ".join(f"{c} AS c{i}" for i, c in enumerate(part))
        if over == "groups":
            player.view(f"SELECT k, {listed} FROM t GROUP BY k")
        else:
            player.view(f"SELECT {listed} FROM t WHERE v_int4 IS DISTINCT FROM 7")
    player.play()


SMALL = {n: COLUMNS[n] for n in ("int4", "text", "numeric", "float8", "bool")}

GROUPING = [
    "SELECT k, v_text, count(*), sum(v_int4) FROM t GROUP BY ROLLUP (k, v_text)",
    "SELECT k, v_text, count(*), grouping(k, v_text) FROM t GROUP BY CUBE (k, v_text)",
    "SELECT k, b, v_text, grouping(k), grouping(b, v_text, k) + 10 AS g, max(v_numeric)"
    " FROM t GROUP BY GROUPING SETS ((k, b), (v_text), ())",
    "SELECT count(*), sum(v_int4), string_agg(v_text, ',' ORDER BY id) FROM t"
    " GROUP BY GROUPING SETS ((), ())",
    "SELECT k, count(*) FROM t GROUP BY GROUPING SETS (k, k, ())",
    "SELECT k, b, count(*) FROM t GROUP BY DISTINCT ROLLUP (k, b), ROLLUP (k, b)",
    "SELECT k, b, count(*) FROM t GROUP BY ALL ROLLUP (k, b), ROLLUP (k, b)",
    "SELECT k, b, v_text, count(*) FROM t GROUP BY k, ROLLUP (b, v_text)",
    "SELECT k, b, v_text, count(*) FROM t"
    " GROUP BY GROUPING SETS (ROLLUP (k, b), CUBE (b, v_text), GROUPING SETS ((), k))",
    "SELECT k, b, v_text, count(*) FROM t GROUP BY ROLLUP ((k, b), v_text)",
    "SELECT k % 2 AS odd, v_int4 + 1 AS next, (k % 2) * 100 AS h, count(*) FROM t"
    " GROUP BY ROLLUP (k % 2, v_int4 + 1)",
    "SELECT coalesce(v_text, 'total') AS name, count(*) FROM t GROUP BY ROLLUP (v_text)",
    "SELECT v_numeric, count(v_numeric), avg(k) FROM t GROUP BY ROLLUP (v_numeric)",
    "SELECT k, count(*) FROM t GROUP BY ROLLUP (k) HAVING grouping(k) = 0 AND count(*) > 1",
    "SELECT k, count(*) FROM t GROUP BY ROLLUP (k) HAVING grouping(k) = 1",
    "SELECT k, count(*) FROM t GROUP BY CUBE (k) HAVING k IS NULL",
    "SELECT k, count(*) FROM t GROUP BY ROLLUP (k) HAVING k = 1",
    "SELECT id, v_text, k, count(*) FROM t GROUP BY GROUPING SETS ((id), (id, k))",
    "SELECT k, sum(k) FROM t GROUP BY ROLLUP (k)",
    "SELECT k, sum(k) FILTER (WHERE b), count(DISTINCT v_text), array_agg(k ORDER BY id)"
    " FROM t GROUP BY GROUPING SETS ((k), ())",
    "SELECT k, percentile_disc(k / 4.0) WITHIN GROUP (ORDER BY v_int4) FROM t GROUP BY ROLLUP (k)",
    "SELECT 'x' AS c, k, count(*) FROM t GROUP BY ROLLUP (c, k)",
    "SELECT 'x' AS c, 'x' || k AS d, count(*) FROM t GROUP BY ROLLUP (1, k)",
    "SELECT k AS x, k AS y, count(*) FROM t GROUP BY GROUPING SETS ((x), (y), (x, y))",
    "SELECT grouping(k) AS g, grouping(k) FROM t GROUP BY k",
    "SELECT count(*) FROM t GROUP BY ()",
    "SELECT 1 AS one FROM t GROUP BY ()",
    "SELECT k, b FROM t GROUP BY CUBE (k, b)",
    "SELECT q.k, sum(q.c) FROM (SELECT k, b, count(*) AS c FROM t GROUP BY ROLLUP (k, b)) q"
    " GROUP BY ROLLUP (q.k)",
    "SELECT q.k, t.id FROM (SELECT k, count(*) AS c FROM t GROUP BY ROLLUP (k)) q"
    " JOIN t ON q.k = t.k WHERE q.c > 1",
    "SELECT DISTINCT grouping(k, b), count(*) > 2 AS many FROM t GROUP BY CUBE (k, b)",
    "SELECT k, 1 AS w, count(*) FROM t GROUP BY ROLLUP (k) UNION ALL"
    " SELECT k, 2, count(*) FROM t GROUP BY k",
]


AROUND = [
    "SELECT id, (SELECT count(*) FROM (SELECT k FROM t u WHERE u.v_int4 = t.v_int4"
    " GROUP BY ROLLUP (k)) q) AS n FROM t",
    "SELECT id, (SELECT string_agg(coalesce(q.k, -1) || ':' || q.c || ':' || q.g, ','"
    " ORDER BY q.k, q.c, q.g) FROM (SELECT u.k, count(u.b) AS c, grouping(u.k) AS g"
    " FROM t u WHERE u.v_int4 < t.k GROUP BY ROLLUP (u.k)) q) AS s FROM t",
    "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM t u WHERE u.k = t.id"
    " GROUP BY GROUPING SETS ((), (u.b)) HAVING count(*) < 2)",
    "SELECT k, (SELECT count(*) FROM t u WHERE u.k = t.k) AS n FROM t GROUP BY ROLLUP (k)",
    "SELECT k, (SELECT sum(t.v_int4) FROM t u WHERE u.id = 1) AS s FROM t GROUP BY k",
    "SELECT k, (SELECT grouping(t.k) + 1) AS g FROM t GROUP BY ROLLUP (k)",
    "SELECT id, (SELECT rank(3) WITHIN GROUP (ORDER BY v_int4) FROM t u WHERE u.k = t.id)"
    " AS r, (SELECT regr_count(v_int4, k) FROM t u WHERE u.k = t.v_int4) AS c FROM t",
    "SELECT a.id, x.list FROM t a, LATERAL (SELECT array_agg(v_text ORDER BY id) AS list"
    " FROM t u WHERE u.k = a.k) x",
    "SELECT k, b, count(*) AS c, rank() OVER (PARTITION BY grouping(k, b)"
    " ORDER BY count(*) DESC) AS place FROM t GROUP BY CUBE (k, b)",
    "SELECT k, count(*) FROM t GROUP BY ROLLUP (k) ORDER BY grouping(k), k LIMIT 2",
    "SELECT DISTINCT ON (grouping(k)) grouping(k) AS g, k, count(*) FROM t"
    " GROUP BY ROLLUP (k) ORDER BY grouping(k), count(*), k",
    "SELECT k, json_agg(x.s) AS j FROM t CROSS JOIN LATERAL (SELECT max(v_text) AS s"
    " FROM t u WHERE u.k = t.k) x GROUP BY k",
    "SELECT array_agg(v_int4 ORDER BY id) FILTER (WHERE v_int4 > (SELECT min(u.v_int4)"
    " FROM t u WHERE u.k = t.k)) AS a FROM t",
    "SELECT k, max((SELECT count(*) FROM t u WHERE u.k = t.v_int4)) AS m FROM t"
    " GROUP BY ROLLUP (k)",
    "SELECT count(DISTINCT (k, b)) AS x, count(DISTINCT (k, v_numeric)) AS y,"
    " count((k, b)) AS z FROM t",
    "SELECT k, json_agg((id, v_text) ORDER BY id) AS x, json_agg(t ORDER BY id) AS y"
    " FROM t GROUP BY k",
    "SELECT json_agg(q ORDER BY q.id) FROM (SELECT id, v_text AS name FROM t) q",
    "SELECT k, array_agg(DISTINCT v_numeric ORDER BY v_numeric DESC) FROM t GROUP BY k",
    "SELECT (SELECT max((SELECT i.v_int4 FROM t i WHERE i.id = o.k))"
    " FILTER (WHERE o.k < 3)) AS m FROM t o",
    "SELECT array_agg(v_int4) FROM (SELECT v_int4 FROM t ORDER BY v_text DESC, id) s",
    "SELECT string_agg(s.name, ',') AS names, json_agg(s) AS rows, sum(s.v_int4)"
    " FROM (SELECT v_text AS name, v_int4 FROM t ORDER BY id * -1) s WHERE s.v_int4 > 0",
    "SELECT id, (SELECT array_agg(x) FROM (SELECT u.v_text AS x FROM t u WHERE u.k = t.k"
    " ORDER BY u.id DESC) s) AS list FROM t",
    "SELECT jsonb_agg(x) FROM (SELECT id AS x FROM t ORDER BY b NULLS FIRST, id LIMIT 3) s",
    "WITH s AS (SELECT v_text AS x, k FROM t ORDER BY id DESC), p AS (SELECT x FROM s WHERE k > 1)"
    " SELECT array_agg(x) AS a, (SELECT string_agg(q.x, '-') FROM s q) AS b,"
    " (SELECT count(*) FROM (SELECT * FROM s UNION ALL SELECT * FROM s) u) AS c FROM p",
    "SELECT id, (WITH s AS (SELECT u.v_int4 AS x FROM t u WHERE u.k = t.k ORDER BY u.id)"
    " SELECT array_agg(y) FROM (SELECT x + 1 AS y FROM s WHERE x > 0) z) AS l FROM t",
]


@pytest.mark.slow
def test_aggregates_in_and_around_subqueries(source, commander):
    player = Player(source, commander, 7, SMALL)
    player.source.execute(player.insert(10))
    for query in AROUND:
        player.view(query)
    player.play(8)


def test_grouping_sets(source, commander):
    player = Player(source, commander, 2, SMALL)
    player.source.execute(player.insert(12))
    for query in GROUPING:
        player.view(query)
    player.play(10)


@pytest.mark.slow
def test_grouping_sets_over_an_empty_table(source, commander):
    player = Player(source, commander, 3, SMALL)
    for query in GROUPING:
        player.view(query)
    player.play(4)


CANONICAL = [
    ("array_agg(v_int4)", "array_agg(v_int4 ORDER BY v_int4)"),
    ("array_agg(v_numeric)", "array_agg(v_numeric ORDER BY v_numeric)"),
    ("string_agg(v_text, '-')", "string_agg(v_text, '-' ORDER BY v_text COLLATE \"C\")"),
    ("json_agg(v_int4)", "json_agg(v_int4 ORDER BY v_int4)"),
    ("array_agg(v_text ORDER BY k % 2)",
     "array_agg(v_text ORDER BY k % 2, v_text COLLATE \"C\", k % 2)"),
    ("jsonb_object_agg(coalesce(k, 0), v_int4)",
     "jsonb_object_agg(coalesce(k, 0), v_int4 ORDER BY v_int4)"),
]  # fmt: skip


def test_rows_without_order_are_seen_in_the_canonical_one(source, commander):
    player = Player(source, commander, 4, SMALL)
    source.execute(player.insert(30))
    for mine, judge in CANONICAL:
        for head, tail in (("b", "GROUP BY b"), ("count(*)", "")):
            player.view(
                f"SELECT {head}, {mine} FROM t {tail}", f"SELECT {head}, {judge} FROM t {tail}"
            )
    player.play()


FIRST = """
    CREATE FUNCTION keep_first(text, text) RETURNS text IMMUTABLE STRICT LANGUAGE sql
        AS 'SELECT $1';
    CREATE AGGREGATE first_of(text) (SFUNC = keep_first, STYPE = text);
    CREATE FUNCTION append(text, text) RETURNS text IMMUTABLE LANGUAGE sql
        AS $$SELECT coalesce($1, '') || coalesce($2, '-')$$;
    CREATE AGGREGATE trace_of(text) (SFUNC = append, STYPE = text);
"""
BY_TEXT = 'v_text COLLATE "C"'
TOGETHER = [
    # The calls of one level; the arguments that show an order, as they come; the rest of the query.
    (["array_agg(v_int4{})", "array_agg(v_text{})"], ["v_int4", BY_TEXT]),
    (["string_agg(v_text, ','{})", "json_agg(v_int4{})"], [BY_TEXT, "v_int4"]),
    (["jsonb_agg(v_int4{})", "array_agg(v_text{}) FILTER (WHERE b)", "count(*)"],
     ["v_int4", BY_TEXT]),
    (["array_agg(v_text{}) FILTER (WHERE v_int4 > 1)",
      "array_agg(v_int4{}) FILTER (WHERE b IS NOT true)"], [BY_TEXT, "v_int4"]),
    (["array_agg(v_int4 ORDER BY k % 2{})", "array_agg(v_text ORDER BY k % 2{})"],
     ["v_int4", "k % 2", BY_TEXT]),
    (["array_agg(v_int4 ORDER BY k % 2 DESC{})", "array_agg(v_text{})"],
     ["v_int4", "k % 2", BY_TEXT]),
    (["array_agg(DISTINCT v_text COLLATE \"C\")", "array_agg(v_text{})", "json_agg(v_int4{})"],
     [BY_TEXT, "v_int4"]),
    (["first_of(v_text{})", "trace_of(v_int4::text{})", "array_agg(v_int4{})"],
     [BY_TEXT, "v_int4::text COLLATE \"C\"", "v_int4"]),
    (["trace_of(v_text{}) FILTER (WHERE b)", "first_of(v_int4::text{})"],
     [BY_TEXT, "v_int4::text COLLATE \"C\""]),
    (["jsonb_object_agg(coalesce(v_int4, 0), v_text{})", "array_agg(v_text{})"],
     ["coalesce(v_int4, 0)", BY_TEXT]),
    (["array_agg(v_int4{})", "array_agg(v_int4 / nullif(v_int4 - 1, 0){}) FILTER (WHERE b)"],
     ["v_int4"]),
    (["json_object_agg(coalesce(v_text, ''), v_int4{})", "string_agg(v_text, '-'{})"],
     ["coalesce(v_text, '') COLLATE \"C\"", "v_int4", BY_TEXT]),
    (["array_agg(v_int4{})", "percentile_disc(0.5) WITHIN GROUP (ORDER BY v_int4)",
      "stddev(v_int4)", "array_agg(v_numeric{})"], ["v_int4", "v_numeric, scale(v_numeric)"]),
]  # fmt: skip
LEVELS = [
    "SELECT b AS key, {} FROM t GROUP BY b",
    "SELECT 1 AS key, {} FROM t",
    "SELECT b AS key, {} FROM t GROUP BY ROLLUP (b)",
    "SELECT b AS key, {} FROM t GROUP BY GROUPING SETS ((b, k), (k), ())",
    "SELECT u.id AS key, {} FROM t JOIN (SELECT id, k AS other FROM t) u"
    " ON u.other = t.k GROUP BY u.id",
    "SELECT k AS key, {} FROM (SELECT * FROM t UNION ALL SELECT * FROM t WHERE b) s GROUP BY k",
]


def in_canonical_order(call: str, order: list[str]) -> str:
    """Return ``call`` over rows ordered by ``order``; ``{}`` is where its ORDER BY ends."""
    word = ", " if "ORDER BY" in call else " ORDER BY "
    return call.format(word + ", ".join(order))


def test_aggregates_of_one_level_see_their_rows_in_one_order(source, commander):
    player = Player(source, commander, 8, SMALL)
    source.execute(FIRST)
    source.execute(player.insert(20))
    for number, (calls_, order) in enumerate(TOGETHER):
        for level in (LEVELS[number % len(LEVELS)], LEVELS[(number + 1) % len(LEVELS)]):
            mine = ", ".join(f"{c.format('')} AS c{i}" for i, c in enumerate(calls_))
            judge = ", ".join(
                f"{in_canonical_order(c, order)} AS c{i}" for i, c in enumerate(calls_)
            )
            player.view(level.format(mine), level.format(judge))
    player.play()


def test_a_group_shows_its_keys_as_one_row_has_them(source, commander):
    """A group shows one of 1.0 and 1.00, and the other key's value from the same row."""
    source.execute("CREATE TABLE p (id int PRIMARY KEY, n numeric, m numeric, i interval)")
    create_marker(source, commander)
    queries = {
        "pairs": "SELECT n, m, count(*) AS c FROM p GROUP BY n, m",
        "sets": "SELECT n, m, count(*) AS c FROM p GROUP BY GROUPING SETS ((n, m))",
        "threes": "SELECT n, m, i, sum(id) AS c FROM p GROUP BY n, m, i",
        "rows": "SELECT DISTINCT n, m FROM p",
    }
    for name, query in queries.items():
        create_view(commander, name, query)
    rng = random.Random(3)
    for _ in range(8):
        ids = rng.sample(range(40), 8)
        values = ", ".join(
            f"({i}, {rng.choice(['1', '1.0', '1.00', '2'])},"
            f" {rng.choice(['7', '7.0', '7.000', 'NULL'])},"
            f" '{rng.choice(['1 day', '24:00', '2 days'])}')"
            for i in ids
        )
        kept = ", ".join(map(str, ids))
        commit(source, [f"DELETE FROM p WHERE id IN ({kept}) OR id % 5 = {ids[0] % 5}",
                        f"INSERT INTO p VALUES {values}"])  # fmt: skip
        for name, query in queries.items():
            keys = ["n", "m", "i"] if name == "threes" else ["n", "m"]
            values = ", ".join(keys)
            assert multiset(source, f"SELECT trim_scale(n), trim_scale(m), count(*) FROM {name} GROUP BY 1, 2") == multiset(
                source, f"SELECT trim_scale(n), trim_scale(m), count(*) FROM ({query}) q GROUP BY 1, 2")  # fmt: skip
            never = source.execute(
                f"SELECT ROW({values})::text FROM {name} EXCEPT SELECT ROW({values})::text FROM p"
            ).fetchall()
            assert never == [], (name, never)


def test_some_values_of_a_group_come_from_one_row(source, commander):
    """any_value, and windows whose calls have the same partitions and order."""
    player = Player(source, commander, 12, SMALL)
    player.source.execute(player.insert(20))
    order = f"ORDER BY v_int4, {BY_TEXT}"
    if source.info.server_version >= 160000:
        first = "(array_agg({0} {1}) FILTER (WHERE {0} IS NOT NULL))[1]"
        player.view(
            "SELECT b, any_value(v_int4) AS i, any_value(v_text) AS t, sum(k) AS s"
            " FROM t GROUP BY b",
            f"SELECT b, {first.format('v_int4', order)} AS i,"
            f" {first.format('v_text', order)} AS t, sum(k) AS s FROM t GROUP BY b",
        )
    whole = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
    player.view(
        "SELECT id, array_length(i, 1) AS n, (SELECT string_agg(concat(x, ':', y), ';' ORDER BY"
        " concat(x, ':', y) COLLATE \"C\") FROM unnest(i, t) u (x, y)) AS pairs FROM (SELECT id,"
        f" array_agg(v_int4) OVER (PARTITION BY b ORDER BY k {whole}) AS i,"
        f" array_agg(v_text) OVER (PARTITION BY b ORDER BY k {whole}) AS t FROM t) s"
    )
    player.play()


OWN = """
    CREATE FUNCTION times(numeric, numeric) RETURNS numeric IMMUTABLE LANGUAGE sql
        AS 'SELECT coalesce($1, 1) * coalesce($2, 1)';
    CREATE AGGREGATE product(numeric) (SFUNC = times, STYPE = numeric);
    CREATE FUNCTION step(text, int, text) RETURNS text IMMUTABLE LANGUAGE sql
        AS $$SELECT coalesce($1, '') || coalesce($2::text, '-') || coalesce($3, '.')$$;
    CREATE AGGREGATE trace(int, text) (SFUNC = step, STYPE = text);
    CREATE FUNCTION longest(text, VARIADIC text[]) RETURNS text IMMUTABLE LANGUAGE sql
        AS $$SELECT x FROM unnest($2 || $1) x ORDER BY length(x) DESC NULLS LAST, x LIMIT 1$$;
    CREATE AGGREGATE longest_of(VARIADIC text[]) (SFUNC = longest, STYPE = text);
    CREATE FUNCTION one_more(bigint) RETURNS bigint IMMUTABLE LANGUAGE sql
        AS 'SELECT $1 + 1';
    CREATE AGGREGATE how_many(*) (SFUNC = one_more, STYPE = bigint, INITCOND = '0');
    CREATE FUNCTION dice(int, int) RETURNS int LANGUAGE sql AS 'SELECT $1 * random()::int';
    CREATE AGGREGATE volatile_one(int) (SFUNC = dice, STYPE = int);
"""


def test_aggregates_of_the_user(source, commander):
    player = Player(source, commander, 5, SMALL)
    source.execute(OWN)
    source.execute(player.insert(10))
    columns = (
        "product(v_numeric), trace(v_int4, v_text ORDER BY id), how_many(*),"
        " longest_of(v_text, 'b' ORDER BY id), longest_of(VARIADIC ARRAY[v_text, 'q']),"
        " product(DISTINCT v_numeric) FILTER (WHERE b)"
    )
    names = ["a", "b", "c", "d", "e", "f"]
    listed = columns
    query = f"SELECT * FROM (SELECT {listed} FROM t) AS q({', '.join(names)})"
    player.view(query)
    player.view("SELECT k, how_many(*) FROM t GROUP BY k")
    player.play()
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="volatile") as raised:
        player.view("SELECT volatile_one(v_int4) FROM t")
    assert "IMMUTABLE" in raised.value.diag.message_hint


def test_an_aggregate_that_fails_stops_its_view(source, commander):
    """The query itself fails in the same way: two values under one key."""
    player = Player(source, commander, 6, SMALL)
    source.execute("INSERT INTO t (id, v_text) VALUES (1, 'a'), (2, 'b')")
    player.view("SELECT count(*) FROM t")
    commander.execute(
        "CALL headrace.create_view('object', $$SELECT json_object_agg_unique(v_text, id"
        " ORDER BY id) FROM t$$)"
        if source.info.server_version >= 160000
        else "CALL headrace.create_view('object', $$SELECT json_object_agg(v_text, id"
        " ORDER BY id) FROM t$$)"
    )
    assert source.execute("SELECT * FROM object").fetchone() == ({"a": 1, "b": 2},)


def test_an_aggregate_fails_only_in_groups_that_a_subquery_asks_for(source, commander):
    """A group of a subquery that no outer row asks for is not evaluated."""
    player = Player(source, commander, 6, SMALL)
    source.execute(
        "CREATE TABLE asked (id int PRIMARY KEY, k int);"
        "CREATE TABLE given (id int PRIMARY KEY, k int, name text, f float8);"
        "INSERT INTO asked VALUES (1, 1), (2, 9);"
        "INSERT INTO given VALUES (1, 1, 'a', 1), (2, 1, 'b', 2.5),"
        " (3, 2, NULL, 1e308), (4, 2, 'c', 1e308)"
    )
    calls = ("json_object_agg(g.name, g.id ORDER BY g.id)", "sum(g.f)", "stddev(g.f)")
    for call in calls:
        value = f"(SELECT {call} FROM given g WHERE g.k = a.k)::text"
        player.view(f"SELECT a.id, {value} AS v FROM asked a")
    player.check("population")
    for statement in (
        "INSERT INTO given VALUES (5, 9, 'd', 4), (6, 3, NULL, 1e308), (7, 3, 'd', 1e308)",
        "UPDATE asked SET k = 1 WHERE id = 2",
        "DELETE FROM given WHERE id = 1",
        "UPDATE asked SET k = 9",
    ):
        commit(source, [statement])
        player.check(statement)
