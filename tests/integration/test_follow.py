"""DDL on tables while views run: every view goes on, or recovers without a call.

Each is compared with a view of Postgres over the same query, which follows names and row types.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator

import pytest

from tests.waiting import wait_until

TABLES = """
CREATE SCHEMA s;
CREATE TYPE mood AS ENUM ('ok', 'bad');
CREATE TYPE pair AS (x int, y varchar(5));
CREATE TABLE a (id int PRIMARY KEY, junk text, v int, w varchar(5), n numeric(6,2), r real,
                m mood, c pair);
CREATE TABLE b (k int, aid int, PRIMARY KEY (k, aid));
CREATE TABLE p (id int, k int, t varchar(5), PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
CREATE TABLE p2 (t varchar(5), gone int, k int NOT NULL, id int NOT NULL, PRIMARY KEY (id, k));
ALTER TABLE p2 DROP gone;
ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2);
INSERT INTO a SELECT i, 'j', i * 2, 'w' || i, i * 1.25, i / 4.0, 'ok', ROW(i, 'y'::text)::pair FROM generate_series(1, 8) i;
INSERT INTO b SELECT i % 3, i FROM generate_series(1, 8) i;
INSERT INTO p SELECT i, 1 + i % 2, 't' || i FROM generate_series(1, 8) i;
CREATE VIEW uv AS SELECT id, upper(w) AS u, v FROM a WHERE v > 2;
"""
QUERIES = {
    "plain": "SELECT id, v, w, n, r FROM a",
    "grouped": "SELECT b.k, sum(a.v) AS s, count(*) AS c FROM a JOIN b ON b.aid = a.id GROUP BY b.k",
    "remote": "SELECT id, md5(w) AS h, rank() OVER (ORDER BY v) AS pos, m::text AS m FROM a",
    "above": "SELECT id FROM a WHERE v > (SELECT avg(x.v) FROM a x) AND EXISTS (SELECT FROM b WHERE aid = id)",
    "fields": "SELECT id, (c).x AS x, (c).y AS y FROM a",
    "of_view": "SELECT u, count(*) AS n FROM uv GROUP BY u",
    "parts": "SELECT * FROM p",
    "part_sums": "SELECT k, count(*) AS n, max(t::text) AS t FROM p GROUP BY k",
    "merged": "SELECT * FROM (SELECT id, k AS kk FROM p) q JOIN a USING (id)",
}
STACKED = {"top": "SELECT k, s FROM grouped WHERE s > 10"}
WHOLE = {
    "whole": "SELECT a.id, a::text AS a, row_to_json(a)::text AS j FROM a",
    "whole_group": "SELECT b.k, json_agg(a.* ORDER BY a.id)::text AS j FROM a JOIN b ON b.aid = a.id GROUP BY b.k",
}
FILLED = {name: QUERIES[name] for name in ("plain", "grouped", "fields", "parts")}


class World:
    """A server, its views, and Postgres views over the same queries."""

    def __init__(self, engine, source, commander) -> None:
        self.engine = engine
        self.source = source
        self.commander = commander
        self.seen: set[tuple[str, str]] = set()
        self.names: list[str] = []

    def create(self, queries: dict[str, str]) -> None:
        """Create views, and Postgres views to compare with."""
        for name, query in queries.items():
            self.commander.execute(f"CALL headrace.create_view('{name}', $q${query}$q$)")
        self.names += queries
        self.classify(queries)

    def classify(self, queries: dict[str, str]) -> None:
        for name, query in queries.items():
            self.source.execute(f"CREATE VIEW judge_{name} AS {query}")

    @contextlib.contextmanager
    def without_judges(self) -> Iterator[None]:
        """Drop the Postgres views, so that Postgres permits any alteration."""
        queries = {
            name: self.source.execute(
                "SELECT pg_get_viewdef(%s::regclass)", (f"judge_{name}",)
            ).fetchone()[0]
            for name in self.names
        }
        for name in queries:
            self.source.execute(f"DROP VIEW judge_{name}")
        yield
        self.classify(queries)

    def differences(self) -> list[str]:
        wrong = []
        for name in self.names:
            row = self.source.execute(
                f'SELECT array_agg(mine::text ORDER BY mine::text COLLATE "C") IS NOT DISTINCT FROM'
                f' (SELECT array_agg(other::text ORDER BY other::text COLLATE "C") FROM judge_{name} other)'
                f" FROM {name} mine"
            ).fetchone()
            if not row[0]:
                wrong.append(name)
        return wrong

    def stopped(self) -> list[tuple]:
        found = self.source.execute(
            "SELECT view_name, headrace.view_message(id) FROM headrace.views WHERE status <> 'running'"
        ).fetchall()
        self.seen |= set(found)
        return found

    def settle(self, what: str) -> None:
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.stopped() and not self.differences(), what, 40.0)
        different = {
            name: (self.rows(name), self.rows(f"judge_{name}")) for name in self.differences()
        }
        assert (self.stopped(), different) == ([], {}), what

    def rows(self, name: str) -> list[tuple]:
        return self.source.execute(f"SELECT row_::text FROM {name} row_ ORDER BY 1").fetchall()

    def run(self, ddl: str) -> None:
        """Run the statements one by one."""
        for statement in ddl.split("; "):
            self.source.execute(statement)

    def kill(self) -> None:
        pid = wait_until(lambda: self.engine.child("headrace.runtime.worker"), "a worker")
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def world(engine, source, commander):
    return World(engine, source, commander)


GO_ON = (
    "ALTER TABLE a RENAME v TO val",
    "UPDATE a SET val = val + 1 WHERE id < 4",
    "ALTER TABLE a RENAME TO aa",
    "UPDATE aa SET val = val + 1, w = 'x' WHERE id = 2",
    "BEGIN; INSERT INTO aa (id, val, w) VALUES (20, 5, 'i'); ALTER TABLE aa RENAME val TO tmp;"
    " ALTER TABLE aa RENAME r TO val; UPDATE aa SET tmp = 77 WHERE id = 20;"
    " ALTER TABLE aa RENAME tmp TO r; INSERT INTO aa (id, r, val) VALUES (21, 6, 0.5); COMMIT",
    "UPDATE aa SET r = r * 2, val = val / 2",
    "ALTER TABLE aa SET SCHEMA s; ALTER SCHEMA s RENAME TO s2",
    "DELETE FROM s2.aa WHERE id = 3",
    "ALTER TABLE s2.aa SET SCHEMA public; ALTER TABLE aa RENAME TO a",
    "ALTER TABLE b RENAME aid TO ref; UPDATE b SET ref = ref + 1 WHERE k = 1",
    "TRUNCATE b; INSERT INTO b SELECT i % 2, i FROM generate_series(1, 9) i",
    "ALTER TABLE b RENAME k TO kk; INSERT INTO b VALUES (1, 11), (1, 12)",
    "ALTER TABLE p RENAME id TO num; INSERT INTO p VALUES (30, 1, 'n'), (31, 2, 'm')",
    "ALTER TABLE p1 RENAME TO p_one; UPDATE p SET k = 3 - k WHERE num < 3",
    "ALTER TYPE mood ADD VALUE 'new'; UPDATE a SET m = 'new' WHERE id = 1",
    "ALTER VIEW uv RENAME TO uv2; ALTER VIEW uv2 RENAME u TO uu; UPDATE a SET w = 'q' WHERE id = 5",
    "ALTER TABLE b ADD extra int DEFAULT 3, ADD more text; INSERT INTO b VALUES (9, 9)",
    "ALTER TABLE b DROP extra, DROP more, ADD extra text; INSERT INTO b VALUES (9, 8)",
)


def test_names_are_followed(world):
    """None of these statements stops a view, even if the worker is killed meanwhile."""
    world.create(QUERIES)
    world.create(STACKED)
    for number, ddl in enumerate(GO_ON):
        world.run(ddl)
        world.settle(ddl)
        if number % 6 == 4:
            world.kill()
    assert world.seen == set()
    for name in (*QUERIES, *STACKED):
        world.commander.execute(f"CALL headrace.resync_view('{name}')")
        text = f"SELECT * FROM headrace.verify_view('{name}')"
        assert world.commander.execute(text).fetchall() == [], name
    world.settle("resynced")


FILLS = (
    "ALTER TABLE a RENAME v TO val; UPDATE a SET val = val + 1 WHERE id < 4",
    "ALTER TABLE a ADD late int DEFAULT 5; INSERT INTO a (id, val, late) VALUES (40, 1, 2)",
    "ALTER TABLE a RENAME TO aa; UPDATE aa SET late = 6 WHERE id = 40",
    "BEGIN; UPDATE aa SET val = 9 WHERE id = 1; ALTER TABLE aa DROP late, ADD late text;"
    " ALTER TABLE aa RENAME TO a; UPDATE a SET late = 'x' WHERE id = 2; COMMIT",
    "ALTER TYPE pair ADD ATTRIBUTE z int; UPDATE a SET c = ROW(1, 'q', 2) WHERE id = 4",
    "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'; UPDATE a SET m = 'bad' WHERE id = 3",
    "BEGIN; INSERT INTO a (id, w) VALUES (41, 'b'); ALTER TABLE a ALTER w TYPE varchar(9);"
    " INSERT INTO a (id, w) VALUES (42, '123456789'); COMMIT",
    "ALTER TABLE a ALTER n TYPE numeric(9,2), ALTER r TYPE double precision; UPDATE a SET n = 1234567.89, r = 0.1",
    "ALTER TABLE a ALTER val TYPE bigint; UPDATE a SET val = val + 5000000000",
    "ALTER TABLE a ALTER id TYPE bigint; UPDATE a SET id = id + 5000000000 WHERE id = 8",
    "ALTER TABLE b ALTER aid TYPE bigint; UPDATE b SET aid = aid + 5000000000 WHERE aid = 8",
    "ALTER TABLE a ALTER w TYPE text; UPDATE a SET w = repeat('w', 30) WHERE id = 1",
    "ALTER TABLE a ALTER val TYPE bigint USING val * 2; UPDATE a SET val = val + 1 WHERE id = 2",
    "BEGIN; TRUNCATE b; ALTER TABLE b RENAME k TO kk; INSERT INTO b VALUES (1, 1), (1, 2); COMMIT",
    "ALTER TABLE a REPLICA IDENTITY FULL; UPDATE a SET n = 3 WHERE id = 1",
    "BEGIN; UPDATE a SET n = 4 WHERE id = 1; ALTER TABLE a REPLICA IDENTITY DEFAULT;"
    " UPDATE a SET n = 5 WHERE id = 2; COMMIT",
    "ALTER TABLE b DROP CONSTRAINT b_pkey; INSERT INTO b VALUES (4, 4); SELECT pg_sleep(3);"
    " ALTER TABLE b ADD PRIMARY KEY (kk, aid); UPDATE b SET kk = 5 WHERE kk = 4",
    "CREATE TABLE p3 PARTITION OF p FOR VALUES IN (3); INSERT INTO p VALUES (50, 3, 'z')",
    "ALTER TABLE p DETACH PARTITION p2; UPDATE p2 SET t = 'det'",
    "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2); UPDATE p SET t = 'att' WHERE k = 2",
    "DROP TABLE p3; INSERT INTO p VALUES (60, 1, 'y')",
    "ALTER TABLE p ALTER t TYPE varchar(20); INSERT INTO p VALUES (61, 2, '0123456789')",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_a_resync_mends_is_mended(world):
    """Wider types, whole rows, keys, partitions: no call is needed."""
    world.source.execute("DROP VIEW uv")
    world.create(FILLED | WHOLE)
    for number, ddl in enumerate(FILLS):
        retyped = re.search(r"ALTER \w+ TYPE", ddl)
        with world.without_judges() if retyped else contextlib.nullcontext():
            world.run(ddl)
        world.settle(ddl)
        if number % 6 == 4:
            world.kill()
    codes = world.source.execute("SELECT DISTINCT sqlstate FROM headrace.views")
    assert codes.fetchall() == [(None,)]
