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

_LACKING: Final = """
SELECT format('GRANT USAGE ON SCHEMA %%I TO %%I;', n.nspname, %(role)s::text), 1
  FROM (SELECT typnamespace FROM pg_type WHERE oid = ANY (%(types)s::oid[])
        UNION SELECT pronamespace FROM pg_proc WHERE oid = ANY (%(functions)s::oid[])) u (oid)
  JOIN pg_namespace n ON n.oid = u.oid
 WHERE NOT has_schema_privilege(%(role)s::name, n.oid, 'USAGE')
UNION ALL
SELECT format('GRANT USAGE ON TYPE %%I.%%I TO %%I;', n.nspname, t.typname, %(role)s::text), 2
  FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
 WHERE t.oid = ANY (%(types)s::oid[]) AND t.typelem = 0
   AND NOT has_type_privilege(%(role)s::name, t.oid, 'USAGE')
UNION ALL
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
    lacking = conn.execute(
        _LACKING, {"types": list(types), "functions": list(planned.functions), "role": role}
    ).fetchall()
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
