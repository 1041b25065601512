"""A view's states on their way to another worker, on the engine's thread.

    suspend ─► durable ─► export into the staging directory ─► (catalog) ─► take in there ─► go on

What is exported is what a checkpoint has made durable at the view's mark, in the form in which a
population leaves states.  Once the catalog says where the view is, whoever starts finds the
states staged, as those of a new view are; until then they are where they were.  What the view
lacks by then comes again, as for one that was paused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import TransientError
from headrace.runtime import views
from headrace.runtime.away import AwayStore
from headrace.runtime.book import Book
from headrace.runtime.durability import Durability
from headrace.runtime.lifecycle import Lifecycle
from headrace.runtime.loading import Loading
from headrace.runtime.views import View


@dataclass(slots=True)
class Moving:
    """Views of one engine that move; every method runs on the engine's thread."""

    _book: Book
    _loading: Loading
    _lifecycle: Lifecycle
    _durability: Durability

    def begin(self, view_id: int, job: str) -> bool:
        """Suspend a view, if its states are its own; False: it has to be filled anew instead."""
        book = self._book
        view = book.views.get(view_id)
        if view is None or not view.live or not view.reachable or view.feeds:
            return False
        if any(
            feed.table_oid == view.target.oid for v in book.views.values() for feed in v.plan.feeds
        ):
            return False
        self._lifecycle.suspend(view_id, job)
        return True

    def ready(self, view_id: int, job: str) -> dict[str, Any] | None:
        """What is to be said of the states, once all of them is durable; None: ask again."""
        view = self._suspended(view_id, job)
        self._durability.end()
        if view.durable != view.mark:
            if not self._book.checkpoints.underway:
                self._durability.begin()
            return None
        mark = view.mark
        return {
            "view_id": view.id,
            "start_lsn": view.start_lsn,
            "txid": mark.txid,
            "lsn": mark.lsn,
            "mark": [mark.txid, mark.lsn, mark.sink_txid],
            "lineage": self._book.lineage,
        }

    def exporter(self, view_id: int, job: str, path: Path) -> Callable[[], object]:
        """What writes the states into a sorted file; to be called on another thread."""
        view = self._suspended(view_id, job)
        store = view.store
        if isinstance(store, AwayStore):
            away = store
            return lambda: away.export(path)
        db = self._book.db
        return lambda: db.export(view_id, path)

    def place(self, view_id: int, worker: str, job: str) -> str:
        """The catalog says that a view is on ``worker``: its staged states go there.

        ``there``; ``later``, when that worker can be asked; or ``lost``: nothing was done, for
        somebody else has let the view go on meanwhile.
        """
        view, placed = self._book.views.get(view_id), views.placement({"placement": worker})
        if view is not None and view.placed != placed and view.suspended == job:
            self._loading.relocate(view, placed)
        if view is None or view.placed != placed:
            return "lost"
        return "there" if view.reachable else "later"

    def _suspended(self, view_id: int, job: str) -> View:
        view = self._book.views.get(view_id)
        if view is None or view.suspended != job:
            raise TransientError("the worker has begun anew while the view moved")
        return view
