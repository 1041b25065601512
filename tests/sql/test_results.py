"""Properties recorded of a result table, which a recreated one gets again."""

from __future__ import annotations

import psycopg
import pytest

from headrace.sql import results


@pytest.fixture
def conn(catalog, database):
    with psycopg.connect(database, autocommit=True) as made:
        made.execute("CREATE TABLE v (id int, t text); CREATE INDEX by_t ON v (t)")
        made.execute(
            "INSERT INTO headrace.views (id, schema_name, view_name, query, result_oid)"
            " VALUES (1, 'public', 'v', '', 'v'::regclass)"
        )
        yield made


@pytest.mark.parametrize(
    "renaming",
    [
        "ALTER TABLE v RENAME TO w",
        "ALTER INDEX by_t RENAME TO by_text",
        "CREATE SCHEMA other; ALTER TABLE v SET SCHEMA other",
        "DROP INDEX by_t",
    ],
)
def test_a_record_made_while_names_change_loses_no_index(conn, database, renaming):
    results.record_table_metadata(conn, [1])
    before = results.table_metadata(conn, 1)
    assert before["indexes"] == [["by_t", "USING btree (t)"]]
    conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    conn.execute("SELECT FROM headrace.views")  # its snapshot sees the old names
    with psycopg.connect(database, autocommit=True) as another:
        another.execute(renaming)
    try:
        results.record_table_metadata(conn, [1])
    except psycopg.errors.UndefinedObject:
        conn.execute("ROLLBACK")
    else:
        conn.execute("COMMIT")
    assert results.table_metadata(conn, 1) == before
    results.record_table_metadata(conn, [1])
    now = conn.execute("SELECT indexrelid::regclass::text FROM pg_index").fetchall()
    assert [name for name, _ in results.table_metadata(conn, 1)["indexes"] or ()] == [
        name.split(".")[-1] for (name,) in now if "by_" in name
    ]
