"""Positions in the state database: processed, recorded, confirmed and held.

* Invariant 1: batch n is recorded before any part of it reaches a result table.  Its record stays
  until every view's state has passed it, so n always means the same transactions.
* Invariant 2: the position confirmed to the source is durable here first (synced).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from typing import Final

import msgspec

from headrace.errors import BugError
from headrace.kernels.pgoutput import Commit, read_commit
from headrace.postgres.timeline import Identity
from headrace.state.rocks import RocksDatabase

_POSITION: Final = b"position"
_CONFIRMED: Final = b"confirmed"
_SOURCE: Final = b"source"
_BATCH: Final = b"batch/"
_VIEW: Final = b"view/"
_HOLD: Final = b"hold/"
_RETAINED: Final = b"retained"
_LINEAGE: Final = b"lineage"
_LAST: Final = b"last_commit"
_EPOCH: Final = b"epoch"
_BEGUN: Final = b"begun"
_TXID: Final = struct.Struct(">Q")
_PAIR: Final = struct.Struct(">QQ")
_RECORD: Final = struct.Struct(">QQqI")
_STATE: Final = struct.Struct(">QQQ")
_FIVE: Final = struct.Struct(">QQQQQ")

Meta = dict[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class Position:
    """All batches up to ``txid`` are processed, and nothing before ``lsn`` is missing."""

    txid: int
    lsn: int


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """The recorded range of a batch: commits that end in (start_lsn, end_lsn]."""

    txid: int
    start_lsn: int
    end_lsn: int
    commit_time_us: int
    attempt: int = 0
    """The last attempt that was processed."""


@dataclass(frozen=True, slots=True)
class StateMark:
    """State of a view: complete up to ``txid``, last written to the sink at ``sink_txid``."""

    txid: int
    lsn: int
    sink_txid: int


@dataclass(frozen=True, slots=True)
class IntakeMark:
    """A checkpoint's record of the locally retained batches."""

    number: int
    """Number of the queue, less than 2**32; each new queue gets another one."""
    front: int
    """Least offset in bytes at which the queue must end."""
    txid: int
    """Txid of its last batch."""
    lsn: int
    """LSN at which the changes after it begin; 0: there is no queue."""
    begin: int
    """LSN at which the queue began."""


def put_intake_mark(meta: Meta, mark: IntakeMark) -> None:
    """Add the mark of the locally retained batches."""
    meta[_RETAINED] = _FIVE.pack(*astuple(mark))


def get_intake_mark(db: RocksDatabase) -> IntakeMark | None:
    """Return the mark of the locally retained batches; None: there never were any."""
    value = db.get_meta(_RETAINED)
    return IntakeMark(*_FIVE.unpack(value)) if value else None


def put_lineage(meta: Meta, lineage: str) -> None:
    """Add the name of the batch records."""
    meta[_LINEAGE] = lineage.encode()


def new_lineage(meta: Meta) -> str:
    """Add a new name for the batch records, so that no earlier mark counts; return it."""
    lineage = uuid.uuid4().hex
    put_lineage(meta, lineage)
    return lineage


def get_lineage(db: RocksDatabase) -> str:
    """Return the name of the batch records that this database's marks refer to; '': none.

    A txid has a meaning only together with the records of that name.
    """
    return (db.get_meta(_LINEAGE) or b"").decode()


def put_position(meta: Meta, position: Position) -> None:
    """Add the engine's position to a checkpoint."""
    meta[_POSITION] = _PAIR.pack(position.txid, position.lsn)


def get_position(db: RocksDatabase) -> Position | None:
    """Return the engine's position; None in a new database."""
    value = db.get_meta(_POSITION)
    return Position(*_PAIR.unpack(value)) if value else None


def put_confirmed(meta: Meta, lsn: int) -> None:
    """Add the position that is about to be confirmed."""
    meta[_CONFIRMED] = _TXID.pack(lsn)


def get_confirmed(db: RocksDatabase) -> int:
    """Return the last position that may have been confirmed to the source; 0: none."""
    value = db.get_meta(_CONFIRMED)
    return int(_TXID.unpack(value)[0]) if value else 0


def put_last_commit(meta: Meta, last: Commit | None) -> None:
    """Add the last transaction received."""
    meta[_LAST] = None if last is None else last.encode()


def get_last_commit(db: RocksDatabase) -> Commit | None:
    """Return the last transaction received before a checkpoint; None: none is known."""
    value = db.get_meta(_LAST)
    return read_commit(value) if value else None


def put_epoch(meta: Meta, epoch: int) -> None:
    """Add the epoch that is about to begin in the source database."""
    meta[_EPOCH] = _TXID.pack(epoch)


def get_epoch(db: RocksDatabase) -> int:
    """Return the highest epoch that the engine may have had; 0: none."""
    value = db.get_meta(_EPOCH)
    return int(_TXID.unpack(value)[0]) if value else 0


def put_begun(meta: Meta, epoch: int) -> None:
    """Add the epoch that has begun in the source database."""
    meta[_BEGUN] = _TXID.pack(epoch)


def get_begun(db: RocksDatabase) -> int:
    """Return the last epoch that is known to have begun in the source database; 0: none."""
    value = db.get_meta(_BEGUN)
    return int(_TXID.unpack(value)[0]) if value else 0


def put_source(meta: Meta, source: Identity, slot: str) -> None:
    """Add the server that the positions belong to."""
    meta[_SOURCE] = msgspec.json.encode((*astuple(source), slot))


def get_source(db: RocksDatabase) -> tuple[Identity, str] | None:
    """Return the server and slot that the positions belong to."""
    value = db.get_meta(_SOURCE)
    if value is None:
        return None
    system, timeline, slot = msgspec.json.decode(value, type=tuple[str, int, str])
    return Identity(system, timeline), slot


def put_record(meta: Meta, record: BatchRecord) -> None:
    """Add the record of a batch."""
    meta[_BATCH + _TXID.pack(record.txid)] = _RECORD.pack(
        record.start_lsn, record.end_lsn, record.commit_time_us, record.attempt
    )


def drop_record(meta: Meta, txid: int) -> None:
    """Forget the record of a batch that no view needs any more."""
    meta[_BATCH + _TXID.pack(txid)] = None


class Records(dict[int, BatchRecord]):
    """The recorded batches by txid, ascending; a replay cuts each batch as recorded (T-11).

    Invariant: batches are recorded one after the other, without gaps, and each only once (T-26).
    """

    def __init__(self, found: Iterable[BatchRecord] = (), last: int = 0) -> None:
        """Create it; all batches up to ``last`` were recorded at some time."""
        super().__init__((record.txid, record) for record in found)
        self.last = max(last, *self) if self else last
        """The last txid that was recorded, even if its record is forgotten."""

    def record(self, meta: Meta, new: BatchRecord) -> BatchRecord:
        """Record a batch, or update the attempt in its record; return the record.

        Raises:
            BugError: it does not end where it was recorded, or it is not the next one.
        """
        known = self.get(new.txid)
        if known is None:
            if new.txid != self.last + 1:
                raise BugError(f"batch {new.txid} cannot be recorded: the last one is {self.last}")
            known = new
        elif known.end_lsn != new.end_lsn:
            raise BugError(f"batch {new.txid} does not end where it was recorded")
        elif known.attempt == new.attempt:
            return known
        known = replace(known, attempt=new.attempt)
        self[new.txid] = known
        self.last = max(self.last, new.txid)
        put_record(meta, known)
        return known

    def time_of(self, txid: int) -> int:
        """Return the timestamp of a batch; 0 if it has no record any more."""
        record = self.get(txid)
        return 0 if record is None else record.commit_time_us

    def trim(self, meta: Meta, least: int) -> None:
        """Forget the records before ``least``, which cannot be needed any more."""
        for txid in [t for t in self if t < least]:
            del self[txid]
            drop_record(meta, txid)


def records(db: RocksDatabase) -> Records:
    """Return all recorded batches."""
    found = []
    for key, value in db.scan_meta(_BATCH):
        txid = int(_TXID.unpack(key[len(_BATCH) :])[0])
        found.append(BatchRecord(txid, *_RECORD.unpack(value)))
    position = get_position(db)
    return Records(found, position.txid if position is not None else 0)


def put_view(meta: Meta, view_id: int, mark: StateMark | None) -> None:
    """Add the position of a view's state; None forgets it."""
    key = _VIEW + str(view_id).encode()
    meta[key] = _STATE.pack(mark.txid, mark.lsn, mark.sink_txid) if mark is not None else None


def view(db: RocksDatabase, view_id: int) -> StateMark | None:
    """Return the mark of one view's state; None: it has none."""
    value = db.get_meta(_VIEW + str(view_id).encode())
    return StateMark(*_STATE.unpack(value)) if value is not None else None


def views(db: RocksDatabase) -> dict[int, StateMark]:
    """Return the marks of all views that have state."""
    return {
        int(key[len(_VIEW) :]): StateMark(*_STATE.unpack(value))
        for key, value in db.scan_meta(_VIEW)
    }


def put_hold(meta: Meta, job: str, hold: Position | None) -> None:
    """Add a hold: nothing beyond it is confirmed; None releases it."""
    key = _HOLD + job.encode()
    meta[key] = _PAIR.pack(hold.txid, hold.lsn) if hold is not None else None


def hold_keys(jobs: Iterable[str]) -> list[bytes]:
    """Return the keys of the holds of ``jobs``."""
    return [_HOLD + job.encode() for job in jobs]


def pins(db: RocksDatabase) -> dict[str, Position]:
    """Return all holds by job."""
    return {
        key[len(_HOLD) :].decode(): Position(*_PAIR.unpack(value))
        for key, value in db.scan_meta(_HOLD)
    }
