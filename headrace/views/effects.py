"""Diffs of a view as rows that people read: added, removed, or changed under the same key."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from headrace.postgres.connect import Connection
from headrace.provenance import rendering
from headrace.sql.views import ViewRow
from headrace.types import Schema

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
"""The same words as ``sql/net_changes.sql`` has."""
_KEY: Final = """
SELECT a.attname::text FROM pg_catalog.pg_index i
 CROSS JOIN LATERAL pg_catalog.unnest(i.indkey::int2[]) k (number)
  JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
 WHERE i.indrelid = %s::bigint::oid AND i.indisprimary"""

Effect = list[Any]
"""View, change, how often, row before, row after, note."""


def of_view(
    conn: Connection, view: ViewRow, name: str, schema: Schema, diffs: pa.RecordBatch, most: int
) -> list[Effect]:
    """Return the effects on a view: ``most`` of them, then one that says how many more there are.

    ``name`` is shown; ``diffs`` are consolidated.
    """
    key = {str(name) for (name,) in conn.execute(_KEY, (view.result_oid,)).fetchall()}
    pairs = _pairs(diffs, [place for place, field in enumerate(schema) if field.name in key])
    places = [place for pair in pairs[:most] for place in pair if place is not None]
    rows = diffs.take(pa.array(places, pa.int64()))
    texts = dict(zip(places, rendering.as_json(conn, schema, rows.columns[:-1]), strict=True))
    weights = diffs.column(diffs.num_columns - 1).to_pylist()
    out: list[Effect] = []
    for old, new in pairs[:most]:
        change = CHANGED if old is not None and new is not None else REMOVED
        change = ADDED if old is None else change
        times = abs(weights[new if old is None else old])
        before, after = (None if at is None else texts[at] for at in (old, new))
        out.append([name, change, times, before, after, None])
    if len(pairs) > most:
        out.append([name, None, len(pairs) - most, None, None, "more rows of the view"])
    return out


def _pairs(diffs: pa.RecordBatch, key: list[int]) -> list[tuple[int | None, int | None]]:
    """Return the places of each row before and after; two rows with one key belong together."""
    weights = diffs.column(diffs.num_columns - 1).to_pylist()
    if not key:
        return [(at, None) if weight < 0 else (None, at) for at, weight in enumerate(weights)]
    columns = [diffs.column(place).to_pylist() for place in key]
    found: dict[tuple[object, ...], list[int | None]] = {}
    for at, values in enumerate(zip(*columns, strict=True)):
        found.setdefault(values, [None, None])[weights[at] > 0] = at
    return [(old, new) for old, new in found.values()]
