"""A *pack*: the pairs of a run once more, as memory takes them, so that a new view begins in it.

RocksDB hands pairs out one by one, as objects; a piece of a pack goes into a state map whole and
compiled.  A pack is a copy for the way into memory only: the run is what is durable and counts.

    pieces ..., index (JSON), size of the index: 8 bytes, its CRC: 4 bytes, ``_MAGIC``

A piece holds key sizes and value sizes (4 bytes each), then keys, then values.  The index tells
where each state's pieces are, how many pairs each has, and the CRC of its bytes.

Invariant 1: pairs of a state stand in ascending order of the physical keys, as in the run.
Invariant 2: what is given out was written so, and is all of the state; or it is ``StateDamaged``.
Invariant 3: it is right over a run that was ingested, until the first checkpoint.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import numpy as np

from headrace.errors import StateDamaged
from headrace.kernels import buffers
from headrace.kernels.buffers import Bytes, Int64s
from headrace.kernels.packed import Packed
from headrace.state.loaded import Pieces

_MAGIC: Final = b"HRPACK1\n"
_TAIL: Final = struct.Struct("<QI8s")
_SIZE_BYTES: Final = 4


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Where some pairs of a state are in a pack."""

    offset: int
    size: int
    """Bytes."""
    pairs: int
    key_bytes: int
    crc: int


_Index = dict[str, list[Piece]]
_INDEXES: Final = msgspec.json.Decoder(_Index)


def of_run(run: Path) -> Path:
    """Where the pack of a run is, if it has one."""
    return run.with_suffix(".pack")


class PackWriter:
    """Writes a pack; it is one only if it was left without an error."""

    def __init__(self, path: Path) -> None:
        self._file: Final = path.open("wb")
        self._index: Final[_Index] = {}
        self._offset = 0

    def add(self, state: str, keys: list[bytes], values: list[bytes]) -> None:
        """The next pairs of a state."""
        if not keys:
            return
        data = [_sized(keys), _sized(values), b"".join(keys), b"".join(values)]
        size, crc = 0, 0
        for part in data:
            size += len(part)
            crc = zlib.crc32(part, crc)
        self._file.writelines(data)
        piece = Piece(self._offset, size, len(keys), len(data[2]), crc)
        self._index.setdefault(state, []).append(piece)
        self._offset += size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._file:
            if error is None:
                index = msgspec.json.encode(self._index)
                tail = _TAIL.pack(len(index), zlib.crc32(index), _MAGIC)
                self._file.write(index + tail)


class Pack:
    """A pack that was left for us; nothing is open between two calls."""

    def __init__(self, path: Path) -> None:
        """Read what is in it.

        Raises:
            FileNotFoundError: there is none.
            OSError: it cannot be read now.
            StateDamaged: it is not as it was written.
        """
        self.path: Final = path
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL.size, 0))
            tail = file.read()
            if len(tail) != _TAIL.size:
                raise _damaged(path)
            length, crc, magic = _TAIL.unpack(tail)
            if magic != _MAGIC or length > size - _TAIL.size:
                raise _damaged(path)
            file.seek(size - _TAIL.size - length)
            index = file.read(length)
        if zlib.crc32(index) != crc:
            raise _damaged(path)
        self._index: Final = _INDEXES.decode(index)

    @property
    def states(self) -> list[str]:
        """Names of the states that have pairs."""
        return list(self._index)

    def pieces(self, state: str) -> Pieces:
        """All pairs of one of its states in order, some at a time.

        Raises:
            OSError: it cannot be read now.
            StateDamaged: it is not as it was written.
        """
        pairs = self.pairs(state)
        try:
            while (piece := pairs.next()) is not None:
                yield piece[0].strings(), piece[1].strings()
        finally:
            pairs.close()

    def pairs(self, state: str) -> PackedPairs:
        """All pairs of one of its states.

        Raises:
            OSError: it cannot be read now.
        """
        return PackedPairs(self.path, self._index[state])


class PackedPairs:
    """The pairs of one state of a pack, piece by piece; the file may be removed meanwhile."""

    def __init__(self, path: Path, pieces: list[Piece]) -> None:
        self._path: Final = path
        self._pieces: Final = pieces[::-1]
        self._file: Final = path.open("rb", buffering=0)

    def fill(self, into: Any) -> bytes | None:
        """Load the next piece into a state map; returns its last key, None at the end.

        Raises:
            StateDamaged: it is not as it was written; nothing of it is in the map.
        """
        piece = self.next()
        if piece is None:
            return None
        keys, values = piece
        view = buffers.view
        into.load_packed(view(keys.data), view(keys.bounds), view(values.data), view(values.bounds))
        last: bytes = keys.data[keys.bounds[-2] :].tobytes()
        return last

    def next(self) -> tuple[Packed, Packed] | None:
        """Keys and values of the next piece; None at the end.

        Raises:
            StateDamaged: it is not as it was written.
        """
        return self._read(self._pieces.pop()) if self._pieces else None

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _read(self, piece: Piece) -> tuple[Packed, Packed]:
        try:
            data = os.pread(self._file.fileno(), piece.size, piece.offset)
        except OSError as error:
            raise _damaged(self._path) from error
        if len(data) != piece.size or zlib.crc32(data) != piece.crc:
            raise _damaged(self._path)
        content = np.frombuffer(data, np.uint8)
        sizes, rest = np.split(content, [2 * _SIZE_BYTES * piece.pairs])
        both = np.split(rest, [piece.key_bytes])
        keys, values = np.split(sizes.view("<u4").astype(np.int64), 2)
        return _packed(both[0], keys), _packed(both[1], values)


def _sized(strings: list[bytes]) -> bytes:
    sizes: bytes = np.diff(buffers.lengths(strings)).astype("<u4").tobytes()
    return sizes


def _packed(data: Bytes, sizes: Int64s) -> Packed:
    return Packed(data, buffers.bounds(sizes))


def _damaged(path: Path) -> StateDamaged:
    return StateDamaged(f'"{path}" is not as a population has left it')
