"""Each routine has a comment, and help() shows those that the manual describes."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from headrace.sql import comments, install, installed

REFERENCE = Path(__file__).parents[2] / "docs" / "manual" / "reference.md"


@pytest.fixture
def conn(catalog, database):
    with psycopg.connect(database, autocommit=True) as conn:
        yield conn


def test_help_has_all_that_the_reference_has(conn):
    headings = re.findall(r"^### ([a-z_, ]+)$", REFERENCE.read_text(), re.MULTILINE)
    described = {name for heading in headings for name in heading.split(", ")}
    shown = conn.execute("SELECT DISTINCT name FROM headrace.help()").fetchall()
    assert {name for (name,) in shown} == described == comments.ABOUT.keys()


def test_each_routine_has_a_comment(conn):
    found = conn.execute(
        "SELECT proname, obj_description(oid, 'pg_proc') FROM pg_proc"
        " WHERE pronamespace = 'headrace'::regnamespace"
    ).fetchall()
    assert len(found) > 100
    for name, comment in found:
        _, about = comments.ABOUT.get(name, ("", "Internal to Headrace."))
        assert comment == about, name


def test_tables_that_users_read_have_comments(conn):
    found = conn.execute(
        "SELECT c.relname, coalesce(a.attname, ''), d.description FROM pg_description d"
        "  JOIN pg_class c ON c.oid = d.objoid AND d.classoid = 'pg_class'::regclass"
        "  LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = nullif(d.objsubid, 0)"
        " WHERE c.relnamespace = 'headrace'::regnamespace"
    ).fetchall()
    assert sorted(found) == sorted(
        (table, column, about)
        for table, columns in comments.TABLES.items()
        for column, about in columns.items()
    )


def test_what_help_shows_can_be_pasted(conn):
    shown = dict(conn.execute("SELECT name, call FROM headrace.help()").fetchall())
    assert shown["list_views"] == "SELECT * FROM headrace.list_views()"
    assert shown["pause_view"] == "CALL headrace.pause_view(name text)"
    assert shown["lineage"] == "SELECT * FROM headrace.lineage(name text)"
    assert shown["explain_view"].startswith(
        "SELECT * FROM headrace.explain_view(name_or_query text,"
    )
    assert not any("OUT " in call for call in shown.values() if call.startswith("SELECT"))


@pytest.mark.parametrize("topic", comments.TOPICS)
def test_a_topic_has_its_calls(conn, topic):
    found = conn.execute("SELECT name, of_topic FROM headrace.help(%s)", (topic,)).fetchall()
    assert {name for name, _ in found} >= {n for n, (t, _) in comments.ABOUT.items() if t == topic}
    assert any(of == topic for _, of in found)


def test_a_word_finds_calls(conn):
    found = conn.execute("SELECT name FROM headrace.help('Feed')").fetchall()
    assert found == [("create_feed",), ("drop_feed",), ("feed_ack",), ("feed_read",)]


def test_the_second_installation_changes_nothing(conn):
    """A comment of somebody else is replaced by an installation that is needed, not before."""
    assert installed.unchanged(conn, list(install.scripts()))
    install.install(conn)
    assert installed.unchanged(conn, list(install.scripts()))
