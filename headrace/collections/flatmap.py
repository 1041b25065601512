"""Set-returning functions: in FROM, LATERAL, and in the select list."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import Collection, Diffed, columns_of, cut
from headrace.collections.steps import failed
from headrace.errors import BugError
from headrace.expressions.kernels import FailingRow
from headrace.expressions.remote import RemoteEvaluator
from headrace.expressions.sets import SetCalls
from headrace.process import bounds
from headrace.types import Schema, diff_batch


class FlatMap(Collection):
    """Each row joined with the rows that set-returning functions return for its columns.

    Meaning: FlatMap(A) = {(a ++ f, w) : (a, w) in A, f in functions(a)}; a row that a function
        returns twice counts twice.  ``outer``: without an f, a ++ NULLs.  Linear, so a negative
        weight passes as it is.
    Shape: input -> its columns, then those of the functions (and the row's number among them).
    State: none; results are cached by argument (``expressions.sets``).
    Time: emits on TimeEnd, over consolidated diffs: a function may fail on a row.
    Errors: RowError of a function.
    """

    words = "a function that gives rows"

    def __init__(
        self, node: plan.FlatMapSpec, source: Schema, remote: RemoteEvaluator | None
    ) -> None:
        super().__init__(node.id, node.schema)
        if remote is None:
            raise BugError("a set-returning function needs an evaluator")
        self._node = node
        self._held = Diffed(source)
        self._calls = SetCalls(
            remote,
            node.calls,
            [source[i] for i in node.arguments],
            node.schema[len(source) :],
            ordinality=node.ordinality,
            trusted=node.trusted,
        )

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        if self.insert_only:
            return self._run(batch)
        self._held.add(batch)
        return []

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        return [out for batch in self._held.take() for out in self._run(batch)]

    def describe(self) -> str:
        """See ``Collection``."""
        return f"FlatMap ({', '.join(self._node.calls)})"

    def _run(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        count = batch.num_rows
        arguments = [batch.column(i) for i in self._node.arguments]
        try:
            places, results = self._calls.rows(arguments, count, self)
        except FailingRow as error:
            raise failed(error, batch) from error
        if self._node.outer:
            alone = np.setdiff1d(np.arange(count), places)
            if len(alone):
                places = np.concatenate([places, alone])
                results = [pa.concat_arrays([r, pa.nulls(len(alone), r.type)]) for r in results]
        bounds.expect(self, len(places))
        at = pa.array(places)
        mine = [column.take(at) for column in columns_of(batch)]
        weights = batch.columns[-1].take(at)
        return cut(diff_batch(self.schema, [*mine, *results], weights))
