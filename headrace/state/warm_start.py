"""A *pack*: a second copy of the pairs of a run, from which a new view's states load into memory.

RocksDB returns pairs one by one, as Python objects; compiled code loads a piece of a pack into a
state map at once.  A pack only speeds up loading: the run is the durable copy.

    pieces ..., index (JSON), size of the index: 8 bytes, its CRC: 4 bytes, ``_MAGIC``

A piece holds key sizes and value sizes (4 bytes each), then keys, then values.  The index has the
position, the number of pairs and the CRC of each state's pieces.

Invariant 1: pairs of a state are in ascending order of the physical keys, as in the run.
Invariant 2: a read returns all pairs of the state as written, or raises ``StateDamaged``.
Invariant 3: a pack matches its ingested run until the first checkpoint.
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
    """Position of some pairs of a state in a pack."""

    offset: int
    size: int
    """Bytes."""
    pairs: int
    key_bytes: int
    crc: int


_Index = dict[str, list[Piece]]
_INDEXES: Final = msgspec.json.Decoder(_Index)


def of_run(run: Path) -> Path:
    """Return the path of a run's pack, which need not exist."""
    return run.with_suffix(".pack")


class PackWriter:
    """Writer of a pack, which is valid only if the context was left without an error."""

    def __init__(self, path: Path) -> None:
        self._file: Final = path.open("wb")
        self._index: Final[_Index] = {}
        self._offset = 0

    def add(self, state: str, keys: list[bytes], values: list[bytes]) -> None:
        """Append the next pairs of a state."""
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
    """A reader of a pack; no file is open between two calls."""

    def __init__(self, path: Path) -> None:
        """Read the index.

        Raises:
            FileNotFoundError: there is no pack.
            OSError: it cannot be read now.
            StateDamaged: it is damaged.
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
        """Yield all pairs of a state in order, in chunks.

        Raises:
            OSError: the pack cannot be read now.
            StateDamaged: it is damaged.
        """
        pairs = self.pairs(state)
        try:
            while (piece := pairs.next()) is not None:
                yield piece[0].strings(), piece[1].strings()
        finally:
            pairs.close()

    def pairs(self, state: str) -> PackedPairs:
        """Return a reader of all pairs of a state.

        Raises:
            OSError: the pack cannot be read now.
        """
        return PackedPairs(self.path, self._index[state])


class PackedPairs:
    """A reader of one state of a pack, piece by piece; the file may be removed meanwhile."""

    def __init__(self, path: Path, pieces: list[Piece]) -> None:
        self._path: Final = path
        self._pieces: Final = pieces[::-1]
        self._file: Final = path.open("rb", buffering=0)

    def fill(self, into: Any) -> bytes | None:
        """Load the next piece into a state map; return its last key, None at the end.

        Raises:
            StateDamaged: the piece is damaged; none of its pairs is in the map.
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
        """Return keys and values of the next piece; None at the end.

        Raises:
            StateDamaged: the piece is damaged.
        """
        return self._read(self._pieces.pop()) if self._pieces else None

    def close(self) -> None:
        """Close the file."""
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
