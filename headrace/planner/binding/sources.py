"""What a query reads: views by their queries, tables with children by their members.

*Views.*  Postgres puts a view's tree in its place when the query runs; we do it when it is planned
(``Sources.load`` changes the tree itself, so everything behind it knows nothing of views).  The
definition is the one of that moment; a later one is a difference of the catalog that stops the
view (postgres/fingerprint.py).  A table that Headrace maintains is the query of that view: both
then follow the base tables, and are right at the same transactions.

*Rights* are those that Postgres would check: what a view names is read as its owner, or as the
caller where it is ``security_invoker``.  Row security counts where a relation is named.

*Partitions and inheritance.*  A table that is read with its children is the union of all members
that have rows of their own; each is a table of its own in the stream.  Children have the columns
by name, at numbers of their own.

*Generated columns* are computed from the other columns: the stream does not carry them.  Stored
ones only over built-in functions, whose values of then are those of now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from headrace.errors import (
    PrerequisiteError,
    PrivilegeError,
    UnsupportedError,
    UserError,
)
from headrace.expressions.session import FUNCTION_PATH
from headrace.planner.analyse import session
from headrace.planner.analyse.catalog import Catalog
from headrace.planner.analyse.check import RELATION, SUBQUERY
from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.analyse.nodetree import read_node, read_nodes
from headrace.planner.analyse.present import present
from headrace.planner.analyse.tables import (
    Table,
    TableColumn,
    load_columns,
    load_table,
    refuse_system,
)
from headrace.planner.logical.nodes import Col, Node, Project, Scan, Union, Values
from headrace.planner.logical.scalar import Expr, Ref
from headrace.planner.request import TableRef
from headrace.planner.scalars.lower import Lowering
from headrace.planner.scalars.scope import Scope
from headrace.postgres import acting
from headrace.postgres.connect import Connection

_FIRST_LOW_ATTRIBUTE: Final = 7
"""Bit n of ``selectedCols`` is attribute n - 7 (FirstLowInvalidHeapAttributeNumber)."""
_SELECTED: Final = "headrace_selected"
"""Field of a range-table entry: numbers of the columns that the query names, 0 for all."""
_LOCATIONS: Final = ("location", "stmt_location")
_FUNCTION_FIELDS: Final = ("funcid", "opfuncid", "aggfnoid", "winfnoid")
_OWN_SETTINGS: Final = frozenset({"COERCEVIAIO", "SQLVALUEFUNCTION", "XMLEXPR"})
"""Node kinds that may read settings without calling a function."""

_VIEW: Final = """
SELECT n.nspname, c.relname, pg_get_userbyid(c.relowner), r.ev_action::text,
       pg_get_viewdef(c.oid, false),
       coalesce((SELECT o.option_value::bool FROM pg_options_to_table(c.reloptions) o
                  WHERE o.option_name = 'security_invoker'), false)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_rewrite r ON r.ev_class = c.oid AND r.rulename = '_RETURN'
 WHERE c.oid = %s"""
_RESULTS: Final = """
SELECT v.result_oid::bigint, v.schema_name, v.view_name, r.rolname, v.canonical, v.named,
       v.settings, v.status
  FROM headrace.views v LEFT JOIN pg_roles r ON r.oid = v.owner
 WHERE v.result_oid = ANY (%s::oid[])"""
_RIGHTS: Final = """
SELECT has_table_privilege(%(r)s::name, %(t)s::oid, 'SELECT') OR CASE
  WHEN %(c)s::int2[] = '{}'
  THEN has_any_column_privilege(%(r)s::name, %(t)s::oid, 'SELECT')
  ELSE (SELECT bool_and(a > 0 AND has_column_privilege(%(r)s::name, %(t)s::oid, a, 'SELECT'))
          FROM unnest(%(c)s::int2[]) a) END,
  c.relname, c.relkind::text, r.oid::bigint, c.relnamespace::bigint,
  c.relrowsecurity AND NOT (r.rolsuper OR r.rolbypassrls OR (
    NOT c.relforcerowsecurity AND pg_has_role(r.oid, c.relowner, 'USAGE')))
  FROM pg_class c, pg_roles r WHERE c.oid = %(t)s::oid AND r.rolname = %(r)s::name"""
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
class Source:
    """A relation as it is named in FROM, with or without its children."""

    oid: int
    name: str
    columns: tuple[TableColumn, ...]
    members: tuple[Table, ...]
    """Tables whose own rows it has."""


@dataclass(frozen=True, slots=True)
class _Result:
    """A view of Headrace, by its table."""

    name: str
    owner: str | None
    """None: there is no such role any more."""
    canonical: str | None
    named: list[dict[str, Any]] | None
    settings: dict[str, str]
    status: str


class Sources:
    """What one query reads."""

    def __init__(
        self, conn: Connection, catalog: Catalog, settings: dict[str, str]
    ) -> None:
        """``settings`` are those of the caller that influence evaluation."""
        self._conn = conn
        self._catalog = catalog
        self._settings = settings
        self._query: Tree | None = None
        self._caller = ""
        self._expanded: dict[tuple[int, str, str], Tree] = {}
        self._sources: dict[tuple[int, bool], Source] = {}
        self._tables: dict[int, Table] = {}
        self._generated: dict[int, dict[int, Generation]] = {}
        self._refused: dict[tuple[int, int], UnsupportedError] = {}
        self._known_results: dict[int, _Result | None] = {}
        self.texts: list[str] = []
        """SQL of what was put in place, in which its constants are written out."""
        self.relations: set[tuple[int, bool]] = set()
        """(table as named, with its children)"""
        self._through: list[tuple[int, str]] = []
        """The views of Headrace (table, name) that are being put in place."""
        self.rights: set[tuple[str, int, int, tuple[int, ...], int]] = set()
        """What roles must be allowed: (kind, OID of the role, OID of the object, columns, through).

        ``through`` is the table of the view of Headrace whose query needs it, 0: this one's.

        ``select`` of a relation, ``open``: no row security applies; ``usage`` of a schema;
        ``execute`` of a function.  Those that Postgres asks for when it answers the query.
        """
        self.views: dict[int, str] = {}
        """Qualified names of the user's views by OID."""
        self.results: dict[int, str] = {}
        """Qualified names of the views of Headrace by the OID of their tables."""
        self.private: set[str] = set()
        """Those among them whose queries the caller may not see."""
        self.named: dict[int, int] = {}
        """How often the query itself names each relation, by OID."""
        self.generated: set[tuple[int, int]] = set()
        """(table, attnum) of the generated columns that are computed."""

    @property
    def trees(self) -> list[Tree]:
        """The expressions of generated columns."""
        return [
            found.tree
            for columns in self._generated.values()
            for found in columns.values()
        ]

    def refs(self) -> tuple[TableRef, ...]:
        """What others need to know of the tables, in order of their names."""
        return tuple(
            TableRef(x.oid, x.schema, x.name, "full" if x.full else "key")
            for x in sorted(self._tables.values(), key=lambda x: (x.schema, x.name))
        )

    # -- loading

    def load(self, bound: session.Bound, caller: str | None) -> None:
        """Put views in place, check rights, load every table.

        REQUIRES: our own role and pinned settings.

        Raises:
            PrivilegeError: the caller, or the owner of a view, may not read something.
            PrerequisiteError: we may not; or a table has no row identity.
            UnsupportedError: something is none of the relations that can be followed.
        """
        if caller is None:
            row: Any = self._conn.execute("SELECT current_user").fetchone()
            caller = str(row[0])
        self._query, self._caller = bound.tree, caller
        self._expand(bound.tree, bound.oid, caller, caller, named=True)
        for oid, inherits in sorted(self.relations):
            self._load(oid, inherits=inherits)
        for table in self._tables.values():
            self._require_own_right(table)

    def _expand(
        self, tree: Tree, own: int, reader: str, caller: str, *, named: bool
    ) -> None:
        """Put views in the place of their names in ``tree``, which ``reader`` reads.

        ``own`` is the view that the tree belongs to: Postgres 15 and older name it in there.
        ``named``: it is the tree of a text that is analysed for the caller, who looks up names.
        """
        self._need_functions(tree, caller)
        for query in [node for node in tree.walk() if node.kind == "QUERY"]:
            infos = query.nodes("rteperminfos")
            for entry in query.nodes("rtable"):
                oid = entry.number("relid")
                if entry.number("rtekind") != RELATION or oid in (0, own):
                    continue
                info = entry
                if "selectedCols" not in entry.fields:  # Postgres 16 and newer
                    info = infos[entry.number("perminfoindex") - 1]
                bits = info.numbers("selectedCols")
                columns = [bit - _FIRST_LOW_ATTRIBUTE for bit in bits]
                entry.fields[_SELECTED] = [str(column) for column in columns]
                if tree is self._query:
                    self.named[oid] = self.named.get(oid, 0) + 1
                self._name(entry, oid, columns, reader, caller, named=named)

    def _need_functions(self, tree: Tree, caller: str) -> None:
        """Functions run as who asks, also those of views."""
        fields = [node.number(f) for node in tree.walk() for f in _FUNCTION_FIELDS]
        row = self._conn.execute(
            "SELECT oid::bigint FROM pg_roles WHERE rolname = %s", (caller,)
        ).fetchone()
        if row is not None:
            for function in set(fields) - {0}:
                self._need("execute", row[0], function)

    def _need(self, kind: str, role: int, oid: int, *columns: int) -> None:
        through = self._through[-1][0] if self._through else 0
        self.rights.add((kind, role, oid, columns, through))

    def _name(
        self,
        entry: Tree,
        oid: int,
        columns: list[int],
        reader: str,
        caller: str,
        *,
        named: bool,
    ) -> None:
        row = self._conn.execute(
            _RIGHTS, {"r": reader, "t": oid, "c": columns}
        ).fetchone()
        if row is None:
            raise PrivilegeError(f'role "{reader}", which reads a view, does not exist')
        allowed, name, kind, role, schema, secured = row
        if self._through and (secured or not allowed):
            raise UnsupportedError(
                f"view {self._through[-1][1]} cannot be read: its owner may not read"
                " what it reads any more"
            )
        if not allowed:
            what = "view" if kind == "v" else "table"
            raise PrivilegeError(f"permission denied for {what} {name}")
        self._need("select", role, oid, *sorted(columns))
        if named:
            self._need("usage", role, schema)
        if kind == "v":
            self._replace(entry, self._view(oid, reader, caller))
            return
        result = self._result(oid)
        if result is not None:
            self._replace(entry, self._result_tree(oid, result))
            return
        if secured:
            raise UnsupportedError(
                f'row security of table "{name}" is not supported',
                detail=f'It applies to role "{reader}".',
            )
        self._need("open", role, oid)
        self.relations.add((oid, entry.flag("inh")))

    def _replace(self, entry: Tree, tree: Tree) -> None:
        entry.fields["rtekind"] = str(SUBQUERY)
        entry.fields["subquery"] = tree
        del entry.fields["relid"]

    def _view(self, oid: int, reader: str, caller: str) -> Tree:
        found: Any = self._conn.execute(_VIEW, (oid,)).fetchone()
        assert found is not None, "the view is locked by our transaction"
        schema, name, owner, action, text, invoker = found
        refuse_system(oid, schema, name, None)
        key = (oid, caller if invoker else owner, caller)
        if key not in self._expanded:
            [tree] = read_nodes(action)
            self.texts.append(text)
            self.views[oid] = _quoted(schema, name)
            self._expanded[key] = _placeless(tree)
            self._expand(tree, oid, key[1], caller, named=False)
        return self._expanded[key]

    def _result(self, oid: int) -> _Result | None:
        """The view of Headrace whose table has that OID."""
        if oid not in self._known_results:
            self._known_results[oid] = None
            there: Any = self._conn.execute(
                "SELECT to_regclass('headrace.views') IS NOT NULL"
            ).fetchone()
            if there[0]:
                for found in self._conn.execute(_RESULTS, ([oid],)).fetchall():
                    result = _Result(_quoted(*found[1:3]), *found[3:])
                    self._known_results[oid] = result
        return self._known_results[oid]

    def _result_tree(self, oid: int, result: _Result) -> Tree:
        """The query of a view of Headrace, which acts for its owner in everything."""
        name = result.name
        if result.owner is None:
            raise UnsupportedError(
                f"view {name} cannot be read: the role that owned it was dropped",
                hint=f"CALL headrace.set_owner('{name}', role) gives it to another.",
            )
        key = (oid, result.owner, result.owner)
        if key in self._expanded:
            return self._expanded[key]
        if result.status not in ("running", "paused"):
            raise UnsupportedError(
                f"view {name} cannot be read: its status is {result.status}",
                hint=f"Run CALL headrace.resync_view('{name}') first.",
            )
        if result.canonical is None:
            raise UnsupportedError(
                f"view {name} was created by an earlier version of headrace",
                hint="Drop the view and create it again.",
            )
        query = present(self._conn, result.canonical, result.named)
        query = query.rstrip().removesuffix(";")
        shadow = f"headrace_source_{len(self._expanded)}"
        try:
            with self._conn.transaction():
                bound = self._bind_as(result.owner, query, shadow)
        except PrerequisiteError:
            raise  # we may not act for its owner
        except (psycopg.ProgrammingError, UserError) as error:
            why = getattr(error, "message", None) or str(error).splitlines()[0]
            raise UnsupportedError(
                f"view {name} cannot be read: {why}",
                detail="Something that its query names was dropped.",
                hint=f"Run CALL headrace.alter_view('{name}', query) without it.",
            ) from error
        self.texts.append(bound.canonical_sql)
        self.results[oid] = name
        if not self._sees(result.owner):
            self.private.add(name)
        self._expanded[key] = _placeless(bound.tree)
        self._through.append((oid, name))
        self._expand(bound.tree, bound.oid, result.owner, result.owner, named=True)
        self._through.pop()
        self._check_settings(result, bound.tree)
        return bound.tree

    def _sees(self, owner: str) -> bool:
        row = self._conn.execute(
            "SELECT bool_or(pg_has_role(c.oid, o.oid, 'USAGE')) FROM pg_roles o, pg_roles c"
            " WHERE o.rolname = %s AND c.rolname = %s",
            (owner, self._caller),
        ).fetchone()
        return bool(row and row[0])

    def _bind_as(self, owner: str, query: str, shadow: str) -> session.Bound:
        """The query of a view of Headrace, analysed once more: with the rights of its owner.

        A literal that was harmless may be of another type by now, under the same name.
        """
        analyst = f"{shadow}_analyst"
        try:
            acting.become(self._conn, owner)
            session.employ(self._conn, owner, analyst)
            session.refuse_others_code(self._conn, query, analyst)
            return session.made_view(self._conn, query, shadow, analyst)
        except psycopg.errors.InvalidParameterValue as error:
            raise UnsupportedError(f'role "{owner}" does not exist') from error
        finally:
            if self._conn.info.transaction_status == TransactionStatus.INTRANS:
                self._conn.execute("RESET ROLE")

    def _check_settings(self, result: _Result, tree: Tree) -> None:
        """Refuse a view that was created under other settings, if it depends on them."""
        for name, value in result.settings.items():
            differs = self._settings.get(name, value) != value
            if differs and (name == FUNCTION_PATH or self._stable(tree)):
                shown = "search_path" if name == FUNCTION_PATH else name
                new = value if name == FUNCTION_PATH else f"'{value}'"
                raise UnsupportedError(
                    f"reading view {result.name} under another {shown}"
                    " than its own is not supported",
                    hint=f"SET {shown} = {new}; then create the view again.",
                )

    def _stable(self, tree: Tree) -> bool:
        return any(
            node.kind in _OWN_SETTINGS
            or any(f.volatility != "i" for f in self._functions(node))
            for node in tree.walk()
        )

    def _functions(self, node: Tree) -> Iterator[Any]:
        for field in _FUNCTION_FIELDS:
            if node.number(field):
                yield self._catalog.functions[node.number(field)]
        if node.number("opno"):
            operator = self._catalog.operators[node.number("opno")]
            yield self._catalog.functions[operator.function]

    def _load(self, oid: int, *, inherits: bool) -> None:
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
        self._sources[oid, inherits] = Source(oid, row[1], columns, members)

    def _table(self, oid: int) -> Table:
        if oid not in self._tables:
            self._tables[oid] = load_table(self._conn, self._catalog, oid, None)
            self._generated[oid] = {}
            for number, tree, text, kind in self._conn.execute(
                _GENERATED, (oid,)
            ).fetchall():
                self.texts.append(text)
                found = Generation(_placeless(read_node(tree)), kind == "s")
                self._generated[oid][number] = found
        return self._tables[oid]

    def _require_own_right(self, table: Table) -> None:
        """The engine reads the tables itself."""
        row = self._conn.execute(
            "SELECT has_table_privilege(%s::oid, 'SELECT')"
            " AND has_schema_privilege(%s, 'USAGE'), current_user",
            (table.oid, table.schema),
        ).fetchone()
        assert row is not None, "functions give a row"
        if not row[0]:
            grant = sql.SQL("GRANT USAGE ON SCHEMA {} TO {}; GRANT SELECT ON {} TO {};")
            role = sql.Identifier(row[1])
            hint = grant.format(
                sql.Identifier(table.schema),
                role,
                sql.Identifier(table.schema, table.name),
                role,
            ).as_string(self._conn)
            raise PrerequisiteError(
                f'Headrace may not read table "{table.name}"', hint=f"Run: {hint}"
            )

    # -- binding

    def scan(
        self,
        lowering: Lowering,
        column: Callable[[str, Expr, str], Col],
        entry: Tree,
        alias: str,
    ) -> tuple[Node, dict[int, Expr]]:
        """The rows of a range-table entry, and its columns by number.

        ``column(name, expr, qualifier)`` makes a column with an id of its own.  A generated
        column that cannot be computed is left out: ``refuse`` says why when it is asked for.
        """
        source = self._sources[entry.number("relid"), entry.flag("inh")]
        selected = set(entry.numbers(_SELECTED))
        wanted = [
            c
            for c in source.columns
            if not c.generated or 0 in selected or c.attnum in selected
        ]
        arms = [
            self._member(lowering, column, source, table, wanted, alias)
            for table in source.members
        ]
        present = [c for c in wanted if (source.oid, c.attnum) not in self._refused]
        if len(arms) == 1:
            [(node, cols)] = arms
            return node, {c.attnum: cols[c.attnum].ref for c in present}
        outputs = {
            c.attnum: column(c.name, Ref(0, c.oid, c.typmod, c.collation), alias)
            for c in present
        }
        whole = tuple(outputs.values())
        refs: dict[int, Expr] = {number: col.ref for number, col in outputs.items()}
        if not arms:
            return Values(whole, ()), refs
        inputs = []
        for node, cols in arms:
            arm = tuple(cols[c.attnum] for c in present)
            same = node.columns == arm
            inputs.append(
                node if same else Project(node, tuple((c, c.ref) for c in arm))
            )
        return Union(tuple(inputs), whole), refs

    def _member(
        self,
        lowering: Lowering,
        column: Callable[[str, Expr, str], Col],
        source: Source,
        table: Table,
        wanted: list[TableColumn],
        alias: str,
    ) -> tuple[Node, dict[int, Col]]:
        """The rows of one member, and its columns by their numbers in ``source``."""
        mine = {c.name: c for c in table.columns}
        needed = {c.name for c in wanted}
        generated = [c for c in table.columns if c.generated and c.name in needed]
        # Every stored column may be part of a generated one; what is not read is pruned.
        stored = [
            (column(c.name, Ref(0, c.oid, c.typmod, c.collation), alias), c)
            for c in table.columns
            if not c.generated and (generated or c.name in needed)
        ]
        node: Node = Scan(table, alias, tuple(stored))
        by_number: dict[int, Col] = {c.attnum: col for col, c in stored}
        if generated:
            items: list[tuple[Col, Expr]] = [(col, col.ref) for col, _ in stored]
            scope = Scope(lambda _, number: by_number[number].ref)
            for c in generated:
                number = next(s.attnum for s in source.columns if s.name == c.name)
                try:
                    expr = self._compute(lowering, table, c, scope)
                except UnsupportedError as error:
                    self._refused[source.oid, number] = error
                    continue
                col = column(c.name, Ref(0, c.oid, c.typmod, c.collation), alias)
                by_number[c.attnum] = col
                items.append((col, expr))
                self.generated.add((table.oid, c.attnum))
            node = Project(node, tuple(items))
        return node, {
            c.attnum: by_number[mine[c.name].attnum]
            for c in wanted
            if mine[c.name].attnum in by_number
        }

    def _compute(
        self, lowering: Lowering, table: Table, column: TableColumn, scope: Scope
    ) -> Expr:
        generation = self._generated[table.oid][column.attnum]
        what = f'generated column "{column.name}" of table "{table.name}"'
        if generation.stored:
            for node in generation.tree.walk():
                for function in self._functions(node):
                    if not function.builtin:
                        raise UnsupportedError(
                            f'{what} over function "{function.name}" is not supported',
                            detail="The function may have been another one when the"
                            " values were stored.",
                        )
        try:
            expr = lowering.lower(generation.tree, scope)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"{what} is not supported", detail=error.message
            ) from error
        if expr.oid != column.oid:
            raise UnsupportedError(f"{what} is not supported: it has another type")
        return expr

    def refuse(self, entry: Tree, attnum: int) -> NoReturn:
        """Say why a column that ``scan`` left out cannot be read."""
        error = self._refused.get((entry.number("relid"), attnum))
        if error is not None:
            raise error
        names = entry.child("eref").items("colnames")
        raise UnsupportedError(f'column "{names[attnum - 1]}" is not supported')


def describe(sources: Sources) -> str:
    """One line for each relation that the query reads."""
    lines = [f"{ref.schema}.{ref.name} by {ref.identity}" for ref in sources.refs()]
    lines = [f"Table {line}" for line in lines]
    lines += [f"View {name}" for name in sorted(sources.views.values())]
    lines += [f"View of Headrace {name}" for name in sorted(sources.results.values())]
    return "\n".join(lines)


def _quoted(schema: str, name: str) -> str:
    return sql.Identifier(schema, name).as_string()


def _placeless(tree: Tree) -> Tree:
    """``tree`` without locations: they are of another text than the user's query."""
    for node in tree.walk():
        for field in _LOCATIONS:
            if field in node.fields:
                node.fields[field] = "-1"
    return tree
