"""Work for one view costs the same beside 10 and 100 other views, in lines run and rows read."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest

from headrace.runtime import result_tables, views
from headrace.runtime.commits import Commits
from headrace.runtime.engine import Engine
from headrace.runtime.intake import Intake
from headrace.runtime.watch import Following
from headrace.sql import results
from tests.runtime.harness import ITEMS, Running, create_view, settle, source_plan

TABLES = (
    ITEMS
    + "CREATE TABLE moves (id int PRIMARY KEY, n int); INSERT INTO moves VALUES (1, 0), (2, 0);"
)
_STILL = {"catalog_poll_ms": 600_000, "feedback_interval_ms": 600_000, "sharing": False}
"""Only the test runs the periodic checks."""
FEW, MANY = 10, 100
_SLACK = (MANY - FEW) // 3
"""A loop over all views runs at least three times as many additional lines."""
_STUBS = """
DO $$ BEGIN FOR i IN {first}..{last} LOOP
  EXECUTE format('CREATE TABLE s%s (LIKE v0 INCLUDING ALL)', i);
END LOOP; END $$;
WITH made AS (
  INSERT INTO headrace.views (schema_name, view_name, query, plan, status, result_oid, start_lsn, watched)
  SELECT 'public', 's' || i, query, plan, status, to_regclass('s' || i), start_lsn, watched
    FROM headrace.views, generate_series({first}, {last}) i WHERE view_name = 'v0' RETURNING id)
INSERT INTO headrace.progress (view_id, txid, lsn)
SELECT made.id, p.txid, p.lsn FROM made, headrace.progress p JOIN headrace.views v ON v.id = p.view_id
 WHERE v.view_name = 'v0'"""


class Lines:
    """Counts the lines of Headrace that are run on the engine's thread, by function."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self.by_function: Counter[str] = Counter()

    def of(self, work: Callable[[], Any]) -> int:
        """Count the lines that ``work`` runs there."""

        def traced() -> None:
            sys.settrace(self._trace)
            try:
                work()
            finally:
                sys.settrace(None)

        self.by_function.clear()
        self._running.on(traced)
        return self.by_function.total()

    def of_batches(self, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> int:
        """Count the lines in which the engine's thread processes batches and takes their answers."""

        def traced(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*given: Any) -> Any:
                sys.settrace(self._trace)
                try:
                    return method(*given)
                finally:
                    sys.settrace(None)

            return call

        self.by_function.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Intake, "process", traced(Intake.process))
            patch.setattr(Commits, "_answer", traced(Commits._answer))
            work()
        return self.by_function.total()

    def _trace(self, frame: Any, event: str, arg: object) -> Any:
        if "/headrace/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            self.by_function[f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"] += 1
        return self._trace


def stubs(running: Running, conn: psycopg.Connection, first: int, last: int) -> None:
    """Create views without rows that read the table of view ``v0``, as from an earlier run."""
    conn.execute(_STUBS.format(first=first, last=last).encode())
    book = running.book

    def take() -> None:
        known = next(iter(book.views.values()))
        made = [view for view in views.load(book.owner.conn) if view.id not in book.views]
        for view in made:
            view.restore(book.db.view(view.id, known.mark.txid), known.mark)
            book.views[view.id] = view
        assert book.owner.take_over(made) == []

    running.on(take)


def look(running: Running) -> None:
    """Run the checks that the engine makes once a second."""
    engine: Engine = running.engine
    engine.watch.due = engine._healing._tables.due = 0.0
    engine.watch.poll(engine.leaving.fail, lambda moving, stopping: Following({}, frozenset()))
    engine._healing.retry()
    engine.sharing.join_ready()


def rows_read(running: Running, work: Callable[[], Any]) -> int:
    """Count the rows of Headrace's tables that statements of the engine's thread read."""

    def read() -> int:
        conn = running.book.owner.conn
        conn.execute("SELECT pg_stat_force_next_flush()")
        row = conn.execute(
            "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_all_tables"
            " WHERE schemaname = 'headrace' AND relname <> 'progress'"
        ).fetchone()
        return int(row[0])

    def run() -> int:
        before = read()
        work()
        return read() - before

    return running.on(run)


def test_others_cost_nothing(source, database, start, monkeypatch):
    """A creation, and a check after a commit, with 10 and with 100 other views."""
    monkeypatch.setattr(result_tables, "_TURN", 5)
    running = start(**_STILL)
    items, moves = source_plan(source, "items"), source_plan(source, "moves")
    create_view(running, database, "v0", items, "TABLE items")
    create_view(running, database, "m", moves, "TABLE moves")
    # Postgres reads all of so few rows, with or without an index.
    running.on(lambda: running.book.owner.conn.execute("SET enable_seqscan = off"))
    lines = Lines(running)
    found: dict[int, dict[str, int]] = {}
    told: dict[str, dict[int, Counter[str]]] = {}
    for many in (FEW, MANY):

        def count(step: str, work: Callable[[], Any], many: int = many) -> None:
            found[many][step] = lines.of(work)
            told.setdefault(step, {})[many] = Counter(lines.by_function)

        stubs(running, source, FEW if found else 0, many - 1)
        found[many] = {}
        # Once: all of them are new.
        running.on(lambda: look(running))
        made = create_view(running, database, f"w{many}", items, "TABLE items", adopt=False)
        count("create", partial(running.engine.lifecycle.adopt, made))
        count("look after a creation", lambda: look(running))
        source.execute("CREATE TABLE IF NOT EXISTS of_no_view ()")
        count("look after a commit", lambda: look(running))
        source.execute("UPDATE moves SET n = n + 1")
        settle(running, source)
        source.execute("DROP TABLE IF EXISTS of_no_view")
        count("look after a batch", lambda: look(running))
        source.execute("CREATE TABLE of_no_view ()")
        found[many]["rows read by a look"] = rows_read(running, lambda: look(running))
        source.execute("ALTER TABLE moves ALTER n SET DEFAULT 1")
        count("look after an alteration of one's table", lambda: look(running))
        running.on(running.engine.durability.finish)
        count("drop", partial(running.engine.lifecycle.drop, made))
        count("look after a drop", lambda: look(running))
        # The builder does so; the drop of another view would read it.
        shutil.rmtree(running.settings.staging_dir / str(made))
    more = {
        step: (found[MANY][step] - found[FEW][step], _difference(told.get(step)))
        for step in found[FEW]
        if found[MANY][step] > found[FEW][step] + _SLACK
    }
    assert not more, found


def test_a_batch_costs_nothing_for_views_that_it_does_not_concern(
    source, database, start, monkeypatch
):
    running = start(**_STILL)
    items, moves = source_plan(source, "items"), source_plan(source, "moves")
    create_view(running, database, "v0", items, "TABLE items")
    create_view(running, database, "m", moves, "TABLE moves")
    lines, found, written = Lines(running), {}, {}

    def batch() -> None:
        source.execute("UPDATE moves SET n = n + 1")
        settle(running, source)

    moved = "SELECT count(*) FROM headrace.progress WHERE txid = (SELECT max(txid) FROM headrace.progress)"
    for many in (FEW, MANY):
        stubs(running, source, FEW if found else 0, many - 1)
        batch()  # all others are in step from here on
        found[many] = lines.of_batches(monkeypatch, batch), Counter(lines.by_function)
        written[many] = source.execute(moved).fetchone()[0]
    assert found[MANY][0] <= found[FEW][0] + _SLACK, _difference({m: found[m][1] for m in found})
    assert written == {FEW: 1, MANY: 1}


def _difference(told: dict[int, Counter[str]] | None) -> list[tuple[str, int]]:
    return (told[MANY] - told[FEW]).most_common(5) if told else []


def test_each_table_has_its_turn(source, database, start, monkeypatch):
    """One check covers a limited number of tables; after a transaction all are checked in turn."""
    monkeypatch.setattr(result_tables, "_TURN", 2)
    running = start(**_STILL)
    create_view(running, database, "v0", source_plan(source, "items"), "TABLE items")
    stubs(running, source, 0, 6)
    running.on(lambda: look(running))
    asked: list[set[int]] = []
    signs = results.signs
    monkeypatch.setattr(
        results, "signs", lambda conn, ids: (asked.append(set(ids)), signs(conn, ids))[1]
    )
    source.execute("DROP TABLE s5")
    for _ in range(4):
        running.on(lambda: look(running))
    assert [len(ids) for ids in asked] == [2, 2, 2, 2]
    assert set().union(*asked) == running.book.views.keys()
    stopped = source.execute("SELECT view_name FROM headrace.views WHERE status = 'error'")
    assert stopped.fetchall() == [("s5",)]
