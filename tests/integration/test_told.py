"""Notices and errors: options that a deployment leaves unchanged, and names that are no view."""

from __future__ import annotations

import psycopg
import pytest

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, g int);
INSERT INTO t SELECT i, i % 3 FROM generate_series(1, 9) i;
"""
QUERY = "SELECT g, count(*) AS n FROM t GROUP BY g"


@pytest.fixture
def notices(commander) -> list[str]:
    """Return the notices that the server sent to the session."""
    told: list[str] = []
    commander.add_notice_handler(lambda diag: told.append(str(diag.message_primary)))
    return told


def deploy(conn: psycopg.Connection, options: str, query: str = QUERY) -> None:
    call = "CALL headrace.create_view('v', %s, %s, replace => true)"
    conn.execute(call, (query, options))


def test_a_deployment_says_which_options_it_leaves_as_they_are(commander, source, notices):
    deploy(commander, '{"history": "2 hours"}')
    commander.execute("CALL headrace.add_worker('w1')")
    for alike in (
        '{"history": "120 minutes"}',
        "{}",
        '{"history": "2 hours", "placement": "main"}',
    ):
        notices.clear()
        deploy(commander, alike)
        assert notices == ['view "public"."v" already has this query: nothing was changed'], alike
    notices.clear()
    deploy(commander, '{"history": "1 hour", "placement": "w1"}')
    assert notices[:-1] == [
        'option "history" stays as it is (02:00:00): CALL headrace.set_history changes it',
        'option "placement" stays as it is (main): CALL headrace.set_placement changes it',
    ]
    # Also if something else is changed.
    notices.clear()
    deploy(commander, '{"history": null}', "SELECT g, max(id) AS n FROM t GROUP BY g")
    assert [text for text in notices if "stays" in text] == [
        'option "history" stays as it is (02:00:00): CALL headrace.set_history changes it'
    ]
    kept = "SELECT options->>'history', options->>'placement' FROM headrace.views"
    assert source.execute(kept).fetchall() == [("2 hours", None)]
    assert source.execute("SELECT * FROM v ORDER BY g").fetchall() == [(0, 9), (1, 7), (2, 8)]
    # The call that the notice names has this effect.
    commander.execute("CALL headrace.set_history('v')")
    notices.clear()
    deploy(commander, '{"history": null}', "SELECT g, max(id) AS n FROM t GROUP BY g")
    assert notices == ['view "public"."v" already has this query: nothing was changed']
    commander.execute("CALL headrace.remove_worker('w1')")


@pytest.mark.parametrize("name", ["nope", "public.nope", '"No pe"'])
def test_a_name_of_no_view_is_no_query(commander, source, name):
    """The same on the port and directly: 42P01, and a hint."""
    hints = set()
    for conn, statement in (
        (commander, "SELECT * FROM headrace.explain_view(%s)"),
        (source, "SELECT * FROM headrace.explain_view(%s)"),
        (source, "CALL headrace.explain(%s)"),
        (commander, "SELECT * FROM headrace.explain_placement(%s)"),
        (commander, "SELECT * FROM headrace.advise(%s)"),
    ):
        with pytest.raises(psycopg.errors.UndefinedTable) as refused:
            conn.execute(statement, (name,))
        assert refused.value.diag.message_primary == f'view "{name}" does not exist'
        hints.add(refused.value.diag.message_hint)
    assert all(hint.startswith("See headrace.list_views().") for hint in hints)


def test_a_query_of_few_words_is_a_query(commander):
    plan = commander.execute("SELECT * FROM headrace.explain_view('TABLE t')").fetchall()
    assert any("public.t" in line for (line,) in plan)
    with pytest.raises(psycopg.errors.SyntaxError):
        commander.execute("SELECT * FROM headrace.explain_view('no pe')")


@pytest.mark.parametrize("options", ["[]", '["history"]', "1"])
def test_options_that_are_no_object_are_refused(commander, options):
    with pytest.raises(psycopg.Error) as caught:
        commander.execute(
            "CALL headrace.create_view('no_such', 'SELECT 1 AS one', options => %s, replace => true)",
            (options,),
        )
    assert caught.value.sqlstate == "22023"
