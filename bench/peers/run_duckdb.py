"""DuckDB: applies all changes at once, and runs the query again.  FOLDER VIEW QUERY SUM STREAM."""

import sys

import duckdb
from timing import measured, tell

folder, _, query, column, _ = sys.argv[1:6]
conn = duckdb.connect()
for table in ("orders", "customers"):
    conn.execute(f"CREATE TABLE {table} AS FROM '{folder}/{table}_first.parquet'")
    conn.execute(f"CREATE TABLE {table}_changes AS FROM '{folder}/{table}_changes.parquet'")
conn.execute(f"CREATE TABLE result AS {query}")
with measured():
    for table in ("orders", "customers"):
        conn.execute(f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table}_changes)")
        conn.execute(
            f"INSERT INTO {table} SELECT * EXCLUDE (n, sign) FROM {table}_changes"
            " QUALIFY row_number() OVER (PARTITION BY id ORDER BY n DESC) = 1 AND sign = 1"
        )
    conn.execute(f"CREATE OR REPLACE TABLE result AS {query}")
found = conn.execute(f"SELECT count(*), sum({column})::double FROM result").fetchone()
assert found is not None
tell(*found)
