"""The SQL page's requests to a running engine: only what the logged-in role may do, and no more."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import psycopg
import pytest

from headrace.console.app import csrf_token
from headrace.console.sql_page import RUNNING_MAX, SQL_BYTES_MAX
from tests.console.web import Client, port_of, token_of
from tests.waiting import wait_until

ROLES = ("sql_a", "sql_b", "sql_ro")
SUM = "SELECT g, sum(x) AS x FROM t GROUP BY g"

pytestmark = pytest.mark.engine_with("--http", "127.0.0.1:0")


@pytest.fixture(scope="module")
def scene(running_engine):
    """Role sql_a with a table in the schema of its name, which only its search_path shows."""
    engine = running_engine
    with psycopg.connect(engine.source, autocommit=True) as source:
        for role in ROLES:
            source.execute(f"CREATE ROLE {role} LOGIN")
            source.execute(f"CREATE SCHEMA {role} AUTHORIZATION {role}")
        source.execute("ALTER ROLE sql_ro SET default_transaction_read_only = on")
        source.execute("ALTER ROLE sql_a SET search_path = sql_a")
        source.execute("CREATE TABLE sql_a.t (id int PRIMARY KEY, g int, x numeric)")
        source.execute("INSERT INTO sql_a.t SELECT i, i % 5, i FROM generate_series(0, 99) i")
        source.execute("ALTER TABLE sql_a.t OWNER TO sql_a")
        source.execute("GRANT USAGE ON SCHEMA sql_a TO sql_ro")
        source.execute("GRANT SELECT ON sql_a.t TO sql_ro")
        yield SimpleNamespace(engine=engine, port=port_of(engine), source=source)
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            for (name,) in conn.execute("SELECT name FROM headrace.list_views()").fetchall():
                conn.execute("CALL headrace.drop_view(%s)", (name,))
        for role in ROLES:
            source.execute(f"DROP OWNED BY {role} CASCADE")
            source.execute(f"DROP ROLE {role}")


def logged_in(scene, role):
    client = Client(scene.port)
    body = {"token": token_of(scene.engine)} if role is None else {"role": role, "password": "x"}
    assert client.post("/api/login", body)[0] == 200
    return client


def headers(client):
    return {"x-headrace-csrf": json.loads(client.get("/api/me")[1])["csrf"]}


def act(client, action, query, **more):
    """Return the answer to an action, which is always status 200."""
    status, told = client.post(
        "/api/sql", {"action": action, "query": query, **more}, **headers(client)
    )
    assert status == 200, told
    return told


def test_a_query_is_checked_and_its_plan_drawn(scene):
    client = logged_in(scene, "sql_a")
    for action in ("check", "explain"):
        told = act(client, action, SUM)
        assert "error" not in told
        kinds = [node["kind"] for node in told["graph"]["nodes"]]
        assert kinds[0] == "Sink"
        assert "Source" in kinds
        assert (told["done"] is not None) == (action == "check")
    assert [v for v in client.first("overview")["views"] if v["owner"] == "sql_a"] == []


def test_a_view_is_created_as_the_role_and_in_its_schema(scene):
    client = logged_in(scene, "sql_a")
    told = act(client, "create", SUM, name="by_g", options={"key": ["g"], "block": True})
    assert told["view"] == "sql_a.by_g"
    rows = scene.source.execute("SELECT g, x FROM sql_a.by_g ORDER BY g").fetchall()
    wanted = scene.source.execute("SELECT g, sum(x) FROM sql_a.t GROUP BY g ORDER BY g").fetchall()
    assert rows == wanted
    owner = "SELECT pg_get_userbyid(owner) FROM headrace.views WHERE view_name = 'by_g'"
    assert scene.source.execute(owner).fetchone() == ("sql_a",)
    again = act(client, "create", SUM, name="by_g")
    assert again["error"]["sqlstate"] == "42P07"


def test_an_error_has_its_code_hint_and_position(scene):
    client = logged_in(scene, "sql_a")
    query = "SELECT g,\n  sum(ex) FROM t GROUP BY g"
    error = act(client, "check", query)["error"]
    with pytest.raises(psycopg.errors.UndefinedColumn) as raised:
        scene.source.execute(f"SET search_path = sql_a; {query}")
    scene.source.execute("RESET search_path")
    assert error["sqlstate"] == "42703"
    assert error["message"] == raised.value.diag.message_primary
    assert query[int(error["position"]) - 1 :].startswith("ex)")
    volatile = act(client, "explain", "SELECT g, random() FROM t")["error"]
    assert volatile["sqlstate"] == "0A000"


def test_a_failure_to_fill_is_told(scene):
    client = logged_in(scene, "sql_a")
    told = act(client, "create", "SELECT id, 1 / (id - id) AS n FROM t", name="bad")
    assert told["error"]["sqlstate"] == "22012"
    found = scene.source.execute("SELECT to_regclass('sql_a.bad')").fetchone()
    assert found == (None,)


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE sql_a.t",
        "SELECT 1; DROP TABLE sql_a.t",
        "DELETE FROM t",
        "COPY t TO PROGRAM 'touch /tmp/x'",
        "WITH d AS (DELETE FROM t RETURNING *) SELECT * FROM d",
        "CALL headrace.drop_view('sql_a.by_g')",
    ],
)
def test_nothing_but_a_query_is_taken(scene, query):
    client = logged_in(scene, "sql_a")
    for action in ("check", "explain", "create"):
        told = act(client, action, query, **({"name": "no"} if action == "create" else {}))
        assert told["error"]["sqlstate"] in ("42601", "0A000"), told
    assert scene.source.execute("SELECT count(*) FROM sql_a.t").fetchone() == (100,)


def test_a_role_without_rights_is_refused(scene):
    client = logged_in(scene, "sql_b")
    for action in ("check", "explain", "create"):
        told = act(client, action, "SELECT id FROM sql_a.t", name="sql_b.v")
        assert told["error"]["sqlstate"] == "42501", told
        told = act(client, action, "SELECT 1 AS n", name="sql_a.v")
        assert action != "create" or told["error"]["sqlstate"] == "42501"
    # A name is the plan of a view, as in SQL: only its owner sees it.
    told = act(logged_in(scene, "sql_b"), "explain", "sql_a.by_g")
    assert told["error"]["sqlstate"] in ("42501", "42P01")


@pytest.mark.parametrize(("role", "code"), [("sql_ro", "25006"), (None, "42501")])
def test_logins_that_read_only_create_nothing(scene, role, code):
    client = logged_in(scene, role)
    assert json.loads(client.get("/api/me")[1])["reads_only"]
    query = "SELECT g, count(*) FROM sql_a.t GROUP BY g"
    assert "error" not in act(client, "check", query)
    told = act(client, "create", query, name="public.no")
    assert told["error"]["sqlstate"] == code
    assert scene.source.execute("SELECT to_regclass('public.no')").fetchone() == (None,)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT sql_b.spy('a') AS x",
        "SELECT 'b'::sql_b.spied AS x",
        "SELECT id FROM sql_a.t WHERE id::text = sql_b.spy('c')",
        "SELECT id, x::text::sql_b.spied AS x FROM sql_a.t",
    ],
)
def test_a_plan_runs_no_code_of_others(scene, query):
    """With the token, a function of a role would otherwise run as the engine's role."""
    with psycopg.connect(scene.engine.source, autocommit=True, user="sql_b") as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS sql_b.seen (who text)")
        conn.execute("GRANT INSERT ON sql_b.seen TO PUBLIC")
        conn.execute(
            "CREATE OR REPLACE FUNCTION sql_b.note() RETURNS void LANGUAGE sql AS"
            " 'INSERT INTO sql_b.seen VALUES (current_user)'"
        )
        # Postgres checks no declaration: a volatile function may hide in an immutable one.
        conn.execute(
            "CREATE OR REPLACE FUNCTION sql_b.spy(x text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM sql_b.note(); RETURN x; END $$"
        )
        conn.execute("SELECT sql_b.spy('it works')")
        assert conn.execute("DELETE FROM sql_b.seen RETURNING who").fetchall() == [("sql_b",)]
        if not conn.execute("SELECT to_regtype('sql_b.spied')").fetchone()[0]:
            conn.execute("CREATE DOMAIN sql_b.spied AS text CHECK (sql_b.spy(VALUE) IS NOT NULL)")
    client = logged_in(scene, None)
    for action in ("check", "explain"):
        act(client, action, query)
    who = {role for (role,) in scene.source.execute("SELECT who FROM sql_b.seen").fetchall()}
    assert who == set()


def test_requests_of_other_pages_are_refused(scene):
    client = logged_in(scene, "sql_a")
    good = {"action": "check", "query": SUM}
    token = headers(client)
    other = logged_in(scene, "sql_a")
    assert client.post("/api/sql", good, **token)[0] == 200
    assert client.post("/api/sql", good)[0] == 403
    assert client.post("/api/sql", good, **headers(other))[0] == 403
    assert client.post("/api/sql", good, **{"x-headrace-csrf": csrf_token("")})[0] == 403
    for value in ("cross-site", "same-site", "none"):
        assert client.post("/api/sql", good, **token, sec_fetch_site=value)[0] == 403
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert client.post("/api/sql", good, **token, content_type=kind)[0] == 415
    assert Client(scene.port).post("/api/sql", good, **token)[0] == 401
    assert client.get("/api/sql")[0] == 405


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[" * 100_000, 400),
        ({"action": "execute", "query": "SELECT 1"}, 400),
        ({"action": "check", "query": 7}, 400),
        ({"action": "check", "query": "SELECT 1", "options": []}, 400),
        ({"action": "check", "query": "SELECT 1", "role": "postgres"}, 400),
        ({"action": "check", "query": "SELECT '\0'"}, 400),
        ({"action": "create", "query": "SELECT 1", "name": "x" * 301}, 400),
        (b'{"action": "check", "query": "\\ud800"}', 400),
        ({"action": "check", "query": "x" * SQL_BYTES_MAX}, 413),
    ],
)
def test_bodies_that_are_none(scene, body, status):
    client = logged_in(scene, "sql_a")
    assert client.post("/api/sql", body, **headers(client))[0] == status
    assert "error" not in act(client, "check", SUM)


WAITING = """SELECT count(*) FROM pg_stat_activity
 WHERE wait_event_type = 'Lock' AND datname = current_database()"""


def test_an_endless_call_ends_with_the_browser(scene):
    """The table is locked, so planning waits; the client goes, and nothing waits any more."""
    client = logged_in(scene, "sql_a")
    given = headers(client) | {"content-type": "application/json", "cookie": client.cookie}
    waiting = lambda n: scene.source.execute(WAITING).fetchone() == (n,)  # noqa: E731
    with psycopg.connect(scene.engine.source) as locker:
        locker.execute("LOCK TABLE sql_a.t IN ACCESS EXCLUSIVE MODE")
        for action in ("check", "explain", "create"):
            conn = http.client.HTTPConnection("127.0.0.1", scene.port)
            body = {"action": action, "query": SUM, "name": "gone" if action == "create" else ""}
            conn.request("POST", "/api/sql", json.dumps(body), given)
            wait_until(lambda: waiting(1), "it waits for the lock")
            conn.close()
            wait_until(lambda: waiting(0), "it is cancelled")
    assert "error" not in act(client, "check", SUM)
    assert scene.source.execute("SELECT to_regclass('sql_a.gone')").fetchone() == (None,)


def test_a_few_calls_of_a_login_run_at_a_time(scene):
    client = logged_in(scene, "sql_a")
    given = headers(client)

    def ask(_):
        one = Client(scene.port)
        one.cookie = client.cookie
        return one.post("/api/sql", {"action": "check", "query": SUM}, **given)

    with psycopg.connect(scene.engine.source) as locker, ThreadPoolExecutor(50) as pool:
        locker.execute("LOCK TABLE sql_a.t IN ACCESS EXCLUSIVE MODE")
        answers = [pool.submit(ask, n) for n in range(50)]
        refused = wait_until(
            lambda: (
                done if len(done := [a for a in answers if a.done()]) == 50 - RUNNING_MAX else None
            ),
            "all but a few are refused",
        )
        assert {a.result()[0] for a in refused} == {429}
        # Another role is not concerned.
        assert "error" not in act(logged_in(scene, "sql_b"), "check", "SELECT 1 AS n")
        locker.rollback()
        assert sorted(a.result()[0] for a in answers) == [200] * RUNNING_MAX + [429] * (
            50 - RUNNING_MAX
        )
    assert "error" not in act(client, "check", SUM)
