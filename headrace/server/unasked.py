"""Resyncs without a call, for stopped views and for those that lag."""

from __future__ import annotations

from typing import Any

import structlog

from headrace import errors
from headrace.server.commands import Commands
from headrace.server.context import CallContext
from headrace.server.procedures import Invocation

_log = structlog.get_logger(__name__)


async def resync(
    commands: Commands, view_id: int, name: str, owner: str, because: str, **only: Any
) -> errors.HeadraceError | None:
    """Resync a view with the rights of its owner; return the error if that fails.

    ``view_id``: another call may have resynced it meanwhile, while this one waited for other jobs.
    ``only``: more conditions (``ResyncView``).
    """
    wanted = {"name": name, "of": view_id, "because": because, "unasked": True, **only}
    try:
        await commands.run(
            Invocation("resync_view", wanted),
            CallContext(owner, {}),
            lambda line: _log.info("resync", view=name, line=line),
        )
    except errors.HeadraceError as error:
        return error
    except Exception as error:  # noqa: BLE001  the boundary of one view's resync
        _log.exception("resync ended by a bug", view=name)
        return errors.BugError(f"internal error in rebuilding the view: {error!r}")
    _log.info("view is rebuilt", view=name, because=because)
    return None
