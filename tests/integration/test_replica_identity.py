"""Tables that lose their replica identity while views read them: their owners can go on writing."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

import psycopg
import pytest

from headrace.errors import PrerequisiteError
from headrace.sql import publication_trigger
from tests.compared import differs
from tests.faults.helpers import WORKER
from tests.integration.test_mends import told
from tests.waiting import bump, create_marker, wait_for, wait_until

pytestmark = pytest.mark.shared_engine

MARKER = True
# By table: statements by which it loses its replica identity, and gets one again.
LOSSES = {
    "dropped": (
        "ALTER TABLE dropped DROP CONSTRAINT dropped_pkey",
        "ALTER TABLE dropped ADD PRIMARY KEY (id)",
    ),
    "nothing": (
        "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
        "ALTER TABLE nothing REPLICA IDENTITY DEFAULT",
    ),
    "deferred": (
        "ALTER TABLE deferred DROP CONSTRAINT deferred_pkey, ADD PRIMARY KEY (id) DEFERRABLE",
        "ALTER TABLE deferred REPLICA IDENTITY FULL",
    ),
    "indexed": (
        "DROP INDEX indexed_v",
        "ALTER TABLE indexed REPLICA IDENTITY DEFAULT",
    ),
    "columned": (
        "ALTER TABLE columned DROP id",
        "ALTER TABLE columned ADD id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    ),
    "cascaded": (
        "DROP TYPE label CASCADE",
        "ALTER TABLE cascaded ADD PRIMARY KEY (v)",
    ),
    "part": (
        "ALTER TABLE part DROP CONSTRAINT part_pkey",
        "ALTER TABLE part ADD PRIMARY KEY (id, v)",
    ),
    "generated": (
        "ALTER TABLE generated ADD sum int GENERATED ALWAYS AS (v + 1) STORED",
        "ALTER TABLE generated DROP sum",
    ),
}
TABLES = "".join(
    f"CREATE TABLE {name} (id int PRIMARY KEY, v int NOT NULL);"
    for name in LOSSES
    if name not in ("cascaded", "part")
)
TABLES += """
ALTER TABLE generated REPLICA IDENTITY FULL;
CREATE UNIQUE INDEX indexed_v ON indexed (v);
ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_v;
CREATE TYPE label AS ENUM ('x');
CREATE TABLE cascaded (id label, v int NOT NULL, PRIMARY KEY (id, v));
CREATE TABLE whole (id int NOT NULL, v int NOT NULL) PARTITION BY LIST (id);
CREATE TABLE part (id int NOT NULL, v int NOT NULL, PRIMARY KEY (id, v));
ALTER TABLE whole ATTACH PARTITION part FOR VALUES IN (1, 2, 3);
"""
TABLES += "".join(
    f"INSERT INTO {name} VALUES ({id_}, {v});"
    for name in LOSSES
    for id_, v in (("'x'", 1), ("'x'", 2)) * (name == "cascaded") or ((1, 1), (2, 2), (3, 3))
)
TABLES += """
CREATE TABLE briefly (id int PRIMARY KEY, u int NOT NULL UNIQUE, v int NOT NULL);
INSERT INTO briefly SELECT i, i, i FROM generate_series(1, 20) i;
"""
# Statements under another replica identity, within a transaction that leaves it as it was.
UNDER_ANOTHER = (
    "UPDATE briefly SET id = id + 1000",
    "UPDATE briefly SET id = id + 1000, u = u + 1000",
    "UPDATE briefly SET id = -id WHERE id % 2 = 0; UPDATE briefly SET v = v + 1",
    "DELETE FROM briefly WHERE id % 7 = 3",
)


def query(name: str) -> str:
    read = "whole" if name == "part" else name
    return f"SELECT v, count(*) AS n FROM {read} GROUP BY v"


def writable(source: psycopg.Connection, name: str) -> bool:
    """Return whether Postgres accepts statements that it may refuse for a published table."""
    try:
        source.execute(f"UPDATE {name} SET v = v + 10 WHERE v = 1")
        source.execute(f"DELETE FROM {name} WHERE v = 2")
    except (
        psycopg.errors.ObjectNotInPrerequisiteState,
        psycopg.errors.InvalidColumnReference,  # a generated column, from Postgres 18 on
    ):
        return False
    source.execute(f"UPDATE {name} SET v = v - 10 WHERE v = 11")
    return True


def published(source: psycopg.Connection) -> set[str]:
    rows = source.execute(
        "SELECT tablename FROM pg_publication_tables WHERE pubname = 'headrace'"
    ).fetchall()
    return {row[0] for row in rows}


def create(commander: psycopg.Connection, name: str, options: str = "{}") -> None:
    commander.execute("CALL headrace.create_view(%s, %s, %s)", (f"v_{name}", query(name), options))


def runs_right(source: psycopg.Connection, name: str) -> bool:
    return told(source, f"v_{name}")[0] == "running" and not differs(
        source, f"v_{name}", query(name)
    )


def test_tables_leave_the_publication_and_come_back(commander, source):
    for name in LOSSES:
        # The worker observes less of a view that does not run.
        create(commander, name, '{"on_change": "stop"}' if name == "nothing" else "{}")
    commander.execute("CALL headrace.pause_view('v_deferred')")
    assert published(source) >= LOSSES.keys()
    for name, (lose, _) in LOSSES.items():
        source.execute(lose)
        wait_until(lambda name=name: writable(source, name), f"{name} can be written")
        source.execute(f"INSERT INTO {name} (v) SELECT 7" if name == "columned" else "SELECT")
    kept = source.info.server_version < 180000  # before 18, a generated column is no loss
    gone = LOSSES.keys() - ({"generated"} if kept else set())
    assert published(source) & LOSSES.keys() == LOSSES.keys() - gone
    wait_for_others(source)
    for name in gone:
        status, message = wait_until(
            lambda name=name: (
                (said := told(source, f"v_{name}"))[0] == "error" and said[1] and said
            ),
            f"the view of {name} stops",
        )
        assert "lost its replica identity" in message or "was dropped" in message
    for name in sorted(gone):
        source.execute(LOSSES[name][1])
    # The first has option stop; the others lost columns, so the user must decide.
    by_hand = {"nothing", "columned", "cascaded"}
    for name in sorted(gone - by_hand):
        wait_until(lambda name=name: runs_right(source, name), f"{name} is followed again")
    for name in sorted(by_hand):
        status, message = told(source, f"v_{name}")
        assert status == "error"
        assert f"CALL headrace.resync_view('public.v_{name}')" in message
        commander.execute(f"CALL headrace.resync_view('v_{name}')")
    for name in gone:
        source.execute(f"UPDATE {name} SET v = v + 1")
        commander.execute(f"CALL headrace.wait_for('v_{name}')")
        assert runs_right(source, name), name
    assert published(source) >= LOSSES.keys()


def wait_for_others(source: psycopg.Connection) -> None:
    """Prove that the views of other tables go on."""
    number = bump(source)
    wait_until(
        lambda: source.execute("SELECT n FROM marker_view").fetchone() == (number,), "others go on"
    )


@contextlib.contextmanager
def stopped_worker(engine) -> Iterator[None]:
    pid = engine.child(WORKER)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_tables_leave_although_the_worker_hangs(engine, commander, source):
    create(commander, "dropped")
    with stopped_worker(engine):
        source.execute(LOSSES["dropped"][0])
        wait_until(lambda: writable(source, "dropped"), "it can be written")
        source.execute("INSERT INTO dropped SELECT i, i FROM generate_series(10, 20) i")
        number = bump(source)
    # The rows are not in the stream; the view must not go on without them.
    wait_until(lambda: told(source, "v_dropped")[0] == "error", "the view stops")
    wait_until(
        lambda: source.execute("SELECT n FROM marker_view").fetchone() == (number,), "others go on"
    )
    source.execute(LOSSES["dropped"][1])
    wait_until(lambda: runs_right(source, "dropped"), "it is followed again")


def test_no_view_is_current_without_the_rows_that_it_misses(commander, source):
    """As soon as the owner can write again, a wait for the view must not succeed."""
    create(commander, "dropped")
    done = threading.Event()

    def write_others() -> None:
        with psycopg.connect(source.info.dsn, autocommit=True) as conn:
            while not done.is_set():
                bump(conn)

    thread = threading.Thread(target=write_others)
    thread.start()
    try:
        source.execute(LOSSES["dropped"][0])
        wait_until(lambda: writable(source, "dropped"), "it can be written", every_s=0.001)
        source.execute("INSERT INTO dropped SELECT i, i FROM generate_series(10, 20) i")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            commander.execute("CALL headrace.wait_for('v_dropped')")
    finally:
        done.set()
        thread.join()
    source.execute(LOSSES["dropped"][1])
    wait_until(lambda: runs_right(source, "dropped"), "it is followed again")


def test_no_table_without_identity_is_published(commander, source):
    """Also where it loses the identity after the query was planned."""
    with psycopg.connect(source.info.dsn) as other:
        other.execute(LOSSES["dropped"][0])  # the lock makes the population wait
        failed: list[Exception] = []

        def make() -> None:
            with pytest.raises(psycopg.Error) as caught:
                create(commander, "dropped")
            failed.append(caught.value)

        thread = threading.Thread(target=make)
        thread.start()
        other.commit()
        thread.join()
    assert failed
    assert "dropped" not in published(source)
    assert writable(source, "dropped")
    wait_for(source, bump(source))


WITHIN = """
BEGIN;
INSERT INTO {t} VALUES (50, 50);
ALTER TABLE {t} DROP CONSTRAINT {t}_pkey;
UPDATE {t} SET v = v + 100 WHERE v = 1;
DELETE FROM {t} WHERE v = 2;
COMMIT;
UPDATE {t} SET v = v + 100 WHERE v = 3
"""


@pytest.mark.slow
def test_an_event_trigger_leaves_no_moment(database, start_engine):
    """Also within one transaction, for a role without other rights; the trigger can be removed."""
    engine = start_engine(database, HEADRACE_EVENT_TRIGGER="on")
    connect = psycopg.connect
    with (
        connect(database, autocommit=True, prepare_threshold=None) as source,
        connect(engine.dsn, autocommit=True) as commander,
    ):
        owner = f"owner_{source.info.dbname}"
        source.execute(f'CREATE ROLE "{owner}"; GRANT ALL ON SCHEMA public TO "{owner}"')
        create_marker(source, commander)
        source.execute("CREATE TABLE dropped (id int PRIMARY KEY, v int NOT NULL)")
        source.execute("INSERT INTO dropped SELECT i, i FROM generate_series(1, 5) i")
        source.execute(f'ALTER TABLE dropped OWNER TO "{owner}"')
        create(commander, "dropped", '{"on_change": "stop"}')
        for _ in range(3):
            source.execute(f'SET ROLE "{owner}"')
            source.execute(WITHIN.format(t="dropped"))
            source.execute("RESET ROLE")
            # The stream reported it, so no later change was applied without these rows.
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="identity"):
                commander.execute("CALL headrace.wait_for('v_dropped')")
            source.execute("UPDATE dropped SET v = id; TRUNCATE dropped")
            source.execute("INSERT INTO dropped SELECT i, i FROM generate_series(1, 5) i")
            source.execute("ALTER TABLE dropped ADD PRIMARY KEY (id)")
            commander.execute("CALL headrace.resync_view('v_dropped')")
            assert runs_right(source, "dropped")
        wait_for(source, bump(source))
        there = "SELECT evtenabled::text FROM pg_event_trigger"
        assert source.execute(there).fetchall() == [("A",)]
        engine.stop()
        engine.env["HEADRACE_EVENT_TRIGGER"] = "off"
        engine.start()
        assert source.execute(there).fetchall() == []
        source.execute(f'GRANT "{source.info.user}" TO "{owner}"; SET ROLE "{owner}"')
        with pytest.raises(PrerequisiteError, match="event trigger") as refused:
            publication_trigger.ensure(source, wanted=True)
        source.execute("RESET ROLE")
        for statement in str(refused.value.hint).split(": ")[1].split("; ")[:2]:
            source.execute(statement)  # as a superuser, as the hint says
        publication_trigger.ensure(source, wanted=True)
        publication_trigger.ensure(source, wanted=False)
        source.execute(f'DROP OWNED BY "{owner}" CASCADE; DROP ROLE "{owner}"')


def test_a_table_that_could_not_leave_is_followed_on(engine, commander, source):
    """The table is locked until it has a key again: its view is populated again, once."""
    create(commander, "dropped")
    with psycopg.connect(source.info.dsn) as other:
        source.execute(LOSSES["dropped"][0])
        # The lock of CREATE INDEX CONCURRENTLY: the table cannot leave now, but may have before.
        other.execute("LOCK TABLE dropped IN SHARE UPDATE EXCLUSIVE MODE")
        wait_until(lambda: told(source, "v_dropped")[0] == "error", "the view stops")
        assert writable(source, "dropped") or "still published" in wait_until(
            lambda: "still published" in engine.log and engine.log, "it is tried"
        )
    source.execute(LOSSES["dropped"][1])
    wait_until(lambda: runs_right(source, "dropped"), "it is followed again")
    number = bump(source)
    wait_until(
        lambda: source.execute("SELECT n FROM marker_view").fetchone() == (number,), "all go on"
    )
    commander.execute("CALL headrace.wait_for('v_dropped')")
    assert writable(source, "dropped")


def test_a_key_that_may_be_null_is_refused(commander, source):
    """From Postgres 18 on an index over a column with old NULLs may be the replica identity."""
    if source.info.server_version < 180000:
        pytest.skip("NOT NULL … NOT VALID came with Postgres 18")
    source.execute(
        "CREATE TABLE partly (id int, v int); INSERT INTO partly VALUES (NULL, 1), (NULL, 2), (3, 3);"
        "ALTER TABLE partly ADD CONSTRAINT later NOT NULL id NOT VALID;"
        "CREATE UNIQUE INDEX partly_id ON partly (id);"
        "ALTER TABLE partly REPLICA IDENTITY USING INDEX partly_id"
    )
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as raised:
        create(commander, "partly")
    assert raised.value.diag.message_primary == (
        'column "id" of the replica identity of table "partly" may be NULL'
    )
    assert "VALIDATE CONSTRAINT" in raised.value.diag.message_hint
    source.execute("UPDATE partly SET id = v WHERE id IS NULL")
    source.execute("ALTER TABLE partly VALIDATE CONSTRAINT later")
    create(commander, "partly")
    source.execute("UPDATE partly SET v = v + 1")
    commander.execute("CALL headrace.wait_for('v_partly')")
    assert runs_right(source, "partly")


@pytest.mark.parametrize("first", ["DEFAULT", "USING INDEX briefly_u_key"])
def test_another_identity_within_one_transaction(commander, source, first):
    """The stream identifies rows by other columns then than the view does."""
    queries = {
        "v_brief_rows": "SELECT id, v FROM briefly",
        "v_brief_some": "SELECT id, u, v FROM briefly WHERE v > 3",
        "v_brief_sum": "SELECT sum(v) AS s, sum(u) AS u FROM briefly WHERE v > 3",
    }
    other = "DEFAULT" if first != "DEFAULT" else "USING INDEX briefly_u_key"
    source.execute(f"ALTER TABLE briefly REPLICA IDENTITY {first}")
    for name, text in queries.items():
        commander.execute("CALL headrace.create_view(%s, %s)", (name, text))
    for statements in (*UNDER_ANOTHER, "UPDATE briefly SET u = -u", "UPDATE briefly SET v = v + 1"):
        with source.transaction():
            source.execute(f"ALTER TABLE briefly REPLICA IDENTITY {other}")
            source.execute(statements)
            source.execute(f"ALTER TABLE briefly REPLICA IDENTITY {first}")
        for name, text in queries.items():
            wait_until(
                lambda name=name, text=text: (
                    told(source, name)[0] == "running"
                    and covers(commander, name)
                    and not differs(source, name, text)
                ),
                lambda name=name, done=statements: f"{name}, {done}: {told(source, name)}",
            )
    for name in queries:
        commander.execute(f"CALL headrace.drop_view('{name}')")


def covers(commander: psycopg.Connection, name: str) -> bool:
    with contextlib.suppress(psycopg.errors.ObjectNotInPrerequisiteState):
        commander.execute("CALL headrace.wait_for(%s)", (name,))
        return True
    return False
