"""Native functions and operators over texts: resolvers and kernels.

Under a deterministic collation, bytes decide whether one text contains another.  Functions whose
result depends on the locale (upper, lower, ILIKE, regular expressions) are left to Postgres.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.expressions import kernels, signature
from headrace.expressions.ir import Expr, Literal, Native
from headrace.kernels import buffers, strings, text
from headrace.types import BOOL, BPCHAR, INT4, TEXT, UNKNOWN

_SUBSTRING_ERROR, _INVALID_PARAMETER = "22011", "22023"


def _texts(args: signature.Args, count: int) -> bool:
    return len(args) >= count and all(
        a.oid in signature.TEXTS and a.deterministic and a.utf8 for a in args[:count]
    )


def _ints(args: signature.Args) -> bool:
    return all(a.oid == INT4 for a in args)


# --- resolvers


def _like(name: str, args: signature.Args) -> signature.NativeOp | None:
    if len(args) != 2 or not all(a.deterministic and a.utf8 for a in args):
        return None
    subject, pattern = args
    if subject.oid not in (*signature.TEXTS, BPCHAR) or pattern.oid != TEXT:
        return None
    if pattern.literal is None or strings.compile_like(pattern.literal) is None:
        return None
    return signature.NativeOp("!~~" if name in ("!~~", "notlike") else "~~", BOOL)


def _substring(name: str, args: signature.Args) -> signature.NativeOp | None:
    if not _texts(args, 1) or len(args) not in (2, 3) or not _ints(args[1:]):
        return None
    negative = len(args) == 3 and _least(args[2]) < 0
    return signature.NativeOp("substring", TEXT, may_raise=negative)


def _least(arg: signature.TypeRef) -> int:
    """Return a lower bound of an integer argument."""
    return -(2**31) if arg.literal is None else int(arg.literal)


def _edge(name: str, args: signature.Args) -> signature.NativeOp | None:
    good = _texts(args, 1) and len(args) == 2 and _ints(args[1:])
    return signature.NativeOp(name, TEXT) if good else None


def _position(name: str, args: signature.Args) -> signature.NativeOp | None:
    good = _texts(args, 2) and len(args) == 2
    return signature.NativeOp("strpos", INT4) if good else None


def _starts_with(name: str, args: signature.Args) -> signature.NativeOp | None:
    good = _texts(args, 2) and len(args) == 2 and args[1].literal is not None
    return signature.NativeOp("starts_with", BOOL) if good else None


def _split_part(name: str, args: signature.Args) -> signature.NativeOp | None:
    if not _texts(args, 2) or len(args) != 3 or not _ints(args[2:]):
        return None
    if not args[1].literal:
        return None
    zero = args[2].literal is None or int(args[2].literal) == 0
    return signature.NativeOp(name, TEXT, may_raise=zero)


def _replace(name: str, args: signature.Args) -> signature.NativeOp | None:
    if not _texts(args, 3) or len(args) != 3:
        return None
    before, after = args[1].literal, args[2].literal
    if not before or after is None:
        return None
    longer = len(after.encode()) > len(before.encode())
    return signature.NativeOp(name, TEXT, may_raise=longer)


def _trim(name: str, args: signature.Args) -> signature.NativeOp | None:
    if not _texts(args, len(args)) or len(args) not in (1, 2):
        return None
    if len(args) == 2 and not args[1].literal:
        return None
    return signature.NativeOp(name, TEXT)


def _of_one(oid: int, name: str, args: signature.Args) -> signature.NativeOp | None:
    return signature.NativeOp(name, oid) if _texts(args, 1) and len(args) == 1 else None


def _concat(name: str, args: signature.Args) -> signature.NativeOp | None:
    printed = (*signature.TEXTS, BPCHAR, UNKNOWN, *signature.INTS)
    if len(args) < 2 or any(a.oid not in printed for a in args):
        return None
    return signature.NativeOp(name, TEXT, may_raise=True)


RESOLVERS: Final[dict[str, signature.Resolver]] = {
    "~~": _like,
    "!~~": _like,
    "like": _like,
    "notlike": _like,
    "substring": _substring,
    "substr": _substring,
    "left": _edge,
    "right": _edge,
    "strpos": _position,
    "position": _position,
    "starts_with": _starts_with,
    "^@": _starts_with,
    "split_part": _split_part,
    "replace": _replace,
    "btrim": _trim,
    "ltrim": _trim,
    "rtrim": _trim,
    "ascii": partial(_of_one, INT4),
    "octet_length": partial(_of_one, INT4),
    "concat": _concat,
}


# --- kernels


def _constant(expr: Expr) -> str:
    assert isinstance(expr, Literal), "resolved with a constant"
    assert expr.text is not None, "resolved with a constant that is not NULL"
    return expr.text


def _build_like(expr: Native) -> tuple[signature.Kernel, Sequence[Expr]]:
    match = _matcher(_constant(expr.args[1]))
    if expr.op == "~~":
        return (lambda args: match(args[0])), expr.args[:1]
    return (lambda args: pc.invert(match(args[0]))), expr.args[:1]


def _matcher(pattern: str) -> signature.Kernel:
    tokens = strings.compile_like(pattern)
    assert tokens is not None, "resolved with a complete pattern"
    inner = pattern.strip("%")
    if inner and not set(inner) & set("%_\\"):
        # Arrow finds a constant faster than the pattern matcher.
        before, after = pattern[:1] == "%", pattern[-1:] == "%"
        function = {
            (False, False): pc.equal,
            (False, True): pc.starts_with,
            (True, False): pc.ends_with,
            (True, True): pc.match_substring,
        }[before, after]
        return lambda column: function(column, inner)
    return lambda column: strings.like(column, tokens)


def _build_substring(expr: Native) -> tuple[signature.Kernel, Sequence[Expr]]:
    return _cut_substring, expr.args


def _cut_substring(args: list[pa.Array]) -> pa.Array:
    column, start = args[0], args[1]
    valid = kernels.valid_rows(*args)
    size = pa.nulls(len(column), pa.int64())
    if len(args) == 3:
        size = _wide(args[2], valid)
        negative = (buffers.values(size) < 0) & (valid == 1)
        kernels.fail(negative, "negative substring length not allowed", _SUBSTRING_ERROR)
    column = _masked(column, valid)
    return strings.substring(column, _wide(start, valid), size)


def _wide(column: pa.Array, valid: buffers.Bytes) -> pa.Array:
    """Convert an int4 column to int64 without NULLs; invalid rows become 1."""
    content = np.where(valid == 1, buffers.values(column).astype(np.int64), 1)
    return buffers.make_fixed(content, np.ones(len(content), np.uint8), pa.int64())


def _masked(column: pa.Array, valid: buffers.Bytes) -> pa.Array:
    """Return ``column`` with NULL where ``valid`` is 0."""
    if len(column) - int(np.count_nonzero(valid)) == column.null_count:
        return column
    return pc.if_else(pa.array(valid == 1), column, pa.scalar(None, column.type))


def _build_edge(expr: Native) -> tuple[signature.Kernel, Sequence[Expr]]:
    def run(args: list[pa.Array]) -> pa.Array:
        valid = kernels.valid_rows(*args)
        column = _masked(args[0], valid)
        return strings.edge(column, _wide(args[1], valid), right=expr.op == "right")

    return run, expr.args


def _build_position(expr: Native) -> tuple[signature.Kernel, Sequence[Expr]]:
    return (lambda args: strings.position(args[0], args[1])), expr.args


def _build_starts_with(expr: Native) -> tuple[signature.Kernel, Sequence[Expr]]:
    prefix = _constant(expr.args[1])
    return (lambda args: pc.starts_with(args[0], prefix)), expr.args[:1]


def _build_split_part(expr: Native) -> tuple[signature.Kernel, Sequence[Expr]]:
    separator = _constant(expr.args[1]).encode()

    def run(args: list[pa.Array]) -> pa.Array:
        valid = kernels.valid_rows(*args)
        fields = _wide(args[1], valid)
        zero = buffers.values(fields) == 0
        kernels.fail(zero, "field position must not be zero", _INVALID_PARAMETER)
        return strings.split_part(_masked(args[0], valid), separator, fields)

    return run, (expr.args[0], expr.args[2])


def _build_replace(expr: Native) -> tuple[signature.Kernel, Sequence[Expr]]:
    before, after = (_constant(a) for a in expr.args[1:])

    def run(args: list[pa.Array]) -> pa.Array:
        return pc.replace_substring(args[0], pattern=before, replacement=after)

    return run, expr.args[:1]


def _build_trim(expr: Native) -> tuple[signature.Kernel, Sequence[Expr]]:
    function = {"btrim": pc.utf8_trim, "ltrim": pc.utf8_ltrim, "rtrim": pc.utf8_rtrim}
    cut = function[expr.op]
    letters = _constant(expr.args[1]) if len(expr.args) == 2 else " "
    return (lambda args: cut(args[0], characters=letters)), expr.args[:1]


def _build_of_one(expr: Native) -> tuple[signature.Kernel, Sequence[Expr]]:
    if expr.op == "ascii":
        return (lambda args: strings.first_point(args[0])), expr.args
    return (lambda args: pc.binary_length(args[0])), expr.args


def _build_concat(expr: Native) -> tuple[signature.Kernel, Sequence[Expr]]:
    oids = [arg.oid for arg in expr.args]

    def run(args: list[pa.Array]) -> pa.Array:
        columns = [
            text.render(a, oid) if oid in signature.INTS else a
            for a, oid in zip(args, oids, strict=True)
        ]
        return pc.binary_join_element_wise(
            *columns, "", null_handling="replace", null_replacement=""
        )

    return run, expr.args


BUILDERS: Final[dict[str, signature.Builder]] = {
    "~~": _build_like,
    "!~~": _build_like,
    "substring": _build_substring,
    "left": _build_edge,
    "right": _build_edge,
    "strpos": _build_position,
    "starts_with": _build_starts_with,
    "split_part": _build_split_part,
    "replace": _build_replace,
    "btrim": _build_trim,
    "ltrim": _build_trim,
    "rtrim": _build_trim,
    "ascii": _build_of_one,
    "octet_length": _build_of_one,
    "concat": _build_concat,
}
