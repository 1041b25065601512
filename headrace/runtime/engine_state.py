"""The engine's shared data, without behaviour.

Each part of the engine gets the book, and only those other parts that it uses.  The book holds
facts and values derived from them; the parts change them.

Threads.  The engine's thread owns every field, and only it writes them.  Other threads may read
single values, which may be slightly out of date (status, ``doing``), and must copy a collection
before they iterate over it.  Exceptions:

* ``holds``, ``pipeline``, ``grants`` and ``evaluators`` have their own locks, and ``suspects`` has
  marks per thread: any thread may use them (sink, dataflows, control socket);
* the engine's thread begins and ends ``checkpoints``, and their own thread writes them;
* the catalog connection of ``owner`` belongs to the engine's thread, the other one to the sink's;
* one dataflow thread at a time uses a unit's store and dataflow, while the engine's thread waits;
  the checkpoint thread reads the store as of a committed txid;
* the thread that ends the engine sets ``stopping``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.config import Settings
from headrace.errors import HeadraceError, StateDamaged, TransientError
from headrace.expressions.pool import Pool
from headrace.forwarder.stream import Stream
from headrace.kernels.pgoutput import Commit
from headrace.postgres.timeline import Identity
from headrace.process.memory_reservations import GRANT_BYTES_MIN, Grants
from headrace.runtime import positions
from headrace.runtime.checkpoints import Checkpoints
from headrace.runtime.crash_attribution import CrashAttribution
from headrace.runtime.event_log import EventLog
from headrace.runtime.gauges import Gauges
from headrace.runtime.intake_log import IntakeLog
from headrace.runtime.lagging import Lagging
from headrace.runtime.lsn_pins import LsnPins
from headrace.runtime.ownership import Owner
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.positions import Position, StateMark
from headrace.runtime.registry import Registry
from headrace.runtime.remote_worker import RemoteWorker
from headrace.runtime.shared import Shared
from headrace.runtime.statuses import Statuses
from headrace.runtime.unit_index import UnitIndex
from headrace.runtime.views import Unit, View
from headrace.state.rocks import RocksDatabase
from headrace.storage.manager import Storage


class EngineState:
    """The state of one engine; see the module docstring."""

    def __init__(self, settings: Settings, checkpoints: Checkpoints) -> None:
        self.settings: Final = settings
        self.story: Final = EventLog()
        self.index: Final = UnitIndex()
        """Indexes over the units below."""
        self.views: Final[Registry[View]] = Registry(self.index)
        self.subplans: Final[Registry[Shared]] = Registry(self.index)
        """Shared subplans, by ID."""
        self.hosts: Final[dict[str, RemoteWorker]] = {}
        """Other workers, by name, from the first time that a view is placed there."""
        self.holds: Final = LsnPins()
        self.records = positions.Records()
        """LSN ranges of the recorded batches."""
        self.lineage = ""
        """Name of these records; stored txids are valid only together with records of that name."""
        self.taken = Position(0, 0)
        """Position taken from the stream: committed or in flight."""
        self.position = Position(0, 0)
        """Committed position."""
        self.durable = Position(0, 0)
        """Position that survives a crash."""
        self.confirmed = 0
        """LSN confirmed to the source, or about to be."""
        self.batches = 0
        """Number of committed batches."""
        self.gauges: Final = Gauges()
        self.reconnects = 0
        self.error: HeadraceError | None = None
        """Why the stream is not running; None while it runs."""
        self.damage: StateDamaged | None = None
        """Why the state of earlier runs was set aside; None if it was not."""
        self.switched = False
        """Whether a standby was promoted since the last run, so tables may be behind states."""
        self.identity: Identity | None = None
        """The server that all positions belong to."""
        self.last_commit: Commit | None = None
        """Last transaction received by earlier streams, if known; see ``last_received``."""
        self.stream: Stream | None = None
        self.stopping = False
        """Whether the engine is to end."""
        self.pipeline: Final = Pipeline(settings.max_inflight_batches, settings.memory.changes)
        self.lagging: Final = Lagging()
        self.statuses: Final = Statuses()
        self.checkpoints: Final = checkpoints
        self.suspects: Final = CrashAttribution(settings.run_dir)
        self.evaluators: Final = Pool(settings.eval_connections_max, settings.turns_dir)
        self.grants: Final = Grants(max(settings.memory.batches, GRANT_BYTES_MIN), GRANT_BYTES_MIN)
        """Memory for working on the rows of batches."""
        self.opened: RocksDatabase | None = None
        """The state database, while the engine runs; see ``db``."""
        self.storage: Storage | None = None
        """The queues, while the engine runs; see ``queues``."""
        self.retained: Final = IntakeLog(settings)
        """The intake log."""
        self.connections: Owner | None = None
        """None while there are no connections; see ``owner``."""
        self.last_pid: int | None = None
        """PID of the last connection's server process."""

    @property
    def db(self) -> RocksDatabase:
        """The state database."""
        assert self.opened is not None, "the engine runs"
        return self.opened

    @property
    def queues(self) -> Storage:
        """Queues of the outputs of shared subplans."""
        assert self.storage is not None, "the engine runs"
        return self.storage

    @property
    def owner(self) -> Owner:
        """The connections.

        Raises:
            TransientError: the engine has none now.
        """
        if self.connections is None:
            raise TransientError("the source database cannot be reached now")
        return self.connections

    # --- positions

    @property
    def last_received(self) -> Commit | None:
        """The last transaction received, if it is known."""
        streamed = None if self.stream is None else self.stream.batcher.last
        found = [last for last in (self.last_commit, streamed) if last is not None]
        return max(found, key=lambda last: last.end_lsn, default=None)

    @property
    def next_txid(self) -> int:
        """Txid of the next batch that has no record."""
        return max(self.position.txid, self.records.last) + 1

    @property
    def latency_s(self) -> float:
        """Seconds by which all views may be late; 0 if a view wants no delay."""
        return self.index.latency_ms / 1000

    @property
    def start_lsn(self) -> int:
        """LSN at which the next batch without a record begins."""
        last = self.records.get(self.records.last)
        if last is not None and last.txid > self.taken.txid:
            return last.end_lsn
        if self.taken.txid == self.position.txid:
            # Count idle time before a replay; the replay has not seen it.
            return max(self.taken.lsn, self.position.lsn)
        return self.taken.lsn

    def covered(self, mark: StateMark) -> int:
        """Return the LSN up to which a view with this mark has everything.

        Idle time after its last batch counts, because it may have been confirmed.  The start LSN of
        the next batch's record says where that time ended.
        """
        at = self.position  # read once: another thread may call this while it moves
        if mark.txid >= at.txid:
            return at.lsn
        following = self.records.get(mark.txid + 1)
        return max(mark.lsn, following.start_lsn) if following else mark.lsn

    def needs(self, at: Position | StateMark) -> int:
        """Return the LSN before which a view or position ``at`` does not need the source's WAL.

        Batches retained locally need not be kept at the source.
        """
        lsn = self.covered(at) if isinstance(at, StateMark) else at.lsn
        if not self.retained.trusted:
            return lsn
        if at.txid == self.retained.last and not self.retained.taking:
            return lsn
        return max(lsn, self.intake_log_lsn) if self.retained.covers(at.txid) else lsn

    @property
    def intake_log_lsn(self) -> int:
        """LSN at which the changes after the locally retained batches begin."""
        retained, position = self.retained, self.position
        if retained.last == position.txid:
            return max(retained.lsn, position.lsn)  # count idle time since the last batch
        following = self.records.get(retained.last + 1) if retained.last < position.txid else None
        return max(retained.lsn, following.start_lsn) if following else retained.lsn

    # --- views, and the subplans that they share

    @property
    def units(self) -> list[Unit]:
        """Views and shared subplans."""
        return [*self.views.values(), *self.subplans.values()]

    @property
    def reads_clock(self) -> bool:
        """Whether the rows of some view change as time passes."""
        return bool(self.index.clocked)

    @property
    def lagging_views(self) -> list[View]:
        """Live views with states that lag."""
        views = self.index.catching_up
        # Each of them runs (``CursorState.status``), so it is live unless it is suspended.
        return [view for view in views if view.suspended is None and view.store is not None]

    def units_of(self, view: View) -> list[Unit]:
        """Return a view, and the shared subplans that it needs."""
        return [view, *self.needed([view])]

    def least(self, view: View) -> int:
        """Return the last txid that a view and all shared subplans that it needs have processed."""
        return min(unit.processed for unit in self.units_of(view))

    def must_coalesce(self, view: View) -> bool:
        """Return whether a view, or a subplan that it needs, lacks output of several txids as one.

        So it cannot process these txids one by one, as views that lead do.
        """
        return any(
            unit.processed < self.subplans[feeder].output.ends.last_together
            for unit in self.units_of(view)
            for feeder in unit.feeds.values()
        )

    def has_all(self, views: Iterable[View]) -> bool:
        """Return whether views, and the shared subplans that they need, lack no batch."""
        views = list(views)
        units: list[Unit] = [*views, *self.needed(views)]
        return all(unit.processed == self.taken.txid for unit in units)

    def at_source(self, after: int) -> bool:
        """Return whether the source has all changes after txid ``after``, which was recorded."""
        following = self.records.get(after + 1)
        return following is not None and following.start_lsn >= self.confirmed

    def can_lag(self, view: View, txid: int) -> bool:
        """Return whether a view lacks batches up to ``txid``, and can read them by itself."""
        if any(unit.store is None for unit in self.units_of(view)):
            return False
        low = self.least(view)
        log_end = self.retained.last if self.retained.covers(low) else low
        return low < txid and (log_end >= txid or self.at_source(log_end))

    @property
    def parts(self) -> list[Shared]:
        """Parts of views that are placed on other workers; one view reads each."""
        return self.index.parts

    def parts_of(self, view: View) -> list[Shared]:
        """Return the parts of one view; for any thread."""
        found: dict[int, Shared] = {}
        left: list[Unit] = [view]
        while left:
            read = map(self.subplans.get, left.pop().feeds.values())
            parts = [part for part in read if part is not None and part.placed]
            found |= {part.id: part for part in parts}
            left += parts
        return list(found.values())

    def missing(self, view: View) -> str | None:
        """Return a worker that has states of the view and is out of reach, or None.

        '' means that the states on this worker are not available.
        """
        units: list[Unit] = [view, *self.parts_of(view)]
        lost = [unit.placed for unit in units if not unit.reachable]
        return max(lost) if lost else None

    def late(self, txid: int) -> list[Shared]:
        """Return the parts of leading views that lack ``txid``.

        After a replay has begun, the view may have it: the rows are in the part's queue, and only
        the part's states have to catch up.
        """
        return [
            part
            for part in self.parts
            if part.processed < txid
            and (view := self.views.get(part.first)) is not None
            and (view.leads and view.store is not None)
        ]

    def unit(self, unit_id: int) -> Unit | None:
        """Return the view or shared subplan with this ID."""
        return self.subplans.get(unit_id) or self.views.get(unit_id)

    def leads(self, unit_id: int) -> bool:
        """Return whether a unit is, or is read by, a view that leads."""
        unit = self.unit(unit_id)
        return unit is not None and any(view.leads for view in self.views_of(unit))

    def readers(self, shared: Shared) -> list[Unit]:
        """Return the units that read a shared subplan directly."""
        return self.index.links.readers(shared.id)

    def all_readers(self, shared: Shared) -> set[int]:
        """Return the IDs of the units that read a shared subplan, directly or indirectly."""
        out: set[int] = set()
        for unit in self.readers(shared):
            out.add(unit.id)
            if isinstance(unit, Shared):
                out |= self.all_readers(unit)
        return out

    def views_of(self, unit: Unit) -> list[View]:
        """Return the views that need a unit; a view needs itself."""
        if isinstance(unit, View):
            return [unit]
        assert isinstance(unit, Shared), "the other kind of unit"
        out: dict[int, View] = {}
        for reader in self.readers(unit):
            out |= {view.id: view for view in self.views_of(reader)}
        return list(out.values())

    def needed(self, units: Iterable[Unit]) -> list[Shared]:
        """Return the shared subplans that ``units`` need, each after those that it reads."""
        out: dict[int, Shared] = {}

        def add(unit: Unit) -> None:
            for feeder in unit.feeds.values():
                if feeder not in out:
                    shared = self.subplans[feeder]
                    add(shared)
                    out[feeder] = shared

        for unit in units:
            add(unit)
        return list(out.values())
