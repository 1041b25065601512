"""Start of the stream, at engine start and after errors.

Positions come from the state database, the source must be the server that they belong to, and the
engine takes ownership of the views again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from headrace.errors import RESYNC, ContinuityLost, OtherFormat, StateDamaged
from headrace.forwarder.stream import Stream, StreamStart
from headrace.kernels.pgoutput import Commit
from headrace.postgres import decoding_standby
from headrace.postgres import slot as setup
from headrace.postgres.decoding_standby import StandbyUnavailable
from headrace.runtime import failover, packing, positions, replay
from headrace.runtime.durability import Durability
from headrace.runtime.engine_state import EngineState
from headrace.runtime.intake_log import IntakeLog
from headrace.runtime.leaving import Leaving
from headrace.runtime.loading import Loading
from headrace.runtime.ownership import Owner
from headrace.runtime.positions import Position
from headrace.runtime.sharing import Sharing
from headrace.sql import origins, states, watched
from headrace.state.opening import open_database
from headrace.state.rocks import RocksDatabase
from headrace.storage.manager import Storage

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Recovery:
    """Recovery of one engine; every method runs on its thread."""

    _state: EngineState
    _durability: Durability
    _sharing: Sharing
    _loading: Loading
    _leaving: Leaving
    _left: list[Callable[[], None]] = field(default_factory=list)
    """Steps that are still to do since the connections were opened."""

    @property
    def loaded(self) -> bool:
        """Whether the views were loaded since the connections were opened."""
        return self._loading.load not in self._left

    def open(self) -> None:
        """Open the state database; set a damaged one aside and create a new one."""
        state = self._state
        settings = state.settings
        _, damage = open_database(settings.state_dir, settings.memory.states, self._read_state)
        if damage is not None:
            why = "is of another version" if isinstance(damage, OtherFormat) else "was damaged"
            state.damage = StateDamaged(
                f"the view's state {why}", detail=damage.detail, hint=RESYNC
            )

    def _read_state(self, database: RocksDatabase) -> None:
        state = self._state
        state.opened = database
        if state.storage is None:
            state.storage = Storage(
                state.settings.queue_dir,
                state.settings.queue_bytes_max,
                state.settings.queue_block_bytes,
                state.settings.memory.queues,
            )
        state.switched = failover.apply_switch(state.db, state.storage)
        state.lineage = _lineage(state.db)
        state.records = positions.records(state.db)
        state.holds.load(state.db)
        state.confirmed = positions.get_confirmed(state.db)
        state.position = positions.get_position(state.db) or Position(0, 0)
        state.durable = state.position
        self._sharing.read()
        state.retained.open(state.db, state.queues)
        state.last_commit = _last_commit(state.db, state.retained)
        source = positions.get_source(state.db)
        if source is not None:
            state.identity = source[0]

    def stream(self) -> tuple[Position, int]:
        """Open a stream, from any state, at the least position that a live view needs.

        Return where it starts, and how many batches are replayed.
        """
        state = self._state
        if state.connections is None:
            self._connect()
        if self._left:
            while self._left:
                self._left[0]()
                del self._left[0]
        elif state.identity is None or state.settings.decode_from:
            # The last one was given up, or only the standby's stream has ended.
            failover.check_timeline(state)
            decoding_standby.check_history(state.settings)
        for unit in state.units:
            unit.reset()
        if state.retained.local:
            self._durability.still()  # the checkpoint says how far the retained batches reach
        state.retained.rewind()
        plan = replay.plan(state)
        token = origins.token(state.owner.conn)
        with decoding_standby.connected(state.settings, state.owner.conn) as server:
            begin = StreamStart(plan.stream_lsn, plan.cuts, plan.backlog, state.last_commit)
            state.stream = Stream(state.settings, server, begin, state.identity, token)
        if state.settings.decode_from:
            states.end_waiting(state.owner.conn)  # see ``tell``
        state.taken = plan.start
        return plan.start, plan.batches

    def _connect(self) -> None:
        state = self._state
        state.connections = Owner(
            state.settings,
            state.last_pid,
            positions.get_epoch(state.db),
            lambda found: failover.compare_epochs(state.db, found),
        )
        rest = [self._adopt_source, self._loading.load]
        if state.settings.decode_from and state.position.lsn > 0:
            rest.reverse()  # the standby that decodes may be away
        self._left = [self._check_timeline, *rest]
        meta: positions.Meta = {}
        positions.put_epoch(meta, state.owner.epoch)
        positions.put_begun(meta, state.owner.epoch)
        state.db.put_meta(meta, sync=True)
        state.last_pid = state.connections.pid

    def _check_timeline(self) -> None:
        failover.check_timeline(self._state)

    def _adopt_source(self) -> None:
        """Ensure that slot and publication exist; a new engine starts at the slot's position."""
        state = self._state
        slot = decoding_standby.ensure(state.owner.conn, state.settings, watched.fed)
        if state.position.lsn == 0:
            state.position = Position(state.position.txid, slot.confirmed)
            state.confirmed = max(state.confirmed, slot.confirmed)
            # Durable before the first view: another engine may have moved the slot's position, so
            # an engine that comes back must not take it for its own (H21).
            meta: positions.Meta = {}
            positions.put_position(meta, state.position)
            positions.put_confirmed(meta, state.confirmed)
            state.db.put_meta(meta, sync=True)
        elif not slot.created:
            self._durability.still()  # a checkpoint that ends later would confirm more
            failover.rewind_idle(state, slot.confirmed)
        state.holds.begin(Position(state.position.txid, state.confirmed))

    def tell(self, error: StandbyUnavailable) -> None:
        """Note with the views why they get no changes; the next stream removes the note.

        Raises:
            TransientError: the primary cannot be reached, either.
            psycopg.Error: the connection is lost.
        """
        text = "; ".join(filter(None, (error.message, error.hint)))
        conn = self._state.owner.conn
        states.end_waiting(conn)
        states.tell_waiting(conn, list(self._state.views), text)

    def lose(self, error: ContinuityLost) -> None:
        """Stop every view, because the stream cannot go on, and start at a new position."""
        state = self._state
        _log.error("continuity lost", reason=error.message, detail=error.detail)
        state.story.add("continuity lost", reason=error.message)
        self._connect()
        conn = state.owner.conn
        self._loading.load()
        for view in list(state.views.values()):
            if view.owned:
                self._leaving.fail(
                    view, ContinuityLost(error.message, detail=error.detail, hint=RESYNC)
                )
        # No view can use what the old slot has, and it may be stuck for good: a slot cannot
        # decode what was written while its publication did not exist (E12).
        with decoding_standby.connected(state.settings, conn) as server:
            setup.drop_slot(server, state.settings.slot_name)
        slot = decoding_standby.ensure(conn, state.settings, watched.fed)
        self._left = []
        self._durability.still()
        state.retained.lose(state.db)
        state.position = Position(state.next_txid - 1, slot.confirmed)
        state.durable = state.position
        state.confirmed = slot.confirmed
        state.identity = state.last_commit = None
        meta: positions.Meta = {}
        positions.put_last_commit(meta, None)
        failover.clear_history(meta)
        for txid in state.records:
            positions.drop_record(meta, txid)
        state.holds.lose(state.position)
        state.records.clear()
        positions.put_position(meta, state.position)
        positions.put_confirmed(meta, state.confirmed)
        state.db.put_meta(meta, sync=True)


def _last_commit(db: RocksDatabase, retained: IntakeLog) -> Commit | None:
    """Return the last transaction received, of the last checkpoint or of the log after it."""
    known, mark = positions.get_last_commit(db), positions.get_intake_mark(db)
    checkpointed = max(retained.base, mark.txid if mark is not None else 0)
    for txid in range(retained.last, checkpointed, -1):
        found = packing.last_commit(retained.read(txid))
        if found is not None and (known is None or found.end_lsn > known.end_lsn):
            return found
    return known


def _lineage(db: RocksDatabase) -> str:
    """Return the name of the batch records; give a new database a new name."""
    found = positions.get_lineage(db)
    if not found:
        meta: positions.Meta = {}
        found = positions.new_lineage(meta)
        db.put_meta(meta, sync=True)
    return found
