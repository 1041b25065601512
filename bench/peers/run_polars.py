"""Polars: runs the query again over the final tables. FOLDER VIEW QUERY SUM STREAM."""

import sys

import polars as pl
from timing import measured, tell

folder, _, query, column, _ = sys.argv[1:6]
tables = {t: pl.read_parquet(f"{folder}/{t}.parquet") for t in ("orders", "customers")}
context = pl.SQLContext(tables)
context.execute("SELECT count(*) FROM orders", eager=True)
with measured():
    result = context.execute(query, eager=True)
tell(result.height, result[column].cast(pl.Float64).sum())
