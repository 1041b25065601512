"""Queries that give at most one row, with any rows in their tables.

SELECT INTO takes the first of several rows, and their order may be undefined.  The scalar subquery
that replaces it raises an error instead, so the proof must not depend on the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from headrace import types as t
from headrace.planner.analyse.check import RELATION, SUBQUERY, WITH_TIES
from headrace.planner.analyse.nodetree import Node
from headrace.postgres.connect import Connection
from headrace.postgres.identity import NOT_NULL

_KEYS: Final = f"""
SELECT pg_catalog.array_agg(i.indkey[k] ORDER BY k)::pg_catalog.int8[],
       pg_catalog.array_agg(o.opcfamily::pg_catalog.int8 ORDER BY k),
       pg_catalog.array_agg(i.indcollation[k]::pg_catalog.int8 ORDER BY k),
       pg_catalog.bool_and({NOT_NULL})
  FROM pg_catalog.pg_index i
  JOIN pg_catalog.pg_class c ON c.oid = i.indrelid
  CROSS JOIN pg_catalog.generate_series(0, i.indnkeyatts - 1) k
  JOIN pg_catalog.pg_opclass o ON o.oid = i.indclass[k]
  JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k]
 WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid
   AND i.indpred IS NULL AND i.indexprs IS NULL
   AND (c.relkind = 'p' OR c.relkind = 'r' AND NOT c.relhassubclass)
 GROUP BY i.indexrelid"""  # noqa: S608  our own constant
_EQUALS: Final = """
SELECT a.amopfamily::pg_catalog.int8 FROM pg_catalog.pg_amop a
 WHERE a.amopopr = %s AND a.amopmethod = 403 AND a.amopstrategy = 3"""
_INT8_OF_INT4: Final = 481
_INNER, _LEFT = 0, 1
"""``jointype``."""


@dataclass(frozen=True, slots=True)
class _Key:
    """A unique index: for each column its number, operator family and collation."""

    columns: tuple[tuple[int, int, int], ...]
    not_null: bool


@dataclass(frozen=True, slots=True)
class _Equality:
    """A condition ``column = value`` met by every row that no outer join has NULL-extended."""

    table: int
    column: int
    operator: int
    collation: int
    needs: frozenset[int]
    """Tables whose rows the value depends on."""


class Cardinality:
    """Proves that queries return at most one row."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._keys: dict[int, list[_Key]] = {}
        self._families: dict[int, frozenset[int]] = {}

    def at_most_one(self, query: Node) -> bool:
        """Return whether ``query`` returns at most one row."""
        if (
            query.flag("hasTargetSRFs")
            or query.node("setOperations")
            or query.nodes("groupingSets")
        ):
            return False
        if query.flag("hasAggs") and not query.nodes("groupClause"):
            return True
        tables = list(_tables(query.child("jointree")))
        return not tables or self._pinned(query, tables) or self._first(query, tables)

    def _pinned(self, query: Node, tables: list[int]) -> bool:
        """Return whether conditions leave each table at most one row, given the other tables'."""
        found = list(_equalities(query.child("jointree"), frozenset()))
        pinned: set[int] = set()
        while True:
            more = {
                n for n in tables if n not in pinned and self._is_pinned(query, n, found, pinned)
            }
            pinned |= more
            if not more:
                return pinned.issuperset(tables)

    def _is_pinned(self, query: Node, table: int, found: list[_Equality], pinned: set[int]) -> bool:
        entry = query.nodes("rtable")[table - 1]
        if entry.number("rtekind") == SUBQUERY:
            return self.at_most_one(entry.child("subquery"))
        usable = [e for e in found if e.table == table and e.needs <= pinned]
        return any(
            all(
                any(
                    e.column == column
                    and e.collation in (collation, 0)
                    and family in self._family(e.operator)
                    for e in usable
                )
                for column, family, collation in key.columns
            )
            for key in self._of(entry)
        )

    def _first(self, query: Node, tables: list[int]) -> bool:
        """Return whether the query has ``LIMIT 1`` and a total order, which selects the row."""
        if not _is_limit_one(query) or query.nodes("groupClause") or query.nodes("distinctClause"):
            return False
        shown = {e.number("ressortgroupref"): e.child("expr") for e in query.nodes("targetList")}
        order = [(shown[c.number("tleSortGroupRef")], c) for c in query.nodes("sortClause")]
        return all(
            any(
                key.not_null
                and all(any(self._orders(*by, n, column) for by in order) for column in key.columns)
                for key in self._of(query.nodes("rtable")[n - 1])
            )
            for n in tables
        )

    def _orders(self, expr: Node, clause: Node, table: int, column: tuple[int, int, int]) -> bool:
        number, family, collation = column
        return (
            expr.kind == "VAR"
            and expr.number("varlevelsup") == 0
            and (expr.number("varno"), expr.number("varattno")) == (table, number)
            and expr.number("varcollid") == collation
            and family in self._family(clause.number("eqop"))
        )

    def _of(self, entry: Node) -> list[_Key]:
        """Return the unique keys of a table."""
        if entry.number("rtekind") != RELATION or entry.node("tablesample"):
            return []
        oid = entry.number("relid")
        if oid not in self._keys:
            rows: list[Any] = self._conn.execute(_KEYS, (oid,)).fetchall()
            self._keys[oid] = [
                _Key(tuple(zip(columns, families, collations, strict=True)), not_null)
                for columns, families, collations, not_null in rows
            ]
        return self._keys[oid]

    def _family(self, operator: int) -> frozenset[int]:
        """Return the B-tree families in which ``operator`` is equality."""
        if operator not in self._families:
            rows: list[Any] = self._conn.execute(_EQUALS, (operator,)).fetchall()
            self._families[operator] = frozenset(int(oid) for (oid,) in rows)
        return self._families[operator]


def _tables(item: Node) -> Iterator[int]:
    """Yield the range-table indexes of the relations that ``item`` of a FROM clause joins."""
    if item.kind == "RANGETBLREF":
        yield item.number("rtindex")
    for part in (*item.nodes("fromlist"), item.node("larg"), item.node("rarg")):
        if part is not None:
            yield from _tables(part)


def _equalities(item: Node, kept: frozenset[int]) -> Iterator[_Equality]:
    """Yield the equalities in a FROM clause; they do not filter the tables ``kept``."""
    if item.kind == "JOINEXPR":
        left, right = item.child("larg"), item.child("rarg")
        inner = item.number("jointype") == _INNER
        if not inner and item.number("jointype") != _LEFT:
            return
        here = kept if inner else kept | set(_tables(left))
        yield from (e for e in _of_condition(item.node("quals")) if e.table not in here)
        yield from _equalities(left, kept)
        yield from _equalities(right, kept)
    elif item.kind == "FROMEXPR":
        yield from _of_condition(item.node("quals"))
        for part in item.nodes("fromlist"):
            yield from _equalities(part, kept)


def _of_condition(condition: Node | None) -> Iterator[_Equality]:
    if condition is None:
        return
    if condition.kind == "BOOLEXPR" and condition.text("boolop") == "and":
        for part in condition.nodes("args"):
            yield from _of_condition(part)
    if condition.kind != "OPEXPR" or len(condition.nodes("args")) != 2:
        return
    left, right = condition.nodes("args")
    for side, value in ((left, right), (right, left)):
        column = side.child("arg") if side.kind == "RELABELTYPE" else side
        if column.kind == "VAR" and column.number("varlevelsup") == 0:
            yield _Equality(
                column.number("varno"),
                column.number("varattno"),
                condition.number("opno"),
                condition.number("inputcollid"),
                frozenset(_needed(value, 0)),
            )


def _needed(value: object, level: int) -> Iterator[int]:
    """Yield the tables on whose rows ``value`` depends, of the query ``level`` levels up."""
    if isinstance(value, list):
        for each in value:
            yield from _needed(each, level)
    elif isinstance(value, Node):
        if value.kind == "VAR" and value.number("varlevelsup") == level:
            yield value.number("varno")
        inner = level + (value.kind == "QUERY")
        for each in value.fields.values():
            yield from _needed(each, inner)


def _is_limit_one(query: Node) -> bool:
    """Return whether the query has LIMIT 1, without WITH TIES."""
    limit = query.node("limitCount")
    if limit is None or query.text("limitOption") in WITH_TIES:
        return False
    if limit.kind == "FUNCEXPR" and limit.number("funcid") == _INT8_OF_INT4:
        [limit] = limit.nodes("args")
    value = limit.fields.get("constvalue")
    return (
        limit.kind == "CONST"
        and limit.number("consttype") in (t.INT4, t.INT8)
        and isinstance(value, bytes)
        and int.from_bytes(value, "little") == 1
    )
