"""Other workers, which hold the states of views that are placed there and run their collections.

    intake ─► Crew: begin, rows …, end ─► hosting.py ─► diffs, done ─► Outcome ─► sink

The coordinator stays the only one who takes batches, records, commits and confirms: to it such a
view is one like any other, whose work is done elsewhere while it does its own.  What a worker
makes durable is as of marks that it is told; how far that is it says itself when it comes back,
and the batches after that come again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import structlog
from psycopg.conninfo import conninfo_to_dict

from headrace import clock, errors
from headrace.collections import plan
from headrace.errors import BugError, OutOfReach, TransientError
from headrace.network.ends import End, Far, Near
from headrace.network.link import FlightLink, Joining
from headrace.network.messages import (
    AbortBatch,
    BeginBatch,
    Deploy,
    Drop,
    EndBatch,
    Greeting,
    TableRows,
    ToWorker,
    UnitRecord,
    Work,
)
from headrace.process import keys
from headrace.runtime.away import AwayStore, Outpost, Sending, lost
from headrace.runtime.batches import Outcome
from headrace.runtime.book import Book
from headrace.runtime.edges import TableDiffs
from headrace.runtime.incoming import Frames
from headrace.runtime.positions import StateMark
from headrace.runtime.views import View
from headrace.sql import meta, nodes

_log = structlog.get_logger(__name__)

_RETRY_S: Final = 0.25
_SENT_S: Final = 0.2
"""Seconds for which all wait for states to arrive on another machine."""
_PATIENCE_S: Final = 1.0
"""Seconds for which all wait for a worker to answer, but for one that did not the last time."""


@dataclass(slots=True)
class _Part:
    """What one worker does of a batch."""

    host: Outpost
    link: FlightLink
    views: list[View]
    tables: set[int]
    rows: int = 0
    lost: OutOfReach | None = None


@dataclass(slots=True)
class Crew:
    """Workers at a batch; used on the engine's thread."""

    frames: Frames
    parts: list[_Part]
    views: list[View] = field(init=False)

    def __post_init__(self) -> None:
        """All that take part."""
        self.views = [view for part in self.parts for view in part.views]

    def put(self, chunk: list[TableDiffs] | None) -> None:
        """Send changes to who reads their tables; None: that was all."""
        for part in self.parts:
            if chunk is None:
                _send(part, EndBatch(self.frames.txid, part.rows))
                continue
            for frame in chunk:
                if frame.table_oid in part.tables:
                    batch = frame.diffs.batch
                    part.rows += batch.num_rows
                    _send(part, TableRows(frame.table_oid), batch)

    def collect(self, outcome: Outcome) -> None:
        """Add what has come out.

        Raises:
            TransientError: nothing is lost; the whole batch must be processed again.
        """
        for part in self.parts:
            try:
                self._collect(part, outcome)
            except OutOfReach as error:
                outcome.failed |= {view.id: error for view in part.views}
        outcome.failed |= {
            view.id: self.frames.stopped[view.id]
            for view in self.views
            if view.id in self.frames.stopped
        }

    def _collect(self, part: _Part, outcome: Outcome) -> None:
        if part.lost is not None:
            raise part.lost
        host = part.host
        host.awaited_s = clock.monotonic()
        try:
            done, diffs = part.link.results(self.frames.txid, self.frames.attempt)
        finally:
            host.awaited_s = None
        host.large, host.crowded = done.large, done.crowded
        host.memory_bytes = done.memory_bytes
        if done.trouble is not None:
            error = errors.from_wire(done.trouble)
            if isinstance(error, TransientError):
                raise error
            outcome.failed |= {view.id: error for view in part.views}
            return
        outcome.touched |= set(done.touched)
        outcome.diffs |= diffs
        outcome.failed |= {i: errors.from_wire(e) for i, e in done.failed.items()}

    def abort(self) -> None:
        """Nobody wants what comes out."""
        for part in self.parts:
            part.link.interrupt()
            _send(part, AbortBatch())


def _send(part: _Part, word: ToWorker, batch: pa.RecordBatch | None = None) -> None:
    if part.lost is None:
        try:
            part.link.send(word, batch)
        except OutOfReach as error:
            part.lost = error


class Hosts:
    """The other workers of one engine; all but ``interrupt`` on its thread."""

    def __init__(self, book: Book, poke: Callable[[], None]) -> None:
        """``poke`` wakes the engine's thread; it may be called on any."""
        self._book = book
        self._poke = poke

    # --- views come and go

    def mark(self, view: View, among: Iterable[View] = ()) -> StateMark | None:
        """The durable mark of a view on its worker, which it then stands at; None: no states.

        ``among``: views that are placed there too and not in the book yet.

        Raises:
            OutOfReach: the worker cannot be asked now.
            Deadly: it dies of the view.
        """
        host, link = self._reached(view.placed, [view, *among])
        if view.id in host.guilty:
            host.guilty.discard(view.id)
            raise self._book.suspects.error()
        found = host.marks.pop(view.id, None)
        if found is None:
            return None
        mark = StateMark(*found)
        self._restore(view, host, link, mark)
        return mark

    def deploy(self, view: View, runs: Sequence[Path], mark: StateMark) -> None:
        """Have the worker take a view's staged states; they are durable then.

        REQUIRES: no checkpoint is under way.

        Raises:
            HeadraceError: it cannot.
            OutOfReach: it is gone; or it is on another machine, and they are on their way there.
        """
        host, link = self._reached(view.placed, ())
        names = self._sent(view, host, link, runs) if link.end.far else [str(run) for run in runs]
        number = link.number()
        at = (mark.txid, mark.lsn, mark.sink_txid)
        link.send(Deploy(number, _record(view), names, at))
        link.answer(number)
        self._restore(view, host, link, mark)

    def _sent(self, view: View, host: Outpost, link: FlightLink, runs: Sequence[Path]) -> list[str]:
        """The names of staged states that were sent.

        Raises:
            OutOfReach: they are on their way; nobody waits for that.
        """
        sending = host.sending.get(view.id)
        if sending is None or sending.link is not link:
            sending = host.sending[view.id] = Sending(link, runs, self._poke)
        try:
            there = sending.there(_SENT_S)
        except (OutOfReach, OSError):
            del host.sending[view.id]
            raise
        if not there:
            raise OutOfReach(f'the view\'s states are on their way to worker "{host.name}"')
        del host.sending[view.id]
        return sending.names

    def drop(self, view_id: int) -> None:
        """A view is gone; a worker that cannot be asked hears it when it is back."""
        for host in self._book.hosts.values():
            host.sending.pop(view_id, None)
            if view_id in host.units:
                host.units.discard(view_id)
                host.marks.pop(view_id, None)
                host.commits.pop(view_id, None)
                if host.link is not None:
                    with contextlib.suppress(OutOfReach):
                        host.link.send(Drop(view_id))

    def interrupt(self, view: View) -> None:
        """Have a view give up what it is at; from any thread."""
        store = view.store
        if isinstance(store, AwayStore) and store.up:
            store.link.interrupt([view.id])

    def at_work(self) -> str | None:
        """The worker that the engine waits for, and how long, in words; from any thread."""
        for host in list(self._book.hosts.values()):
            since = host.awaited_s
            if since is not None:
                return f"a batch on worker {host.name}, {clock.monotonic() - since:.0f} s"
        return None

    def works(self) -> list[Work]:
        """What units are at on workers that the engine waits for; from any thread."""
        return [
            work
            for host in list(self._book.hosts.values())
            if host.awaited_s is not None and host.link is not None
            for work in host.link.at
        ]

    def close(self) -> None:
        """Let go of all."""
        for host in self._book.hosts.values():
            if host.link is not None:
                host.link.close()
            joining, host.joining = host.joining, None
            if joining is not None and joining.wait(0.0):
                with contextlib.suppress(OutOfReach):
                    joining.made()[0].close()

    # --- batches

    def begin(self, views: Sequence[View], frames: Frames) -> Crew:
        """Have workers begin a batch for ``views``, which are placed there."""
        parts: dict[str, _Part] = {}
        for view in views:
            store = view.store
            if not isinstance(store, AwayStore):
                raise BugError(f"view {view.id} has no states on worker {view.placed}")
            part = parts.get(view.placed)
            if part is None:
                part = parts[view.placed] = _Part(store.host, store.link, [], set())
            part.views.append(view)
            part.tables |= {spec.table_oid for spec in view.own.sources}
            view.begin(frames.txid)
        at = (frames.txid, frames.attempt, frames.instant, frames.oldest_us)
        for part in parts.values():
            word = BeginBatch(*at, [view.id for view in part.views], part.host.told())
            _send(part, word)
        return Crew(frames, list(parts.values()))

    # --- inside

    def _reached(self, name: str, views: Iterable[View]) -> tuple[Outpost, FlightLink]:
        """A worker, and the link to it; a new one begins with all views that are placed there.

        Raises:
            OutOfReach: it cannot be asked now.
        """
        host = self._book.hosts.setdefault(name, Outpost(name))
        if host.link is not None and host.link.up:
            return host, host.link
        there = {v.id: v for v in (*self._book.views.values(), *views) if v.placed == name}
        if host.joining is None:
            if clock.monotonic() < host.retry_at:
                raise lost(name)
            host.retry_at = clock.monotonic() + _RETRY_S
            end = self._end(name)
            if end is None:
                raise lost(name)
            greeting = Greeting([_record(view) for view in there.values()], self._login(end))
            host.joining = Joining(name, end, greeting, self._poke)
        if not host.joining.wait(0.0 if host.slow else _PATIENCE_S):
            host.slow = True
            raise lost(name)
        joining, host.joining = host.joining, None
        link, joined = joining.made()
        host.link, host.pid, host.slow = link, joined.pid, False
        host.marks, host.guilty = dict(joined.marks), set(joined.guilty)
        host.units = set(joined.marks)
        host.commits.clear()
        host.large = host.crowded = False
        for gone in host.units - there.keys():
            self.drop(gone)  # since the worker was asked
        _log.info("worker joined", worker=name, pid=joined.pid, views=sorted(joined.marks))
        return host, link

    def _end(self, name: str) -> End | None:
        """Where a worker listens; None: it does not."""
        settings = self._book.settings
        path = settings.flight_socket(name)
        if path.exists():
            return Near(path)
        conn = self._book.owner.conn
        found = nodes.whereabouts(conn, name)
        if found is None:
            return None
        own = keys.kept(settings.keys_dir)
        # It takes no other, and hears of this one when it joins next.
        meta.put(conn, "certificate", own.certificate.decode())
        return Far(*found, own)

    def _login(self, end: End) -> tuple[str, str] | None:
        """Who evaluates there what nobody trusts; on this machine the settings say it."""
        dsn = self._book.settings.eval_dsn
        if not end.far or not dsn:
            return None
        parts = conninfo_to_dict(dsn)
        return str(parts.get("user") or ""), str(parts.get("password") or "")

    def _restore(self, view: View, host: Outpost, link: FlightLink, mark: StateMark) -> None:
        host.units.add(view.id)
        view.restore(AwayStore(host, link, view.id, mark.txid), mark)


def _record(view: View) -> UnitRecord:
    return UnitRecord(
        *(view.id, plan.to_json(view.plan), view.settings, view.start_lsn),
        *(view.owner, view.limits, view.target.shown),
    )
