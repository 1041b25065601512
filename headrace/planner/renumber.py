"""Copies of plans with other column ids: ids are unique in a plan, also where parts repeat."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

from headrace.errors import UnsupportedError
from headrace.planner.logical import Col, Node, Scan, children
from headrace.planner.scalar import Const, Ref
from headrace.planner.tables import Table, TableColumn

T = TypeVar("T")
_IDS_MAX: Final = 1_000_000
"""A minute of planning."""
_LEAVES = (str, int, bool, type(None), Const, Table, TableColumn)


def defined(node: Node) -> set[int]:
    """Ids of all columns that ``node`` or something below it makes or shows."""
    found = {c.id for c in node.columns}
    if isinstance(node, Scan):
        found |= {c.id for c, _ in node.hidden}
    for child in children(node):
        found |= defined(child)
    return found


def renumbered(node: Node, numbers: Iterator[int]) -> Node:
    """``node`` with new ids for all its own columns; free references stay.

    Raises:
        UnsupportedError: so many copies have been made that nobody would wait for the plan.
    """
    mapping = {i: next(numbers) for i in sorted(defined(node))}
    if max(mapping.values(), default=0) > _IDS_MAX:
        raise UnsupportedError(
            "subqueries nested this deeply are not supported",
            detail="Each one that reads columns of the query around it is computed for that query's"
            f" rows: in all, over {_IDS_MAX} columns of intermediate results.",
            hint="Write some of them as joins or groups, or make views of parts of the query.",
        )
    return mapped(node, mapping)


def mapped(value: T, mapping: Mapping[int, int]) -> T:
    """``value`` (plan, expression, column) with column ids replaced."""
    found: Any = value
    if isinstance(value, Col | Ref):
        found = dataclasses.replace(value, id=mapping.get(value.id, value.id))
    elif isinstance(value, tuple):
        found = tuple(mapped(v, mapping) for v in value)
    elif isinstance(value, frozenset):
        found = frozenset(mapped(v, mapping) for v in value)
    elif not isinstance(value, _LEAVES) and dataclasses.is_dataclass(value):
        new = {
            f.name: mapped(getattr(value, f.name), mapping)
            for f in dataclasses.fields(value)
        }
        found = dataclasses.replace(value, **new)  # type: ignore[type-var]
    return found  # type: ignore[no-any-return]
