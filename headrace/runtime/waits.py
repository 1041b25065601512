"""Who waits for a view to cover a position of the source (``wait_for``), on the engine's thread.

A waiter is an entry in a heap, and is looked at only when the view has come far enough: many
waiters cost memory and nothing else.  The least position that the engine itself has not come to
is passed to the stream, which then asks the server for it and closes the batch early.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.errors import DefiniteFailure, HeadraceError, UndefinedError
from headrace.runtime import views
from headrace.runtime.views import ERROR, PAUSED, View

if TYPE_CHECKING:
    from headrace.forwarder.stream import Stream
    from headrace.runtime.engine import Engine


@dataclass(order=True, slots=True)
class _Waiter:
    lsn: int
    number: int
    future: Future[None] = field(compare=False)


class Waits:
    """Waiters of one engine; every method runs on the engine's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._heaps: dict[int, list[_Waiter]] = {}
        self._numbers = itertools.count()
        self._hurried: tuple[Stream | None, int] = (None, 0)

    def wait(self, view_id: int, lsn: int) -> Future[None]:
        """A future that is done once the result table covers ``lsn``; it may be cancelled.

        Raises:
            UndefinedError: there is no such view.
        """
        engine = self._engine
        if view_id not in engine.views and not views.exists(engine.owner.conn, view_id):
            raise UndefinedError("the view was dropped", sqlstate="42P01")
        future: Future[None] = Future()
        waiter = _Waiter(lsn, next(self._numbers), future)
        heapq.heappush(self._heaps.setdefault(view_id, []), waiter)
        self.check()
        return future

    def check(self) -> None:
        """Answer those whose view has come far enough, or never will."""
        for view_id, heap in list(self._heaps.items()):
            view = self._engine.views.get(view_id)
            if view is None:
                continue  # it is about to be adopted
            error = _stopped(view)
            covered = self._engine.covered(view.mark)
            while heap and (
                error is not None
                or heap[0].lsn <= covered
                or heap[0].future.cancelled()
            ):
                _answer(heapq.heappop(heap).future, error)
            if not heap:
                del self._heaps[view_id]
        self._hurry()

    def forget(self, view_id: int, error: HeadraceError) -> None:
        """The view is gone."""
        for waiter in self._heaps.pop(view_id, ()):
            _answer(waiter.future, error)

    def give_up(self, error: HeadraceError) -> None:
        """The engine ends."""
        for view_id in list(self._heaps):
            self.forget(view_id, error)

    def _hurry(self) -> None:
        position = self._engine.position.lsn
        least = min(
            (h[0].lsn for h in self._heaps.values() if h[0].lsn > position), default=0
        )
        stream = self._engine.stream
        if stream is not None and self._hurried != (stream, least):
            stream.hurry(least)
        self._hurried = (stream, least)


def _stopped(view: View) -> HeadraceError | None:
    """Why waiting for ``view`` is in vain; None: it is not."""
    if view.status == ERROR:
        return DefiniteFailure(
            f"view {view.target.shown} has stopped",
            detail=view.message,
            hint=views.resync_hint(view),
        )
    if view.status == PAUSED:
        return DefiniteFailure(
            f"view {view.target.shown} is paused",
            hint=f"CALL headrace.resume_view('{view.argument}').",
        )
    return None


def _answer(future: Future[None], error: HeadraceError | None) -> None:
    # Whoever asked may have given up in this moment.
    with contextlib.suppress(InvalidStateError):
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(None)
