"""What goes over a link: a word, and for some an Arrow batch behind it.

    | length of the word, 4 bytes | word, MessagePack | zeros up to a multiple of 64 | Arrow IPC |

Words from the coordinator to a worker, in this order for each txid:

    BeginBatch ─► TableRows … ─► EndBatch      answered by UnitDiffs … and BatchDone

and beside them what has units come and go, and what makes their states durable.  A link keeps the
order of what is sent, so a word means what it means after all before it.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
import pyarrow as pa
from pyarrow import ipc

Mark = tuple[int, int, int]
"""Txid, position and last written txid of a state (``runtime.positions.StateMark``)."""
Commits = dict[int, list[int]]
"""Txids that are in the result tables since the last word, by unit."""

_ALIGN: Final = 64
_LENGTH_BYTES: Final = 4


class UnitRecord(msgspec.Struct, frozen=True):
    """All that a worker needs to know of a unit."""

    id: int
    plan: dict[str, Any]
    settings: dict[str, str]
    start_lsn: int
    owner: str
    limits: dict[str, int]
    name: str = ""
    """For the log."""


class Greeting(msgspec.Struct, tag=True):
    """A coordinator begins: these units are placed here, and no others.  Answered by Greeted."""

    units: list[UnitRecord]
    login: tuple[str, str] | None = None
    """Role and password for untrusted expressions, of a worker on another machine."""


class Greeted(msgspec.Struct, tag=True):
    """The durable marks of those that have states here; the worker has gone back to them."""

    marks: dict[int, Mark]
    guilty: list[int]
    """Units of which the worker has died again and again."""
    pid: int


class Deploy(msgspec.Struct, tag=True):
    """A unit comes, whose states are staged in runs.  Answered by Reply, when they are durable."""

    call: int
    unit: UnitRecord
    runs: list[str]
    """Paths; or names, of files that were sent."""
    mark: Mark


class Drop(msgspec.Struct, tag=True):
    """A unit is gone."""

    unit: int


class BeginBatch(msgspec.Struct, tag=True):
    """A batch begins for some units."""

    txid: int
    attempt: int
    instant: int
    """See ``runtime.incoming.Frames``; so the next."""
    oldest_us: int
    units: list[int]
    commits: Commits


class TableRows(msgspec.Struct, tag=True):
    """Changes of a table, those of the batch behind."""

    table_oid: int


class EndBatch(msgspec.Struct, tag=True):
    """All of the batch's changes were sent; so many rows (T-29)."""

    txid: int
    rows: int


class AbortBatch(msgspec.Struct, tag=True):
    """The batch that was begun is given up; nothing is answered."""


class UnitDiffs(msgspec.Struct, tag=True):
    """What a unit sends for a batch, behind."""

    unit: int


class BatchDone(msgspec.Struct, tag=True):
    """A batch was processed."""

    txid: int
    attempt: int
    touched: list[int]
    failed: dict[int, dict[str, Any]]
    """Errors (``errors.to_wire``) by unit."""
    trouble: dict[str, Any] | None
    """Why the whole batch must be processed again; None: it need not."""
    took_us: dict[int, int]
    """Microseconds of work, by unit."""
    large: bool
    """Whether so much is not durable that a checkpoint is due."""
    crowded: bool
    """Whether nothing more should come until it is durable."""
    memory_bytes: int


class GoBack(msgspec.Struct, tag=True):
    """A unit forgets what it did from a txid on.  Answered by Reply: the txid it is at."""

    call: int
    unit: int
    txid: int
    commits: Commits


class AskClock(msgspec.Struct, tag=True):
    """What a unit that reads the clock says of an instant.  Answered by Reply."""

    call: int
    unit: int
    what: Literal["near", "crossing", "now"]
    """As ``collections.dataflow.Dataflow`` has them."""
    instant: int


class AskStats(msgspec.Struct, tag=True):
    """What the collections of a unit have done.  Answered by Reply, as JSON."""

    call: int
    unit: int


class Export(msgspec.Struct, tag=True):
    """The durable states of a unit are to be written into a file.  Answered by Reply."""

    call: int
    unit: int
    path: str
    """Or a name, of a file that is fetched then."""


class TakeSnapshot(msgspec.Struct, tag=True):
    """A checkpoint of units as they were at marks; nothing is written yet."""

    number: int
    marks: dict[int, Mark]
    commits: Commits


class WriteSnapshot(msgspec.Struct, tag=True):
    """The snapshot is to be made durable.  Answered by Reply (``call`` is its number)."""

    number: int


class Reply(msgspec.Struct, tag=True):
    """What a call came to."""

    call: int
    value: int = 0
    text: str = ""
    error: dict[str, Any] | None = None


class Work(msgspec.Struct, frozen=True):
    """What a unit is at just now."""

    unit: int
    seconds: float
    """For so long it has been at work."""
    asked: str = ""
    """What Postgres evaluates for it."""
    asked_s: float | None = None
    """For so long; None: it evaluates nothing."""


class Alive(msgspec.Struct, tag=True):
    """The process has time to say so, and what it is at."""

    at: list[Work] = msgspec.field(default_factory=list)


class Bye(msgspec.Struct, tag=True):
    """The worker has ended the session."""


ToWorker = (
    Greeting
    | Deploy
    | Drop
    | BeginBatch
    | TableRows
    | EndBatch
    | AbortBatch
    | GoBack
    | AskClock
    | AskStats
    | Export
    | TakeSnapshot
    | WriteSnapshot
    | Alive
)
FromWorker = Greeted | UnitDiffs | BatchDone | Reply | Alive | Bye

_TO_WORKER: Final = msgspec.msgpack.Decoder(ToWorker)
_FROM_WORKER: Final = msgspec.msgpack.Decoder(FromWorker)
_ENCODER: Final = msgspec.msgpack.Encoder()
_COMPRESSED: Final = ipc.IpcWriteOptions(compression="zstd")
_READ: Final = ipc.IpcReadOptions(ensure_alignment=ipc.Alignment.DataTypeSpecific)


def packed(
    word: ToWorker | FromWorker, batch: pa.RecordBatch | None = None, *, compressed: bool = False
) -> pa.Buffer:
    """A message."""
    head = _ENCODER.encode(word)
    out = pa.BufferOutputStream()
    out.write(len(head).to_bytes(_LENGTH_BYTES, "little") + head)
    if batch is not None:
        out.write(bytes(-(_LENGTH_BYTES + len(head)) % _ALIGN))
        options = _COMPRESSED if compressed else None
        with ipc.new_stream(out, batch.schema, options=options) as stream:
            stream.write_batch(batch)
    return out.getvalue()


def to_worker(message: pa.Buffer) -> tuple[ToWorker, pa.RecordBatch | None]:
    """What a worker was sent."""
    return _TO_WORKER.decode(_head(message)), _batch(message)


def from_worker(message: pa.Buffer) -> tuple[FromWorker, pa.RecordBatch | None]:
    """What a worker has sent."""
    return _FROM_WORKER.decode(_head(message)), _batch(message)


def _head(message: pa.Buffer) -> memoryview:
    whole = memoryview(message)
    size = int.from_bytes(whole[:_LENGTH_BYTES], "little")
    return whole[_LENGTH_BYTES : _LENGTH_BYTES + size]


def _batch(message: pa.Buffer) -> pa.RecordBatch | None:
    end = _LENGTH_BYTES + len(_head(message))
    if message.size <= end:
        return None
    body = message.slice(end + -end % _ALIGN)
    with ipc.open_stream(body, options=_READ) as stream:
        return stream.read_next_batch()
