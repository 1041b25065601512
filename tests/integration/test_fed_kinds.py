"""Views fed from points of every kind, with values of all types (option ``from``, A-25)."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.integration import test_fed
from tests.integration.test_fed import change, check, feed

pytestmark = [pytest.mark.shared_engine, pytest.mark.slow]

TABLES = test_fed.TABLES
BELOW = {
    "vals": "SELECT * FROM (VALUES (1, 'a'), (2, 'b'), (2, 'b')) x (n, s)",
    "rec": "WITH RECURSIVE r(g, d) AS (SELECT g, 0 FROM names UNION SELECT r.g + 1, d + 1 FROM r JOIN items i ON i.id = r.g + 1 WHERE d < 4) SELECT g, d FROM r",
    "win": "SELECT id, g, rank() OVER (PARTITION BY g ORDER BY id) AS r, x FROM items",
    "top": "SELECT DISTINCT ON (g) g, id, x FROM items ORDER BY g, x DESC, id",
    "dis": "SELECT DISTINCT g, x > 50 AS big FROM items",
    "bag": "SELECT g FROM items UNION ALL SELECT g FROM names",
    "cte": "SELECT i.g, n.name, (SELECT count(*) FROM names m WHERE m.g <= i.g) AS c FROM items i LEFT JOIN names n USING (g)",
}
ABOVE = {
    "vals": "SELECT s, count(*) AS c FROM vals GROUP BY s",
    "rec": "SELECT d, count(*) AS c FROM rec GROUP BY d",
    "win": "SELECT a.id, b.id AS nx FROM win a LEFT JOIN win b ON a.g = b.g AND b.r = a.r + 1 WHERE a.r < 9",
    "top": "SELECT * FROM top WHERE g IN (SELECT g FROM names)",
    "dis": "SELECT g FROM dis GROUP BY g HAVING count(*) > 1",
    "bag": "SELECT g, row_number() OVER (ORDER BY g) AS r FROM bag",
    "cte": "SELECT DISTINCT name, c FROM cte ORDER BY c, name LIMIT 7",
}


def test_a25_every_kind_of_plan(engine, commander, source):
    rng = random.Random(3)
    queries = dict(BELOW)
    for name, query in BELOW.items():
        commander.execute("CALL headrace.create_view(%s, %s)", (name, query))
        commander.execute(f"CALL headrace.create_connection_point('{name}', '{name}')")
        change(source, rng)
        feed(commander, f"o{name}", ABOVE[name], **{"from": name})
        queries[f"o{name}"] = f"WITH {name} AS ({query}) {ABOVE[name]}"
        change(source, rng)
    check(commander, queries)
    engine.kill9()
    change(source, rng)
    engine.restart()
    with psycopg.connect(engine.dsn, autocommit=True, prepare_threshold=None) as conn:
        source.execute("UPDATE names SET g = g + 100 WHERE g > 30")
        change(source, rng)
        check(conn, queries)
        source.execute("DELETE FROM items WHERE id % 3 > 0")
        check(conn, queries)
        for name in queries:
            verified = conn.execute(f"SELECT * FROM headrace.verify_view('{name}')").fetchall()
            assert verified == [], name


KINDS = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TYPE pair AS (a int, b text);
CREATE TABLE kinds (id int PRIMARY KEY, g int, n numeric, n2 numeric(10,2), f float8, r float4,
    s text, v varchar(9), c char(6), d date, ts timestamp, tz timestamptz, i interval, m mood,
    j json, jb jsonb, tags text[], b bytea, u uuid, net inet, p money, ok bool, bits bit(3),
    tm time, pt point, o pair);
CREATE FUNCTION kinds(k int) RETURNS kinds LANGUAGE sql AS $$
    SELECT k, k % 5, k / 10.00, (k / 3.0)::numeric(10,2), CASE k % 4 WHEN 0 THEN '-0' WHEN 1 THEN 'NaN' WHEN 2 THEN
    '1e-7' ELSE k / 7.0 END::float8, (k / 3.0)::float4, E'a\\t\\n\\r\\\\N "' || k, left('é' || k, 9)::varchar(9),
    ('c' || k % 3)::char(6), date '2024-01-01' + k, timestamp '2024-01-01' + k * interval '1 ms',
    timestamptz '2024-06-01 00:00+02' + k * interval '7 hours', k * interval '1 day 25:00:01.5',
    (ARRAY['sad', 'ok'])[1 + k % 2]::mood, '{"b":  1, "a": [ ]}'::json,
    '{"b":  1.50, "a": [ ]}'::jsonb,
    ARRAY['x,' || k, NULL, '"{'], decode(lpad(to_hex(k), 6, '0'), 'hex'),
    md5(k::text)::uuid, '10.0.0.0/8'::inet, (k * 1.25)::text::money, nullif(k % 3, 2) = 1,
    (k % 8)::bit(3), time '01:02:03.5' + k * interval '1 min', NULL::point, ROW(k, 'a b')::pair $$;
INSERT INTO kinds SELECT (kinds(k)).* FROM generate_series(1, 60) k;
"""
ALL = (
    "SELECT id, g, n, n2, f, r, s, v, c, d, ts, tz, i, m, j, jb, tags, b, u, net, p, ok, bits, tm,"
    " o, n * 1.10 AS n11, round(n, 1) AS n1, c || '|' AS cc, i * 2 AS i2, d + 1 AS d1, f * 2 AS f2,"
    " s::char(3) AS s3, n::numeric(8, 3) AS n3, tz - interval '1 month' AS tzm, upper(v) AS uv,"
    " ts::date AS tsd, n2::text AS n2t, -f AS nf, age(ts) > i AS older FROM kinds"
)


def test_values_of_all_types_are_the_same_in_the_table_and_in_what_comes(engine, commander, source):
    """A retraction from the feed has the same text as the row that was read from the table."""
    source.execute(KINDS)
    views = {
        "k": ALL.replace(", age(ts) > i AS older", ""),
        "kg": "SELECT g, sum(n) AS n, avg(n2) AS a, max(i) AS i, min(tz) AS t, sum(i) AS si,"
        " string_agg(v, ',' ORDER BY id) AS vs, max(s) AS s, sum(p) AS p, min(c) AS c,"
        " max(f) AS xf, max(u::text) AS u FROM kinds GROUP BY g",
    }
    over = {
        "k": ("SELECT * FROM k", "SELECT DISTINCT c, n2, i, ok, m, tm, s3, b FROM k WHERE g < 3"),
        "kg": (
            "SELECT * FROM kg WHERE g > 0",
            "SELECT count(*) AS c, n, a, si FROM kg GROUP BY 2, 3, 4",
        ),
    }
    queries: dict[str, str] = {}
    rng = random.Random(11)

    def write() -> None:
        k = rng.randint(1, 80)
        source.execute("DELETE FROM kinds WHERE id = %s", (k,))
        source.execute("INSERT INTO kinds SELECT (kinds(%s)).*", (k,))
        source.execute(
            "UPDATE kinds SET n = n + 1.5, n2 = -n2, c = 'q', i = -i, ok = NOT ok,"
            " tags = ARRAY[s, NULL], g = (g + 1) %% 5 WHERE id %% 9 = %s",
            (k % 9,),
        )

    for name, query in views.items():
        commander.execute("CALL headrace.create_view(%s, %s)", (name, query))
        commander.execute(f"CALL headrace.create_connection_point('{name}', '{name}')")
        queries[name] = query
    stop = threading.Event()

    def writing() -> None:
        while not stop.is_set():
            write()

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(writing)
        try:
            for name, several in over.items():
                for number, query in enumerate(several):
                    feed(commander, f"{name}{number}", query, **{"from": name})
                    queries[f"{name}{number}"] = f"WITH {name} AS ({views[name]}) {query}"
        finally:
            stop.set()
        writer.result()
    check(commander, queries)
    source.execute("DELETE FROM kinds WHERE id % 3 > 0")
    check(commander, queries)
    source.execute("DELETE FROM kinds")
    check(commander, queries)
