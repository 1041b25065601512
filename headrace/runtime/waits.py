"""Who waits for a view to cover a position (``wait_for``), or to have caught up once it is adopted.

All on the engine's thread.  A waiter is an entry in a heap, and is looked at only when the view has
come far enough: many waiters cost memory and nothing else.  The least position that the engine
itself has not come to is passed to the stream, which then asks the server for it and closes the
batch early.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

from headrace.errors import DefiniteFailure, HeadraceError, UndefinedError
from headrace.forwarder.stream import Stream
from headrace.runtime import views
from headrace.runtime.book import Book
from headrace.runtime.views import View
from headrace.sql import views as catalog
from headrace.sql.status import Status


@dataclass(order=True, slots=True)
class _Waiter:
    lsn: int
    number: int
    future: Future[None] = field(compare=False)


@dataclass(slots=True)
class _Adopted:
    view_id: int
    txid: int
    future: Future[None]


class PositionWaits:
    """Waiters of one engine; every method runs on the engine's thread."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._adopted: list[_Adopted] = []
        self._heaps: dict[int, list[_Waiter]] = {}
        self._numbers = itertools.count()
        self._hurried: tuple[Stream | None, int] = (None, 0)

    def wait(self, view_id: int, lsn: int) -> Future[None]:
        """A future that is done once the result table covers ``lsn``; it may be cancelled.

        Raises:
            UndefinedError: there is no such view.
        """
        if view_id not in self._book.views and not catalog.exists(self._book.owner.conn, view_id):
            raise UndefinedError("the view was dropped", sqlstate="42P01")
        future: Future[None] = Future()
        waiter = _Waiter(lsn, next(self._numbers), future)
        heapq.heappush(self._heaps.setdefault(view_id, []), waiter)
        self.check()
        return future

    def adopted(self, view_id: int, txid: int) -> Future[None]:
        """A future that is done once the view, which was taken over, has ``txid``."""
        future: Future[None] = Future()
        self._adopted.append(_Adopted(view_id, txid, future))
        return future

    def caught_up(self) -> None:
        """Answer all whose view has come as far as they wait for, or never will."""
        left = []
        for waiting in self._adopted:
            view = self._book.views.get(waiting.view_id)
            if view is None:
                waiting.future.set_exception(
                    UndefinedError("the view was dropped", sqlstate="42P01")
                )
            elif not view.owned:
                waiting.future.set_exception(
                    DefiniteFailure(view.message or "the view has stopped")
                )
            elif self._book.missing(view) is not None:
                left.append(waiting)  # what is staged is still needed: its worker has not taken it
            elif view.mark.txid >= waiting.txid or view.status == Status.PAUSED:
                waiting.future.set_result(None)
            else:
                left.append(waiting)
        self._adopted = left
        self.check()

    def check(self) -> None:
        """Answer those who wait for a position; each cycle of the engine comes by here."""
        for view_id, heap in list(self._heaps.items()):
            view = self._book.views.get(view_id)
            if view is None:
                continue  # it is about to be adopted
            error = _stopped(view)
            covered = self._book.covered(view.mark)
            while heap and (
                error is not None or heap[0].lsn <= covered or heap[0].future.cancelled()
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
        for waiting in self._adopted:
            waiting.future.set_exception(error)
        self._adopted = []
        for view_id in list(self._heaps):
            self.forget(view_id, error)

    def _hurry(self) -> None:
        position = self._book.position.lsn
        least = min((h[0].lsn for h in self._heaps.values() if h[0].lsn > position), default=0)
        stream = self._book.stream
        if stream is not None and self._hurried != (stream, least):
            stream.hurry(least)
        self._hurried = (stream, least)


def _stopped(view: View) -> HeadraceError | None:
    """Why waiting for ``view`` is in vain; None: it is not."""
    if view.status == Status.ERROR:
        return DefiniteFailure(
            f"view {view.target.shown} has stopped",
            detail=view.message,
            hint=views.resync_hint(view),
        )
    if view.status == Status.PAUSED:
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
