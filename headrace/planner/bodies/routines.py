"""User functions and their bodies, read from the catalog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from headrace.planner.bodies.twin import Variable
from headrace.postgres.connect import Connection

_ROUTINE: Final = """
SELECT p.proname, l.lanname, p.prosrc, p.prosqlbody::text, p.prosecdef, p.proconfig,
       p.prorettype::int8, p.proretset, p.proargtypes::oid[]::int8[],
       p.proallargtypes::int8[], p.proargmodes::text[], p.proargnames, p.proisstrict,
       pg_get_function_sqlbody(p.oid)
  FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_language l ON l.oid = p.prolang
 WHERE p.oid = %s"""
_IN: Final = ("i", "b", "v")
_OUT: Final = ("o", "b", "t")
_PATH: Final = "search_path="


@dataclass(frozen=True, slots=True)
class Routine:
    """A row of pg_proc, with the columns that are needed to analyse its body."""

    oid: int
    name: str
    language: str
    text: str
    stored: str | None
    """The tree of its body, if Postgres stores one."""
    definer: bool
    settings: tuple[str, ...]
    """``name=value`` of its SET clauses."""
    result: int
    returns_set: bool
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    """OUT and INOUT parameters and columns of TABLE."""
    strict: bool
    printed: str
    """SQL of its body, with constants written out."""

    @property
    def sql(self) -> str:
        """Its text, a statement without the final semicolon."""
        return self.text.rstrip().removesuffix(";")

    @property
    def path(self) -> str | None:
        """The search path that it sets."""
        found = (s.removeprefix(_PATH) for s in self.settings if s.startswith(_PATH))
        return next(found, None)

    @property
    def sets_path_only(self) -> bool:
        """Whether it sets nothing but a search path that is the same for every role."""
        return all(s.startswith(_PATH) and "$user" not in s for s in self.settings)


def read(conn: Connection, oid: int) -> Routine | None:
    """Return the function with that OID, or None if there is none."""
    row: Any = conn.execute(_ROUTINE, (oid,)).fetchone()
    if row is None:
        return None
    (name, language, text, stored, definer, config, result, returns_set, declared, *rest) = row
    types, modes, names, strict, printed = rest
    if types is None:
        types, modes = declared, ["i"] * len(declared)
    names = list(names or ()) + [""] * (len(types) - len(names or ()))
    everything = [
        (mode, Variable(called or "", int(kind)))
        for mode, called, kind in zip(modes, names, types, strict=True)
    ]
    return Routine(
        oid,
        name,
        language,
        text,
        stored,
        definer,
        tuple(config or ()),
        int(result),
        returns_set,
        tuple(p for mode, p in everything if mode in _IN),
        tuple(p for mode, p in everything if mode in _OUT),
        strict,
        printed or text,
    )
