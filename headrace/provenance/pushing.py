"""Equalities of a node's output, as equalities of its inputs.

Invariant: the rows of the output that satisfy the equalities follow from the rows of the inputs
that satisfy the returned ones.  The node may output other rows over fewer inputs (a left join has
unmatched rows); none of these satisfies the equalities of the output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.collections import plan
from headrace.expressions.ir import Column, Expr
from headrace.provenance.values import AllowedValues, Equalities, merged
from headrace.types import Schema


def of_inputs(
    node: plan.Node, schemas: Sequence[Schema], equalities: Equalities
) -> list[dict[int, AllowedValues]]:
    """Return the equalities of each input of ``node``, whose columns are ``schemas``."""
    match node:
        case plan.SinkSpec() | plan.FilterSpec() | plan.DistinctSpec():
            return [dict(equalities)]
        case plan.UnionSpec() | plan.SetOpSpec():
            return [_of_types(equalities, schema) for schema in schemas]
        case plan.MapSpec() | plan.FusedSpec():
            return [_through_steps(node, equalities)]
        case plan.TemporalSpec() | plan.CalendarSpec() | plan.FlatMapSpec():
            return [_some(equalities, range(len(schemas[0])))]
        case plan.ExpandSpec():
            return [_expanded(node, len(schemas[0]), equalities)]
        case plan.ReduceSpec():
            keys = enumerate(node.keys)
            return [{key: equalities[place] for place, key in keys if place in equalities}]
        case plan.TopKSpec() | plan.WindowSpec():
            return [_some(equalities, node.keys)]
        case plan.JoinSpec():
            return list(_of_join(node, schemas, equalities))
        case _:
            return [{} for _ in plan.inputs(node)]


def from_matches(
    node: plan.JoinSpec, schemas: Sequence[Schema], port: int, found: Equalities
) -> dict[int, AllowedValues]:
    """Return the equalities of the rows of ``port`` that match rows whose key has values ``found``.

    ``found``: by column of the other side.
    """
    keys = (node.left_keys, node.right_keys)
    out: dict[int, AllowedValues] = {}
    for number, (mine, other) in enumerate(zip(keys[port], keys[1 - port], strict=True)):
        if other not in found:
            continue
        values = found[other].as_type(schemas[port][mine].oid)
        if values is None:
            continue
        if not (node.null_safe and node.null_safe[number]):  # a NULL matches nothing
            values = AllowedValues(values.oid, values.texts - {None})
        out[mine] = values
    return out


def demands(node: plan.JoinSpec, left: int, equalities: Equalities) -> tuple[bool, bool]:
    """Return for each side whether a row with NULLs in its place satisfies no equality of it."""
    out = [False, node.left_only]
    for place, values in equalities.items():
        if values.whole:
            out[place >= left] = True
    return out[0], out[1]


def _of_types(equalities: Equalities, schema: Schema) -> dict[int, AllowedValues]:
    found = {place: values.as_type(schema[place].oid) for place, values in equalities.items()}
    return {place: values for place, values in found.items() if values is not None}


def _some(equalities: Equalities, places: Iterable[int]) -> dict[int, AllowedValues]:
    wanted = set(places)
    return {place: values for place, values in equalities.items() if place in wanted}


def _through_steps(
    node: plan.MapSpec | plan.FusedSpec, equalities: Equalities
) -> dict[int, AllowedValues]:
    steps = node.steps if isinstance(node, plan.FusedSpec) else (node,)
    out = dict(equalities)
    for step in reversed(steps):
        if isinstance(step, plan.MapSpec):
            out = _through(step.expressions, out)
    return out


def _through(expressions: Sequence[Expr], equalities: Equalities) -> dict[int, AllowedValues]:
    out: dict[int, AllowedValues] = {}
    for place, values in equalities.items():
        expression = expressions[place]
        if isinstance(expression, Column) and expression.oid == values.oid:
            out = merged(out, {expression.index: values})
    return out


def _expanded(
    node: plan.ExpandSpec, width: int, equalities: Equalities
) -> dict[int, AllowedValues]:
    out = _some(equalities, range(width))
    for place, key in enumerate(node.keys, width):
        values = equalities.get(place)
        if values is not None and values.whole:  # NULL stands for a key that the set lacks
            out = merged(out, {key: values})
    return out


def _of_join(
    node: plan.JoinSpec, schemas: Sequence[Schema], equalities: Equalities
) -> tuple[dict[int, AllowedValues], dict[int, AllowedValues]]:
    width = len(schemas[0])
    needs_left, needs_right = demands(node, width, equalities)
    left = {place: v for place, v in equalities.items() if place < width}
    right = {place - width: v for place, v in equalities.items() if place >= width}
    if node.op == "left" and not needs_right:
        right = {}
    if node.op == "full":
        left = left if needs_left else {}
        right = right if needs_right else {}
    right = merged(right, from_matches(node, schemas, 1, left))
    # An unmatched row may be output although no row of the other side has its key.
    if node.op == "inner" or (node.op in ("left", "full") and needs_right):
        left = merged(left, from_matches(node, schemas, 0, right))
    return left, right
