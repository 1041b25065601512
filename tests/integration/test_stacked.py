"""Views over views: the first rows come from the views below (option ``first_rows``)."""

from __future__ import annotations

import json
import random

import psycopg
import pytest

from tests.compared import differs, status_of
from tests.integration import test_fed
from tests.integration.test_fed import SUMS, change, ids, inlined, plan_of, scans, writing
from tests.integration.test_resync import wait
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

TABLES = test_fed.TABLES
VIEWS = {"v": SUMS}
OVER = "SELECT n, max(total) AS most FROM v GROUP BY n"
TOP = "SELECT g, total FROM v ORDER BY total DESC, g LIMIT 20"
FROM_V = 'first rows: from view "public"."v"'


def create(conn, name: str, query: str, **options: object) -> None:
    given = json.dumps({"first_rows": "views"} | options)
    conn.execute("CALL headrace.create_view(%s, %s, %s)", (name, query, given))


def told(conn, name: str) -> str:
    """Return the line of the plan that says where the first rows came from."""
    lines = plan_of(conn, name).splitlines()
    return next(line for line in lines if line.startswith("first rows: "))


def id_of(source, name: str) -> int | None:
    """Return the ID of a running view; it gets another one when it is populated again."""
    row = source.execute(
        "SELECT id FROM headrace.views WHERE view_name = %s AND status = 'running'", (name,)
    ).fetchone()
    return row and row[0]


def renewed(source, name: str, before: int | None) -> None:
    wait_until(lambda: id_of(source, name) not in (None, before), f"{name} is filled anew", 60)


def check(conn, queries: dict[str, str]) -> None:
    for name, query in queries.items():
        wait(conn, name)
        assert differs(conn, name, query) == [], name


def verify(conn, *names: str) -> None:
    for name in names:
        assert conn.execute("SELECT * FROM headrace.verify_view(%s)", (name,)).fetchall() == []


def many(source, commander) -> None:
    """Give ``items`` so many rows that a view over ``v`` need not read them."""
    source.execute("INSERT INTO items SELECT i, i % 50, 1 FROM generate_series(2000, 40000) i")
    source.execute("ANALYZE items")
    wait(commander, "v")
    source.execute("ANALYZE v")


def test_first_rows_come_from_the_view_below(commander, source):
    wait(commander, "v")
    read = scans(source, "items")
    create(commander, "w", OVER)
    create(commander, "x", "SELECT count(*) AS c, sum(most) AS s FROM w")
    assert scans(source, "items") == read
    assert told(commander, "w") == FROM_V
    assert told(commander, "x") == 'first rows: from view "public"."w"'
    queries = {"v": SUMS, "w": inlined(OVER)}
    queries["x"] = f"WITH w AS ({inlined(OVER)}) SELECT count(*) AS c, sum(most) AS s FROM w"
    rng = random.Random(1)
    for _ in range(5):
        change(source, rng)
    check(commander, queries)
    verify(commander, *queries)
    for name in ("v", "w"):
        with pytest.raises(psycopg.errors.DependentObjectsStillExist):
            commander.execute(f"CALL headrace.drop_view('{name}')")
    for name in ("x", "w"):
        commander.execute(f"CALL headrace.drop_view('{name}')")
        del queries[name]
        change(source, rng)
        check(commander, queries)


def test_by_default_where_that_reads_clearly_fewer_rows(commander, source):
    commander.execute("CALL headrace.create_view('few', %s)", (OVER,))
    assert told(commander, "few") == "first rows: from the tables, because they have few rows"
    many(source, commander)
    read = scans(source, "items")
    commander.execute("CALL headrace.create_view('top', %s)", (TOP,))
    assert scans(source, "items") == read
    assert told(commander, "top") == FROM_V
    # A filter that is applied to the table leaves few rows of it, too.
    counts = "SELECT g, count(*) AS n FROM items GROUP BY g"
    commander.execute("CALL headrace.create_view('counts', %s)", (counts,))
    some = "SELECT n FROM counts WHERE g = 7"
    commander.execute("CALL headrace.create_view('one', %s)", (some,))
    assert told(commander, "one") == "first rows: from the tables, because they have few rows"
    # Hardly anything is saved where the rest of the query reads much more.
    join = "JOIN items i ON i.g = v.g JOIN items j ON j.id = i.id JOIN items k ON k.id = j.id"
    rest = f"SELECT v.g, count(*) AS n FROM v {join} GROUP BY v.g"
    commander.execute("CALL headrace.create_view('wide', %s)", (rest,))
    hardly = "that reads hardly more rows, or fewer"
    assert told(commander, "wide") == f"first rows: from the tables, because {hardly}"
    change(source, random.Random(2))
    both = f"WITH v AS ({SUMS}), counts AS ({counts}) "
    queries = {"few": both + OVER, "top": both + TOP, "one": both + some, "wide": both + rest}
    check(commander, queries)
    for name in queries:
        commander.execute(f"CALL headrace.resync_view('{name}')")
    assert told(commander, "few") == FROM_V
    check(commander, queries)


def test_where_it_is_not_exact_the_tables_are_read(commander, source):
    """A query that worked goes on to work, with the plan that it had."""

    def because(name: str, query: str, **options: object) -> str:
        create(commander, name, query, **options)
        change(source, rng)
        return told(commander, name).removeprefix("first rows: from the tables, because ")

    rng = random.Random(3)
    assert because("a", OVER, first_rows="tables") == "option first_rows says so"
    assert because("b", OVER, sharing=False) == "it does not share subplans with other views"
    create(commander, "alone", SUMS, sharing=False)
    create(commander, "wide", SUMS, view_rows_max=1000)
    why = 'view "public"."wide" has limits of its own'
    assert because("g", OVER.replace("FROM v", "FROM wide")) == why
    query = OVER.replace("FROM v", "FROM alone")
    why = 'view "public"."alone" does not share subplans with other views'
    assert because("c", query) == why
    create(commander, "clock", "SELECT g, x FROM items WHERE now() > '2020-01-01'")
    assert because("d", "SELECT sum(x) FROM clock") == 'view "public"."clock" reads the clock'
    commander.execute("CALL headrace.create_connection_point('p', 'v')")
    create(commander, "fed", OVER, **{"from": "p"})
    why = 'view "public"."fed" is fed from a connection point'
    assert because("e", "SELECT count(*) FROM fed") == f"{FROM_V}, but not from all, because {why}"
    commander.execute("SET TimeZone = 'Asia/Tokyo'")
    why = 'view "public"."v" was created under other settings of the session'
    assert because("f", OVER) == why
    commander.execute("RESET TimeZone")
    commander.execute("CALL headrace.pause_view('v')")
    assert because("h", OVER) == 'view "public"."v" does not run: it is paused'
    commander.execute("CALL headrace.resume_view('v')")
    whole = {"alone": SUMS, "wide": SUMS, "clock": "SELECT g, x FROM items", "fed": inlined(OVER)}
    parts = ", ".join(f"{name} AS ({text})" for name, text in {"v": SUMS, **whole}.items())
    with_all = f"WITH {parts} "
    queries = {
        **dict.fromkeys("abcfgh", with_all + OVER),
        "d": with_all + "SELECT sum(x) FROM clock",
        "e": with_all + "SELECT count(*) FROM fed",
    }
    check(commander, whole | queries)


def test_some_of_the_views_below(commander, source):
    """A paused view is planned with its query, over the rows of a view that runs."""
    create(commander, "mid", OVER)
    commander.execute("CALL headrace.pause_view('mid')")
    query = "SELECT v.g, mid.most FROM v JOIN mid ON mid.n = v.n"
    create(commander, "w", query)
    why = 'view "public"."mid" does not run: it is paused'
    assert told(commander, "w") == f"{FROM_V}, but not from all, because {why}"
    change(source, random.Random(4))
    both = f"WITH v AS ({SUMS}), mid AS ({OVER}) {query}"
    check(commander, {"w": both})
    commander.execute("CALL headrace.resume_view('mid')")
    commander.execute("CALL headrace.resync_view('w')")
    assert told(commander, "w") == 'first rows: from views "public"."v", "public"."mid"'
    change(source, random.Random(5))
    check(commander, {"v": SUMS, "mid": inlined(OVER), "w": both})


def test_while_writers_go_on_and_with_other_tables(engine, commander, source):
    """Views below that are read several times, in subqueries and in a recursion."""
    queries = {
        "w1": "SELECT m.name, v.total, v.n FROM v JOIN names m ON m.g = v.g",
        "w2": "SELECT a.g, a.total - b.total AS d FROM v a JOIN v b ON b.g = a.g + 1",
        "w3": "SELECT v.g FROM v WHERE EXISTS (SELECT FROM w1 WHERE w1.n = v.n AND w1.name > 'n4')",
        "w4": "SELECT w1.name, count(*) AS c FROM w1 JOIN w2 ON w2.d > w1.total GROUP BY w1.name",
        "w5": "WITH RECURSIVE r(g, s) AS (SELECT g, 0 FROM v WHERE g < 3 UNION SELECT v.g, s + 1"
        " FROM r JOIN v ON v.g = r.g + 1 WHERE s < 9) SELECT s, count(*) AS c FROM r GROUP BY s",
    }
    parts = ", ".join(f"{name} AS ({query})" for name, query in {"v": SUMS, **queries}.items())
    wholes = {name: f"WITH RECURSIVE {parts} SELECT * FROM {name}" for name in queries}

    def also(conn: psycopg.Connection, _: random.Random, seed: int) -> None:
        conn.execute("UPDATE items SET x = x + 1 WHERE g = %s", (seed * 2,))

    with writing(engine.source, also):
        for name, query in queries.items():
            create(commander, name, query)
    for _ in range(2):
        check(commander, {"v": SUMS} | wholes)
        change(source, random.Random(9))
    verify(commander, *queries)


def test_two_views_below_with_one_subplan(engine, commander, source):
    """Both views below have the same query, so one shared subplan has the rows of both."""
    commander.execute("CALL headrace.create_view('same', %s)", (SUMS,))
    wait_until(lambda: "kept once" in plan_of(commander, "same"), "they share")
    query = "SELECT v.g, v.n + same.n AS n FROM v JOIN same USING (g)"
    create(commander, "w", query)
    rng = random.Random(15)
    change(source, rng)
    queries = {"same": SUMS, "w": f"WITH v AS ({SUMS}), same AS ({SUMS}) {query}"}
    check(commander, queries)
    engine.kill9()
    change(source, rng)
    engine.restart()
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        check(conn, queries)
        verify(conn, "w")


def test_it_does_not_depend_on_the_view_below(engine, commander, source):
    """A view below is paused, stops, is refilled and restarted; the view above goes on."""
    commander.execute("CALL headrace.drop_view('v')")
    create(commander, "v", SUMS, on_damage="stop", history="1 hour")
    create(commander, "w", OVER, history="1 hour")
    rng, before = random.Random(6), id_of(source, "w")
    commander.execute("CALL headrace.pause_view('v')")
    change(source, rng)
    check(commander, {"w": inlined(OVER)})
    engine.kill9()
    change(source, rng)
    engine.restart()
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        check(conn, {"w": inlined(OVER)})
        conn.execute("CALL headrace.resume_view('v')")
        check(conn, {"v": SUMS, "w": inlined(OVER)})
        verify(conn, "v", "w")
        conn.execute("CALL headrace.rename_view('v', 'u')")
        change(source, rng)
        check(conn, {"u": SUMS, "w": inlined(OVER)})
    assert id_of(source, "w") == before


def test_wrong_rows_do_not_stay(commander, source):
    """Where the rows of a view may be wrong, the views that were filled from it are refilled."""
    wait(commander, "v")
    create(commander, "w", OVER)
    create(commander, "x", "SELECT count(*) AS c, sum(most) AS s FROM w")
    queries = {"v": SUMS, "w": inlined(OVER)}
    queries["x"] = f"WITH w AS ({inlined(OVER)}) SELECT count(*) AS c, sum(most) AS s FROM w"
    # The sink misses a row: the view was damaged, at an unknown time.
    before = {name: id_of(source, name) for name in queries}
    source.execute("DELETE FROM v WHERE g = 7")
    source.execute("UPDATE items SET x = x + 1 WHERE g = 7")
    for name, had in before.items():
        renewed(source, name, had)
    check(commander, queries)
    # A change by hand that stays unnoticed until a call verifies the views.
    source.execute("UPDATE v SET total = 1e9 WHERE g = 8")
    commander.execute("CALL headrace.resync_view('w')")
    commander.execute("CALL headrace.resync_view('x')")
    assert commander.execute("SELECT max(most) > 1e8 FROM w").fetchone() == (True,)
    assert commander.execute("SELECT * FROM headrace.verify_view('w')").fetchall() != []
    before = {name: id_of(source, name) for name in queries}
    commander.execute("CALL headrace.resync_view('v')")
    for name, had in before.items():
        renewed(source, name, had)
    check(commander, queries)
    verify(commander, *queries)
    change(source, random.Random(7))
    check(commander, queries)


def test_a_paused_view_with_rows_in_doubt_stays_stopped(commander, source):
    create(commander, "w", OVER)
    commander.execute("CALL headrace.pause_view('w')")
    commander.execute("CALL headrace.resync_view('v')")
    status, code, message = status_of(source, "w")
    assert (status, code) == ("error", "55000")
    assert 'view "public"."v"' in str(message)
    commander.execute("CALL headrace.resync_view('w')")
    check(commander, {"v": SUMS, "w": inlined(OVER)})


def test_a_row_that_only_the_view_below_needs(engine, commander, source):
    """It stops the view below; the one above goes on, without it, as if it had been merged."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, g int, x int)")
    source.execute("INSERT INTO t SELECT i, i % 7, i * 10 FROM generate_series(1, 50) i")
    below = "SELECT g, sum(x) AS s, sum(100 / (x - 5)) AS f FROM t GROUP BY g"
    query, second = "SELECT g, s FROM b ORDER BY s DESC LIMIT 3", "SELECT sum(s) AS s FROM top"
    needs = "SELECT g, f FROM b"
    create(commander, "b", below)
    create(commander, "top", query)
    create(commander, "sums", second)
    create(commander, "f", needs)
    assert told(commander, "sums") == 'first rows: from view "public"."top"'
    before = {name: id_of(source, name) for name in ("top", "sums")}
    source.execute("INSERT INTO t VALUES (99, 1, 5)")
    plain = "WITH b AS (SELECT g, sum(x) AS s FROM t GROUP BY g)"
    queries = {"top": f"{plain} {query}", "sums": f"{plain}, top AS ({query}) {second}"}
    for name in ("b", "f"):
        wait_until(lambda n=name: status_of(source, n)[0] == "error", f"{name} stops")
    for name, had in before.items():
        renewed(source, name, had)
    why = 'view "public"."b" does not run: it is error'
    assert told(commander, "top") == f"first rows: from the tables, because {why}"
    source.execute("UPDATE t SET x = x + 10 WHERE id % 3 = 0 AND id < 90")
    check(commander, queries)
    # A view that needs the row is filled as soon as that is possible.
    source.execute("UPDATE t SET x = 7 WHERE id = 99")
    commander.execute("CALL headrace.resync_view('b')")
    wait_until(lambda: id_of(source, "f") is not None, "it goes on", 120)
    check(commander, {"b": below, "f": f"WITH b AS ({below}) {needs}"} | queries)


def test_an_altered_view_refills_those_above(commander, source):
    create(commander, "w", OVER)
    other = SUMS.replace("sum(x)", "sum(x) + 1")
    before = ids(source)
    commander.execute("CALL headrace.alter_view('v', %s)", (other,))
    wait_until(lambda: len(ids(source) - before) == 2, "both are filled anew", 60)
    queries = {"v": other, "w": f"WITH v AS ({other}) {OVER}"}
    change(source, random.Random(8))
    check(commander, queries)
    assert told(commander, "w") == FROM_V


def test_a_view_keeps_its_states_when_it_is_altered(commander, source):
    create(commander, "w", OVER)
    notices: list[str] = []
    commander.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    query = "SELECT n, max(total) + 1 AS most FROM v GROUP BY n"
    commander.execute("CALL headrace.alter_view('w', %s)", (query,))
    assert any("its states were kept" in text for text in notices), notices
    change(source, random.Random(9))
    check(commander, {"v": SUMS, "w": inlined(query)})
    assert told(commander, "w") == FROM_V


def test_common_parts_above_are_kept_once(engine, commander, source):
    """Two views over one view share what they both compute of it, as other views do."""
    low, high = (f"SELECT n, most FROM ({OVER}) o WHERE most {side} 500" for side in "<>")
    create(commander, "low", low)
    with writing(engine.source, lambda *_: None):
        # The common subplan begins with rows of ``v``, and has changes to take at once.
        create(commander, "high", high)
    wait_until(lambda: 'shared with "public"."low"' in plan_of(commander, "high"), "they share")
    rng = random.Random(10)
    change(source, rng)
    queries = {"v": SUMS, "low": inlined(low), "high": inlined(high)}
    check(commander, queries)
    engine.kill9()
    change(source, rng)
    engine.restart()
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        check(conn, queries)
        conn.execute("CALL headrace.drop_view('low')")
        del queries["low"]
        change(source, rng)
        check(conn, queries)


def test_rights_are_those_of_the_whole_query(engine, commander, source):
    """The owner reads the view below; its owner reads the tables."""
    with psycopg.connect(engine.source, autocommit=True) as conn:
        [number] = conn.execute(
            "SELECT oid FROM pg_database WHERE datname = current_database()"
        ).fetchone() or [0]
        owner, reader = f"over_o{number}", f"over_r{number}"
        for role in (owner, reader):
            conn.execute(f"CREATE ROLE {role} LOGIN")
            conn.execute(f"GRANT CREATE ON SCHEMA public TO {role}")
        conn.execute(f"GRANT SELECT ON items TO {owner}")

    def connected(role: str) -> psycopg.Connection:
        return psycopg.connect(
            psycopg.conninfo.make_conninfo(engine.dsn, user=role), autocommit=True
        )

    over = OVER.replace("FROM v", "FROM theirs")
    queries = {"theirs": SUMS, "w": f"WITH theirs AS ({SUMS}) {over}"}
    try:
        with connected(owner) as conn:
            create(conn, "theirs", SUMS)
        with connected(reader) as conn:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                create(conn, "w", over)
            source.execute(f"GRANT SELECT ON theirs TO {reader}")
            create(conn, "w", over)
            assert told(conn, "w") == 'first rows: from view "public"."theirs"'
            # The query of another owner's view is not shown, nor are its tables.
            assert "items" not in plan_of(conn, "w")
        with connected(owner) as theirs:
            create(theirs, "outside", "SELECT n, total FROM theirs")
            theirs.execute("CALL headrace.pause_view('outside')")
        source.execute(f"GRANT SELECT ON outside TO {reader}")
        with connected(reader) as conn:
            # The view below ``outside`` could be used, but the reason would name it.
            create(conn, "x", "SELECT max(total) AS most FROM outside")
            hidden = "first rows: from the tables, because a view below cannot be used"
            assert told(conn, "x") == hidden
            conn.execute("CALL headrace.drop_view('x')")
        commander.execute("CALL headrace.drop_view('outside')")
        change(source, random.Random(11))
        check(commander, queries)
        for table, role in (("theirs", reader), ("items", owner)):
            source.execute(f"REVOKE SELECT ON {table} FROM {role}")
            wait_until(lambda: status_of(source, "w")[:2] == ("error", "42501"), "it stops")
            source.execute("UPDATE items SET x = x + 1 WHERE g = 5")
            source.execute(f"GRANT SELECT ON {table} TO {role}")
            for name in ("theirs", "w"):
                wait_until(lambda n=name: id_of(source, n) is not None, f"{name} is back", 60)
            change(source, random.Random(12))
            check(commander, queries)
        for name in ("w", "theirs"):
            commander.execute(f"CALL headrace.drop_view('{name}')")
    finally:
        for role in (owner, reader):
            source.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_row_security_reaches_the_view_above(engine, commander, source):
    """Each role that reads the view sees the rows that it would see in the table."""
    role = "rows_" + source.execute("SELECT current_database()").fetchone()[0].rpartition("_")[2]
    source.execute(f"CREATE ROLE {role} LOGIN")
    try:
        source.execute("ALTER TABLE items ENABLE ROW LEVEL SECURITY")
        source.execute("CREATE POLICY few ON items USING (g < 10)")
        source.execute(f"GRANT SELECT ON items TO {role}")
        source.execute(f"GRANT CREATE ON SCHEMA public TO {role}")
        dsn = psycopg.conninfo.make_conninfo(engine.dsn, user=role)
        over = "SELECT g, total FROM mine WHERE n > 10"
        with psycopg.connect(dsn, autocommit=True) as conn:
            create(conn, "mine", SUMS)
            create(conn, "w", over)
            assert told(conn, "w") == 'first rows: from view "public"."mine"'
            change(source, random.Random(13))
            whole = f"WITH mine AS ({SUMS}) {over}"
            for _ in range(2):
                for name, query in {"mine": SUMS, "w": whole}.items():
                    wait(conn, name)
                    assert differs(conn, name, query) == []
                    assert conn.execute(f"SELECT max(g) < 10 FROM {name}").fetchone() == (True,)
                conn.execute("CALL headrace.resync_view('w')")
        check(commander, {"w": whole})
        for name in ("w", "mine"):
            commander.execute(f"CALL headrace.drop_view('{name}')")
    finally:
        source.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_clocks_groups_and_histories_above(commander, source):
    """A view over rows of another view reads the clock, is late, and keeps its changes."""
    create(commander, "t", "SELECT g, total FROM v WHERE now() > '2020-01-01' AND n > 2")
    create(commander, "late", OVER, commit_group="other", latency_ms=50, history="1 hour")
    assert {told(commander, name) for name in ("t", "late")} == {FROM_V}
    rng = random.Random(14)
    for _ in range(3):
        change(source, rng)
    [since] = source.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    before = source.execute("SELECT * FROM late ORDER BY 1").fetchall()
    change(source, rng)
    queries = {"t": "SELECT g, total FROM v WHERE n > 2", "late": OVER}
    check(commander, {name: inlined(query) for name, query in queries.items()})
    assert since
    assert before
    verify(commander, "t", "late")


def test_options_are_checked(commander):
    with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
        create(commander, "w", OVER, first_rows="else")
    assert "auto, views, tables" in str(caught.value.diag.message_hint)
