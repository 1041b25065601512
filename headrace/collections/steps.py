"""Filter and map as steps over one batch, which ``chain`` runs.

An expression that may fail on a row must not run on a row that no commit showed.  Inside a txid,
a transaction that changes two tables produces combinations of old and new rows that never
existed.  So a chain with such a step consolidates its input and runs at the TimeEnd.
"""

from __future__ import annotations

import math
from typing import Final

import pyarrow as pa

from headrace import clock
from headrace.collections import plan
from headrace.collections.base import columns_of
from headrace.errors import RowError
from headrace.expressions.conditional import may_raise
from headrace.expressions.evaluate import FailingRow, Program
from headrace.expressions.ir import Expr
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import text
from headrace.types import Schema, arrow_schema

_VALUE_CHARACTERS_MAX: Final = 64
_ORDER_ROWS: Final = 10_000
"""Number of rows after which predicates are reordered."""


def run_program(program: Program, batch: pa.RecordBatch) -> list[pa.Array]:
    """Return the columns of ``program`` over a diff batch; an error names the failing row.

    Raises:
        RowError: an expression failed.
    """
    try:
        return program.run(batch, batch.num_rows)  # it takes columns by their place
    except FailingRow as error:
        raise failed(error, batch) from error


def failed(error: FailingRow, batch: pa.RecordBatch) -> RowError:
    """Return ``error`` as a RowError that shows the failing row of ``batch``."""
    row = _row_text(batch, error.row)
    detail = f"{error.detail} {row}" if error.detail else row
    return RowError(error.message, detail=detail, sqlstate=error.code)


def _row_text(batch: pa.RecordBatch, row: int) -> str:
    names, values = [], []
    for field, column in zip(batch.schema, columns_of(batch), strict=False):
        oid = int(field.metadata[b"pg.oid"])
        value = text.render(column.slice(row, 1), oid)[0].as_py()
        names.append(field.name)
        values.append("null" if value is None else value[:_VALUE_CHARACTERS_MAX])
    return f"The row is ({', '.join(names)}) = ({', '.join(values)})."


def rank(selectivity: float, cost: float) -> float:
    """Return the rank of a test among commuting tests, where the greatest runs first (A-48).

    ``selectivity``: share of the rows that pass; ``cost``: cost per row.
    """
    return (1 - selectivity) / cost if cost else math.inf


class _Test:
    """A predicate with statistics of its recent rows."""

    __slots__ = ("passed", "program", "rows", "seconds")

    def __init__(self, predicate: Expr, remote: RemoteEvaluator | None) -> None:
        self.program = Program((predicate,), remote)
        self.rows = self.passed = 0
        self.seconds = 0.0

    @property
    def rank(self) -> float:
        """``rank`` by the statistics; 0 before the first row, whose cost is unknown."""
        return rank(self.passed / self.rows, self.seconds / self.rows) if self.rows else 0.0

    def forget(self) -> None:
        """Reduce the statistics by half, so that older rows count less."""
        self.rows, self.passed, self.seconds = self.rows // 2, self.passed // 2, self.seconds / 2


class FilterStep:
    """Rows for which every predicate is true; NULL counts as false.

    Adjacent predicates that cannot fail run in the cheapest order.  A predicate that can fail
    sees the same rows as in the order of the query.
    """

    def __init__(self, predicates: tuple[Expr, ...], remote: RemoteEvaluator | None) -> None:
        raising = [may_raise(p) for p in predicates]
        self.may_raise: Final = any(raising)
        self._runs: Final[list[list[_Test]]] = []
        before = True
        for predicate, raises in zip(predicates, raising, strict=True):
            if raises or before:
                self._runs.append([])
            self._runs[-1].append(_Test(predicate, remote))
            before = raises
        self._left = _ORDER_ROWS

    def run(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that pass; each predicate sees only rows that passed the earlier ones."""
        self._left -= batch.num_rows
        if self._left <= 0:
            self._order()
        for run in self._runs:
            for test in run:
                rows = batch.num_rows
                if rows == 0:
                    return batch
                if len(run) == 1:
                    batch = _passing(test.program, batch)
                    continue
                begun = clock.monotonic()
                batch = _passing(test.program, batch)
                test.seconds += clock.monotonic() - begun
                test.rows += rows
                test.passed += batch.num_rows
        return batch

    def _order(self) -> None:
        self._left = _ORDER_ROWS
        for run in self._runs:
            run.sort(key=lambda test: -test.rank)
            for test in run:
                test.forget()


def _passing(program: Program, batch: pa.RecordBatch) -> pa.RecordBatch:
    mask = run_program(program, batch)[0]
    true = mask.true_count
    if true == 0:
        return batch.slice(0, 0)
    if true < batch.num_rows:
        return batch.filter(mask, null_selection_behavior="drop")
    return batch


class MapStep:
    """One output column per expression; weights are unchanged."""

    def __init__(
        self, expressions: tuple[Expr, ...], schema: Schema, remote: RemoteEvaluator | None
    ) -> None:
        self.may_raise: Final = any(may_raise(e) for e in expressions)
        self._schema = arrow_schema(schema)
        self._program = Program(expressions, remote) if expressions else None

    def run(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return ``batch`` with the new columns."""
        columns: list[pa.Array] = []
        if self._program is not None and batch.num_rows:
            columns = run_program(self._program, batch)
        elif self._program is not None:
            columns = [pa.array([], field.type) for field in self._schema][:-1]
        weights = batch.column(batch.num_columns - 1)
        return pa.RecordBatch.from_arrays([*columns, weights], schema=self._schema)


Step = FilterStep | MapStep


def make_step(node: plan.FilterSpec | plan.MapSpec, remote: RemoteEvaluator | None) -> Step:
    """Return the step of a node."""
    if isinstance(node, plan.FilterSpec):
        return FilterStep(node.predicates, remote)
    return MapStep(node.expressions, node.schema, remote)
