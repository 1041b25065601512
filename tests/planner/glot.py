"""Lineage by sqlglot's own reading and rules, for comparison with Headrace's."""

from __future__ import annotations

from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.lineage import Node, lineage

Columns = set[tuple[str, str]]


def origins(
    query: str, columns: list[str], tables: dict[str, dict[str, str]]
) -> list[Columns] | None:
    """Return the table columns behind each column of a query, or None if sqlglot cannot tell.

    ``tables``: types of columns by name, by the table's name.
    """
    out = []
    try:
        for name in columns:
            found: Any = lineage(
                exp.to_identifier(name, quoted=True).sql("postgres"),
                query,
                schema=tables,
                dialect="postgres",
            )
            out.append(_leaves(found))
    except (
        SqlglotError,
        ValueError,
        RecursionError,
        AssertionError,
        AttributeError,
        KeyError,
        TypeError,
    ):
        return None
    return out


def _leaves(node: Node) -> Columns:
    found: Columns = set()
    for each in node.walk():
        if not each.downstream and isinstance(each.expression, exp.Table):
            column = exp.to_column(each.name, dialect="postgres").name
            found.add((each.expression.name, column))
    return found
