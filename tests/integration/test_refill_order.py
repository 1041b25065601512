"""Views over views that have stopped together are filled anew from the lowest one on."""

from __future__ import annotations

import concurrent.futures

import psycopg
import pytest

from tests.compared import differs
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int NOT NULL, x int NOT NULL);
INSERT INTO items SELECT i, i % 7, i FROM generate_series(1, 500) i;
"""
LOW = "SELECT g, sum(x) AS x FROM items GROUP BY g"
OTHER = "SELECT g, max(x)::bigint AS x FROM items GROUP BY g"
ABOVE = {
    "left": "SELECT g, x + 1 AS x FROM low",
    "right": "SELECT g % 3 AS g, min(x) AS x FROM low GROUP BY 1",
    "pair": 'SELECT l.g, l.x, r.x AS y FROM "left" l JOIN "right" r ON r.g = l.g',
    "top": "SELECT count(*) AS n, max(x) AS x FROM pair",
}
"""A view with that name and query is over those before it."""


def whole(low: str, name: str) -> str:
    """Return the query of a view, over tables only."""
    parts = ", ".join(f'"{n}" AS ({q})' for n, q in ({"low": low} | ABOVE).items())
    return f'WITH {parts} SELECT * FROM "{name}"'


def test_all_views_above_an_altered_one_come_back_without_an_error(engine, commander, source):
    create = "CALL headrace.create_view(%s, %s)"
    commander.execute(create, ("low", LOW))
    for name, query in ABOVE.items():
        commander.execute(create, (f'"{name}"', query))
    before = len(engine.log)
    for low in (OTHER, LOW):
        source.execute("UPDATE items SET x = x + 1 WHERE id = 3")
        commander.execute("CALL headrace.alter_view('low', %s)", (low,))
        with concurrent.futures.ThreadPoolExecutor() as threads:
            list(threads.map(lambda name: wait(engine, name), ("low", *ABOVE)))
        for name in ("low", *ABOVE):
            assert differs(source, f'"{name}"', whole(low, name)) == [], name
    assert '"view stays stopped"' not in engine.log[before:]


def test_a_view_over_one_that_is_being_refilled_is_created_once_that_has_rows(
    engine, commander, source
):
    notices: list[str] = []
    commander.add_notice_handler(lambda told: notices.append(told.message_primary or ""))
    create = "CALL headrace.create_view(%s, %s)"
    commander.execute(create, ("low", LOW))
    for name, query in ABOVE.items():
        commander.execute(create, (f'"{name}"', query))
    newest = "SELECT n + max AS m FROM (SELECT n, max(x) FROM top GROUP BY 1) s"
    for low in (OTHER, LOW, OTHER):
        commander.execute("CALL headrace.alter_view('low', %s)", (low,))
        commander.execute(create, ("newest", newest))
        query = f"WITH top AS ({whole(low, 'top')}) {newest}"
        assert differs(source, "newest", query) == []
        commander.execute("CALL headrace.drop_view('newest')")
    assert any("which is being filled again" in told for told in notices), notices


def test_a_view_over_one_that_stays_stopped_is_refused_with_a_remedy(commander, source):
    """Its name needs quotes of every kind."""
    name = """public."it's \\ ""this""\""""
    create = "CALL headrace.create_view(%s, %s)"
    commander.execute(create, (name, "SELECT id, 10 / x AS y FROM items"))
    source.execute("UPDATE items SET x = 0 WHERE id = 5")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        commander.execute("CALL headrace.wait_for(%s)", (name,))
    above = f"SELECT max(y) AS y FROM {name}"
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as refused:
        commander.execute(create, ("above", above))
    assert f"view {name} cannot be read: its status is error" in str(refused.value)
    source.execute("UPDATE items SET x = 2 WHERE id = 5")
    hint = refused.value.diag.message_hint or ""
    commander.execute(hint.removeprefix("Run ").removesuffix(" first."))
    commander.execute(create, ("above", above))
    assert differs(source, "above", above) == []


def test_a_view_over_one_whose_table_is_locked_does_not_wait(engine, commander, source):
    """Its query is read, and so are the tables; the view below goes on when the lock is gone."""
    create = "CALL headrace.create_view(%s, %s)"
    commander.execute(create, ("low", LOW))
    commander.execute(create, ("mid", ABOVE["left"]))
    above = "SELECT count(*) AS n, max(x) AS x FROM low"
    other = "SELECT g, x + 2 AS x FROM low"
    calls = [
        (create, ("newest", above)),
        ("CALL headrace.alter_view(%s, %s)", ("mid", other)),
        ("SELECT * FROM headrace.explain_view(%s)", (above,)),
    ]
    with psycopg.connect(engine.source) as holder, concurrent.futures.ThreadPoolExecutor() as ours:
        holder.execute("LOCK TABLE low IN SHARE MODE")
        source.execute("UPDATE items SET x = x + 1 WHERE id = 3")
        wait_until(lambda: status(source, "public.low") == "sink_error", "the view is not blocked")
        try:
            for made in [ours.submit(call, engine, *told) for told in calls]:
                made.result(PATIENCE_S)
            assert status(source, "public.low") == "sink_error"
            wait(engine, "newest")
            for name, query in (("newest", above), ("mid", other)):
                assert differs(source, name, f"WITH low AS ({LOW}) {query}") == [], name
        finally:
            holder.rollback()
    wait(engine, "low")
    assert differs(source, "low", LOW) == []


def call(engine, statement: str, parameters: tuple[str, ...]) -> None:
    """Make a call on a connection of its own."""
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.execute(statement, parameters)


def status(source, name: str) -> str:
    """Return the status of a view."""
    query = "SELECT status FROM headrace.list_views() WHERE name = %s"
    return source.execute(query, (name,)).fetchone()[0]


def wait(engine, name: str) -> None:
    """Wait for a view on a connection of its own."""
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.execute(
            "CALL headrace.wait_for(%s, timeout => make_interval(secs => %s))",
            (f'"{name}"', PATIENCE_S),
        )
