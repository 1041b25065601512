"""Other workers, which hold the states of views that are placed there and run their collections.

    intake ─► RemoteBatch: begin, rows …, end ─► worker_service ─► diffs, done ─► Outcome ─► sink
                 └──────── feed rows …, end ◄─── output of parts that other parts read ◄─┘

Only the coordinator takes batches, records, commits and confirms.  It treats such a view like any
other, but the view is processed elsewhere, in parallel with its own views.  A worker makes states
durable as of marks from the coordinator.  When it comes back, it reports its durable marks, and its
views catch up from there (``catching_up.py``).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import structlog
from psycopg.conninfo import conninfo_to_dict

from headrace import clock, errors
from headrace.collections import plan
from headrace.errors import BugError, HeadraceError, OutOfReach, RowsLost, TransientError
from headrace.network.ends import End, Far, Near
from headrace.network.exchange import Results
from headrace.network.link import FlightLink, Joining
from headrace.network.messages import (
    AbortBatch,
    BeginBatch,
    Commits,
    Deploy,
    Drop,
    EndStage,
    FeedRows,
    Greeting,
    Replan,
    TableRows,
    ToWorker,
    UnitRecord,
    Work,
)
from headrace.process import keys
from headrace.runtime.batches import LOST_MAX, NONE_RESTING, Outcome, Processor, Resting
from headrace.runtime.edges import TableDiffs
from headrace.runtime.engine_state import EngineState
from headrace.runtime.incoming import Frames, StreamFrames
from headrace.runtime.positions import StateMark
from headrace.runtime.remote_worker import RemoteStore, RemoteWorker, Sending, unreachable
from headrace.runtime.shared import PER_VIEW_MAX, Shared
from headrace.runtime.views import Unit, View
from headrace.sql import links, meta, nodes
from headrace.sql.links import LinkFacts

_log = structlog.get_logger(__name__)

_RETRY_S: Final = 0.25
_LOOK_S: Final = 3.0
"""Seconds between reads of the catalog's entries on links."""
_SENT_S: Final = 0.2
"""Seconds for which the engine waits for states to arrive on another machine."""
_PATIENCE_S: Final = 0.05
"""Seconds for which all views wait for a worker to join, unless its last answer was late."""


@dataclass(slots=True)
class _Part:
    """One worker's part of a batch."""

    host: RemoteWorker
    link: FlightLink
    lagging: bool
    """Whether its units lag, so that another exchange carries the batch."""
    levels: dict[int, list[Unit]] = field(default_factory=dict)
    """Its units by level: level 0 reads tables only, and a higher level also reads lower ones."""
    tables: set[int] = field(default_factory=set)
    commits: Commits = field(default_factory=dict)
    rows: int = 0
    """Rows sent since the last end of a stage."""
    fed: set[int] = field(default_factory=set)
    """Units whose output, or error, was sent."""
    begun: bool = False
    over: bool = False
    """Whether it has ended the batch, or the batch had nothing for it."""
    lost: OutOfReach | None = None

    @property
    def units(self) -> list[Unit]:
        return [unit for level in sorted(self.levels) for unit in self.levels[level]]

    @property
    def may_wait(self) -> bool:
        """Whether the batch need not be sent as long as it has no rows for these units.

        So no other view waits for a worker whose tables have not changed.
        """
        clocked = any(unit.temporal for unit in self.units)
        return self.link.up and not self.lagging and self.levels.keys() == {0} and not clocked

    def begin(self, frames: Frames) -> None:
        if self.begun:
            return
        self.begun, before, last = True, frames.first - 1, {}
        for unit in self.units:
            assert isinstance(unit.store, RemoteStore), "it is on that worker"
            if unit.store.processed != before:
                last[unit.id] = unit.store.processed
            unit.begin(frames.txid)
        at = (frames.first, frames.txid, frames.attempt, frames.instant, frames.oldest_us)
        stages = [[u.id for u in self.levels[level]] for level in sorted(self.levels)]
        self.send(BeginBatch(*at, stages, self.commits, last))

    def send(self, word: ToWorker, batch: pa.RecordBatch | None = None) -> None:
        if self.lost is None:
            try:
                self.link.send(word, batch, lagging=self.lagging)
            except OutOfReach as error:
                self.lost = error

    def end(self, txid: int, failed: dict[int, dict[str, Any]]) -> None:
        """End a stage; ``failed``: see ``EndStage``."""
        rows, self.rows = self.rows, 0
        self.send(EndStage(txid, rows, failed))

    def send_rows(self, word: ToWorker, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self.send(word, batch)

    def results(self, txid: int, attempt: int) -> Results:
        """Wait for the result of a stage; see ``FlightLink.results``."""
        if self.lost is not None:
            raise self.lost
        self.host.awaited[self.lagging] = clock.monotonic()
        try:
            found = self.link.results(txid, attempt, lagging=self.lagging)
        finally:
            self.host.awaited[self.lagging] = None
        self.over = found[0].last
        return found


@dataclass(slots=True)
class RemoteBatch:
    """A batch for units on other workers; one thread uses it."""

    parts: list[_Part]
    needed_by: dict[int, int]
    """For each unit, the ID of the view that needs it."""
    units: list[Unit] = field(init=False)
    ids: set[int] = field(init=False)
    frames: Frames = field(init=False)

    def __post_init__(self) -> None:
        self.units = [unit for part in self.parts for unit in part.units]
        self.ids = {unit.id for unit in self.units}

    def give_up(self) -> None:
        """Report the commits later where the batch was not begun; on the engine's thread."""
        for part in self.parts:
            if not part.begun:
                part.host.commits |= part.commits
                part.commits = {}

    def run(
        self,
        processor: Processor,
        views: Sequence[Unit],
        frames: StreamFrames,
        needed: Sequence[Shared],
        resting: Resting = NONE_RESTING,
    ) -> Outcome:
        """Process the batch here, for ``views``, and on the workers; see ``Processor.run``."""
        if not self.parts:
            return processor.run(views, frames, needed, resting=resting)
        self._begin(frames)
        frames.pass_on.append(self._put)
        try:
            return processor.run(views, frames, needed, self, resting)
        except BaseException:
            self._abort()
            raise

    def _begin(self, frames: Frames) -> None:
        self.frames = frames
        for part in self.parts:
            if not part.may_wait:
                part.begin(frames)

    def _put(self, chunk: list[TableDiffs] | None) -> None:
        """Send changes to the workers that read their tables; None: there are no more."""
        for part in self.parts:
            if chunk is None:
                part.over = not part.begun
                if part.begun and 0 in part.levels:
                    part.end(self.frames.txid, {})
                continue
            for frame in chunk:
                if frame.table_oid in part.tables:
                    part.begin(self.frames)
                    part.send_rows(TableRows(frame.table_oid), frame.diffs.batch)
        if chunk is None:
            self.give_up()

    def feeds(self, unit: Unit) -> bool:
        """Return whether a unit here reads output of the workers."""
        return not self.ids.isdisjoint(unit.feeds.values())

    def stages(self, waiting: Sequence[Unit], outcome: Outcome) -> Iterator[Sequence[Unit]]:
        """Add the workers' results to ``outcome``, level by level; see ``Elsewhere``.

        No deadlock: a worker gets the rows of a level only after its results of all lower ones.
        """
        stopped = self.frames.stopped
        outcome.failed |= {
            unit.id: stopped[view_id]
            for unit in self.units
            if (view_id := self.needed_by[unit.id]) in stopped
        }
        for level in sorted({level for part in self.parts for level in part.levels}):
            parts = [part for part in self.parts if level in part.levels and not part.over]
            for part in parts if level else ():
                self._feed(part, level, outcome)
            for part in parts:
                try:
                    self._collect(part, level, outcome)
                except OutOfReach as error:
                    _fail(outcome, {unit.id: error for unit in part.levels[level]})
                for unit in part.levels[level]:
                    if isinstance(unit, Shared):
                        self._hand_on(unit, outcome)
        yield waiting

    def _feed(self, part: _Part, level: int, outcome: Outcome) -> None:
        """Send a worker the output that its units of a level read, and end the stage."""
        failed: dict[int, dict[str, Any]] = {}
        read = {feeder for unit in part.levels[level] for feeder in unit.feeds.values()}
        for feeder in read - part.fed:
            error = outcome.failed.get(feeder) or outcome.forgotten.get(feeder)
            if error is not None:
                failed[feeder] = errors.to_wire(error)
                continue
            for batch in outcome.sent.get(feeder, ()):
                if batch.num_rows:
                    part.send_rows(FeedRows(feeder), batch)
        part.fed |= read
        part.end(self.frames.txid, failed)

    def _hand_on(self, part: Shared, outcome: Outcome) -> None:
        """Hand the output of a view's part to its reader, and queue it.

        Raises:
            NoRoom: it cannot be stored now.
        """
        frames, diffs = self.frames, outcome.diffs.pop(part.id, None)
        if part.id in outcome.failed or diffs is None:
            return
        outcome.sent[part.id] = [diffs]
        part.send(frames.first, frames.txid, frames.attempt, frames.oldest_us, diffs)

    def _collect(self, part: _Part, level: int, outcome: Outcome) -> None:
        host, frames, began = part.host, self.frames, clock.monotonic()
        done, diffs = part.results(frames.txid, frames.attempt)
        waited_s = clock.monotonic() - began
        host.large, host.crowded = done.large, done.crowded
        host.memory_bytes = done.memory_bytes
        if done.trouble is not None:
            error = errors.from_wire(done.trouble)
            if isinstance(error, RowsLost) and frames.attempt >= LOST_MAX:
                error = BugError(f"rows are lost in every attempt: {error.message}")
            if isinstance(error, TransientError):
                raise error
            _fail(outcome, {unit.id: error for unit in part.units})
            return
        for unit in part.levels[level]:
            assert isinstance(unit.store, RemoteStore), "it is on that worker"
            unit.store.processed = frames.txid
        outcome.touched |= done.took_s.keys()
        outcome.remote_s |= done.took_s
        if done.took_s:  # its link may take longer than its work
            slowest = max(done.took_s, key=lambda unit_id: done.took_s[unit_id])
            outcome.remote_s[slowest] = max(outcome.remote_s[slowest], waited_s)
        outcome.diffs |= diffs
        _fail(outcome, {i: errors.from_wire(e) for i, e in done.failed.items()})

    def _abort(self) -> None:
        """Give up the batch on all workers; return when none works on units that lag."""
        self.give_up()
        begun = [part for part in self.parts if part.begun]
        for part in begun:
            part.link.interrupt([unit.id for unit in part.units])
            part.send(AbortBatch())
        for part in begun:
            # Nothing else orders later messages about units that lag after their work.
            with contextlib.suppress(OutOfReach):
                while part.lagging and not part.over:
                    part.results(self.frames.txid, self.frames.attempt)


class WorkerHandles:
    """The other workers of one engine; all but ``interrupt`` on its thread."""

    def __init__(self, state: EngineState, poke: Callable[[], None]) -> None:
        """Create it; ``poke`` wakes the engine's thread, and may be called on any."""
        self._state = state
        self._poke = poke
        self.due = math.inf
        """When to call ``look`` again, on the monotonic clock."""
        self._lost: set[str] | None = None
        """Workers declared lost for good; None: not read yet."""

    # --- views come and go

    def mark(self, unit: Unit, among: Iterable[View] = ()) -> StateMark | None:
        """Restore a unit on its worker; return its durable mark there, or None without states.

        ``among``: views that are placed there too and not in the book yet.

        Raises:
            OutOfReach: the worker is out of reach.
            Deadly: the worker crashes because of the view.
        """
        host, link = self._reached(unit.placed, [unit, *among])
        if unit.id in host.guilty:
            host.guilty.discard(unit.id)
            raise self._state.suspects.error()
        found = host.marks.pop(unit.id, None)
        if found is None:
            return None
        mark = StateMark(*found)
        self._restore(unit, host, link, mark)
        return mark

    def reach(self, worker: str) -> None:
        """Raise OutOfReach if a worker is out of reach."""
        self._reached(worker, ())

    def deploy(self, unit: Unit, runs: Sequence[Path], mark: StateMark) -> None:
        """Have the worker take in the staged states of a unit, or of the view that it is a part of.

        The states are durable afterwards.

        REQUIRES: no checkpoint is under way.

        Raises:
            HeadraceError: the worker's error.
            OutOfReach: the worker is gone, or the states are on their way to another machine.
        """
        host, link = self._reached(unit.placed, ())
        partly = isinstance(unit, Shared)
        # A part has sent nothing yet (``Shared.progress_mark``).
        at = (mark.txid, mark.lsn, 0 if partly else mark.sink_txid)
        if host.taken.get(unit.id) == at:  # done at an attempt that failed for another part
            self._restore(unit, host, link, mark)
            return
        names = self._sent(unit, host, link, runs) if link.end.far else [str(run) for run in runs]
        number = link.number()
        link.send(Deploy(number, record(unit), names, at, partly))
        link.answer(number)
        if partly:
            host.taken[unit.id] = at
        self._restore(unit, host, link, mark)

    def _sent(
        self, unit: Unit, host: RemoteWorker, link: FlightLink, runs: Sequence[Path]
    ) -> list[str]:
        """Return the names of the staged states on the worker, once they have been sent.

        Raises:
            OutOfReach: they are on their way; the engine does not wait for that.
        """
        sending = host.sending.get(unit.id)
        if sending is None or sending.link is not link:
            sending = host.sending[unit.id] = Sending(link, runs, self._poke)
        try:
            there = sending.there(_SENT_S)
        except (OutOfReach, OSError):
            del host.sending[unit.id]
            raise
        if not there:
            raise OutOfReach(f'the view\'s states are on their way to worker "{host.name}"')
        del host.sending[unit.id]
        return sending.names

    def replan(self, unit: Unit) -> None:
        """Send a worker the new plan of a unit; a worker out of reach gets it when it is back.

        REQUIRES: nothing is in flight.
        """
        host = self._state.hosts.get(unit.placed)
        if host is not None and host.link is not None and unit.id in host.units:
            number = host.link.number()
            word = Replan(number, unit.id, plan.to_json(unit.plan), host.take_commits())
            with contextlib.suppress(OutOfReach):
                host.link.send(word)
                host.link.answer(number)

    def drop(self, unit_id: int) -> None:
        """Drop a unit; a worker that is out of reach is told when it is back.

        Parts of a view that were about to be taken in are dropped with it.
        """
        for host in self._state.hosts.values():
            for gone in (host.units | host.sending.keys()) & self._with_parts(unit_id):
                host.sending.pop(gone, None)
                if gone not in host.units:
                    continue
                host.units.discard(gone)
                host.taken.pop(gone, None)
                host.marks.pop(gone, None)
                host.commits.pop(gone, None)
                if host.link is not None:
                    with contextlib.suppress(OutOfReach):
                        host.link.send(Drop(gone))

    def _with_parts(self, unit_id: int) -> set[int]:
        if unit_id < 0:
            return {unit_id}
        first = unit_id * PER_VIEW_MAX
        parts = {-number for number in range(first, first + PER_VIEW_MAX)}
        return {unit_id} | parts - self._state.subplans.keys()

    def interrupt(self, view: View) -> None:
        """Interrupt the work on a view; callable from any thread."""
        for unit in (view, *self._state.parts_of(view)):
            self.interrupt_unit(unit)

    def interrupt_unit(self, unit: Unit) -> None:
        """Interrupt the work on one unit, if it is on another worker; callable from any thread."""
        store = unit.store
        if isinstance(store, RemoteStore) and store.up:
            store.link.interrupt([unit.id])

    def at_work(self) -> str | None:
        """Describe the worker that the engine waits for, and how long; callable from any thread."""
        for host in list(self._state.hosts.values()):
            since = host.awaited_since
            if since is not None:
                return f"a batch on worker {host.name}, {clock.monotonic() - since:.0f} s"
        return None

    def works(self) -> list[Work]:
        """Return what units do on workers that the engine waits for; callable from any thread."""
        return [
            work
            for host in list(self._state.hosts.values())
            if host.awaited_since is not None and host.link is not None
            for work in host.link.at
        ]

    def close(self) -> None:
        """Close the links to all workers."""
        for host in self._state.hosts.values():
            if host.link is not None:
                host.link.close()
            joining, host.joining = host.joining, None
            if joining is not None and joining.wait(0.0):
                with contextlib.suppress(OutOfReach):
                    joining.made()[0].close()

    # --- batches

    def batch(self, units: Sequence[Unit], *, lagging: bool = False) -> RemoteBatch:
        """Return a batch for ``units``, which are placed on other workers, to be run once.

        ``lagging``: they lag; it is run on another thread than the engine's.
        """
        parts: dict[str, _Part] = {}
        ids = {unit.id for unit in units}
        levels: dict[int, int] = {}

        def level(unit: Unit) -> int:
            if unit.id not in levels:
                below = ids.intersection(unit.feeds.values())
                lower = (level(self._state.subplans[feeder]) for feeder in below)
                levels[unit.id] = bool(unit.feeds) + max(lower, default=0)
            return levels[unit.id]

        for unit in units:
            store = unit.store
            if not isinstance(store, RemoteStore):
                raise BugError(f"unit {unit.id} has no states on worker {unit.placed}")
            part = parts.get(unit.placed)
            if part is None:
                part = parts[unit.placed] = _Part(store.host, store.link, lagging)
            part.levels.setdefault(level(unit), []).append(unit)
            part.tables |= {spec.table_oid for spec in unit.own.sources}
        for part in parts.values():
            # Commits of other units may be reported over the other exchange.
            part.commits = part.host.take_commits_of(unit.id for unit in part.units)
        needed_by = {u.id: u.first if isinstance(u, Shared) else u.id for u in units}
        return RemoteBatch(list(parts.values()), needed_by)

    # --- links

    def look(self) -> None:
        """Apply the catalog's entries on links and on the workers at their other ends.

        A worker that is back is no longer considered lost.
        """
        conn = self._state.owner.conn
        if self._lost is None:
            self._lost = nodes.lost_workers(conn)
        if not (self._state.hosts or self._lost) or clock.monotonic() < self.due < math.inf:
            return
        self.due = clock.monotonic() + _LOOK_S
        if self._lost:
            self._lost = nodes.lost_workers(conn)
        for name in sorted(self._lost):
            self._state.hosts.setdefault(name, RemoteWorker(name)).slow = True
            with contextlib.suppress(OutOfReach):
                self.reach(name)
        up = [(h, h.link) for h in self._state.hosts.values() if h.link is not None and h.link.up]
        said = links.said(conn) if up else {}
        for host, link in up:
            link.override(said.get(host.name, LinkFacts()).bytes_per_s)
            if isinstance(link.end, Far):
                found = nodes.where_placed(conn, host.name)
                if found is None or found[1] != link.end.other:
                    link.close(
                        "another process has joined under its name, or its token is no longer valid"
                    )

    def lose(self, worker: str) -> None:
        """Declare a worker lost for good, until it is back (``look``)."""
        nodes.lose(self._state.owner.conn, worker)
        self._lost = (self._lost or set()) | {worker}
        _log.warning("worker lost", worker=worker)

    # --- inside

    def _reached(self, name: str, units: Iterable[Unit]) -> tuple[RemoteWorker, FlightLink]:
        """Return a worker and its link; a new link begins with all units that are placed there.

        Raises:
            OutOfReach: the worker is out of reach.
        """
        host = self._state.hosts.setdefault(name, RemoteWorker(name))
        if host.link is not None and host.link.up:
            return host, host.link
        there = {unit.id: unit for unit in (*self._state.units, *units) if unit.placed == name}
        if host.joining is None:
            if clock.monotonic() < host.retry_at:
                raise unreachable(name)
            host.retry_at = clock.monotonic() + _RETRY_S
            end = self._end(name)
            if end is None:
                raise unreachable(name)
            host.lost_again()
            owner = self._state.owner
            records = [record(unit) for unit in there.values()]
            host.plans = {unit.id: unit.plan for unit in there.values()}
            greeting = Greeting(records, self._login(end), self._state.lineage, owner.epoch)
            said = links.said(owner.conn).get(name, LinkFacts()).bytes_per_s
            # Heartbeats from another machine wait behind rows, where the line is slow.
            leading_s = host.patience_s if end.far else host.leading_s
            host.joining = Joining(
                name, end, greeting, self._poke, said, host.patience_s, leading_s
            )
        if not host.joining.wait(0.0 if host.slow else _PATIENCE_S):
            host.slow = True
            raise unreachable(name)
        joining, host.joining = host.joining, None
        link, joined = joining.made()
        host.link, host.pid, host.slow = link, joined.pid, False
        host.marks, host.guilty = dict(joined.marks), set(joined.guilty)
        host.units = set(joined.marks)
        host.commits.clear()
        host.taken.clear()
        host.large = host.crowded = False
        if self._lost is None or name in self._lost:
            nodes.find(self._state.owner.conn, name)
            self._lost = self._lost and self._lost - {name}
        for gone in host.units - there.keys():
            self.drop(gone)  # since the worker was asked
        for unit_id in host.units & there.keys():
            if host.plans.get(unit_id) != there[unit_id].plan:
                self.replan(there[unit_id])
        _log.info("worker joined", worker=name, pid=joined.pid, views=sorted(joined.marks))
        return host, link

    def _end(self, name: str) -> End | None:
        """Return where a worker listens; None: it does not."""
        settings = self._state.settings
        path = settings.flight_socket(name)
        if path.exists():
            return Near(path)
        conn = self._state.owner.conn
        found = nodes.where_placed(conn, name)
        if found is None:
            return None
        own = keys.load_or_create(settings.keys_dir)
        # The worker takes no other certificate, and gets this one when it registers next.
        meta.put(conn, "certificate", own.certificate.decode())
        return Far(*found, own)

    def _login(self, end: End) -> tuple[str, str] | None:
        """Return the evaluating role's login for a remote worker; a local one has it already."""
        dsn = self._state.settings.eval_dsn
        if not end.far or not dsn:
            return None
        parts = conninfo_to_dict(dsn)
        return str(parts.get("user") or ""), str(parts.get("password") or "")

    def _restore(self, unit: Unit, host: RemoteWorker, link: FlightLink, mark: StateMark) -> None:
        host.units.add(unit.id)
        unit.restore(RemoteStore(host, link, unit.id, mark.txid, mark.txid), mark)


def _fail(outcome: Outcome, found: Mapping[int, HeadraceError]) -> None:
    """Add errors of units; the first one of a unit counts."""
    outcome.failed |= {i: error for i, error in found.items() if i not in outcome.failed}


def record(unit: Unit) -> UnitRecord:
    """Return the description of a unit for another process."""
    owner = unit.owner if isinstance(unit, View | Shared) else ""
    return UnitRecord(
        unit.id,
        plan.to_json(unit.plan),
        unit.settings,
        unit.start_lsn,
        owner,
        unit.limits,
        unit.target.shown if isinstance(unit, View) else "",
        unit.feeds,
    )
