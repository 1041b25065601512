"""Suspension of a view so that another view can go on with its states; on the engine's thread.

    suspend ─► durable ─► (catalog: a view of another id) ─► that view inherits (``loading.py``)

Nothing is exported: the states stay where they are, as of a durable mark.  The other view gets
them only if that mark is still theirs.  If the first view is resumed or dropped while the other
one is staged, the states stay (``Leaving.drop_state``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from headrace.errors import QueryCancelled, TransientError
from headrace.runtime.durability import Durability
from headrace.runtime.engine_state import EngineState
from headrace.runtime.lifecycle import Lifecycle
from headrace.runtime.views import View


@dataclass(slots=True)
class StateReuse:
    """Views of one engine whose states are reused; every method runs on the engine's thread."""

    _state: EngineState
    _lifecycle: Lifecycle
    _durability: Durability

    def begin(self, view_id: int, job: str, nodes: Collection[str]) -> str | None:
        """Suspend a view so that the states of ``nodes`` can be reused.

        Return why they cannot be, in words; None if they can.
        """
        state = self._state
        if job not in state.holds.jobs():
            raise QueryCancelled(f'job "{job}" has ended')
        view = state.views.get(view_id)
        if view is None or not (view.live or view.suspended == job):
            return "it does not run"
        if view.placed or view.parts or state.missing(view) is not None:
            return "other workers have states of it"
        if state.index.links.fed_from(view.target.oid):
            return "other views are fed from it"
        if not view.feeds.keys() <= set(nodes):
            return "the part that it shares with other views is not in the new query"
        self._lifecycle.suspend(view_id, job)
        return None

    def ready(self, view_id: int, job: str) -> dict[str, Any] | None:
        """Return the manifest entries of the states once all are durable; None: call again."""
        view = self._suspended(view_id, job)
        self._durability.end()
        mark = view.mark
        if view.durable != mark:
            if not self._state.checkpoints.underway:
                self._durability.begin()
            return None
        return {
            "start_lsn": view.start_lsn,
            "txid": mark.txid,
            "lsn": mark.lsn,
            "mark": [mark.txid, mark.lsn, mark.sink_txid],
            "lineage": self._state.lineage,
        }

    def _suspended(self, view_id: int, job: str) -> View:
        view = self._state.views.get(view_id)
        if view is None or view.suspended != job:
            raise TransientError("the worker has begun anew while the view was altered")
        return view
