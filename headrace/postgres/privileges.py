"""Rights that roles need for a view to continue, and those that they have lost.

A view acts for its owner: Postgres would execute its query only while the owner may read the
objects that it names.  The right may come from a grant to the owner, to PUBLIC or to a role that
the owner is a member of, or from an attribute.  The objects that an underlying view names are read
by that view's owner.  So a *right* is a role and an object that it must be allowed to use;
``lacking`` asks Postgres which of them it would refuse now.

Row security counts too: a table must stay *open* to the role that reads it, so that none of its
policies applies to that role.  Else the view must be planned again, to carry the policies over
(``planner.passes.row_security``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import psycopg

from headrace.errors import (
    RESYNC,
    DefiniteFailure,
    OwnerGone,
    Repair,
    RightEnded,
    StructureChanged,
    Then,
)
from headrace.postgres.pipelined import Sent

Connection = psycopg.Connection[Any]

Right = tuple[str, int, int, tuple[int, ...], int]
"""(kind, role, object, columns, through): ``owner`` or ``reader`` (the role exists), ``select`` of
columns of a relation (none: of any; 0: of all, for a whole row), ``open`` (a relation), ``usage``
of a schema, ``execute`` of a function.

``through``: 0, or the result table of the underlying view whose query needs the right.  The error
then names only that view."""
Lack = dict[str, Any]
"""JSON: description of a lacking right."""

# The quick check before every write; it joins nothing.
_LACKING: Final = """
SELECT n.i - 1
  FROM unnest(%(kinds)s::text[], %(roles)s::oid[], %(oids)s::oid[], %(columns)s::text[])
       WITH ORDINALITY AS n (kind, role, oid, columns, i)
 WHERE CASE n.kind
   WHEN 'select' THEN NOT (pg_catalog.has_table_privilege(n.role, n.oid, 'SELECT')
     OR CASE WHEN n.columns = '{}'
        THEN pg_catalog.has_any_column_privilege(n.role, n.oid, 'SELECT')
        ELSE (SELECT bool_and(pg_catalog.has_column_privilege(n.role, n.oid, a, 'SELECT'))
                FROM unnest(n.columns::int2[]) a WHERE a <> 0)
         IS NOT FALSE AND (0 <> ALL (n.columns::int2[])
          OR (SELECT bool_and(pg_catalog.has_column_privilege(n.role, n.oid, a.attnum, 'SELECT'))
                FROM pg_catalog.pg_attribute a
               WHERE a.attrelid = n.oid AND a.attnum > 0 AND NOT a.attisdropped)) END)
   WHEN 'open' THEN (SELECT NOT c.relforcerowsecurity
       AND pg_catalog.pg_has_role(n.role, c.relowner, 'USAGE') OR (SELECT r.rolsuper OR r.rolbypassrls
         FROM pg_catalog.pg_roles r WHERE r.oid = n.role)
     FROM pg_catalog.pg_class c WHERE c.oid = n.oid AND c.relrowsecurity) IS FALSE
   WHEN 'usage' THEN NOT pg_catalog.has_schema_privilege(n.role, n.oid, 'USAGE')
   WHEN 'execute' THEN NOT pg_catalog.has_function_privilege(n.role, n.oid, 'EXECUTE')
   ELSE NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = n.role) END
 ORDER BY 1"""
_TOLD: Final = """
SELECT n.i - 1, n.kind, pg_catalog.quote_ident(r.rolname), coalesce(c.relname, p.proname, s.nspname),
       CASE WHEN c.oid IS NOT NULL THEN pg_catalog.format('%%I.%%I', s.nspname, c.relname)
            WHEN p.oid IS NOT NULL THEN pg_catalog.format('%%I.%%I(%%s)', s.nspname, p.proname,
              pg_catalog.pg_get_function_identity_arguments(p.oid))
            ELSE pg_catalog.quote_ident(s.nspname) END,
       c.relkind = 'v',
       CASE WHEN n.kind = 'select' AND n.columns <> '{}'
             AND pg_catalog.has_any_column_privilege(n.role, n.oid, 'SELECT') THEN
         (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(a.attname), ', ' ORDER BY a.attnum)
            FROM pg_catalog.pg_attribute a
           WHERE a.attrelid = n.oid AND (a.attnum = ANY (n.columns::int2[])
               OR 0 = ANY (n.columns::int2[]) AND a.attnum > 0 AND NOT a.attisdropped)
             AND NOT pg_catalog.has_column_privilege(n.role, n.oid, a.attnum, 'SELECT')) END,
       CASE WHEN n.through <> 0 THEN coalesce((SELECT pg_catalog.format('%%I.%%I', h.nspname, v.relname)
         FROM pg_catalog.pg_class v JOIN pg_catalog.pg_namespace h ON h.oid = v.relnamespace
        WHERE v.oid = n.through), '?') END
  FROM unnest(%(kinds)s::text[], %(roles)s::oid[], %(oids)s::oid[], %(columns)s::text[],
              %(through)s::oid[]) WITH ORDINALITY AS n (kind, role, oid, columns, through, i)
  LEFT JOIN pg_catalog.pg_roles r ON r.oid = n.role
  LEFT JOIN pg_catalog.pg_class c ON n.kind IN ('select', 'open') AND c.oid = n.oid
  LEFT JOIN pg_catalog.pg_proc p ON n.kind = 'execute' AND p.oid = n.oid
  LEFT JOIN pg_catalog.pg_namespace s ON s.oid = CASE n.kind WHEN 'usage' THEN n.oid
       WHEN 'execute' THEN p.pronamespace ELSE c.relnamespace END
 ORDER BY 1"""


def lacking(conn: Connection, rights: Iterable[Right]) -> dict[Right, Lack]:
    """Return those of ``rights`` that Postgres would refuse now; dropped objects do not count."""
    asked = sorted(set(rights))
    if not asked:
        return {}
    rows = conn.execute(_LACKING, _arrays(asked), prepare=True).fetchall()
    lacks = [asked[row[0]] for row in rows]
    if not lacks:
        return {}
    told = conn.execute(_TOLD, _arrays(lacks)).fetchall()
    names = ("kind", "role", "name", "shown", "view", "columns", "through")
    return {lacks[row[0]]: dict(zip(names, row[1:], strict=True)) for row in told}


def asking(rights: Iterable[Right]) -> Sent:
    """Return a statement that returns a row for each of ``rights`` that is lacking."""
    return Sent.named(_LACKING, _arrays(sorted(set(rights))))


def _arrays(rights: Sequence[Right]) -> dict[str, list[Any]]:
    return {
        "kinds": [right[0] for right in rights],
        "roles": [right[1] for right in rights],
        "oids": [right[2] for right in rights],
        "columns": ["{" + ",".join(map(str, right[3])) + "}" for right in rights],
        "through": [right[4] for right in rights],
    }


def from_json(found: Iterable[Sequence[Any]]) -> list[Right]:
    """Return rights from the JSON that is stored with a view."""
    return [(k, role, oid, tuple(columns), by) for k, role, oid, columns, by in found]


def error(lacks: Iterable[Lack]) -> DefiniteFailure | None:
    """Return the error of a view that needs these lacking rights; None if there are none.

    A right that has ended comes before row security, since no resync succeeds without it.
    """
    return min(map(_error, lacks), key=lambda e: isinstance(e, StructureChanged), default=None)


def _error(lack: Lack) -> DefiniteFailure:
    kind, role, name, shown = (lack[k] for k in ("kind", "role", "name", "shown"))
    if role is None and kind == "owner":
        return OwnerGone(
            "the role that owned the view was dropped",
            hint="CALL headrace.set_owner(view, role) gives it a new owner.",
        )
    if kind == "open" and role is not None:
        what = f'row security of table "{name}" applies to role {role} now'
        if lack["through"] is not None:
            what = f"row security applies to the owner of view {lack['through']} now"
        return StructureChanged(what, hint=RESYNC)
    if lack["through"] is not None:
        return RightEnded(
            f"the owner of view {lack['through']}, which the view reads, may no longer read its"
            f" tables",
            hint=f"See the message of view {lack['through']}. This view continues by itself once"
            f" that owner has the right again.",
        )
    if role is None:
        return RightEnded("a role with whose rights the view reads was dropped")
    columns = f" ({lack['columns']})" if lack["columns"] else ""
    what, grant = {
        "select": ("view" if lack["view"] else "table", f"GRANT SELECT{columns} ON {shown}"),
        "usage": ("schema", f"GRANT USAGE ON SCHEMA {shown}"),
        "execute": ("function", f"GRANT EXECUTE ON ROUTINE {shown}"),
    }[kind]
    return RightEnded(
        f"permission denied for {what} {name}",
        detail=f"Role {role} needs {'SELECT on it' if kind == 'select' else 'it'}.",
        hint=Repair(f"Run: {grant} TO {role}", Then.RESUMED),
    )
