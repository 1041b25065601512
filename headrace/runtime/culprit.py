"""Search for the source row that makes a view fail, by replaying prefixes of its batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.collections.plan import PhysicalPlan
from headrace.kernels import text
from headrace.runtime.edges import TableDiffs
from headrace.types import arrow_type

ROWS_MAX = 200_000
"""Batches with more rows are not searched, because each step recomputes them."""

Fails = Callable[[Sequence[TableDiffs]], bool]


def find(physical: PhysicalPlan, frames: Sequence[TableDiffs], fails: Fails) -> str:
    """Return the table and key of the failing row, in words; '' if it is not found.

    ``fails`` replays frames from the checkpoint, and returns whether that fails.
    """
    tables = {source.table_oid for source in physical.sources}
    mine = [f for f in frames if f.table_oid in tables]
    total = sum(f.diffs.batch.num_rows for f in mine)
    if not 0 < total <= ROWS_MAX or not fails(mine):
        return ""
    passing, failing = 0, total
    while failing - passing > 1:
        middle = (passing + failing) // 2
        if fails(_prefix(mine, middle)):
            failing = middle
        else:
            passing = middle
    return _name(physical, *_locate(mine, failing - 1))


def _prefix(frames: Sequence[TableDiffs], rows: int) -> list[TableDiffs]:
    out = []
    for frame in frames:
        if rows <= 0:
            break
        diffs = frame.diffs
        batch = diffs.batch.slice(0, min(rows, diffs.batch.num_rows))
        out.append(TableDiffs(frame.table_oid, type(diffs)(diffs.txid, diffs.attempt, batch)))
        rows -= batch.num_rows
    return out


def _locate(frames: Sequence[TableDiffs], row: int) -> tuple[TableDiffs, int]:
    for frame in frames:
        if row < frame.diffs.batch.num_rows:
            return frame, row
        row -= frame.diffs.batch.num_rows
    raise IndexError(row)


def _name(physical: PhysicalPlan, frame: TableDiffs, row: int) -> str:
    source = next(s for s in physical.sources if s.table_oid == frame.table_oid)
    where = f'table "{source.schema_name}"."{source.table_name}"'
    batch = frame.diffs.batch
    values = []
    for column in source.key:
        for kind in ("n", "o"):
            place = batch.schema.get_field_index(f"{kind}:{column.attnum}")
            if place < 0:
                continue
            values_here = batch.column(place).slice(row, 1)
            if values_here.type == arrow_type(column.oid):
                values_here = text.render(values_here, column.oid)
            value = values_here[0].as_py()
            if value is not None:
                values.append(value)
                break
    if not source.key or len(values) != len(source.key):
        return f"a row of {where}"
    names = ", ".join(c.name for c in source.key)
    return f"row ({names})=({', '.join(values)}) of {where}"
