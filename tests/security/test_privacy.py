"""Privacy: a view as its owner and the owner's members see it, and as other roles see it."""

from __future__ import annotations

import urllib.request

import psycopg
import pytest

from tests.security.roles import connect, role
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.shared_engine, pytest.mark.engine_with("--http", "127.0.0.1:0")]

SECRET = "sesame-4711"


@pytest.fixture
def server(engine):
    with psycopg.connect(engine.source, autocommit=True) as conn:
        yield conn


@pytest.fixture
def people(server):
    """The names of an owner, a member and a stranger."""
    with (
        role(server, "owner") as owner,
        role(server, "member") as member,
        role(server, "stranger") as stranger,
    ):
        server.execute(f"GRANT {owner} TO {member}")
        yield owner, member, stranger
        for (view,) in server.execute(
            "SELECT format('%I.%I', schema_name, view_name) FROM headrace.views ORDER BY id DESC"
        ).fetchall():
            server.execute("CALL headrace.drop_view(%s)", (view,))


def everything(conn: psycopg.Connection, view: str) -> str:
    """Return all that a role can see of a view, errors included."""
    seen = []
    for statement in (
        "SELECT * FROM headrace.list_views()",
        "SELECT * FROM headrace.view_states()",
        "SELECT id, query, message, culprit, detail, hint, tried, note, explain, canonical"
        " FROM headrace.views",
        "SELECT headrace.view_message(n) FROM generate_series(1, 99) n",
        "SELECT plan FROM headrace.views",
        "SELECT watched FROM headrace.views",
        "SELECT * FROM headrace.view_tables",
        "SELECT * FROM headrace.view_uses",
        "SELECT * FROM headrace.progress",
        "SELECT * FROM headrace.commands",
        "SELECT * FROM headrace.meta",
        f"SELECT * FROM headrace.explain_view('{view}')",
        f"SELECT * FROM headrace.explain_view('{view}', 'logical')",
        f"SELECT * FROM headrace.verify_view('{view}')",
        f"CALL headrace.verify('{view}')",
        "SELECT * FROM headrace.queues()",
        "SELECT * FROM headrace.memory()",
        "CALL headrace.show_queues()",
        "CALL headrace.show_memory()",
        f"CALL headrace.wait_for('{view}')",
        f"CALL headrace.resume_view('{view}')",
        f"CALL headrace.pause_view('{view}')",
        f"CALL headrace.resync_view('{view}')",
        f"CALL headrace.create_index('{view}', '(id)')",
        "SELECT query FROM pg_stat_activity",
    ):
        try:
            cursor = conn.execute(statement)
            seen.append(str(cursor.fetchall() if cursor.description else ""))
        except psycopg.Error as error:
            diag = error.diag
            seen += map(str, (diag.message_primary, diag.message_detail, diag.message_hint))
    return "\n".join(seen)


def test_a_view_is_its_owners(engine, server, people):
    owner, member, stranger = people
    with connect(engine.source, owner) as conn:
        conn.execute("CREATE TABLE ledger_rows (id int PRIMARY KEY, note text)")
        conn.execute("INSERT INTO ledger_rows VALUES (1, '5')")
        conn.execute(
            "CALL headrace.create_view('v', %s)",
            (f"SELECT id, note::int AS n, '{SECRET}'::text AS s FROM ledger_rows",),
        )
        conn.execute("GRANT SELECT ON v TO PUBLIC")
    view = f"{owner}.v"
    for dsn in (engine.source, engine.dsn):
        with connect(dsn, stranger) as conn:
            # (The contents of the result table are visible to its readers.)
            conn.execute(f"SELECT count(*) FROM {view}")
            assert SECRET not in everything(conn, view)
            seen = everything(conn, view)
            assert "ledger_rows" not in seen, [x for x in seen.split("\n") if "ledger_rows" in x]
            listed = conn.execute(
                "SELECT name, status, message, query FROM headrace.list_views()"
            ).fetchall()
            assert listed == [(view, "running", None, None)]
        for person in (owner, member):
            with connect(dsn, person) as conn:
                [(query,)] = conn.execute("SELECT query FROM headrace.list_views()")
                assert SECRET in query
                plan = conn.execute(f"SELECT * FROM headrace.explain_view('{view}')")
                assert plan.fetchall()
                assert conn.execute("SELECT query FROM headrace.views").fetchall()


def test_a_value_in_an_error_is_its_owners(engine, server, people):
    owner, member, stranger = people
    with connect(engine.source, owner) as conn:
        conn.execute("CREATE TABLE ledger_rows (id int PRIMARY KEY, note text)")
        conn.execute("CALL headrace.create_view('v', 'SELECT note::int AS n FROM ledger_rows')")
        conn.execute("GRANT SELECT ON v TO PUBLIC")
        conn.execute(f"INSERT INTO ledger_rows VALUES (1, '{SECRET}')")

        def message() -> str:
            found = conn.execute("SELECT message FROM headrace.list_views()")
            return str(found.fetchone()[0])

        wait_until(lambda: SECRET in message(), "the owner is told why it stopped")
    view = f"{owner}.v"
    for dsn in (engine.source, engine.dsn):
        with connect(dsn, stranger) as conn:
            assert SECRET not in everything(conn, view)
            listed = conn.execute(
                "SELECT name, status, message FROM headrace.list_views()"
            ).fetchall()
            assert listed == [(view, "error", None)]
            with pytest.raises(psycopg.Error, match="has stopped") as caught:
                conn.execute(f"CALL headrace.wait_for('{view}')")
            assert SECRET not in str(caught.value)
        with connect(dsn, member) as conn, pytest.raises(psycopg.Error, match=SECRET):
            conn.execute(f"CALL headrace.wait_for('{view}')")
    address = engine.log.split('"address": "')[1].split('"')[0]
    for path in ("metrics", "readyz", "livez"):
        url = f"http://{address}/{path}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            text = error.read().decode()
        assert text
        assert SECRET not in text, path


def test_who_reads_a_view_does_not_read_its_query(engine, server, people):
    """A view over the result table of another role is planned over the query of that view."""
    owner, _, stranger = people
    with connect(engine.source, owner) as conn:
        conn.execute("CREATE TABLE ledger_rows (id int PRIMARY KEY, note text)")
        conn.execute(
            "CALL headrace.create_view('v', %s)",
            (f"SELECT id FROM ledger_rows WHERE note <> '{SECRET}'",),
        )
        conn.execute("GRANT SELECT ON v TO PUBLIC")
    for dsn in (engine.source, engine.dsn):
        with connect(dsn, stranger) as conn:
            query = f"SELECT id FROM {owner}.v"
            [(plan,)] = conn.execute("CALL headrace.check_view(%s)", (query,))
            assert "not shown" in plan
            conn.execute("CALL headrace.create_view('mine', %s)", (query,))
            assert SECRET not in everything(conn, f"{stranger}.mine")
            with connect(engine.dsn, stranger) as other:
                seen = other.execute("SELECT * FROM headrace.explain_view(%s)", (query,)).fetchall()
            assert SECRET not in str(seen)
            conn.execute("CALL headrace.drop_view('mine')")


def test_the_http_port_is_off_unless_asked_for(database, start_engine):
    engine = start_engine(database)
    assert '"event": "http"' not in engine.log
