"""Changes of users to a result table carry over to its replacement."""

from __future__ import annotations

import psycopg

from headrace.sink.table_metadata import TableMetadata


def test_an_index_is_one_statement(database):
    """Also on a connection that prepares nothing, such as that of a population."""
    with psycopg.connect(database, autocommit=True, prepare_threshold=None) as conn:
        conn.execute("CREATE TABLE r (a int); CREATE TABLE bait (a int)")
        indexes = (("good", "USING btree (a)"), ("bad", "USING btree (a); DROP TABLE public.bait"))
        TableMetadata(known=True, indexes=indexes).restore(conn, "public", "r")
        found = conn.execute(
            "SELECT relname FROM pg_class WHERE relname IN ('good', 'bad', 'bait') ORDER BY 1"
        ).fetchall()
    assert found == [("bait",), ("good",)]
