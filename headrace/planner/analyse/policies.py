"""Row security of a table: its policies for SELECT, and their condition in SQL.

A role sees a row of the table if it is exempt (superuser, BYPASSRLS, or it has the privileges of
the table's owner, unless row security is forced), or if one of the permissive policies that apply
to it lets the row through, and all of the restrictive ones that apply do.

The condition is written for another table that has the same columns, perhaps under other names: the
result table of a view (``passes.row_security``).  There Postgres evaluates it for each reader.  It
names no role in the list of a policy (TO …), because Postgres then would not let a user drop that
role.  A role that does not exist any more has no members, so nothing is shown by mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from psycopg import sql

from headrace.errors import UnsupportedError
from headrace.planner.analyse.catalog import Catalog
from headrace.planner.analyse.nodetree import read_node
from headrace.postgres.connect import Connection

_TABLE: Final = """
SELECT n.nspname, c.relname, c.relforcerowsecurity, pg_get_userbyid(c.relowner)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s"""
_POLICIES: Final = """
SELECT p.polname, p.polpermissive, pg_get_expr(p.polqual, p.polrelid), p.polqual::text,
       CASE WHEN NOT p.polroles @> '{0}' THEN
         ARRAY(SELECT r.rolname::text FROM pg_roles r WHERE r.oid = ANY (p.polroles) ORDER BY 1) END,
       ARRAY(SELECT d.refobjsubid FROM pg_depend d
              WHERE d.classid = 'pg_policy'::regclass AND d.objid = p.oid
                AND d.refclassid = 'pg_class'::regclass AND d.refobjid = p.polrelid
                AND d.refobjsubid > 0 ORDER BY 1)
  FROM pg_policy p
 WHERE p.polrelid = %s AND p.polcmd IN ('r', '*') AND p.polqual IS NOT NULL
 ORDER BY p.polname"""
_COLUMNS: Final = """
SELECT a.attnum, a.attname, t.typtype = 'd' FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
 WHERE a.attrelid = %s AND a.attnum = ANY (%s) ORDER BY a.attname"""
# Functions that are code of a user: not LEAKPROOF, which only a superuser declares, nor compiled.
_CODE: Final = """
SELECT format('%%I.%%I', n.nspname, p.proname)
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE p.oid = ANY (%(functions)s) AND NOT p.proleakproof
   AND (%(every)s OR p.prokind <> 'f' OR p.proretset)
   AND EXISTS (SELECT FROM pg_proc f JOIN pg_language l ON l.oid = f.prolang
                 LEFT JOIN pg_aggregate a ON a.aggfnoid = p.oid
                WHERE f.oid IN (p.oid, a.aggtransfn, a.aggfinalfn, a.aggcombinefn, a.aggserialfn,
                                a.aggdeserialfn, a.aggmtransfn, a.aggminvtransfn, a.aggmfinalfn)
                  AND NOT f.proleakproof AND l.lanname NOT IN ('internal', 'c'))
 ORDER BY 1 LIMIT 1"""
_HINT: Final = (
    "Create the view as a role to which no policy applies, such as the table's owner. Every role"
    " that may read the view then sees all of its rows."
)


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy for SELECT."""

    name: str
    permissive: bool
    condition: str
    """In SQL, over the columns of the table, under search_path = pg_catalog."""
    nested: bool
    """Whether it has a subquery: there columns are written with the table's name."""
    roles: tuple[str, ...] | None
    """Names of the roles that it applies to; None: to all."""
    columns: tuple[int, ...]
    """Numbers of the columns of the table that it reads."""


@dataclass(frozen=True, slots=True)
class RowSecurity:
    """The row security of a table."""

    oid: int
    schema: str
    table: str
    owner: str
    forced: bool
    policies: tuple[Policy, ...]
    columns: Mapping[int, str]
    """Names by number of the columns that its policies read, sorted by name: tables with the same
    condition have them in the same order."""

    def condition(self, names: Mapping[int, str]) -> str:
        """Return the condition over another table.

        ``names``: its column for each of ``columns``, of the same type.
        """
        permissive = [self._one(p, names) for p in self.policies if p.permissive]
        tests = [f"({' OR '.join(permissive) or 'false'})"]
        tests += [self._one(p, names) for p in self.policies if not p.permissive]
        text = " AND ".join(tests)
        if self.forced:
            return text
        return f"CASE WHEN {_has_role(self.owner)} THEN true ELSE {text} END"

    def _one(self, policy: Policy, names: Mapping[int, str]) -> str:
        text = f"({policy.condition})"
        same = all(names[n] == self.columns[n] for n in policy.columns)
        if policy.nested or not same:
            # In this subquery the columns have the names that the policy uses.
            items = ", ".join(
                f"{_quoted(names[n])} AS {_quoted(self.columns[n])}" for n in policy.columns
            )
            named = f"(SELECT {items}) AS {_quoted(self.table)}"
            text = f"(SELECT {policy.condition} FROM {named})"  # noqa: S608  quoted names
        if policy.roles is None:
            return text
        applies = " OR ".join(map(_has_role, policy.roles))
        if policy.permissive:
            return f"CASE WHEN {applies} THEN {text} ELSE false END"
        return f"CASE WHEN ({applies}) IS NOT FALSE THEN {text} ELSE true END"


def load(conn: Connection, catalog: Catalog, oid: int) -> RowSecurity:
    """Return the row security of the table ``oid``.

    REQUIRES: search_path = pg_catalog.

    Raises:
        UnsupportedError: a policy cannot be written for another table.
    """
    row: Any = conn.execute(_TABLE, (oid,)).fetchone()
    schema, table, forced, owner = row
    policies = []
    for name, permissive, text, stored, roles, columns in conn.execute(_POLICIES, (oid,)):
        tree = read_node(stored)
        for node in tree.walk():
            if node.kind == "VAR" and node.number("varattno") <= 0:
                raise refusal(table, f'Policy "{name}" reads whole rows or system columns of it.')
            # Its text is parsed again with the rights of Headrace.
            if node.kind == "CONST" and not catalog.provenance.writable(node.number("consttype")):
                raise refusal(table, f'Policy "{name}" has a constant of a user\'s type.')
        nested = any(node.kind == "SUBLINK" for node in tree.walk())
        told = None if roles is None else tuple(roles)
        policies.append(Policy(name, permissive, text, nested, told, tuple(columns)))
    numbers = sorted({n for policy in policies for n in policy.columns})
    names = {}
    for number, name, domain in conn.execute(_COLUMNS, (oid, numbers)):
        if domain:
            raise refusal(table, f'A policy reads column "{name}", whose type is a domain.')
        names[number] = name
    return RowSecurity(oid, schema, table, owner, forced, tuple(policies), names)


class RowSecurityRefused(UnsupportedError):
    """The table of a view cannot have the row security of a table that the view reads."""


def refusal(table: str, why: str, hint: str = _HINT) -> RowSecurityRefused:
    """Return the error for a view over ``table``, whose row security its table cannot have."""
    said = f'row security of table "{table}" cannot be carried over to the view'
    return RowSecurityRefused(said, detail=why, hint=hint)


def refuse_code(conn: Connection, catalog: Catalog, table: str, *, called: bool) -> None:
    """Refuse a view that would pass rows of ``table``, hidden from its owner, to code of users.

    Postgres passes to such code only rows that the policies have let through.  In a view it is
    called for all rows, and could show their values to any role.

    ``called``: whether expressions call functions of users; else only aggregates and functions in
    FROM are.

    Raises:
        UnsupportedError: a function, or a type whose values run one.
    """
    given = {"functions": list(catalog.functions.of_users()), "every": called}
    row = conn.execute(_CODE, given).fetchone()
    if row is not None:
        why = f"Function {row[0]} would be called for rows that row security hides from some roles."
        hint = f"A superuser may declare the function LEAKPROOF. {_HINT}"
        raise refusal(table, why, hint)
    for oid in sorted(catalog.mentioned):
        if not (catalog.provenance.writable(oid) or catalog.provenance.plain(oid)):
            name = catalog.types[oid].name
            raise refusal(table, f"Values of type {name} run code of a user.")


def _has_role(name: str) -> str:
    """Return the test whether the reader has the privileges of a role; once per query."""
    role = sql.quote(sql.Identifier(name).as_string(None))
    return f"(SELECT pg_catalog.pg_has_role(pg_catalog.to_regrole({role}), 'USAGE'))"


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string(None)
