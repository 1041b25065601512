"""Encoding of a batch in a queue, such that it can be decoded without any other batch.

    | record, number of descriptions | descriptions | messages … |     as pieces of bounded size

The stream describes a table once per connection.  So a batch begins with the descriptions that it
relies on and does not contain; a reader that has had one does not get it again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from headrace.forwarder.batcher import Batch
from headrace.kernels import messages
from headrace.kernels.pgoutput import Commit, read_commit
from headrace.runtime.positions import BatchRecord
from headrace.storage.frame_cache import Frame

NAME: Final = "message"
"""Name of a frame's only column."""
_INFO: Final = struct.Struct("<QQqQQII")
"""Record (start, end, commit time), transactions, messages, descriptions, whether spooled."""
_PIECE_BYTES: Final = 1 << 20
_BEGIN, _COMMIT, _RELATION = b"BCR"


class _Stored:
    """A large batch that is read from its queue, piece by piece; see ``batcher.Stored``."""

    def __init__(self, frames: Sequence[Frame], first: list[bytes]) -> None:
        self._frames = frames
        self._first = first

    def read(self, bytes_max: int) -> Iterator[list[bytes]]:
        """Iterate over all messages in order, in the pieces that were put."""
        del bytes_max
        yield self._first
        for frame in self._frames:
            yield messages_of(frame)

    def close(self) -> None:
        """Drop the frames."""
        self._frames, self._first = (), []


class Descriptions:
    """The last description of each table on one connection."""

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}

    def relied_on(self, batch: Batch) -> list[bytes]:
        """Return the descriptions that ``batch`` relies on; learn those that it contains.

        REQUIRES: ``batch`` is the next one of the connection.
        """
        own: dict[bytes, bytes] = {}
        needed: dict[bytes, bytes] = {}
        for chunk in batch.chunks():
            messages.find_tables(chunk, own, needed)
        found = [self._known[table] for table in needed if table in self._known]
        self._known |= own
        return found


def pack(record: BatchRecord, batch: Batch, described: list[bytes]) -> Iterator[list[bytes]]:
    """Return the messages to put for a batch, in pieces."""
    info = _INFO.pack(
        record.start_lsn,
        record.end_lsn,
        record.commit_time_us,
        batch.transactions,
        batch.messages,
        len(described),
        int(batch.spooled),
    )
    out, size = [info, *described], 0
    for chunk in batch.chunks():
        begin = 0
        ends, size = messages.cuts(chunk, size, _PIECE_BYTES)
        for end in ends:
            out += chunk[begin:end]
            yield out
            out, begin = [], end
        out += chunk[begin:] if begin else chunk
    yield out


def messages_of(frame: Frame) -> list[bytes]:
    """Return the messages of a frame."""
    assert frame.batch is not None, "every frame of a batch has a body"
    out: list[bytes] = frame.batch.column(0).to_pylist()
    return out


def record(txid: int, frames: Sequence[Frame]) -> BatchRecord:
    """Return the record with which a batch was cut."""
    start, end, instant, *_ = _INFO.unpack(messages_of(frames[0])[0])
    return BatchRecord(txid, start, end, instant)


def last_commit(frames: Sequence[Frame]) -> Commit | None:
    """Return the end of a batch's last transaction; None: it has none."""
    first = messages_of(frames[0])
    _, _, _, transactions, _, described, _ = _INFO.unpack(first[0])
    if not transactions:
        return None
    found = first[1 + described :] if len(frames) == 1 else messages_of(frames[-1])
    return next((read_commit(m) for m in reversed(found) if m[0] == _COMMIT), None)


def unpack(txid: int, frames: Sequence[Frame], told: dict[bytes, bytes]) -> Batch:
    """Return the batch; ``told`` has the descriptions that its reader has had, by table."""
    first = messages_of(frames[0])
    _, end_lsn, instant, transactions, count, described, spooled = _INFO.unpack(first[0])
    new = [m for m in first[1 : 1 + described] if told.get(m[1:5]) != m]
    told |= {m[1:5]: m for m in new}
    found = first[1 + described :]
    # After Begin, because the reader of a description asks for its transaction.
    at = 1 if found and found[0][0] == _BEGIN else 0
    found[at:at] = new
    batch = Batch(end_lsn, instant, transactions, count, sum(map(len, found)), txid=txid)
    batch.oldest_us = frames[0].header.commit_us
    if spooled:
        told.clear()  # descriptions inside the spooled messages are not tracked
        batch.parts = [_Stored(frames[1:], found)]
        return batch
    for frame in frames[1:]:
        found += messages_of(frame)
    told |= {m[1:5]: m for m in found if m[0] == _RELATION}
    batch.parts = [found] if found else []
    return batch
