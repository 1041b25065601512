"""Operators and casts, each looked up once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.planner.analyse.lookup import rows
from headrace.postgres.connect import Connection
from headrace.types import FIRST_USER_OID

_OPERATOR: Final = """
SELECT o.oid, n.nspname, o.oprname, o.oprcode::oid,
       format('OPERATOR(%%I.%%s)', n.nspname, o.oprname)
  FROM pg_operator o JOIN pg_namespace n ON n.oid = o.oprnamespace WHERE o.oid = ANY (%s)"""
_CAST: Final = """
SELECT castfunc, castmethod::text FROM pg_cast WHERE castsource = %s AND casttarget = %s"""


@dataclass(frozen=True, slots=True)
class Operator:
    """A row of pg_operator."""

    oid: int
    schema: str
    name: str
    function: int
    quoted: str

    @property
    def builtin(self) -> bool:
        """Whether it came with Postgres and lives in pg_catalog."""
        return self.oid < FIRST_USER_OID and self.schema == "pg_catalog"


class OperatorFacts:
    """Operators by OID, and casts by source and target type."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._known: dict[int, Operator] = {}
        self._casts: dict[tuple[int, int], tuple[int, str] | None] = {}

    def __getitem__(self, oid: int) -> Operator:
        """Return the operator with that OID."""
        if oid not in self._known:
            self.load({oid})
        return self._known[oid]

    def load(self, oids: set[int]) -> None:
        """Fetch several operators in one statement."""
        for row in rows(self._conn, _OPERATOR, oids - self._known.keys()):
            self._known[row[0]] = Operator(*row)

    def functions(self) -> set[int]:
        """Return the OIDs of the functions of the operators looked up so far."""
        return {o.function for o in self._known.values()}

    def cast(self, source: int, target: int) -> tuple[int, str] | None:
        """Return (function, method) of the cast between two types, if pg_cast has one."""
        key = (source, target)
        if key not in self._casts:
            self._casts[key] = self._conn.execute(_CAST, key).fetchone()
        return self._casts[key]
