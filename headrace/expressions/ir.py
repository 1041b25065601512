"""The expression tree after binding: frozen, typed, serialisable; no SQL parsing.

There are four kinds of node.  ``Column`` and ``Literal`` are leaves.  Headrace's kernels compute
``Native`` (tests prove equality with Postgres).  The user's Postgres evaluates ``Remote`` in
batches.  An argument of a ``Native`` conditional (``case``, ``coalesce``, ``and``, ``or``) that may
raise is computed only for the rows that need it (``expressions.conditional``).
"""

from __future__ import annotations

from headrace.types import PlanPart


class Column(PlanPart, frozen=True):
    """Column ``index`` of the input batch."""

    index: int
    oid: int
    typmod: int = -1
    collation: int = 0


class Literal(PlanPart, frozen=True):
    """A constant, as the text that Postgres prints under the pinned settings; ``None`` is NULL."""

    text: str | None
    oid: int
    typmod: int = -1
    collation: int = 0


class Native(PlanPart, frozen=True):
    """An operator or function computed by a kernel; ``expressions.native`` defines the names."""

    op: str
    args: tuple[Expr, ...]
    oid: int
    typmod: int = -1
    collation: int = 0


class Remote(PlanPart, frozen=True):
    """SQL evaluated by Postgres; ``$1`` … ``$n`` stand for ``args``, already of the right type.

    ``trusted`` is false if a function that is not built in takes part.  Such an expression is
    evaluated only on a connection of the unprivileged role ``headrace_eval``.
    """

    sql: str
    args: tuple[Expr, ...]
    oid: int
    typmod: int = -1
    collation: int = 0
    trusted: bool = True


Expr = Column | Literal | Native | Remote


def columns_of(expr: Expr) -> frozenset[int]:
    """Return the indexes of the input columns that ``expr`` reads."""
    match expr:
        case Column(index=index):
            return frozenset((index,))
        case Literal():
            return frozenset()
        case Native(args=args) | Remote(args=args):
            return frozenset().union(*(columns_of(a) for a in args))


def remap(expr: Expr, mapping: dict[int, int]) -> Expr:
    """Return ``expr`` with every column index replaced through ``mapping``."""
    match expr:
        case Column():
            return Column(mapping[expr.index], expr.oid, expr.typmod, expr.collation)
        case Literal():
            return expr
        case Native():
            args = tuple(remap(a, mapping) for a in expr.args)
            return Native(expr.op, args, expr.oid, expr.typmod, expr.collation)
        case Remote():
            args = tuple(remap(a, mapping) for a in expr.args)
            return Remote(expr.sql, args, expr.oid, expr.typmod, expr.collation, expr.trusted)
