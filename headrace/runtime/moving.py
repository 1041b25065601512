"""Moving of a view's states to another worker; on the engine's thread.

    suspend ─► durable ─► export into the staging directory ─► (catalog) ─► take in there ─► go on

The export has the states that a checkpoint made durable at the view's mark, in the form in which a
population leaves them; for a cut view, from all its workers.  Once the catalog has the new place,
a restarted engine finds the states staged, like a new view's.  Until then they stay where they
were.  Changes after the mark are replayed, as for a paused view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headrace.collections import subplans
from headrace.errors import TransientError
from headrace.runtime.durability import Durability
from headrace.runtime.engine_state import EngineState
from headrace.runtime.lifecycle import Lifecycle
from headrace.runtime.loading import Loading
from headrace.runtime.remote_worker import RemoteStore
from headrace.runtime.views import View
from headrace.sql import nodes


@dataclass(slots=True)
class Moving:
    """Moves of one engine's views; every method runs on the engine's thread."""

    _state: EngineState
    _loading: Loading
    _lifecycle: Lifecycle
    _durability: Durability

    def begin(self, view_id: int, job: str) -> bool:
        """Suspend a view if its states are its own; False: it has to be refilled instead."""
        state = self._state
        view = state.views.get(view_id)
        if view is None or not view.live or state.missing(view) is not None:
            return False
        if len(state.parts_of(view)) < len(state.needed([view])):
            return False  # some states are shared
        if state.index.links.fed_from(view.target.oid):
            return False
        self._lifecycle.suspend(view_id, job)
        return True

    def ready(self, view_id: int, job: str) -> dict[str, Any] | None:
        """Return the manifest entries of the states once all are durable; None: call again.

        Empty: the states cannot be exported, because a part is ahead of the view, or out of reach.
        """
        view = self._suspended(view_id, job)
        self._durability.end()
        mark = view.mark
        units = [view, *self._state.parts_of(view)]
        if self._state.missing(view) is not None or any(u.mark.txid != mark.txid for u in units):
            return {}
        if any(unit.durable != unit.mark for unit in units):
            if not self._state.checkpoints.underway:
                self._durability.begin()
            return None
        return {
            "view_id": view.id,
            "start_lsn": view.start_lsn,
            "txid": mark.txid,
            "lsn": mark.lsn,
            "mark": [mark.txid, mark.lsn, mark.sink_txid],
            "lineage": self._state.lineage,
        }

    def exporter(self, view_id: int, job: str, path: Path) -> Callable[[], object]:
        """Return a function that writes the states into sorted files, for another thread.

        The first file is ``path``, those of parts are beside it; each state is in one of them.
        """
        view = self._suspended(view_id, job)
        db, had = self._state.db, set[str]()
        works: list[Callable[[], object]] = []
        for number, unit in enumerate((view, *self._state.parts_of(view))):
            to = path if not number else path.with_name(f"{path.stem}-{number}{path.suffix}")
            leave, store = frozenset(had), unit.store
            if isinstance(store, RemoteStore):
                works.append(partial(store.export, to, leave))
            else:
                keep = partial(_is_of_others, leave)
                works.append(partial(db.export, unit.id, to, keep))
            had |= subplans.owners(unit.own)
        return lambda: [work() for work in works]

    def place(self, view_id: int, worker: str, parts: dict[str, str], job: str) -> str:
        """Move the staged states of a view to where the catalog says.

        Return ``there``; ``later``, if a worker is out of reach; or ``lost``, if nothing was done
        because the view was resumed meanwhile.
        """
        view, placed = self._state.views.get(view_id), nodes.whole(worker)
        if view is None:
            return "lost"
        if (view.placed, view.parts) != (placed, parts) and view.suspended == job:
            self._loading.relocate(view, placed, parts)
        if (view.placed, view.parts) != (placed, parts):
            return "lost"
        return "there" if self._state.missing(view) is None else "later"

    def _suspended(self, view_id: int, job: str) -> View:
        view = self._state.views.get(view_id)
        if view is None or view.suspended != job:
            raise TransientError("the worker has begun anew while the view moved")
        return view


def _is_of_others(nodes: frozenset[str], state: str) -> bool:
    """Return whether a state belongs to none of ``nodes``."""
    return subplans.owner(state) not in nodes
