"""The bundle: one zip archive, whose entries have fixed names and formats.

| entry | content |
| --- | --- |
| ``manifest.json`` | ``BundleManifest`` |
| ``batches.json`` | list of ``BatchEntry``: records of the batches, with numbers of rows |
| ``events.jsonl`` | events of the processes, without texts |
| ``results.json`` | list of ``UnitResult``: the replay on the machine of the capture |
| ``batches.bin`` | with rows: the messages of the batches |
| ``states/<unit>.begin`` | with rows: the states of a unit at its first mark |
| ``states/<unit>.end`` | with rows: the pairs that are different at its last mark |

A reader takes entries by name and as a stream.  It extracts no file, and decodes nothing that can
execute code.  Each length that an entry declares is checked against a limit before it is used.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar, cast

import msgspec
import numpy as np

from headrace.errors import PrerequisiteError, UserError
from headrace.network.messages import UnitRecord

FORMAT: Final = 1
"""Version of the bundle; a reader refuses later ones."""
BYTES_MAX: Final = 16 << 30
"""Limit of all entries together, uncompressed."""
_DOCUMENT_BYTES_MAX: Final = 256 << 20
_MESSAGE_BYTES_MAX: Final = 1 << 30
_PIECE_PAIRS_MAX: Final = 1 << 16
_BUFFER_BYTES: Final = 1 << 20
_ENTRY: Final = re.compile(
    r"manifest\.json|batches\.(?:json|bin)|events\.jsonl|results\.json"
    r"|states/-?[0-9]{1,20}\.(?:begin|end)"
)
_MANIFEST: Final = "manifest.json"
_BATCHES: Final = "batches.json"
_FRAMES: Final = "batches.bin"
_EVENTS: Final = "events.jsonl"
_RESULTS: Final = "results.json"

_BATCH: Final = struct.Struct("<QI")
_LENGTH: Final = struct.Struct("<I")
_STATE: Final = struct.Struct("<cH")
_PIECE: Final = struct.Struct("<cIQQ")
_END: Final = b"E"
_REMOVED: Final = 0xFFFF_FFFF
"""Length of the value of a pair that is gone."""

Change = tuple[bytes, bytes | None]
"""Physical key, and its value at the end; None: it is gone."""
_Document = TypeVar("_Document")


class StateSize(msgspec.Struct, frozen=True):
    """Size of one state of a unit."""

    name: str
    pairs: int
    key_bytes: int
    value_bytes: int


class UnitEntry(msgspec.Struct, frozen=True):
    """A unit: a view, or a subplan that views share."""

    record: UnitRecord
    begin: int
    """Txid of its first states."""
    end: int | None
    """Txid of its last states; None: the bundle has none."""
    states: list[StateSize]
    query: str = ""
    status: str = ""
    sqlstate: str | None = None
    """Why it has stopped."""

    @property
    def id(self) -> int:
        """ID of the unit; that of a subplan is negative."""
        return self.record.id

    @property
    def name(self) -> str:
        """Name for messages."""
        return self.record.name


class Observed(msgspec.Struct, frozen=True):
    """The columns of a table, as a snapshot shows them (``postgres/numbering.py``)."""

    seen: str
    attributes: list[tuple[int, str, bool, str]]


class TableEntry(msgspec.Struct, frozen=True):
    """A table that units read."""

    oid: int
    name: str
    observed: list[Observed]


class LeftOut(msgspec.Struct, frozen=True):
    """A view that is not in the bundle, and why."""

    view: str
    reason: str


class BatchEntry(msgspec.Struct, frozen=True):
    """The record of a batch, and the number of its changes."""

    txid: int
    start_lsn: int
    end_lsn: int
    commit_time_us: int
    transactions: int
    messages: int
    oldest_us: int
    changes: dict[str, dict[str, int]]
    """Number of changes by table and kind."""


class Digest(msgspec.Struct, frozen=True):
    """The diffs of a unit in one batch."""

    txid: int
    rows: int
    value: str
    """Independent of the order of rows."""


class UnitResult(msgspec.Struct, frozen=True):
    """The result of a replay for one unit."""

    unit: int
    diffs: list[Digest]
    stopped: tuple[int, str] | None = None
    """Txid at which it stopped, and SQLSTATE."""


class BundleManifest(msgspec.Struct, frozen=True):
    """The content of a bundle, and its origin."""

    format: int
    headrace: str
    state_format: int
    postgres: int
    """Version of the server, as in ``server_version_num``."""
    made_at: str
    running: bool
    """Whether the engine ran."""
    rows: bool
    masked: list[str]
    retained: str
    """How far back the batches reach, in words."""
    units: list[UnitEntry]
    """Each after those that it reads."""
    left_out: list[LeftOut]
    tables: list[TableEntry]
    settings: dict[str, Any]


class _Versioned(msgspec.Struct):
    format: int


class BundleError(PrerequisiteError):
    """A file that cannot be read as a bundle."""


_FORMATS: Final = msgspec.json.Decoder(_Versioned)
_MANIFESTS: Final = msgspec.json.Decoder(BundleManifest)
_RECORDS: Final = msgspec.json.Decoder(list[BatchEntry])
_REPLAYED: Final = msgspec.json.Decoder(list[UnitResult])


# --- writing


class BundleWriter:
    """Writes a new bundle, which only its owner may read."""

    def __init__(self, file: BinaryIO) -> None:
        """Write into ``file``, which is empty and can be read as well."""
        self._zip: Final = zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=3)

    def close(self) -> None:
        """Write the directory of the archive."""
        self._zip.close()

    def check_size(self) -> None:
        """Raise UserError, 54000, if the bundle is too large to be read."""
        if sum(info.file_size for info in self._zip.infolist()) > BYTES_MAX:
            raise UserError(
                f"the bundle would have more than {BYTES_MAX >> 30} GB, uncompressed",
                hint="Capture fewer views with --view, or a shorter time.",
                sqlstate="54000",
            )

    def put_manifest(self, manifest: BundleManifest) -> None:
        """Add the manifest."""
        self._zip.writestr(_MANIFEST, msgspec.json.encode(manifest))

    def put_batches(self, entries: Sequence[BatchEntry]) -> None:
        """Add the records of the batches."""
        self._zip.writestr(_BATCHES, msgspec.json.encode(entries))

    def put_events(self, events: Sequence[dict[str, Any]]) -> None:
        """Add events."""
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
        self._zip.writestr(_EVENTS, lines)

    @contextlib.contextmanager
    def frames(self) -> Iterator[FramesWriter]:
        """Add the messages of batches inside the context."""
        with self._stream(_FRAMES) as out:
            yield FramesWriter(out)

    @contextlib.contextmanager
    def states(self, unit_id: int, which: str) -> Iterator[StatesWriter]:
        """Add states of a unit inside the context; ``which``: begin or end."""
        with self._stream(f"states/{unit_id}.{which}") as out:
            writer = StatesWriter(out)
            yield writer
            writer.end()

    @contextlib.contextmanager
    def _stream(self, name: str) -> Iterator[BinaryIO]:
        with self._zip.open(name, "w", force_zip64=True) as raw:
            out = io.BufferedWriter(cast("Any", raw), _BUFFER_BYTES)
            yield cast("BinaryIO", out)
            out.flush()


def add_results(file: BinaryIO, results: Sequence[UnitResult]) -> None:
    """Add the results of a replay to a bundle that has none."""
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_RESULTS, msgspec.json.encode(results))


class FramesWriter:
    """Writes the messages of batches."""

    def __init__(self, out: BinaryIO) -> None:
        self._out: Final = out

    def put(self, txid: int, messages: Sequence[bytes]) -> None:
        """Add the messages of a batch."""
        self._out.write(_BATCH.pack(txid, len(messages)))
        for message in messages:
            self._out.write(_LENGTH.pack(len(message)))
            self._out.write(message)


class StatesWriter:
    """Writes states one after the other, each in pieces."""

    def __init__(self, out: BinaryIO) -> None:
        self._out: Final = out

    def state(self, name: str) -> None:
        """Begin the next state, which is after the one before it in order of name."""
        encoded = name.encode()
        self._out.write(_STATE.pack(b"S", len(encoded)) + encoded)

    def put(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Add pairs in order of key; a value None: the pair is gone."""
        for begin in range(0, len(keys), _PIECE_PAIRS_MAX):
            self._put(
                keys[begin : begin + _PIECE_PAIRS_MAX], values[begin : begin + _PIECE_PAIRS_MAX]
            )

    def _put(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        lengths = np.array([len(key) for key in keys], "<u4")
        sizes = np.array([_REMOVED if v is None else len(v) for v in values], "<u4")
        content = b"".join(value for value in values if value is not None)
        joined = b"".join(keys)
        self._out.write(_PIECE.pack(b"P", len(keys), len(joined), len(content)))
        for part in (lengths.tobytes(), sizes.tobytes(), joined, content):
            self._out.write(part)

    def end(self) -> None:
        """End the last state."""
        self._out.write(_END)


# --- reading


class Bundle:
    """A bundle that is read; it may come from a stranger."""

    def __init__(self, path: Path) -> None:
        """Open a bundle and read its manifest.

        Raises:
            BundleError: it is no bundle, it is damaged, too large, or of a later version.
            OSError: the file cannot be read.
        """
        self._path: Final = path
        try:
            self._zip: Final = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise BundleError(
                f'"{path}" is not a replay bundle, or not all of one', detail=f"{error}."
            ) from error
        try:
            self._check()
            data = self._document(_MANIFEST)
            self._check_format(data)
            self.manifest: Final = self._decoded(data, _MANIFESTS)
        except BaseException:
            self._zip.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._zip.close()

    def _check(self) -> None:
        names = [info.filename for info in self._zip.infolist()]
        strange = [name for name in names if not _ENTRY.fullmatch(name)]
        if strange or len(set(names)) != len(names) or _MANIFEST not in names:
            raise BundleError(f'"{self._path}" is a zip archive, but not a replay bundle')
        if any(info.flag_bits & 1 for info in self._zip.infolist()):
            raise BundleError(f'"{self._path}" is encrypted')
        if sum(info.file_size for info in self._zip.infolist()) > BYTES_MAX:
            raise BundleError(
                f'"{self._path}" is too large',
                detail=f"A bundle has at most {BYTES_MAX >> 30} GB, uncompressed.",
            )

    def _check_format(self, data: bytes) -> None:
        found = self._decoded(data, _FORMATS).format
        if found > FORMAT:
            raise BundleError(
                f'"{self._path}" is of a later version: format {found}, and this one reads {FORMAT}',
                hint="Install the version of Headrace that the bundle comes from, or a later one.",
            )
        if found < 1:
            raise self._damaged(f"its format is {found}")

    @property
    def batches(self) -> list[BatchEntry]:
        """The records of the batches."""
        return self._decoded(self._document(_BATCHES), _RECORDS)

    @property
    def results(self) -> dict[int, UnitResult] | None:
        """The results on the machine of the capture, by unit; None: it has not replayed it."""
        if _RESULTS not in self._zip.namelist():
            return None
        found = self._decoded(self._document(_RESULTS), _REPLAYED)
        return {result.unit: result for result in found}

    def frames(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield txid and messages of each batch."""
        with self._stream(_FRAMES) as read:
            while head := read.whole_or_end(_BATCH.size):
                txid, count = _BATCH.unpack(head)
                sized = read.sized
                yield txid, [sized(_LENGTH, _MESSAGE_BYTES_MAX) for _ in range(count)]

    def begin(self, unit: UnitEntry) -> Iterator[tuple[str, Iterator[tuple[list[bytes], Any]]]]:
        """Yield the states of a unit at its first mark, with their pairs in pieces."""
        return self._states(unit.id, "begin")

    def end(self, unit: UnitEntry) -> Iterator[tuple[str, Iterator[tuple[list[bytes], Any]]]]:
        """Yield the states of a unit that are different at its last mark, with the changes."""
        return self._states(unit.id, "end")

    def _states(
        self, unit_id: int, which: str
    ) -> Iterator[tuple[str, Iterator[tuple[list[bytes], Any]]]]:
        with self._stream(f"states/{unit_id}.{which}") as read:
            last, tag = "", read.whole(1)
            while tag == b"S":
                (size,) = struct.unpack("<H", read.whole(2))
                name = read.whole(size).decode(errors="replace")
                if name <= last:
                    raise self._damaged(f"state {name} of unit {unit_id} is out of order")
                pieces = _Pieces(read)
                yield name, iter(pieces)
                for _ in pieces:  # those that the caller has not read
                    pass
                last, tag = name, pieces.tag
            if tag != _END or read.whole_or_end(1):
                raise self._damaged(f"the states of unit {unit_id} do not end where they should")

    @contextlib.contextmanager
    def _stream(self, name: str) -> Iterator[_Reader]:
        try:
            with self._zip.open(name) as raw:
                yield _Reader(io.BufferedReader(cast("Any", raw), _BUFFER_BYTES), self._damaged)
        except KeyError:
            raise self._damaged(f"{name} is missing") from None
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise self._damaged(f"{name}: {error}") from error

    def _document(self, name: str) -> bytes:
        with self._stream(name) as read:
            return read.document(_DOCUMENT_BYTES_MAX)

    def _decoded(self, data: bytes, decoder: msgspec.json.Decoder[_Document]) -> _Document:
        try:
            return decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, reason: str) -> BundleError:
        return BundleError(f'the bundle "{self._path}" is damaged', detail=f"{reason}.")


class _Reader:
    """Reads exact numbers of bytes from an entry."""

    def __init__(self, file: io.BufferedReader, damaged: Any) -> None:
        self._file: Final = file
        self.damaged: Final = damaged

    def whole(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        data = self._file.read(size)
        if len(data) != size:
            raise self.damaged("an entry ends too early")
        return data

    def whole_or_end(self, size: int) -> bytes:
        """Return the next ``size`` bytes, or none at the end."""
        data = self._file.read(size)
        if data and len(data) != size:
            raise self.damaged("an entry ends too early")
        return data

    def sized(self, head: struct.Struct, most: int) -> bytes:
        """Return the bytes after their number."""
        (size,) = head.unpack(self.whole(head.size))
        if size > most:
            raise self.damaged(f"a part of an entry has {size} bytes")
        return self.whole(size)

    def document(self, most: int) -> bytes:
        """Return all that is left."""
        data = self._file.read(most + 1)
        if len(data) > most:
            raise self.damaged("an entry is too large")
        return data


class _Pieces:
    """The pieces of one state, up to the tag of the next."""

    def __init__(self, read: _Reader) -> None:
        self._read: Final = read
        self.tag = b""

    def __iter__(self) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
        read = self._read
        while not self.tag:
            tag = read.whole(1)
            if tag != b"P":
                self.tag = tag
                return
            _, count, key_bytes, value_bytes = _PIECE.unpack(tag + read.whole(_PIECE.size - 1))
            if count > _PIECE_PAIRS_MAX or max(key_bytes, value_bytes) > _MESSAGE_BYTES_MAX * 4:
                raise read.damaged("a piece of a state is too large")
            lengths = np.frombuffer(read.whole(4 * count), "<u4").astype(np.int64)
            sizes = np.frombuffer(read.whole(4 * count), "<u4").astype(np.int64)
            there = sizes != _REMOVED
            if int(lengths.sum()) != key_bytes or int(sizes[there].sum()) != value_bytes:
                raise read.damaged("the lengths of a piece are wrong")
            keys, values = read.whole(key_bytes), read.whole(value_bytes)
            yield _parts(keys, lengths), _parts(values, np.where(there, sizes, -1))


def _parts(data: bytes, lengths: Any) -> list[Any]:
    """Divide ``data``; a negative length stands for None."""
    ends = list(itertools.accumulate(max(n, 0) for n in lengths.tolist()))
    return [
        None if size < 0 else data[end - size : end]
        for end, size in zip(ends, lengths.tolist(), strict=True)
    ]


def parse_column(text: str) -> tuple[str, str, str]:
    """Return schema, table and column of a mask.

    Raises:
        UserError: the text does not have three parts.
    """
    parts = text.split(".")
    if len(parts) != 3 or not all(parts):
        raise UserError(
            f'"{text}" is not a column', hint="Write --mask schema.table.column.", sqlstate="22023"
        )
    return parts[0], parts[1], parts[2]
