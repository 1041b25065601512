"""Messages of a link: a header, the *word*, and for some of them an Arrow batch after it.

    | number, 8 bytes | length of the word, 4 | word, MessagePack | zeros | Arrow IPC |

Zeros pad to a multiple of 64 bytes.  Each direction of a link numbers its messages from 1: with any
other number than the next, a message was lost or duplicated.

The coordinator sends for each txid, in this order:

    BeginBatch ─► TableRows … ─► EndStage      answered by UnitDiffs … and StageDone
                ─► FeedRows … ─► EndStage      the same, for units that read the output of others

Other messages deploy and drop units, and make their states durable.  An exchange keeps the order of
messages, so each applies to the state after all earlier ones.  Batches of units that lag go over a
second exchange.  The coordinator sends no other message about such a unit until it has the result.
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
"""Txids that were committed to the result tables since the last message, by unit."""

PROTOCOL: Final = b"headrace units 6"
"""Descriptor of the exchange; the worker refuses any other version."""
LAGGING: Final = b"headrace lagging units 5"
"""Descriptor of the exchange for batches of units that lag."""

_ALIGN: Final = 64
_HEAD: Final = struct.Struct("<QI")

COMPRESSED_BELOW: Final = 30_000_000
"""Bytes per second below which compression pays (``bench links``): half a core's rate."""
PIECE_BYTES: Final = 1 << 16
"""Size of a message of rows to or from another machine, before compression.  Each one counts as a
heartbeat: at 20 kB/s one takes three seconds.  Smaller ones cost more than they save."""
FAST_PIECE_BYTES: Final = 1 << 20
"""The same on a link measured to be faster than ``COMPRESSED_BELOW``."""


class UnitRecord(msgspec.Struct, frozen=True):
    """Description of a unit for a worker."""

    id: int
    plan: dict[str, Any]
    settings: dict[str, str]
    start_lsn: int
    owner: str
    limits: dict[str, int]
    name: str = ""
    """For the log."""
    feeds: dict[str, int] = {}
    """Nodes whose rows other units compute: ID of each."""


class Greeting(msgspec.Struct, tag=True):
    """Begin a session: exactly these units are placed here.  Answered by Greeted."""

    units: list[UnitRecord]
    login: tuple[str, str] | None = None
    """Role and password for untrusted expressions, for a worker on another machine."""
    lineage: str = ""
    """Identity of the records by which batches are cut; marks made under another one are void."""
    epoch: int = 0
    """Epoch of the coordinator: one that began later has a greater one (``sql/meta.py``)."""
    session: str = ""
    """Random name of the session."""


class Attach(msgspec.Struct, tag=True):
    """Attach the exchange for units that lag to a session, once that has begun."""

    session: str


class Greeted(msgspec.Struct, tag=True):
    """Durable marks of the units that have states here; the worker has rolled back to them."""

    marks: dict[int, Mark]
    guilty: list[int]
    """Units that have crashed the worker repeatedly."""
    pid: int


class Deploy(msgspec.Struct, tag=True):
    """Add a unit, whose states are staged in runs.  Answered by Reply, when they are durable."""

    call: int
    unit: UnitRecord
    runs: list[str]
    """Paths, or names of files that were sent."""
    mark: Mark
    partly: bool = False
    """Whether the runs also hold states of other units."""


class Drop(msgspec.Struct, tag=True):
    """Remove a unit."""

    unit: int


class Replan(msgspec.Struct, tag=True):
    """Change the plan of a unit; its states stay.  Answered by Reply."""

    call: int
    unit: int
    plan: dict[str, Any]
    commits: Commits


class BeginBatch(msgspec.Struct, tag=True):
    """Begin a batch for some units."""

    first: int
    """The txids from this one on are processed as one, ``txid``."""
    txid: int
    attempt: int
    instant: int
    """See ``runtime.incoming.Frames``, as for ``oldest_us``."""
    oldest_us: int
    stages: list[list[int]]
    """Units by stage; all that a unit reads is complete at the end of its stage."""
    commits: Commits
    last: dict[int, int] = {}
    """The last txid that a unit was sent, where the batches after it had nothing for it."""


class TableRows(msgspec.Struct, tag=True):
    """Changes of a table, in the Arrow batch after it."""

    table_oid: int


class FeedRows(msgspec.Struct, tag=True):
    """Output of a unit, which other units of the batch read, in the Arrow batch after it."""

    unit: int


class EndStage(msgspec.Struct, tag=True):
    """End a stage of a batch: all that its units read was sent.

    ``rows``: number of rows since the last end (T-29).
    """

    txid: int
    rows: int
    failed: dict[int, dict[str, Any]] = {}
    """Errors (``errors.to_wire``) of units whose output is missing; their readers fail."""


class AbortBatch(msgspec.Struct, tag=True):
    """Abort the batch that was begun.  Answered by StageDone, unless the last one was sent."""


class UnitDiffs(msgspec.Struct, tag=True):
    """Diffs of a unit for a batch, in the Arrow batch after it."""

    unit: int


class StageDone(msgspec.Struct, tag=True):
    """Report that a stage of a batch was processed."""

    txid: int
    attempt: int
    took_s: dict[int, float]
    """Seconds of work, by unit that took part."""
    failed: dict[int, dict[str, Any]]
    """Errors (``errors.to_wire``) by unit."""
    trouble: dict[str, Any] | None
    """Why the whole batch must be processed again; None: it need not."""
    large: bool
    """Whether the state that is not durable makes a checkpoint due."""
    crowded: bool
    """Whether no batch should be sent until that state is durable."""
    memory_bytes: int
    last: bool = True
    """Whether the worker has ended the batch."""
    rows: dict[int, int] = {}
    """Number of rows sent for the stage, by unit (T-29)."""


class GoBack(msgspec.Struct, tag=True):
    """Roll a unit back to before a txid.  Answered by Reply: the txid it is at."""

    call: int
    unit: int
    txid: int
    commits: Commits


class AskClock(msgspec.Struct, tag=True):
    """Ask a unit that reads the clock about a timestamp.  Answered by Reply."""

    call: int
    unit: int
    what: Literal["due", "rows", "near", "crossing", "changed", "now"]
    """Methods of ``collections.dataflow.Dataflow``."""
    instant: int


class AskRows(msgspec.Struct, tag=True):
    """Ask whether sources of a unit have rows in its states.  Answered by Reply: 1 or 0."""

    call: int
    unit: int
    sources: list[str]


class AskStats(msgspec.Struct, tag=True):
    """Ask for the statistics of a unit's collections.  Answered by Reply, as JSON."""

    call: int
    unit: int


class Export(msgspec.Struct, tag=True):
    """Write the durable states of a unit into a file.  Answered by Reply."""

    call: int
    unit: int
    path: str
    """Path, or name of a file that is fetched later."""
    leave: list[str] = []
    """Nodes whose states are left out, because another unit had them too."""


class TakeSnapshot(msgspec.Struct, tag=True):
    """Take a checkpoint of units as of marks; nothing is written yet."""

    number: int
    marks: dict[int, Mark]
    commits: Commits


class WriteSnapshot(msgspec.Struct, tag=True):
    """Make the snapshot durable.  Answered by Reply (``call`` is its number)."""

    number: int


class Reply(msgspec.Struct, tag=True):
    """Answer to a call."""

    call: int
    value: int = 0
    text: str = ""
    error: dict[str, Any] | None = None


class Packing(msgspec.Struct, tag=True):
    """Set whether the worker compresses rows from now on, and the size of its pieces."""

    packed: bool
    piece_bytes: int


class Work(msgspec.Struct, frozen=True):
    """Current work of a unit."""

    unit: int
    seconds: float
    """Seconds since it began."""
    asked: str = ""
    """Expression that Postgres evaluates for it."""
    asked_s: float | None = None
    """Seconds since that began; None: Postgres evaluates nothing."""


class Alive(msgspec.Struct, tag=True):
    """Heartbeat of a process, with its current work."""

    at: list[Work] = msgspec.field(default_factory=list)


class Bye(msgspec.Struct, tag=True):
    """End of the session by the worker."""


ToWorker = (
    Greeting
    | Attach
    | Deploy
    | Drop
    | Replan
    | BeginBatch
    | TableRows
    | FeedRows
    | EndStage
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
FromWorker = Greeted | UnitDiffs | StageDone | Reply | Alive | Bye

_TO_WORKER: Final = msgspec.msgpack.Decoder(ToWorker)
_FROM_WORKER: Final = msgspec.msgpack.Decoder(FromWorker)
_ENCODER: Final = msgspec.msgpack.Encoder()
_COMPRESSED: Final = ipc.IpcWriteOptions(compression="zstd")
_SMALL_BYTES: Final = 4096
"""A smaller batch takes longer to compress than to be sent (``bench links``)."""
_READ: Final = ipc.IpcReadOptions(ensure_alignment=ipc.Alignment.DataTypeSpecific)


class Numbered:
    """Check of the numbers of received messages."""

    def __init__(self) -> None:
        self._last = 0

    def check(self, message: pa.Buffer) -> None:
        """Check the number of the next message.

        Raises:
            MessageLost: it has another number.
        """
        number, _ = _HEAD.unpack_from(message)
        if number != self._last + 1:
            raise MessageLost(f"message {self._last + 1} was awaited, and {number} came")
        self._last = number


class MessageLost(Exception):
    """A message was lost or duplicated."""


def packed(
    word: ToWorker | FromWorker,
    batch: pa.RecordBatch | None = None,
    *,
    compressed: bool = False,
    number: int = 0,
) -> pa.Buffer:
    """Encode a message."""
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
    """Yield slices of about ``piece_bytes``, or the whole batch; an empty one is one slice."""
    parts = 1 if piece_bytes is None else 1 + batch.nbytes // piece_bytes
    rows = -(-batch.num_rows // parts) or 1
    for begin in range(0, max(batch.num_rows, 1), rows):
        yield batch.slice(begin, rows)


def to_worker(message: pa.Buffer) -> tuple[ToWorker, pa.RecordBatch | None]:
    """Decode a message to a worker."""
    return _TO_WORKER.decode(_head(message)), _batch(message)


def from_worker(message: pa.Buffer) -> tuple[FromWorker, pa.RecordBatch | None]:
    """Decode a message from a worker."""
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
