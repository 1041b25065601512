"""How an operator of ours is described: its argument types, its name, its temper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from headrace.expressions.ir import Expr, Native
from headrace.types import FLOAT4, FLOAT8, INT2, INT4, INT8, TEXT, VARCHAR


@dataclass(frozen=True, slots=True)
class TypeRef:
    """Type of an argument.

    Attributes:
        oid: Postgres type (domains resolved).
        typmod: Its modifier, -1 if none.
        bytewise: Its collation sorts by bytes ("C", "POSIX"), or it has no collation.
        deterministic: Its collation calls texts equal only if their bytes are.
        literal: The argument's text if it is a constant, None if it is not, or NULL.
        enum: It is an enum: equal exactly if its labels are, which are its texts.
        utf8: The database counts characters and bytes as we do.
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
    """An operator of ours: its name for ``ir.Native``, its result type, and its temper."""

    name: str
    oid: int
    typmod: int = -1
    may_raise: bool = False


Args = Sequence[TypeRef]

INTS: Final = (INT2, INT4, INT8)
FLOATS: Final = (FLOAT4, FLOAT8)
TEXTS: Final = (TEXT, VARCHAR)
Resolver = Callable[[str, Args], NativeOp | None]
"""Of an operator's name and arguments: what we make of it, None if Postgres computes it."""
Kernel = Callable[[list[pa.Array]], pa.Array]
Builder = Callable[[Native], tuple[Kernel, Sequence[Expr]]]
"""Of an expression: its kernel, and the arguments that this takes (constants may be in it)."""
