"""Only a role that may read a view may read its changes; a feed belongs to its creator."""

from __future__ import annotations

import psycopg
import pytest

from tests.security.roles import connect, role
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

SECRET = "sesame-4711"


@pytest.fixture
def server(engine):
    with psycopg.connect(engine.source, autocommit=True) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, x text)")
        conn.execute(
            "CALL headrace.create_view('v', 'SELECT id, x FROM t', '{\"history\": \"1 day\"}')"
        )
        conn.execute("INSERT INTO t VALUES (1, %s)", (SECRET,))
        conn.execute("CALL headrace.wait_for('v')")
        yield conn
        conn.execute("CALL headrace.drop_view('v')")


@pytest.fixture
def people(server, engine):
    """Sessions of a reader and of a stranger."""
    with role(server, "reader") as reader, role(server, "stranger") as stranger:
        server.execute(f"GRANT SELECT ON v TO {reader}")
        with connect(engine.source, reader) as one, connect(engine.source, stranger) as other:
            yield one, other


READ = (
    "SELECT * FROM headrace.view_changes('public.v')",
    "SELECT * FROM headrace.view_as_of(NULL::public.v, txid => {txid})",
    "SELECT headrace.view_txid('public.v')",
    "CALL headrace.create_feed('s', 'public.v')",
    "SELECT * FROM headrace.view_diff('public.v', since => 0)",
    "SELECT * FROM headrace.who_changed('public.v', '{{\"x\": 1}}')",
)
LOOK = (
    "SELECT * FROM headrace.history",
    "SELECT * FROM headrace.histories",
    "SELECT * FROM headrace.feeds",
    "SELECT * FROM headrace.progress",
)


def test_a_reader_reads(server, people):
    reader, _ = people
    reader.execute("CALL headrace.create_feed('f', 'public.v', 0)")
    for query in (READ[0], "SELECT * FROM headrace.feed_read('f')"):
        assert SECRET in str(reader.execute(query).fetchall())
    txid = reader.execute(READ[2]).fetchone()[0]
    assert SECRET in str(reader.execute(READ[1].format(txid=txid)).fetchall())
    reader.execute("CALL headrace.feed_ack('f', %s)", (txid,))


def test_a_stranger_reads_nothing(server, people):
    reader, stranger = people
    txid = server.execute("SELECT headrace.view_txid('v')").fetchone()[0]
    reader.execute("CALL headrace.create_feed('f', 'public.v', 0)")
    for statement in READ:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            stranger.execute(statement.format(txid=txid))
    for statement in LOOK:
        assert stranger.execute(statement).fetchall() == []
    for statement in (
        "SELECT * FROM headrace.feed_read('f')",
        "CALL headrace.feed_ack('f', 1)",
        "CALL headrace.drop_feed('f')",
    ):
        with pytest.raises(psycopg.errors.UndefinedObject):
            stranger.execute(statement)
    with pytest.raises(psycopg.errors.DuplicateObject):
        reader.execute("CALL headrace.create_feed('f', 'public.v', 0)")
    # A function that reports every row passed to it reports none.
    stranger.execute(
        "CREATE FUNCTION tell(x anyelement) RETURNS bool COST 0.0001 LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'seen %', x; END $$"
    )
    assert stranger.execute("SELECT * FROM headrace.history WHERE tell(data)").fetchall() == []
    assert stranger.execute("SELECT * FROM headrace.feeds WHERE tell(name)").fetchall() == []


def test_whoever_has_become_another_is_the_other(server, people):
    reader, stranger = people
    server.execute(f"GRANT {stranger.info.user} TO {reader.info.user}")
    reader.execute(f"SET ROLE {stranger.info.user}")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        reader.execute(READ[0])
    reader.execute("RESET ROLE")
    # A function of the stranger runs with the stranger's rights, one of the reader with the
    # reader's.
    for owner, of, allowed in ((stranger, reader, False), (reader, stranger, True)):
        owner.execute(
            "CREATE FUNCTION mine() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS"
            " $$ SELECT count(*) FROM headrace.view_changes('public.v') $$"
        )
        call = f"SELECT {owner.info.user}.mine()"
        if allowed:
            assert of.execute(call).fetchone() == (1,)
        else:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                of.execute(call)


def test_half_a_right_is_none(server, people):
    reader, stranger = people
    server.execute(f"GRANT SELECT (id) ON v TO {stranger.info.user}")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        stranger.execute(READ[0])
    server.execute("ALTER TABLE v ENABLE ROW LEVEL SECURITY")
    try:
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            reader.execute(READ[0])
        assert reader.execute(LOOK[0]).fetchall() == []
    finally:
        server.execute("ALTER TABLE v DISABLE ROW LEVEL SECURITY")
    assert reader.execute(READ[0]).fetchall()
    reader.execute("CALL headrace.create_feed('f', 'public.v', 0)")
    server.execute(f"REVOKE SELECT ON v FROM {reader.info.user}")
    for query in (READ[0], "SELECT * FROM headrace.feed_read('f')"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            reader.execute(query)


def test_nobody_writes_a_history_nor_anothers_feed(server, people):
    reader, stranger = people
    reader.execute("CALL headrace.create_feed('f', 'public.v', 0)")
    for statement in (
        "DELETE FROM headrace.history",
        "UPDATE headrace.history SET data = '{}'",
        "INSERT INTO headrace.history SELECT * FROM headrace.history",
        "UPDATE headrace.histories SET keep = '1 s'",
        "SELECT * FROM headrace.histories FOR SHARE",
        "DELETE FROM headrace.feeds",
        "UPDATE headrace.feeds SET history_id = 1",
        "UPDATE headrace.feeds SET owner = 10",
        "BEGIN; LOCK TABLE headrace.feeds IN SHARE MODE",
        "BEGIN; LOCK TABLE headrace.histories IN SHARE MODE",
        "CALL headrace.set_history('public.v', NULL)",
        "CALL headrace.set_history('public.v', '1 s')",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            reader.execute(statement)
        reader.rollback()
    assert stranger.execute("UPDATE headrace.feeds SET txid = 9").rowcount == 0
    for history in ("(SELECT max(id) FROM headrace.histories)", "1"):
        with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.NotNullViolation)):
            stranger.execute(
                f"INSERT INTO headrace.feeds (name, history_id, txid) VALUES ('g', {history}, 0)"
            )


def test_a_subscribers_open_transaction_holds_up_nobody(server, people, engine):
    reader, _ = people
    reader.execute("CALL headrace.create_feed('f', 'public.v', 0)")
    with reader.transaction():
        reader.execute("CALL headrace.create_feed('g', 'public.v', 0)")
        reader.execute("CALL headrace.feed_ack('f', headrace.view_txid('public.v'))")
        server.execute("INSERT INTO t VALUES (2, 'b')")
        server.execute("CALL headrace.wait_for('v', timeout => '90 s')")
        server.execute("CALL headrace.set_history('v', NULL)")
        server.execute("CALL headrace.set_history('v', '1 day')")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        reader.execute("SELECT * FROM headrace.feed_read('f')")


def test_names_do_not_break_out(server, people, engine):
    strange = '"we""ird\'; x"'
    server.execute(f'CREATE TABLE {strange} ("a""b\'" int PRIMARY KEY, t text, txid int)')
    server.execute(
        'CALL headrace.create_view(%s, %s, \'{"history": "1 day"}\')',
        ('"v ""; --"', f"SELECT * FROM {strange}"),
    )
    name = '"v ""; --"'
    server.execute(f"INSERT INTO {strange} VALUES (1, '(,\"\\', 5)")
    server.execute("CALL headrace.wait_for(%s, timeout => '90 s')", (name,))
    wait_until(
        lambda: (
            server.execute("SELECT count(*) FROM headrace.view_changes(%s)", (name,)).fetchone()
            == (1,)
        ),
        "its change",
    )
    assert (
        server.execute(
            f"SELECT (data::{name}).* FROM headrace.view_changes(%s)", (name,)
        ).fetchall()
        == server.execute(f"SELECT * FROM {name}").fetchall()
        == server.execute(
            f"SELECT * FROM headrace.view_as_of(NULL::{name}, txid => headrace.view_txid(%s))",
            (name,),
        ).fetchall()
    )
    for odd in ("NULL::t", "5", "NULL::pg_class", "NULL::text"):
        with pytest.raises(
            (psycopg.errors.InvalidParameterValue, psycopg.errors.ObjectNotInPrerequisiteState)
        ):
            server.execute(f"SELECT * FROM headrace.view_as_of({odd}, txid => 1)")
    server.execute("CALL headrace.drop_view(%s)", (name,))
