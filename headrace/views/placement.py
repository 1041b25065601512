"""set_placement: another worker keeps a view's states and computes its changes from then on.

What the view is stays as it is; its states are made anew where they are kept, as in a resync: its
table is read on meanwhile, and what differs when it has moved (nothing, as a rule) is exchanged.
"""

from __future__ import annotations

from typing import Any

from headrace.errors import UnsupportedError
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.options import ViewOptions
from headrace.population.populate import planning
from headrace.population.staging import Staging
from headrace.postgres.connect import Connection
from headrace.sql import points, views
from headrace.sql.verbs import SetPlacement
from headrace.sql.views import StoredView, ViewRow
from headrace.views import workers
from headrace.views.pause import check_not_live
from headrace.views.resync import Replanned, Resync, owner_of, plan_again, read


def set_placement(context: JobContext, job: Job, request: SetPlacement) -> dict[str, Any]:
    """Place a view on another worker.

    Raises:
        UndefinedError: 42P01, no such view; 42704, no such worker.
        PrivilegeError: the caller is not the view's owner.
        UnsupportedError: others are fed from the view, or it is fed itself (option ``from``).
        HeadraceError: as ``resync_view``; the view is as before.
    """
    with planning(context, job) as conn:
        view = names.find_owned(conn, request.name, request.caller, request.settings)
        check_not_live(context, view)
        workers.check(conn, request.worker)
        stored = read(conn, view)
        options = ViewOptions.of({**stored.options, "placement": request.worker})
        if options.placement == ViewOptions.of(stored.options).placement:
            return {"notice": f'view "{view.name}" is there already'}
        fed = [name for p in points.of_view(conn, view.id) for name in points.fed(conn, p.name)]
        if fed:
            raise UnsupportedError(
                f'view "{view.name}" cannot be on another worker than those it feeds',
                detail=f"Fed from its connection points: {', '.join(fed)}.",
                hint='Make these without option "from" first.',
            )
        again = plan_again(context, conn, view, stored, owner_of(conn, view, request.caller))
    return _Moved(context, job, view, stored, again, request.worker).run()


class _Moved(Resync):
    """A resync onto another worker."""

    def __init__(
        self,
        context: JobContext,
        job: Job,
        view: ViewRow,
        stored: StoredView,
        again: Replanned,
        worker: str,
    ) -> None:
        super().__init__(context, job, view, stored, again)
        self._to = worker

    def appear(self, conn: Connection, staged: Staging, facts: dict[str, Any]) -> None:
        """See ``Resync``."""
        super().appear(conn, staged, facts)
        # Who removes it waits until the view is there, or this sees that it is gone.
        workers.check(conn, self._to)
        views.set_placement(conn, self._view_id, self._to)
