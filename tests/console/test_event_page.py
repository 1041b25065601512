"""The page of events: the rows that each role may see, filters, pages, and news."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from urllib.parse import urlencode

import psycopg
import pytest

from headrace.console.event_page import SHOWN_MAX, filters_of
from tests.console.web import Client, port_of, token_of
from tests.waiting import wait_until

pytestmark = pytest.mark.engine_with("--http", "127.0.0.1:0")
COUNT = "SELECT count(*) FROM headrace.events WHERE view = 'event_a.v' AND event = 'view stopped'"


@pytest.fixture(scope="module")
def scene(running_engine):
    """Roles event_a, whose view has stopped, and event_b; more events than a page shows."""
    engine = running_engine
    with psycopg.connect(engine.source, autocommit=True) as source:
        for role in ("event_a", "event_b"):
            source.execute(f"CREATE ROLE {role} LOGIN")
            source.execute(f"CREATE SCHEMA {role} AUTHORIZATION {role}")
        with psycopg.connect(engine.dsn, autocommit=True, user="event_a") as conn:
            conn.execute("CREATE TABLE event_a.t (id int PRIMARY KEY, x int)")
            query = "SELECT id, 1 / x AS y FROM event_a.t"
            conn.execute("CALL headrace.create_view('event_a.v', %s)", (query,))
        source.execute("INSERT INTO event_a.t VALUES (1, 0)")
        wait_until(lambda: source.execute(COUNT).fetchone() == (1,), "its event is there")
        # Rows as the commander writes them, of the time before.
        source.execute(
            "INSERT INTO headrace.events (at, level, event, process, pid, fields, seq)"
            " SELECT now() - interval '1 hour', 'info', 'library', 'worker test', 7,"
            " jsonb_build_object('message', '100 %% of <b>' || i), i"
            " FROM generate_series(1, 150) i".replace("%%", "%")
        )
        yield SimpleNamespace(engine=engine, port=port_of(engine), source=source)
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            conn.execute("CALL headrace.drop_view('event_a.v')")
        for role in ("event_a", "event_b"):
            source.execute(f"DROP OWNED BY {role} CASCADE")
            source.execute(f"DROP ROLE {role}")


def logged_in(scene, role=None):
    client = Client(scene.port)
    body = {"role": role, "password": "x"} if role else {"token": token_of(scene.engine)}
    assert client.post("/api/login", body)[0] == 200
    return client


def page(client, **filters):
    status, body = client.get(f"/api/log?{urlencode(filters)}")
    assert status == 200, body
    return json.loads(body)


def test_a_role_sees_the_events_of_its_views(scene):
    found = page(logged_in(scene, "event_a"))["events"]
    assert "view stopped" in {e["event"] for e in found}
    assert {e["view"] for e in found} == {"event_a.v"}
    assert page(logged_in(scene, "event_b")) == {"events": [], "more": False}
    everybody = logged_in(scene)
    assert page(everybody, view="event_a.v") == page(logged_in(scene, "event_a"))
    assert page(everybody)["more"]


def test_pages_have_every_event_once_the_newest_first(scene):
    client, before, seen = logged_in(scene), None, []
    while True:
        found = page(client, process="worker test", **({"before": before} if before else {}))
        seen += [e["id"] for e in found["events"]]
        assert len(found["events"]) <= SHOWN_MAX
        if not found["more"]:
            break
        before = seen[-1]
    wanted = "SELECT id FROM headrace.events WHERE process = 'worker test' ORDER BY id DESC"
    assert seen == [n for (n,) in scene.source.execute(wanted).fetchall()]
    news = page(client, process="worker test", after=seen[3])["events"]
    assert [e["id"] for e in news] == seen[:3]


@pytest.mark.parametrize(
    ("filters", "condition"),
    [
        ({"level": "warning"}, "level IN ('warning', 'error', 'critical')"),
        ({"level": "error"}, "level IN ('error', 'critical')"),
        ({"view": "EVENT_A"}, "view = 'event_a.v'"),
        ({"process": "builder"}, "process = 'builder'"),
        ({"text": "100 % of <B>77"}, "fields ->> 'message' = '100 % of <b>77'"),
        ({"text": "library", "process": "test"}, "process = 'worker test'"),
        ({"text": "100 _ of"}, "false"),
        ({"text": "'; DROP TABLE headrace.events --"}, "false"),
    ],
)
def test_filters(scene, filters, condition):
    found = page(logged_in(scene), **filters)
    wanted = scene.source.execute(
        f"SELECT id, fields FROM headrace.events WHERE {condition} ORDER BY id DESC LIMIT 100"
    ).fetchall()
    assert [(e["id"], e["fields"]) for e in found["events"]] == wanted


def test_a_tab_hears_of_new_events(scene):
    client = logged_in(scene, "event_a")
    stream = client._connect()
    stream.request("GET", "/api/events?log=1", headers={"cookie": client.cookie})
    answer = stream.getresponse()

    def newest():
        for line in answer:
            if line == b"event: log\n":
                return json.loads(next(answer)[6:])["newest"]
        raise AssertionError("the stream has ended")

    first = newest()
    assert first == page(client)["events"][0]["id"]
    # An event of the role's view, and none of the others'.
    owner = "SELECT v.id, v.owner FROM headrace.views v WHERE v.view_name = 'v'"
    scene.source.execute(
        "INSERT INTO headrace.events (at, level, event, view, view_id, process, fields, owner, seq)"
        f" SELECT now(), 'info', 'library', 'event_a.v', o.id, 'x', '{{}}', o.owner, 1 FROM ({owner}) o"
    )
    assert newest() > first
    stream.close()


def test_only_who_is_logged_in_and_few_at_a_time(scene):
    assert Client(scene.port).get("/api/log")[0] == 401
    client = logged_in(scene)
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: client.get("/api/log?text=x")[0], range(50)))
    assert set(answers) <= {200, 429}
    assert 200 in answers
    assert client.get("/api/log")[0] == 200


@pytest.mark.parametrize(
    "given",
    [
        {"level": "debug"},
        {"before": "-1"},
        {"before": "1e3"},
        {"after": "9" * 19},
        {"after": "١"},
        {"text": "x" * 201},
        {"view": "a\0b"},
    ],
)
def test_filters_that_are_none(given):
    assert filters_of(given) is None
    assert filters_of({}) is not None
