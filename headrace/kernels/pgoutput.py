# cython: language_level=3, boundscheck=False, wraparound=False
"""Decodes Postgres' logical replication output (pgoutput, protocol 1, text values) into Arrow.

Row messages are stored undecoded per relation, and ``flush`` decodes them together.  One pass finds
all values; then each requested column is copied once.  So a row costs no Python object but its own
message, and transactions of any size share one change batch.

Unknown or malformed messages raise ContinuityLost: no message is skipped by guess.  After that, or
when the connection is closed, the decoder must not be used again.

Source: Postgres manual, "Logical Replication Message Formats".
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import cython
import numpy as np
import pyarrow as pa

from headrace.errors import ContinuityLost
from headrace.kernels import buffers, text
from headrace.kernels.cells import Cells
from headrace.kernels.source import DELETE, INSERT, TRUNCATE, UPDATE
from headrace.types import UNKNOWN

if cython.compiled:
    from cython.cimports.headrace.kernels.pointers import (
        bytes_of,
        longs_of,
        new_bytes,
        new_ints,
        new_longs,
    )

    from headrace.kernels import change_codec
else:
    bytes_of = longs_of = new_bytes = new_ints = new_longs = buffers.view

_CHUNK_BYTES_MAX: Final = 512 * 1024 * 1024
"""Maximum raw bytes decoded into one batch, so that text columns fit 32-bit offsets."""
_BEGIN: Final = struct.Struct(">qqI")
_MESSAGE: Final = struct.Struct(">cbq")
_LENGTH: Final = struct.Struct(">I")
_REQUEST: Final = b"headrace\0"
"""Prefix of a logical message with the id of a request."""
_REQUEST_CHARS_MAX: Final = 200
_COMMIT: Final = struct.Struct(">bqqq")


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction starts; ``final_lsn`` is the LSN of its commit record.

    ``commit_time_us`` counts microseconds since 2000-01-01 UTC.
    """

    final_lsn: int
    commit_time_us: int
    xid: int

    def encode(self) -> bytes:
        """Return the message that ``read_begin`` reads."""
        return b"B" + _BEGIN.pack(self.final_lsn, self.commit_time_us, self.xid)


@dataclass(frozen=True, slots=True)
class Commit:
    """A transaction is complete; ``end_lsn`` is the position after its commit record."""

    commit_lsn: int
    end_lsn: int
    commit_time_us: int

    def encode(self) -> bytes:
        """Return the message that ``read_commit`` reads."""
        return b"C" + _COMMIT.pack(0, self.commit_lsn, self.end_lsn, self.commit_time_us)


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """One published column; ``key``: part of the replica identity."""

    name: str
    oid: int
    typmod: int
    key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as the stream describes it.

    ``namespace`` is '' for pg_catalog; ``identity`` is pg_class.relreplident: d, n, f or i.
    """

    oid: int
    namespace: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class RelationChanged:
    """The stream (re)described a table: at its first change, and after any DDL on it."""

    relation: Relation


@dataclass(frozen=True, slots=True)
class RequestNamed:
    """The transaction belongs to the request ``id``, by its own logical message."""

    id: str


class Changes:
    """Changes of one relation, rows in stream order; values are decoded when requested.

    A change batch has ``__op``: int8 (0 insert, 1 update, 2 delete, 3 truncate); ``__lsn``: int64
    (``Begin.final_lsn`` of its transaction); ``__old``: int8 (0 none, 1 key columns only, 2 whole
    row).  Then follow, for each column, ``n:<name>`` and ``o:<name>``: string (Postgres' text; NULL
    also where absent).  ``u:<name>``: bool (unchanged TOAST value) exists only if it is true in
    some row.  Batches for views have column *numbers* instead of names (``n:3``), since names
    change and numbers never do.
    """

    def __init__(self, relation: Relation, found: Cells) -> None:
        self.relation: Final = relation
        self.last_lsn: Final = int(found.lsns[len(found.lsns) - 1])
        """``Begin.final_lsn`` of the last row's transaction."""
        self._found = found

    @functools.cached_property
    def batch(self) -> pa.RecordBatch:
        """Change batch of all columns, as text."""
        names = (column.name for column in self.relation.columns)
        return self.select(tuple((name, at, UNKNOWN) for at, name in enumerate(names)))

    def select(self, columns: tuple[tuple[str, int, int], ...]) -> pa.RecordBatch:
        """Return a change batch of ``columns``.

        Each is its name in the batch, its position in the relation, and the type OID of its values;
        UNKNOWN leaves them texts.  A column with a text that its type does not print is left as
        text, too; its reader raises the error.
        """
        width = len(self.relation.columns)
        if not cython.compiled:
            return _select(self._found, width, columns)
        return change_codec.select(self._found, width, columns)


def _select(found: Cells, width: int, columns: tuple[tuple[str, int, int], ...]) -> pa.RecordBatch:
    """Return the batch of ``Changes.select``: the readable reference of ``change_codec``."""
    names = ["__op", "__lsn", "__old"]
    arrays = [pa.array(found.ops), pa.array(found.lsns), pa.array(found.olds)]
    for name, index, oid in columns:
        names += [f"n:{name}", f"o:{name}"]
        texts = [found.column(index), found.column(width + index)]
        try:
            arrays += [text.parse(values, oid) for values in texts]
        except ValueError:
            arrays += texts
        if found.there[index] & 2:
            names.append(f"u:{name}")
            arrays.append(found.unchanged(index))
    return pa.RecordBatch.from_arrays(arrays, names)


Event = Begin | Commit | RelationChanged | RequestNamed | Changes


class _Pending:
    """Undecoded row messages of one relation."""

    __slots__ = ("lsns", "messages", "relation", "starts")

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self.messages: list[bytes] = []
        # Runs of rows of one transaction: index of the first row, and its LSN.
        self.starts: list[int] = []
        self.lsns: list[int] = []

    def open_run(self, lsn: int) -> list[bytes]:
        if not self.lsns or self.lsns[len(self.lsns) - 1] != lsn:
            self.starts.append(len(self.messages))
            self.lsns.append(lsn)
        return self.messages

    def take(self) -> tuple[list[bytes], list[int], list[int]]:
        taken = (self.messages, self.starts, self.lsns)
        self.messages, self.starts, self.lsns = [], [], []
        return taken


class Decoder:
    """Decodes one replication connection (Relation messages are per connection).

    Transactions may be cut anywhere between messages: ``feed`` and ``flush`` may be called at
    any time, and each row carries the LSN of its own transaction.
    """

    def __init__(self) -> None:
        self._relations: dict[int, _Pending] = {}
        self._lsn = -1
        self.pending_bytes = 0
        """Raw bytes of the rows not yet flushed."""
        self.pending_rows = 0
        """Rows not yet flushed."""

    def feed(self, messages: Sequence[bytes]) -> list[Event]:
        """Take pgoutput messages (payloads of 'w'); return their events, in order.

        Row messages are stored until ``flush``, or until their relation is described again:
        then its ``Changes`` come just before the ``RelationChanged``.
        """
        message: bytes
        events: list[Event] = []
        rows: list[bytes] = []
        last: cython.longlong = -1
        count: cython.longlong = 0
        volume: cython.longlong = 0
        for message in messages:
            size: cython.Py_ssize_t = len(message)
            if size < 1:
                raise _malformed()
            kind: cython.int = message[0]
            if kind == 73 or kind == 85 or kind == 68:
                if size < 8:
                    raise _malformed()
                oid: cython.longlong = (
                    (message[1] << 24) | (message[2] << 16) | (message[3] << 8) | message[4]
                ) & 0xFFFFFFFF
                if oid != last:
                    rows = self._rows_of(oid)
                    last = oid
                rows.append(message)
                count += 1
                volume += size
                continue
            last = -1
            self.pending_rows += count
            self.pending_bytes += volume
            count = 0
            volume = 0
            self._control(message, events)
        self.pending_rows += count
        self.pending_bytes += volume
        return events

    def flush(self) -> list[Changes]:
        """Decode and return all stored rows, one batch per relation (several if it is large)."""
        out: list[Changes] = []
        for pending in self._relations.values():
            out.extend(self._drain(pending))
        assert self.pending_rows == 0, "every pending row belongs to a relation"
        assert self.pending_bytes == 0, "every pending byte belongs to a relation"
        return out

    def _rows_of(self, oid: int) -> list[bytes]:
        if self._lsn < 0:
            raise ContinuityLost("the replication stream has a row outside a transaction")
        pending = self._relations.get(oid)
        if pending is None:
            raise ContinuityLost(
                f"the replication stream did not describe the table with OID {oid}"
            )
        return pending.open_run(self._lsn)

    def _control(self, message: bytes, events: list[Event]) -> None:
        kind = message[:1]
        try:
            if kind == b"B":
                events.append(self._begin(message))
            elif kind == b"C":
                events.append(self._commit(message))
            elif kind == b"R":
                self._describe(message, events)
            elif kind == b"T":
                self._truncate(message)
            elif kind == b"M":
                self._message(message, events)
            elif kind not in (b"Y", b"O"):
                raise ContinuityLost(
                    f"unknown message type 0x{message[0]:02x} in the replication stream"
                )
        except (struct.error, ValueError):
            raise _malformed() from None

    def _begin(self, message: bytes) -> Begin:
        begin = read_begin(message)
        if self._lsn >= 0:
            raise ContinuityLost("the replication stream has a transaction inside another")
        self._lsn = begin.final_lsn
        return begin

    def _commit(self, message: bytes) -> Commit:
        commit = read_commit(message)
        if commit.commit_lsn != self._lsn:
            raise ContinuityLost("the replication stream commits another transaction than it began")
        self._lsn = -1
        return commit

    def _describe(self, message: bytes, events: list[Event]) -> None:
        relation = read_relation(message)
        known = self._relations.get(relation.oid)
        if known is not None:
            events.extend(self._drain(known))
        self._relations[relation.oid] = _Pending(relation)
        events.append(RelationChanged(relation))

    def _message(self, message: bytes, events: list[Event]) -> None:
        if message.startswith(_REQUEST, _MESSAGE.size):
            start = _MESSAGE.size + len(_REQUEST)
            (size,) = _LENGTH.unpack_from(message, start)
            name = message[start + _LENGTH.size :]
            if len(name) != size:
                raise _malformed()
            # The text may be of any encoding, and the user's own transaction has written it.
            shown = name.decode(errors="replace").replace("\0", "")
            events.append(RequestNamed(shown[:_REQUEST_CHARS_MAX]))

    def _truncate(self, message: bytes) -> None:
        count, _options = struct.unpack_from(">IB", message, 1)
        if len(message) != 6 + 4 * count:
            raise _malformed()
        for oid in struct.unpack_from(f">{count}I", message, 6):
            self._rows_of(oid).append(message)
            self.pending_rows += 1
            self.pending_bytes += len(message)

    def _drain(self, pending: _Pending) -> list[Changes]:
        messages, starts, lsns = pending.take()
        if not messages:
            return []
        bounds, row_lsns, olds = _rows(messages, starts, lsns)
        count, size = len(messages), int(bounds[len(messages)])
        self.pending_rows -= count
        self.pending_bytes -= size
        width = len(pending.relation.columns)
        out = []
        first = 0
        while first < count:
            last = count
            if size > _CHUNK_BYTES_MAX:
                limit = bounds[first] + _CHUNK_BYTES_MAX
                last = int(np.searchsorted(bounds, limit, side="right")) - 1
                last = max(first + 1, min(last, count))
            found = _find(
                b"".join(messages[first:last]),
                bounds[first : last + 1] - bounds[first] if first else bounds[: last + 1],
                row_lsns[first:last],
                width,
                olds,
            )
            out.append(Changes(pending.relation, found))
            first = last
        return out


@cython.cfunc
def _rows(
    messages: list[bytes], starts: list[int], lsns: list[int]
) -> tuple[buffers.Int64s, buffers.Int64s, bool]:
    """Return the bounds of messages, the LSN of each, and whether one may have an old row.

    ``starts``, ``lsns``: as in ``_Pending``.
    """
    i: cython.Py_ssize_t
    message: bytes
    n: cython.Py_ssize_t = len(messages)
    bounds = np.empty(n + 1, np.int64)
    row_lsns = np.empty(n, np.int64)
    limits: cython.p_longlong = new_longs(bounds)
    of_rows: cython.p_longlong = new_longs(row_lsns)
    total: cython.longlong = 0
    olds: cython.bint = False
    run: cython.Py_ssize_t = -1
    following: cython.Py_ssize_t = 0
    lsn: cython.longlong = 0
    for i in range(n):
        message = messages[i]
        if i == following:
            run += 1
            lsn = lsns[run]
            following = starts[run + 1] if run + 1 < len(starts) else n
        limits[i] = total
        of_rows[i] = lsn
        total += len(message)
        olds = olds or message[0] != 73  # inserts have none
    limits[n] = total
    return bounds, row_lsns, olds


def _malformed() -> ContinuityLost:
    return ContinuityLost("the replication stream has a malformed message")


def read_begin(message: bytes) -> Begin:
    """Read a Begin message.

    Raises:
        ContinuityLost: it is malformed.
    """
    if len(message) != 1 + _BEGIN.size:
        raise _malformed()
    lsn, time_us, xid = _BEGIN.unpack_from(message, 1)
    if lsn < 0:
        raise _malformed()
    return Begin(lsn, time_us, xid)


def read_commit(message: bytes) -> Commit:
    """Read a Commit message.

    Raises:
        ContinuityLost: it is malformed.
    """
    if len(message) != 1 + _COMMIT.size:
        raise _malformed()
    _flags, lsn, end_lsn, time_us = _COMMIT.unpack_from(message, 1)
    if end_lsn < 0:
        raise _malformed()
    return Commit(lsn, end_lsn, time_us)


def read_relation(message: bytes) -> Relation:
    """Read a Relation message; ValueError or struct.error if malformed."""
    (oid,) = struct.unpack_from(">I", message, 1)
    namespace, at = _read_name(message, 5)
    name, at = _read_name(message, at)
    identity, count = struct.unpack_from(">cH", message, at)
    if identity not in (b"d", b"n", b"f", b"i"):
        raise _malformed()
    at += 3
    columns = []
    for _ in range(count):
        (flags,) = struct.unpack_from(">B", message, at)
        column, at = _read_name(message, at + 1)
        type_oid, typmod = struct.unpack_from(">Ii", message, at)
        at += 8
        columns.append(RelationColumn(column, type_oid, typmod, bool(flags & 1)))
    if at != len(message):
        raise _malformed()
    return Relation(oid, namespace, name, identity.decode(), tuple(columns))


def _read_name(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(0, at)
    return message[at:end].decode(), end + 1


def _find(
    joined: bytes, bounds: buffers.Int64s, lsns: buffers.Int64s, width: int, olds: bool
) -> Cells:
    """Find the values of the row messages between ``bounds``, with ``width`` columns each.

    ``olds``: whether a row may have old values.
    """
    n: cython.Py_ssize_t = len(lsns)
    source = np.frombuffer(joined, np.uint8)
    found = Cells(source, lsns, width, olds)
    sizes: cython.p_int = new_ints(found.sizes)
    outcome = _scan(
        bytes_of(source),
        longs_of(bounds),
        n,
        new_bytes(found.ops),
        new_bytes(found.olds),
        new_longs(found.places),
        sizes,
        width,
    )
    if outcome == -2:
        raise ContinuityLost("the replication stream has binary values")
    if outcome < 0:
        raise _malformed()
    if n:
        _mark(sizes, len(found.sizes) // n, new_bytes(found.there), n)
    return found


@cython.cfunc
@cython.exceptval(check=False)
def _scan(
    data: cython.p_const_uchar,
    bounds: cython.p_longlong,
    n: cython.Py_ssize_t,
    ops: cython.p_uchar,
    olds: cython.p_uchar,
    places: cython.p_longlong,
    sizes: cython.p_int,
    width: cython.Py_ssize_t,
) -> cython.int:
    """Find every value of every message: ``places`` and ``sizes`` by column, then row.

    New values come first, then old ones, if there is room for them.  A size of -1 is NULL or
    absent, -2 unchanged TOAST.  Returns 0, -1 if malformed, -2 if there are binary values.  Never
    reads outside a message.
    """
    i: cython.Py_ssize_t
    old_at: cython.Py_ssize_t = width * n
    insert: cython.uchar = INSERT
    update: cython.uchar = UPDATE
    delete: cython.uchar = DELETE
    truncate: cython.uchar = TRUNCATE
    for i in range(n):
        p: cython.Py_ssize_t = bounds[i]
        end: cython.Py_ssize_t = bounds[i + 1]
        kind: cython.int = data[p]
        if kind == 84:  # T
            ops[i] = truncate
            continue
        ops[i] = insert if kind == 73 else (update if kind == 85 else delete)
        p += 5
        letter: cython.int = data[p] if p < end else 0
        if kind != 73 and (letter == 75 or letter == 79):
            olds[i] = 1 if letter == 75 else 2
            p = _tuple(data, p + 1, end, places, sizes, old_at + i, n, width, False)
            if p < 0:
                return p
            letter = data[p] if p < end else 0
        elif kind == 68:
            return -1
        if kind != 68:
            if letter != 78:  # N
                return -1
            p = _tuple(data, p + 1, end, places, sizes, i, n, width, kind == 85)
            if p < 0:
                return p
        if p != end:
            return -1
    return 0


@cython.cfunc
@cython.exceptval(check=False)
def _tuple(
    data: cython.p_const_uchar,
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    places: cython.p_longlong,
    sizes: cython.p_int,
    at: cython.Py_ssize_t,
    step: cython.Py_ssize_t,
    width: cython.Py_ssize_t,
    toast: cython.bint,
) -> cython.Py_ssize_t:
    """Read the tuple at ``p`` into slots ``at``, ``at + step``…; return the position after it.

    Returns -1 if it is malformed or has an unchanged value without ``toast``; -2 if it has binary
    values.
    """
    _column: cython.Py_ssize_t
    if end - p < 2 or ((data[p] << 8) | data[p + 1]) != width:
        return -1
    p += 2
    for _column in range(width):
        if p >= end:
            return -1
        letter: cython.int = data[p]
        p += 1
        if letter == 116:  # t
            if end - p < 4 or data[p] > 127:
                return -1
            size: cython.longlong = (
                (data[p] << 24) | (data[p + 1] << 16) | (data[p + 2] << 8) | data[p + 3]
            )
            p += 4
            if size > end - p:
                return -1
            places[at] = p
            sizes[at] = size
            p += size
        elif letter == 117 and toast:  # u
            sizes[at] = -2
        elif letter == 98:  # b
            return -2
        elif letter != 110:  # n
            return -1
        at += step
    return p


@cython.cfunc
@cython.exceptval(check=False)
def _mark(
    sizes: cython.p_int, columns: cython.Py_ssize_t, found: cython.p_uchar, n: cython.Py_ssize_t
) -> cython.void:
    """Set flags by column of ``sizes``: 1 if it has a value, plus 2 if an unchanged one."""
    i: cython.Py_ssize_t
    column: cython.Py_ssize_t
    for column in range(columns):
        for i in range(column * n, column * n + n):
            if sizes[i] >= 0:
                found[column] |= 1
            elif sizes[i] == -2:
                found[column] |= 2
