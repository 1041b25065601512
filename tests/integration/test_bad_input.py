"""Bad input: a clear error with SQLSTATE, no effect on the server and on other views."""

from __future__ import annotations

import psycopg
import pytest

from tests.waiting import bump, wait_for, wait_until

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, k int, s text, d int);
INSERT INTO t SELECT i, i % 3, 's' || i, 1 FROM generate_series(1, 10) i;
"""
MARKER = True


def create(conn: psycopg.Connection, name: str, query: str) -> None:
    conn.execute(f"CALL headrace.create_view('{name}', $q${query}$q$)")


def refused(conn: psycopg.Connection, name: str, query: str) -> psycopg.Error:
    with pytest.raises(psycopg.Error) as caught:
        create(conn, name, query)
    exists = conn.execute("SELECT to_regclass(%s)", (name,)).fetchone()
    assert exists == (None,) or name == "t", "a refused view leaves no table"
    assert conn.execute("SELECT 1").fetchone() == (1,)
    return caught.value


def alive(source: psycopg.Connection) -> None:
    wait_for(source, bump(source))


def test_syntax_error_has_postgres_message_and_position(commander, source):
    query = "SELECT id FRM t"
    error = refused(commander, "v", query)
    with pytest.raises(psycopg.errors.SyntaxError) as want:
        source.execute(query)
    assert error.sqlstate == "42601"
    assert error.diag.message_primary == want.value.diag.message_primary
    assert error.diag.statement_position is not None
    statement = f"CALL headrace.create_view('v', $q${query}$q$)"
    position = int(error.diag.statement_position)
    assert statement[position - 1 :].startswith(
        query[int(want.value.diag.statement_position) - 1 :]
    )


def test_unknown_column(commander):
    error = refused(commander, "v", "SELECT id, nope FROM t")
    assert error.sqlstate == "42703"
    assert "nope" in error.diag.message_primary


def test_unknown_table(commander):
    assert refused(commander, "v", "SELECT * FROM nope").sqlstate == "42P01"


def test_missing_privilege(engine, source):
    source.execute("DROP ROLE IF EXISTS hr_limited")
    source.execute("CREATE ROLE hr_limited LOGIN")
    source.execute("CREATE SCHEMA limited AUTHORIZATION hr_limited")
    try:
        with psycopg.connect(engine.dsn, autocommit=True, user="hr_limited") as conn:
            with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
                create(conn, "limited.v", "SELECT id FROM public.t")
            assert "permission denied for table t" in caught.value.diag.message_primary
    finally:
        source.execute("DROP SCHEMA limited CASCADE")
        source.execute("DROP OWNED BY hr_limited")
        source.execute("DROP ROLE hr_limited")


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("SELECT id FROM t TABLESAMPLE BERNOULLI (50)", "tablesample"),
        ("SELECT id FROM t ORDER BY id FETCH FIRST (SELECT 1) ROWS WITH TIES", "ties"),
        ("SELECT id FROM t FOR UPDATE", "for update"),
        ("SELECT relname FROM pg_class", "pg_class"),
        ("SELECT tableoid FROM t", "tableoid"),
        ("SELECT ctid FROM t", "ctid"),
    ],
)
def test_unsupported_construct_is_named(commander, query, word):
    error = refused(commander, "v", query)
    assert error.sqlstate == "0A000", error
    text = f"{error.diag.message_primary} {error.diag.message_detail}".lower()
    assert word in text, text


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("SELECT id, random() FROM t", "random"),
        ("SELECT id, now() FROM t", "now"),
        ("SELECT id, localtimestamp FROM t", "localtimestamp"),
        ("SELECT id, current_user FROM t", "current_user"),
        ("SELECT id, clock_timestamp() FROM t", "clock_timestamp"),
    ],
)
def test_volatile_function_is_refused(commander, query, word):
    error = refused(commander, "v", query)
    assert error.sqlstate == "0A000"
    assert word in error.diag.message_primary.lower()


def test_name_taken(commander, source):
    create(commander, "v", "SELECT id FROM t")
    assert refused_name(commander, "v") == "42P07"
    assert refused_name(commander, "t") == "42P07"
    assert source.execute("SELECT count(*) FROM v").fetchone() == (10,)
    alive(source)


def refused_name(conn: psycopg.Connection, name: str) -> str | None:
    with pytest.raises(psycopg.Error) as caught:
        conn.execute("CALL headrace.create_view(%s, 'SELECT id FROM t')", (name,))
    return caught.value.sqlstate


def test_invalid_name(commander):
    assert refused_name(commander, "") in ("42602", "42601")
    assert refused_name(commander, "a.b.c.d") in ("42602", "42601", "0A000")
    assert refused_name(commander, "x" * 64) in ("42602", "42622")


def test_missing_schema(engine, source):
    source.execute("DROP ROLE IF EXISTS hr_plain")
    source.execute("CREATE ROLE hr_plain LOGIN")
    source.execute("GRANT SELECT ON t TO hr_plain")
    try:
        with psycopg.connect(engine.dsn, autocommit=True, user="hr_plain") as conn:
            assert refused_name(conn, "nowhere.v") == "3F000"
    finally:
        source.execute("DROP OWNED BY hr_plain")
        source.execute("DROP ROLE hr_plain")


def test_table_without_key_names_the_statement(commander, source):
    source.execute("CREATE TABLE nokey (a int, b text)")
    error = refused(commander, "v", "SELECT a FROM nokey")
    assert error.sqlstate == "55000"
    assert 'ALTER TABLE "public"."nokey" REPLICA IDENTITY FULL;' in (error.diag.message_hint or "")
    source.execute("ALTER TABLE public.nokey REPLICA IDENTITY FULL")
    create(commander, "v", "SELECT a FROM nokey")
    source.execute("INSERT INTO nokey VALUES (1, 'x')")
    alive(source)
    assert source.execute("SELECT a FROM v").fetchall() == [(1,)]


def stopped(source: psycopg.Connection, name: str) -> tuple:
    """Return (status, message, SQLSTATE) of a view once it does not run."""
    sql = (
        "SELECT status, headrace.view_message(id), sqlstate FROM headrace.views"
        " WHERE view_name = %s AND status <> 'running'"
    )
    return wait_until(lambda: source.execute(sql, (name,)).fetchone(), f"{name} stops")


@pytest.mark.parametrize(
    ("query", "change", "sqlstate"),
    [
        ("SELECT id, 10 / d AS q FROM t", "UPDATE t SET d = 0 WHERE id = 7", "22012"),
        (
            "SELECT id, substr(s, 2)::int AS q FROM t",
            "INSERT INTO t VALUES (77, 1, 'sx', 1)",
            "22P02",
        ),
        (
            "SELECT k, sum(1000 / d) AS q FROM t GROUP BY k",
            "INSERT INTO t VALUES (78, 1, 's', 0)",
            "22012",
        ),
    ],
)
def test_bad_row_stops_only_its_view(commander, source, query, change, sqlstate):
    create(commander, "bad", query)
    create(commander, "good", "SELECT id, d FROM t")
    before = source.execute("SELECT * FROM bad ORDER BY 1").fetchall()
    with source.transaction():
        source.execute(change)
        source.execute("INSERT INTO t VALUES (100, 1, 's1', 1)")
    status, message, code = stopped(source, "bad")
    assert status == "error"
    assert code == sqlstate
    key = "7" if "UPDATE" in change else change.split("(")[1].split(",")[0]
    assert f"id = {key}" in message or f"id={key}" in message or f"(id)=({key})" in message, message
    assert source.execute("SELECT * FROM bad ORDER BY 1").fetchall() == before
    number = bump(source)
    shown = "SELECT n FROM marker_view"
    wait_until(lambda: source.execute(shown).fetchone() == (number,), "others go on")
    want = source.execute("SELECT id, d FROM t ORDER BY 1").fetchall()
    assert source.execute("SELECT id, d FROM good ORDER BY 1").fetchall() == want


def test_dropped_result_table_stops_only_its_view(commander, source):
    create(commander, "gone", "SELECT id FROM t")
    create(commander, "good", "SELECT id FROM t")
    source.execute("DROP TABLE gone")
    source.execute("INSERT INTO t VALUES (200, 1, 's', 1)")
    status, message, _ = stopped(source, "gone")
    assert status in ("error", "sink_error")
    assert "gone" in message
    count = "SELECT count(*) FROM good"
    wait_until(lambda: source.execute(count).fetchone() == (11,), "others go on")


def test_locked_result_table_catches_up(engine, commander, source):
    create(commander, "locked", "SELECT id FROM t")
    create(commander, "good", "SELECT id FROM t")
    with psycopg.connect(engine.source) as holder:
        holder.execute("LOCK TABLE locked IN ACCESS EXCLUSIVE MODE")
        source.execute("INSERT INTO t VALUES (300, 1, 's', 1)")
        count = "SELECT count(*) FROM good"
        wait_until(lambda: source.execute(count).fetchone() == (11,), "others go on")
        status, message, _ = stopped(source, "locked")
        assert status == "sink_error"
        assert str(holder.info.backend_pid) in message
        holder.rollback()
    count = "SELECT count(*) FROM locked"
    wait_until(lambda: source.execute(count).fetchone() == (11,), "it catches up")
    alive(source)
