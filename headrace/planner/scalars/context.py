"""Context of a query for the whole planner: catalog, positions in its text, session.

Expressions are made with it (``build``, ``casts``), and unsupported ones are refused with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, LiteralString, NoReturn

import psycopg

from headrace import types as t
from headrace.errors import UnsupportedError
from headrace.expressions.native import TypeRef
from headrace.planner.analyse import session
from headrace.planner.analyse.analysis import Analysis
from headrace.planner.analyse.catalog import Catalog
from headrace.planner.analyse.nodetree import Node
from headrace.planner.analyse.pg_functions import Function
from headrace.planner.logical.scalar import Expr, Ref, constant, to_sql
from headrace.planner.scalars import functions
from headrace.planner.scalars.constants import Constants
from headrace.postgres.connect import Connection

Position = Callable[[int], int | None]
Find = Callable[[str], int | None]

RECORDS: Final = frozenset({t.RECORD, t.RECORD_ARRAY})
"""record and record[], which exist only inside expressions."""
_QUOTED: Final = re.compile(r'"([^"]+)"')
_MONEY_ANYWHERE: Final = frozenset(
    {
        *("=", "<>", "<", "<=", ">", ">="),
        *("is_null", "is_not_null", "is_distinct_from", "coalesce", "case"),
    }
)
"""Operations that do not depend on the text form of money; evaluation always uses C."""


class QueryContext:
    """One query, as needed to make its expressions."""

    def __init__(
        self,
        conn: Connection,
        analysis: Analysis,
        catalog: Catalog,
        constants: Constants,
        places: tuple[Position, Find],
        *,
        money_plain: bool = True,
    ) -> None:
        """``places`` find a location of the tree, and a pattern, in the text of the query.

        ``money_plain``: lc_monetary of the query is C or POSIX.
        """
        self._conn = conn
        self.analysis = analysis
        self.catalog = catalog
        self.constants = constants
        self._position, self._find = places
        self._money_plain = money_plain
        self.whole_xml: set[int] = set()
        """Columns whose output texts give the same values of type xml, by id (``xml_values``)."""

    @property
    def database(self) -> str:
        """The database of the query."""
        return self._conn.info.dbname

    # -- refusal of unsupported constructs, and their positions

    def refuse(
        self, what: str, node: Node | None = None, *, pattern: str = "", **more: str | None
    ) -> NoReturn:
        """Raise UnsupportedError: ``what`` is not supported, at ``node`` or ``pattern``."""
        place = self.position(node)
        if place is None and pattern:
            place = self._find(pattern)
        if place is None and (name := _QUOTED.search(what)) is not None:
            place = self._find(rf"\b{re.escape(name[1])}\b")
        raise UnsupportedError(
            what if "not supported" in what else f"{what} is not supported", position=place, **more
        )

    def refuse_money(self, symbol: str, oids: Sequence[int]) -> None:
        """Refuse ``symbol`` over these types if it depends on the text form of money."""
        if t.MONEY in oids and not self._money_plain and symbol not in _MONEY_ANYWHERE:
            self.refuse("an expression over type money where lc_monetary is not C or POSIX")

    def find(self, pattern: str) -> int | None:
        """Return the position of the first match of ``pattern`` in the query."""
        return self._find(pattern)

    def position(self, node: Node | None) -> int | None:
        """Return the position of ``node`` in the query, if the server keeps it."""
        if node is None:
            return None
        found = self._position(node.number("location", -1))
        if found is not None:
            return found
        for name in ("arg", "args", "expr", "xpr"):
            value = node.fields.get(name)
            inner = value[0] if isinstance(value, list) and value else value
            if isinstance(inner, Node) and (found := self.position(inner)) is not None:
                return found
        return None

    # -- types, and expressions as SQL

    def type_name(self, oid: int) -> str:
        """Return SQL for the type, without modifier."""
        return self.catalog.types[oid].name

    def plain_type(self, oid: int) -> bool:
        """Return whether handling values of the type can run no code of a user."""
        return self.catalog.provenance.trusted(oid)

    def types(self, args: Sequence[Expr], collation: int) -> list[TypeRef]:
        """Return the types of ``args`` under an input collation, for ``native.resolve``."""
        described = [(a.oid, a.typmod, constant(a)) for a in args]
        return self.catalog.type_refs(described, collation)

    def function(self, oid: int, node: Node) -> Function:
        """Return the function of that OID, if a view may call it."""
        function = self.catalog.functions[oid]
        if (reason := functions.refusal(function)) is not None:
            self.refuse_call(function, reason, node)
        return function

    def refuse_call(self, function: Function, reason: str, node: Node) -> NoReturn:
        """Raise UnsupportedError: a view may not call ``function``, for ``reason``."""
        detail, hint = functions.doubted(function), functions.remedy(function)
        self.refuse(reason, node, detail=detail, hint=hint)

    def result(self, node: Node, field: str, collation: str) -> tuple[int, int, int]:
        """Return (type, modifier, collation) of ``node``; refuse pseudo-types other than record."""
        oid = self.catalog.types.base(node.number(field))
        if self.catalog.types[oid].kind == "p" and oid not in RECORDS:
            self.refuse(f"an expression of pseudo-type {self.type_name(oid)}", node)
        return oid, -1, node.number(collation)

    def sql(self, expr: Expr, column: Callable[[Ref], str]) -> str:
        """Return exact SQL of ``expr`` over ``column`` names; collations are made explicit."""

        def reference(ref: Ref) -> str:
            own = self.catalog.types[ref.oid].collation
            if not ref.collation or ref.collation == own:
                return column(ref)
            collation = self.catalog.collations.get(ref.collation)
            assert collation is not None, "the collation is not 0"
            return f"({column(ref)} COLLATE {collation.quoted})"

        return to_sql(expr, reference, self.type_name)

    # -- analysis of generated SQL by Postgres

    def analysed(self, query: str) -> Node:
        """Return the tree of a generated query, ready to be lowered.

        Raises:
            psycopg.Error: Postgres does not accept it.
        """
        with self.analysis.analysing() as conn:
            tree = session.made_view(conn, query, "headrace_proof").tree
        self.constants.load([tree], query)
        return tree

    def described(self, query: str) -> list[tuple[str, int, int, int]]:
        """Return (name, type, typmod, collation) of the columns of a generated query."""
        with self.analysis.analysing() as conn:
            return session.made_view(conn, query, "headrace_shape").columns

    def computed(self, sql: str) -> tuple[str | None] | None:
        """Return the value of a constant expression, as text; None if computing it fails."""
        try:
            with self.analysis.analysing() as conn:
                [text] = session.output_texts(conn, [sql])
        except psycopg.Error as error:
            if (error.sqlstate or "")[:2] not in ("22", "23", "42"):
                raise
            return None
        return (text,)

    def fetch(self, query: LiteralString, argument: str) -> Any:
        """Return the value of ``query`` for ``argument`` under the pinned settings."""
        row = self._conn.execute(query, (argument,)).fetchone()
        assert row is not None, "a value"
        return row[0]
