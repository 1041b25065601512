"""Numbers of the columns of a result table, where it is replaced by the query of its view.

An altered view may have lost columns, or moved them to the end of its table.  Then attribute
numbers of the table are not places in the query's target list, which references to a subquery use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from headrace.planner.analyse.nodetree import Node as Tree
from headrace.postgres.connect import Connection

_NUMBERS: Final = """
SELECT pg_catalog.array_agg(a.attnum::int ORDER BY a.attnum) FROM pg_catalog.pg_attribute a
 WHERE a.attrelid = %s::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped"""


def numbers(conn: Connection, oid: int) -> list[int]:
    """Return the attribute numbers of a table's columns that exist, in order."""
    row: Any = conn.execute(_NUMBERS, (oid,)).fetchone()
    return list(row[0] or ())


def renumber(query: Tree, index: int, found: Sequence[int]) -> None:
    """Let references to range-table entry ``index`` of ``query`` name places, not attributes.

    ``found``: the attribute number at each place.
    """
    places = {number: place for place, number in enumerate(found, 1)}
    if all(number == place for number, place in places.items()):
        return
    for var in _references(query, index):
        number = var.number("varattno")
        if number > 0:
            # A join in a view of a user may still list a dropped column: no query reads it.
            var.fields["varattno"] = str(places.get(number, len(found) + 1))
    names = query.nodes("rtable")[index - 1].child("eref")
    called = names.items("colnames")
    names.fields["colnames"] = [called[n - 1] for n in found if n <= len(called)]


def _references(query: Tree, index: int) -> Iterator[Tree]:
    """Yield the columns of range-table entry ``index`` of ``query``, also in its subqueries."""
    stack: list[tuple[object, int]] = [(value, 0) for value in query.fields.values()]
    seen: set[tuple[int, int]] = set()
    while stack:
        value, level = stack.pop()
        if isinstance(value, list):
            stack.extend((each, level) for each in value)
        elif isinstance(value, Tree) and (id(value), level) not in seen:
            seen.add((id(value), level))
            if (value.kind, value.number("varno"), value.number("varlevelsup")) == (
                "VAR",
                index,
                level,
            ):
                yield value
            deeper = level + (value.kind == "QUERY")
            stack.extend((each, deeper) for each in value.fields.values())
