"""Rows that a view's filters exclude at its sources: rows enter the view, leave it and return.

Sources read and store only rows that some scan needs. This requires that the stream has every value
of a row that enters the view. It has for tables whose needed values are never stored out of line,
and with REPLICA IDENTITY FULL.
"""

from __future__ import annotations

import random

import pytest

from headrace.collections.source import load_columns
from headrace.errors import UnsupportedError
from headrace.planner import PlanRequest, plan
from headrace.population.reader import WHOLE, copy_statement
from tests.compared import check, create_view, follow
from tests.waiting import create_marker, wait_until

DDL = """
CREATE TABLE example_table (id int PRIMARY KEY, b int, c text);
CREATE TABLE numbers_table (id int PRIMARY KEY, a int);
CREATE TABLE plain (id int PRIMARY KEY, v varchar(20), n numeric(6,2), day date);
CREATE TABLE wide (id int, v text, n numeric, flag boolean);
ALTER TABLE wide REPLICA IDENTITY FULL;
CREATE TABLE parts (id int, k int, n int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1, 2);
CREATE TABLE parts_2 PARTITION OF parts DEFAULT;
INSERT INTO example_table SELECT i, i * 7 % 50, 'c' || i FROM generate_series(1, 40) i;
INSERT INTO numbers_table SELECT i, i * 11 % 50 FROM generate_series(1, 40) i;
INSERT INTO plain SELECT i, 'v' || i % 9, i / 3.0, date '2024-01-01' + i FROM generate_series(1, 30) i;
INSERT INTO wide SELECT i % 7, 'v' || i % 5, i % 4, i % 3 = 0 FROM generate_series(1, 30) i;
INSERT INTO parts SELECT i, i % 4, i % 10 FROM generate_series(1, 30) i;
"""
SEED = "SELECT count(*) AS n FROM example_table e JOIN numbers_table n ON e.b = n.a WHERE e.b > 30"
VIEWS = {
    "seed": SEED,
    "few": "SELECT id, b FROM example_table WHERE b BETWEEN 20 AND 25",
    "texts": "SELECT id, c FROM example_table WHERE b > 20",
    "alike": "SELECT id, v, n FROM plain WHERE v LIKE 'v1%' OR n > 8.5 AND day > '2024-01-10'",
    "two": "SELECT x.id, y.n FROM plain x JOIN plain y ON y.day = x.day + 1 WHERE x.n > 4 AND y.v <> 'v3'",
    "one_of_two": "SELECT x.id, y.n FROM plain x LEFT JOIN plain y ON y.id = x.id + 1 WHERE x.n > 4",
    "whole": "SELECT id, v, n FROM wide WHERE n > 1 AND flag",
    "grouped": "SELECT v, count(*) AS c, sum(n) AS s FROM wide WHERE id IN (1, 3, 5) GROUP BY v",
    "partitioned": "SELECT k, count(*) AS c FROM parts WHERE n > 3 AND k < 3 GROUP BY k",
    "chosen": "SELECT id FROM plain p WHERE n > 2 AND EXISTS (SELECT FROM wide w WHERE w.id = p.id AND w.n > 2)",
}


def change(rng: random.Random) -> str:
    i, n = rng.randint(1, 45), rng.choice(["NULL", "0", "2", "4.5", "9"])
    where = rng.choice([f"id = {i}", f"id > {i}", f"id % 5 = {i % 5}"])
    whole = rng.choice(["NULL", str(rng.randint(0, 50))])
    return rng.choice(
        (
            f"INSERT INTO example_table VALUES ({i}, {whole}, 'x') ON CONFLICT DO NOTHING",
            f"UPDATE example_table SET b = {whole} WHERE {where}",
            f"UPDATE example_table SET id = id + 100 WHERE id = {i}",
            f"DELETE FROM example_table WHERE {where}",
            f"INSERT INTO numbers_table VALUES ({i}, {whole}) ON CONFLICT DO NOTHING",
            f"UPDATE numbers_table SET a = b FROM example_table e WHERE e.id = numbers_table.id AND e.id < {i}",
            f"DELETE FROM numbers_table WHERE {where}",
            f"INSERT INTO plain VALUES ({i}, 'v{i % 4}', {n}, '2024-01-15') ON CONFLICT DO NOTHING",
            f"UPDATE plain SET n = {n} WHERE {where}",
            f"UPDATE plain SET v = 'v' || {i} % 20, day = day + 1 WHERE {where}",
            f"DELETE FROM plain WHERE {where}",
            f"INSERT INTO wide SELECT i, 'v' || i, {n}, i % 2 = 0 FROM generate_series({i % 7}, {i % 7 + 2}) i",
            f"UPDATE wide SET n = {n}, flag = NOT flag WHERE {where}",
            f"DELETE FROM wide WHERE {where} AND n = {n}",
            f"INSERT INTO parts VALUES ({i}, {i % 5}, {i % 9}) ON CONFLICT DO NOTHING",
            f"UPDATE parts SET n = 9 - n WHERE {where}",
            f"UPDATE parts SET k = (k + 1) % 5, id = id + 1000 WHERE {where}",
            f"DELETE FROM parts WHERE {where}",
            rng.choice(("TRUNCATE wide", "TRUNCATE plain", "TRUNCATE numbers_table")),
        )
    )


@pytest.fixture
def filled(source, commander):
    for statement in DDL.strip().split(";\n"):
        source.execute(statement)
    create_marker(source, commander)


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("population", ["local", pytest.param("spark", marks=pytest.mark.slow)])
def test_rows_come_into_view_and_leave_it(source, commander, population):
    rng = random.Random(population)
    for name, query in VIEWS.items():
        commander.execute(
            f"CALL headrace.create_view('{name}', $q${query}$q$, '{{\"population\": \"{population}\"}}')"
        )
    transactions = ([change(rng) for _ in range(rng.randint(1, 5))] for _ in range(30))
    follow(source, VIEWS, transactions, population)


@pytest.mark.usefixtures("filled")
def test_the_extraction_has_the_predicate(source):
    planned = plan(source, PlanRequest(SEED))
    statements = [
        copy_statement(s, load_columns(s), WHOLE).as_string(source)
        for s in planned.physical.sources
    ]
    assert statements == [
        'COPY (SELECT "b", "id" FROM ONLY "public"."example_table" WHERE (("b" IS NOT NULL)'
        " AND (\"b\" OPERATOR(pg_catalog.>) '30'::integer))) TO STDOUT",
        'COPY (SELECT "a", "id" FROM ONLY "public"."numbers_table" WHERE (("a" IS NOT NULL)'
        " AND (\"a\" OPERATOR(pg_catalog.>) '30'::integer))) TO STDOUT",
    ]


def where(source, query: str) -> list[bool]:
    return [bool(s.pushdown) for s in plan(source, PlanRequest(query)).physical.sources]


@pytest.mark.usefixtures("filled")
def test_what_is_left_out(source):
    assert where(source, "SELECT id FROM example_table WHERE b > 1") == [True]
    # Texts of column c may be stored out of line.
    assert where(source, "SELECT id, c FROM example_table WHERE b > 1") == [False]
    source.execute("ALTER TABLE example_table ADD short numeric(10,2), ADD long numeric")
    assert where(source, "SELECT id, short FROM example_table WHERE b > 1") == [True]
    assert where(source, "SELECT id, long FROM example_table WHERE b > 1") == [False]
    # Some scan needs every row; hardly any row is excluded.
    assert where(source, VIEWS["one_of_two"]) == [False]
    assert where(source, "SELECT x.id FROM numbers_table x JOIN numbers_table y ON x.a = y.id") == [
        False
    ]
    # Conditions that may fail on a row, that Postgres evaluates, or that change with time.
    assert where(source, "SELECT id FROM numbers_table WHERE 10 / a > 1") == [False]
    assert where(source, "SELECT id FROM plain WHERE md5(v) > 'a'") == [False]
    assert where(source, "SELECT id FROM plain WHERE day < current_date") == [False]
    assert where(source, "SELECT id FROM plain WHERE day < current_date AND n > 3") == [True]


@pytest.mark.usefixtures("filled")
def test_without_a_proof_of_the_predicate_all_rows_are_read(source, monkeypatch):
    def refuse(lowering, exprs):
        if exprs:
            raise UnsupportedError("not proven")

    monkeypatch.setitem(plan.__globals__, "_prove", refuse)
    [found] = plan(source, PlanRequest(VIEWS["few"])).physical.sources
    assert found.wanted
    assert not found.pushdown


@pytest.mark.usefixtures("filled")
def test_names_are_those_of_now(source, commander):
    query = "SELECT id FROM numbers_table WHERE a > 20"
    create_view(commander, "v", query)
    source.execute("ALTER TABLE numbers_table RENAME a TO other")
    source.execute("ALTER TABLE numbers_table RENAME TO renamed")
    commander.execute("CALL headrace.resync_view('v')")
    check(source, {"v": "SELECT id FROM renamed WHERE other > 20"}, "resync")


@pytest.mark.usefixtures("filled")
def test_a_value_that_comes_to_be_stored_apart(source, commander):
    """No row of the table could be that long when the view was created."""
    source.execute("CREATE TABLE short (id int PRIMARY KEY, v varchar(300), n int)")
    source.execute("INSERT INTO short VALUES (1, 'a', 0), (2, 'b', 5)")
    query = "SELECT id, v FROM short WHERE n > 3"
    create_view(commander, "v", query)
    assert where(source, query) == [True]
    source.execute("ALTER TABLE short ADD long text")
    source.execute("ALTER TABLE short ALTER long SET STORAGE PLAIN, ALTER v SET STORAGE EXTERNAL")
    source.execute("UPDATE short SET v = repeat('v', 300), long = repeat('l', 1900)")
    assert where(source, query) == [False]
    source.execute("UPDATE short SET n = 4 WHERE id = 1")
    wanted = source.execute(f"{query} ORDER BY id").fetchall()

    def shown():
        return source.execute("SELECT * FROM v ORDER BY id").fetchall() == wanted

    wait_until(shown, "the view mends itself")


@pytest.mark.usefixtures("filled")
def test_values_that_were_stored_apart_before_the_column_became_plain(source, commander):
    """SET STORAGE PLAIN leaves values in TOAST, and an UPDATE that keeps them omits them."""
    source.execute("CREATE TABLE former (id int PRIMARY KEY, v text, n int)")
    source.execute("ALTER TABLE former ALTER v SET STORAGE EXTERNAL")
    source.execute("INSERT INTO former SELECT i, repeat('v', 3000), i FROM generate_series(1, 6) i")
    source.execute("ALTER TABLE former ALTER v SET STORAGE PLAIN")
    query = "SELECT id, length(v) AS l FROM former WHERE n > 3"
    create_view(commander, "v", query)
    assert where(source, query) == [False]
    follow(source, {"v": query}, [["UPDATE former SET n = n + 1"]], "plain")
