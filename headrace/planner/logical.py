"""Logical plan nodes: frozen and typed, without behaviour beyond their columns.

Columns have plan-wide unique ids; a node's output order matters only at the root, at the
inputs of ``Union`` and for ``Values``.  All joins are inner joins (outer ones are refused).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import assert_never

from headrace.planner.scalar import Expr, Ref
from headrace.planner.tables import Table, TableColumn


@dataclass(frozen=True, slots=True)
class Col:
    """An output column."""

    id: int
    name: str
    oid: int
    typmod: int = -1
    collation: int = 0
    qualifier: str = ""

    @property
    def ref(self) -> Ref:
        """A reference to this column."""
        label = f"{self.qualifier}.{self.name}" if self.qualifier else self.name
        return Ref(self.id, self.oid, self.typmod, self.collation, label)


@dataclass(frozen=True, slots=True)
class Scan:
    """The rows of a base table for which all ``predicates`` are true.

    ``hidden`` columns are read by the predicates only.
    """

    table: Table
    alias: str
    fields: tuple[tuple[Col, TableColumn], ...]
    predicates: tuple[Expr, ...] = ()
    hidden: tuple[tuple[Col, TableColumn], ...] = ()

    @property
    def columns(self) -> tuple[Col, ...]:
        """Output columns."""
        return tuple(c for c, _ in self.fields)


@dataclass(frozen=True, slots=True)
class Values:
    """Constant rows, as output text."""

    columns: tuple[Col, ...]
    rows: tuple[tuple[str | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Filter:
    """Rows for which all ``predicates`` are true."""

    input: Node
    predicates: tuple[Expr, ...]

    @property
    def columns(self) -> tuple[Col, ...]:
        """Output columns."""
        return self.input.columns


@dataclass(frozen=True, slots=True)
class Project:
    """One output column per expression."""

    input: Node
    items: tuple[tuple[Col, Expr], ...]

    @property
    def columns(self) -> tuple[Col, ...]:
        """Output columns."""
        return tuple(c for c, _ in self.items)


@dataclass(frozen=True, slots=True)
class Join:
    """Pairs of rows for which all of ``condition`` is true."""

    left: Node
    right: Node
    condition: tuple[Expr, ...] = ()

    @property
    def columns(self) -> tuple[Col, ...]:
        """Output columns."""
        return self.left.columns + self.right.columns


@dataclass(frozen=True, slots=True)
class Agg:
    """One aggregate: ``function`` as ``collections.plan.Aggregate`` has it."""

    column: Col
    function: str
    argument: Expr | None = None
    filter: Expr | None = None
    distinct: bool = False
    sql: str = ""
    name: str = ""
    """Name of the SQL aggregate, for people."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Groups by ``keys``; without keys always exactly one row."""

    input: Node
    keys: tuple[tuple[Col, Expr], ...]
    aggs: tuple[Agg, ...]

    @property
    def columns(self) -> tuple[Col, ...]:
        """Output columns: keys, then aggregates."""
        return (*(c for c, _ in self.keys), *(a.column for a in self.aggs))


@dataclass(frozen=True, slots=True)
class Distinct:
    """Each distinct row once."""

    input: Node

    @property
    def columns(self) -> tuple[Col, ...]:
        """Output columns."""
        return self.input.columns


@dataclass(frozen=True, slots=True)
class Union:
    """All rows of all inputs; columns correspond by position."""

    inputs: tuple[Node, ...]
    columns: tuple[Col, ...]


Node = Scan | Values | Filter | Project | Join | Aggregate | Distinct | Union


def children(node: Node) -> tuple[Node, ...]:
    """Inputs of ``node``."""
    match node:
        case Scan() | Values():
            return ()
        case Join():
            return (node.left, node.right)
        case Union():
            return node.inputs
        case Filter() | Project() | Aggregate() | Distinct():
            return (node.input,)
        case _:
            assert_never(node)


def with_children(node: Node, new: tuple[Node, ...]) -> Node:
    """``node`` over other inputs."""
    if new == children(node):
        return node
    match node:
        case Scan() | Values():
            return node
        case Join():
            return dataclasses.replace(node, left=new[0], right=new[1])
        case Union():
            return dataclasses.replace(node, inputs=new)
        case Filter() | Project() | Aggregate() | Distinct():
            return dataclasses.replace(node, input=new[0])
        case _:
            assert_never(node)


def ids(node: Node) -> frozenset[int]:
    """Ids of the output columns."""
    return frozenset(c.id for c in node.columns)
