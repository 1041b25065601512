"""What goes over a link: a word, and for some an Arrow batch behind it.

    | number, 8 bytes | length of the word, 4 | word, MessagePack | zeros | Arrow IPC |

Zeros lead to a multiple of 64.  Each direction of a link numbers its messages from 1 on: a receiver
that gets another number than the next one knows that a message was lost, or came twice.

Words from the coordinator to a worker, in this order for each txid:

    BeginBatch ─► TableRows … ─► EndBatch      answered by UnitDiffs … and BatchDone

and beside them what has units come and go, and what makes their states durable.  A link keeps the
order of what is sent, so a word means what it means after all before it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa
from pyarrow import ipc

Mark = tuple[int, int, int]
"""Txid, position and last written txid of a state (``runtime.positions.StateMark``)."""
Commits = dict[int, list[int]]
"""Txids that are in the result tables since the last word, by unit."""

PROTOCOL: Final = b"headrace units 3"
"""What an exchange is asked for by: who speaks another version does not begin one."""

_ALIGN: Final = 64
_HEAD: Final = struct.Struct("<QI")

COMPRESSED_BELOW: Final = 30_000_000
"""Bytes per second below which compression pays (``bench links``): half a core's rate."""
PIECE_BYTES: Final = 1 << 16
"""Size of a message of rows to or from another machine, before compression.  Each one that arrives
is a sign of life: at 20 kB/s one takes three seconds.  Smaller ones cost more than they save."""
FAST_PIECE_BYTES: Final = 1 << 20
"""The same on a link that was measured to be faster than ``COMPRESSED_BELOW``."""


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
    lineage: str = ""
    """By whose records batches are cut: marks beside others are void."""
    epoch: int = 0
    """Of the coordinator: whoever has begun later is more than it (``sql/meta.py``)."""


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
    partly: bool = False
    """Whether they have states of other units as well."""


class Drop(msgspec.Struct, tag=True):
    """A unit is gone."""

    unit: int


class Replan(msgspec.Struct, tag=True):
    """A unit computes by another plan from now on; its states stay."""

    unit: int
    plan: dict[str, Any]
    commits: Commits


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
    large: bool
    """Whether so much is not durable that a checkpoint is due."""
    crowded: bool
    """Whether nothing more should come until it is durable."""
    memory_bytes: int
    rows: dict[int, int] = {}
    """How many were sent before this word, by unit (T-29)."""


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


class AskRows(msgspec.Struct, tag=True):
    """Whether sources of a unit have rows in its states.  Answered by Reply: 1 or 0."""

    call: int
    unit: int
    sources: list[str]


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
    leave: list[str] = []
    """Nodes whose states are not wanted: another unit has had them too."""


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


class Packing(msgspec.Struct, tag=True):
    """How the worker sends rows from now on: whether it compresses them, and in which pieces."""

    packed: bool
    piece_bytes: int


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
    | Replan
    | BeginBatch
    | TableRows
    | EndBatch
    | AbortBatch
    | GoBack
    | AskClock
    | AskRows
    | AskStats
    | Export
    | TakeSnapshot
    | WriteSnapshot
    | Packing
    | Alive
)
FromWorker = Greeted | UnitDiffs | BatchDone | Reply | Alive | Bye

_TO_WORKER: Final = msgspec.msgpack.Decoder(ToWorker)
_FROM_WORKER: Final = msgspec.msgpack.Decoder(FromWorker)
_ENCODER: Final = msgspec.msgpack.Encoder()
_COMPRESSED: Final = ipc.IpcWriteOptions(compression="zstd")
_SMALL_BYTES: Final = 4096
"""A smaller batch takes longer to compress than to be sent (``bench links``)."""
_READ: Final = ipc.IpcReadOptions(ensure_alignment=ipc.Alignment.DataTypeSpecific)


class Numbered:
    """Checks the numbers of the messages that come over a link."""

    def __init__(self) -> None:
        self._last = 0

    def check(self, message: pa.Buffer) -> None:
        """Take the next message.

        Raises:
            WordLost: it is another one.
        """
        number, _ = _HEAD.unpack_from(message)
        if number != self._last + 1:
            raise WordLost(f"message {self._last + 1} was awaited, and {number} came")
        self._last = number


class WordLost(Exception):
    """A message was lost on its way, or came twice."""


def packed(
    word: ToWorker | FromWorker,
    batch: pa.RecordBatch | None = None,
    *,
    compressed: bool = False,
    number: int = 0,
) -> pa.Buffer:
    """A message."""
    head = _ENCODER.encode(word)
    out = pa.BufferOutputStream()
    out.write(_HEAD.pack(number, len(head)) + head)
    if batch is not None:
        out.write(bytes(-(_HEAD.size + len(head)) % _ALIGN))
        options = _COMPRESSED if compressed and batch.nbytes >= _SMALL_BYTES else None
        with ipc.new_stream(out, batch.schema, options=options) as stream:
            stream.write_batch(batch)
    return out.getvalue()


def pieces(batch: pa.RecordBatch, piece_bytes: int | None) -> Iterator[pa.RecordBatch]:
    """A batch in slices of about so many bytes; None: whole.  An empty one is one slice."""
    parts = 1 if piece_bytes is None else 1 + batch.nbytes // piece_bytes
    rows = -(-batch.num_rows // parts) or 1
    for begin in range(0, max(batch.num_rows, 1), rows):
        yield batch.slice(begin, rows)


def to_worker(message: pa.Buffer) -> tuple[ToWorker, pa.RecordBatch | None]:
    """What a worker was sent."""
    return _TO_WORKER.decode(_head(message)), _batch(message)


def from_worker(message: pa.Buffer) -> tuple[FromWorker, pa.RecordBatch | None]:
    """What a worker has sent."""
    return _FROM_WORKER.decode(_head(message)), _batch(message)


def _head(message: pa.Buffer) -> memoryview:
    _, size = _HEAD.unpack_from(message)
    return memoryview(message)[_HEAD.size : _HEAD.size + size]


def _batch(message: pa.Buffer) -> pa.RecordBatch | None:
    end = _HEAD.size + len(_head(message))
    if message.size <= end:
        return None
    body = message.slice(end + -end % _ALIGN)
    with ipc.open_stream(body, options=_READ) as stream:
        return stream.read_next_batch()
