"""Copies of a database: the original does not notice them, and views of a copy are exact.

An engine on a copy says what the copy is, or fills its views anew.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from headrace.embedded.binaries import account
from headrace.embedded.engine import EmbeddedEngine
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.errors import PrerequisiteError
from headrace.server.cli import main
from tests.compared import differs
from tests.conftest import drop_database
from tests.faults import copies
from tests.faults.copies import VIEWS, connect, exact, ids
from tests.outside import pages
from tests.waiting import wait_until

Start = Callable[..., EmbeddedEngine]
WITHOUT = ("--exclude-schema=headrace", "--no-publications", "-T", "sums", "-T", "copied")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(None, 18, durable=False) as made:
        yield made


@pytest.fixture(scope="module")
def second() -> Iterator[EmbeddedPostgres]:
    """Another server, where Headrace was never installed."""
    with EmbeddedPostgres(None, 18, durable=False) as made:
        yield made


@dataclass
class Original:
    """A database with views, and its engine."""

    dsn: str
    engine: EmbeddedEngine
    ids: dict[str, int]
    slot: str
    starts: int = 1
    """How often the engine was started."""

    def restart(self) -> None:
        self.engine.start()
        self.starts += 1

    def unaffected(self) -> None:
        """Check that no other engine has worked on it, and that its views go on."""
        exact(self.dsn)
        assert ids(self.dsn) == self.ids, "no view was filled anew"
        assert copies.epoch(self.dsn) == str(self.starts)
        assert "stream interrupted" not in self.engine.log


@pytest.fixture
def original(server: EmbeddedPostgres, start_engine: Start) -> Iterator[Original]:
    name = f"o_{uuid.uuid4().hex[:12]}"
    dsn = copies.new_database(server, name)
    with connect(dsn) as conn:
        conn.execute(copies.TABLES)
    engine = start_engine(dsn)
    copies.create_views(engine)
    yield Original(dsn, engine, ids(dsn), engine.env["HEADRACE_SLOT_NAME"])
    engine.kill9()
    drop_database(server.dsn(), name)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that the server's user can enter, for data directories."""
    made = Path(tempfile.mkdtemp(prefix="headrace-copies-"))
    account().take(made)
    yield made
    shutil.rmtree(made, ignore_errors=True)


# --- dumps


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same_server", "other_server"])
def test_a_dump_is_refused_and_can_be_put_right(original, server, second, start_engine, elsewhere):
    """The dump restores without a message; both remedies give exact views."""
    where = second if elsewhere else server
    name = f"c_{uuid.uuid4().hex[:12]}"
    copy = copies.new_database(where, name)
    copies.restore(server, original.dsn, copy)
    with connect(copy) as conn:
        for view, query in VIEWS.items():
            assert differs(conn, view, query) == []
            conn.execute(f"DELETE FROM {view}")  # an ordinary table
    with pytest.raises(PrerequisiteError) as refused:
        start_engine(copy, HEADRACE_SLOT_NAME=original.slot)
    assert "schema headrace was restored from a dump" in refused.value.detail
    assert "headrace adopt" in refused.value.detail
    assert "headrace uninstall" in refused.value.detail
    belongs = f'belongs to database "{conninfo_to_dict(original.dsn)["dbname"]}"'
    assert (belongs in refused.value.detail) is not elsewhere
    assert ("probably a copy" in refused.value.detail) is not elsewhere
    # The second remedy, with the statements of the manual.
    with connect(copy) as conn:
        calls = [row[0] for row in conn.execute(_calls()).fetchall()]
        assert len(calls) == 2 * len(VIEWS)
        assert "headrace removed" in copies.uninstall(copy, original.slot)
        conn.execute("DROP TABLE sums, copied")
    engine = start_engine(copy)
    with connect(engine.dsn) as commander:
        for call in calls:
            commander.execute(call)
    exact(copy)
    original.unaffected()
    engine.stop()
    drop_database(where.dsn(), name)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same_server", "other_server"])
def test_a_dump_is_adopted(original, server, second, start_engine, elsewhere, capsys):
    """Its views follow the copy, with owners, rights, indexes and views over views."""
    owner = f"owner_{uuid.uuid4().hex[:12]}"
    for each in (server, second):
        with connect(each.dsn()) as conn:
            conn.execute(f"CREATE ROLE {owner}")
    with connect(original.dsn) as conn:
        conn.execute(f"GRANT SELECT ON t TO {owner}; GRANT ALL ON SCHEMA public TO {owner}")
        for call in (
            f"set_owner('sums', '{owner}')",
            "set_history('copied', '1 hour')",
            "create_view('above', 'SELECT g, n * 2 AS n FROM sums', '{\"key\": [\"g\"]}')",
            "create_view('resting', 'SELECT n FROM t WHERE n < 5')",
            "create_index('copied', '(x)')",
            "pause_view('resting')",
        ):
            conn.execute(f"CALL headrace.{call}")
        conn.execute("GRANT SELECT ON copied TO PUBLIC")
        conn.execute("CALL headrace.create_feed('f', 'copied')")
        conn.execute("UPDATE u SET x = 7 WHERE id = 1")
        conn.execute("CALL headrace.wait_for('copied')")
        before = ids(original.dsn)
    where = second if elsewhere else server
    name = f"c_{uuid.uuid4().hex[:12]}"
    copy = copies.new_database(where, name)
    copies.restore(server, original.dsn, copy)
    queries = VIEWS | {
        "above": "SELECT g, n * 2 AS n FROM sums",
        "resting": "SELECT n FROM t WHERE n < 5",
    }
    with connect(copy) as conn:
        # Here the numbers that the catalog has belong to another table.
        conn.execute("CREATE TABLE innocent (g int, n bigint)")
        conn.execute("INSERT INTO innocent VALUES (1, 1)")
        conn.execute("UPDATE headrace.views SET result_oid = 'innocent'::regclass")
        conn.execute("UPDATE headrace.view_tables SET table_oid = 'innocent'::regclass")
        conn.execute("DROP TABLE resting")
        conn.execute("DELETE FROM copied WHERE id < 4; INSERT INTO sums VALUES (99, 9, 9)")
        shown = conn.execute("SELECT DISTINCT status, message FROM headrace.list_views()")
        assert shown.fetchall() == [
            (
                "stopped",
                "schema headrace was restored from a dump: run headrace adopt, then start Headrace",
            )
        ]
    assert main(["adopt", "--source", copy]) == 0
    said = capsys.readouterr().out
    assert "view public.above adopted\n" in said
    assert "view public.resting adopted, its table is missing" in said
    assert "feed f dropped" in said
    assert main(["adopt", "--source", copy]) == 1
    assert "there is nothing to adopt" in capsys.readouterr().err
    engine = start_engine(copy)
    with connect(copy) as conn:

        def wrong() -> list[object]:
            stopped = conn.execute(
                "SELECT name, status, message FROM headrace.list_views() WHERE status <> 'running'"
            ).fetchall()
            return stopped or [d for view, q in queries.items() for d in differs(conn, view, q)]

        wait_until(lambda: not wrong(), wrong, every_s=0.05)
        exact(copy)
        wait_until(lambda: not wrong(), wrong, every_s=0.05)
        assert conn.execute("SELECT * FROM innocent").fetchall() == [(1, 1)]
        assert conn.execute(
            "SELECT owner FROM headrace.list_views() WHERE name = 'public.sums'"
        ).fetchone() == (owner,)
        # The table may have been edited since the dump, so its history begins again.
        changed = conn.execute("SELECT data, weight FROM headrace.view_changes('copied')")
        assert changed.fetchall() == [("(11,0)", 1)]
        indexes = conn.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'copied'")
        assert any("(x)" in text for (text,) in indexes.fetchall())
        assert conn.execute(
            "SELECT has_table_privilege('public', 'copied', 'SELECT')"
        ).fetchone() == (True,)
    engine.stop()
    drop_database(where.dsn(), name)
    with connect(original.dsn) as conn:
        assert ids(original.dsn) == before
        assert "stream interrupted" not in original.engine.log
        for view, query in queries.items():
            if view != "resting":
                assert differs(conn, view, query) == []
        conn.execute(f"CALL headrace.set_owner('sums', '{conn.info.user}')")
        conn.execute(f"DROP OWNED BY {owner}")
    for each in (server, second):
        with connect(each.dsn()) as conn:
            conn.execute(f"DROP ROLE {owner}")


def _calls() -> str:
    """Return the manual's query for the statements that create all views."""
    [query] = [
        block.body
        for block in pages.blocks(pages.MANUAL / "upgrade.md")
        if block.kind == "sql" and "FROM headrace.views v" in block.body
    ]
    return query[query.index("SELECT c.line") :]


@pytest.mark.parametrize(
    ("options", "without"),
    [
        ((), None),
        (("-t", "sums"), None),
        (WITHOUT, "EVENT TRIGGER"),
    ],
    ids=["whole", "result_table", "without_headrace"],
)
def test_a_dump_restores_where_headrace_never_was(
    original, server, second, start_engine, options, without
):
    """Result tables are ordinary tables there, and objects of Headrace hinder no statement.

    This includes the event trigger, which only a list of contents leaves out.
    """
    original.engine.env["HEADRACE_EVENT_TRIGGER"] = "true"
    original.engine.stop()
    original.restart()
    name = f"c_{uuid.uuid4().hex[:12]}"
    copy = copies.new_database(second, name)
    copies.restore(server, original.dsn, copy, *options, without=without)
    with connect(copy) as conn, connect(original.dsn) as source:
        restored = [v for v in VIEWS if conn.execute("SELECT to_regclass(%s)", (v,)).fetchone()[0]]
        assert len(restored) == (0 if without else 1 if options else 2)
        for view in restored:
            rows = f"SELECT * FROM {view} ORDER BY 1"
            assert conn.execute(rows).fetchall() == source.execute(rows).fetchall()
            conn.execute(f"ALTER TABLE {view} ADD COLUMN mine int; DROP TABLE {view}")
        if without or not options:
            conn.execute("UPDATE t SET n = n + 1; ALTER TABLE t DROP CONSTRAINT t_pkey")
            conn.execute("DELETE FROM t")
    drop_database(second.dsn(), name)
    original.unaffected()


# --- copies block by block


@pytest.mark.parametrize("states", ["none", "copied"])
def test_a_database_made_from_a_template(original, server, start_engine, tmp_path, states):
    name = f"c_{uuid.uuid4().hex[:12]}"
    template = conninfo_to_dict(original.dsn)["dbname"]
    create = f"CREATE DATABASE {name} TEMPLATE {template}"
    with connect(server.dsn()) as conn:
        with pytest.raises(psycopg.errors.ObjectInUse):
            conn.execute(create)
        original.engine.stop()
        conn.execute(create)
    if states == "copied":
        for number in (1, 2):
            copies.copy_states(original.engine, tmp_path / f"engine{number}")
    original.restart()
    copy = server.dsn(name)
    with pytest.raises(PrerequisiteError, match="did not start") as refused:
        start_engine(copy, HEADRACE_SLOT_NAME=original.slot)
    assert f'probably a copy of "{template}"' in refused.value.detail
    assert "choose another --slot-name" in refused.value.detail
    engine = start_engine(copy)
    exact(copy)
    original.unaffected()
    engine.stop()
    drop_database(server.dsn(), name)


@pytest.mark.slow
@pytest.mark.parametrize("states", ["none", "later"])
def test_a_base_backup(original, server, start_engine, folder, tmp_path, states):
    """It has the original's system identifier and timeline, and no slot."""
    backup = copies.base_backup(server, folder / "backup")
    exact(original.dsn)
    if states == "later":
        original.engine.stop()
        copies.copy_states(original.engine, tmp_path / "engine1")
        original.restart()
    with backup:
        copy = backup.dsn(conninfo_to_dict(original.dsn)["dbname"])
        engine = start_engine(copy)
        exact(copy)
        assert ids(copy) != original.ids, "its views were filled anew"
        original.unaffected()
        engine.stop()


@pytest.mark.slow
@pytest.mark.parametrize("states", ["none", "same", "later"])
def test_files_copied_while_all_was_stopped(
    original, server, start_engine, folder, tmp_path, states
):
    """States of the same moment are used; those of the original's later life are not."""
    original.engine.stop()
    server.stop()
    clone = copies.copy_files(server, folder / "clone")
    if states == "same":
        copies.copy_states(original.engine, tmp_path / "engine1")
    server.start()
    original.restart()
    if states == "later":
        copies.write_unread(original.dsn, original.slot, 1)
        original.engine.stop()
        copies.copy_states(original.engine, tmp_path / "engine1")
        original.restart()
    with clone:
        copy = clone.dsn(conninfo_to_dict(original.dsn)["dbname"])
        copies.go_on(copy)
        engine = start_engine(copy)
        exact(copy)
        assert (ids(copy) == original.ids) is (states == "same")
        named = "the database is a copy, or was restored" in engine.log
        assert named is (states == "later")
        original.unaffected()
        engine.stop()


CHANGES = {
    "idle": "SELECT",
    "written": "UPDATE u SET x = 100",
    "unseen": "BEGIN; INSERT INTO u VALUES (1000, 0); DELETE FROM u WHERE id = 1000; COMMIT",
}
"""Statements in the original that concern no view, change a result table, or change none."""


@pytest.mark.parametrize(
    ("change", "killed"),
    [*((change, False) for change in CHANGES), ("unseen", True)],
)
def test_the_original_s_states_on_a_snapshot_of_its_running_server(
    original, server, start_engine, folder, tmp_path, change, killed
):
    """The connection string leads to a snapshot, which has gone on by itself.

    No view misses what was committed there before the engine came, at a position that the
    original's states have passed: neither one whose table was written in the original, nor another.
    If the original was ``killed``, only its intake log has the last change.
    """
    if killed:
        original.engine.env["HEADRACE_CHECKPOINT_INTERVAL_MS"] = "600000"
        original.engine.env["HEADRACE_CHECKPOINT_TXIDS"] = "100000"
        original.engine.stop()
        original.restart()
    clone = copies.copy_files(server, folder / "clone")
    copies.write_unread(original.dsn, original.slot, 1)
    with connect(original.dsn) as conn:
        conn.execute(CHANGES[change])
    if killed:
        with connect(original.engine.dsn) as conn:
            conn.execute("CALL headrace.wait_for('copied')")
        original.engine.kill9()
    else:
        copies.write_unread(original.dsn, original.slot, 1)
        original.engine.stop()
    copies.copy_states(original.engine, tmp_path / "engine1")
    original.restart()
    with clone:
        copy = clone.dsn(conninfo_to_dict(original.dsn)["dbname"])
        copies.go_on(copy)
        engine = start_engine(copy)
        exact(copy)
        assert (ids(copy) == original.ids) is (change == "idle")
        if change != "idle":
            wait_until(lambda: "restored" in engine.log, "no reason is logged")
        assert ("restored" in engine.log) is (change != "idle")
        original.unaffected()
        engine.stop()
