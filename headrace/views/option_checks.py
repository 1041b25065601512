"""The checks of a view's options that need its plan or the database.

``sql/view_spec.py`` has made all others when the request entered.
"""

from __future__ import annotations

from headrace.config import Settings
from headrace.planner import Planned
from headrace.population import placing
from headrace.postgres.connect import Connection
from headrace.sink import keys
from headrace.sql import history
from headrace.sql.view_spec import ViewSpec
from headrace.views import groups


def check(
    conn: Connection, settings: Settings, options: ViewSpec, planned: Planned, owner: int
) -> None:
    """Check the options of a planned view of ``owner``, the OID of a role.

    Raises:
        UserError: the key has columns that the view does not have, or whose types cannot be in
            one; the commit group has views of another owner; the history is not an interval; or a
            worker of the placement does not exist.
    """
    keys.check(conn, planned.columns, options.key or ())
    groups.check(conn, settings, options, owner)
    if options.history is not None:
        history.interval(conn, options.history)
    placing.check_all(conn, options.placement, planned.parts)
