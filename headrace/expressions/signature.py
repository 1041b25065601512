"""Descriptions of native operators: argument types, name, result type, whether they may raise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from headrace.expressions.ir import Expr, Native
from headrace.types import FLOAT4, FLOAT8, INT2, INT4, INT8, TEXT, VARCHAR


@dataclass(frozen=True, slots=True)
class TypeRef:
    """The type of an argument.

    Attributes:
        oid: Postgres type (domains resolved).
        typmod: Type modifier, -1 if none.
        bytewise: The collation sorts by bytes ("C", "POSIX"), or there is no collation.
        deterministic: The collation treats texts as equal only if their bytes are equal.
        literal: The argument's text if it is a constant; None if it is not, or is NULL.
        enum: The type is an enum; values are equal exactly if their labels (their texts) are.
        utf8: The database counts characters and bytes as Headrace does.
    """

    oid: int
    typmod: int = -1
    bytewise: bool = True
    deterministic: bool = True
    literal: str | None = None
    enum: bool = False
    utf8: bool = True


@dataclass(frozen=True, slots=True)
class NativeOp:
    """A native operator: its name for ``ir.Native``, its result type, and whether it may raise."""

    name: str
    oid: int
    typmod: int = -1
    may_raise: bool = False


Args = Sequence[TypeRef]

INTS: Final = (INT2, INT4, INT8)
FLOATS: Final = (FLOAT4, FLOAT8)
TEXTS: Final = (TEXT, VARCHAR)
Resolver = Callable[[str, Args], NativeOp | None]
"""Resolves an operator's name and arguments; None if Postgres must compute it."""
Kernel = Callable[[list[pa.Array]], pa.Array]
Builder = Callable[[Native], tuple[Kernel, Sequence[Expr]]]
"""Builds an expression's kernel, and returns the arguments it takes; constants may be in it."""
