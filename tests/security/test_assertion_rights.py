"""Assertions: a role sees violations only of rows that it may read, and webhooks only of its own."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.security.roles import connect, role
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.shared_engine,
    # Nothing listens there: the address and the secret are what the tests are about.
    pytest.mark.engine_with(HEADRACE_WEBHOOK_HOSTS="127.0.0.1:1"),
]

SECRET = "sesame-4711"
URL = "http://127.0.0.1:1/t0ps3cret"
OPTIONS = json.dumps({"on_violation": "both", "webhook": URL})
QUERY = "SELECT id, x, who FROM public.t WHERE id < 0"
OURS = ("assertion_states", "violations", "webhook_targets", "webhook_deliveries")


@pytest.fixture
def server(engine):
    with psycopg.connect(engine.source, autocommit=True) as conn:
        conn.execute("CREATE TABLE public.t (id int PRIMARY KEY, x text, who name)")
        yield conn


@pytest.fixture
def people(server, engine):
    """Sessions of an owner with a violated assertion, of a reader, and of a stranger."""
    with (
        role(server, "owner") as owner,
        role(server, "reader") as reader,
        role(server, "stranger") as stranger,
    ):
        server.execute(f"GRANT SELECT ON t TO {owner}")
        with (
            connect(engine.source, owner) as one,
            connect(engine.source, reader) as two,
            connect(engine.source, stranger) as three,
        ):
            try:
                one.execute("CALL headrace.create_assertion('a', %s, %s)", (QUERY, OPTIONS))
                server.execute(f"GRANT SELECT ON {owner}.a TO {reader}")
                server.execute("INSERT INTO t VALUES (-1, %s)", (SECRET,))
                wait_until(lambda: seen(server) == [-1], "the violation is recorded")
                yield one, two, three
            finally:
                server.execute(f"CALL headrace.drop_view('{owner}.a', true)")


def seen(conn) -> list[int]:
    """Return the ids in the samples of the violations that a role sees."""
    rows = conn.execute("SELECT sample FROM headrace.violations").fetchall()
    return [int(each["id"]) for (sample,) in rows for each in sample]


def anew(server, people, number: int) -> None:
    """Resolve the violation, then violate the assertion by another row."""
    name = f"{people[0].info.user}.a"
    server.execute("DELETE FROM t")
    server.execute(f"CALL headrace.wait_for('{name}', timeout => '90 s')")
    server.execute("INSERT INTO t VALUES (%s, %s)", (number, SECRET))
    server.execute(f"CALL headrace.wait_for('{name}', timeout => '90 s')")


def refused(conn, statement: str) -> psycopg.errors.Diagnostic:
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(statement)
    return caught.value.diag


def test_the_owner_sees_everything(people):
    owner, _, _ = people
    assert seen(owner) == [-1]
    [(url, secret)] = owner.execute("SELECT url, secret FROM headrace.webhooks()").fetchall()
    assert (url, secret.startswith("whsec_"), len(secret) > 40) == (URL, True, True)
    name = f"{owner.info.user}.a"
    wait_until(
        lambda: (
            owner.execute("SELECT name, state, rows FROM headrace.assertions()").fetchall()
            == [(name, "violated", 1)]
        ),
        "it is shown",
    )
    assert refused(owner, "CALL headrace.check_assertion('a')").sqlstate == "23514"


def test_a_reader_sees_violations_and_no_webhook(people):
    owner, reader, _ = people
    name = f"{owner.info.user}.a"
    assert seen(reader) == [-1]
    shown = reader.execute("SELECT name, webhook, owner FROM headrace.assertions()").fetchall()
    assert shown == [(name, None, None)]
    assert reader.execute("SELECT * FROM headrace.webhooks()").fetchall() == []
    for table in ("webhook_targets", "webhook_deliveries"):
        assert reader.execute(f"TABLE headrace.{table}").fetchall() == []
    assert refused(reader, f"CALL headrace.check_assertion('{name}')").sqlstate == "23514"
    for call in ("drop_assertion", "drop_view", "resync_view"):
        assert refused(reader, f"CALL headrace.{call}('{name}')").sqlstate == "42501"


def test_a_reader_no_longer(people, server):
    owner, reader, _ = people
    server.execute(f"REVOKE SELECT ON {owner.info.user}.a FROM {reader.info.user}")
    assert seen(reader) == []
    assert reader.execute("SELECT * FROM headrace.assertions()").fetchall() == []


def test_a_stranger_sees_nothing(people):
    owner, _, stranger = people
    name = f"{owner.info.user}.a"
    for table in OURS:
        columns = "id" if table == "assertion_states" else "*"
        assert stranger.execute(f"SELECT {columns} FROM headrace.{table}").fetchall() == []
    for function in ("assertions", "webhooks"):
        assert stranger.execute(f"SELECT * FROM headrace.{function}()").fetchall() == []
    assert refused(stranger, f"CALL headrace.check_assertion('{name}')").sqlstate == "42501"
    assert refused(stranger, f"CALL headrace.drop_assertion('{name}')").sqlstate == "42501"
    # A function that reports every row passed to it reports none.
    stranger.execute(
        "CREATE FUNCTION tell(v headrace.violations) RETURNS bool LANGUAGE plpgsql COST 0.0001 AS"
        " $$ BEGIN RAISE NOTICE '%', v; RETURN true; END $$"
    )
    heard: list[str] = []
    stranger.add_notice_handler(lambda d: heard.append(d.message_primary or ""))
    stranger.execute("SELECT FROM headrace.violations v WHERE tell(v)")
    assert heard == []


@pytest.mark.parametrize("column", ["pending", "fill_sample", "unsent"])
def test_rows_that_are_not_reported_are_shown_to_nobody(people, column):
    """A reader sees the table itself; an owner may lack the right to read it."""
    for conn in people:
        why = refused(conn, f"SELECT {column} FROM headrace.assertion_states")
        assert why.sqlstate == "42501"


def test_nobody_writes(people):
    for conn in people:
        for table in OURS:
            assert refused(conn, f"DELETE FROM headrace.{table}").sqlstate == "42501"
            lock = f"DO $$ BEGIN LOCK TABLE headrace.{table} IN SHARE MODE; END $$"
            assert refused(conn, lock).sqlstate == "42501"
            why = refused(conn, f"SELECT 1 FROM headrace.{table} FOR KEY SHARE")
            assert why.sqlstate == "42501"


def test_a_notification_has_no_row(people, server, engine):
    """Every role of the database may listen."""
    _, _, stranger = people
    stranger.execute('LISTEN "headrace.violations"')
    anew(server, people, -2)
    heard = [n.payload for n in stranger.notifies(timeout=PATIENCE_S, stop_after=2)]
    assert [json.loads(payload)["event"] for payload in heard] == ["resolved", "violated"]
    assert SECRET not in str(heard)
    assert SECRET not in engine.log
    assert "t0ps3cret" not in engine.log


def test_false_notifications_do_no_harm(people, server):
    """Every role may send them."""
    _, _, stranger = people
    for payload in ("", "0", "-1", "x' OR true", "9" * 100, "\u00e4"):
        stranger.execute("SELECT pg_notify('headrace.asserted', %s)", (payload,))
    stranger.execute(
        "SELECT count(pg_notify('headrace.asserted', i::text)) FROM generate_series(1, 20000) i"
    )
    anew(server, people, -3)
    wait_until(lambda: seen(server) == [-1, -3], lambda: f"{seen(server)}")


def test_policies_for_the_owner_are_refused(server, engine):
    """Its rows would be a part only of those that are counted."""
    server.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    server.execute("CREATE POLICY own ON t USING (who = current_user)")
    with role(server, "tenant") as tenant:
        server.execute(f"GRANT SELECT ON t TO {tenant}")
        with connect(engine.source, tenant) as conn:
            why = refused(conn, f"CALL headrace.create_assertion('a', '{QUERY}')")
            assert (why.sqlstate, "row-level security" in why.message_primary) == ("0A000", True)
    assert server.execute("SELECT count(*) FROM headrace.views").fetchone() == (0,)


def test_policies_that_come_later_end_the_reports(people, server):
    owner, reader, _ = people
    server.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    server.execute("CREATE POLICY own ON t USING (who = current_user)")
    shown = "SELECT state, reason FROM headrace.assertions()"
    wait_until(
        lambda: "row-level security" in (server.execute(shown).fetchone()[1] or ""),
        lambda: f"{server.execute(shown).fetchone()}",
    )
    for conn in (owner, reader):
        assert seen(conn) == []
    anew(server, people, -4)
    assert server.execute(shown).fetchone()[0] == "unknown"
    assert seen(server) == [-1]
    server.execute("ALTER TABLE t DISABLE ROW LEVEL SECURITY")
    server.execute("DROP POLICY own ON t")
    wait_until(
        lambda: server.execute(shown).fetchone()[0] == "violated",
        lambda: f"{server.execute(shown).fetchone()}",
    )
    assert seen(server) == [-1], "it was violated before, and is"


def test_names_are_names(server):
    """In statements, notifications and samples."""
    name, column = """we"ird'; DROP TABLE t; --""", """c"' \\ , ("""
    quoted = '"' + name.replace('"', '""') + '"'
    server.execute('LISTEN "headrace.violations"')
    query = f"""SELECT id AS "{column.replace('"', '""')}" FROM t WHERE id < 0"""
    server.execute("CALL headrace.create_assertion(%s, %s)", (quoted, query))
    server.execute("INSERT INTO t VALUES (-7)")
    [payload] = [n.payload for n in server.notifies(timeout=PATIENCE_S, stop_after=1)]
    assert json.loads(payload)["assertion"] == f"public.{quoted}"
    shown = server.execute("SELECT assertion, sample FROM headrace.violations").fetchone()
    assert shown == (f"public.{quoted}", [{column: "-7"}])
    with pytest.raises(psycopg.errors.CheckViolation):
        server.execute("CALL headrace.check_assertion(%s)", (quoted,))
    server.execute("CALL headrace.drop_assertion(%s)", (quoted,))
    assert server.execute("SELECT count(*) FROM t").fetchone() == (1,)
