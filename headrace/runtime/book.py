"""The engine's data: what its parts read and write, and nothing that does something.

Every part of the engine gets the book, and of the others only what it uses.  Here are facts and
what can be read off them; whoever changes one is a part, and says so.

Threads.  The engine's thread owns every field: it alone writes them.  Other threads may read single
values, which are those of some moment not long ago (status, ``doing``), and copy what they
go through.  Besides,

* ``holds``, ``pipeline``, ``grants`` and ``evaluators`` have locks of their own, and ``suspects``
  marks of each thread: they are for any thread (those of the sink, the dataflows and the control
  socket);
* ``checkpoints`` are begun and ended by the engine's thread, and written by the thread inside it;
* of ``owner`` the catalog connection is the engine's, the other one the sink thread's;
* a view's or subplan's store and dataflow are worked with by one thread of the dataflows at a time,
  while the engine's waits for it, and its store is read by the checkpoint thread as of a committed
  txid;
* ``stopping`` is set by whoever ends the engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.config import Settings, turns_dir
from headrace.errors import HeadraceError, StateDamaged, TransientError
from headrace.expressions.pool import Pool
from headrace.forwarder.receiver import Identity
from headrace.forwarder.stream import Stream
from headrace.process.grants import GRANT_BYTES_MIN, Grants
from headrace.runtime import positions
from headrace.runtime.away import Outpost
from headrace.runtime.checkpoints import Checkpoints
from headrace.runtime.gauges import Gauges
from headrace.runtime.holds import Holds
from headrace.runtime.ownership import Owner
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.positions import Position, StateMark
from headrace.runtime.registry import Registry
from headrace.runtime.retained import Retained
from headrace.runtime.shared import Shared
from headrace.runtime.side import Side
from headrace.runtime.story import Story
from headrace.runtime.suspects import Suspects
from headrace.runtime.unit_index import UnitIndex
from headrace.runtime.views import Unit, View
from headrace.state.rocks import RocksDatabase
from headrace.storage.manager import Storage


class Book:
    """What one engine knows; see the module text."""

    def __init__(self, settings: Settings, checkpoints: Checkpoints) -> None:
        self.settings: Final = settings
        self.story: Final = Story()
        self.index: Final = UnitIndex()
        """The units below, by what they are."""
        self.views: Final[Registry[View]] = Registry(self.index)
        self.subplans: Final[Registry[Shared]] = Registry(self.index)
        """Subplans that views share, by id."""
        self.hosts: Final[dict[str, Outpost]] = {}
        """Other workers, by name, once a view was placed there."""
        self.holds: Final = Holds()
        self.records = positions.Records()
        """How batches were cut."""
        self.lineage = ""
        """Names these records; what others know by txid is of no use beside others."""
        self.taken = Position(0, 0)
        """What is taken from the stream: committed, or in flight."""
        self.position = Position(0, 0)
        """What is committed."""
        self.durable = Position(0, 0)
        """What a crash leaves of it."""
        self.confirmed = 0
        """What the source was told, or may be."""
        self.batches = 0
        """How many were committed."""
        self.gauges: Final = Gauges()
        self.reconnects = 0
        self.error: HeadraceError | None = None
        """Why the stream does not run now."""
        self.damage: StateDamaged | None = None
        """Why the state of earlier runs was set aside, if it was."""
        self.identity: Identity | None = None
        """The server that all positions are of."""
        self.stream: Stream | None = None
        self.stopping = False
        """Whether the engine is to end."""
        self.pipeline: Final = Pipeline(settings.max_inflight_batches, settings.memory.changes)
        self.side: Final = Side(settings.queue_bytes_max)
        """What has come for those who are processed beside the others."""
        self.checkpoints: Final = checkpoints
        self.suspects: Final = Suspects(settings.run_dir)
        self.evaluators: Final = Pool(settings.eval_connections_max, turns_dir(settings))
        self.grants: Final = Grants(max(settings.memory.batches, GRANT_BYTES_MIN), GRANT_BYTES_MIN)
        """Memory for what views make of the rows they take up."""
        self.opened: RocksDatabase | None = None
        """The state database, while the engine runs; see ``db``."""
        self.storage: Storage | None = None
        """The queues, while the engine runs; see ``queues``."""
        self.retained: Final = Retained(settings)
        """The batches that are kept on our side."""
        self.connections: Owner | None = None
        """None: there are none now; see ``owner``."""
        self.last_pid: int | None = None
        """The server's process of the last ones."""

    @property
    def db(self) -> RocksDatabase:
        """The state database."""
        assert self.opened is not None, "the engine runs"
        return self.opened

    @property
    def queues(self) -> Storage:
        """What outputs hold for those who have not read it."""
        assert self.storage is not None, "the engine runs"
        return self.storage

    @property
    def owner(self) -> Owner:
        """The connections.

        Raises:
            TransientError: there are none now.
        """
        if self.connections is None:
            raise TransientError("the source database cannot be reached now")
        return self.connections

    # --- positions

    @property
    def next_txid(self) -> int:
        """The txid of a batch that is not recorded."""
        return max(self.position.txid, self.records.last) + 1

    @property
    def latency_s(self) -> float:
        """How late all views may be; 0: at least one wants to be as early as can be."""
        return self.index.latency_ms / 1000

    @property
    def start_lsn(self) -> int:
        """Where the next batch that is not recorded begins."""
        last = self.records.get(self.records.last)
        if last is not None and last.txid > self.taken.txid:
            return last.end_lsn
        if self.taken.txid == self.position.txid:
            # Idle time before a replay counts, the replay has not seen it.
            return max(self.taken.lsn, self.position.lsn)
        return self.taken.lsn

    def covered(self, mark: StateMark) -> int:
        """The position before which a view with this mark lacks nothing.

        Idle time after its last batch counts, for it may have been confirmed: the next batch's
        record says where that time ended.
        """
        at = self.position  # once: it may move on while another thread is here
        if mark.txid >= at.txid:
            return at.lsn
        following = self.records.get(mark.txid + 1)
        return max(mark.lsn, following.start_lsn) if following else mark.lsn

    def needs(self, at: Position | StateMark) -> int:
        """The position before which somebody who stands ``at`` does not need the source.

        What is kept on our side need not be kept there.
        """
        lsn = self.covered(at) if isinstance(at, StateMark) else at.lsn
        if at.txid == self.retained.last and not self.retained.taking:
            return lsn
        return max(lsn, self.retained_lsn) if self.retained.covers(at.txid) else lsn

    @property
    def retained_lsn(self) -> int:
        """Where what comes after the batches that are kept on our side begins."""
        retained, position = self.retained, self.position
        if retained.last == position.txid:
            return max(retained.lsn, position.lsn)  # idle time since the last batch counts
        following = self.records.get(retained.last + 1) if retained.last < position.txid else None
        return max(retained.lsn, following.start_lsn) if following else retained.lsn

    # --- views, and the subplans that they share

    @property
    def units(self) -> list[Unit]:
        """Both."""
        return [*self.views.values(), *self.subplans.values()]

    @property
    def reads_clock(self) -> bool:
        """Whether some view's rows change as time passes."""
        return bool(self.index.clocked)

    @property
    def aside(self) -> list[View]:
        """The live views that are processed beside the others."""
        return self.index.live_in(self.side.groups)

    @property
    def parts(self) -> list[Shared]:
        """Parts of views that are on other workers; each is read by one view."""
        return self.index.parts

    def parts_of(self, view: View) -> list[Shared]:
        """Those of one view."""
        found = (self.subplans.get(feeder) for feeder in view.feeds.values())
        return [shared for shared in found if shared is not None and shared.placed]

    def missing(self, view: View) -> str | None:
        """A worker that has states of a view and cannot be asked now; None: there is none.

        '': the states that are here are not at hand.
        """
        units: list[Unit] = [view, *self.parts_of(view)]
        lost = [unit.placed for unit in units if not unit.reachable]
        return max(lost) if lost else None

    def late(self, txid: int) -> list[Shared]:
        """Parts that lack ``txid``, which who reads them may have: their worker came back.

        The rows of it stand in their queues; only their states have to catch up.
        """
        return [
            part
            for part in self.parts
            if part.processed < txid
            and (view := self.views.get(part.first)) is not None
            and (view.live and view.store is not None)
        ]

    def unit(self, unit_id: int) -> Unit | None:
        """The view or shared subplan of that id."""
        return self.subplans.get(unit_id) or self.views.get(unit_id)

    def readers(self, shared: Shared) -> list[Unit]:
        """Those who read it directly."""
        return self.index.links.readers(shared.id)

    def all_readers(self, shared: Shared) -> set[int]:
        """Ids of those who read it, directly or by other subplans."""
        out: set[int] = set()
        for unit in self.readers(shared):
            out.add(unit.id)
            if isinstance(unit, Shared):
                out |= self.all_readers(unit)
        return out

    def views_of(self, unit: Unit) -> list[View]:
        """The views that need it: itself, if it is one."""
        if isinstance(unit, View):
            return [unit]
        assert isinstance(unit, Shared), "the other kind of unit"
        out: dict[int, View] = {}
        for reader in self.readers(unit):
            out |= {view.id: view for view in self.views_of(reader)}
        return list(out.values())

    def needed(self, views: Iterable[View]) -> list[Shared]:
        """What ``views`` need, each after those that it reads itself."""
        out: dict[int, Shared] = {}

        def add(unit: Unit) -> None:
            for feeder in unit.feeds.values():
                if feeder not in out:
                    shared = self.subplans[feeder]
                    add(shared)
                    out[feeder] = shared

        for view in views:
            add(view)
        return list(out.values())
