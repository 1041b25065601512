"""Going on after a standby of the source was promoted, without filling views anew.

The new timeline has the same changes as the old one up to the switch point.  So all data here
that comes from changes before it stays valid, and all other data is discarded:

    check_timeline ─► the source is on a new timeline: store the switch, end the process
    apply_switch   ─► the next process discards batches after the switch before it loads anything

The views then begin at their checkpoints, as after a kill.  Result tables were replicated too, and
may have lost their last commits.  A state must not be ahead of its table, so checkpoints wait for
the standbys (``replication_wait.py``).

* Invariant 1: batches after the switch point never meet a view: neither records, nor the intake
  log, nor the output of a shared subplan.  Their txids are used again.
* Invariant 2: only a view whose state, or whose table, does not fit is filled anew (``Loading``).
"""

from __future__ import annotations

from typing import Final

import msgspec
import structlog

from headrace.errors import ContinuityLost, HeadraceError
from headrace.postgres import decoding_standby, timeline
from headrace.postgres import slot as setup
from headrace.postgres.timeline import Identity
from headrace.runtime import intake_log, positions
from headrace.runtime.engine_state import EngineState
from headrace.runtime.positions import BatchRecord, Meta, Position
from headrace.state.rocks import RocksDatabase
from headrace.storage.manager import Storage
from headrace.types import format_lsn

_log = structlog.get_logger(__name__)

_NAME: Final = "headrace stream"
_SWITCH: Final = b"switch"
_REPLICATED: Final = b"replicated"
_OTHER_HISTORY: Final = b"other_history"


class _Switch(msgspec.Struct):
    """A switch that is to be applied."""

    system_id: str
    timeline: int
    lsn: int
    """The switch point."""
    slot: str


_SWITCHES: Final = msgspec.json.Decoder(_Switch)


class SwitchStored(HeadraceError):
    """The process must end, and begin anew on the new timeline."""

    sqlstate = "57P01"


def check_timeline(state: EngineState) -> None:
    """Do nothing if the source is on the timeline of all positions; else store the switch.

    The first time, that timeline is stored.

    Raises:
        SwitchStored: the source has switched, and the engine must start again.
        ContinuityLost: it is another server, has no slot from before the switch, or is a copy.
        TransientError: it cannot be reached.
    """
    expected, settings = state.identity, state.settings
    meta: Meta = {}
    if expected is None:
        state.identity = timeline.current(settings.source, _NAME)
        positions.put_source(meta, state.identity, settings.slot_name)
        meta[_OTHER_HISTORY] = None
        state.db.put_meta(meta, sync=True)
        return
    found = timeline.switch_point(settings.source, expected, _NAME)
    if found is None:
        _check_history(state)
        return
    who, lsn = found
    with decoding_standby.connected(settings, state.owner.conn) as conn:
        slot = setup.slot_state(conn, settings.slot_name)
    if slot is None:
        server = "standby of decode_from" if settings.decode_from else "promoted server"
        raise ContinuityLost(
            f'the {server} does not have slot "{settings.slot_name}"',
            detail=f"It left timeline {expected.timeline} at {format_lsn(lsn)}. The slot was not"
            " synchronised to it before.",
            hint="See headrace check for what a standby needs (Postgres 17 or later).",
        )
    meta[_SWITCH] = msgspec.json.encode(
        _Switch(who.system_id, who.timeline, lsn, settings.slot_name)
    )
    state.db.put_meta(meta, sync=True)
    raise SwitchStored(
        f"the source has switched from timeline {expected.timeline} to {who.timeline}"
        f" at {format_lsn(lsn)}"
    )


# --- a copy, or a restored backup, on the same timeline


def compare_epochs(db: RocksDatabase, found: int) -> None:
    """Record that the next epoch begins, and whether the last one, ``found``, was this engine's.

    Each start of the engine begins an epoch in the database.  A database that was restored from a
    backup lacks the last ones, as does a copy.  A copy with an engine of its own has others.
    """
    begun, promised = positions.get_begun(db), positions.get_epoch(db)
    meta: Meta = {}
    positions.put_epoch(meta, max(found, promised) + 1)
    # An engine that was killed as it began an epoch does not know whether it has begun.
    if begun and not begun <= found <= promised:
        meta[_OTHER_HISTORY] = f"{found} {begun}".encode()
    db.put_meta(meta, sync=True)


def _check_history(state: EngineState) -> None:
    """Raise ContinuityLost if the database is a copy, or was restored from a backup."""
    other = state.db.get_meta(_OTHER_HISTORY)
    if other is None:
        return
    found, begun = other.decode().split()
    raise ContinuityLost(
        "the database is a copy, or was restored: the states of the views belong to another one",
        detail=f"Its last engine had epoch {found}; the one that wrote the states had {begun}.",
    )


def clear_history(meta: Meta) -> None:
    """Add that the positions belong to the database from now on."""
    meta[_OTHER_HISTORY] = None


def rewind_idle(state: EngineState, slot_lsn: int) -> None:
    """Set the position back to where the source proves it, if only idle time was after that.

    A server that has crashed may have an earlier position of the slot; then the stream begins
    before changes that were found to concern no view.  A copy of the server (a snapshot of its
    disk) has other changes there.  ``slot_lsn``: position of the slot.
    """
    position = state.position
    last = state.records.get(position.txid)
    if (last is None and state.records) or state.retained.last > position.txid:
        return
    # Without records, no batch was processed since the engine began, or lost its position.
    low = max(slot_lsn, last.end_lsn) if last is not None else slot_lsn
    if low < position.lsn:
        state.position = Position(position.txid, low)
        state.confirmed = min(state.confirmed, low)
        state.retained.rewind(low)


def apply_switch(db: RocksDatabase, queues: Storage) -> bool:
    """Discard the batches after a stored switch; return whether there was one.

    Raises:
        TransientError: the disk refuses.
    """
    value = db.get_meta(_SWITCH)
    if value is None:
        return False
    switch = _SWITCHES.decode(value)
    records, position = positions.records(db), positions.get_position(db) or Position(0, 0)
    gone = sorted(txid for txid, record in records.items() if record.end_lsn > switch.lsn)
    last = gone[0] - 1 if gone else records.last
    following = records[gone[0]] if gone else None
    meta: Meta = {}
    for txid in gone:
        positions.drop_record(meta, txid)
    intake_log.cut(db, queues, meta, last, _end(following, switch.lsn))
    positions.put_position(meta, _before(position, last, following, switch.lsn))
    positions.put_confirmed(meta, min(positions.get_confirmed(db), switch.lsn))
    received = positions.get_last_commit(db)
    if received is not None and received.end_lsn > switch.lsn:
        positions.put_last_commit(meta, None)
    for job, hold in positions.pins(db).items():
        if hold.txid > last or hold.lsn > switch.lsn:
            positions.put_hold(meta, job, None)
    if not is_replicated(db):
        # Another worker's states may be ahead of the switch, and it is not here to be asked.
        positions.new_lineage(meta)
    positions.put_source(meta, Identity(switch.system_id, switch.timeline), switch.slot)
    meta[_SWITCH] = meta[_OTHER_HISTORY] = None
    queues.sync()
    db.put_meta(meta, sync=True)
    _log.info(
        "timeline switched",
        timeline=switch.timeline,
        at=format_lsn(switch.lsn),
        last_txid=last,
        batches_gone=len(gone),
    )
    return True


def _end(following: BatchRecord | None, switch: int) -> int:
    """Return where the changes after the last batch before the switch begin, or a lower LSN."""
    return switch if following is None else min(following.start_lsn, switch)


def _before(position: Position, last: int, following: BatchRecord | None, switch: int) -> Position:
    """Return ``position``, or an earlier one that is not after the switch."""
    if position.txid <= last:
        # The idle time that it counts is idle on both timelines up to the switch.
        return Position(position.txid, min(position.lsn, switch))
    return Position(last, _end(following, switch))


# --- replicated checkpoints


def put_replicated(meta: Meta) -> None:
    """Add to a checkpoint that all its result rows are on the standbys."""
    meta[_REPLICATED] = b"1"


def clear_replicated(db: RocksDatabase) -> None:
    """Record that the next checkpoint may be ahead of the standbys."""
    if is_replicated(db):
        db.put_meta({_REPLICATED: None}, sync=True)


def is_replicated(db: RocksDatabase) -> bool:
    """Return whether the last checkpoint is not ahead of any standby."""
    return db.get_meta(_REPLICATED) is not None
