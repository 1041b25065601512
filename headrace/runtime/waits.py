"""Calls that wait until a view covers a position (``wait_for``), or has caught up after adoption.

Everything runs on the engine's thread. A waiter is an entry in a heap, and is checked only when the
view has come far enough, so many waiters cost only memory. The lowest position that the engine
itself has not reached is passed to the stream, which asks the server for it and closes the batch
early.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Final

from headrace import clock
from headrace.errors import DefiniteFailure, HeadraceError, UndefinedError, ViewStopped
from headrace.forwarder.stream import Stream
from headrace.runtime import views
from headrace.runtime.engine_state import EngineState
from headrace.runtime.views import View
from headrace.sql import views as catalog
from headrace.sql.status import CursorState

_LOOK_S: Final = 0.1
"""Seconds between two looks for the view that has replaced another."""
_TAKE_S: Final = 60.0
"""Seconds within which the worker must take over a view that has replaced another."""
_LEAD_S: Final = 10.0
"""Seconds after which a new view need not lead to be there: the others may be too busy."""


@dataclass(order=True, slots=True)
class _Waiter:
    lsn: int
    number: int
    future: Future[None] = field(compare=False)


@dataclass(slots=True)
class _Adopted:
    view_id: int
    table_oid: int
    """The result table, which a view keeps when a resync gives it another id."""
    txid: int
    future: Future[None]
    reached_at: float | None = None
    """When it had the txid, on the monotonic clock."""
    missing_since: float | None = None
    """Since when the worker does not have it, on the monotonic clock."""
    look_at: float = 0.0
    """When to look for the view that has replaced it, likewise."""


class PositionWaits:
    """Waiters of one engine; every method runs on the engine's thread."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._adopted: list[_Adopted] = []
        self._heaps: dict[int, list[_Waiter]] = {}
        self._numbers = itertools.count()
        self._hurried: tuple[Stream | None, int] = (None, 0)

    def wait(self, view_id: int, lsn: int) -> Future[None]:
        """Return a future that is done once the result table covers ``lsn``; it may be cancelled.

        Raises:
            UndefinedError: there is no such view.
        """
        if view_id not in self._state.views and not catalog.exists(self._state.owner.conn, view_id):
            raise UndefinedError("the view was dropped", sqlstate="42P01")
        future: Future[None] = Future()
        waiter = _Waiter(lsn, next(self._numbers), future)
        heapq.heappush(self._heaps.setdefault(view_id, []), waiter)
        self.check()
        return future

    def adopted(self, view: View, txid: int) -> Future[None]:
        """Return a future that is done once the adopted view has reached ``txid``.

        If a resync replaces the view meanwhile, the future is that of the view in its place.
        """
        future: Future[None] = Future()
        self._adopted.append(_Adopted(view.id, view.target.oid, txid, future))
        return future

    def caught_up(self) -> None:
        """Complete the futures of adopted views that have caught up, or never will."""
        left = []
        for waiting in self._adopted:
            view = self._state.views.get(waiting.view_id)
            if view is None:
                if (gone := self._gone(waiting)) is not None:
                    _answer(waiting.future, gone)
                else:
                    left.append(waiting)
                continue
            waiting.missing_since = None
            if (error := _stopped(view)) is not None and not view.owned:
                # Its table is there, so the caller must learn how to go on with it.
                _answer(waiting.future, error)
            elif self._state.missing(view) is not None:
                left.append(waiting)  # its worker still needs the staged states
            elif view.cursor == CursorState.PAUSED or self._leads(view, waiting):
                _answer(waiting.future, None)
            else:
                left.append(waiting)
        self._adopted = left
        self.check()

    def _gone(self, waiting: _Adopted) -> HeadraceError | None:
        """Return why a view that the worker does not have will not come; None: it may.

        If it exists under another id, that one is waited for: the resync has it adopted soon.
        """
        now = clock.monotonic()
        if now < waiting.look_at:
            return None
        waiting.look_at = now + _LOOK_S
        found = catalog.of_table(self._state.owner.conn, waiting.table_oid)
        if found is None:
            return UndefinedError("the view was dropped", sqlstate="42P01")
        waiting.view_id = found
        if waiting.missing_since is None:
            waiting.missing_since = now
        if now < waiting.missing_since + _TAKE_S:
            return None
        return DefiniteFailure(
            "the view was rebuilt meanwhile, but the worker has not taken it over",
            hint="See headrace.list_views().",
        )

    def _leads(self, view: View, waiting: _Adopted) -> bool:
        """Return whether a view has reached its txid, and leads or has had time to do so.

        A view that leads changes in one transaction with the other views of its group.
        """
        if view.mark.txid < waiting.txid:
            return False
        now = clock.monotonic()
        if waiting.reached_at is None:
            waiting.reached_at = now
        slow = view.commit_group in self._state.lagging.groups
        with_group = view.leads or (slow and self._is_level(view))
        return with_group or now > waiting.reached_at + _LEAD_S

    def _is_level(self, view: View) -> bool:
        """Return whether all views of a slow group are at the same txid."""
        lagging = self._state.lagging_views
        group = [v.processed for v in lagging if v.commit_group == view.commit_group]
        return len(set(group)) <= 1

    def check(self) -> None:
        """Complete the futures of reached positions; the engine calls this in each cycle."""
        for view_id, heap in list(self._heaps.items()):
            view = self._state.views.get(view_id)
            if view is None:
                continue  # it is about to be adopted
            error = _stopped(view)
            covered = self._state.covered(view.mark)
            while heap and (
                error is not None or heap[0].lsn <= covered or heap[0].future.cancelled()
            ):
                _answer(heapq.heappop(heap).future, error)
            if not heap:
                del self._heaps[view_id]
        self._hurry()

    def forget(self, view_id: int, error: HeadraceError) -> None:
        """Fail the waiters of a view that is gone."""
        for waiter in self._heaps.pop(view_id, ()):
            _answer(waiter.future, error)

    def give_up(self, error: HeadraceError) -> None:
        """Fail all waiters, because the engine ends."""
        for waiting in self._adopted:
            _answer(waiting.future, error)
        self._adopted = []
        for view_id in list(self._heaps):
            self.forget(view_id, error)

    def _hurry(self) -> None:
        position = self._state.position.lsn
        least = min((h[0].lsn for h in self._heaps.values() if h[0].lsn > position), default=0)
        stream = self._state.stream
        if stream is not None and self._hurried != (stream, least):
            stream.hurry(least)
        self._hurried = (stream, least)


def _stopped(view: View) -> HeadraceError | None:
    """Return why ``view`` will not advance; None: it runs."""
    if view.cursor is None:
        return ViewStopped(
            f"view {view.target.shown} has stopped",
            detail=view.message,
            hint=views.resync_hint(view),
        )
    if view.cursor == CursorState.PAUSED:
        return DefiniteFailure(
            f"view {view.target.shown} is paused",
            hint=f"CALL headrace.resume_view('{view.argument}').",
        )
    return None


def _answer(future: Future[None], error: HeadraceError | None) -> None:
    # The caller may have cancelled the future just now, or an error has ended the last round.
    with contextlib.suppress(InvalidStateError):
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(None)
