"""The operators and casts that native kernels compute exactly as Postgres does.

The planner calls ``resolve`` and ``resolve_cast`` for the result type and whether a row may fail.
``None`` means that Postgres must evaluate it.  ``expressions.evaluate`` knows the returned names.
``tests/expressions/test_native.py`` proves every accepted combination of types equal to Postgres
over edge values.

Arguments: ``case`` takes condition, value, condition, value, …, else (always present).
``and``/``or``/``coalesce`` take any number.  Unary minus is ``-`` with one argument.  ``single``
takes the number of rows of a scalar subquery and its value.
"""

from __future__ import annotations

from typing import Final

from headrace import types
from headrace.expressions import arrays, keytexts, moments, rounding, texts
from headrace.expressions.signature import FLOATS, INTS, TEXTS, Args, NativeOp, Resolver, TypeRef

__all__ = [
    "FLOATS",
    "INTS",
    "NativeOp",
    "TypeRef",
    "common_number",
    "resolve",
    "resolve_cast",
]

_EQUALITY: Final = frozenset({"=", "<>"})
_ORDER: Final = frozenset({"<", "<=", ">", ">="})
_SAME_TYPE: Final = frozenset(
    {
        types.BOOL,
        types.OID,
        types.DATE,
        types.TIME,
        types.TIMESTAMP,
        types.TIMESTAMPTZ,
        types.UUID,
        types.BYTEA,
    }
)
"""Types compared only with themselves, by value or by their canonical text."""
_BOOLEAN_TESTS: Final = frozenset(
    {
        "is_true", "is_false", "is_not_true", "is_not_false", "is_unknown",
        "is_not_unknown",
    }
)  # fmt: skip
_ALIASES: Final = {"!=": "<>", "mod": "%"}


def common_number(left: int, right: int) -> int | None:
    """Return the type in which Postgres computes ``left op right``; None if it is not native.

    Source: Postgres manual, "Operator Type Resolution".  Integers are widened.  float4 with any
    other number becomes float8 (the preferred type).  Integers become numeric exactly.
    """
    if left in INTS and right in INTS:
        return max(left, right, key=INTS.index)
    if left in FLOATS or right in FLOATS:
        if left == right:
            return left
        if types.NUMERIC in (left, right):
            return None  # numeric to float8 rounds by its text: left to Postgres
        if (left in FLOATS or left in INTS) and (right in FLOATS or right in INTS):
            return types.FLOAT8
        return None
    if types.NUMERIC in (left, right):
        other = left if right == types.NUMERIC else right
        return types.NUMERIC if other in INTS or other == types.NUMERIC else None
    return None


def comparable(op: str, left: TypeRef, right: TypeRef) -> bool:
    """Return whether native ``op`` compares these two types exactly as Postgres does."""
    if common_number(left.oid, right.oid) is not None:
        return True
    if left.oid in TEXTS and right.oid in TEXTS:
        return _text_comparable(op, left, right)
    if left.oid == right.oid == types.BPCHAR:
        return _text_comparable(op, left, right)
    if {left.oid, right.oid} == {types.DATE, types.TIMESTAMP}:
        return op in _ORDER  # as keys they would differ
    if left.enum and op in _EQUALITY:
        return left.oid == right.oid
    return left.oid == right.oid and left.oid in _SAME_TYPE


def _text_comparable(op: str, left: TypeRef, right: TypeRef) -> bool:
    if not (left.deterministic and right.deterministic):
        return False
    return op in _EQUALITY or (left.bytewise and right.bytewise)


def common_type(args: Args) -> tuple[int, int] | None:
    """Return the type and typmod of CASE or COALESCE over these types; None: not native."""
    oids = {a.oid for a in args}
    typmods = {a.typmod for a in args}
    if len(oids) == 1:
        return args[0].oid, (args[0].typmod if len(typmods) == 1 else -1)
    if oids <= set(INTS):
        return max(oids, key=INTS.index), -1
    if oids <= set(TEXTS):
        return args[0].oid, -1  # both convert to each other, so the first one decides
    return None


def resolve(op: str, args: Args) -> NativeOp | None:
    """Return the native operator for ``op`` (an operator symbol or function name), or None."""
    name = _ALIASES.get(op, op)
    if (name in _EQUALITY or name in _ORDER) and len(args) == 2:
        return NativeOp(name, types.BOOL) if comparable(name, *args) else None
    if name in _BOOLEAN_TESTS:
        return NativeOp(name, types.BOOL) if _booleans(args, 1) else None
    found = _RESOLVERS.get(name)
    return found(name, args) if found else None


def _booleans(args: Args, count: int | None = None) -> bool:
    if count is not None and len(args) != count:
        return False
    return bool(args) and all(a.oid == types.BOOL for a in args)


def _logic(name: str, args: Args) -> NativeOp | None:
    count = 1 if name == "not" else None
    return NativeOp(name, types.BOOL) if _booleans(args, count) else None


def _null_test(name: str, args: Args) -> NativeOp | None:
    return NativeOp(name, types.BOOL) if len(args) == 1 else None


def _distinct(name: str, args: Args) -> NativeOp | None:
    good = len(args) == 2 and comparable("=", *args)
    return NativeOp(name, types.BOOL) if good else None


def _case(name: str, args: Args) -> NativeOp | None:
    if len(args) < 3 or len(args) % 2 == 0 or not _booleans(args[:-1:2]):
        return None
    common = common_type([args[-1], *args[1::2]])
    return NativeOp(name, *common) if common else None


def _coalesce(name: str, args: Args) -> NativeOp | None:
    common = common_type(args) if args else None
    return NativeOp(name, *common) if common else None


def _nullif(name: str, args: Args) -> NativeOp | None:
    if len(args) != 2 or not comparable("=", *args):
        return None
    if args[0].oid in TEXTS:
        return NativeOp(name, types.TEXT)
    if args[0].oid != args[1].oid and common_number(args[0].oid, args[1].oid) != (args[0].oid):
        return None  # Postgres converts the first argument and decides the type
    return NativeOp(name, args[0].oid, args[0].typmod)


def _extreme(name: str, args: Args) -> NativeOp | None:
    if not args or len({a.oid for a in args}) != 1:
        return None
    return NativeOp(name, args[0].oid) if comparable("<", args[0], args[-1]) else None


def _concat(name: str, args: Args) -> NativeOp | None:
    good = len(args) == 2 and all(a.oid in TEXTS for a in args)
    return NativeOp(name, types.TEXT, may_raise=True) if good else None


def _length(name: str, args: Args) -> NativeOp | None:
    good = len(args) == 1 and args[0].oid in TEXTS and args[0].utf8
    return NativeOp("length", types.INT4) if good else None


def _arithmetic(name: str, args: Args) -> NativeOp | None:
    if len(args) == 1:
        return _unary(name, args)
    if len(args) != 2:
        return None
    left, right = args[0].oid, args[1].oid
    common = common_number(left, right)
    if common is not None:
        if name == "%" and common not in INTS:
            return None
        # A number of more than 131 072 digits does not count, as in ``aggregate_traits.Total``.
        exact = common == types.NUMERIC and name in ("+", "-", "*")
        return NativeOp(name, common, may_raise=not exact)
    if left == types.DATE and right in (types.INT2, types.INT4) and name in "+-":
        return NativeOp(name, types.DATE, may_raise=True)
    if left == types.INT4 and right == types.DATE and name == "+":
        return NativeOp(name, types.DATE, may_raise=True)
    if left == right == types.DATE and name == "-":
        return NativeOp(name, types.INT4, may_raise=True)
    return moments.shift(name, args) if name in "+-" else None


def _unary(name: str, args: Args) -> NativeOp | None:
    oid = args[0].oid
    if len(args) != 1 or name not in ("+", "-", "abs"):
        return None
    if oid not in INTS and oid not in FLOATS and oid != types.NUMERIC:
        return None
    return NativeOp(name, oid, may_raise=oid in INTS and name != "+")


def _single(name: str, args: Args) -> NativeOp | None:
    good = len(args) == 2 and args[0].oid == types.INT8
    return NativeOp(name, args[1].oid, args[1].typmod, may_raise=True) if good else None


_RESOLVERS: Final[dict[str, Resolver]] = {
    "and": _logic,
    "or": _logic,
    "not": _logic,
    "is_null": _null_test,
    "is_not_null": _null_test,
    "is_distinct_from": _distinct,
    "is_not_distinct_from": _distinct,
    "case": _case,
    "coalesce": _coalesce,
    "nullif": _nullif,
    "||": _concat,
    "length": _length,
    "char_length": _length,
    "character_length": _length,
    "abs": _unary,
    "single": _single,
    **dict.fromkeys("+-*/%", _arithmetic),
    "greatest": _extreme,
    "least": _extreme,
    **arrays.RESOLVERS,
    **keytexts.RESOLVERS,
    **moments.RESOLVERS,
    **rounding.RESOLVERS,
    **texts.RESOLVERS,
}


def resolve_cast(source: TypeRef, target: TypeRef) -> NativeOp | None:
    """Return the native cast of ``source`` to ``target``, or None.

    The planner turns it into ``Native("cast", (arg,), target.oid, target.typmod)``.
    """
    left, right = source.oid, target.oid
    if left == right and target.typmod in (-1, source.typmod):
        return NativeOp("cast", right, target.typmod)
    if target.typmod != -1:
        return None  # a length or precision is applied: left to Postgres
    if left in INTS and right in INTS:
        return NativeOp("cast", right, may_raise=INTS.index(left) > INTS.index(right))
    if source.enum and right in TEXTS:
        return NativeOp("cast", right)
    if (left, right) in _CASTS or (left in INTS and right in _FROM_INTS):
        return NativeOp("cast", right)
    if (left, right) == (types.DATE, types.TIMESTAMP) or rounding.casts(left, right):
        return NativeOp("cast", right, may_raise=True)
    return None


_FROM_INTS: Final = frozenset(
    {types.FLOAT4, types.FLOAT8, types.NUMERIC, types.TEXT, types.VARCHAR}
)
_CASTS: Final = frozenset(
    {
        (types.FLOAT4, types.FLOAT8),
        (types.BOOL, types.INT4),
        (types.TEXT, types.VARCHAR),
        (types.VARCHAR, types.TEXT),
        (types.NAME, types.TEXT),
        (types.BPCHAR, types.TEXT),
        (types.BPCHAR, types.VARCHAR),
        (types.UUID, types.TEXT),
        (types.UUID, types.VARCHAR),
        (types.NUMERIC, types.TEXT),
        (types.NUMERIC, types.VARCHAR),
        (types.BOOL, types.TEXT),
        (types.BOOL, types.VARCHAR),
        (types.TIMESTAMP, types.DATE),
    }
)
