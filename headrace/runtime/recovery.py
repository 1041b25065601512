"""Start of the stream, at engine start and after errors.

Positions come from the state database, the source must be the server that they belong to, and the
engine takes ownership of the views again.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from headrace.errors import RESYNC, ContinuityLost, OtherFormat, StateDamaged
from headrace.forwarder.stream import Stream
from headrace.postgres import slot as setup
from headrace.runtime import failover, positions, replay
from headrace.runtime.durability import Durability
from headrace.runtime.engine_state import EngineState
from headrace.runtime.leaving import Leaving
from headrace.runtime.loading import Loading
from headrace.runtime.ownership import Owner
from headrace.runtime.positions import Position
from headrace.runtime.sharing import Sharing
from headrace.sql import origins, watched
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
        failover.apply_switch(state.db, state.storage)
        state.lineage = _lineage(state.db)
        state.records = positions.records(state.db)
        state.holds.load(state.db)
        state.confirmed = positions.get_confirmed(state.db)
        state.position = positions.get_position(state.db) or Position(0, 0)
        state.durable = state.position
        self._sharing.read()
        state.retained.open(state.db, state.queues)
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
            failover.check_timeline(state)
            self._adopt_source()
            self._loading.load()
        elif state.identity is None:  # the last one was given up
            failover.check_timeline(state)
        for unit in state.units:
            unit.reset()
        if state.retained.local:
            self._durability.still()  # the checkpoint says how far the retained batches reach
        state.retained.rewind()
        plan = replay.plan(state)
        state.stream = Stream(
            state.settings,
            state.owner.conn,
            plan.stream_lsn,
            plan.cuts,
            state.identity,
            plan.backlog,
            origins.token(state.owner.conn),
        )
        state.taken = plan.start
        return plan.start, plan.batches

    def _connect(self) -> None:
        state = self._state
        state.connections = Owner(state.settings, state.last_pid, positions.get_epoch(state.db))
        meta: positions.Meta = {}
        positions.put_epoch(meta, state.owner.epoch)
        state.db.put_meta(meta, sync=True)
        state.last_pid = state.connections.pid

    def _adopt_source(self) -> None:
        """Ensure that slot and publication exist; a new engine starts at the slot's position."""
        state = self._state
        slot = setup.ensure(state.owner.conn, state.settings, watched.fed)
        if state.position.lsn == 0:
            state.position = Position(state.position.txid, slot.confirmed)
            state.confirmed = max(state.confirmed, slot.confirmed)
            # Durable before the first view: another engine may have moved the slot's position, so
            # an engine that comes back must not take it for its own (H21).
            meta: positions.Meta = {}
            positions.put_position(meta, state.position)
            positions.put_confirmed(meta, state.confirmed)
            state.db.put_meta(meta, sync=True)
        state.holds.begin(Position(state.position.txid, state.confirmed))

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
        setup.drop_slot(conn, state.settings.slot_name)
        slot = setup.ensure(conn, state.settings, watched.fed)
        self._durability.still()
        state.retained.lose(state.db)
        state.position = Position(state.next_txid - 1, slot.confirmed)
        state.durable = state.position
        state.confirmed = slot.confirmed
        state.identity = None
        meta: positions.Meta = {}
        for txid in state.records:
            positions.drop_record(meta, txid)
        state.holds.lose(state.position)
        state.records.clear()
        positions.put_position(meta, state.position)
        positions.put_confirmed(meta, state.confirmed)
        state.db.put_meta(meta, sync=True)


def _lineage(db: RocksDatabase) -> str:
    """Return the name of the batch records; give a new database a new name."""
    found = positions.get_lineage(db)
    if not found:
        meta: positions.Meta = {}
        found = positions.new_lineage(meta)
        db.put_meta(meta, sync=True)
    return found
