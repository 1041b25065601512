"""Views that are fed from a connection point: option ``from`` of create_view (A-25, A-45)."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.compared import differs, status_of
from tests.integration.test_resync import wait
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int, x numeric);
CREATE TABLE names (g int PRIMARY KEY, name text);
INSERT INTO items SELECT i, i % 50, i * 1.50 FROM generate_series(1, 1000) i;
INSERT INTO names SELECT i, 'n' || i FROM generate_series(0, 49, 2) i;
"""
SUMS = "SELECT g, count(*) AS n, sum(x) AS total FROM items GROUP BY g"
VIEWS = {"v": SUMS}
OVER = "SELECT n, max(total) AS most FROM v GROUP BY n"


def inlined(query: str) -> str:
    """Return ``query`` with the query of ``v`` in its place."""
    return f"WITH v AS ({SUMS}) {query}"


def refused(conn, call: str) -> psycopg.errors.Diagnostic:
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(call)
    return caught.value.diag


def feed(conn, name: str, query: str, **options: object) -> None:
    conn.execute(
        "CALL headrace.create_view(%s, %s, options => %s)",
        (name, query, json.dumps({"from": "p"} | options)),
    )


def change(conn, rng: random.Random) -> None:
    for _ in range(5):
        number = rng.randint(1, 1100)
        conn.execute(
            "INSERT INTO items VALUES (%s, %s, %s) ON CONFLICT (id)"
            " DO UPDATE SET x = items.x + 0.25, g = excluded.g",
            (number, rng.randint(0, 55), rng.randint(1, 9)),
        )
        conn.execute("DELETE FROM items WHERE id = %s", (rng.randint(1, 1100),))


@contextlib.contextmanager
def writing(
    dsn: str, also: Callable[[psycopg.Connection, random.Random, int], None]
) -> Iterator[None]:
    """Change the tables in two threads; ``also``: more statements of the transaction of a seed."""
    stop = threading.Event()

    def write(seed: int) -> None:
        rng = random.Random(seed)
        with psycopg.connect(dsn, autocommit=True) as conn:
            # The pause bounds the dead rows, which a population reads past.
            while not stop.wait(0.005):
                change(conn, rng)
                with conn.transaction():
                    conn.execute("UPDATE names SET name = name || 'x' WHERE g = %s", (seed * 2,))
                    also(conn, rng, seed)

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, seed) for seed in (1, 2)]
        try:
            yield
        finally:
            stop.set()
        for writer in writers:
            writer.result()


def plan_of(conn, name: str) -> str:
    rows = conn.execute("SELECT * FROM headrace.explain_view(%s, 'physical')", (name,)).fetchall()
    return "\n".join(str(row[0]) for row in rows)


def scans(source, *tables: str) -> int:
    """Return the number of scans of user tables, sequential and by index."""
    source.execute("SELECT pg_stat_force_next_flush()")
    return source.execute(
        "SELECT sum(seq_scan + coalesce(idx_scan, 0)) FROM pg_stat_user_tables"
        " WHERE relname = ANY (%s)",
        (list(tables),),
    ).fetchone()[0]


def exists(conn, name: str) -> bool:
    return conn.execute("SELECT to_regclass(%s) IS NOT NULL", (name,)).fetchone()[0]


def ids(source) -> set[int]:
    """Return the ids of running views; a view that is populated again gets a new one."""
    return {
        row[0] for row in source.execute("SELECT id FROM headrace.views WHERE status = 'running'")
    }


def check(conn, queries: dict[str, str]) -> None:
    for name, query in queries.items():
        wait(conn, name)
        assert differs(conn, name, query) == [], name


def test_a45_first_contents_come_from_the_point(commander, source):
    commander.execute("CALL headrace.create_connection_point('p', 'v')")
    wait(commander, "v")
    read = scans(source, "items")
    feed(commander, "w", OVER)
    assert scans(source, "items") == read
    check(commander, {"v": SUMS, "w": inlined(OVER)})
    told = plan_of(commander, "w")
    assert 'Feed of view "public"."v"' in told
    assert "public.items" not in told
    rng = random.Random(1)
    for _ in range(10):
        change(source, rng)
    check(commander, {"v": SUMS, "w": inlined(OVER)})
    assert commander.execute("SELECT * FROM headrace.verify_view('w')").fetchall() == []
    [row] = source.execute("SELECT attached FROM headrace.connection_points()").fetchall()
    assert row == (["public.w"],)
    why = refused(commander, "CALL headrace.drop_connection_point('p')")
    assert (why.sqlstate, "public.w" in why.message_detail) == ("2BP01", True)
    commander.execute("CALL headrace.drop_view('w')")
    commander.execute("CALL headrace.drop_connection_point('p')")
    change(source, rng)
    check(commander, {"v": SUMS})


def test_a45_a_filter_on_the_storage_key_is_an_index_lookup(commander, source):
    source.execute("INSERT INTO items SELECT i, i, i FROM generate_series(2000, 30000) i")
    wait(commander, "v")
    commander.execute("CALL headrace.create_connection_point('p', 'v', storage_key => 'n')")
    commander.execute("CALL headrace.create_connection_point('q', 'v', storage_key => 'total')")
    source.execute("ANALYZE v")

    def used(table: str) -> dict[str, int]:
        source.execute("SELECT pg_stat_force_next_flush()")
        return dict(
            source.execute(
                "SELECT 'seq', seq_scan FROM pg_stat_user_tables WHERE relname = %(t)s"
                " UNION ALL SELECT 'read', idx_tup_fetch FROM pg_stat_user_tables"
                " WHERE relname = %(t)s",
                {"t": table},
            ).fetchall()
        )

    query = "SELECT g, total FROM v WHERE n > 15"
    before = used("v")
    feed(commander, "w", query)
    after = used("v")
    assert after["seq"] == before["seq"]
    assert 40 < after["read"] - before["read"] < 200
    rng = random.Random(2)
    for _ in range(5):
        change(source, rng)
    source.execute(
        "INSERT INTO items SELECT i, i % 7 + 5000, i FROM generate_series(40000, 40200) i"
    )
    check(commander, {"v": SUMS, "w": inlined(query)})


def test_a45_while_writers_go_on_and_with_other_tables(engine, commander, source):
    """Once the call has returned, the fed view changes in one transaction with the view."""
    commander.execute("CALL headrace.create_connection_point('p', 'v')")
    queries = {
        "w1": "SELECT m.name, v.total, v.n FROM v JOIN names m ON m.g = v.g",
        "w2": "SELECT a.g, a.total - b.total AS d FROM v a JOIN v b ON b.g = a.g + 1",
    }

    def also(conn: psycopg.Connection, _: random.Random, seed: int) -> None:
        conn.execute("UPDATE items SET x = x + 1 WHERE g = %s", (seed * 2,))

    with writing(engine.source, also):
        for name, query in queries.items():
            feed(commander, name, query)
            for made in [n for n in ("w2",) if exists(source, n)] * 10:
                assert differs(source, made, queries[made]) == []
    for _ in range(2):
        check(commander, {"v": SUMS} | {n: inlined(q) for n, q in queries.items()})
        change(source, random.Random(9))


def test_a25_what_cannot_be_fed_is_refused(commander, source):
    commander.execute("CALL headrace.create_connection_point('p', 'v')")

    def why(query: str, **options: object) -> tuple[str, str]:
        with pytest.raises(psycopg.Error) as caught:
            feed(commander, "w", query, **options)
        return caught.value.sqlstate, caught.value.diag.message_primary

    assert why(OVER, **{"from": "q"})[0] == "42704"
    assert why(OVER, **{"from": 1})[0] == "22023"
    assert why("SELECT g FROM items")[0] == "22023"
    commander.execute("CALL headrace.pause_view('v')")
    code, message = why(OVER)
    assert (code, '"v"' in message) == ("55000", True)
    commander.execute("CALL headrace.resume_view('v')")
    commander.execute(
        "CALL headrace.create_view('c', $$SELECT id FROM items WHERE now() > '2020-01-01'$$)"
    )
    commander.execute("CALL headrace.create_connection_point('c', 'c')")
    assert why("SELECT id FROM c", **{"from": "c"})[0] == "0A000"
    assert commander.execute("SELECT count(*) FROM headrace.list_views()").fetchone() == (2,)
    change(source, random.Random(1))
    check(commander, {"v": SUMS})


@pytest.mark.slow
def test_a25_chains_and_two_on_one_point(engine, commander, source):
    commander.execute("CALL headrace.create_connection_point('p', 'v')")
    some = "SELECT g FROM v WHERE n > 15"
    feed(commander, "w", OVER)
    feed(commander, "u", some)
    commander.execute("CALL headrace.create_connection_point('q', 'w')")
    top = "SELECT count(*) AS c, sum(most) AS s FROM w"
    feed(commander, "top", top, **{"from": "q"})
    queries = {
        "v": SUMS,
        "w": inlined(OVER),
        "u": inlined(some),
        "top": f"WITH v AS ({SUMS}), w AS ({OVER}) {top}",
    }
    rng = random.Random(3)
    change(source, rng)
    check(commander, queries)
    # A view that is not fed reads both as one query, and shares their common parts.
    commander.execute("CALL headrace.create_view('plain', %s)", (OVER,))
    queries["plain"] = inlined(OVER)
    change(source, rng)
    check(commander, queries)
    engine.kill9()
    change(source, rng)
    engine.restart()
    with psycopg.connect(engine.dsn, autocommit=True, prepare_threshold=None) as conn:
        change(source, rng)
        check(conn, queries)
        for standing in ("v", "w", "u", "top"):
            conn.execute(f"CALL headrace.pause_view('{standing}')")
            change(source, rng)
            check(conn, {n: q for n, q in queries.items() if n != standing})
            conn.execute(f"CALL headrace.resume_view('{standing}')")
            check(conn, queries)
        for name in ("top", "plain", "w", "u"):
            conn.execute(f"CALL headrace.drop_view('{name}')")
            del queries[name]
            change(source, rng)
            check(conn, queries)


def test_a25_who_is_fed_is_filled_anew_after_the_view(commander, source):
    commander.execute("CALL headrace.create_connection_point('p', 'v')")
    feed(commander, "w", OVER)
    rng = random.Random(4)

    def filled(name: str) -> int | None:
        row = source.execute(
            "SELECT id FROM headrace.views WHERE view_name = %s AND status = 'running'", (name,)
        ).fetchone()
        return row and row[0]

    def again(act: str) -> None:
        before = filled("w")
        commander.execute(act)
        change(source, rng)
        wait_until(lambda: filled("w") not in (None, before), "it is filled anew", 60)
        change(source, rng)

    commander.execute("CALL headrace.resync_view('w')")
    change(source, rng)
    check(commander, {"v": SUMS, "w": inlined(OVER)})
    again("CALL headrace.resync_view('v')")
    check(commander, {"v": SUMS, "w": inlined(OVER)})
    # Manual changes of a view reach the views fed from it, until it is populated again.
    source.execute("UPDATE v SET total = 1e9 WHERE g = 7")
    commander.execute("CALL headrace.drop_view('w')")
    feed(commander, "w", OVER)
    again("CALL headrace.resync_view('v')")
    check(commander, {"v": SUMS, "w": inlined(OVER)})


@pytest.mark.slow
def test_a25_the_view_below_gets_another_query(commander, source):
    commander.execute("CALL headrace.create_connection_point('p', 'v')")
    feed(commander, "w", OVER)
    other = SUMS.replace("sum(x)", "sum(x) + 1")
    commander.execute(f"CALL headrace.alter_view('v', '{other}')")
    change(source, random.Random(4))
    queries = {"v": other, "w": f"WITH v AS ({other}) {OVER}"}
    wait_until(
        lambda: status_of(source, "w")[0] == "running" and not differs(source, "w", queries["w"]),
        "it is filled anew",
        60,
    )
    change(source, random.Random(5))
    check(commander, queries)


def test_a47_nothing_above_is_merged_with_what_is_below(engine, commander, source):
    """A filter stays above the feed, and the plan does not show the caller the tables below."""
    commander.execute("CALL headrace.create_connection_point('p', 'v')")
    with psycopg.connect(engine.source, autocommit=True) as conn:
        role = conn.execute(
            "SELECT 'fed_' || oid FROM pg_database WHERE datname = current_database()"
        )
        name = role.fetchone()[0]
        conn.execute(f"CREATE ROLE {name} LOGIN")
        conn.execute(f"GRANT CREATE ON SCHEMA public TO {name}")
    try:
        dsn = psycopg.conninfo.make_conninfo(engine.dsn, user=name)
        some = "SELECT g, total, n FROM v WHERE g = 7"
        with psycopg.connect(dsn, autocommit=True) as conn:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                feed(conn, "w", some)
            source.execute(f"GRANT SELECT ON v TO {name}")
            feed(conn, "w", some)
            told = plan_of(conn, "w")
        assert 'Feed of view "public"."v" where' in told, told
        assert "public.items" not in told
        change(source, random.Random(5))
        source.execute("UPDATE items SET x = x + 1 WHERE g = 7")
        check(commander, {"w": inlined(some)})
        # The view stops once its owner may not read `v` any more.
        source.execute(f"REVOKE SELECT ON v FROM {name}")
        wait_until(lambda: status_of(source, "w")[:2] == ("error", "42501"), "it stops")
        check(commander, {"v": SUMS})
        source.execute(f"GRANT SELECT ON v TO {name}")
        wait_until(lambda: status_of(source, "w")[0] == "running", "it is back", 60)
        change(source, random.Random(6))
        check(commander, {"w": inlined(some)})
        commander.execute("CALL headrace.drop_view('w')")
    finally:
        source.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a45_verify_knows_what_the_view_below_leaves_open(commander, source):
    lists = "SELECT g, array_agg(id) AS ids, sum(x) AS s FROM items GROUP BY g"
    commander.execute("CALL headrace.create_view('l', %s)", (lists,))
    commander.execute("CALL headrace.create_connection_point('l', 'l')")
    feed(commander, "w", "SELECT ids, s, g FROM l", **{"from": "l"})
    change(source, random.Random(7))
    source.execute("UPDATE items SET x = x + 1 WHERE id % 3 = 0")
    wait(commander, "w")
    assert commander.execute("SELECT * FROM headrace.verify_view('w')").fetchall() == []
    source.execute("UPDATE w SET ids = ids[2:] WHERE g = 3")
    assert len(commander.execute("SELECT * FROM headrace.verify_view('w')").fetchall()) == 2


def test_a25_tables_below_change_their_shape(commander, source):
    commander.execute("CALL headrace.create_connection_point('p', 'v')")
    feed(commander, "w", OVER)
    rng = random.Random(8)
    queries = {"v": SUMS, "w": inlined(OVER)}
    source.execute("ALTER TABLE items RENAME g TO h")
    source.execute("UPDATE items SET h = h + 1 WHERE id < 9")
    source.execute("ALTER TABLE items RENAME h TO g")
    source.execute("ALTER TABLE items ADD COLUMN more text DEFAULT 'x'")
    change(source, rng)
    check(commander, queries)
    # Also while the view below is paused.
    commander.execute("CALL headrace.pause_view('v')")
    source.execute("ALTER TABLE items RENAME x TO y")
    source.execute("UPDATE items SET y = y + 1 WHERE id < 99")
    source.execute("ALTER TABLE items RENAME y TO x")
    change(source, rng)
    check(commander, {"w": queries["w"]})
    commander.execute("CALL headrace.resume_view('v')")
    check(commander, queries)
    source.execute("ALTER TABLE items ALTER x TYPE numeric(12, 4)")
    change(source, rng)

    for name in queries:
        wait_until(lambda n=name: status_of(source, n)[0] == "error", f"{name} has stopped")
    why = refused(commander, "CALL headrace.resync_view('w')")
    assert (why.sqlstate, '"v"' in why.message_primary) == ("55000", True)
    for name in queries:
        commander.execute(f"CALL headrace.resync_view('{name}')")
    change(source, rng)
    check(commander, queries)


def test_a25_the_view_below_has_stopped(commander, source):
    """The fed view goes on, even if the tables below change; it is not populated again."""
    commander.execute("CALL headrace.create_view('d', %s, '{\"on_damage\": \"stop\"}')", (SUMS,))
    commander.execute("CALL headrace.create_connection_point('d', 'd')")
    commander.execute("CALL headrace.drop_view('v')")
    over = OVER.replace("FROM v", "FROM d")
    feed(commander, "w", over, **{"from": "d"})
    source.execute("DELETE FROM d")
    source.execute("UPDATE items SET x = x + 1")
    wait_until(lambda: status_of(source, "d")[0] == "error", "it has stopped")
    source.execute("ALTER TABLE items RENAME x TO y")
    source.execute("UPDATE items SET y = y + 1 WHERE id < 99")
    source.execute("ALTER TABLE items RENAME y TO x")
    source.execute("ALTER TABLE items ADD COLUMN more text DEFAULT 'x'")
    change(source, random.Random(2))
    check(commander, {"w": f"WITH d AS ({SUMS}) {over}"})
    with pytest.raises(psycopg.Error) as caught:
        feed(commander, "u", over, **{"from": "d"})
    assert caught.value.sqlstate == "55000"
    commander.execute("CALL headrace.resync_view('d')")
    change(source, random.Random(3))
    queries = {"d": SUMS, "w": f"WITH d AS ({SUMS}) {over}"}
    wait_until(lambda: status_of(source, "w")[0] == "running", "it is filled anew", 60)
    check(commander, queries)


def test_a25_beside_what_is_shared_already(commander, source):
    """The view below shares a part of its plan already; the fed view reads the clock."""
    joined = "FROM items i JOIN names m ON m.g = i.g"
    queries = {
        "a": f"SELECT m.name, sum(i.x) AS s {joined} GROUP BY m.name",
        "b": f"SELECT m.name, i.x {joined}",
    }
    for name, query in queries.items():
        commander.execute("CALL headrace.create_view(%s, %s)", (name, query))
    wait_until(lambda: "kept once" in plan_of(commander, "a"), "they share")
    rng = random.Random(9)
    for point in queries:
        commander.execute(f"CALL headrace.create_connection_point('{point}', '{point}')")
        over = f"SELECT name, count(*) AS c FROM {point} WHERE now() > '2020-01-01' GROUP BY name"
        feed(commander, f"of_{point}", over, **{"from": point})
        change(source, rng)
    for point, query in list(queries.items()):
        queries[f"of_{point}"] = (
            f"WITH {point} AS ({query}) SELECT name, count(*) AS c FROM {point} GROUP BY name"
        )
    check(commander, queries)
    for gone in ("b", "a"):
        commander.execute(f"CALL headrace.drop_view('of_{gone}')")
        commander.execute(f"CALL headrace.drop_view('{gone}')")
        del queries[f"of_{gone}"], queries[gone]
        change(source, rng)
        check(commander, queries)


@pytest.mark.slow
def test_a25_several_at_once_altered_and_renamed(engine, commander, source):
    commander.execute("CALL headrace.create_connection_point('p', 'v')")
    queries = {
        f"w{n}": f"SELECT g % {n} AS r, sum(total) AS s FROM v GROUP BY 1" for n in (2, 3, 4)
    }

    def make(name: str) -> None:
        with psycopg.connect(engine.dsn, autocommit=True, prepare_threshold=None) as conn:
            feed(conn, name, queries[name])

    rng = random.Random(12)
    with ThreadPoolExecutor(len(queries)) as pool:
        made = [pool.submit(make, name) for name in queries]
        while not all(one.done() for one in made):
            change(source, rng)
        for one in made:
            one.result()
    check(commander, {"v": SUMS} | {n: inlined(q) for n, q in queries.items()})
    queries["w2"] = "SELECT g % 2 AS r, max(total) AS s FROM v GROUP BY 1"
    commander.execute("CALL headrace.alter_view('w2', %s)", (queries["w2"],))
    why = refused(commander, "CALL headrace.alter_view('w3', 'SELECT g AS r, x AS s FROM items')")
    assert why.sqlstate == "22023"
    change(source, rng)
    check(commander, {"v": SUMS} | {n: inlined(q) for n, q in queries.items()})
    commander.execute("CALL headrace.rename_view('v', 'u')")
    change(source, rng)
    commander.execute("CALL headrace.resync_view('w3')")
    assert '"public"."u"' in plan_of(commander, "w3")
    check(commander, {"u": SUMS} | {n: inlined(q) for n, q in queries.items()})
    for _ in range(4):  # more often than damage is repaired automatically
        before = ids(source)
        commander.execute("CALL headrace.resync_view('u')")
        wait_until(
            lambda b=before: ids(source).isdisjoint(b) and len(ids(source)) == len(b), "all", 60
        )
    change(source, rng)
    check(commander, {"u": SUMS} | {n: inlined(q) for n, q in queries.items()})
