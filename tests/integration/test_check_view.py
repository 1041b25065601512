"""check_view: it gives the verdict of create_view, and creates nothing."""

from __future__ import annotations

import psycopg
import pytest

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, v int);
CREATE TABLE keyless (x int);
"""
ACCEPTED = "SELECT v, count(*) AS n FROM t GROUP BY v"
REFUSED = (
    ("SELECT id FROM t WHERE random() < 0.5", "0A000"),
    ("SELECT nope FROM t", "42703"),
    ("SELECT x FROM keyless", "55000"),
    ("SELECT id FROM", "42601"),
)


def made(source: psycopg.Connection) -> list:
    return source.execute(
        "SELECT (SELECT count(*) FROM headrace.views),"
        " (SELECT count(*) FROM pg_publication_rel), (SELECT count(*) FROM pg_class)"
    ).fetchall()


INVALID = (
    ("[]", "22023"),
    ("5", "22023"),
    ('"spark"', "22023"),
    ('{"nope": null}', "22023"),
    ('{"block": 1}', "22023"),
    ('{"key": ["nope"]}', "42703"),
    ('{"history": "tomorrow"}', "22023"),
    ('{"placement": "w9"}', "42704"),
    ('{"view_time_ms_max": 100000}', "22023"),
    ('{"from": "p", "placement": "w9"}', "0A000"),
)
"""Options with the SQLSTATE of the error about them."""


@pytest.mark.parametrize("way", ["commander", "direct"])
def test_options_are_judged_alike_by_each_call_that_takes_them(engine, source, way):
    dsn = engine.dsn if way == "commander" else engine.source
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f"CALL headrace.create_view('there', $${ACCEPTED}$$)")
        before = made(source)
        for options, code in INVALID:
            told = set()
            for call in (
                f"check_view($${ACCEPTED}$$, '{options}')",
                f"create_view('v', $${ACCEPTED}$$, '{options}')",
                f"alter_view('there', $${ACCEPTED}$$, '{options}')",
            ):
                with pytest.raises(psycopg.Error) as caught:
                    conn.execute(f"CALL headrace.{call}")
                found = caught.value.diag
                if call.startswith("alter_view") and found.sqlstate == "0A000":
                    continue  # alter_view changes no history, placement or point
                told.add((found.sqlstate, found.message_primary, found.message_hint))
            assert len(told) == 1, (options, told)
            assert {each[0] for each in told} == {code}, (options, told)
        assert made(source) == before
        conn.execute("CALL headrace.drop_view('there')")


@pytest.mark.parametrize("way", ["commander", "direct"])
def test_the_verdict_is_that_of_create_view(engine, source, way):
    dsn = engine.dsn if way == "commander" else engine.source
    before = made(source)
    with psycopg.connect(dsn, autocommit=True) as conn:
        cursor = conn.execute(f"CALL headrace.check_view($${ACCEPTED}$$)")
        [(plan,)] = cursor.fetchall()
        assert cursor.statusmessage == "CALL"
        assert "Reduce" in plan
        [(again,)] = conn.execute("CALL headrace.check_view(%s)", (ACCEPTED,)).fetchall()
        assert again == plan
        for query, code in REFUSED:
            errors = []
            for call in (
                f"CALL headrace.check_view($q${query}$q$)",
                f"CALL headrace.create_view('v', $q${query}$q$)",
            ):
                with pytest.raises(psycopg.Error) as caught:
                    conn.execute(call)
                errors.append(caught.value.diag)
            assert errors[0].sqlstate == errors[1].sqlstate == code
            assert errors[0].message_primary == errors[1].message_primary
            assert errors[0].message_hint == errors[1].message_hint
    assert made(source) == before
