"""Nodes that carry the numbers of their input rows to their output.

A collection does not say which input rows made an output row.  So each input gets one more column,
the number of the row, and the node passes it on like any column that it does not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from headrace.collections import plan
from headrace.expressions.ir import Column, Expr, remap
from headrace.types import INT8, Field, Schema

NUMBER: Final = Field("number of the row: no identifier of Postgres is as long as that here", INT8)

RowWise = (
    plan.FilterSpec
    | plan.MapSpec
    | plan.FusedSpec
    | plan.ExpandSpec
    | plan.FlatMapSpec
    | plan.TemporalSpec
    | plan.CalendarSpec
)
"""Nodes whose output rows follow from one input row each."""


def row_wise(node: RowWise, columns: Schema) -> tuple[RowWise, int]:
    """Return ``node`` over its input and the number; and the place of the number in its output.

    ``columns``: of the input, without the number, which comes last.
    """
    width = len(columns)
    if isinstance(node, plan.FilterSpec):
        return replace(node, schema=(*columns, NUMBER)), width
    if isinstance(node, plan.MapSpec):
        return _mapped(node, width), len(node.expressions)
    if isinstance(node, plan.FusedSpec):
        return _fused(node, columns)
    schema = (*columns, NUMBER, *node.schema[width:])
    if isinstance(node, plan.TemporalSpec):
        # The clock is the column after the input's.
        tests = tuple(replace(t, test=_moved((t.test,), width, 1)[0]) for t in node.tests)
        return replace(node, tests=tests, schema=schema), width
    return replace(node, schema=schema), width


def pairs(node: plan.JoinSpec, left: Schema, right: Schema) -> tuple[plan.JoinSpec, int, int]:
    """Return a join over the inputs and their numbers, and the places of the numbers.

    A semi or anti join outputs the number of the left only; its right has none.
    """
    width = len(left)
    residual = _moved(node.residual, width, len(right))
    if node.left_only:
        return replace(node, residual=residual, schema=(*left, NUMBER)), width, -1
    schema = (*node.schema[:width], NUMBER, *node.schema[width:], NUMBER)
    made = replace(node, residual=residual, schema=schema)
    return made, width, width + 1 + len(right)


def matches(node: plan.JoinSpec, left: Schema, right: Schema) -> tuple[plan.JoinSpec, int, int]:
    """Return an inner join of the rows that a semi join compares, as ``pairs`` does.

    ``compared`` is left out: the caller tests it.
    """
    made, _, _ = pairs(
        replace(node, op="inner", compared=None, schema=(*left, *right)), left, right
    )
    return made, len(left), len(left) + 1 + len(right)


def _mapped(node: plan.MapSpec, width: int) -> plan.MapSpec:
    expressions = (*node.expressions, Column(width, INT8))
    return replace(node, expressions=expressions, schema=(*node.schema, NUMBER))


def _fused(node: plan.FusedSpec, columns: Schema) -> tuple[plan.FusedSpec, int]:
    steps: list[plan.FilterSpec | plan.MapSpec] = []
    for step in node.steps:
        if isinstance(step, plan.FilterSpec):
            steps.append(replace(step, schema=(*columns, NUMBER)))
        else:
            steps.append(_mapped(step, len(columns)))
            columns = step.schema
    return replace(node, steps=tuple(steps), schema=(*columns, NUMBER)), len(columns)


def _moved(predicates: Sequence[Expr], width: int, more: int) -> tuple[Expr, ...]:
    """Return predicates over ``width`` and ``more`` columns, with a number between the two."""
    places = {n: n if n < width else n + 1 for n in range(width + more)}
    return tuple(remap(e, places) for e in predicates)
