"""Expressions evaluated by the user's Postgres, in batches.

The distinct argument tuples of a batch are sent as arrays: ``SELECT f(a1, a2) FROM unnest($1::…[],
$2::…[]) WITH ORDINALITY``.  Results are cached by argument tuple.  Values are text in both
directions, through ``kernels.text``; see ``session`` for the settings.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import BugError, RowError, UnsupportedError
from headrace.expressions import windows
from headrace.expressions.kernels import FailingRow
from headrace.expressions.placeholders import shown, substitute
from headrace.expressions.pool import Pool
from headrace.expressions.session import EvaluatorSession, integers
from headrace.kernels import copytext, numbering, rows, text
from headrace.types import Field

ROWS_PER_STATEMENT_MAX: Final = 20_000
CACHE_ROWS_MAX: Final = 20_000
CACHE_KEY_BYTES_MAX: Final = 512
_CACHES_MAX: Final = 64

Row = tuple[str | None, ...]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """An aggregate over arguments ``fields``; the last ``direct`` are constant within a group."""

    sql: str
    fields: tuple[Field, ...]
    result: Field
    trusted: bool = True
    direct: int = 0


class _Question:
    """Expressions over typed arguments, with a cache of recent results."""

    def __init__(
        self, sqls: Sequence[str], arg_fields: Sequence[Field], result_fields: Sequence[Field]
    ) -> None:
        self.sqls = tuple(sqls)
        self.arg_fields = tuple(arg_fields)
        self.result_fields = tuple(result_fields)
        self.shown = shown(sqls)
        self.cache: dict[bytes, Row] = {}
        self._statement: str | None = None

    def statement(self, session: EvaluatorSession) -> str:
        """Return the SQL text; parameter i is the array of arguments ``$i``."""
        if self._statement is None:
            exprs = [substitute(s, lambda n: f"(t.a{n})") for s in self.sqls]
            source = "(SELECT 1 AS o) t"
            if self.arg_fields:
                source = unnested(session, self.arg_fields)
            self._statement = session.statement(source, exprs)
        return self._statement

    def typed(self, found: Sequence[Row]) -> list[pa.Array]:
        """Convert result rows to columns."""
        columns = list(zip(*found, strict=True)) or [()] * len(self.result_fields)
        return [
            text.parse(pa.array(column, pa.string()), f.oid)
            for column, f in zip(columns, self.result_fields, strict=True)
        ]

    def remember(self, keys: Sequence[bytes], found: Sequence[Row]) -> None:
        """Cache results, and drop the least recently used ones."""
        if len(keys) > CACHE_ROWS_MAX:
            return
        for key, row in zip(keys, found, strict=True):
            if len(key) + sum(len(v or "") for v in row) <= CACHE_KEY_BYTES_MAX:
                self.cache[key] = row
        for key in list(self.cache)[: max(0, len(self.cache) - CACHE_ROWS_MAX)]:
            del self.cache[key]


def unnested(session: EvaluatorSession, fields: Sequence[Field]) -> str:
    """Return FROM item ``t`` with columns ``a1`` …, typed and collated as ``fields``, and ``o``."""
    arrays, columns = session.parameters(fields)
    listed = ", ".join(f"a{i}" for i in range(1, len(fields) + 1))
    # With several arrays, unnest is syntax that always means the built-in function.
    unnest = "pg_catalog.unnest" if len(arrays) == 1 else "unnest"
    return (
        f"(SELECT {', '.join(columns)}, u.o FROM {unnest}({', '.join(arrays)})"  # noqa: S608
        f" WITH ORDINALITY AS u({listed}, o)) t"
    )


class RemoteEvaluator:
    """Evaluates expressions in Postgres.

    Not thread-safe.  ``settings`` are the settings captured from the view; ``eval_dsn`` logs in as
    the unprivileged role that evaluates untrusted expressions (None: there is none).
    """

    def __init__(
        self,
        dsn: str,
        settings: dict[str, str],
        eval_dsn: str | None = None,
        *,
        pool: Pool | None = None,
        owner: str = "",
        value_bytes_max: int = 0,
        folder: Path | None = None,
    ) -> None:
        """Create an evaluator on ``pool``; None: a private one, see ``Pool`` for ``folder``.

        ``owner`` owns untrusted expressions; evaluators with the same name must trust each other.
        ``value_bytes_max`` is the maximum size of one result in bytes (0: no limit).
        """
        self._own_pool = Pool(folder=folder) if pool is None else None
        for_all = pool or self._own_pool
        assert for_all is not None, "one of both"

        def session(to: str, *, trusted: bool) -> EvaluatorSession:
            return EvaluatorSession(
                to,
                settings,
                trusted=trusted,
                pool=for_all,
                owner=owner,
                value_bytes_max=value_bytes_max,
            )

        self.blocks: Final = for_all.blocks
        """See ``Pool``."""
        self._trusted = session(dsn, trusted=True)
        self._untrusted = session(eval_dsn, trusted=False) if eval_dsn else None
        self._questions: dict[tuple[object, ...], _Question] = {}
        self._empty: dict[tuple[object, ...], str | None] = {}

    @property
    def context(self) -> Hashable:
        """The same for two evaluators if they give trusted expressions the same values."""
        return self._trusted.context

    def close(self) -> None:
        """Close the private pool, if there is one."""
        if self._own_pool is not None:
            self._own_pool.close()

    def evaluate(
        self,
        expr_sqls: Sequence[str],
        arg_fields: Sequence[Field],
        columns: Sequence[pa.Array],
        result_fields: Sequence[Field],
        trusted: bool,
        *,
        count: int | None = None,
    ) -> list[pa.Array]:
        """Return one column per expression; ``$i`` is ``columns[i - 1]`` of ``arg_fields[i - 1]``.

        ``count`` is the number of rows, needed if there are no arguments.

        Raises:
            FailingRow: an expression failed; message and SQLSTATE are those of Postgres.
            UnsupportedError: untrusted, and no connection is configured for that.
            Interrupted: Postgres is not reachable.
            DefiniteFailure: the expression can no longer be evaluated.
        """
        n = len(columns[0]) if columns else count
        if n is None:
            raise BugError("the number of rows is unknown")
        session = self._session(trusted)
        question = self._question(expr_sqls, arg_fields, result_fields, trusted)
        if n == 0:
            return question.typed([])
        texts = [text.for_input(c, f.oid) for c, f in zip(columns, arg_fields, strict=True)]
        if not texts:
            found = self._ask(session, question, [], np.zeros(1, np.int64))
            return [pa.repeat(column[0], n) for column in question.typed(found)]
        distinct, ids = numbering.group(rows.pack_rows(texts))
        firsts = np.unique(ids, return_index=True)[1].astype(np.int64)
        found = self._look_up(session, question, texts, distinct.strings(), firsts)
        columns_out = question.typed(found)
        if len(distinct) == n:
            return columns_out
        taken = pa.array(ids)
        return [column.take(taken) for column in columns_out]

    def aggregate(
        self,
        call: AggregateCall,
        groups: Int64s,
        columns: Sequence[pa.Array],
        weights: Int64s,
        ngroups: int,
    ) -> pa.Array:
        """Return the value of ``call`` for each of the groups 0 … ``ngroups`` - 1.

        Row i stands for ``weights[i]`` (> 0) rows ``columns[…][i]`` (``$1`` …) of group
        ``groups[i]``.  The aggregate sees a group's rows in this order; ``$0`` is a row's position.
        A group without rows gets the aggregate over no rows.  Raises the errors of ``evaluate``.
        """
        session, result = self._session(call.trusted), call.result
        out: list[str | None] = [None] * ngroups
        present, ids = np.unique(groups, return_inverse=True)
        if len(present) < ngroups:
            nothing = self._over_nothing(session, call)
            out = [nothing] * ngroups
        order = np.argsort(ids, kind="stable")
        ids = ids[order].astype(np.int64)
        texts = [
            text.for_input(c, f.oid).take(pa.array(order))
            for c, f in zip(columns, call.fields, strict=True)
        ]
        weights = weights[order]
        statement = _aggregate_statement(session, call)
        low = 0
        while low < len(ids):
            # Whole groups only: from row low up to the end of a group.
            target = ids[min(low + ROWS_PER_STATEMENT_MAX, len(ids)) - 1]
            high = int(np.searchsorted(ids, target, side="left"))
            if high <= low or target == ids[-1]:
                high = int(np.searchsorted(ids, target, side="right"))
            params = [
                *(copytext.array_literal(column[low:high]) for column in texts),
                integers(ids[low:high]),
                integers(weights[low:high]),
            ]
            count = int(weights[low:high].sum())
            answers = session.fetch(statement, params, [result], count, shown=shown([call.sql]))
            for group, (value,) in zip(np.unique(ids[low:high]).tolist(), answers, strict=True):
                out[int(present[group])] = value
            low = high
        return text.parse(pa.array(out, pa.string()), result.oid)

    def windows(
        self,
        over: windows.Over,
        columns: Sequence[pa.Array],
        partitions: Int64s,
        weights: Int64s,
        trusted: bool = True,
    ) -> tuple[Int64s, list[pa.Array]]:
        """Compute window functions; see ``expressions.windows``.  Raises as ``evaluate`` does."""
        session = self._session(trusted)
        return windows.evaluate(session, over, columns, partitions, weights)

    def _over_nothing(self, session: EvaluatorSession, call: AggregateCall) -> str | None:
        key, fields = (session, call), call.fields
        if key not in self._empty:
            source = f"{_repeated(session, fields)} WHERE false"
            names = session.type_names(f.oid for f in fields)
            first = len(fields) - call.direct

            def column(n: int) -> str:
                # A direct argument is not part of the rows; without rows its value is NULL.
                known = n <= first
                return _column(n) if known else f"NULL::{names[fields[n - 1].oid][0]}"

            inner = substitute(call.sql, column)
            # An aggregate over no rows has no column to sort by.
            source = f"(SELECT {inner} AS v, 1 AS o FROM {source}) t"  # noqa: S608
            statement = session.statement(source, ["t.v"])
            params = ["{}"] * (len(fields) + 2)
            ((value,),) = session.fetch(statement, params, [call.result])
            self._empty[key] = value
        return self._empty[key]

    def session(self, *, trusted: bool) -> EvaluatorSession:
        """Return the session for such expressions; raises UnsupportedError if there is none."""
        return self._session(trusted)

    def _session(self, trusted: bool) -> EvaluatorSession:
        if trusted:
            return self._trusted
        if self._untrusted is None:
            raise UnsupportedError(
                "functions that are not built in cannot be evaluated",
                hint="Run headrace init --run as a superuser, give the role of Headrace CREATEROLE,"
                " or set eval_dsn: role headrace_eval, which has no rights, evaluates them.",
            )
        return self._untrusted

    def _question(
        self,
        sqls: Sequence[str],
        arg_fields: Sequence[Field],
        result_fields: Sequence[Field],
        trusted: bool,
    ) -> _Question:
        key = (tuple(sqls), tuple(arg_fields), tuple(result_fields), trusted)
        found = self._questions.get(key)
        if found is None:
            if len(self._questions) >= _CACHES_MAX:
                del self._questions[next(iter(self._questions))]
            found = self._questions[key] = _Question(sqls, arg_fields, result_fields)
        return found

    def _look_up(
        self,
        session: EvaluatorSession,
        question: _Question,
        texts: list[pa.StringArray],
        keys: list[bytes],
        firsts: Int64s,
    ) -> list[Row]:
        cache = question.cache
        # Entries are removed and inserted again, so that the dict is in order of last use.
        found: list[Row | None] = [cache.pop(key, None) for key in keys]
        missing = [i for i, row in enumerate(found) if row is None]
        asked = firsts[missing]
        try:
            for low in range(0, len(missing), ROWS_PER_STATEMENT_MAX):
                high = low + ROWS_PER_STATEMENT_MAX
                answers = self._ask(session, question, texts, asked[low:high])
                for i, row in zip(missing[low:high], answers, strict=True):
                    found[i] = row
        finally:
            known = [(k, r) for k, r in zip(keys, found, strict=True) if r is not None]
            question.remember([k for k, _ in known], [r for _, r in known])
        return [row for _, row in known]

    def _ask(
        self,
        session: EvaluatorSession,
        question: _Question,
        texts: list[pa.StringArray],
        asked: Int64s,
    ) -> list[Row]:
        """Return the results for rows ``asked``, in that order; bisect to find a failing row."""
        at = pa.array(asked)
        params = [copytext.array_literal(column.take(at)) for column in texts]
        try:
            statement = question.statement(session)
            out = session.fetch(
                statement, params, question.result_fields, len(asked), shown=question.shown
            )
        except RowError as error:
            if len(asked) == 1:
                raise _failing(error, int(asked[0]), question.arg_fields) from error
        else:
            assert len(out) == len(asked), "one result per argument tuple"
            return out
        half = len(asked) // 2
        return self._ask(session, question, texts, asked[:half]) + self._ask(
            session, question, texts, asked[half:]
        )


def _failing(error: RowError, row: int, fields: Sequence[Field]) -> FailingRow:
    types = ", ".join(str(f.oid) for f in fields)
    detail = f"The expression failed on arguments of type OIDs {types}." if types else None
    return FailingRow(error.message, row, error.code, detail=detail)


def _repeated(session: EvaluatorSession, fields: Sequence[Field]) -> str:
    """Return FROM item ``t``: columns ``a1`` …, ``o`` (group) and ``i`` (position).

    Each row is repeated by its weight.  The item is sorted by ``o`` and ``i``; aggregates see the
    rows of a group in that order.
    """
    arrays, columns = session.parameters(fields)
    count = len(fields)
    arrays += [f"${count + 1}::int8[]", f"${count + 2}::int8[]"]
    listed = ", ".join([*(f"a{n}" for n in range(1, count + 1)), "g", "w", "i"])
    columns += ["u.g AS o", "u.i"]
    return (
        f"(SELECT {', '.join(columns)}"  # noqa: S608
        f" FROM unnest({', '.join(arrays)}) WITH ORDINALITY AS u({listed}),"
        " pg_catalog.generate_series(1, u.w) ORDER BY u.g, u.i) t"
    )


def _column(n: int) -> str:
    return f"(t.a{n})" if n else "(t.i)"


def _aggregate_statement(session: EvaluatorSession, call: AggregateCall) -> str:
    inner, fields = substitute(call.sql, _column), call.fields
    first = len(fields) - call.direct
    keys = ["t.o", *(f"t.a{n}" for n in range(first + 1, len(fields) + 1))]
    source = f"{_repeated(session, fields)} GROUP BY {', '.join(keys)}"
    return session.statement(source, [inner])
