"""A view's small diffs as statements of a pipeline, and the fence before them.

``SinkWriter`` checks each answer before it sends the next statement.  In a pipeline the server must
do this check itself (Invariant 1 of writer.py).  The tables are locked at once or not at all.  Then
a statement fails unless each name still belongs to its table and each mark is unchanged.  So no row
is written into an altered table, and no user's code in it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import pyarrow as pa

from headrace.postgres.pipelined import Sent
from headrace.sink import keyed
from headrace.sink.keyed import Places
from headrace.sink.statements import Statements
from headrace.sink.table import ResultTable

# The division by zero is intended: only an error keeps the server from going on.
_FENCE: Final = b"""
SELECT 1 / CASE WHEN bool_and(
         pg_catalog.to_regclass(u.name)::pg_catalog.oid IS NOT DISTINCT FROM u.oid
         AND headrace.table_mark(u.oid) IS NOT DISTINCT FROM u.mark) THEN 1 ELSE 0 END
  FROM unnest($1::text[], $2::oid[], $3::text[]) AS u (name, oid, mark)"""


@dataclass(frozen=True, slots=True)
class PipelinedWrite:
    """The statements that write one table."""

    target: ResultTable
    made: Statements
    statements: Sequence[Sent]
    wanted: Sequence[int]
    """Number of rows that each statement must find."""

    @classmethod
    def of(cls, target: ResultTable, made: Statements, diffs: pa.RecordBatch) -> Self:
        """Make the statements for consolidated ``diffs``, in the order of ``SinkWriter.write``."""
        statements: list[Sent] = []
        wanted: list[int] = []

        def add(text: bytes, values: Sequence[str | list[int]], count: int) -> None:
            statements.append(Sent(text, values, kept=True))
            wanted.append(count)

        def literals(places: Places) -> list[str]:
            return made.arrays.literals(target, diffs, places)

        weights, changes = keyed.changes(target, diffs)
        if len(changes.old):
            assert made.update is not None, "the table has a key"
            add(*made.update.of(diffs, changes.old, changes.new), len(changes.old))
        if len(changes.gone):
            times = (-weights[changes.gone]).tolist()
            add(made.delete, [*literals(changes.gone), times], sum(times))
        if len(changes.come):
            take = copies(changes.come, weights)
            add(made.insert, literals(take), len(take))
        return cls(target, made, statements, wanted)


def copies(come: Places, weights: Places) -> Places:
    """Return the rows ``come``, each repeated as often as its weight."""
    return come if (weights[come] == 1).all() else np.repeat(come, weights[come])


def fence(writes: Sequence[PipelinedWrite]) -> list[Sent]:
    """Return statements that lock the tables, and fail if one was altered."""
    names = [write.made.name for write in writes]
    tables = ", ".join(f"ONLY {name}" for name in names)
    return [
        Sent(f"LOCK TABLE {tables} IN ROW EXCLUSIVE MODE NOWAIT".encode()),
        Sent(
            _FENCE,
            [names, [w.target.oid for w in writes], [w.made.mark for w in writes]],
            kept=True,
        ),
    ]
