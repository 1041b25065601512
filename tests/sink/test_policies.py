"""Row security of a result table: made from conditions, and checked."""

# ruff: noqa: F811
from __future__ import annotations

import hashlib
from dataclasses import replace

import psycopg
import pytest

from headrace.errors import SinkTableError
from headrace.sink import policies, table
from tests.sink.test_writer import conn, make  # noqa: F401

ONE, TWO = ("a < 5",), ("a < 5", "a <> 2")
DROP = """DO $$ BEGIN EXECUTE (SELECT format('DROP POLICY %I ON public.r', polname)
  FROM pg_policy WHERE polrelid = 'public.r'::regclass); END $$"""


def put(conn, target):
    policies.put(conn, target.identifier, target.oid, target.conditions)


def seen(conn):
    """Return what a role without rights of its own sees."""
    with conn.transaction(force_rollback=True):
        conn.execute("CREATE ROLE e_seer; GRANT SELECT ON public.r TO e_seer")
        conn.execute("SET LOCAL ROLE e_seer; SET LOCAL row_security = on")
        return [row[0] for row in conn.execute("SELECT a FROM public.r ORDER BY a")]


def test_the_rows_for_which_all_conditions_are_true_are_seen(conn):
    target = make(conn, {"a": "integer"})
    conn.execute("INSERT INTO public.r VALUES (1), (2), (7), (NULL)")
    for conditions, wanted in (((), [1, 2, 7, None]), (ONE, [1, 2]), (TWO, [1]), (ONE, [1, 2])):
        target = replace(target, conditions=conditions)
        for _ in range(2):
            put(conn, target)
            table.check(conn, target)
            assert seen(conn) == wanted
    put(conn, replace(target, conditions=()))
    assert conn.execute(
        "SELECT count(*) FROM pg_policy WHERE polrelid = 'public.r'::regclass"
    ).fetchone() == (0,)
    policies.release_columns(conn, target.identifier, target.oid)


def made_earlier(conn, target):
    """Make the policies as versions up to 0.2.0 did."""
    conn.execute("ALTER TABLE public.r ENABLE ROW LEVEL SECURITY")
    conn.execute("CREATE POLICY headrace_rows ON public.r FOR SELECT USING (true)")
    for condition in target.conditions:
        name = "headrace_" + hashlib.md5(condition.encode()).hexdigest()
        conn.execute(
            f"CREATE POLICY {name} ON public.r AS RESTRICTIVE FOR SELECT USING ({condition})"
        )


@pytest.mark.parametrize("conditions", [ONE, TWO])
def test_policies_of_an_earlier_version_are_replaced(conn, conditions):
    target = replace(make(conn, {"a": "integer"}), conditions=conditions)
    conn.execute("INSERT INTO public.r VALUES (1), (2), (7), (NULL)")
    made_earlier(conn, target)
    table.check(conn, target)
    shown = seen(conn)
    with psycopg.connect(conn.info.dsn) as reader:
        reader.execute("TABLE public.r")
        policies.renew(conn, [target])
        table.check(conn, target)
        assert seen(conn) == shown
    policies.renew(conn, [replace(target, conditions=()), target])
    table.check(conn, target)
    assert seen(conn) == shown
    names = conn.execute("SELECT polname FROM pg_policy WHERE polrelid = 'public.r'::regclass")
    assert [name for (name,) in names] == [*table.policy_names(conditions)]


@pytest.mark.parametrize("dropped", ["headrace_rows", "headrace_%"])
def test_a_part_of_the_policies_of_an_earlier_version_is_an_alteration(conn, dropped):
    target = replace(make(conn, {"a": "integer"}), conditions=TWO)
    made_earlier(conn, target)
    [(name,)] = conn.execute(
        "SELECT polname FROM pg_policy WHERE polname LIKE %s ORDER BY 1 LIMIT 1", (dropped,)
    ).fetchall()
    conn.execute(f"DROP POLICY {name} ON public.r")
    with pytest.raises(SinkTableError, match="other policies"):
        table.check(conn, target)


@pytest.mark.parametrize(
    ("harm", "word"),
    [
        ("ALTER TABLE public.r DISABLE ROW LEVEL SECURITY", "lost its row-level"),
        ("ALTER TABLE public.r FORCE ROW LEVEL SECURITY", "row-level"),
        ("CREATE POLICY mine ON public.r USING (true)", "other policies"),
        (DROP, "other policies"),
    ],
)
def test_an_alteration_is_found(conn, harm, word):
    target = replace(make(conn, {"a": "integer"}), conditions=ONE)
    put(conn, target)
    conn.execute(harm)
    with pytest.raises(SinkTableError, match=word):
        table.check(conn, target)
    with pytest.raises(SinkTableError, match=r"row-level|other policies"):
        table.check(conn, replace(target, conditions=()))
