"""Relations that a query reads, and access rights: inlines views, loads tables (``relations``).

*Views.*  Postgres expands a view when the query runs; Headrace does so when it plans the query
(``Sources.load`` changes the tree, so later stages see no views).  A later change of the definition
is a difference of the catalog that stops the view (postgres/fingerprint.py).  The table of a
Headrace view is replaced by the query of that view: both then follow the base tables, and are
consistent at the same transactions.

*Rights* are those that Postgres would check.  The relations that a view names are read as its
owner, or as the caller if the view is ``security_invoker``.

*Row security.*  If no policy applies to the role that reads a table, that must stay so (right
``open``).  Else the view's table gets the policies (``passes.row_security``), if it is the caller
that reads the table: then each role that reads the result would read the table as itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from headrace.errors import (
    PrerequisiteError,
    PrivilegeError,
    UndefinedError,
    UnreadableViewError,
    UnsupportedError,
    UserError,
)
from headrace.planner import limits
from headrace.planner.analyse import policies, session
from headrace.planner.analyse.analysis import Analysis
from headrace.planner.analyse.catalog import Catalog
from headrace.planner.analyse.check import RELATION, SUBQUERY
from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.analyse.nodetree import read_nodes
from headrace.planner.analyse.present import present
from headrace.planner.analyse.tables import refuse_system
from headrace.planner.binding import result_columns
from headrace.planner.binding.relations import (
    FUNCTION_FIELDS,
    IS_VIEW,
    SECURED,
    SELECTED,
    Relations,
    functions_of,
    placeless,
)
from headrace.planner.bodies import inline
from headrace.planner.bodies.trust import Trust
from headrace.planner.request import PlanRequest
from headrace.postgres import acting
from headrace.postgres.connect import Connection
from headrace.postgres.settings import FUNCTION_PATH
from headrace.postgres.tokens import argument, qualified
from headrace.sql import results, views
from headrace.sql.results import ReadView
from headrace.sql.status import OWNED, Status

_FIRST_LOW_ATTRIBUTE: Final = 7
"""Bit n of ``selectedCols`` is attribute n - 7 (FirstLowInvalidHeapAttributeNumber)."""
_OWN_SETTINGS: Final = frozenset({"COERCEVIAIO", "SQLVALUEFUNCTION", "XMLEXPR"})
"""Node kinds that may read settings without calling a function."""

_VIEW: Final = """
SELECT n.nspname, c.relname, pg_get_userbyid(c.relowner), left(r.ev_action::text, %(most)s),
       CASE WHEN length(r.ev_action::text) < %(most)s THEN pg_get_viewdef(c.oid, false) END,
       coalesce((SELECT o.option_value::bool FROM pg_options_to_table(c.reloptions) o
                  WHERE o.option_name = 'security_invoker'), false)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_rewrite r ON r.ev_class = c.oid AND r.rulename = '_RETURN'
 WHERE c.oid = %(oid)s"""
"""A tree of ``most`` characters or more is cut off: it is not going to be read."""
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


@dataclass(frozen=True, slots=True)
class _Reader:
    """With whose rights a tree is read."""

    role: str
    """The role that must be allowed to read its relations."""
    caller: str
    """The role that calls its functions."""
    named: bool = True
    """Whether names in the text of the tree are looked up with the rights of ``role``."""
    each: bool = True
    """Whether another role that ran the query would be the caller."""
    defined: bool = False
    """Whether it is a view's owner who reads the relations."""

    @property
    def direct(self) -> bool:
        """Whether another role that ran the query would read the relations as itself."""
        return self.each and not self.defined

    def in_view(self, owner: str | None) -> _Reader:
        """Return the reader of a view's query; None: the view is ``security_invoker``."""
        if owner is None:
            return _Reader(self.caller, self.caller, named=False, each=self.each)
        return _Reader(owner, self.caller, named=False, each=self.each, defined=True)

    def as_caller(self) -> _Reader:
        """Return the reader of the query of a function that is called."""
        return _Reader(self.caller, self.caller, each=self.each)


class Sources:
    """The relations, views and functions that one query reads."""

    def __init__(
        self,
        conn: Connection,
        analysis: Analysis,
        catalog: Catalog,
        settings: dict[str, str],
        trust: Trust,
        request: PlanRequest,
    ) -> None:
        """Create it; ``settings`` are the caller's settings that influence evaluation."""
        self._over = request.over
        self._readable = set(OWNED)
        if request.stopped_below:
            self._readable.add(Status.ERROR)
        self._trust = trust
        self._inside: list[int] = []
        """OIDs of the functions whose queries are being inlined."""
        self._conn = conn
        self._analysis = analysis
        self._catalog = catalog
        self._settings = settings
        self._query: Tree | None = None
        self._caller = ""
        self._expanded: dict[tuple[int, str, str, bool], Tree] = {}
        self._allowed: dict[tuple[str, int, tuple[int, ...]], Any] = {}
        self._views: dict[int, Any] = {}
        self._roles: dict[str, Any] = {}
        self._known_results: dict[int, ReadView | None] = {}
        self.texts: list[str] = []
        """SQL of the inlined queries and expressions, with constants written out."""
        self.relations: set[tuple[int, bool]] = set()
        """(table as named, with its children)"""
        self._through: list[tuple[int, str]] = []
        """The Headrace views (table, name) that are being inlined."""
        self.rights: set[tuple[str, int, int, tuple[int, ...], int]] = set()
        """Required rights: (kind, OID of the role, OID of the object, columns, through).

        ``through`` is the table of the Headrace view whose query needs the right, 0 for this query.

        Kinds: ``select`` of a relation; ``open``, no row security applies to it; ``usage`` of a
        schema; ``execute`` of a function.  Postgres checks these rights when it runs the query.
        """
        self.views: dict[int, str] = {}
        """Qualified names of the user's views by OID."""
        self.results: dict[int, str] = {}
        """Qualified names of Headrace views by the OID of their tables."""
        self.private: set[str] = set()
        """Names of the Headrace views whose queries the caller may not see."""
        self.discreet = False
        """Whether rows are read with the rights of a role for which the caller may not act."""
        self.named: dict[int, int] = {}
        """How often the query itself names each relation, by OID."""
        self.tables = Relations(conn, catalog)

    # -- loading

    def load(self, bound: session.BoundQuery, caller: str | None) -> None:
        """Inline views, check rights, and load every table.

        REQUIRES: the engine's own role and pinned settings.

        Raises:
            PrivilegeError: the caller, or the owner of a view, may not read something.
            PrerequisiteError: the engine's role may not read a table, or a table has no row
                identity.
            UnsupportedError: a relation is of a kind that cannot be followed.
        """
        if caller is None:
            row: Any = self._conn.execute("SELECT current_user").fetchone()
            caller = str(row[0])
        self._query, self._caller = bound.tree, caller
        self._expand(bound.tree, bound.oid, _Reader(caller, caller))
        for oid, inherits in sorted(self.relations):
            self.tables.load(oid, inherits=inherits)
        self.tables.require_own_rights()
        self.texts += self.tables.texts

    def _expand(self, tree: Tree, own: int, reader: _Reader) -> None:
        """Inline the views in ``tree``, which is read by ``reader``.

        ``own`` is the view that the tree belongs to: Postgres 15 and older refer to it in the
        tree.
        """
        self._need_functions(tree, reader.caller)
        for query in [node for node in tree.walk() if node.kind == "QUERY"]:
            infos = query.nodes("rteperminfos")
            for index, entry in enumerate(query.nodes("rtable"), 1):
                oid = entry.number("relid")
                if entry.number("rtekind") != RELATION or oid in (0, own):
                    continue
                info = entry
                if "selectedCols" not in entry.fields:  # Postgres 16 and newer
                    info = infos[entry.number("perminfoindex") - 1]
                bits = info.numbers("selectedCols")
                columns = [bit - _FIRST_LOW_ATTRIBUTE for bit in bits]
                entry.fields[SELECTED] = [str(column) for column in columns]
                if tree is self._query:
                    self.named[oid] = self.named.get(oid, 0) + 1
                self._name(entry, oid, columns, reader)
                if entry.flag(IS_VIEW) and oid in self.results:
                    result_columns.renumber(query, index, result_columns.numbers(self._conn, oid))
        self._put_functions(tree, reader)

    def _put_functions(self, tree: Tree, reader: _Reader) -> None:
        """Inline functions that read tables, inner calls first.

        Their queries run with the rights of the caller.  A call that remains is refused later.
        """
        for node in reversed(list(tree.walk())):
            rows = node.kind == "RANGETBLENTRY" and inline.is_call(node)
            call = node.nodes("functions")[0].child("funcexpr") if rows else node
            if call.kind != "FUNCEXPR" or call.flag("funcretset") != rows:
                continue
            function = self._catalog.functions[call.number("funcid")]
            if function.builtin or function.trusted or function.volatility == "i":
                continue
            if function.oid in self._inside:
                continue
            try:
                found = self._trust.query(function, call)
            except UnsupportedError as error:
                self._catalog.functions.set_untranslated(function.oid, error.message)
                continue
            if found is None:
                continue
            query, routine = found
            self._inside.append(function.oid)
            self._expand(placeless(query), 0, reader.as_caller())
            self._inside.pop()
            self.texts.append(routine.printed)
            if rows:
                inline.put_rows(node, query)
            elif query.kind != "QUERY":
                inline.put_expression(call, query, strict=routine.strict)
            else:
                inline.put_value(call, query, strict=routine.strict)

    def _need_functions(self, tree: Tree, caller: str) -> None:
        """Require EXECUTE of ``caller`` on all functions in ``tree``, also for those of views."""
        fields = [node.number(f) for node in tree.walk() for f in FUNCTION_FIELDS]
        if caller not in self._roles:
            self._roles[caller] = self._conn.execute(
                "SELECT oid::bigint FROM pg_roles WHERE rolname = %s", (caller,)
            ).fetchone()
        row = self._roles[caller]
        if row is not None:
            for function in set(fields) - {0}:
                self._need("execute", row[0], function)

    def _need(self, kind: str, role: int, oid: int, *columns: int) -> None:
        through = self._through[-1][0] if self._through else 0
        self.rights.add((kind, role, oid, columns, through))

    def _name(self, entry: Tree, oid: int, columns: list[int], reader: _Reader) -> None:
        limits.check()
        key = (reader.role, oid, tuple(columns))
        if key not in self._allowed:
            asked = {"r": reader.role, "t": oid, "c": columns}
            self._allowed[key] = self._conn.execute(_RIGHTS, asked).fetchone()
        row = self._allowed[key]
        if row is None:
            raise _dropped(f'role "{reader.role}", or a relation that it reads,')
        allowed, name, kind, role, schema, secured = row
        if self._through and not allowed:
            raise UnsupportedError(
                f"view {self._through[-1][1]} cannot be read: its owner may no longer read its"
                f" tables"
            )
        if not allowed:
            what = "view" if kind == "v" else "table"
            raise PrivilegeError(f"permission denied for {what} {name}")
        self._need("select", role, oid, *sorted(columns))
        if reader.named:
            self._need("usage", role, schema)
        if kind == "v":
            self._replace(entry, self._view(oid, reader))
            return
        result = self._result(oid)
        if result is not None and oid in self._over:
            entry.fields["inh"] = "false"  # tables that inherit from it do not belong to the view
            self.tables.results[oid] = result.name
            self.relations.add((oid, False))
            return
        if result is not None:
            self._replace(entry, self._result_tree(oid, result, direct=reader.direct))
            return
        if secured and not reader.direct:
            raise policies.refusal(
                name,
                f'It is read through a view with the rights of role "{reader.role}", to which'
                " policies apply.",
                "Let the view be security_invoker, or belong to a role to which no policy applies.",
            )
        if secured:
            entry.fields[SECURED] = "true"
            with self.nameless():
                self.tables.secure(oid)
        else:
            self._need("open", role, oid)
        self.relations.add((oid, entry.flag("inh")))

    @contextlib.contextmanager
    def nameless(self) -> Iterator[None]:
        """Leave the names of tables out of a refusal if the caller may not see the query."""
        try:
            yield
        except policies.RowSecurityRefused as error:
            if not self.private:
                raise
            names = ", ".join(sorted(self.private))
            raise UnsupportedError(
                f"row security of the tables of view {names} cannot be carried over to the view",
                hint=error.hint,
            ) from error

    def _replace(self, entry: Tree, tree: Tree) -> None:
        entry.fields["rtekind"] = str(SUBQUERY)
        entry.fields["subquery"] = tree
        entry.fields[IS_VIEW] = "true"
        del entry.fields["relid"]

    def _view(self, oid: int, reader: _Reader) -> Tree:
        if oid not in self._views:
            given = {"oid": oid, "most": limits.tree_chars()}
            self._views[oid] = self._conn.execute(_VIEW, given).fetchone()
        found = self._views[oid]
        if found is None:
            raise _dropped("a view")
        schema, name, owner, action, text, invoker = found
        refuse_system(oid, schema, name, None)
        within = reader.in_view(None if invoker else owner)
        key = (oid, within.role, within.caller, within.direct)
        self.discreet = self.discreet or not self._sees(within.role)
        if key not in self._expanded:
            [tree] = read_nodes(action)
            self.texts.append(text)
            self.views[oid] = _quoted(schema, name)
            self._expanded[key] = placeless(tree)
            self._expand(tree, oid, within)
        return self._expanded[key]

    def _result(self, oid: int) -> ReadView | None:
        """Return the Headrace view whose table has that OID, if any."""
        if oid not in self._known_results:
            there = views.installed(self._conn)
            self._known_results[oid] = results.read(self._conn, oid) if there else None
        return self._known_results[oid]

    def _result_tree(self, oid: int, result: ReadView, *, direct: bool) -> Tree:
        """Return the query of a Headrace view; it runs entirely with its owner's rights."""
        name = qualified(result.schema_name, result.view_name)
        if result.owner is None:
            raise UnsupportedError(
                f"view {name} cannot be read: the role that owned it was dropped",
                hint=f"CALL headrace.set_owner({argument(name)}, role) gives it a new owner.",
            )
        key = (oid, result.owner, result.owner, direct)
        if key in self._expanded:
            return self._expanded[key]
        if result.status not in self._readable:
            raise UnreadableViewError(
                f"view {name} cannot be read: its status is {result.status}",
                hint=f"Run CALL headrace.resync_view({argument(name)}) first.",
                view=name,
            )
        if result.canonical is None:
            raise UnsupportedError(
                f"view {name} was created by an earlier version of headrace",
                hint="Drop the view and create it again.",
            )
        limits.check_text(len(result.canonical))
        query = present(self._conn, result.canonical, result.named)
        query = query.rstrip().removesuffix(";")
        shadow = f"headrace_source_{len(self._expanded)}"
        try:
            with self._analysis.analysing() as conn:
                bound = _bind_as(conn, result.owner, query, shadow)
        except PrerequisiteError:
            raise  # the engine may not act for the owner
        except (psycopg.ProgrammingError, UserError) as error:
            why = getattr(error, "message", None) or str(error).splitlines()[0]
            raise UnsupportedError(
                f"view {name} cannot be read: {why}",
                detail="An object in its query was dropped.",
                hint=f"Run CALL headrace.alter_view({argument(name)}, query) without it.",
            ) from error
        self.texts.append(bound.canonical_sql)
        self.results[oid] = result.name
        if not self._sees(result.owner):
            self.private.add(result.name)
            self.discreet = True
        self._expanded[key] = placeless(bound.tree)
        self._through.append((oid, result.name))
        self._expand(bound.tree, bound.oid, _Reader(result.owner, result.owner, each=direct))
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

    def _check_settings(self, result: ReadView, tree: Tree) -> None:
        """Refuse a view that was created under other settings, if it depends on them."""
        for name, value in result.settings.items():
            differs = self._settings.get(name, value) != value
            if differs and (name == FUNCTION_PATH or self._stable(tree)):
                shown = "search_path" if name == FUNCTION_PATH else name
                new = value if name == FUNCTION_PATH else f"'{value}'"
                raise UnsupportedError(
                    f"reading view {result.name} with a different {shown} is not supported",
                    hint=f"SET {shown} = {new}; then create the view again.",
                )

    def _stable(self, tree: Tree) -> bool:
        return any(
            node.kind in _OWN_SETTINGS
            or any(f.volatility != "i" for f in functions_of(self._catalog, node))
            for node in tree.walk()
        )


def _dropped(what: str) -> UndefinedError:
    return UndefinedError(
        f"{what} was dropped while the query was planned", hint="Run the statement again."
    )


def _bind_as(conn: Connection, owner: str, query: str, shadow: str) -> session.BoundQuery:
    """Analyse the query of a Headrace view again, with the rights of its owner.

    The type name of a literal that was harmless may denote another type now.
    """
    analyst = f"{shadow}_analyst"
    try:
        acting.become(conn, owner)
        session.employ(conn, owner, analyst)
        session.refuse_others_code(conn, query, analyst)
        return session.made_view(conn, query, shadow, analyst)
    except psycopg.errors.InvalidParameterValue as error:
        raise UnsupportedError(f'role "{owner}" does not exist') from error
    finally:
        if conn.info.transaction_status == TransactionStatus.INTRANS:
            conn.execute("RESET ROLE")


def describe(sources: Sources) -> str:
    """Return one line for each relation that the query reads."""
    fed = sources.tables.results
    refs = [ref for ref in sources.tables.refs() if ref.oid not in fed]
    lines = [f"{ref.schema}.{ref.name} by {ref.identity}" for ref in refs]
    lines = [f"Table {line}" for line in lines]
    lines += [f"View {name}" for name in sorted(sources.views.values())]
    lines += [f"View of Headrace {name}" for name in sorted({**sources.results, **fed}.values())]
    secured = sources.tables.secured.values()
    lines += sorted(f"Row security of {found.schema}.{found.table}" for found in secured)
    return "\n".join(lines)


def _quoted(schema: str, name: str) -> str:
    return sql.Identifier(schema, name).as_string()
