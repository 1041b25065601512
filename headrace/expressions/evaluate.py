"""Programs: expressions that are compiled once and run on many batches.

Equal sub-expressions are computed once.  Remote expressions go to Postgres as one statement if
their arguments are ready at the same time and they may share a connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import BugError
from headrace.expressions import arrays, conditional, kernels, keytexts, moments, rounding, texts
from headrace.expressions.ir import Column, Expr, Literal, Native, Remote, remap
from headrace.expressions.kernels import FailingRow
from headrace.expressions.native import common_number
from headrace.expressions.placeholders import renumber
from headrace.expressions.remote import RemoteEvaluator
from headrace.expressions.signature import Builder, Kernel
from headrace.kernels import text
from headrace.types import DATE, TEXT, TIMESTAMP, Field, arrow_type

__all__ = ["FailingRow", "Program"]


@dataclass(slots=True)
class _Step:
    """Compute slot ``out`` from slots ``args``."""

    kernel: Kernel
    args: list[int]
    out: int


@dataclass(slots=True)
class _RemoteStep:
    """Compute slots ``outs`` in one statement over slots ``args``."""

    trusted: bool
    sqls: list[str] = field(default_factory=list)
    args: list[int] = field(default_factory=list)
    arg_fields: list[Field] = field(default_factory=list)
    outs: list[int] = field(default_factory=list)
    result_fields: list[Field] = field(default_factory=list)


class Program:
    """Expressions over the columns of a batch.

    ``remote`` may be None if no expression is ``Remote`` (BugError otherwise).
    """

    def __init__(self, exprs: Sequence[Expr], remote: RemoteEvaluator | None) -> None:
        self._remote = remote
        self._slots: dict[Expr, int] = {}
        self._levels: list[int] = []
        self._columns: list[tuple[int, int]] = []
        self._literals: list[tuple[int, pa.Scalar]] = []
        self._native: list[tuple[int, _Step]] = []
        self._asked: dict[tuple[int, bool], _RemoteStep] = {}
        self._outs: Final = [self._add(expr) for expr in exprs]
        self._steps: Final = self._schedule()

    def run(self, columns: Sequence[pa.Array], n: int) -> list[pa.Array]:
        """Return one column per expression, over ``n`` rows.

        Raises:
            FailingRow: an expression failed on a row.
            Interrupted: a remote expression was needed and Postgres is not reachable.
        """
        values: list[pa.Array] = [None] * len(self._slots)
        for slot, index in self._columns:
            values[slot] = columns[index]
        for slot, scalar in self._literals:
            values[slot] = pa.repeat(scalar, n)
        for step in self._steps:
            if isinstance(step, _Step):
                values[step.out] = step.kernel([values[i] for i in step.args])
            else:
                self._ask(step, values, n)
        return [values[i] for i in self._outs]

    def _ask(self, step: _RemoteStep, values: list[pa.Array], n: int) -> None:
        assert self._remote is not None, "checked when the program was built"
        results = self._remote.evaluate(
            step.sqls,
            step.arg_fields,
            [values[i] for i in step.args],
            step.result_fields,
            step.trusted,
            count=n,
        )
        for slot, result in zip(step.outs, results, strict=True):
            values[slot] = result

    # --- building

    def _add(self, expr: Expr) -> int:
        """Return the slot of ``expr``; add it and its arguments if it is new."""
        if expr in self._slots:
            return self._slots[expr]
        kernel, needed = _needs(expr, self._remote)
        args = [self._add(arg) for arg in needed]
        slot = self._slots[expr] = len(self._slots)
        level = max((self._levels[i] for i in args), default=0)
        match expr:
            case Column(index=index):
                self._columns.append((slot, index))
            case Literal():
                self._literals.append((slot, _scalar(expr)))
            case Native():
                assert kernel is not None, "of every native expression"
                self._native.append((level, _Step(kernel, args, slot)))
            case Remote():
                self._add_remote(expr, args, slot, level)
                level += 1
        self._levels.append(level)
        return slot

    def _add_remote(self, expr: Remote, args: list[int], slot: int, level: int) -> None:
        if self._remote is None:
            raise BugError("a remote expression needs an evaluator")
        key = (level, expr.trusted)
        step = self._asked.setdefault(key, _RemoteStep(expr.trusted))
        mapping: dict[int, int] = {}
        for number, (arg, at) in enumerate(zip(expr.args, args, strict=True), 1):
            if at not in step.args:
                step.args.append(at)
                step.arg_fields.append(_field(arg))
            mapping[number] = step.args.index(at) + 1
        step.sqls.append(renumber(expr.sql, mapping))
        step.outs.append(slot)
        step.result_fields.append(_field(expr))

    def _schedule(self) -> list[_Step | _RemoteStep]:
        # Level n: the kernels whose arguments are ready, then the statements that use their output.
        out: list[_Step | _RemoteStep] = []
        for level in range(max(self._levels, default=0) + 1):
            out.extend(step for at, step in self._native if at == level)
            asked = sorted(key for key in self._asked if key[0] == level)
            out.extend(self._asked[key] for key in asked)
        return out


def _field(expr: Expr) -> Field:
    return Field("", expr.oid, expr.typmod, expr.collation)


def _scalar(literal: Literal) -> pa.Scalar:
    column = pa.array([literal.text], pa.string())
    return text.parse(column, literal.oid)[0]


def _needs(expr: Expr, remote: RemoteEvaluator | None) -> tuple[Kernel | None, Sequence[Expr]]:
    """Return the kernel of a native expression, and the expressions to compute before it."""
    match expr:
        case Native() if conditional.runs_in_turn(expr):
            return _in_turn(expr, remote)
        case Native() if expr.op in _BOUND:
            return _BOUND[expr.op](expr)
        case Native():
            return _kernel(expr), expr.args
        case Remote(args=args):
            return None, args
        case _:
            return None, ()


def _in_turn(expr: Native, remote: RemoteEvaluator | None) -> tuple[Kernel, Sequence[Expr]]:
    needed: dict[Expr, int] = {}
    parts = []
    for arg in expr.args:
        if not conditional.may_raise(arg):
            place = needed.setdefault(arg, len(needed))
            parts.append(conditional.ConditionalPart((place,)))
            continue
        columns = sorted(_columns(arg), key=lambda c: c.index)
        places = tuple(needed.setdefault(c, len(needed)) for c in columns)
        here = remap(arg, {c.index: i for i, c in enumerate(columns)})
        parts.append(conditional.ConditionalPart(places, Program([here], remote)))
    if not needed:
        raise BugError("a conditional that reads nothing is folded, or remote")
    return partial(_run_in_turn, expr, parts), list(needed)


def _columns(expr: Expr) -> set[Column]:
    if isinstance(expr, Column):
        return {expr}
    return {c for arg in getattr(expr, "args", ()) for c in _columns(arg)}


def _run_in_turn(
    expr: Native, parts: Sequence[conditional.ConditionalPart], columns: list[pa.Array]
) -> pa.Array:
    if expr.op in kernels.LOGIC:
        return conditional.logic(expr.op, parts, columns)

    def moved(place: int, values: pa.Array) -> pa.Array:
        return _moved([values], [expr.args[place].oid], expr.oid)[0]

    if expr.op == "case":
        return conditional.case(parts, columns, moved)
    return conditional.coalesce(parts, columns, moved)


def _kernel(expr: Native) -> Kernel:
    """Return the function that computes ``expr`` from its arguments' columns."""
    op = expr.op
    oids = [arg.oid for arg in expr.args]
    if op in kernels.TESTS and len(oids) == 1:
        return partial(_apply_one, kernels.TESTS[op])
    if op in kernels.LOGIC:
        return partial(reduce, kernels.LOGIC[op])
    if op in ("=", "<>", "<", "<=", ">", ">="):
        return _compare(op, oids)
    found = _BUILDERS.get(op)
    if found is None:
        raise BugError(f'no kernel for the native operator "{op}"')
    return found(op, oids, expr.oid)


def _apply_one(function: Callable[[pa.Array], pa.Array], args: list[pa.Array]) -> pa.Array:
    return function(args[0])


def _widened(args: list[pa.Array], oids: list[int], target: int) -> list[pa.Array]:
    return [
        kernels.cast(a, oid, target) if oid != target else a
        for a, oid in zip(args, oids, strict=True)
    ]


def _common(oids: list[int]) -> int | None:
    return common_number(oids[0], oids[1])


def _compare(op: str, oids: list[int]) -> Kernel:
    common = _common(oids)

    def run(args: list[pa.Array]) -> pa.Array:
        if oids[0] != oids[1] and DATE in oids:
            left, right = (
                kernels.date_to_timestamp(a) if oid == DATE else a
                for a, oid in zip(args, oids, strict=True)
            )
            return kernels.compare(op, left, right, TIMESTAMP)
        if common is None:
            return kernels.compare(op, args[0], args[1], oids[0])
        left, right = _widened(args, oids, common)
        return kernels.compare(op, left, right, common)

    return run


def _distinct(op: str, oids: list[int], oid: int) -> Kernel:
    common = _common(oids)

    def run(args: list[pa.Array]) -> pa.Array:
        left, right = args if common is None else _widened(args, oids, common)
        kind = oids[0] if common is None else common
        out = kernels.distinct_from(left, right, kind)
        return out if op == "is_distinct_from" else pc.invert(out)

    return run


def _arithmetic(op: str, oids: list[int], oid: int) -> Kernel:
    if len(oids) == 1:
        return _unary(op, oids, oid)
    if DATE in oids:
        return _dates(op, oids)

    def run(args: list[pa.Array]) -> pa.Array:
        left, right = _widened(args, oids, oid)
        return kernels.arithmetic(op, left, right, oid)

    return run


def _unary(op: str, oids: list[int], oid: int) -> Kernel:
    functions = {"-": kernels.negate, "abs": kernels.absolute}
    function = functions.get(op)
    if function is None:
        return lambda args: args[0]
    return lambda args: function(args[0], oid)


def _dates(op: str, oids: list[int]) -> Kernel:
    if oids == [DATE, DATE]:
        return lambda args: kernels.days_between(args[0], args[1])
    first = 0 if oids[0] == DATE else 1
    sign = -1 if op == "-" else 1
    return lambda args: kernels.shift_date(args[first], args[1 - first], sign)


def _cast(op: str, oids: list[int], oid: int) -> Kernel:
    function = rounding.cast if rounding.casts(oids[0], oid) else kernels.cast
    return lambda args: function(args[0], oids[0], oid)


def _moved(args: list[pa.Array], oids: list[int], oid: int) -> list[pa.Array]:
    """Cast the branches of CASE or COALESCE to their common type; only integers need widening."""
    if all(a.type == arrow_type(oid) for a in args):
        return args
    return _widened(args, oids, oid)


def _case(op: str, oids: list[int], oid: int) -> Kernel:
    def run(args: list[pa.Array]) -> pa.Array:
        values = _moved([*args[1::2], args[-1]], [*oids[1::2], oids[-1]], oid)
        mixed = list(args)
        mixed[1::2] = values[:-1]
        mixed[-1] = values[-1]
        return kernels.case(mixed)

    return run


def _coalesce(op: str, oids: list[int], oid: int) -> Kernel:
    return lambda args: pc.coalesce(*_moved(args, oids, oid))


def _nullif(op: str, oids: list[int], oid: int) -> Kernel:
    equal = _compare("=", oids)
    return lambda args: kernels.nullif(args[0], equal(args))


def _concat(op: str, oids: list[int], oid: int) -> Kernel:
    assert oid == TEXT, "only texts are joined natively"
    return lambda args: kernels.concat(args[0], args[1])


def _single(op: str, oids: list[int], oid: int) -> Kernel:
    return lambda args: kernels.single(args[0], args[1])


def _extreme(op: str, oids: list[int], oid: int) -> Kernel:
    better = _compare(">" if op == "greatest" else "<", [oid, oid])

    def larger(best: pa.Array, other: pa.Array) -> pa.Array:
        wins = pc.fill_null(better([other, best]), False)
        return pc.if_else(pc.or_(wins, pc.is_null(best)), other, best)

    return partial(reduce, larger)


_BOUND: Final[dict[str, Builder]] = {
    **arrays.BUILDERS,
    **keytexts.BUILDERS,
    **moments.BUILDERS,
    **rounding.BUILDERS,
    **texts.BUILDERS,
}
_BUILDERS: Final[dict[str, Callable[[str, list[int], int], Kernel]]] = {
    "is_distinct_from": _distinct,
    "is_not_distinct_from": _distinct,
    "cast": _cast,
    "case": _case,
    "coalesce": _coalesce,
    "nullif": _nullif,
    "||": _concat,
    "abs": _unary,
    "single": _single,
    "greatest": _extreme,
    "least": _extreme,
    **dict.fromkeys("+-*/%", _arithmetic),
}
