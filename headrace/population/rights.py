"""Checks at planning time, not at a view's first row, that user-defined code can be evaluated.

Expressions that may run such code are evaluated by an otherwise unprivileged role
(``config.eval_dsn``), which needs the rights to use the types and functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from psycopg.conninfo import conninfo_to_dict

from headrace.collections.plan import to_json
from headrace.errors import PrerequisiteError, UnsupportedError
from headrace.planner import Planned
from headrace.population import uses
from headrace.postgres.connect import Connection
from headrace.postgres.settings import FUNCTION_PATH
from headrace.types import FIRST_USER_OID

# Postgres skips schemas of a search path that the role may not use, so a body would call another
# function of the same name, or none.
_LACKING: Final = """
WITH RECURSIVE called (oid, body) AS (
    SELECT f.oid, lower(f.prosrc) FROM pg_proc f WHERE f.oid = ANY (%(functions)s::oid[])
    UNION
    SELECT g.oid, lower(g.prosrc) FROM called c JOIN pg_proc g ON g.oid >= %(user)s
       AND strpos(c.body, lower(g.proname)) > 0),
path (schema) AS (
    SELECT unnest(string_to_array(%(path)s, ', '))
    UNION SELECT unnest(string_to_array(split_part(s.setting, '=', 2), ', '))
      FROM called c JOIN pg_proc f ON f.oid = c.oid CROSS JOIN unnest(f.proconfig) s (setting)
     WHERE s.setting LIKE 'search_path=%%')
SELECT format('GRANT USAGE ON SCHEMA %%I TO %%I;', n.nspname, %(role)s::text), 1
  FROM path p JOIN pg_namespace n ON quote_ident(n.nspname) = p.schema
 WHERE NOT has_schema_privilege(%(role)s::name, n.oid, 'USAGE')
   AND (EXISTS (SELECT FROM called c JOIN pg_proc g ON g.oid = c.oid WHERE g.pronamespace = n.oid)
     OR EXISTS (SELECT FROM called c JOIN pg_operator o ON strpos(c.body, o.oprname) > 0
                 WHERE o.oprnamespace = n.oid)
     OR EXISTS (SELECT FROM called c JOIN pg_type t ON strpos(c.body, lower(t.typname)) > 0
                 WHERE t.typnamespace = n.oid AND t.typtype <> 'c'))
UNION
SELECT format('GRANT USAGE ON SCHEMA %%I TO %%I;', n.nspname, %(role)s::text), 1
  FROM (SELECT typnamespace FROM pg_type WHERE oid = ANY (%(types)s::oid[])
        UNION SELECT pronamespace FROM pg_proc WHERE oid = ANY (%(functions)s::oid[])
        UNION SELECT oprnamespace FROM pg_operator WHERE oid = ANY (%(operators)s::oid[])) u (oid)
  JOIN pg_namespace n ON n.oid = u.oid
 WHERE NOT has_schema_privilege(%(role)s::name, n.oid, 'USAGE')
UNION
SELECT format('GRANT USAGE ON TYPE %%I.%%I TO %%I;', n.nspname, t.typname, %(role)s::text), 2
  FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
 WHERE t.oid = ANY (%(types)s::oid[]) AND t.typelem = 0
   AND NOT has_type_privilege(%(role)s::name, t.oid, 'USAGE')
UNION
SELECT format('GRANT EXECUTE ON ROUTINE %%I.%%I(%%s) TO %%I;', n.nspname, p.proname,
              pg_get_function_identity_arguments(p.oid), %(role)s::text), 3
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE p.oid = ANY (%(functions)s::oid[])
   AND NOT has_function_privilege(%(role)s::name, p.oid, 'EXECUTE')
 ORDER BY 2, 1"""


def check(conn: Connection, eval_dsn: str, planned: Planned) -> None:
    """Check that the user-defined code in ``planned`` can be evaluated; ``eval_dsn`` may be "".

    Raises:
        UnsupportedError: there is no role for the evaluation.
        PrerequisiteError: 42501, the role lacks a right; the hint says how to grant it.
    """
    types: set[int] = set()
    asked = False
    for node in planned.physical.nodes:
        data = to_json(node)
        for part in untrusted(data):
            asked = True
            # For an aggregate or window function, take the types from its whole node.
            types.update(uses.types_of(part if part["kind"] == "Remote" else data))
    if not asked:
        return
    if not eval_dsn:
        raise UnsupportedError(
            "functions and types that are not built in cannot be evaluated",
            hint="Run headrace init --run as a superuser, give the role of Headrace CREATEROLE, or set"
            " eval_dsn: role headrace_eval, which has no rights, evaluates them.",
        )
    role = str(conninfo_to_dict(eval_dsn).get("user") or "")
    given = {
        "types": list(types),
        "functions": list(planned.functions),
        "operators": [oid for catalog, oid in planned.others if catalog == "pg_operator"],
        "path": planned.settings.get(FUNCTION_PATH, ""),
        "role": role,
        "user": FIRST_USER_OID,
    }
    lacking = conn.execute(_LACKING, given).fetchall()
    if lacking:
        raise PrerequisiteError(
            f'role "{role}" lacks rights that the query needs',
            detail="Expressions that may run user-defined code are evaluated by that role, which"
            " has no other rights.",
            hint="Run: " + " ".join(grant for grant, _ in lacking),
            sqlstate="42501",
        )


def untrusted(data: Any) -> Iterator[dict[str, Any]]:
    """Yield the parts of a plan (as JSON) that the unprivileged role evaluates."""
    if isinstance(data, dict):
        if data.get("trusted") is False:
            yield data
        data = list(data.values())
    if isinstance(data, list):
        for part in data:
            yield from untrusted(part)
