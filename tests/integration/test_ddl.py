"""DDL that the stream does not report, through the whole server: only its views stop."""

from __future__ import annotations

from tests.waiting import bump, wait_until

STOPS = {
    "rewritten": (
        "SELECT id, v FROM t1",
        "ALTER TABLE t1 ALTER v TYPE int USING v * 1000",
        "was rewritten",
    ),
    "unused": ("SELECT id FROM t2", "ALTER TABLE t2 ALTER v TYPE int USING v * 1000", None),
    "relabelled": (
        "SELECT id FROM t3 WHERE m = 'ok'",
        "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
        'label "ok"',
    ),
    "replaced": (
        "SELECT id, twice(v) AS w FROM t4",
        "CREATE OR REPLACE FUNCTION twice(x int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT x * 3'",
        "twice(integer) was replaced",
    ),
    "keyless": (
        "SELECT v, count(*) AS n FROM t5 GROUP BY v",
        "ALTER TABLE t5 DROP CONSTRAINT t5_pkey",
        "lost its replica identity",
    ),
    "dropped": ("SELECT id FROM t6", "DROP TABLE t6", "was dropped"),
    "unpublished": ("SELECT id FROM t7", "ALTER PUBLICATION headrace DROP TABLE t7", "taken out"),
    "renamed": ("SELECT id FROM t8", "ALTER TABLE t8 RENAME TO another", None),
    "vacuumed": ("SELECT id, v FROM t9", "VACUUM FULL t9", None),
}
CODES = dict.fromkeys(("rewritten", "relabelled", "replaced", "keyless"), "55H01") | {
    "unpublished": "55H02"
}
"""SQLSTATEs of stops that a resync repairs automatically, unless the options say stop."""


TABLES = """
CREATE TYPE mood AS ENUM ('ok', 'bad');
CREATE FUNCTION twice(x int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT x * 2';
"""
for number in range(1, 10):
    TABLES += f"""
CREATE TABLE t{number} (id int PRIMARY KEY, v int, m mood);
INSERT INTO t{number} SELECT i, i, 'ok' FROM generate_series(1, 5) i;
"""
# Columns that a key merely includes do not identify rows in the stream.
TABLES += "ALTER TABLE t9 DROP CONSTRAINT t9_pkey, ADD PRIMARY KEY (id) INCLUDE (v)"
MARKER = True


def test_views_stop_or_go_on(commander, source):
    def status(name: str) -> tuple:
        row = source.execute(
            "SELECT status, headrace.view_message(id), sqlstate FROM headrace.views WHERE view_name = %s",
            (name,),
        ).fetchone()
        assert row is not None
        return row

    before = {}
    for name, (query, _, _) in STOPS.items():
        commander.execute(
            f"CALL headrace.create_view('{name}', $${query}$$,"
            ' \'{"on_change": "stop", "on_damage": "stop"}\')'
        )
        before[name] = sorted(source.execute(f"SELECT * FROM {name}").fetchall())
    for _, ddl, _ in STOPS.values():
        source.execute(ddl)
    for name, (_, _, why) in STOPS.items():
        if why is None:
            continue
        wait_until(lambda name=name: status(name)[0] != "running", f"{name} stops")
        state, message, code = status(name)
        assert (state, code) == ("error", CODES.get(name, "55000")), (name, message)
        assert why in message
        assert f"CALL headrace.resync_view('public.{name}'" in message
        assert ("alter_view" in message) == (name == "dropped"), message
        rows = source.execute(f"SELECT * FROM {name}").fetchall()
        assert sorted(rows) == before[name], "the last contents are kept"
    for table in ("t2", "another", "t9"):
        source.execute(f"INSERT INTO {table} VALUES (77, 77, 'bad')")
    source.execute("UPDATE t9 SET v = v + 1 WHERE id < 4")
    number = bump(source)
    wait_until(
        lambda: source.execute("SELECT n FROM marker_view").fetchone() == (number,),
        "the other views go on",
    )
    for name, table in (("unused", "t2"), ("renamed", "another"), ("vacuumed", "t9")):
        assert status(name) == ("running", None, None)
        have = source.execute(f"SELECT id FROM {name} ORDER BY 1").fetchall()
        assert have == source.execute(f"SELECT id FROM {table} ORDER BY 1").fetchall()
    want = source.execute("SELECT id, v FROM t9 ORDER BY 1").fetchall()
    assert source.execute("SELECT * FROM vacuumed ORDER BY 1").fetchall() == want
    commander.execute("CALL headrace.drop_view('rewritten')")
    commander.execute("CALL headrace.create_view('rewritten', 'SELECT id, v FROM t1')")
    assert source.execute("SELECT max(v) FROM rewritten").fetchone() == (5000,)
