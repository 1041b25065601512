"""Functions and aggregates, each looked up once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from headrace.planner.analyse.lookup import rows
from headrace.planner.analyse.nodetree import Node, read_nodes
from headrace.postgres.connect import Connection
from headrace.types import FIRST_USER_OID

_FUNCTION: Final = """
SELECT p.oid, n.nspname, p.proname, p.provolatile::text, p.prokind::text, p.proretset,
       p.pronargs, format('%%I.%%I', n.nspname, p.proname), p.proisstrict
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE p.oid = ANY (%s)"""
_AGGREGATE: Final = """
SELECT max(p.provolatile::text)
  FROM pg_aggregate a, pg_proc p WHERE a.aggfnoid = %s AND p.oid IN (
       aggtransfn, aggfinalfn, aggcombinefn, aggserialfn, aggdeserialfn, aggmtransfn,
       aggminvtransfn, aggmfinalfn)"""
_OUTPUT_NAMES: Final = """
SELECT coalesce(proargnames[n], '')
  FROM pg_proc, generate_subscripts(proargmodes, 1) n
 WHERE oid = %s AND proargmodes[n] IN ('o', 'b', 't') ORDER BY n"""
_SUPPORT: Final = """
SELECT aggtransfn::oid, aggfinalfn::oid FROM pg_aggregate WHERE aggfnoid = %s"""


@dataclass(frozen=True, slots=True)
class Function:
    """A row of pg_proc."""

    oid: int
    schema: str
    name: str
    volatility: str
    kind: str
    returns_set: bool
    arguments: int
    quoted: str
    """Qualified name as SQL."""
    strict: bool
    """Whether the result is NULL for any NULL argument, without a call."""
    trusted: bool = False
    """Whether its result depends on its arguments alone, though it is not declared IMMUTABLE."""
    doubt: str = ""
    """Reason why it is not known to be ``trusted``."""
    untranslated: bool = False
    """Whether it reads tables in statements that cannot be translated into a query."""

    @property
    def builtin(self) -> bool:
        """Whether it came with Postgres and lives in pg_catalog."""
        return self.oid < FIRST_USER_OID and self.schema == "pg_catalog"


class FunctionFacts:
    """Functions by OID."""

    def __init__(self, conn: Connection, trusted: frozenset[int]) -> None:
        """``trusted`` has the functions that the view's author vouches for, by OID."""
        self._conn = conn
        self._trusted = trusted
        self.doubt: Callable[[Function], str | None] = lambda _: ""
        """Returns why a function's result may depend on more than its arguments, or ``None``."""
        self.gives_rows: Callable[[int], bool] = lambda _: False
        """Returns whether a set-returning function of composite type never returns NULL."""
        self._known: dict[int, Function] = {}
        self._looking: set[int] = set()
        """Functions whose bodies are being examined: a recursive function is not trusted."""

    def __getitem__(self, oid: int) -> Function:
        """Return the function with that OID."""
        if oid not in self._known:
            self.load({oid})
        return self._known[oid]

    def load(self, oids: set[int]) -> None:
        """Fetch several functions in one statement."""
        for row in rows(self._conn, _FUNCTION, oids - self._known.keys()):
            self._known[row[0]] = self._with_trust(Function(*row))

    def _with_trust(self, function: Function) -> Function:
        if function.builtin or function.volatility == "i" or function.kind != "f":
            return function
        if function.oid in self._trusted:
            return replace(function, trusted=True)
        if function.oid in self._looking:
            return function
        self._looking.add(function.oid)
        doubt = self.doubt(function)
        self._looking.discard(function.oid)
        return replace(function, trusted=doubt is None, doubt=doubt or "")

    def set_untranslated(self, oid: int, reason: str) -> None:
        """Record why the statements of a function that reads tables cannot become a query."""
        self._known[oid] = replace(self[oid], doubt=reason, untranslated=True)

    def of_users(self) -> frozenset[int]:
        """Return the OIDs of the functions looked up so far that are not built in."""
        return frozenset(f.oid for f in self._known.values() if not f.builtin)

    def constant_defaults(self, oid: int) -> bool:
        """Return whether all default values of a function's arguments are constants."""
        row = self._conn.execute(
            "SELECT proargdefaults::text FROM pg_proc WHERE oid = %s", (oid,)
        ).fetchone()
        if row is None or row[0] is None:
            return False
        return all(self._constant(node) for root in read_nodes(row[0]) for node in root.walk())

    def _constant(self, node: Node) -> bool:
        if node.kind == "FUNCEXPR":
            function = self[node.number("funcid")]
            return function.builtin and function.volatility == "i"
        return node.kind in ("CONST", "RELABELTYPE")

    def output_names(self, oid: int) -> list[str]:
        """Return the names of a function's OUT and INOUT parameters, as its record has them."""
        names = [name for (name,) in self._conn.execute(_OUTPUT_NAMES, (oid,)).fetchall()]
        return [name or f"column{n}" for n, name in enumerate(names, 1)]

    def aggregate_volatility(self, oid: int) -> str:
        """Return the worst volatility of an aggregate's functions; its own says nothing."""
        row = self._conn.execute(_AGGREGATE, (oid,)).fetchone()
        assert row is not None, "an aggregate has a transition function"
        found: str = row[0]
        return found

    def aggregate_support(self, oid: int) -> tuple[int, ...]:
        """Return the transition and final functions of an aggregate, without missing ones."""
        row = self._conn.execute(_SUPPORT, (oid,)).fetchone()
        return tuple(f for f in row or () if f)
