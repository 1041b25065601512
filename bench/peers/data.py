"""The same tables and changes as files, for peers that do not read from Postgres."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Final

import psycopg
import pyarrow as pa
from pyarrow import csv, parquet

from bench import shapes
from bench.scenario import Options, bed

VIEWS: Final = {"filter": "amount", "group_sum": "s", "join": "amount"}
"""Compared shapes, and the column whose sum, with the number of rows, is an answer."""
_TRANSACTION_ROWS: Final = 100
_LOG: Final = """
CREATE SEQUENCE change;
CREATE TABLE {0}_changes (n bigint DEFAULT nextval('change'), sign int, LIKE {0});
CREATE FUNCTION log_{0}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF TG_OP <> 'INSERT' THEN INSERT INTO {0}_changes SELECT nextval('change'), -1, OLD.*; END IF;
    IF TG_OP <> 'DELETE' THEN INSERT INTO {0}_changes SELECT nextval('change'), 1, NEW.*; END IF;
    RETURN NULL; END $$;
CREATE TRIGGER log AFTER INSERT OR UPDATE OR DELETE ON {0} FOR EACH ROW EXECUTE FUNCTION log_{0}();
"""
_COLUMNS: Final = {
    "orders": "id, customer, product, quantity, amount, placed::text AS placed, note",
    "customers": "id, region, tier",
}
_TYPES: Final = {"amount": pa.decimal128(12, 2), "placed": pa.string(), "sign": pa.int32()}


def change(stream: shapes.Stream, rows: int) -> None:
    """Change ``rows`` rows, in transactions of a hundred."""
    # A call changes a quarter of the table at most.
    while rows > 0:
        part = min(rows, stream.rows // 4)
        stream.change(part, min(part, _TRANSACTION_ROWS))
        rows -= part


def make(folder: Path, options: Options, rows: int, changes: int) -> None:
    """Write ``TABLE_first.parquet``, ``TABLE_changes.parquet`` and the final ``TABLE.parquet``."""
    with bed(options) as on, psycopg.connect(on.source, autocommit=True) as conn:
        stream = shapes.Stream(conn, rows)
        stream.fill()
        for table, columns in _COLUMNS.items():
            _export(conn, folder / f"{table}_first.parquet", f"SELECT {columns} FROM {table}")
            conn.execute(_LOG.format(table).replace("SEQUENCE", "SEQUENCE IF NOT EXISTS").encode())
        change(stream, changes)
        for table, columns in _COLUMNS.items():
            _export(conn, folder / f"{table}.parquet", f"SELECT {columns} FROM {table}")
            logged = f"SELECT n, sign, {columns} FROM {table}_changes ORDER BY n"
            _export(conn, folder / f"{table}_changes.parquet", logged)


def _export(conn: psycopg.Connection[tuple[object, ...]], path: Path, query: str) -> None:
    text = io.BytesIO()
    with conn.cursor().copy(f"COPY ({query}) TO STDOUT (FORMAT csv, HEADER)".encode()) as copy:
        for data in copy:
            text.write(data)
    text.seek(0)
    kinds = csv.ConvertOptions(column_types=_TYPES)
    parquet.write_table(csv.read_csv(text, convert_options=kinds), path)
