"""Binds tables in FROM: inheritance trees as unions, generated columns as expressions.

*Partitions and inheritance.*  A table that is read with its children is the union of all members
that store rows; each member is a separate table in the stream.  Columns of children match by
name; their numbers may differ.

*Generated columns* are computed from the other columns, since the stream omits them.  Stored ones
are computed only over built-in functions, whose results do not change over time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from psycopg import sql

from headrace.errors import PrerequisiteError, UnsupportedError
from headrace.planner.analyse.catalog import Catalog
from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.analyse.nodetree import read_node
from headrace.planner.analyse.pg_functions import Function
from headrace.planner.analyse.policies import RowSecurity
from headrace.planner.analyse.policies import load as load_policies
from headrace.planner.analyse.tables import (
    Table,
    TableColumn,
    load_columns,
    load_result,
    load_table,
    refuse_system,
)
from headrace.planner.logical.nodes import (
    Col,
    FilterNode,
    Node,
    ProjectNode,
    ScanNode,
    UnionNode,
    ValuesNode,
)
from headrace.planner.logical.scalar import Expr, Ref
from headrace.planner.logical.secured import predicate
from headrace.planner.request import TableRef
from headrace.planner.scalars.lower import Lowering
from headrace.planner.scalars.scope import Scope
from headrace.postgres.connect import Connection

SELECTED: Final = "headrace_selected"
"""Field of a range-table entry: numbers of the columns that the query names, 0 for all."""
IS_VIEW: Final = "headrace_is_view"
"""Field of a range-table entry: its subquery is the query of a view."""
SECURED: Final = "headrace_secured"
"""Field of a range-table entry: policies of the table select from its rows for each reader."""
FUNCTION_FIELDS: Final = ("funcid", "opfuncid", "aggfnoid", "winfnoid")
"""Fields in which nodes of a tree refer to a function."""
_LOCATIONS: Final = ("location", "stmt_location")
_MEMBERS: Final = """
WITH RECURSIVE m (oid) AS (
  SELECT %s::oid
  UNION SELECT i.inhrelid FROM m JOIN pg_inherits i ON i.inhparent = m.oid
   WHERE NOT i.inhdetachpending)
SELECT c.oid::bigint, c.relkind::text FROM m JOIN pg_class c ON c.oid = m.oid
 ORDER BY c.oid"""
_GENERATED: Final = """
SELECT d.adnum, d.adbin::text, pg_get_expr(d.adbin, d.adrelid), a.attgenerated::text
  FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
 WHERE d.adrelid = %s AND a.attgenerated <> '' AND NOT a.attisdropped"""


@dataclass(frozen=True, slots=True)
class Generation:
    """How a generated column is computed."""

    tree: Tree
    stored: bool


@dataclass(frozen=True, slots=True)
class FromSource:
    """A relation as it is named in FROM, with or without its children."""

    oid: int
    name: str
    columns: tuple[TableColumn, ...]
    members: tuple[Table, ...]
    """Tables whose own rows make up its rows."""
    partitioned: bool
    """Whether members may come and go in normal use: then even one member is read as a union."""


class Relations:
    """The tables that one query reads."""

    def __init__(self, conn: Connection, catalog: Catalog) -> None:
        self._conn = conn
        self._catalog = catalog
        self._sources: dict[tuple[int, bool], FromSource] = {}
        self._tables: dict[int, Table] = {}
        self._generated: dict[int, dict[int, Generation]] = {}
        self._refused: dict[tuple[int, int], UnsupportedError] = {}
        self.results: dict[int, str] = {}
        """Names of Headrace views whose queries are not inlined, by the OID of their tables."""
        self.texts: list[str] = []
        """SQL of generated columns, with constants written out."""
        self.secured: dict[int, RowSecurity] = {}
        """The row security of tables that some entry reads under it, by OID."""
        self.generated: set[tuple[int, int]] = set()
        """(table, attnum) of the generated columns that are computed."""

    @property
    def trees(self) -> list[Tree]:
        """The expressions of generated columns."""
        return [found.tree for columns in self._generated.values() for found in columns.values()]

    def refs(self) -> tuple[TableRef, ...]:
        """Return references to the tables, ordered by schema and name."""
        return tuple(
            TableRef(x.oid, x.schema, x.name, "full" if x.full else "key")
            for x in sorted(self._tables.values(), key=lambda x: (x.schema, x.name))
        )

    # -- loading

    def load(self, oid: int, *, inherits: bool) -> None:
        """Load a table with its children or without, as the query names it."""
        if (oid, inherits) in self._sources:
            return
        rows = self._conn.execute(_MEMBERS, (oid,)).fetchall()
        kinds = {int(member): kind for member, kind in rows}
        if not inherits:
            kinds = {oid: kinds[oid]}
        members = tuple(self._table(m) for m, kind in kinds.items() if kind != "p")
        row: Any = self._conn.execute(
            "SELECT n.nspname, c.relname FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s",
            (oid,),
        ).fetchone()
        refuse_system(oid, row[0], row[1], None)
        columns = load_columns(self._conn, self._catalog, oid)
        if oid not in self._generated and any(c.generated for c in columns):
            self._load_generated(oid)  # of a partitioned table, which has no rows of its own
        partitioned = kinds[oid] == "p"
        self._sources[oid, inherits] = FromSource(oid, row[1], columns, members, partitioned)

    def _table(self, oid: int) -> Table:
        if oid in self.results and oid not in self._tables:
            view = self.results[oid]
            self._tables[oid] = load_result(self._conn, self._catalog, oid, view)
            self._generated[oid] = {}
        if oid not in self._tables:
            self._tables[oid] = load_table(self._conn, self._catalog, oid, None)
            self._load_generated(oid)
        return self._tables[oid]

    def _load_generated(self, oid: int) -> None:
        self._generated[oid] = {}
        for number, tree, text, kind in self._conn.execute(_GENERATED, (oid,)).fetchall():
            if kind == "s" and oid not in self._tables:
                continue  # partitions store values by their own expressions
            self.texts.append(text)
            self._generated[oid][number] = Generation(placeless(read_node(tree)), kind == "s")

    def secure(self, oid: int) -> None:
        """Load the row security of a table."""
        if oid not in self.secured:
            self.secured[oid] = load_policies(self._conn, self._catalog, oid)

    def require_own_rights(self) -> None:
        """Refuse tables that the engine's own role may not read."""
        for table in self._tables.values():
            self._require_own_right(table)

    def _require_own_right(self, table: Table) -> None:
        row = self._conn.execute(
            "SELECT has_table_privilege(%s::oid, 'SELECT')"
            " AND has_schema_privilege(%s, 'USAGE'), current_user, row_security_active(%s::oid)",
            (table.oid, table.schema, table.oid),
        ).fetchone()
        assert row is not None, "functions give a row"
        if row[2]:
            engine = sql.Identifier(row[1]).as_string(self._conn)
            raise PrerequisiteError(
                f'row security of table "{table.name}" hides rows from Headrace',
                hint=f"Run as a superuser: ALTER ROLE {engine} BYPASSRLS;",
            )
        if not row[0]:
            grant = sql.SQL("GRANT USAGE ON SCHEMA {} TO {}; GRANT SELECT ON {} TO {};")
            role = sql.Identifier(row[1])
            hint = grant.format(
                sql.Identifier(table.schema), role, sql.Identifier(table.schema, table.name), role
            ).as_string(self._conn)
            raise PrerequisiteError(
                f'Headrace may not read table "{table.name}"', hint=f"Run: {hint}"
            )

    # -- binding

    def scan(
        self, lowering: Lowering, column: Callable[[str, Expr, str], Col], entry: Tree, alias: str
    ) -> tuple[Node, dict[int, Expr]]:
        """Return a plan of the rows of a range-table entry, and its columns by number.

        ``column(name, expr, qualifier)`` makes a column with a new id.  A generated column that
        cannot be computed is omitted; ``refuse`` raises the reason if the query reads it.
        """
        if not entry.flag(SECURED):
            return self._rows(lowering, column, entry, alias, set(entry.numbers(SELECTED)))
        security = self.secured[entry.number("relid")]
        selected = {*entry.numbers(SELECTED), *security.columns}
        node, refs = self._rows(lowering, column, entry, alias, selected)
        for number in security.columns:
            if number not in refs:
                self.refuse(entry, number)
        return FilterNode(node, (predicate(security, refs),)), refs

    def _rows(
        self,
        lowering: Lowering,
        column: Callable[[str, Expr, str], Col],
        entry: Tree,
        alias: str,
        selected: set[int],
    ) -> tuple[Node, dict[int, Expr]]:
        """Return what ``scan`` does, without row security; ``selected``: columns to compute."""
        source = self._sources[entry.number("relid"), entry.flag("inh")]
        wanted = [
            c for c in source.columns if not c.generated or 0 in selected or c.attnum in selected
        ]
        arms = [
            self._member(lowering, column, source, table, wanted, alias) for table in source.members
        ]
        present = [c for c in wanted if (source.oid, c.attnum) not in self._refused]
        if len(arms) == 1 and not source.partitioned:
            [(node, cols)] = arms
            return node, {c.attnum: cols[c.attnum].ref for c in present}
        outputs = {
            c.attnum: column(c.name, Ref(0, c.oid, c.typmod, c.collation), alias) for c in present
        }
        whole = tuple(outputs.values())
        refs: dict[int, Expr] = {number: col.ref for number, col in outputs.items()}
        if not arms:
            return ValuesNode(whole, ()), refs
        inputs = []
        for node, cols in arms:
            arm = tuple(cols[c.attnum] for c in present)
            same = node.columns == arm
            inputs.append(node if same else ProjectNode(node, tuple((c, c.ref) for c in arm)))
        return UnionNode(tuple(inputs), whole), refs

    def _member(
        self,
        lowering: Lowering,
        column: Callable[[str, Expr, str], Col],
        source: FromSource,
        table: Table,
        wanted: list[TableColumn],
        alias: str,
    ) -> tuple[Node, dict[int, Col]]:
        """Return a plan of one member's rows, and its columns by their numbers in ``source``."""
        mine = {c.name: c for c in table.columns}
        needed = {c.name for c in wanted}
        generated = [c for c in table.columns if c.generated and c.name in needed]
        # A generated column may read any stored column; unread columns are pruned later.
        stored = [
            (column(c.name, Ref(0, c.oid, c.typmod, c.collation), alias), c)
            for c in table.columns
            if not c.generated and (generated or c.name in needed)
        ]
        node: Node = ScanNode(table, alias, tuple(stored))
        by_number: dict[int, Col] = {c.attnum: col for col, c in stored}
        if generated:
            items: list[tuple[Col, Expr]] = [(col, col.ref) for col, _ in stored]
            for c in generated:
                number = next(s.attnum for s in source.columns if s.name == c.name)
                generation, scope = self._generation(source, table, c, by_number)
                try:
                    expr = self._compute(lowering, table, c, generation, scope)
                except UnsupportedError as error:
                    self._refused[source.oid, number] = error
                    continue
                col = column(c.name, Ref(0, c.oid, c.typmod, c.collation), alias)
                by_number[c.attnum] = col
                items.append((col, expr))
                self.generated.add((table.oid, c.attnum))
            node = ProjectNode(node, tuple(items))
        return node, {
            c.attnum: by_number[mine[c.name].attnum]
            for c in wanted
            if mine[c.name].attnum in by_number
        }

    def _generation(
        self, source: FromSource, table: Table, column: TableColumn, by_number: dict[int, Col]
    ) -> tuple[Generation, Scope]:
        """Return how a member's generated column is computed, and the columns that this reads.

        Where a query names the parent, Postgres computes a virtual column by the parent's
        expression, also for rows of a child that has another one.
        """
        mine = self._generated[table.oid][column.attnum]
        if mine.stored or source.oid == table.oid:
            return mine, Scope(lambda _, number: by_number[number].ref)
        theirs = {c.attnum: c.name for c in source.columns}
        names = {c.name: c.attnum for c in table.columns}
        number = next(n for n, name in theirs.items() if name == column.name)
        return (
            self._generated[source.oid][number],
            Scope(lambda _, n: by_number[names[theirs[n]]].ref),
        )

    def _compute(
        self,
        lowering: Lowering,
        table: Table,
        column: TableColumn,
        generation: Generation,
        scope: Scope,
    ) -> Expr:
        what = f'generated column "{column.name}" of table "{table.name}"'
        if generation.stored:
            for node in generation.tree.walk():
                for function in functions_of(self._catalog, node):
                    if not function.builtin:
                        raise UnsupportedError(
                            f'{what} over function "{function.name}" is not supported',
                            detail="The function may have changed since the values were stored.",
                        )
        try:
            expr = lowering.lower(generation.tree, scope)
        except UnsupportedError as error:
            raise UnsupportedError(f"{what} is not supported", detail=error.message) from error
        if expr.oid != column.oid:
            raise UnsupportedError(f"{what} is not supported: it has another type")
        return expr

    def refuse(self, entry: Tree, attnum: int) -> NoReturn:
        """Raise the reason why a column that ``scan`` omitted cannot be read."""
        error = self._refused.get((entry.number("relid"), attnum))
        if error is not None:
            raise error
        names = entry.child("eref").items("colnames")
        raise UnsupportedError(f'column "{names[attnum - 1]}" is not supported')


def functions_of(catalog: Catalog, node: Tree) -> Iterator[Function]:
    """Yield the functions that ``node`` itself calls."""
    for field in FUNCTION_FIELDS:
        if node.number(field):
            yield catalog.functions[node.number(field)]
    if node.number("opno"):
        operator = catalog.operators[node.number("opno")]
        yield catalog.functions[operator.function]


def placeless(tree: Tree) -> Tree:
    """Remove the locations from ``tree``: they refer to another text than the user's query."""
    for node in tree.walk():
        for field in _LOCATIONS:
            if field in node.fields:
                node.fields[field] = "-1"
    return tree
