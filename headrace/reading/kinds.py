"""The Postgres types of a query's expressions, as far as they are certain.

A construct of another dialect may have an exact equivalent in Postgres for one argument type and
none for another (integer division, a truncated date).  So the translation needs types.  The
builder looks up the columns' types in Postgres.  This module derives the types of expressions over
them, by Postgres' rules.  An uncertain type is ``None``; it is refused where the type matters.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sqlglot import exp
from sqlglot.optimizer.scope import Scope, traverse_scope

INT4_MAX: Final = 2**31 - 1
INT8_MAX: Final = 2**63 - 1

Columns = Mapping[str, Mapping[str, str]]
"""Table (``table_key``) -> column -> name of its Postgres type (``pg_type.typname``)."""


class ValueKind(enum.StrEnum):
    """Groups of types that are translated in the same way."""

    INT = "int"
    BIGINT = "bigint"
    NUMERIC = "numeric"
    FLOAT = "float"
    TEXT = "text"
    BOOL = "bool"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    NULL = "null"
    """The literal NULL, which takes any type."""


INTEGERS: Final = frozenset((ValueKind.INT, ValueKind.BIGINT))
EXACT: Final = INTEGERS | {ValueKind.NUMERIC}
NUMBERS: Final = EXACT | {ValueKind.FLOAT}
_WIDTH: Final = (ValueKind.INT, ValueKind.BIGINT, ValueKind.NUMERIC, ValueKind.FLOAT)

OF_TYPE: Final = {
    **dict.fromkeys(("int2", "int4"), ValueKind.INT),
    "int8": ValueKind.BIGINT,
    "numeric": ValueKind.NUMERIC,
    **dict.fromkeys(("float4", "float8"), ValueKind.FLOAT),
    **dict.fromkeys(("text", "varchar"), ValueKind.TEXT),
    "bool": ValueKind.BOOL,
    "date": ValueKind.DATE,
    "timestamp": ValueKind.TIMESTAMP,
    "timestamptz": ValueKind.TIMESTAMPTZ,
}
"""ValueKind of a Postgres type; other types have none."""
_OF_CAST: Final = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "MEDIUMINT"), ValueKind.INT),
    "BIGINT": ValueKind.BIGINT,
    **dict.fromkeys(("DECIMAL", "BIGDECIMAL"), ValueKind.NUMERIC),
    **dict.fromkeys(("DOUBLE", "FLOAT"), ValueKind.FLOAT),
    **dict.fromkeys(("TEXT", "VARCHAR", "NVARCHAR", "CHAR", "NCHAR"), ValueKind.TEXT),
    "BOOLEAN": ValueKind.BOOL,
    "DATE": ValueKind.DATE,
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMPNTZ", "DATETIME", "DATETIME2"), ValueKind.TIMESTAMP),
    **dict.fromkeys(("TIMESTAMPTZ", "TIMESTAMPLTZ"), ValueKind.TIMESTAMPTZ),
}
_TRUTHS: Final = (exp.Predicate, exp.Connector, exp.Not, exp.Boolean)


def cast_kind(kind: exp.Expr) -> ValueKind | None:
    """Return the kind of a cast to this type."""
    if not isinstance(kind, exp.DataType) or not isinstance(kind.this, exp.DType):
        return None
    return _OF_CAST.get(kind.this.value)


def widest(kinds: Iterable[ValueKind | None]) -> ValueKind | None:
    """Return the common type, as in CASE: numbers are widened, NULL takes any type."""
    found = {kind for kind in kinds if kind is not ValueKind.NULL}
    if not found:
        return ValueKind.NULL
    if len(found) == 1:
        return found.pop()
    numbers = [kind for kind in _WIDTH if kind in found]
    return numbers[-1] if len(numbers) == len(found) else None


class Kinds:
    """The kinds of all expressions of one query."""

    def __init__(
        self,
        tree: exp.Expr,
        columns: Columns,
        of_call: Mapping[type[exp.Expr], Callable[[Any, Kinds], ValueKind | None]],
    ) -> None:
        """Derive all kinds; ``of_call`` has callables for the results of functions, by class."""
        self._columns, self._of_call = columns, of_call
        self._scopes: dict[int, Scope] = {}
        self._known: dict[int, ValueKind | None] = {}
        self._kept: list[exp.Expr] = []
        for scope in traverse_scope(tree):
            for column in scope.columns:
                self._scopes.setdefault(id(column), scope)
        for node in list(tree.walk(bfs=False)):
            self.of(node)

    def of(self, node: exp.Expr) -> ValueKind | None:
        """Return the kind of an expression; None: not certain."""
        if id(node) not in self._known:
            self._kept.append(node)  # An id is unique only while its node is alive.
            self._known[id(node)] = None  # Ends the recursion of a query that reads itself.
            self._known[id(node)] = self._found(node)
        return self._known[id(node)]

    def replace(self, old: exp.Expr, new: exp.Expr) -> None:
        """Give ``new`` the kind of ``old``, which it replaces."""
        self._kept.append(new)
        self._known[id(new)] = self.of(old)

    def sources(self, column: exp.Column) -> list[tuple[Any, Mapping[str, str] | None]]:
        """Return the possible sources of a column, each with its column types if known."""
        scope = self._scopes.get(id(column))
        if scope is None:
            return []
        wanted = column.table.lower()
        return [
            (source, self._table(source) if isinstance(source, exp.Table) else None)
            for name, source in scope.sources.items()
            if not wanted or name.lower() == wanted
        ]

    def _table(self, source: exp.Table) -> Mapping[str, str] | None:
        """Return the columns of a table with their Postgres types; None: renamed or not known."""
        if source.args.get("alias") and source.alias_column_names:
            return None
        return self._columns.get(table_key(source))

    def _found(self, node: exp.Expr) -> ValueKind | None:
        if isinstance(node, exp.Column):
            return self._of_column(node)
        if isinstance(node, exp.Literal):
            return _of_literal(node)
        if isinstance(node, exp.Null):
            return ValueKind.NULL
        if isinstance(node, exp.Cast):
            return cast_kind(node.to)
        if isinstance(node, _TRUTHS):
            return ValueKind.BOOL
        if isinstance(node, exp.Paren | exp.Alias | exp.Filter | exp.Window | exp.Neg):
            return self.of(node.this)
        if isinstance(node, exp.Query):
            return self._of_query(node, 0)
        found = self._of_call.get(type(node))
        return None if found is None else found(node, self)

    def _of_column(self, column: exp.Column) -> ValueKind | None:
        found = []
        for source, types in self.sources(column):
            if types is not None:
                quoted = column.this.args.get("quoted")
                named = types.get(column.name if quoted else column.name.lower())
                found += [] if named is None else [OF_TYPE.get(named)]
            elif isinstance(source, Scope):
                found += self._of_output(source.expression, column.name)
            else:
                return None  # An unknown table may have the column.
        return found[0] if len(found) == 1 else None

    def _of_output(self, query: exp.Expr, name: str) -> list[ValueKind | None]:
        """Return the kinds of the output columns of this name; uncertain for a ``*``."""
        if not isinstance(query, exp.Query) or query.is_star:
            return [None]
        above = query.parent
        renamed = above.alias_column_names if isinstance(above, exp.CTE | exp.Subquery) else []
        names = [one.lower() for one in renamed or query.named_selects]
        return [self._of_query(query, at) for at, one in enumerate(names) if one == name.lower()]

    def _of_query(self, query: exp.Expr, at: int) -> ValueKind | None:
        if isinstance(query, exp.Subquery):
            return self._of_query(query.this, at)
        if isinstance(query, exp.SetOperation):
            sides = (self._of_query(query.this, at), self._of_query(query.expression, at))
            return widest(sides)
        if isinstance(query, exp.Select) and at < len(query.expressions):
            return self.of(query.expressions[at])
        return None


def table_key(table: exp.Table) -> str:
    """Return the name of a table as Postgres' SQL writes it; the builder looks it up."""
    return ".".join(part.sql("postgres") for part in table.parts)


def _of_literal(node: exp.Literal) -> ValueKind | None:
    if node.is_string:
        return ValueKind.TEXT
    if not str(node.this).isdigit():
        return ValueKind.NUMERIC
    value = int(node.this)
    if value > INT8_MAX:
        return ValueKind.NUMERIC
    return ValueKind.INT if value <= INT4_MAX else ValueKind.BIGINT
