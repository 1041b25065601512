"""Set-returning functions evaluated by the user's Postgres (``remote`` evaluates scalar ones).

``SELECT … FROM unnest($1, …) t, LATERAL ROWS FROM (f(t.a1), g(t.a2)) WITH ORDINALITY``: the calls
run in lockstep for each distinct argument tuple of a batch; shorter results are padded with NULLs.
Results are cached by argument tuple.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import RowError
from headrace.expressions.kernels import FailingRow
from headrace.expressions.placeholders import shown, substitute
from headrace.expressions.remote import RemoteEvaluator, unnested
from headrace.kernels import copytext, numbering, rows, text
from headrace.process.bounds import Described
from headrace.types import INT8, Field

TUPLES_PER_STATEMENT_MAX: Final = 5_000
CACHE_ROWS_MAX: Final = 20_000
"""Maximum number of cached result rows."""
CACHE_BYTES_PER_TUPLE_MAX: Final = 8_192

Row = tuple[str | None, ...]


class SetCalls:
    """Set-returning calls that run in lockstep over typed arguments.

    ``sqls`` may end in a column definition list.  ``results`` are the columns of all calls in
    order, followed by the row number if ``ordinality``.
    """

    def __init__(
        self,
        remote: RemoteEvaluator,
        sqls: Sequence[str],
        arguments: Sequence[Field],
        results: Sequence[Field],
        *,
        ordinality: bool,
        trusted: bool,
    ) -> None:
        self._remote = remote
        self._sqls = tuple(sqls)
        self._arguments = tuple(arguments)
        self._results = tuple(results)
        self._ordinality = ordinality
        self._trusted = trusted
        self._cache: dict[bytes, list[Row]] = {}
        self._cached = 0
        self._statement: str | None = None

    def rows(
        self, columns: Sequence[pa.Array], count: int, part: Described | None = None
    ) -> tuple[npt.NDArray[np.int64], list[pa.Array]]:
        """Return the result rows for ``count`` argument tuples.

        ``part``: the part of the view's query that returns the rows, for the resource bound.

        Returns:
            For each result row the index of its tuple, ascending; and the result columns.

        Raises:
            FailingRow: a call failed; message and SQLSTATE are those of Postgres.
            UnsupportedError, TransientError, DefiniteFailure: as ``RemoteEvaluator.evaluate``.
        """
        texts = [text.for_input(c, f.oid) for c, f in zip(columns, self._arguments, strict=True)]
        keys, ids = [b""], np.zeros(count, np.int64)
        if texts:
            distinct, ids = numbering.group(rows.pack_rows(texts))
            keys = distinct.strings()
        firsts = np.unique(ids, return_index=True)[1].astype(np.int64)
        found = self._look_up(texts, keys, firsts, part) if count else []
        sizes = np.array([len(each) for each in found], np.int64)
        starts = np.cumsum(sizes) - sizes
        flat = [row for each in found for row in each]
        places = np.repeat(np.arange(count, dtype=np.int64), sizes[ids])
        within = np.arange(len(places)) - np.repeat(np.cumsum(sizes[ids]) - sizes[ids], sizes[ids])
        chosen = pa.array(starts[ids][places] + within)
        out = [
            text.parse(pa.array([row[i] for row in flat], pa.string()), f.oid).take(chosen)
            for i, f in enumerate(self._results)
        ]
        return places, out

    def _look_up(
        self,
        texts: list[pa.StringArray],
        keys: list[bytes],
        firsts: npt.NDArray[np.int64],
        part: Described | None,
    ) -> list[list[Row]]:
        found: list[list[Row] | None] = [self._cache.get(key) for key in keys]
        missing = [i for i, known in enumerate(found) if known is None]
        for low in range(0, len(missing), TUPLES_PER_STATEMENT_MAX):
            asked = missing[low : low + TUPLES_PER_STATEMENT_MAX]
            answers = self._ask(texts, firsts[asked], part)
            for i, result in zip(asked, answers, strict=True):
                found[i] = result
                self._remember(keys[i], result)
        return [result for result in found if result is not None]

    def _remember(self, key: bytes, result: list[Row]) -> None:
        """Cache a result; clear the cache first if it is full."""
        size = len(key) + sum(len(v or "") + 8 for row in result for v in row)
        if size > CACHE_BYTES_PER_TUPLE_MAX:
            return
        if self._cached > CACHE_ROWS_MAX:
            self._cache, self._cached = {}, 0
        self._cache[key] = result
        self._cached += len(result) + 1

    def _ask(
        self, texts: list[pa.StringArray], asked: npt.NDArray[np.int64], part: Described | None
    ) -> list[list[Row]]:
        """Return the result rows of tuples ``asked``; bisect to find a tuple that fails."""
        at = pa.array(asked)
        params = [copytext.array_literal(column.take(at)) for column in texts]
        session = self._remote.session(trusted=self._trusted)
        number = Field("", INT8)
        try:
            answers = session.fetch(
                self._sql(),
                params,
                [number, *self._results],
                rows=len(asked),
                part=part,
                shown=shown(self._sqls),
            )
        except RowError as error:
            if len(asked) == 1:
                raise FailingRow(error.message, int(asked[0]), error.code) from error
        else:
            out: list[list[Row]] = [[] for _ in asked]
            for first, *rest in answers:
                assert first is not None, "a row belongs to a tuple"
                out[int(first) - 1].append(tuple(rest))
            return out
        half = len(asked) // 2
        return [*self._ask(texts, asked[:half], part), *self._ask(texts, asked[half:], part)]

    def _sql(self) -> str:
        if self._statement is None:
            session = self._remote.session(trusted=self._trusted)
            source = "(SELECT 1::int8 AS o) t"
            if self._arguments:
                source = unnested(session, self._arguments)
            calls = ", ".join(substitute(sql, lambda n: f"(t.a{n})") for sql in self._sqls)
            names = [f"c{i}" for i in range(len(self._results))]
            # Calls come from the planner; names in them were quoted by Postgres.
            joined = (
                f"(SELECT t.o, f.* FROM {source}, LATERAL ROWS FROM ({calls})"  # noqa: S608
                f"{' WITH ORDINALITY' if self._ordinality else ''}"
                f" AS f({', '.join(names)})) t"
            )
            self._statement = session.statement(joined, ["t.o", *(f"t.{name}" for name in names)])
        return self._statement
