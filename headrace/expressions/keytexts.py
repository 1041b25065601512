"""Key texts of arrays and rows: the same for equal values, even where their output differs.

``key_text(value, form)``: key of a value; ``form`` is a constant (``kernels.structures``)
``row_key_text(a, b, …)``: key of ``ROW(a, b, …)``

These functions do not exist in SQL.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from headrace import types
from headrace.expressions.ir import Expr, Literal, Native
from headrace.expressions.kernels import FailingRow
from headrace.expressions.signature import Args, Builder, Kernel, NativeOp, Resolver
from headrace.kernels import buffers, keys, structures
from headrace.kernels.buffers import Bytes, Int64s

KEY_TEXT: Final = "key_text"
ROW_KEY_TEXT: Final = "row_key_text"
_MALFORMED: Final = "22P02"


def _resolve(name: str, args: Args) -> NativeOp | None:
    return NativeOp(name, types.TEXT) if len(args) == 2 and args[1].literal else None


def _resolve_row(name: str, args: Args) -> NativeOp | None:
    return NativeOp(name, types.TEXT) if args else None


def _build(expr: Native) -> tuple[Kernel, Sequence[Expr]]:
    form = expr.args[1]
    assert isinstance(form, Literal), "resolved with a constant"
    assert form.text is not None, "resolved with a form"
    read = form.text

    def run(args: list[pa.Array]) -> pa.Array:
        try:
            content, starts = structures.contents(args[0], read, keys.encode_keys)
        except ValueError as error:
            # The type was altered; that is checked for before the error is acted on.
            raise FailingRow(str(error), 0, _MALFORMED) from None
        return _hex(content, starts, buffers.validity(args[0]))

    return run, expr.args[:1]


def _build_row(expr: Native) -> tuple[Kernel, Sequence[Expr]]:
    oids = [arg.oid for arg in expr.args]

    def run(args: list[pa.Array]) -> pa.Array:
        packed = keys.pack_keys(args, oids)
        return _hex(packed.data, packed.bounds, buffers.all_valid(len(args[0])))

    return run, expr.args


def _hex(content: Bytes, starts: Int64s, valid: Bytes) -> pa.Array:
    if len(content) > buffers.TEXT_BYTES_MAX // 2:
        raise ValueError("too many rows for one text column")
    digits = np.frombuffer(binascii.hexlify(content.tobytes()), np.uint8)
    return buffers.make_text((2 * starts).astype(np.int32), digits, valid, pa.string())


RESOLVERS: Final[dict[str, Resolver]] = {KEY_TEXT: _resolve, ROW_KEY_TEXT: _resolve_row}
BUILDERS: Final[dict[str, Builder]] = {KEY_TEXT: _build, ROW_KEY_TEXT: _build_row}
