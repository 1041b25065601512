"""Partitions and children that come and go under views, compared with Postgres.

A view that is populated again gets another id, by which the tests recognise it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import psycopg
import pytest

from tests.amounts import seeds
from tests.compared import differs
from tests.waiting import wait_until

ROOT = """
CREATE TABLE {t} (id int NOT NULL, k int NOT NULL, v int, w text, d int GENERATED ALWAYS AS (v * 2)
  STORED, PRIMARY KEY (id, k)) PARTITION BY RANGE (k);
CREATE TABLE {t}_0 PARTITION OF {t} FOR VALUES FROM (0) TO (10);
"""
MORE = "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (10) TO (20);"
REST = "CREATE TABLE {t}_rest PARTITION OF {t} DEFAULT;"
OTHER = "CREATE TABLE {t}_names (k int PRIMARY KEY, name text NOT NULL);"
FILL = """
INSERT INTO {t} (id, k, v, w) SELECT i, i % 10, i, 'w' || i FROM generate_series(1, 40) i;
INSERT INTO {t}_names SELECT i, 'n' || i FROM generate_series(0, 60) i;
"""
QUERIES = {
    "rows": "SELECT id, k, v, w FROM {t}",
    "some": "SELECT id, v + 1 AS more FROM {t} WHERE v > 5 AND k <> 3",
    "sums": "SELECT k, count(*) AS n, sum(v) AS s FROM {t} GROUP BY k",
    "joined": "SELECT t.id, n.name, t.v FROM {t} t JOIN {t}_names n USING (k)",
    "computed": "SELECT id, d FROM {t}",
    "twice": "SELECT a.id, b.v FROM {t} a LEFT JOIN {t} b ON b.id = a.id + 1 AND b.v > 7",
    "united": "SELECT id FROM {t} UNION ALL SELECT k FROM {t}_names",
}
JOINED = "FROM {t} t JOIN {t}_names n USING (k)"
TWICE = "FROM {t} a JOIN {t} b ON b.id = a.id + 1 AND b.v > 7"
SHARED = {
    "rows": f"SELECT n.name, t.v {JOINED}",
    "sums": f"SELECT n.name, sum(t.v) AS s {JOINED} GROUP BY n.name",
    "most": f"SELECT n.name, max(t.v) AS m {JOINED} GROUP BY n.name",
    "over": "SELECT name, s + 1 AS s FROM {t}_view_sums WHERE s > 20",
    "pairs": f"SELECT a.v, b.k {TWICE}",
    "paired": f"SELECT b.k, count(a.v) AS n {TWICE} GROUP BY b.k",
}
"""Queries whose views share joins of the table, one of them with itself."""
FED = "SELECT count(*) AS n, sum(m) AS s FROM {t}_view_most"


class Views:
    """Views of one test, and the engine's table of them."""

    def __init__(self, commander: psycopg.Connection, source: psycopg.Connection, table: str):
        self.commander = commander
        self.source = source
        self.table = table
        self.queries: dict[str, str] = {}
        self.ids: dict[str, int] = {}

    def create(self, queries: dict[str, str], options: str = '{"sharing": false}') -> None:
        for name, query in queries.items():
            view = f"{self.table}_view_{name}"
            self.queries[view] = query.format(t=self.table)
            call = "CALL headrace.create_view(%s, %s, %s)"
            self.commander.execute(call, (view, self.queries[view], options))
        self.ids = self.now()

    def call(self, verb: str, name: str) -> None:
        self.commander.execute(f"CALL headrace.{verb}(%s)", (f"{self.table}_view_{name}",))

    def now(self) -> dict[str, int]:
        rows = self.source.execute(
            "SELECT view_name, id FROM headrace.views WHERE view_name = ANY (%s)",
            (list(self.queries),),
        ).fetchall()
        return dict(rows)

    def run(self, statements: str) -> None:
        self.source.execute(statements.format(t=self.table))

    def are_right(self, *but: str) -> None:
        left_out = [f"{self.table}_view_{name}" for name in but]
        for view, query in self.queries.items():
            if view in left_out:
                continue
            self.source.execute("CALL headrace.wait_for(%s, timeout => '90 s')", (view,))
            assert not differs(self.source, view, query)

    def come_right(self) -> None:
        """Wait until the views are right, where a change is noticed only after a while."""
        for view, query in self.queries.items():
            wait_until(lambda v=view, q=query: self._right(v, q), f"{view} is right")

    def _right(self, view: str, query: str) -> bool:
        with contextlib.suppress(psycopg.errors.ObjectNotInPrerequisiteState):
            self.source.execute("CALL headrace.wait_for(%s, timeout => '90 s')", (view,))
            return not differs(self.source, view, query)
        return False

    def read(self, *members: str) -> bool:
        """Return whether all views read exactly these partitions."""
        names = [f"{self.table}_{member}" for member in members]
        rows = self.source.execute(
            "SELECT array_agg(t.table_name::text ORDER BY t.table_name::text)"
            "   FILTER (WHERE t.table_name <> %s) = %s"
            " FROM headrace.view_tables t JOIN headrace.views v ON v.id = t.view_id"
            " WHERE v.view_name = ANY (%s) GROUP BY v.id",
            (f"{self.table}_names", sorted(names), list(self.queries)),
        ).fetchall()
        return len(rows) == len(self.queries) and all(row[0] for row in rows)

    def follow(self, statements: str, *members: str) -> None:
        """Alter the table; all views then read ``members``, and none is populated again."""
        self.run(statements)
        wait_until(lambda: self.read(*members), f"the views read {members}: {statements}")
        assert self.now() == self.ids
        self.are_right()

    def share(self) -> bool:
        """Return whether each view shares something with another one."""
        for view in self.queries:
            call = "SELECT * FROM headrace.explain_view(%s, 'physical')"
            lines = map(str, self.commander.execute(call, (view,)).fetchall())
            if not any("kept once" in line for line in lines):
                return False
        return True

    def drop(self) -> None:
        for view in reversed(self.queries):
            self.commander.execute("CALL headrace.drop_view(%s, if_exists => true)", (view,))
        self.run("DROP TABLE IF EXISTS {t}, {t}_names CASCADE")


REFUSED = (
    psycopg.errors.CheckViolation,
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateTable,
    psycopg.errors.UndefinedTable,
    psycopg.errors.WrongObjectType,
    psycopg.errors.InvalidObjectDefinition,
)
"""Errors of steps that cannot take effect."""

together = pytest.mark.shared_engine


@pytest.fixture
def views(commander, source, request) -> Iterator[Views]:
    made = Views(commander, source, f"t{abs(hash(request.node.name)) % 10**8}")
    yield made
    made.drop()


ALIKE = {name: query for name, query in QUERIES.items() if name != "computed"}
"""Queries whose views follow a table with its columns in another order."""


@together
@pytest.mark.parametrize(
    "begin",
    [
        pytest.param("", id="one"),
        pytest.param(MORE, id="two", marks=pytest.mark.slow),
        pytest.param(REST, id="rest", marks=pytest.mark.slow),
    ],
)
def test_empty_partitions_are_followed_without_a_refill(views, begin):
    views.run(ROOT + OTHER + begin + FILL)
    views.create(QUERIES)
    had = {"": ("0",), MORE: ("0", "1"), REST: ("0", "rest")}[begin]
    new = "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (20) TO (30)"
    views.follow(new, *had, "2")
    views.run("INSERT INTO {t} (id, k, v) SELECT i, 20 + i % 10, i FROM generate_series(1, 30) i")
    views.are_right()
    views.run("UPDATE {t} SET k = 25 WHERE k = 3; DELETE FROM {t} WHERE id % 7 = 0")
    views.are_right()
    views.run("DELETE FROM {t}_2; ALTER TABLE {t} DETACH PARTITION {t}_2")
    wait_until(lambda: views.read(*had), "the views read it no more")
    views.run("INSERT INTO {t}_2 (id, k, v) VALUES (77, 28, 7)")
    views.are_right()
    assert views.now() == views.ids
    # The partition is attached, and detached, with a row.
    views.run("ALTER TABLE {t} ATTACH PARTITION {t}_2 FOR VALUES FROM (20) TO (30)")
    views.come_right()
    assert views.now().keys() == views.ids.keys()
    assert not views.now().items() & views.ids.items()
    views.run("ALTER TABLE {t} DETACH PARTITION {t}_2")
    views.come_right()


@together
def test_the_new_member_may_be_of_another_shape(views):
    """Columns at other positions, nested partitions, a dropped one, another replica identity."""
    views.run(ROOT + OTHER + MORE + FILL)
    views.create(ALIKE)
    views.run(
        "CREATE TABLE {t}_2 (w text, gone int, d int, v int, k int NOT NULL, id int NOT NULL,"
        " PRIMARY KEY (id, k)); ALTER TABLE {t}_2 DROP gone, DROP d;"
        " ALTER TABLE {t}_2 ADD d int GENERATED ALWAYS AS (v * 2) STORED"
    )
    attach = "ALTER TABLE {t} ATTACH PARTITION {t}_2 FOR VALUES FROM (20) TO (30)"
    views.follow(attach, "0", "1", "2")
    views.run("INSERT INTO {t} (id, k, v, w) VALUES (1, 20, 5, 'x'), (2, 21, 50, 'y')")
    views.are_right()
    views.follow(
        "CREATE TABLE {t}_3 PARTITION OF {t} FOR VALUES FROM (30) TO (50) PARTITION BY RANGE (k);"
        " CREATE TABLE {t}_3a PARTITION OF {t}_3 FOR VALUES FROM (30) TO (40);"
        " CREATE TABLE {t}_3b PARTITION OF {t}_3 FOR VALUES FROM (40) TO (50)",
        *("0", "1", "2", "3a", "3b"),
    )
    views.run("INSERT INTO {t} (id, k, v) SELECT i, 30 + i % 20, i FROM generate_series(1, 50) i")
    views.are_right()
    views.run("DELETE FROM {t}_3b")
    views.are_right()  # once a table is dropped, its columns are unknown
    views.follow("DROP TABLE {t}_3b", "0", "1", "2", "3a")
    views.run("UPDATE {t} SET v = v + 1, k = k - 20 WHERE k > 30")
    views.are_right()
    assert views.now() == views.ids
    # A partition whose rows are identified in another way than those of the others.
    views.run("CREATE TABLE {t}_4 PARTITION OF {t} FOR VALUES FROM (50) TO (60)")
    if views.source.info.server_version < 180000:
        views.run("ALTER TABLE {t}_4 REPLICA IDENTITY FULL")
    else:  # which refuses generated columns there
        views.run(
            "CREATE UNIQUE INDEX {t}_other ON {t}_4 (k, id);"
            " ALTER TABLE {t}_4 REPLICA IDENTITY USING INDEX {t}_other"
        )
    views.come_right()
    views.run("INSERT INTO {t} (id, k, v) VALUES (9, 55, 9)")
    views.come_right()


@together
def test_children_of_a_table_that_has_some(views):
    views.run(
        "CREATE TABLE {t} (id int PRIMARY KEY, v int);"
        " CREATE TABLE {t}_a (PRIMARY KEY (id)) INHERITS ({t}); INSERT INTO {t} VALUES (1, 1);"
        " INSERT INTO {t}_a VALUES (1, 2), (2, 3)"
    )
    views.create({"rows": "SELECT id, v FROM {t}", "sum": "SELECT sum(v) AS s FROM {t}"})
    new = "CREATE TABLE {t}_b (more int, PRIMARY KEY (id)) INHERITS ({t}, {t}_a)"
    views.run(new)
    wait_until(lambda: member(views, "b"), "it is read")
    views.run("INSERT INTO {t}_b VALUES (1, 20), (7, 30)")
    views.are_right()
    assert views.now() == views.ids
    views.run("DELETE FROM {t}_b WHERE id = 1; UPDATE {t} SET v = v + 1")
    views.are_right()
    assert views.now() == views.ids


@together
def test_a_virtual_column_is_computed_as_the_named_table_says(views):
    """Postgres uses the parent's expression for rows of a child that has another one."""
    if views.source.info.server_version < 180000:
        pytest.skip("virtual columns came with Postgres 18")
    views.run(
        "CREATE TABLE {t} (gone int, id int PRIMARY KEY, v int,"
        " d int GENERATED ALWAYS AS (v * 2) VIRTUAL) PARTITION BY RANGE (id);"
        " ALTER TABLE {t} DROP gone;"
        " CREATE TABLE {t}_0 PARTITION OF {t} FOR VALUES FROM (0) TO (10);"
        " CREATE TABLE {t}_1 PARTITION OF {t} (d WITH OPTIONS GENERATED ALWAYS AS (v * 100))"
        " FOR VALUES FROM (10) TO (20);"
        " CREATE TABLE {t}_tree (id int PRIMARY KEY, v int, d int GENERATED ALWAYS AS (v * 2));"
        " CREATE TABLE {t}_child (d int GENERATED ALWAYS AS (v * 7), PRIMARY KEY (id))"
        " INHERITS ({t}_tree);"
        " INSERT INTO {t} (id, v) SELECT i, i FROM generate_series(1, 19) i;"
        " INSERT INTO {t}_tree (id, v) VALUES (1, 1); INSERT INTO {t}_child (id, v) VALUES (2, 2)"
    )
    queries = {
        "whole": "SELECT * FROM {t}",
        "sums": "SELECT d % 7 AS g, count(*) AS n FROM {t} WHERE d > 9 GROUP BY 1",
        "part": "SELECT id, d FROM {t}_1",
        "tree": "SELECT id, d FROM {t}_tree",
        "child": "SELECT id, d FROM {t}_child",
    }
    views.create(queries)
    views.are_right()
    views.run("UPDATE {t} SET v = v + 1 WHERE id > 5; DELETE FROM {t} WHERE d = 24")
    views.run("UPDATE {t}_tree SET v = v + 5")
    views.are_right()
    # The parent is not published, so Postgres allows this.
    views.run("ALTER TABLE ONLY {t} ALTER d SET EXPRESSION AS (v * 3)")
    views.come_right()
    views.run("UPDATE {t} SET v = v + 1 WHERE id < 15")
    views.come_right()


def member(views: Views, name: str) -> bool:
    rows = views.source.execute(
        "SELECT FROM headrace.view_tables WHERE table_name = %s", (f"{views.table}_{name}",)
    )
    return rows.rowcount == len(views.queries)


@together
def test_a_partition_that_comes_with_rows_is_filled(views):
    views.run(ROOT + OTHER + FILL)
    views.create(ALIKE)
    with views.source.transaction():
        views.run("CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (20) TO (30)")
        views.run("INSERT INTO {t} (id, k, v) VALUES (1, 20, 5), (2, 21, 50)")
    views.come_right()
    views.run("UPDATE {t} SET v = v + 1")
    views.are_right()


@together
def test_only_views_of_the_table_that_gets_rows_are_filled(views):
    other = Views(views.commander, views.source, f"{views.table}_other")
    for one in (views, other):
        one.run(ROOT + OTHER + FILL)
        one.create({"sums": QUERIES["sums"]})
    with views.source.transaction():
        for one in (views, other):
            one.run("CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (20) TO (30)")
        other.run("INSERT INTO {t} (id, k, v) VALUES (1, 20, 5)")
    wait_until(lambda: views.read("0", "2") and other.read("0", "2"), "both are read")
    for one in (views, other):
        one.come_right()
    assert views.now() == views.ids
    assert other.now() != other.ids
    other.drop()


@together
def test_a_partition_that_is_being_written_is_filled(views, engine):
    """No session waits long for the engine, and no row is lost."""
    views.run(ROOT + OTHER + FILL)
    views.create(ALIKE)
    with psycopg.connect(engine.source) as other:
        with views.source.transaction():
            views.run("CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (20) TO (30)")
        other.execute(f"INSERT INTO {views.table} (id, k, v) VALUES (1, 20, 5)")
        wait_until(lambda: views.now() != views.ids or stopped(views), "they are filled anew")
        other.commit()
    views.come_right()


def stopped(views: Views) -> bool:
    rows = views.source.execute(
        "SELECT FROM headrace.views WHERE view_name = ANY (%s) AND status = 'error'",
        (list(views.queries),),
    )
    return rows.rowcount > 0


@together
@pytest.mark.parametrize("seed", seeds(1, 8))
def test_any_history_of_partitions_and_rows(views, seed):
    """Partitions come and go, with and without rows, during writes; nothing waits for the views."""
    rng = random.Random(seed)
    views.run(ROOT + OTHER + (REST if rng.random() < 0.5 else "") + FILL)
    views.create({name: ALIKE[name] for name in rng.sample(sorted(ALIKE), 3)})
    for _ in range(25):
        with contextlib.suppress(*REFUSED):
            views.run(step(rng))
        if rng.random() < 0.2:
            wait_until(lambda: not stopped(views), "they run")
    views.come_right()
    views.run("UPDATE {t} SET v = v + 1; DELETE FROM {t} WHERE id % 5 = 1")
    views.come_right()


OVER_ROWS = ('{"from": "p"}', '{"first_rows": "views"}')
"""Options of a view over the rows of another view."""


@together
@pytest.mark.parametrize("options", OVER_ROWS)
def test_views_that_share_follow_together(views, options):
    views.run(ROOT + OTHER + MORE + FILL)
    views.create(SHARED, "{}")
    views.commander.execute(
        "CALL headrace.create_connection_point('p', %s)", (f"{views.table}_view_most",)
    )
    views.create({"fed": FED}, options)
    wait_until(views.share, "all share")
    views.follow(
        "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (20) TO (30);"
        " CREATE TABLE {t}_3 PARTITION OF {t} FOR VALUES FROM (30) TO (50) PARTITION BY RANGE (k);"
        " CREATE TABLE {t}_3a PARTITION OF {t}_3 FOR VALUES FROM (30) TO (40)",
        *("0", "1", "2", "3a"),
    )
    views.run("INSERT INTO {t} (id, k, v) SELECT i, 20 + i % 20, i FROM generate_series(1, 30) i")
    views.are_right()
    assert views.share()
    views.run("UPDATE {t} SET k = 25 WHERE k = 3; DELETE FROM {t} WHERE id % 7 = 0")
    views.are_right()
    views.run("DELETE FROM {t}_2; UPDATE {t} SET id = id + 100, k = 1 WHERE k = 31")
    views.run("DELETE FROM {t}_3a")
    views.are_right()
    views.follow("ALTER TABLE {t} DETACH PARTITION {t}_2; DROP TABLE {t}_3", "0", "1")
    views.run("INSERT INTO {t}_2 (id, k, v) VALUES (77, 28, 7); UPDATE {t} SET v = v + 1")
    views.are_right()
    assert views.share()
    assert views.now() == views.ids


@together
@pytest.mark.parametrize("options", OVER_ROWS)
def test_a_view_follows_whose_view_below_has_stopped(views, options):
    """It is the only reader of the subplan that computes the view below."""
    views.run(ROOT + OTHER + MORE + FILL)
    views.create({"most": SHARED["most"]}, '{"on_damage": "stop"}')
    below = f"{views.table}_view_most"
    views.commander.execute("CALL headrace.create_connection_point('p', %s)", (below,))
    views.create({"fed": FED}, options)
    # A trigger would run with the rights of the engine.
    views.run("CREATE FUNCTION {t}_f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'")
    views.run("CREATE TRIGGER x BEFORE INSERT ON {t}_view_most EXECUTE FUNCTION {t}_f()")
    views.run("UPDATE {t} SET v = v + 1")
    wait_until(lambda: stopped(views), "the view below has stopped")
    views.run("CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (20) TO (30)")
    fed = {f"{views.table}_view_fed"}
    only = "SELECT FROM headrace.view_tables t JOIN headrace.views v ON v.id = t.view_id"
    only += " WHERE t.table_name = %s AND v.view_name = ANY (%s)"
    table = f"{views.table}_2"
    wait_until(lambda: views.source.execute(only, (table, list(fed))).rowcount, "it is read")
    views.run(
        "INSERT INTO {t} (id, k, v) SELECT i, 20 + i % 9, 99 + i FROM generate_series(1, 9) i"
    )
    query = f"WITH {below} AS ({views.queries[below]}) {views.queries[min(fed)]}"
    views.source.execute("CALL headrace.wait_for(%s, timeout => '90 s')", (min(fed),))
    assert not differs(views.source, min(fed), query)
    views.run("DROP TRIGGER x ON {t}_view_most")
    views.call("resync_view", "most")
    views.come_right()


@together
def test_a_view_that_is_paused_follows_those_it_shares_with(views):
    views.run(ROOT + OTHER + MORE + FILL)
    names = ("rows", "sums", "most")
    views.create({name: SHARED[name] for name in names}, "{}")
    wait_until(views.share, "all share")
    views.call("pause_view", "sums")
    views.run("UPDATE {t} SET v = v + 1; INSERT INTO {t} (id, k, v) VALUES (8, 15, 3)")
    views.run("CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (20) TO (30)")
    wait_until(lambda: views.read("0", "1", "2"), "they read it")
    views.run("INSERT INTO {t} (id, k, v) VALUES (1, 20, 5), (2, 21, 50)")
    views.are_right("sums")
    # Another view is paused before the partition's rows come and go.
    views.call("resume_view", "sums")
    views.are_right()
    views.call("pause_view", "most")
    views.run("INSERT INTO {t} (id, k, v) VALUES (7, 20, 500); DELETE FROM {t}_2")
    views.run("ALTER TABLE {t} DETACH PARTITION {t}_2; UPDATE {t} SET v = v + 1")
    views.are_right("most")
    assert views.read("0", "1", "2")  # for the rows that the paused view lacks
    views.call("resume_view", "most")
    wait_until(lambda: views.read("0", "1"), "they read it no more")
    views.are_right()
    assert views.share()
    assert views.now() == views.ids


@pytest.mark.slow
@together
def test_a_partition_that_is_gone_and_locked_is_waited_for(views, engine):
    views.run(ROOT + OTHER + MORE + FILL)
    views.create({name: QUERIES[name] for name in ("rows", "sums")})
    for name in ("rows", "sums"):
        views.call("pause_view", name)
    views.run("INSERT INTO {t} (id, k, v) VALUES (1, 11, 5); DELETE FROM {t}_1")
    views.run("ALTER TABLE {t} DETACH PARTITION {t}_1")
    with psycopg.connect(engine.source) as other:
        other.execute(f"LOCK TABLE {views.table}_1 IN SHARE MODE")
        for name in ("rows", "sums"):
            views.call("resume_view", name)
        refused = (
            "SELECT FROM pg_locks WHERE relation = %s::regclass AND NOT granted"
            " AND mode = 'ShareUpdateExclusiveLock'"
        )
        table = (f"{views.table}_1",)
        for _ in range(2):
            wait_until(lambda: views.source.execute(refused, table).rowcount, "it is tried")
            wait_until(lambda: not views.source.execute(refused, table).rowcount, "it is refused")
        views.run("UPDATE {t} SET v = v + 1")
        views.are_right()
        # A new partition does not wait for it.
        views.follow(
            "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (20) TO (30)", "0", "1", "2"
        )
    wait_until(lambda: views.read("0", "2"), "it is read no more")
    views.run("INSERT INTO {t} (id, k, v) VALUES (1, 21, 5)")
    views.are_right()
    assert views.now() == views.ids


PLACED = {
    "rows": (SHARED["rows"], '"w1"'),
    "sums": (SHARED["sums"], '{"join": "w1"}'),
    "paired": (SHARED["paired"], '"w2"'),
    "both": (
        f"SELECT a.name, a.s, b.n FROM ({SHARED['sums']}) a"
        f" FULL JOIN ({SHARED['paired']}) b ON a.s % 10 = b.k",
        '{"reduce_1": "w1", "reduce_2": "w2"}',
    ),
    "nested": (SHARED["sums"], '{"reduce": "w2", "join": "w1"}'),
}
"""Views on other workers, or split over several."""


@together
def test_views_on_other_workers_follow(views):
    views.run(ROOT + OTHER + MORE + FILL)
    place(views)
    views.create({"pairs": SHARED["pairs"]}, "{}")
    new = "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (20) TO (30)"
    views.follow(new, "0", "1", "2")
    views.run("INSERT INTO {t} (id, k, v) SELECT i, 20 + i % 10, i FROM generate_series(1, 30) i")
    views.are_right()
    views.run("UPDATE {t} SET k = 25 WHERE k = 3; DELETE FROM {t} WHERE id % 7 = 0")
    views.are_right()
    views.run("DELETE FROM {t}_2")
    views.are_right()
    views.follow("DROP TABLE {t}_2", "0", "1")
    views.run("UPDATE {t} SET v = v + 1")
    views.are_right()
    assert views.now() == views.ids


def place(views: Views) -> None:
    """Create views on other workers, which are added if there are none."""
    known = {row[0] for row in views.commander.execute("SELECT * FROM headrace.workers()")}
    for worker in {"w1", "w2"} - known:
        views.commander.execute("CALL headrace.add_worker(%s)", (worker,))
    for name, (query, where) in PLACED.items():
        views.create({name: query}, f'{{"placement": {where}}}')


@together
@pytest.mark.parametrize("seed", seeds(2, 8))
def test_any_history_of_views_that_share(views, seed):
    """Like the test without sharing, but views are paused now and then."""
    rng = random.Random(seed)
    views.run(ROOT + OTHER + (REST if rng.random() < 0.5 else "") + FILL)
    chosen = rng.choice((("rows", "sums", "over", "most"), ("pairs", "paired", "rows", "most")))
    views.create({name: SHARED[name] for name in chosen}, "{}")
    wait_until(views.share, "all share")
    paused: str | None = None
    for _ in range(25):
        with contextlib.suppress(*REFUSED):
            views.run(step(rng))
        if paused is None and rng.random() < 0.3:
            wait_until(lambda: not stopped(views) and views.read(*members(views)), "they follow")
        if paused is None and rng.random() < 0.1:
            paused = rng.choice(chosen)
            once_it_runs(views, "pause_view", paused)
        elif paused is not None and rng.random() < 0.2:
            once_it_runs(views, "resume_view", paused)
            paused = None
    if paused is not None:
        once_it_runs(views, "resume_view", paused)
    views.come_right()
    views.run("UPDATE {t} SET v = v + 1; DELETE FROM {t} WHERE id % 5 = 1")
    views.come_right()


def members(views: Views) -> list[str]:
    """Return the names of the partitions, without the table's name as prefix."""
    rows = views.source.execute(
        "SELECT relid::regclass::text FROM pg_partition_tree(%s) WHERE isleaf", (views.table,)
    )
    return [name.removeprefix(f"{views.table}_") for (name,) in rows]


def once_it_runs(views: Views, verb: str, name: str) -> None:
    """Pause or resume a view, once its population has ended."""

    def done() -> bool:
        try:
            views.call(verb, name)
        except (psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.ObjectInUse):
            return False
        return True

    wait_until(done, f"{verb} {name}")


def step(rng: random.Random) -> str:
    n = rng.randrange(1, 5)
    part, bounds = f"{{t}}_{n}", f"FOR VALUES FROM ({10 * n}) TO ({10 * n + 10})"
    new = f"CREATE TABLE {part} PARTITION OF {{t}} {bounds}"
    insert = (
        "INSERT INTO {t} (id, k, v) SELECT i, "
        f"{rng.choice((0, 10 * n))} + i % 10, i FROM generate_series({(low := rng.randrange(500))},"
        f" {low + 3}) i ON CONFLICT DO NOTHING"
    )
    return rng.choice(
        (
            new,
            new,
            f"{new}; {insert}",
            f"DROP TABLE {part}",
            f"DELETE FROM {part}; ALTER TABLE {{t}} DETACH PARTITION {part}",
            f"ALTER TABLE {{t}} DETACH PARTITION {part}",
            f"TRUNCATE {part}; ALTER TABLE {{t}} ATTACH PARTITION {part} {bounds}",
            f"DELETE FROM {part}; DROP TABLE {part}",
            *(insert,) * 6,
            f"UPDATE {{t}} SET v = v + 1, k = {10 * n} WHERE id % 11 = {n}",
            f"DELETE FROM {{t}} WHERE k % 10 = {n}",
        )
    )
