"""Records the violations of assertions: rows, notifications, queued webhooks.

It is told by a notification that rows of an assertion have changed, which is sent in the
transaction that changes them (``sql/history.py``).  One query then finds the assertions with
changes; those without any cost nothing else.  A lost notification is only a delay.

A violation that lasts must be reported although nothing changes any more (option ``grace``).  Then
the recorder waits until the view covers the present position, as ``wait_for`` does: only then it is
known that no change has ended the violation.  Each of these waits is a task of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, Protocol

import psycopg
import structlog

from headrace import clock
from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.postgres import connect
from headrace.process import tasks
from headrace.server import row_texts, transitions
from headrace.server.transitions import Event, Fill, Violated
from headrace.sql import violations
from headrace.sql.verbs import WaitFor
from headrace.sql.violations import (
    AssertionState,
    BatchMark,
    PendingViolation,
    RowsChange,
    TakenAssertion,
    WaitingAssertion,
)
from headrace.types import format_lsn

POLL_S: Final = 5.0
"""Seconds between two looks without a notification, while there are assertions."""
_IDLE_S: Final = 60.0
"""Seconds between two looks while there are none."""
_PAUSE_S: Final = 0.05
"""Seconds between two rounds, each of which is a commit, however many notifications come."""
_REST_S: Final = 1.0
"""Seconds between two waits for one view."""
_SKIP_S: Final = 60.0
"""Seconds after which an assertion that could not be judged is tried again."""

_GIVES_WAY: Final = {"lock_timeout": "300ms"}
"""Shorter than the usual deadlock_timeout (1 s), so that no other transaction is ended."""

_log = structlog.get_logger(__name__)


class Waits(Protocol):
    """``SessionWaits``, as far as it is needed here."""

    def wait_for(self, request: WaitFor) -> Awaitable[None]:
        """Return once the view covers the present position."""


@dataclass(frozen=True, slots=True)
class JudgedAssertion:
    """An assertion after its changes, and the events to be reported."""

    taken: TakenAssertion
    state: AssertionState
    events: list[Event]
    more: bool


class Recorder:
    """The recorder of one engine."""

    def __init__(
        self, settings: Settings, waits: Waits, queued: Callable[[], None] = lambda: None
    ) -> None:
        """Take ``queued``, which is called when webhooks were queued."""
        self._settings = settings
        self._waits = waits
        self._queued = queued
        self._woken = asyncio.Event()
        self._covered: dict[int, datetime] = {}
        """Assertions whose view covers everything committed up to a time."""
        self._probes: dict[int, asyncio.Task[None]] = {}
        self._skipped: dict[int, float] = {}
        """Assertions that could not be judged, and when to try again, on the monotonic clock."""
        self._main: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start recording."""
        self._main = asyncio.create_task(tasks.forever("violations", self._serve, POLL_S))

    async def stop(self) -> None:
        """Stop; the next process records the rest."""
        for task in (self._main, *self._probes.values()):
            await tasks.end(task)

    def wake(self) -> None:
        """Look for changes."""
        self._woken.set()

    async def _serve(self) -> None:
        name, source = "headrace violations", self._settings.source
        while True:
            try:
                async with await connect.async_session(
                    source, name=name, settings=_GIVES_WAY
                ) as conn:
                    while await violations.ids(conn):
                        await self._look(conn)
                self._woken.clear()
                await self._wait(_IDLE_S)
            except (psycopg.Error, HeadraceError) as error:
                _log.warning("violations not recorded", reason=str(error).strip())
                await asyncio.sleep(POLL_S)

    async def _look(self, conn: violations.Connection) -> None:
        """Record what has changed, and wait until there may be more."""
        self._woken.clear()
        covered, self._covered = self._covered, {}
        more = await self._record(conn, covered)
        await violations.send_unsent(conn)
        waiting = await violations.waiting(conn)
        for each in waiting:
            if each.in_s <= 0 and each.id not in self._probes:
                task = self._probes[each.id] = asyncio.create_task(self._probe(each))
                task.add_done_callback(partial(self._probed, each.id))
        await asyncio.sleep(_PAUSE_S)
        if not more:
            due = [each.in_s for each in waiting if each.in_s > 0]
            await self._wait(min([POLL_S, *due]))

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    async def _probe(self, which: WaitingAssertion) -> None:
        """Wait until the view has everything that was committed up to now; then judge it."""
        try:
            await self._waits.wait_for(WaitFor(which.name))
            self._covered[which.id] = which.now
            self.wake()
        except HeadraceError as error:
            # It does not run: ``assertions()`` says so, and the violation is reported later.
            _log.debug("assertion cannot be judged now", assertion=which.name, reason=str(error))
        await asyncio.sleep(_REST_S)

    def _probed(self, number: int, _: asyncio.Task[None]) -> None:
        del self._probes[number]

    # --- one round

    async def _record(self, conn: violations.Connection, covered: dict[int, datetime]) -> bool:
        """Judge and record all assertions with changes; return whether there may be more."""
        now = clock.monotonic()
        self._skipped = {i: at for i, at in self._skipped.items() if at > now}
        try:
            return await self._transaction(conn, covered, None)
        except psycopg.OperationalError:
            raise
        except Exception as error:  # noqa: BLE001  one assertion must not keep the others
            _log.warning("violations are recorded one by one", reason=repr(error))
        more = False
        for one in await violations.ids(conn):
            try:
                more |= await self._transaction(conn, covered, one)
            except psycopg.OperationalError:
                raise
            except Exception:  # noqa: BLE001  the boundary of one assertion
                _log.exception("assertion not judged", assertion=one)
                self._skipped[one] = now + _SKIP_S
        return more

    async def _transaction(
        self, conn: violations.Connection, covered: dict[int, datetime], one: int | None
    ) -> bool:
        """Judge and record in one transaction; ``one``: only this assertion."""
        queued = False
        async with conn.transaction():
            taken = await violations.take(conn, covered, self._skipped, one)
            found = await violations.changes(conn, [each.id for each in taken])
            judged = [_judge(t, found.get(t.id, []), covered.get(t.id)) for t in taken]
            for each in judged:
                queued |= await _store(conn, each)
            reported = [each.taken.id for each in judged if each.events]
            if reported:
                await violations.trim(conn, reported)
        for each in judged:
            for event in each.events:
                if isinstance(event, Violated):
                    _log.info("assertion violated", assertion=each.taken.name)
                else:
                    _log.info("assertion holds again", assertion=each.taken.name)
        if queued:
            self._queued()
        return any(each.more for each in judged)


def _judge(
    taken: TakenAssertion, changes: list[RowsChange], covered: datetime | None
) -> JudgedAssertion:
    pending = violations.pending_of(taken)
    is_open = taken.violation_id is not None
    state = AssertionState(taken.txid, taken.count, taken.lsn, taken.since, pending, open=is_open)
    more = len(changes) == violations.TXIDS_MAX
    fill = None
    if taken.fill_txid > taken.txid and not (more and changes[-1].mark.txid < taken.fill_txid):
        mark = BatchMark(taken.fill_txid, taken.fill_lsn, taken.fill_at, taken.fill_at)
        fill = Fill(mark, taken.fill_due_at, taken.fill_rows)
    events = transitions.advance(state, changes, fill, hidden=taken.hidden)
    if covered is not None and not more:
        events += transitions.settle(state, covered, hidden=taken.hidden)
    return JudgedAssertion(taken, state, events, more)


async def _store(conn: violations.Connection, judged: JudgedAssertion) -> bool:
    """Store the events and how far the assertion is judged; return whether webhooks are queued."""
    taken, state = judged.taken, judged.state
    violation = taken.violation_id
    queued = False
    for event in judged.events:
        if isinstance(event, Violated):
            what = await _sampled(conn, taken, event.what)
            violation = await violations.violated(conn, taken, what)
            told = _told(taken, violation, "violated", what.mark) | {"rows": what.rows}
        else:
            assert violation is not None, "a violation is reported before its end"
            await violations.resolved(conn, taken, violation, event.mark)
            told = _told(taken, violation, "resolved", event.mark)
        if taken.on_violation != "webhook":
            await violations.tell(conn, taken.id, told)
        if taken.on_violation != "notify":
            await violations.deliver(conn, taken.id, violation, told["event"])
            queued = True
    if state.pending is not None:
        state.pending = await _sampled(conn, taken, state.pending)
    await violations.move(conn, taken.id, state, violation if state.open else None)
    return queued


async def _sampled(
    conn: violations.Connection, taken: TakenAssertion, what: PendingViolation
) -> PendingViolation:
    """Return a violation with the rows of its sample."""
    if what.sample is not None:
        return what
    if what.mark.txid == taken.fill_txid:
        texts = taken.fill_sample
    else:
        texts = await violations.sample(conn, taken, what.mark.txid)
    rows = [row_texts.as_object(text, taken.columns) for text in texts]
    return PendingViolation(what.mark, what.due_at, what.rows, rows)


def _told(taken: TakenAssertion, violation: int, event: str, mark: BatchMark) -> dict[str, Any]:
    """Return the payload of a notification; every role may read it, so it has no row."""
    return {
        **{"violation": violation, "event": event, "assertion": taken.name},
        **{"at": mark.at.isoformat(), "lsn": format_lsn(mark.lsn), "txid": mark.txid},
        **{"transactions": mark.transactions, "xids": mark.xids[: violations.XIDS_TOLD_MAX]},
    }
