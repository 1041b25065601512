"""Conditionals with parts that may fail: each part runs only for the rows that need it.

Arguments are evaluated from left to right, as in Postgres.  AND stops at the first false argument,
OR at the first true one, COALESCE at the first value, CASE at the first true condition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.expressions import native
from headrace.expressions.ir import Column, Expr, Literal, Native, Remote
from headrace.expressions.kernels import FailingRow
from headrace.kernels import buffers
from headrace.types import FIRST_USER_OID

Rows = npt.NDArray[np.int64]
Moved = Callable[[int, pa.Array], pa.Array]
CONDITIONALS: Final = frozenset({"and", "or", "case", "coalesce"})
_FALSE, _TRUE, _NULL = 0, 1, 2


class Runs(Protocol):
    """The interface of ``evaluate.Program``."""

    def run(self, columns: Sequence[pa.Array], n: int) -> list[pa.Array]:
        """Return one column per expression, over ``n`` rows."""
        ...


def may_raise(expr: Expr) -> bool:
    """Return whether ``expr`` may fail on some row; true if that is not known."""
    match expr:
        case Column() | Literal():
            return False
        case Native(op=op, args=args):
            types = [_type(arg) for arg in args]
            if op == "cast":
                target = native.TypeRef(expr.oid, expr.typmod)
                known = native.resolve_cast(types[0], target)
            else:
                known = native.resolve(op, types)
            return known is None or known.may_raise or any(map(may_raise, args))
        case Remote():
            return True


def _type(expr: Expr) -> native.TypeRef:
    literal = expr.text if isinstance(expr, Literal) else None
    # The planner makes operators on types that are not built in native only for enums.
    enum = expr.oid >= FIRST_USER_OID
    return native.TypeRef(expr.oid, expr.typmod, literal=literal, enum=enum)


def runs_in_turn(expr: Native) -> bool:
    """Return whether ``expr`` is a conditional with a part that must not run for every row."""
    return expr.op in CONDITIONALS and any(map(may_raise, expr.args))


@dataclass(frozen=True, slots=True)
class ConditionalPart:
    """An argument of a conditional.

    Either the column ``places[0]``, computed before, or ``program`` over the columns ``places``,
    which runs only for the rows that need it.
    """

    places: tuple[int, ...]
    program: Runs | None = None

    def over(self, columns: Sequence[pa.Array], rows: Rows) -> pa.Array:
        """Return the values for these row numbers; a FailingRow has one of these numbers."""
        whole = len(rows) == len(columns[0])
        taken = [columns[i] for i in self.places]
        if not whole:
            at = pa.array(rows)
            taken = [column.take(at) for column in taken]
        if self.program is None:
            return taken[0]
        try:
            return self.program.run(taken, len(rows))[0]
        except FailingRow as error:
            error.row = int(rows[error.row])
            raise


def logic(op: str, parts: Sequence[ConditionalPart], columns: Sequence[pa.Array]) -> pa.Array:
    """Compute ``and`` or ``or``: NULL where no part decides and one is NULL."""
    decisive = _FALSE if op == "and" else _TRUE
    out = np.full(len(columns[0]), _TRUE - decisive, np.uint8)
    rows = np.arange(len(out), dtype=np.int64)
    for part in parts:
        if not len(rows):
            break
        found = part.over(columns, rows)
        valid = buffers.validity(found) == 1
        decided = valid & (buffers.values(found) == decisive)
        out[rows[~valid]] = _NULL
        out[rows[decided]] = decisive
        rows = rows[~decided]
    valid_bytes = (out != _NULL).astype(np.uint8)
    return buffers.make_fixed(out == _TRUE, valid_bytes, pa.bool_())


def coalesce(
    parts: Sequence[ConditionalPart], columns: Sequence[pa.Array], moved: Moved
) -> pa.Array:
    """Return the first value that is not NULL; ``moved`` as in ``case``."""
    pieces: list[tuple[Rows, pa.Array]] = []
    rows = np.arange(len(columns[0]), dtype=np.int64)
    for place, part in enumerate(parts):
        found = moved(place, part.over(columns, rows))
        here = buffers.validity(found) == 1
        if place == len(parts) - 1:
            here[:] = True
        pieces.append((rows[here], found.filter(pa.array(here))))
        rows = rows[~here]
        if not len(rows):
            break
    return _together(pieces)


def case(parts: Sequence[ConditionalPart], columns: Sequence[pa.Array], moved: Moved) -> pa.Array:
    """Return the value of the first true condition, else the last part.

    ``moved`` casts the values of the part at an index to the result type.
    """
    pieces: list[tuple[Rows, pa.Array]] = []
    rows = np.arange(len(columns[0]), dtype=np.int64)
    for place in range(0, len(parts) - 1, 2):
        if not len(rows):
            break
        test = pc.fill_null(parts[place].over(columns, rows), False)
        true = buffers.values(test) == 1
        chosen = rows[true]
        if len(chosen):
            value = parts[place + 1].over(columns, chosen)
            pieces.append((chosen, moved(place + 1, value)))
            rows = rows[~true]
    if len(rows) or not pieces:
        last = len(parts) - 1
        pieces.append((rows, moved(last, parts[last].over(columns, rows))))
    return _together(pieces)


def _together(pieces: list[tuple[Rows, pa.Array]]) -> pa.Array:
    """Merge pieces, each with its row numbers, into one column."""
    pieces = [p for p in pieces if len(p[0])] or pieces[:1]
    if len(pieces) == 1:
        return pieces[0][1]
    order = np.argsort(np.concatenate([rows for rows, _ in pieces]), kind="stable")
    values = pa.concat_arrays([values for _, values in pieces])
    return values.take(pa.array(order))
