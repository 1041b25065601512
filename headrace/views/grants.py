"""Privileges on a result table when its view gets another owner.

They change as with ALTER TABLE … OWNER TO: the new owner gets the old owner's privileges, and
privileges that the old owner granted stay granted. The engine remains the owner of the table and
the grantor of these privileges.
"""

from __future__ import annotations

from typing import Any, Final

from psycopg import sql

from headrace.population.names import Role
from headrace.postgres.connect import Connection

_GRANTED: Final = """
SELECT a.privilege_type, a.is_grantable, t.attname, a.grantee = %(old)s::bigint::oid,
       CASE WHEN a.grantee <> 0 THEN g.rolname END
  FROM (SELECT NULL::name, c.relacl FROM pg_class c WHERE c.oid = %(table)s
        UNION ALL SELECT c.attname, c.attacl FROM pg_attribute c
         WHERE c.attrelid = %(table)s AND c.attnum > 0 AND NOT c.attisdropped) t (attname, acl)
 CROSS JOIN LATERAL aclexplode(t.acl) a LEFT JOIN pg_roles g ON g.oid = a.grantee
 WHERE %(old)s::bigint::oid IN (a.grantor, a.grantee)"""
_TABLE: Final = """
SELECT n.nspname, c.relname, r.rolname
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_roles r ON r.oid = %(old)s::bigint::oid AND r.oid <> c.relowner
 WHERE c.oid = %(table)s"""


def move(conn: Connection, table: int, old: int | None, new: Role) -> None:
    """Transfer the privileges of role ``old`` on a result table to ``new``; ``old`` may be gone.

    REQUIRES: a transaction.
    """
    asked = {"table": table, "old": old}
    row: Any = conn.execute(_TABLE, asked).fetchone()
    name, loser = sql.Identifier(*row[:2]), row[2]
    next_owner = sql.Identifier(new.name)
    grants: list[tuple[Any, Any, Any, sql.Composable]] = [("SELECT", True, None, next_owner)]
    if loser is not None:  # privileges of the engine as the table's owner are not transferred
        for privilege, grantable, column, his, grantee in conn.execute(_GRANTED, asked):
            to = sql.SQL("PUBLIC") if grantee is None else sql.Identifier(grantee)
            grants.append((privilege, grantable, column, next_owner if his else to))
    for privilege, grantable, column, grantee in grants:
        columns = sql.SQL(" ({})").format(sql.Identifier(column)) if column else sql.SQL("")
        conn.execute(
            sql.SQL("GRANT {}{} ON TABLE {} TO {}{}").format(
                sql.SQL(privilege),
                columns,
                name,
                grantee,
                sql.SQL(" WITH GRANT OPTION" if grantable else ""),
            )
        )
    if loser is not None:
        conn.execute(
            sql.SQL("REVOKE ALL ON TABLE {} FROM {} CASCADE").format(name, sql.Identifier(loser))
        )
