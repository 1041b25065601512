"""Lets Postgres analyse the texts of function bodies.

Postgres analyses a body that it stores as text when the function runs.  Here the text becomes the
body of a temporary function with the same parameters, written as ``BEGIN ATOMIC``: Postgres
resolves names, parameters and overloads as it will when the function runs, and stores the tree.
The temporary function is never called, and it is rolled back at once.

The text may be another role's: it is analysed with the rights of the caller, like the caller's own
query, and only if reading its literals cannot run another role's code (``literals.py``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.pq import ExecStatus

from headrace import types as t
from headrace.errors import HeadraceError, UnsupportedError
from headrace.planner.analyse import check, literals, session
from headrace.planner.analyse.analysis import Analysis
from headrace.planner.analyse.catalog import Catalog, mentioned
from headrace.planner.analyse.nodetree import Node, read_nodes
from headrace.planner.analyse.position import Text
from headrace.planner.scalars import functions
from headrace.postgres import acting
from headrace.postgres.connect import Connection
from headrace.postgres.tokens import identifier
from headrace.types import FIRST_USER_OID

_TREE: Final = """
SELECT p.prosqlbody::text FROM pg_proc p
 WHERE p.pronamespace = pg_my_temp_schema() AND p.proname = %s ORDER BY p.oid DESC LIMIT 1"""
_TYPE: Final = "SELECT pg_catalog.to_regtype(%s)::pg_catalog.oid::pg_catalog.int8"
_NAME: Final = """
SELECT pg_catalog.format_type(t.oid, NULL),
       pg_catalog.array_position(pg_catalog.current_schemas(false), n.nspname)
  FROM pg_catalog.pg_type t
  JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) t.typnamespace
 WHERE t.oid OPERATOR(pg_catalog.=) %s::pg_catalog.oid AND NOT EXISTS (
       SELECT FROM pg_catalog.pg_type o WHERE o.typname OPERATOR(pg_catalog.=) t.typname
          AND o.typnamespace OPERATOR(pg_catalog.=) 11)"""
_SCHEMA: Final = """
SELECT pg_catalog.quote_ident(pg_catalog.current_schema())::pg_catalog.regnamespace
       ::pg_catalog.oid::pg_catalog.int8"""
_PATH: Final = "SELECT pg_catalog.set_config('search_path', %s, true)"
_EXPECTED: Final = frozenset({"0A", "22", "23", "2F", "3F", "42", "54"})
"""SQLSTATE classes of errors which mean that a text cannot be analysed."""
_REGCONFIG: Final = 3734
_ASSIGNING: Final = "headrace_assigning"
_ASSIGN: Final = "INSERT INTO pg_temp.headrace_assigning VALUES ($1)"
_IN_PARENTHESES: Final = re.compile(r"\([-0-9, ]+\)")
_MODIFIED: Final = {
    **{t.NUMERIC: "numeric", t.VARCHAR: "varchar", t.BPCHAR: "bpchar"},
    **{t.TIMESTAMP: "timestamp", t.TIMESTAMPTZ: "timestamptz"},
}
"""Types whose modifiers mean the same for a literal as for any other value."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A parameter or variable of a body: its name, "" if none, and the OID of its type."""

    name: str
    type: int


class Twins:
    """Analyses the texts of function bodies as the caller of one plan."""

    def __init__(self, analysis: Analysis, catalog: Catalog, path: str) -> None:
        """``path`` is the search path of user functions that do not set their own."""
        self._analysis = analysis
        self._catalog = catalog
        self.path = path
        self._assignments: dict[tuple[int, int, int], Node] = {}

    def tree(
        self, function: str, parameters: Sequence[Variable], text: str, path: str | None = None
    ) -> Node:
        """Return the tree of ``text``, a statement in the body of ``function``.

        ``path``: the search path that the function sets.

        Raises:
            UnsupportedError: Postgres cannot analyse the text, or its meaning may change.
        """
        declared = ", ".join(
            f"{identifier(p.name)} {self._catalog.types[p.type].name}"
            if p.name
            else self._catalog.types[p.type].name
            for p in parameters
        )
        prefix = (
            f"CREATE FUNCTION pg_temp.{identifier(function)}({declared})"
            " RETURNS SETOF pg_catalog.record LANGUAGE sql BEGIN ATOMIC "
        )
        try:
            with self._analysis.analysing() as conn:
                tree = self._made(conn, function, prefix, text, self.path if path is None else path)
        except (HeadraceError, psycopg.Error) as error:
            code = (error.sqlstate if isinstance(error, psycopg.Error) else error.code) or ""
            if code[:2] not in _EXPECTED:
                raise
            said = getattr(error, "message", None) or str(error).splitlines()[0]
            raise UnsupportedError(f"its body cannot be analysed: {said}") from error
        self._require_fixed(tree, text)
        return tree

    def type_of(self, declared: str, path: str | None = None) -> int | None:
        """Return the OID of the type that ``declared`` names; a modifier is ignored."""
        try:
            with self._analysis.analysing() as conn:
                conn.execute(_PATH, (self.path if path is None else path,))
                row: Any = conn.execute(_TYPE, (declared,)).fetchone()
        except psycopg.ProgrammingError:
            return None
        return None if row is None or row[0] is None else int(row[0])

    def type_name(self, oid: int) -> str | None:
        """Return the name of a type under the path of the caller.

        None if a type created later could change it: one of the same name in an earlier schema.
        """
        if oid not in self._catalog.mentioned:
            return None
        with self._analysis.analysing() as conn:
            conn.execute(_PATH, (self.path,))
            row: Any = conn.execute(_NAME, (oid,)).fetchone()
        return None if row is None or row[1] not in (None, 1) else str(row[0])

    def modifier(self, oid: int, declared: str) -> int:
        """Return the modifier that ``declared`` gives the type ``oid``.

        Raises:
            UnsupportedError: it is not known how an assignment converts values to the modifier.
        """
        found = _IN_PARENTHESES.search(declared)
        if found is None or oid not in _MODIFIED:
            raise UnsupportedError(f"its body has a variable of type {declared}")
        query = f"SELECT NULL::pg_catalog.{_MODIFIED[oid]}{found[0]}"
        with self._analysis.analysing() as conn:
            result = conn.pgconn.exec_params(query.encode(), None)
        if result.status != ExecStatus.TUPLES_OK:
            raise UnsupportedError(f"its body has a variable of type {declared}")
        return result.fmod(0)

    def assignment(self, source: int, target: int, modifier: int) -> Node:
        """Return the expression by which PL/pgSQL converts a value ($1) of ``source`` to assign it.

        Columns are assigned like variables, except that a variable takes any value by its text.

        Raises:
            UnsupportedError: Postgres has no assignment cast.
        """
        key = (source, target, modifier)
        if key not in self._assignments:
            self._assignments[key] = self._assignment(*key)
        return self._assignments[key]

    def _assignment(self, source: int, target: int, modifier: int) -> Node:
        types = self._catalog.types
        column = types.with_modifier(target, modifier)
        prefix = (
            f"CREATE FUNCTION pg_temp.{_ASSIGNING}({types[source].name})"
            " RETURNS pg_catalog.void LANGUAGE sql BEGIN ATOMIC "
        )
        try:
            with self._analysis.analysing() as conn:
                session.make(conn, (f"CREATE TEMPORARY TABLE {_ASSIGNING} (c ", column, ")"))
                session.make(conn, (prefix, _ASSIGN, "; END"))
                with acting.own_names(conn):
                    row: Any = conn.execute(_TREE, (_ASSIGNING,)).fetchone()
        except HeadraceError as error:
            if (error.code or "")[:2] != "42":
                raise
            raise UnsupportedError(
                f"its body assigns a value of type {types[source].name} to one of type {column}"
            ) from error
        [tree] = read_nodes(row[0][1:-1])
        [entry] = tree.nodes("targetList")
        return entry.child("expr")

    def first_schema(self, path: str | None) -> int:
        """Return the OID of the first schema of ``path`` after pg_catalog; 0 if there is none."""
        with self._analysis.analysing() as conn:
            conn.execute(_PATH, (self.path if path is None else path,))
            row: Any = conn.execute(_SCHEMA).fetchone()
        return 0 if row is None or row[0] is None else int(row[0])

    def _made(self, conn: Connection, function: str, prefix: str, text: str, path: str) -> Node:
        conn.execute(_PATH, (path,))
        # One statement that can be prepared cannot end the body and begin another statement.
        session.check_syntax(conn, text)

        def analysed(copy: str) -> Node:
            with conn.transaction(force_rollback=True):
                session.make(conn, (prefix, copy, "\n; END"))
                with acting.own_names(conn):
                    row: Any = conn.execute(_TREE, (function,)).fetchone()
            [tree] = read_nodes(row[0][1:-1])
            return tree

        found = literals.suspects(text, standard_strings=session.standard_strings(conn))
        if found:
            literals.Rehearsal(conn, text, found).run(analysed, mentioned)
        return analysed(text)

    def _require_fixed(self, tree: Node, text: str) -> None:
        """Raise if a constant of ``tree`` may have another value the next time it is read."""
        check.refuse_clock_literals(
            tree,
            Text(text, standard_strings=True),
            lambda _: None,
            lambda oid: functions.reads_clock(self._catalog, oid),
            self._catalog.now,
        )
        for node in tree.walk():
            oid = node.number("consttype") if node.kind == "CONST" else 0
            if not functions.is_reg_type(oid) or node.flag("constisnull"):
                continue
            value = node.fields.get("constvalue")
            known = (
                isinstance(value, bytes) and int.from_bytes(value[:4], "little") < FIRST_USER_OID
            )
            if oid != _REGCONFIG or not known:
                name = self._catalog.types[oid].name
                raise UnsupportedError(f"its body has a constant of type {name}")
