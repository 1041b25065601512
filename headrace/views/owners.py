"""set_owner: give a view another owner, as ALTER TABLE … OWNER TO does for a table.

A view's result depends on its owner's rights. So its query is planned again with the rights of the
new owner, and the view is filled anew.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.errors import PrivilegeError, UndefinedError
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.names import Role
from headrace.population.populate import planning
from headrace.postgres.connect import Connection
from headrace.sql.verbs import SetOwner
from headrace.sql.views import ViewRow
from headrace.views import groups, quotas
from headrace.views.pause import check_not_live
from headrace.views.resync import Resync, plan_again, read

_SET_OPTION_SINCE: Final = 160_000
_MAY: Final = """
SELECT r.rolsuper, pg_has_role(r.oid, %(role)s::bigint::oid, %(option)s),
       has_schema_privilege(%(role)s::bigint::oid, n.oid, 'CREATE')
  FROM pg_roles r, pg_namespace n WHERE r.rolname = %(caller)s AND n.nspname = %(schema)s"""


def set_owner(context: JobContext, job: Job, request: SetOwner) -> dict[str, Any]:
    """Give a view to another role, and fill it anew with the rights of that role.

    Raises:
        UndefinedError: 42P01, no such view; 42704, no such role.
        PrivilegeError: the caller is not its owner, or may not act as the new one; or the new
            one may not create in its schema, or read the view's tables.
        UserError: 53400, the new owner may have no more views.
        HeadraceError: as ``resync_view``; the view is as before.
    """
    with planning(context, job) as conn:
        view = names.find_owned(conn, request.name, request.caller, request.settings)
        check_not_live(context, job, view)
        owner = _role(conn, request.role)
        if owner.oid == view.owner:
            return {"notice": f'view "{view.name}" belongs to that role already'}
        _check_may(conn, view, owner, request.caller)
        if request.caller and not quotas.is_exempt(conn, request.caller):
            quotas.check_views(conn, context.settings, owner.name)
        stored = read(conn, view)
        groups.check(conn, context.settings, stored.options, owner.oid)
        again = plan_again(context, conn, view, stored, owner)
    return Resync(context, job, view, stored, again).run()


def _role(conn: Connection, text: str) -> Role:
    """Return the role named by ``text``, an SQL identifier."""
    parts = names.parse(conn, text)
    if parts[0] is not None:
        raise UndefinedError(f'role "{text}" does not exist')
    return names.role(conn, parts[1])


def _check_may(conn: Connection, view: ViewRow, owner: Role, caller: str | None) -> None:
    """Check the privileges that Postgres requires for ALTER TABLE … OWNER TO."""
    if caller is None:
        return
    option = "SET" if conn.info.server_version >= _SET_OPTION_SINCE else "MEMBER"
    row: Any = conn.execute(
        _MAY, {"role": owner.oid, "option": option, "caller": caller, "schema": view.schema}
    ).fetchone()
    if row is None:
        raise UndefinedError(f'role "{caller}" does not exist')
    superuser, becomes, creates = row
    if superuser:
        return
    if not becomes:
        raise PrivilegeError(f'must be able to SET ROLE "{owner.name}"')
    if not creates:
        raise PrivilegeError(
            f"permission denied for schema {view.schema}",
            detail=f'Role "{owner.name}" may not create in it.',
        )
