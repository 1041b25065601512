"""``headrace.queues()`` and ``headrace.memory()``: their rows, and the roles that see them."""

from __future__ import annotations

import msgspec
import psycopg
import pytest

from tests.integration.test_resync import wait
from tests.security.roles import connect, role
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

JOINED = "FROM items i JOIN sold s ON s.item = i.id"
QUERIES = {
    "rows": f"SELECT i.g, s.x {JOINED}",
    "sums": f"SELECT i.g, sum(s.x) AS total {JOINED} GROUP BY i.g",
}
TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int);
CREATE TABLE sold (id int PRIMARY KEY, item int, x numeric);
INSERT INTO items SELECT i, i % 5 FROM generate_series(1, 30) i;
INSERT INTO sold SELECT i, i % 40, i * 1.50 FROM generate_series(1, 100) i;
"""
FUNCTIONS = ("queues", "memory", "workers")
SUBPLAN_STATE = "shared states"


def rows(conn: psycopg.Connection, function: str) -> list[dict[str, object]]:
    """Return the rows of a Headrace function, by column."""
    with conn.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        return cursor.execute(f"SELECT * FROM headrace.{function}()").fetchall()


def by_reader(conn: psycopg.Connection) -> dict[object, dict[str, object]]:
    """Return the rows of queues() by reader."""
    return {row["reader"]: row for row in rows(conn, "queues") if row["kind"] == "subplan"}


@pytest.fixture
def sharing(commander: psycopg.Connection) -> psycopg.Connection:
    """Create two views that share a join."""
    for name, query in QUERIES.items():
        commander.execute("CALL headrace.create_view(%s, %s)", (name, query))
    readers = {f"public.{name}" for name in QUERIES}
    wait_until(lambda: by_reader(commander).keys() == readers, "both read the join")
    return commander


def test_a40_what_one_reader_takes_is_handed_over_without_a_queue(commander, source):
    for number, (name, query) in enumerate(QUERIES.items()):
        # Equal but for the condition: the views share nothing.
        other = query.replace(JOINED, f"{JOINED} AND i.g <> {number}")
        commander.execute("CALL headrace.create_view(%s, %s)", (name, other))
    source.execute("UPDATE sold SET x = x + 1")
    commander.execute("CALL headrace.wait_for('sums')")
    # Only the log is a queue, and the views have read all of it.
    [log] = rows(commander, "queues")
    assert (log["queue"], log["reader"], log["head_txid"]) == (
        *("stream", "all views"),
        log["front_txid"],
    )
    plan = commander.execute("SELECT * FROM headrace.explain_view('sums')").fetchone()
    assert "kept once" not in str(plan)


def test_what_a_paused_view_leaves_in_the_queue(sharing, source):
    sharing.execute("CALL headrace.pause_view('rows')")
    # Each matches one item, so the join gains as many rows, all distinct.
    source.execute("INSERT INTO sold SELECT i, i - 200, i FROM generate_series(201, 207) i")
    wait(sharing, "sums")
    wait_until(lambda: by_reader(sharing)["public.sums"]["behind_bytes"] == 0, "sums has it all")
    paused, other = (by_reader(sharing)[f"public.{name}"] for name in ("rows", "sums"))
    # There is one queue, with the rows that the paused view lacks.
    for name in ("queue", "node", "queued_rows", "queued_bytes", "blocks", "front_txid"):
        assert paused[name] == other[name]
    # The line of explain_view about it names the other readers.
    plan = sharing.execute("SELECT * FROM headrace.explain_view('rows')").fetchall()
    told = {line.split()[0]: line.partition("  | ")[2] for (line,) in plan}
    shared = {node: words for node, words in told.items() if "subplan" in words}
    assert list(shared) == [paused["node"]]
    words = f'{paused["queue"]}, kept once, shared with "public"."sums"; '
    assert shared[paused["node"]].startswith(words)
    assert paused["queued_rows"] == 7
    assert paused["queued_bytes"] == paused["behind_bytes"] > 0
    assert (paused["blocks"], paused["contiguous"]) == (1, True)
    assert 0 < paused["resident_bytes"] <= 131_072
    assert paused["tail_txid"] == paused["head_txid"] == paused["base_txid"]
    assert paused["base_txid"] < paused["front_txid"] <= other["tail_txid"] <= other["head_txid"]
    # Subplan queues: a reader that is paused, or has read everything, is not urgent.
    for row in (paused, other):
        assert [row[name] for name in ("kind", "priority", "resident_pct", "running")] == [
            *("subplan", 0, 100, False)
        ]
    sharing.execute("CALL headrace.resume_view('rows')")
    wait(sharing, "rows")
    wait_until(lambda: by_reader(sharing)["public.rows"]["queued_rows"] == 0, "nothing is queued")


def test_what_memory_goes_to(sharing, source, engine):
    source.execute("UPDATE sold SET x = x + 1")
    for name in QUERIES:
        wait(sharing, name)
    found = rows(sharing, "memory")
    whole = {row["part"]: row for row in found if row["view"] is None}
    assert whole["states"]["bytes"] == sum(row["bytes"] for row in found if row["view"] is not None)
    # The join's state belongs to both views, the groups only to sums.
    states = {(row["part"], row["view"]): row["bytes"] for row in found if row["view"]}
    assert states[SUBPLAN_STATE, "public.rows, public.sums"] > 0
    assert states["states", "public.sums"] > 0
    assert 0 < whole["states"]["bytes"] < whole["states"]["limit_bytes"] < 536_870_912
    assert whole["changes received"]["limit_bytes"] == 67_108_864
    assert whole["queues on disk"]["bytes"] % 131_072 == 0
    assert whole["queues on disk"]["bytes"] >= whole["queues in memory"]["bytes"]
    process = whole["process"]["bytes"]
    parts = [row["bytes"] for part, row in whole.items() if part.startswith("process: ")]
    assert process == sum(parts) > whole["states"]["bytes"]


def test_what_each_collection_has_done(sharing, source, engine):
    """Rows in and out by kind of collection, for its own and for shared collections."""

    def done(name: str) -> dict[str, dict[str, object]]:
        with sharing.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            found = cursor.execute(f"SELECT * FROM headrace.view_stats('{name}')").fetchall()
        assert {row["worker"] for row in found} == {"main"}
        return {str(row["node"]): row for row in found}

    for name in QUERIES:
        wait(sharing, name)
    before = done("sums")
    # Each row is new and matches exactly one item.
    source.execute("INSERT INTO sold SELECT i, i - 300, i FROM generate_series(301, 307) i")
    wait(sharing, "sums")
    after = done("sums")
    grown = {
        after[node]["collection"]: (
            after[node]["rows_in"] - row["rows_in"],
            after[node]["rows_out"] - row["rows_out"],
            after[node]["shared"],
        )
        for node, row in before.items()
        if after[node]["rows_in"] != row["rows_in"]
    }
    # Items 1 to 7 have two in each of two groups of five: sums of 5 groups vanish and appear.
    assert grown["source"] == (7, 7, True)
    assert grown["join"] == (7, 7, True)
    assert grown["reduce"] == (7, 10, False)
    assert grown["sink"][:1] == (10,)
    assert all(row["busy_us"] > 0 for row in after.values() if row["rows_out"])
    # No collection waits for Postgres here.
    assert all(row["busy_us"] >= row["cpu_us"] > 0 for row in after.values() if row["rows_out"])
    # 30 items and 107 sales, of which 67 + 7 match an item; five groups.
    kept = {(row["collection"], row["state_rows"]) for row in after.values()}
    assert kept - {(kind, None) for kind in ("filter", "map", "sink")} == {
        *(("source", 30), ("source", 107), ("join", 137), ("reduce", 5)),
    }
    (found,) = source.execute("CALL headrace.show_view_stats('sums')").fetchone()
    assert [row["node"] for row in found] == list(after)
    with pytest.raises(psycopg.errors.UndefinedTable):
        sharing.execute("SELECT * FROM headrace.view_stats('none')")
    with (
        role(source, "other") as other,
        connect(engine.dsn, other) as somebody,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        somebody.execute("SELECT * FROM headrace.view_stats('public.sums')")


def test_the_work_of_all_views_in_one_query(sharing, source, engine):
    for conn in (sharing, source):
        found = conn.execute(
            "SELECT v.name, count(*), sum(s.rows_out) > 0 FROM headrace.list_views() v"
            "  JOIN headrace.view_stats() s ON s.view = v.name"
            " WHERE v.name ~ 'public.(sums|rows)' GROUP BY 1 ORDER BY 1"
        ).fetchall()
        alone = {
            name: conn.execute(
                "SELECT count(*), sum(rows_out) > 0 FROM headrace.view_stats(%s)", (name,)
            ).fetchone()
            for name in ("public.rows", "public.sums")
        }
        assert {name: rest for name, *rest in found} == {n: list(row) for n, row in alone.items()}
    (whole,) = source.execute("CALL headrace.show_view_stats()").fetchone()
    assert {row["view"] for row in whole} >= {"public.rows", "public.sums"}
    with role(source, "other") as other, connect(engine.dsn, other) as somebody:
        assert somebody.execute("SELECT count(*) FROM headrace.view_stats()").fetchone() == (0,)
        source.execute(f"CREATE VIEW {other}.mine AS SELECT 1")
        with pytest.raises(psycopg.errors.UndefinedTable):
            somebody.execute("SELECT * FROM headrace.view_stats('mine')")


def test_times_are_times(sharing, source):
    source.execute("INSERT INTO sold SELECT 2000, 3, 1")
    wait(sharing, "sums")
    for table, column in (("batches", "at"), ("clients", "connected_at")):
        query = f"SELECT count(*) FROM headrace.{table}() WHERE {column} > now() - interval '1 d'"
        for conn in (sharing, source):
            assert conn.execute(query).fetchone()[0] > 0, table


def test_what_waits_for_postgres_is_not_busy_itself(commander, source):
    source.execute(
        "CREATE FUNCTION slow(int) RETURNS int IMMUTABLE LANGUAGE plpgsql"
        " AS 'BEGIN PERFORM pg_sleep(0.2); RETURN $1; END'"
    )
    commander.execute(
        "CALL headrace.create_view('slow', 'SELECT slow(g) AS g FROM items WHERE id < 3')"
    )
    source.execute("UPDATE items SET g = 17 WHERE id = 1")
    wait(commander, "slow")
    rows = commander.execute("SELECT * FROM headrace.view_stats('slow')").fetchall()
    busy_us, cpu_us = max((row[7], row[8]) for row in rows)
    assert busy_us >= 200_000
    assert cpu_us < busy_us - 150_000
    commander.execute("CALL headrace.drop_view('slow')")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_it_is_the_same_by_every_way(sharing, source, engine, function):
    declared = source.execute(
        "SELECT unnest(proargnames), unnest(proallargtypes)::int FROM pg_proc"
        " WHERE pronamespace = 'headrace'::regnamespace AND proname = %s",
        (function,),
    ).fetchall()
    text = rows(sharing, function)
    assert text
    for binary in (False, True):
        with sharing.cursor(binary=binary) as cursor:
            cursor.execute(f"SELECT * FROM headrace.{function}()")
            assert [(c.name, c.type_code) for c in cursor.description] == declared
            found = cursor.fetchall()
        assert [row[:1] for row in found] == [tuple(row.values())[:1] for row in text]
        assert [list(map(type, row)) for row in found] == [
            list(map(type, row.values())) for row in text
        ]
    for conn in (sharing, source):
        (found,) = conn.execute(f"CALL headrace.show_{function}()").fetchone()
        assert [row.keys() for row in found] == [row.keys() for row in text]
    there = rows(source, function)
    assert [row.keys() for row in there] == [row.keys() for row in text]


def test_who_sees_what(engine, source):
    """Of a shared queue, and of memory, a role sees only the parts of its own views."""
    source.execute("GRANT SELECT ON items, sold TO PUBLIC")
    with (
        role(source, "one") as one,
        role(source, "two") as two,
        role(source, "member") as member,
        role(source, "stranger") as stranger,
    ):
        source.execute(f"GRANT {one} TO {member}")
        for owner, query in ((one, QUERIES["rows"]), (two, QUERIES["sums"])):
            with connect(engine.dsn, owner) as conn:
                conn.execute("CALL headrace.create_view('v', %s)", (query,))
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            readers = {f"{one}.v", f"{two}.v"}
            wait_until(lambda: by_reader(conn).keys() == readers, "both read the join")
            views = {row["view"] for row in rows(conn, "memory")}
            assert {None, f"{one}.v, {two}.v"} <= views
        for person, own in ((one, one), (member, one), (two, two), (stranger, None)):
            wanted = {f"{own}.v"} if own else set()
            for dsn in (engine.dsn, engine.source):
                with connect(dsn, person) as conn:
                    queues, memory, workers = (
                        conn.execute(f"CALL headrace.show_{function}()").fetchone()[0]
                        for function in FUNCTIONS
                    )
                    assert {row["reader"] for row in queues} == wanted
                    assert {row["view"] for row in memory} == wanted
                    assert workers == []
            with connect(engine.dsn, person) as conn:
                assert by_reader(conn).keys() == wanted
                assert {row["view"] for row in rows(conn, "memory")} == wanted
        for owner in (one, two):
            source.execute(f"CALL headrace.drop_view('{owner}.v')")


def test_a_plan_with_what_was_measured(sharing, source, engine):
    """Nodes have the names of the view's own plan, even if they run in another view's subplan."""
    source.execute("INSERT INTO sold VALUES (301, 1, 1)")
    for name in QUERIES:
        wait(sharing, name)
    for name in QUERIES:
        [(text,)] = sharing.execute(
            f"SELECT * FROM headrace.explain_view('{name}', 'analyze', 'json')"
        ).fetchall()
        found = msgspec.json.decode(text)
        stats = sharing.execute(f"SELECT * FROM headrace.view_stats('{name}')").fetchall()
        measured = {node["id"]: node["measured"] for node in found["nodes"]}
        assert set(measured) == {row[0] for row in stats}
        assert sum(m["share_pct"] for m in measured.values()) == pytest.approx(100, abs=1)
        [join] = [node for node in found["nodes"] if node["kind"] == "Join"]
        other = ({*QUERIES} - {name}).pop()
        [cut] = [node for node in found["nodes"] if "edge" in node]
        assert cut["edge"]["shared_with"] == [f'"public"."{other}"']
        assert join["measured"]["state_rows"] == 131
        lines = [
            line
            for (line,) in sharing.execute(
                f"SELECT * FROM headrace.explain_view('{name}', 'analyze')"
            )
        ]
        assert len(lines) == len(measured)
        assert max(map(len, lines)) <= 120
        for how, begin in (("dot", "digraph"), ("mermaid", "flowchart")):
            (drawn,) = source.execute(
                "CALL headrace.explain(%s, 'analyze', %s)", (name, how)
            ).fetchone()
            assert drawn.startswith(begin)
        (called,) = source.execute(f"CALL headrace.explain('{name}')").fetchone()
        text = sharing.execute(f"SELECT * FROM headrace.explain_view('{name}')").fetchall()
        assert called == "\n".join(line for (line,) in text)
    # A direct connection shows the same.
    [(text,)] = source.execute("SELECT headrace.explain_view('sums', format => 'json')").fetchall()
    assert msgspec.json.decode(text)["root"] == "sink_1"
    for stage, how, begin in (("analyze", "text", "sink_1"), ("physical", "dot", "digraph")):
        [(drawn,), *_] = source.execute(
            "SELECT headrace.explain_view('sums', %s, %s)", (stage, how)
        ).fetchall()
        assert drawn.startswith(begin)
    with (
        role(source, "other") as other,
        connect(engine.dsn, other) as somebody,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        somebody.execute("SELECT * FROM headrace.explain_view('public.sums', 'analyze')")
