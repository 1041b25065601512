"""Rights that roles need on the source and that a server grants to PUBLIC, unless it was hardened.

``create_view`` needs them for three roles: Headrace's own, the role that evaluates functions of
users, and the caller.  ``headrace check`` reports those that are lacking, and ``headrace init``
grants them.  Rights on single objects, such as SELECT on a table, are not checked here: the error
of a call names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from headrace.postgres import acting

Connection = psycopg.Connection[Any]

ENGINE: Final = ("CONNECT", "CREATE", "TEMPORARY")
"""Rights of Headrace's role on the database."""
EVALUATOR: Final = ("CONNECT",)
CALLER: Final = ("TEMPORARY",)
"""Queries are checked as temporary views; a role that cannot connect calls nothing."""

OWNERS: Final = """
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_catalog.pg_roles o ON o.oid = c.relowner
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'headrace')
   AND n.nspname !~ '^pg_' AND o.rolname <> %(engine)s
"""
"""The end of a query over the owners ``o`` of users' tables ``c`` in schemas ``n``."""
# A role that does not exist yet has the rights of PUBLIC, whose OID is 0.
_DATABASE: Final = """
SELECT w.role, pg_catalog.array_agg(p.name ORDER BY p.place),
       'DATABASE', pg_catalog.current_database()::text
  FROM unnest(%(roles)s::text[]) w (role)
 CROSS JOIN unnest(%(rights)s::text[]) WITH ORDINALITY p (name, place)
  LEFT JOIN pg_catalog.pg_roles r ON r.rolname = w.role
 WHERE NOT pg_catalog.has_database_privilege(
           coalesce(r.oid, 0), pg_catalog.current_database(), p.name)
 GROUP BY w.role ORDER BY w.role
"""
_LANGUAGES: Final = """
SELECT w.role, ARRAY['USAGE'], 'LANGUAGE', l.lanname::text
  FROM unnest(%(roles)s::text[]) w (role) CROSS JOIN pg_catalog.pg_language l
  LEFT JOIN pg_catalog.pg_roles r ON r.rolname = w.role
 WHERE l.lanname IN ('plpgsql', 'sql')
   AND NOT pg_catalog.has_language_privilege(coalesce(r.oid, 0), l.oid, 'USAGE')
 ORDER BY w.role, l.lanname
"""
_OWN_SCHEMAS: Final = f"""
SELECT DISTINCT o.rolname::text, ARRAY['USAGE'], 'SCHEMA', n.nspname::text {OWNERS}
   AND NOT {acting.SUPERUSER}
   AND NOT pg_catalog.has_schema_privilege(o.oid, n.oid, 'USAGE') ORDER BY 1, 4
"""
_CALLERS: Final = f"""
SELECT o.rolname {OWNERS} AND NOT {acting.SUPERUSER}
   AND (NOT o.rolcanlogin OR
        pg_catalog.has_database_privilege(o.oid, pg_catalog.current_database(), 'CONNECT'))
 UNION
SELECT o.rolname FROM pg_catalog.pg_roles o, pg_catalog.pg_roles e
 WHERE o.rolcanlogin AND e.rolname = %(engine)s AND o.oid <> e.oid AND NOT {acting.SUPERUSER}
   AND NOT o.rolreplication AND pg_catalog.pg_has_role(e.oid, o.oid, 'USAGE')
   AND pg_catalog.has_database_privilege(o.oid, pg_catalog.current_database(), 'CONNECT')
 ORDER BY 1
"""  # noqa: S608  constants
_PUBLIC_SCHEMA: Final = """
SELECT w.role, ARRAY['USAGE'], 'SCHEMA', n.nspname::text
  FROM unnest(%(roles)s::text[]) w (role) CROSS JOIN pg_catalog.pg_namespace n
  LEFT JOIN pg_catalog.pg_roles r ON r.rolname = w.role
 WHERE n.nspname = 'public' AND NOT pg_catalog.has_schema_privilege(coalesce(r.oid, 0), n.oid, 'USAGE')
   AND EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.pronamespace = n.oid)
 ORDER BY w.role
"""
_EVALUATORS: Final = """
SELECT rolname::text FROM pg_catalog.pg_roles
 WHERE rolname = %(given)s OR rolname = 'headrace_eval'
    OR rolname = 'headrace_eval_' || (SELECT oid FROM pg_catalog.pg_database
                                       WHERE datname = pg_catalog.current_database())
 ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class LackingRight:
    """Rights on one object that a role needs and does not have."""

    role: str
    rights: tuple[str, ...]
    kind: str
    """DATABASE, SCHEMA or LANGUAGE."""
    name: str

    @property
    def shown(self) -> str:
        """The rights and the object, in words."""
        return f'{", ".join(self.rights)} on {self.kind.lower()} "{self.name}"'

    @property
    def grant(self) -> sql.Composed:
        """The statement that gives the rights."""
        return sql.SQL("GRANT {} ON {} {} TO {}").format(
            sql.SQL(", ").join(map(sql.SQL, self.rights)),
            sql.SQL(self.kind),
            sql.Identifier(self.name),
            sql.Identifier(self.role),
        )


def of_engine(conn: Connection, engine: str) -> list[LackingRight]:
    """Return the rights that Headrace's role lacks."""
    return [*_of_database(conn, [engine], ENGINE), *_of_languages(conn, [engine])]


def of_evaluators(conn: Connection, given: str | None) -> list[LackingRight]:
    """Return what lacks the roles that evaluate functions of users; ``given`` is one of them.

    Functions, types and other schemas are checked for each query (``population.rights``).
    """
    roles = [str(row[0]) for row in conn.execute(_EVALUATORS, {"given": given})]
    return _of_evaluators(conn, roles)


def of_evaluator(conn: Connection, role: str) -> list[LackingRight]:
    """Return what ``role`` lacks to evaluate functions of users; it may not exist yet."""
    return _of_evaluators(conn, [role])


def _of_evaluators(conn: Connection, roles: Sequence[str]) -> list[LackingRight]:
    return [
        *_of_database(conn, roles, EVALUATOR),
        *_read(conn, _PUBLIC_SCHEMA, {"roles": list(roles)}),
    ]


def of_callers(conn: Connection, engine: str) -> list[LackingRight]:
    """Return what lacks the owners of tables, and the other roles that Headrace may act for."""
    roles = [str(row[0]) for row in conn.execute(_CALLERS, {"engine": engine})]
    return [
        *_of_database(conn, roles, CALLER),
        *_of_languages(conn, roles),
        *_read(conn, _OWN_SCHEMAS, {"engine": engine}),
    ]


def of_caller(conn: Connection, role: str) -> list[LackingRight]:
    """Return what ``role`` lacks to call ``create_view``."""
    return [*_of_database(conn, [role], CALLER), *_of_languages(conn, [role])]


def _of_database(
    conn: Connection, roles: Sequence[str], rights: Sequence[str]
) -> list[LackingRight]:
    return _read(conn, _DATABASE, {"roles": list(roles), "rights": list(rights)})


def _of_languages(conn: Connection, roles: Sequence[str]) -> list[LackingRight]:
    return _read(conn, _LANGUAGES, {"roles": list(roles)})


def _read(conn: Connection, query: str, given: dict[str, Any]) -> list[LackingRight]:
    rows = conn.execute(query, given).fetchall()
    return [LackingRight(role, tuple(rights), kind, name) for role, rights, kind, name in rows]
