"""Pathway: a stream of signed rows in memory.  FOLDER VIEW QUERY SUM STREAM."""

import sys
import warnings

import pandas as pd
import pathway as pw
from timing import measured, tell

warnings.simplefilter("ignore")
folder, view, _, column, stream = sys.argv[1:6]
_BATCH = 1_000
_KEEP = {
    "orders": {"id": int, "customer": int, "quantity": int, "amount": float},
    "customers": {"id": int, "region": str},
}


def source(name):  # noqa: ANN001, ANN201  types of a library that is not here
    """The table, as it comes to be."""
    kinds = _KEEP[name]
    first = pd.read_parquet(f"{folder}/{name}_first.parquet")
    first["__time__"], first["__diff__"] = 2, 1
    parts = [first]
    if stream == "all":
        more = pd.read_parquet(f"{folder}/{name}_changes.parquet")
        # One time holds whole batches; a row may come and go in it, so that order does not count.
        more["__time__"], more["__diff__"] = 4 + more["n"] // _BATCH * 2, more["sign"]
        parts.append(more)
    rows = pd.concat(parts)[[*kinds, "__time__", "__diff__"]].astype(kinds)
    schema = pw.schema_builder(
        {n: pw.column_definition(dtype=t, primary_key=n == "id") for n, t in kinds.items()}
    )
    return pw.debug.table_from_pandas(rows, schema=schema)


orders = source("orders")
if view == "filter":
    result = orders.filter(pw.this.quantity > 25).select(pw.this.id, pw.this.amount)
elif view == "group_sum":
    result = orders.groupby(pw.this.customer).reduce(
        pw.this.customer, s=pw.reducers.sum(pw.this.amount), n=pw.reducers.count()
    )
else:
    customers = source("customers")
    result = orders.join(customers, pw.left.customer == pw.right.id).select(
        pw.left.amount, pw.right.region
    )
pw.io.null.write(result)
answer = result.reduce(n=pw.reducers.count(), total=pw.reducers.sum(result[column]))
last = {}


def keep(key, row, time, is_addition):  # noqa: ANN001, ANN201
    """What the sum of the answer is now."""
    if is_addition:
        last.update(row)


pw.io.subscribe(answer, on_change=keep)
with measured():
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
tell(last["n"], last["total"])
