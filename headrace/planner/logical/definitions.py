"""Columns that are defined by expressions over a node instead of being computed by it.

A definition reads columns of its node and earlier definitions.  An expression reads some
definitions whenever it is evaluated, and some only in one branch of a conditional.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.planner.logical.nodes import Col
from headrace.planner.logical.scalar import Call, Expr, Ref, raises, refs, substitute

Definition = tuple[Col, Expr]
Definitions = dict[int, Definition]
"""By column id, in order."""
SIZE_MAX: Final = 500
"""Calls in an expression that is repeated in a conditional; a larger one is computed once."""


def reads(exprs: Iterable[Expr]) -> frozenset[int]:
    """Return the columns that ``exprs`` read."""
    return frozenset().union(*map(refs, exprs))


def reachable(late: Definitions, ids: Iterable[int]) -> Definitions:
    """Return the definitions ``ids`` and those that they read."""
    found = set(ids)
    for i in reversed(late):
        if i in found:
            found |= refs(late[i][1])
    return {i: d for i, d in late.items() if i in found}


def certain(expr: Expr) -> frozenset[int]:
    """Return the columns that are read wherever ``expr`` is evaluated."""
    if not isinstance(expr, Call):
        return refs(expr)
    first = expr.symbol in ("case", "and", "or", "coalesce")
    return frozenset().union(*map(certain, expr.args[:1] if first else expr.args))


def always(exprs: Iterable[Expr], late: Definitions) -> set[int]:
    """Return the definitions that are needed wherever ``exprs`` are evaluated."""
    found = set().union(*map(certain, exprs)) & late.keys()
    for i in reversed(late):
        if i in found:
            found |= certain(late[i][1]) & late.keys()
    return found


def expanded(expr: Expr, late: Definitions) -> Expr:
    """Substitute all definitions for their columns in ``expr``."""
    read = reachable(late, refs(expr))
    whole: dict[int, Expr] = {}
    for i, (_, definition) in read.items():
        whole[i] = substitute(definition, whole)
    return substitute(expr, whole) if whole else expr


def too_large(exprs: Iterable[Expr], late: Definitions) -> set[int]:
    """Return the definitions that ``exprs`` read and that are too large to substitute."""
    sizes = _sizes(late)
    return {i for i in reads(exprs) & late.keys() if sizes[i] > SIZE_MAX}


def total_size(exprs: Iterable[Expr], late: Definitions) -> int:
    """Return the number of calls in ``exprs`` once all definitions are substituted."""
    sizes = _sizes(late)
    return sum(_size(e, sizes) for e in exprs)


def _sizes(late: Definitions) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for i, (_, expr) in late.items():
        sizes[i] = _size(expr, sizes)
    return sizes


def _size(expr: Expr, sizes: dict[int, int]) -> int:
    if isinstance(expr, Call):
        return 1 + sum(_size(a, sizes) for a in expr.args)
    return sizes.get(expr.id, 0) if isinstance(expr, Ref) else 0


def null_over_nulls(expr: Expr) -> bool:
    """Return whether ``expr`` is NULL, and cannot fail, if all columns are NULL."""
    if isinstance(expr, Ref):
        return True
    if not isinstance(expr, Call) or not expr.strict:
        return False
    found = [null_over_nulls(a) for a in expr.args]
    return any(found) and all(f or not raises(a) for f, a in zip(found, expr.args, strict=True))
