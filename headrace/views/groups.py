"""Membership in commit groups: a view with a higher time limit delays its group."""

from __future__ import annotations

from headrace.config import Settings
from headrace.errors import UserError
from headrace.postgres.connect import Connection
from headrace.sql import views
from headrace.sql.view_spec import ViewSpec


def check(conn: Connection, settings: Settings, options: ViewSpec, owner: int) -> None:
    """Raise UserError (22023) if a view of ``owner`` with these options may not be in its group.

    If any view of a group has a higher time limit than the setting, all must have one owner.
    """
    if not options.commit_group:
        return
    members = views.of_others_in_group(conn, options.commit_group, owner)
    if not members:
        return
    if any(each.raises_time(settings) for each in (options, *members)):
        raise UserError(
            f'commit group "{options.commit_group}" has views of another owner',
            detail="A view with a higher view_time_ms_max delays its group, so all views there"
            " must be of one owner.",
            hint="Choose another name for the group.",
            sqlstate="22023",
        )
