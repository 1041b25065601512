"""Table ``words (id serial, word text)`` and views that count its words, for protocol tests.

Every update of a progress row is logged.
"""

from __future__ import annotations

import psycopg

from headrace.collections import plan
from headrace.expressions.ir import Column, Literal, Native
from headrace.types import BOOL, INT8, TEXT, Field
from tests.runtime.harness import source_plan

QUERY = "SELECT * FROM words"


def write(source: psycopg.Connection, *words: str) -> None:
    """Insert one row for each word, in one transaction."""
    source.execute("INSERT INTO words (word) SELECT unnest(%s::text[])", (list(words),))


def count_of(conn: psycopg.Connection, word: str) -> tuple[plan.PhysicalPlan, str]:
    """Return the plan and query that count a word in ``words``."""
    base = source_plan(conn, "words")
    node = base.nodes[0]
    wanted = Native("=", (Column(1, TEXT), Literal(word, TEXT)), BOOL)
    schema = (Field("word", TEXT, collation=node.schema[1].collation), Field("n", INT8))
    kept = plan.FilterSpec("kept", "s", (wanted,), node.schema)
    counted = plan.ReduceSpec(
        "counted", "kept", (1,), (plan.AggregateSpec("count_star", None, None, schema[1]),), schema
    )
    sink = plan.SinkSpec("sink", "counted", schema)
    query = f"SELECT word, count(*) AS n FROM words WHERE word = '{word}' GROUP BY word"
    return plan.PhysicalPlan((node, kept, counted, sink)), query


def stored(source: psycopg.Connection, view: str) -> tuple[int, str, int]:
    """Return (value, transaction that wrote it, progress) of a view of one count."""
    row = source.execute(
        f"SELECT v.n, v.xmin::text, p.txid FROM {view} v, headrace.progress p"
        " JOIN headrace.views w ON w.id = p.view_id WHERE w.view_name = %s",
        (view,),
    ).fetchone()
    assert row is not None
    return row


def log_commits(source: psycopg.Connection) -> None:
    """Log every update of a progress row in table ``moves``."""
    source.execute(
        "CREATE TABLE moves (n serial, xid xid8, view_id bigint, txid bigint, attempt int)"
    )
    source.execute(
        "CREATE FUNCTION move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO public.moves (xid, view_id, txid, attempt) VALUES"
        " (pg_catalog.pg_current_xact_id(), NEW.view_id, NEW.txid, NEW.attempt);"
        " RETURN NULL; END $$"
    )
    source.execute(
        "CREATE TRIGGER move AFTER UPDATE ON headrace.progress FOR EACH ROW"
        " WHEN (OLD.txid <> NEW.txid) EXECUTE FUNCTION move()"
    )


def assert_in_order(source: psycopg.Connection) -> None:
    """Assert that the progress of every view has only moved up (T-9)."""
    moves = source.execute(
        "SELECT view_id, array_agg(txid ORDER BY n) FROM moves GROUP BY 1"
    ).fetchall()
    assert moves
    for _, txids in moves:
        assert txids == sorted(set(txids))
