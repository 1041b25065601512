"""Work that goes on during a long batch of one view; the test decides how long it takes.

View ``slow`` asks the server for a function that waits for a lock, which the test holds.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Iterator

import psycopg
import pytest

from tests.compared import differs
from tests.faults.helpers import WORKER
from tests.waiting import PATIENCE_S, time_passes, wait_until

pytestmark = [pytest.mark.shared_engine, pytest.mark.engine_with(HEADRACE_VIEW_TIME_MS_MAX="0")]

BUILDER = "headrace.views.builder"
LOCK = 4242
TABLES = f"""
CREATE TABLE items (id int PRIMARY KEY, g int);
INSERT INTO items SELECT i, i % 5 FROM generate_series(1, 50) i;
CREATE FUNCTION slow(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
  IF x < 0 THEN
    PERFORM pg_catalog.pg_advisory_lock_shared({LOCK});
    PERFORM pg_catalog.pg_advisory_unlock_shared({LOCK});
  END IF;
  RETURN x + 1;
END $$;
"""
SLOW = "SELECT id, slow(id) AS s FROM items"
QUERY = "SELECT g, count(*) AS n FROM items GROUP BY g"


def waiting(conn) -> bool:
    return conn.execute(
        "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        f" AND objid = {LOCK} AND database ="
        " (SELECT oid FROM pg_database WHERE datname = current_database())"
    ).fetchone()[0]


def of_view(conn, name: str, what: str):
    return conn.execute(
        f"SELECT {what} FROM headrace.views WHERE view_name = %s", (name,)
    ).fetchone()


@contextlib.contextmanager
def long_batch(engine, source) -> Iterator[psycopg.Connection]:
    """Keep the worker in a batch of ``slow``; closing the connection ends the batch."""
    with psycopg.connect(engine.dsn, autocommit=True) as commander:
        commander.execute(f"CALL headrace.create_view('slow', '{SLOW}')")
        commander.execute(f"CALL headrace.create_view('other', '{QUERY}')")
    with psycopg.connect(engine.source, autocommit=True) as holder:
        holder.execute(f"SELECT pg_advisory_lock({LOCK})")
        source.execute("INSERT INTO items VALUES (-1, 1)")
        wait_until(lambda: waiting(source), "the batch is being processed")
        yield holder


class Call:
    """A statement on a separate connection, in a thread; ``notices`` arrive meanwhile."""

    def __init__(self, engine, statement: str) -> None:
        self.notices: list[str] = []
        self.error: BaseException | None = None
        self.conn = psycopg.connect(engine.dsn, autocommit=True)
        self.conn.add_notice_handler(lambda n: self.notices.append(n.message_primary))
        self._statement = statement
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.conn.execute(self._statement)
        except psycopg.Error as error:
            self.error = error
        finally:
            self.conn.close()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def end(self) -> None:
        self._thread.join(PATIENCE_S)
        assert self.done
        if self.error is not None:
            raise self.error


def create(engine, name: str) -> Call:
    return Call(engine, f"CALL headrace.create_view('{name}', '{QUERY}')")


def test_a_view_is_populated_beside_and_follows_when_the_batch_is_done(engine, source):
    with long_batch(engine, source) as holder:
        call = create(engine, "v")
        wait_until(lambda: of_view(source, "v", "status") == ("running",), "it is there")
        # The population includes the batch's changes; the view's own batches come later.
        assert differs(source, "v", QUERY) == []
        wait_until(
            lambda: any('a batch of view "public"."slow"' in n for n in call.notices),
            "the user hears what is waited for",
        )
        assert waiting(source)
        assert not call.done
        source.execute("INSERT INTO items VALUES (60, 3)")
        holder.close()
        call.end()
    source.execute("CALL headrace.wait_for('v', timeout => '90 s')")
    source.execute("CALL headrace.wait_for('slow', timeout => '90 s')")
    assert differs(source, "v", QUERY) == differs(source, "other", QUERY) == []
    assert differs(source, "slow", SLOW) == []


def test_who_does_not_wait_for_the_adoption_has_the_view_all_the_same(engine, source):
    with long_batch(engine, source) as holder:
        call = create(engine, "v")
        wait_until(lambda: call.notices, "it waits for the worker")
        wait_until(lambda: of_view(source, "v", "status") == ("running",), "it is there")
        call.conn.cancel()
        call.end()  # it succeeded: the view is there
        assert waiting(source)
        source.execute("DELETE FROM items WHERE id = 7")
        holder.close()
        source.execute("CALL headrace.wait_for('v', timeout => '90 s')")
    assert differs(source, "v", QUERY) == []
    wait_until(lambda: not list((engine.data_dir / "staging").glob("*")), "nothing is left")


def test_failed_and_cancelled_ones_leave_nothing_meanwhile(engine, source):
    source.execute("CREATE TABLE more (id int PRIMARY KEY)")
    source.execute("INSERT INTO more VALUES (0)")
    with long_batch(engine, source):
        call = Call(engine, "CALL headrace.create_view('v', 'SELECT 1 / id AS q FROM more')")
        with pytest.raises(psycopg.errors.DivisionByZero):
            call.end()
        with psycopg.connect(engine.source) as writer:
            writer.execute("INSERT INTO items VALUES (61, 1)")
            call = create(engine, "v")
            wait_until(lambda: of_view(source, "v", "status"), "it is registered")
            wait_until(lambda: any("waiting" in n for n in call.notices), "it waits")
            call.conn.cancel()
            with pytest.raises(psycopg.errors.QueryCanceled):
                call.end()
            writer.rollback()
        assert waiting(source)
        assert of_view(source, "v", "status") is None
        assert source.execute("SELECT to_regclass('v')").fetchone() == (None,)


def test_dropping_checking_and_giving_up_do_not_wait(engine, source):
    create(engine, "third").end()
    with long_batch(engine, source) as holder:
        Call(engine, f"CALL headrace.check_view('{QUERY}')").end()
        for statement in (
            "CALL headrace.pause_view('other')",
            "SELECT * FROM headrace.verify_view('other')",
        ):
            call = Call(engine, statement)
            wait_until(lambda c=call: c.notices, "it waits for the batch")
            call.conn.cancel()
            with pytest.raises(psycopg.errors.QueryCanceled):
                call.end()
        Call(engine, "CALL headrace.drop_view('third')").end()
        assert of_view(source, "third", "status") is None
        assert waiting(source)
        holder.close()
    all_follow(source)


def all_follow(source):
    source.execute("CALL headrace.wait_for('slow', timeout => '90 s')")
    assert differs(source, "slow", SLOW) == []
    source.execute("CALL headrace.wait_for('other', timeout => '90 s')")
    assert differs(source, "other", QUERY) == []
    assert of_view(source, "slow", "status") == ("running",)


def test_giving_up_a_resync_does_not_wait_for_the_batch(engine, source):
    with long_batch(engine, source) as holder:
        resync = Call(engine, "CALL headrace.resync_view('other')")
        wait_until(
            lambda: any("a batch of view" in n for n in resync.notices),
            "it is populated, and waits until the view can be suspended",
        )
        resync.conn.cancel()
        with pytest.raises(psycopg.errors.QueryCanceled):
            resync.end()
        assert waiting(source)
        holder.close()
    all_follow(source)


@pytest.mark.parametrize("victim", [BUILDER, WORKER])
def test_kill_while_a_view_waits_to_be_adopted(engine, source, victim):
    with long_batch(engine, source) as holder:
        call = create(engine, "v")
        wait_until(lambda: of_view(source, "v", "status") == ("running",), "it is there")
        os.kill(wait_until(lambda: engine.child(victim), "it runs"), signal.SIGKILL)
        source.execute("UPDATE items SET g = g + 1 WHERE id > 0")
        holder.close()
        with contextlib.suppress(psycopg.Error):
            call.end()
    source.execute("CALL headrace.wait_for('v', timeout => '90 s')")
    source.execute("CALL headrace.wait_for('slow', timeout => '90 s')")
    assert differs(source, "v", QUERY) == differs(source, "other", QUERY) == []
    assert differs(source, "slow", SLOW) == []


def test_what_the_worker_tells_of_itself_is_told_meanwhile(engine, source):
    with long_batch(engine, source) as holder, psycopg.connect(engine.dsn) as commander:
        commander.autocommit = True
        parts = {row[0] for row in commander.execute("SELECT * FROM headrace.memory()")}
        assert {"process", "states", "queues on disk"} <= parts
        [log] = commander.execute("SELECT queue FROM headrace.queues()").fetchall()
        assert log == ("stream",)
        assert waiting(source)
        holder.close()


def test_who_makes_others_late_is_named_to_all_of_them(engine, commander, source):
    """During the batch, and for a minute after it; also to owners of other views."""
    said = "SELECT held_by, message FROM headrace.list_views() WHERE name = %s"
    role = f"other_{source.info.dbname}"
    commander.execute("CALL headrace.create_view('slow', %s)", (SLOW,))
    commander.execute("CALL headrace.create_view('other', %s)", (QUERY,))
    source.execute(f"CREATE ROLE {role}; GRANT SELECT ON items TO {role}")
    try:
        commander.execute("CALL headrace.set_owner('other', %s)", (role,))
        with psycopg.connect(engine.source, autocommit=True) as owner:
            owner.execute(f"SET ROLE {role}")

            def told(name: str) -> list[str]:
                return [word or "" for word in owner.execute(said, (name,)).fetchone()]

            with psycopg.connect(engine.source, autocommit=True) as holder:
                holder.execute(f"SELECT pg_advisory_lock({LOCK})")
                source.execute("INSERT INTO items VALUES (-1, 1)")
                wait_until(lambda: "of public.slow" in told("public.other")[0], "it is named")
                time_passes(2.0)  # beyond what is called late
            late = "it was late: it waited for public.slow, which took long"
            wait_until(lambda: late in told("public.other")[1], lambda: told("public.other"))
            assert told("public.slow")[1] == "", "of another's view nothing is told"
        slow = "it makes other views late: its part of a batch"
        [(_, message)] = source.execute(said, ("public.slow",)).fetchall()
        assert message is not None
        assert message.startswith(slow)
        wait_until(lambda: "view makes others late" in engine.log, "the log says so")
    finally:
        commander.execute("CALL headrace.drop_view('other', true)")
        source.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.slow
def test_a43_a_function_that_takes_too_long_for_what_comes_is_told(engine, commander, source):
    """20 ms a row permit 50 rows a second; some hundred arrive, until the overload is reported."""
    source.execute(
        "CREATE FUNCTION dear(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_sleep(0.02); RETURN x + 1; END'"
    )
    query = "SELECT id, dear(id) AS s FROM items"
    commander.execute("CALL headrace.create_view('v', %s)", (query,))
    told = "SELECT message FROM headrace.list_views() WHERE name = 'public.v'"
    for number in itertools.count(1000):
        source.execute("INSERT INTO items VALUES (%s, 1)", (number,))
        time_passes(0.006)  # or it would be at it for long afterwards
        [(message,)] = source.execute(told).fetchall()
        if message is not None:
            break
        assert number < 50_000
    assert message.startswith("overloaded: changes take ")
    assert 'most of it view "public"."v"; batches grow' in message
    wait_until(lambda: source.execute(told).fetchall() == [(None,)], "it is over", 180)
    commander.execute("CALL headrace.wait_for('v')")
    assert differs(source, "v", "SELECT id, id + 1 AS s FROM items") == []
    wait_until(lambda: "overload has ended" in engine.log, "the log says so")
