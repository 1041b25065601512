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
