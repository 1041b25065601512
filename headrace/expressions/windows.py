"""Window functions evaluated by the user's Postgres, over whole partitions.

The rows of some partitions are sent as arrays, each with its weight; the values of the calls are
returned for every row.  Postgres gets the rows sorted by partition, ORDER BY and ordinal.  That is
the order of its window sort, so peers keep the order in which they were sent, with any frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.expressions.placeholders import shown, substitute
from headrace.expressions.session import EvaluatorSession, integers
from headrace.kernels import copytext, text
from headrace.types import INT8, Field

ROWS_PER_STATEMENT_MAX: Final = 20_000

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sorting:
    """One ORDER BY item over ``$place``."""

    place: int
    operator: str
    nulls_first: bool

    def sql(self) -> str:
        """Return the item over the columns of ``t``."""
        nulls = "FIRST" if self.nulls_first else "LAST"
        return f"t.a{self.place} USING {self.operator} NULLS {nulls}"


@dataclass(frozen=True, slots=True)
class Over:
    """Calls over the same partitions and order; ``$i`` is the argument of ``fields[i - 1]``.

    ``frames``: the frame clause of each call, empty for the default.
    """

    calls: tuple[str, ...]
    order: tuple[Sorting, ...]
    frames: tuple[str, ...]
    fields: tuple[Field, ...]
    results: tuple[Field, ...]


def evaluate(
    session: EvaluatorSession,
    over: Over,
    columns: Sequence[pa.Array],
    partitions: Int64s,
    weights: Int64s,
) -> tuple[Int64s, list[pa.Array]]:
    """Return the row number and the values of the calls, once for each unit of a row's weight.

    Row i has the arguments ``columns[…][i]`` and belongs to partition ``partitions[i]``.  The rows
    of a partition are adjacent.

    Raises:
        RowError: a call failed; message and SQLSTATE are those of Postgres.
        Interrupted: Postgres is not reachable.
        DefiniteFailure: the calls can no longer be evaluated.
    """
    texts = [text.for_input(c, f.oid) for c, f in zip(columns, over.fields, strict=True)]
    statement = _statement(session, over)
    results = (*over.results, Field("o", INT8))
    found: list[tuple[str | None, ...]] = []
    numbers: list[int] = []
    for low, high in _pieces(partitions):
        params = [copytext.array_literal(column[low:high]) for column in texts]
        params += [integers(partitions[low:high]), integers(weights[low:high])]
        count = int(weights[low:high].sum())
        answers = session.fetch(statement, params, results, count, shown=shown(over.calls))
        found.extend(row[:-1] for row in answers)
        numbers.extend(low + int(row[-1] or 0) - 1 for row in answers)
    turned = list(zip(*found, strict=True)) or [()] * len(over.results)
    values = [
        text.parse(pa.array(column, pa.string()), f.oid)
        for column, f in zip(turned, over.results, strict=True)
    ]
    return np.array(numbers, np.int64), values


def _pieces(partitions: Int64s) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows, each of whole partitions."""
    count = len(partitions)
    ends = [*(np.flatnonzero(np.diff(partitions)) + 1).tolist(), count]
    low = last = 0
    for end in ends:
        if end - low > ROWS_PER_STATEMENT_MAX and last > low:
            yield low, last
            low = last
        last = end
    if last > low:
        yield low, last


def _statement(session: EvaluatorSession, over: Over) -> str:
    arrays, columns = session.parameters(over.fields)
    count = len(over.fields)
    listed = ", ".join([*(f"a{i}" for i in range(1, count + 1)), "g", "w", "o"])
    arrays += [f"${count + 1}::int8[]", f"${count + 2}::int8[]"]
    order = ", ".join(item.sql() for item in over.order)
    # Names in the plan's expressions were quoted by Postgres; Headrace writes the rest.
    inner = (
        f"(SELECT {', '.join([*columns, 'u.g', 'u.w', 'u.o'])}"  # noqa: S608
        f" FROM unnest({', '.join(arrays)}) WITH ORDINALITY AS u({listed})) t"
    )
    given = ", ".join(["t.g", *([order] if order else []), "t.o"])
    source = (
        f"(SELECT t.* FROM {inner}, pg_catalog.generate_series(1, t.w)"  # noqa: S608
        f" ORDER BY {given} OFFSET 0) t"
    )
    window = "PARTITION BY t.g" + (f" ORDER BY {order}" if order else "")
    calls = [
        f"{substitute(call, lambda n: f'(t.a{n})')} OVER ({f'{window} {frame}'.rstrip()})"
        for call, frame in zip(over.calls, over.frames, strict=True)
    ]
    return session.statement(source, [*calls, "t.o"])
