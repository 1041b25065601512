"""Which expressions and plans may fail on a row in earnest, so that it matters when they run."""

from __future__ import annotations

from typing import Final

from headrace.planner.logical.nodes import Again, Node, children, expressions
from headrace.planner.logical.scalar import (
    Call,
    Const,
    Expr,
    any_call,
    reads_clock,
    refs,
)

_OVERFLOW: Final = frozenset(
    {
        *("+", "-", "*", "||", "abs", "pg_catalog.date_trunc", "pg_catalog.date_part"),
        *(
            "pg_catalog.round",
            "pg_catalog.ceil",
            "pg_catalog.ceiling",
            "pg_catalog.floor",
        ),
    }
)
_ZERO: Final = frozenset("0.-")


def fails(expr: Expr) -> bool:
    """Whether ``expr`` may fail otherwise than by a number out of range."""
    return any_call(expr, _fails)


def _fails(call: Call) -> bool:
    if not call.raises or call.symbol in _OVERFLOW:
        return False
    if call.native is not None and call.symbol in ("/", "%"):
        divisor = call.args[1]
        if isinstance(divisor, Const):
            return divisor.text is not None and set(divisor.text) <= _ZERO
        return True
    # What is computed of the clock alone, and a constant, is in range.
    return not reads_clock(call) or bool(refs(call))


def serious(node: Node) -> bool:
    """Whether something in the plan may fail, so that it runs only for rows that ask for it.

    Numbers out of range do not count: each query that adds or multiplies would be computed by domain.
    """
    if isinstance(node, Again):
        return node.fails
    return any(map(fails, expressions(node))) or any(map(serious, children(node)))
