"""Views split over workers: option ``placement``, strategies, explain_placement, kills."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import threading

import psycopg
import pytest

from tests.compared import differs
from tests.integration.test_workers import OLDEST, check, listed, moves, refused, running
from tests.security.roles import connect, role
from tests.waiting import wait_until

TABLES = """
CREATE TABLE items (id int PRIMARY KEY, name text);
CREATE TABLE orders (id int PRIMARY KEY, item int, n int);
INSERT INTO items SELECT i, 'n' || i % 5 FROM generate_series(1, 20) i;
INSERT INTO orders SELECT i, i % 25, i FROM generate_series(1, 60) i;
ANALYZE items, orders;
"""
SUMS = "SELECT i.name, sum(o.n) AS s FROM items i JOIN orders o ON o.item = i.id GROUP BY i.name"
MOST = "SELECT i.name, max(o.n) AS m FROM items i JOIN orders o ON o.item = i.id GROUP BY i.name"
PAIR = f"SELECT a.name, a.s, b.m FROM ({SUMS}) a FULL JOIN ({MOST}) b ON a.s = b.m + 10"
MAIN = "headrace.runtime.worker"
CLOCK = "SELECT id, n FROM orders WHERE now() > '2020-01-01' AND n < 100"


def change(source: psycopg.Connection, rng: random.Random, transactions: int = 1) -> None:
    for _ in range(transactions):
        order, item = rng.randint(1, 80), rng.randint(1, 25)
        source.execute(
            rng.choice(
                (
                    f"INSERT INTO orders VALUES ({order}, {item}, {rng.randint(0, 9)})"
                    " ON CONFLICT (id) DO UPDATE SET n = excluded.n + orders.n",
                    f"DELETE FROM orders WHERE id = {order}",
                    f"UPDATE orders SET item = {item} WHERE id % 7 = {order % 7}",
                    f"UPDATE items SET name = 'n{order % 6}' WHERE id = {item}",
                    f"INSERT INTO items VALUES ({item}, 'new') ON CONFLICT DO NOTHING",
                )
            )
        )


def create(conn: psycopg.Connection, name: str, query: str, placement: object) -> None:
    options = json.dumps({"placement": placement})
    conn.execute("CALL headrace.create_view(%s, %s, options => %s)", (name, query, options))


def explained(conn: psycopg.Connection, what: str, *more: str) -> dict[str, dict[str, tuple]]:
    """Return rows by kind and name: worker, reason, bytes_s, cost, ns_per_row."""
    marks = ", ".join(["%s"] * (1 + len(more)))
    rows = conn.execute(f"SELECT * FROM headrace.explain_placement({marks})", (what, *more))
    out: dict[str, dict[str, tuple]] = {}
    for kind, name, *rest in rows.fetchall():
        out.setdefault(kind, {})[name] = tuple(rest)
    return out


def workers_of(conn: psycopg.Connection, view: str) -> dict[str, set[str]]:
    """Return the workers by kind of collection."""
    found: dict[str, set[str]] = {}
    for _, kind, _, worker, *_ in conn.execute(
        "SELECT * FROM headrace.view_stats(%s)", (view,)
    ).fetchall():
        found.setdefault(kind, set()).add(worker)
    return found


def wait_for_all(conn: psycopg.Connection, *names: str) -> None:
    wait_until(lambda: all(running(conn, name) for name in names), "all go on")


def test_a_view_is_cut_and_moved(engine, commander, source):
    for name in ("w1", "w2"):
        commander.execute("CALL headrace.add_worker(%s, capacity => 50)", (name,))
    create(commander, "sums", SUMS, {"join": "w1"})
    assert {name: row[2] for name, row in listed(commander).items()} == {
        "main": 1, "w1": 1, "w2": 0,
    }  # fmt: skip
    rng = random.Random(1)
    change(source, rng, 20)
    check(commander, sums=SUMS)
    found = workers_of(commander, "sums")
    assert (found["join"], found["reduce"], found["source"]) == ({"w1"}, {"main"}, {"w1"})
    assert commander.execute("SELECT * FROM headrace.verify_view('sums')").fetchall() == []
    plan = commander.execute("SELECT * FROM headrace.explain_view('sums')").fetchall()
    assert 'and below on worker "w1"' in str(plan)
    rows = explained(commander, "sums")
    assert rows["collection"]["join_1"][0] == "w1"
    assert rows["collection"]["reduce_1"][0] == "main"
    assert set(rows["link"]) == {"main to w1", "w1 to main"}
    assert "measured" in rows["costs"]
    assert rows["link"]["main to w1"][2] > 0
    # A socket of this machine is an ordinary link, regardless of its measurements.
    source.execute("INSERT INTO orders SELECT i, i % 20, 1 FROM generate_series(1000, 9000) i")
    check(commander, sums=SUMS)

    def is_measured() -> bool:
        rows = commander.execute("SELECT * FROM headrace.links()").fetchall()
        return any(row[0] == "w1" and row[4] is not None for row in rows)

    wait_until(is_measured, "the link is measured")
    for *_, bytes_s, cost, _ in explained(commander, "sums")["link"].values():
        assert bytes_s == cost > 0
    # Placements: another split, all on one worker, two strategies, and back.
    for wanted, expected in (
        ('{"reduce": "w2"}', {"w2"}),
        ("w1", {"w1"}),
        ('{"join_1": "w2"}', {"main"}),
        ("top_down", {"main"}),
        ("bottom_up", {"w1", "w2"}),  # by the measured costs of their links
        ("main", {"main"}),
    ):
        commander.execute("CALL headrace.set_placement('sums', %s)", (wanted,))
        change(source, rng, 3)
        check(commander, sums=SUMS)
        assert workers_of(commander, "sums")["reduce"] <= expected, wanted
    assert {name: row[2] for name, row in listed(commander).items()} == {
        "main": 1, "w1": 0, "w2": 0,
    }  # fmt: skip
    commander.execute("CALL headrace.remove_worker('w1')")


def test_parts_read_parts(engine, commander, source):
    """A join on w1 is read by groups on w2, and these by a join on w1."""
    for name in ("w1", "w2"):
        commander.execute("CALL headrace.add_worker(%s)", (name,))
    nested = {"reduce": "w2", "join": "w1"}
    create(commander, "pair", PAIR, nested)
    rng = random.Random(1)
    change(source, rng, 20)
    check(commander, pair=PAIR)
    assert {name: row[2] for name, row in listed(commander).items()} == {
        "main": 1, "w1": 1, "w2": 1,
    }  # fmt: skip
    found = workers_of(commander, "pair")
    assert (found["join"], found["reduce"], found["source"]) == ({"w1"}, {"w2"}, {"w1"})
    assert commander.execute("SELECT * FROM headrace.verify_view('pair')").fetchall() == []
    plan = str(commander.execute("SELECT * FROM headrace.explain_view('pair')").fetchall())
    assert 'reduce_1 and below on worker "w2"' in plan
    assert 'join_1 and below on worker "w1"' in plan
    # Both the rows of the tables and those of the groups go to w1.

    def sends() -> dict[str, dict[str, tuple]] | None:
        """Return the explanation once the join is measured; its counters may have begun anew."""
        change(source, rng, 5)
        check(commander, pair=PAIR)
        rows = explained(commander, "pair")
        return rows if rows["collection"]["join_1"][2] else None

    rows = wait_until(sends, "the join sends rows")
    at = {name: row[0] for name, row in rows["collection"].items()}
    assert (at["join_1"], at["reduce_1"], at["reduce_2"]) == ("w1", "w2", "w2")
    sent = {name: row[2] or 0 for name, row in rows["collection"].items()}
    links = {name: row[2] for name, row in rows["link"].items()}
    assert set(links) == {"main to w1", "w1 to main", "main to w2", "w2 to main"}
    to_first = [n for n in sent if n.startswith("source")] + ["reduce_1", "reduce_2"]
    assert abs(links["main to w1"] - sum(sent[name] for name in to_first)) <= len(to_first)
    assert abs(links["main to w2"] - sent["join_1"]) <= 1
    for call in ("pause_view('pair')", "resume_view('pair')"):
        commander.execute(f"CALL headrace.{call}")
        change(source, rng, 5)
    check(commander, pair=PAIR)
    view_id = "SELECT id FROM headrace.views WHERE view_name = 'pair'"
    before = source.execute(view_id).fetchall()
    for wanted, joins, groups in (
        ('{"reduce": "w1"}', {"main", "w1"}, {"w1"}),
        (json.dumps(nested), {"w1"}, {"w2"}),
        ("main", {"main"}, {"main"}),
        ('{"reduce_1": "w1", "join_1": "w2"}', {"w2", "main"}, {"w1", "main"}),
        (json.dumps(nested), {"w1"}, {"w2"}),
    ):
        commander.execute("CALL headrace.set_placement('pair', %s)", (wanted,))
        change(source, rng, 5)
        check(commander, pair=PAIR)
        found = workers_of(commander, "pair")
        assert (found["join"], found["reduce"]) == (joins, groups), wanted
    assert source.execute(view_id).fetchall() == before  # it was not rebuilt
    other = PAIR.replace("+ 10", "+ 5")
    commander.execute("CALL headrace.alter_view('pair', %s)", (other,))
    change(source, rng, 5)
    check(commander, pair=other)
    commander.execute("CALL headrace.resync_view('pair')")
    change(source, rng, 5)
    check(commander, pair=other)
    found = workers_of(commander, "pair")
    assert (found["join"], found["reduce"]) == ({"w1"}, {"w2"})
    # A part of a drained worker goes to its reader.
    commander.execute("CALL headrace.drain_worker('w2')")
    change(source, rng, 5)
    check(commander, pair=other)
    assert set().union(*workers_of(commander, "pair").values()) <= {"w1", "main"}
    commander.execute("CALL headrace.remove_worker('w2')")
    commander.execute("CALL headrace.drop_view('pair')")
    commander.execute("CALL headrace.remove_worker('w1')")


@pytest.mark.slow
def test_it_lives_with_all_that_is_done_to_views(engine, commander, source):
    for name in ("w1", "w2"):
        commander.execute("CALL headrace.add_worker(%s)", (name,))
    create(commander, "pair", PAIR, {"reduce_1": "w1", "reduce_2": "w2"})
    commander.execute("CALL headrace.create_view('most', %s)", (MOST,))
    rng = random.Random(2)
    change(source, rng, 10)
    check(commander, pair=PAIR, most=MOST)
    for worker in ("w1", "w2"):
        os.kill(listed(commander)[worker][1], signal.SIGKILL)
        change(source, rng, 3)
        check(commander, most=MOST)
        wait_for_all(commander, "pair")
        check(commander, pair=PAIR)
    os.kill(engine.child(MAIN), signal.SIGKILL)
    change(source, rng, 3)
    check(commander, most=MOST)
    wait_for_all(commander, "pair")
    for call in ("pause_view('pair')", "resume_view('pair')", "resync_view('pair')"):
        commander.execute(f"CALL headrace.{call}")
        change(source, rng, 3)
    check(commander, pair=PAIR)
    commander.execute("CALL headrace.rename_view('pair', 'two')")
    other = PAIR.replace("+ 10", "+ 5")
    commander.execute("CALL headrace.alter_view('two', %s)", (other,))
    change(source, rng, 3)
    check(commander, two=other)
    assert workers_of(commander, "two")["reduce"] == {"w1", "w2"}
    why = refused(commander, "CALL headrace.remove_worker('w2')")
    assert (why.sqlstate, "public.two" in why.message_detail) == ("55006", True)
    commander.execute("CALL headrace.drain_worker('w2')")
    change(source, rng, 3)
    check(commander, two=other)
    assert workers_of(commander, "two")["reduce"] == {"w1", "main"}
    commander.execute("CALL headrace.remove_worker('w2')")
    source.execute("ALTER TABLE items ALTER COLUMN name TYPE varchar(50)")
    change(source, rng, 3)
    for name in ("two", "most"):
        commander.execute("CALL headrace.resync_view(%s)", (name,))
    change(source, rng, 3)
    check(commander, two=other)
    assert workers_of(commander, "two")["reduce"] == {"w1", "main"}
    commander.execute("CALL headrace.drop_view('two')")
    commander.execute("CALL headrace.remove_worker('w1')")
    check(commander, most=MOST)


@pytest.mark.slow
def test_what_a_worker_has_lost_is_filled_anew(engine, commander, source):
    commander.execute("CALL headrace.add_worker('w1')")
    create(commander, "sums", SUMS, {"join": "w1"})
    change(source, random.Random(1), 5)
    check(commander, sums=SUMS)
    engine.kill9()
    for path in (engine.data_dir / "workers" / "w1" / "state").glob("*"):
        path.unlink()
    engine.start()
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        change(source, random.Random(3), 5)
        wait_for_all(conn, "sums")
        check(conn, sums=SUMS)
        assert workers_of(conn, "sums")["join"] == {"w1"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_it_goes_on_after_anything(engine, commander, source, seed):
    """Kills of any process, stopped workers, and disks of workers that are lost."""
    rng = random.Random(seed)
    for name in ("w1", "w2"):
        commander.execute("CALL headrace.add_worker(%s)", (name,))
    create(commander, "pair", PAIR, {"reduce_1": "w1", "reduce_2": "w2"})
    create(commander, "sums", SUMS, {"join": rng.choice(("w1", "w2"))})
    commander.execute("CALL headrace.create_view('most', %s)", (MOST,))
    queries = {"pair": PAIR, "sums": SUMS, "most": MOST}
    for _ in range(8):
        change(source, rng, 5)
        what = rng.choice(("worker", "worker", "halt", "main", "disk", "all", "pause", "move"))
        victim = rng.choice(("w1", "w2"))
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            pid = listed(conn)[victim][1]
            if what in ("worker", "disk") and pid is not None:
                os.kill(pid, signal.SIGKILL)
                if what == "disk":
                    state = engine.data_dir / "workers" / victim / "state"
                    shutil.rmtree(state, ignore_errors=True)
            elif what == "halt" and pid is not None:
                os.kill(pid, signal.SIGSTOP)
                change(source, rng, 3)
                os.kill(pid, signal.SIGCONT)
            elif what == "main":
                wait_until(lambda: engine.child(MAIN) is not None, "it is there")
                os.kill(engine.child(MAIN), signal.SIGKILL)
            elif what == "pause" and running(conn, "pair"):
                conn.execute("CALL headrace.pause_view('pair')")
                change(source, rng, 5)
                conn.execute("CALL headrace.resume_view('pair')")
            elif what == "move" and running(conn, "sums"):
                wanted = rng.choice(('{"join": "w1"}', '{"join": "w2"}', "main", "w1", "bottom_up"))
                conn.execute("CALL headrace.set_placement('sums', %s)", (wanted,))
        if what == "all":
            engine.kill9()
            change(source, rng, 3)
            engine.start()
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        wait_for_all(conn, *queries)
        change(source, rng, 3)
        for name, query in queries.items():
            wait_for_all(conn, name)
            conn.execute("CALL headrace.wait_for(%s)", (name,))
            assert differs(conn, name, query) == [], name


@pytest.mark.shared_engine
def test_what_is_refused(engine, commander, source):
    commander.execute("CALL headrace.add_worker('w1', capacity => 1)")
    commander.execute("CALL headrace.add_worker('w2', capacity => 0)")
    commander.execute("CALL headrace.create_view('base', %s)", (SUMS,))
    try:
        for query, placement, code, words in (
            (SUMS, {"join": "w3"}, "42704", 'worker "w3" does not exist'),
            (SUMS, {"nothing": "w1"}, "42704", 'the plan has no part "nothing"'),
            (SUMS, {"reduce": "w1", "join": "main"}, "0A000", "cannot read"),
            (SUMS, {"sink": "w1"}, "0A000", "the sink"),
            (CLOCK, {"source": "w1"}, "0A000", "reads the clock"),
            (SUMS, ["w1"], "22023", "placement"),
            (SUMS, "bottom-up", "22023", 'no placement strategy "bottom-up"'),
            (SUMS, "Top_Down", "22023", 'no placement strategy "Top_Down"'),
            (SUMS, "auto ", "22023", 'no placement strategy "auto "'),
            (
                SUMS,
                {"join": "bottom_up"},
                "22023",
                'strategy "bottom_up" cannot be used in place of a worker',
            ),
            (
                SUMS,
                {"join": "bottom-up"},
                "22023",
                'strategy "bottom-up" cannot be used in place of a worker',
            ),
            (SUMS, {"join": 1}, "22023", "placement"),
        ):
            options = json.dumps({"placement": placement}).replace("'", "''")
            call = f"CALL headrace.create_view('v', $q${query}$q$, options => '{options}')"
            why = refused(commander, call)
            assert (why.sqlstate, words in why.message_primary) == (code, True), placement
        for call, code in {
            "CALL headrace.add_worker('exact')": "42602",
            "CALL headrace.add_worker('bottom_up')": "42602",
            "CALL headrace.add_worker('bottom-up')": "42602",
            "CALL headrace.create_worker_token('top_down')": "42602",
            "CALL headrace.set_placement('base', '{\"join\": \"auto\"}')": "22023",
            "CALL headrace.add_worker('w4', -1)": "22023",
            "CALL headrace.set_placement('base', '{\"join\"}')": "22023",
            "SELECT * FROM headrace.explain_placement('base', 'best')": "22023",
            "CALL headrace.set_placement('base', 'bottom up')": "22023",
            "SELECT * FROM headrace.explain_placement('nobody')": "42P01",
        }.items():
            assert refused(commander, call).sqlstate == code, call
        # A view that is split cannot feed other views.
        create(commander, "sums", SUMS, {"join": "w1"})
        commander.execute("CALL headrace.create_connection_point('p', 'sums')")
        fed = """CALL headrace.create_view('f', 'SELECT s FROM sums', options => '{"from": "p"}')"""
        assert refused(commander, fed).sqlstate == "0A000"
        check(commander, sums=SUMS)
        with role(source, "some") as name, connect(engine.dsn, name) as somebody:
            why = refused(somebody, "SELECT * FROM headrace.explain_placement('sums')")
            assert why.sqlstate == "42501"
            why = refused(somebody, "CALL headrace.set_placement('sums', 'main')")
            assert why.sqlstate == "42501"
            shown = "SELECT name FROM headrace.list_views() WHERE name = 'public.sums'"
            assert somebody.execute(shown).fetchall() == [("public.sums",)]
        commander.execute("CALL headrace.drop_view('sums')")
    finally:
        commander.execute("CALL headrace.drop_view('base')")
        for name in ("w1", "w2"):
            commander.execute("CALL headrace.remove_worker(%s)", (name,))


@pytest.mark.shared_engine
@pytest.mark.parametrize("name", ["w9", "[1]", "W9", "headrace_9", "it''s"])
def test_a_hint_adds_a_worker_only_by_a_name_that_it_may_have(commander, source, name):
    commander.execute("CALL headrace.create_view('base', %s)", (SUMS,))
    why = refused(commander, f"CALL headrace.set_placement('base', '{name}')")
    call = re.search(r"CALL headrace\.add_worker\(.*?\)", why.message_hint)
    assert (why.sqlstate, call is not None) == ("42704", name == "w9")
    if call is None:
        assert refused(commander, f"CALL headrace.add_worker('{name}')").sqlstate == "42602"
    else:
        commander.execute(call[0])
        commander.execute("CALL headrace.remove_worker('w9')")
    why = refused(commander, """CALL headrace.set_placement('base', '{"join": null}')""")
    assert why.message_primary.endswith("or a JSON object of texts")
    commander.execute("CALL headrace.drop_view('base')")


@pytest.mark.shared_engine
def test_a_query_is_explained(engine, commander, source):
    """By statistics of the tables: the join has four columns and 60 rows, the groups two and 5."""
    commander.execute("CALL headrace.add_worker('w1', capacity => 10)")
    try:
        rows = explained(commander, SUMS)
        assert "expected" in rows["costs"]
        assert {row[0] for row in rows["collection"].values()} == {"main"}
        assert "link" not in rows
        assert rows["strategy"]["exact"][3] == 0
        rows = explained(commander, SUMS, "bottom_up")
        assert rows["collection"]["reduce_1"][0] == "w1"
        sent = {name: row[2] for name, row in rows["collection"].items()}
        tables = sum(size for name, size in sent.items() if name.startswith("source"))
        assert rows["link"]["main to w1"][2] == tables
        assert rows["strategy"]["bottom_up"][2] == tables + rows["link"]["w1 to main"][2]
        # A tenth of an ordinary link's bandwidth: each byte costs ten.
        commander.execute("CALL headrace.add_link('w1', latency_ms => 0, bytes_per_s => 12500000)")
        costly = explained(commander, SUMS, "bottom_up")
        assert costly["link"]["main to w1"][3] == 10 * tables
        total = costly["strategy"]["bottom_up"]
        assert total[3] == 10 * total[2]
        [(direct,)] = source.execute(
            "CALL headrace.show_placement(%s, 'bottom_up')", (SUMS,)
        ).fetchall()
        assert (direct[0]["what"], direct[0]["name"]) == ("costs", "expected")
        joined = "SELECT count(*) FROM headrace.explain_placement(%s, 'bottom_up') WHERE cost > 0"
        assert source.execute(joined, (SUMS,)).fetchone() > (0,)
        assert refused(source, "SELECT * FROM headrace.explain_placement('x')").sqlstate == "42P01"
        assert (
            refused(
                commander, f"SELECT * FROM headrace.explain_placement($q${CLOCK}$q$, 'exact')"
            ).sqlstate
            == "0A000"
        )
        plain = explained(commander, CLOCK)
        assert {row[0] for row in plain["collection"].values()} == {"main"}
    finally:
        commander.execute("CALL headrace.remove_worker('w1')")


@pytest.mark.slow
@pytest.mark.engine_with(HEADRACE_MAIN_CAPACITY="6")
def test_what_main_has_no_room_for_goes_elsewhere(engine, commander, source):
    """Strategies respect the capacities, over all views together, and fail if none is left."""
    commander.execute("CALL headrace.add_worker('w1', capacity => 4)")
    placed = []
    for name in ("v0", "v1"):
        create(commander, name, SUMS, "auto")
        placed.append(workers_of(commander, name))
    assert set().union(*placed[0].values()) == {"main"}
    assert "w1" in set().union(*placed[1].values())
    with pytest.raises(psycopg.Error) as caught:
        create(commander, "v2", SUMS, "auto")
    assert caught.value.diag.sqlstate == "55000"
    assert "cannot be placed" in caught.value.diag.message_primary
    change(source, random.Random(4), 5)
    check(commander, v0=SUMS, v1=SUMS)
    why = refused(commander, f"SELECT * FROM headrace.explain_placement($q${SUMS}$q$, 'exact')")
    assert why.sqlstate == "55000"


WAYS = (
    '{"join": "w1"}', '{"reduce": "w2"}', "w1", '{"join": "w1"}', '{"filter": "w2"}', "main", "w2", '{"join": "w2"}',
    '{"reduce": "w1", "join": "w2"}', '{"reduce": "w1", "join": "w2", "filter": "w1"}', '{"reduce": "w2", "join": "w1"}',
    "bottom_up", "main",
)  # fmt: skip
"""Placements: whole here, split, whole there, in parts that read parts, and back."""


@pytest.fixture
def trapped(start_engine, database, tmp_path):
    traps = tmp_path / "traps"
    traps.mkdir()
    engine = start_engine(database, HEADRACE_FAULT_DIR=str(traps))
    with psycopg.connect(database, autocommit=True, prepare_threshold=None) as source:
        source.execute(TABLES)
        yield engine, traps, source


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        *(None, ("cp08d", "kill"), ("cp08e", "kill"), ("cp08e", "hang"), ("cp08d", "raise")),
        *(("cp09", "kill"), ("cp09", "worker")),
    ],
)
def test_a_view_moves_with_its_states(trapped, fault):
    """Its changes go on in sequence: nothing is rebuilt, even if a process dies meanwhile."""
    engine, traps, source = trapped
    with psycopg.connect(engine.dsn, autocommit=True) as commander:
        for name in ("w1", "w2"):
            commander.execute("CALL headrace.add_worker(%s)", (name,))
        options = '{"sharing": false, "history": "1 hour"}'
        for name, query in (("sums", SUMS), ("most", MOST)):
            commander.execute(
                "CALL headrace.create_view(%s, %s, options => %s)", (name, query, options)
            )
        rng = random.Random(7)
        for wanted in WAYS:
            change(source, rng, 5)
            before = source.execute(OLDEST).fetchall()
            if fault:
                (traps / f"{fault[0]}.sprung").unlink(missing_ok=True)
                (traps / fault[0]).write_text(f"{'kill' if fault[1] == 'worker' else fault[1]}:1")
            moved = threading.Thread(target=moves, args=(engine.dsn, "sums", wanted))
            moved.start()
            if fault and fault[1] in ("hang", "worker"):
                wait_until(
                    lambda m=moved: not m.is_alive() or (traps / f"{fault[0]}.sprung").exists(),
                    "it is amid the move",
                )
                for name in [MAIN, "headrace.views.builder"] if fault[1] == "hang" else []:
                    os.kill(engine.child(name), signal.SIGKILL)
                if fault[1] == "worker" and (pid := listed(commander)["w1"][1]) is not None:
                    os.kill(pid, signal.SIGKILL)
            change(source, rng, 10)
            moved.join()
            wait_for_all(commander, "sums")
            change(source, rng, 5)
            check(commander, sums=SUMS, most=MOST)
            assert source.execute(OLDEST).fetchall() == before
            if not fault:
                found = workers_of(commander, "sums")
                there = {kind: found[kind] for kind in ("join", "reduce")}
                assert there == WHERE.get(wanted, there)
    engine.restart()
    with psycopg.connect(engine.dsn, autocommit=True) as commander:
        wait_for_all(commander, "sums")
        change(source, rng, 5)
        check(commander, sums=SUMS, most=MOST)
        assert commander.execute("SELECT * FROM headrace.verify_view('sums')").fetchall() == []
    assert not list((engine.data_dir / "staging").glob("[0-9]*"))


WHERE = {
    '{"join": "w1"}': {"join": {"w1"}, "reduce": {"main"}},
    '{"reduce": "w2"}': {"join": {"w2"}, "reduce": {"w2"}},
    "w1": {"join": {"w1"}, "reduce": {"w1"}},
    '{"filter": "w2"}': {"join": {"main"}, "reduce": {"main"}},
    "main": {"join": {"main"}, "reduce": {"main"}},
    "w2": {"join": {"w2"}, "reduce": {"w2"}},
    '{"join": "w2"}': {"join": {"w2"}, "reduce": {"main"}},
    '{"reduce": "w1", "join": "w2"}': {"join": {"w2"}, "reduce": {"w1"}},
    '{"reduce": "w1", "join": "w2", "filter": "w1"}': {"join": {"w2"}, "reduce": {"w1"}},
    '{"reduce": "w2", "join": "w1"}': {"join": {"w1"}, "reduce": {"w2"}},
}
