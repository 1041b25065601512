"""State in dictionaries: for tests, Spark executors and in-process population.

They have the contract of ``state.rocks`` and, through ``dump``, exactly the same pairs.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from headrace.errors import BugError
from headrace.kernels import packed
from headrace.kernels.buffers import Int64s
from headrace.kernels.packed import Nullable, Packed
from headrace.state import layout, loaded
from headrace.state.contract import Scanned
from headrace.state.loaded import Pieces
from headrace.state.map import keygroups, overlay

_ROWS_PER_CHUNK: Final = 4096
_SORTED_ROWS_MIN: Final = 1024


class MemoryMap:
    """A ``MapState`` in a dictionary; undo entries are kept only while ``undo`` is not None."""

    def __init__(self, *, undo: bool) -> None:
        self._entries: dict[bytes, bytes] = {}
        self._undo: list[tuple[list[bytes], list[bytes | None]]] | None = [] if undo else None
        self._loaded: list[tuple[Packed, Packed]] = []
        """Keys and values that are not among the entries yet."""

    def load(self, keys: Packed, values: Packed) -> None:
        """See ``MapState``."""
        self._loaded.append((keys, values))
        if self._undo is not None:
            self._merge_loaded()

    def get_many(self, keys: Packed) -> Nullable:
        """See ``MapState``."""
        self._merge_loaded()
        return packed.nullable([self._entries.get(key) for key in keys.strings()])

    def put_many(self, keys: Packed, values: Nullable) -> None:
        """See ``MapState``."""
        self._merge_loaded()
        self._put(keys.strings(), values.strings())

    def scan(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """See ``MapState``; the state as it is when the scan starts."""
        self._merge_loaded()
        keys = keygroups.logical(sorted(keygroups.physical([*self._entries])))
        values = [self._entries[key] for key in keys]
        for start in range(0, len(keys), _ROWS_PER_CHUNK):
            end = start + _ROWS_PER_CHUNK
            yield keys[start:end], values[start:end]

    def checkpoint(self) -> None:
        """Keep all writes."""
        if self._undo is not None:
            self._undo.clear()

    def rollback(self) -> None:
        """Take back all writes since the last checkpoint."""
        if self._undo is None:
            raise BugError("rollback of a state that keeps no undo entries")
        while self._undo:
            # A key may be twice in a batch: both entries have the value from before the batch.
            self._set(*self._undo.pop())

    def pieces(self) -> Pieces:
        """Return all pairs in physical key order; REQUIRES: no write until they are read."""
        if self._loaded and not self._entries:
            self._loaded = [_joined(self._loaded)]
            return loaded.map_pieces(*self._loaded[0])
        self._merge_loaded()
        return loaded.pieces(keygroups.physical([*self._entries]), [*self._entries.values()])

    def _merge_loaded(self) -> None:
        """Add loaded pairs to the entries."""
        found, self._loaded = self._loaded, []
        for keys, values in found:
            count = len(self._entries) + len(keys)
            self._put(keys.strings(), values.strings())
            if len(self._entries) < count:
                raise loaded.twice()

    def _put(self, keys: list[bytes], values: Sequence[bytes | None]) -> None:
        if self._undo is not None:
            self._undo.append((keys, [self._entries.get(key) for key in keys]))
        self._set(keys, values)

    def _set(self, keys: list[bytes], values: Sequence[bytes | None]) -> None:
        entries = self._entries
        if None not in values:
            entries.update(zip(keys, values, strict=True))  # type: ignore[arg-type]
            return
        for key, value in zip(keys, values, strict=True):
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = value


class MemoryIndex:
    """An ``IndexState`` in nested dictionaries.

    A weight may be negative between two checkpoints (diffs of one txid come in any order), never
    at a checkpoint.
    """

    def __init__(self, name: str, *, undo: bool) -> None:
        self._name = name
        self._entries: dict[bytes, dict[bytes, int]] = {}
        self._undo: list[tuple[list[bytes], list[bytes], list[int]]] | None = [] if undo else None
        self._negative = 0
        self._ordered: dict[bytes, list[bytes]] = {}
        """Sorted rows of large keys, each until the next write to the key."""
        self._loaded: list[tuple[Packed, Packed, Int64s]] = []
        """Keys, rows and weights that are not among the entries yet."""

    def load(self, keys: Packed, rows: Packed, weights: Int64s) -> None:
        """See ``IndexState``."""
        self._loaded.append((keys, rows, weights))
        if self._undo is not None:
            self._merge_loaded()

    def scan_many(self, keys: Packed) -> Scanned:
        """See ``IndexState``."""
        self._merge_loaded()
        return _scanned(overlay.scan(self._entries, keys.strings()))

    def first_many(self, keys: Packed, count: int, starts: Packed | None = None) -> Scanned:
        """See ``IndexState``."""
        self._merge_loaded()
        names = keys.strings()
        bounds = [b""] * len(names) if starts is None else starts.strings()
        if len(names) != 1 or len(self._entries.get(names[0], ())) < _SORTED_ROWS_MIN:
            return _scanned(overlay.first(self._entries, names, bounds, count))
        # The key is read page by page, so its rows are sorted once.
        [key], [bound] = names, bounds
        entry = self._entries[key]
        if key not in self._ordered:
            self._ordered[key] = sorted(entry)
        ordered = self._ordered[key]
        low = bisect.bisect_left(ordered, bound)
        rows = ordered[low : low + count]
        return _scanned(([0] * len(rows), rows, [entry[row] for row in rows]))

    def add_many(self, keys: Packed, rows: Packed, weights: Int64s) -> None:
        """See ``IndexState``."""
        names, found, numbers = keys.strings(), rows.strings(), weights.tolist()
        if self._undo is not None:
            self._undo.append((names, found, numbers))
        self._add(names, found, numbers)

    def weight_many(self, keys: Packed, rows: Packed) -> Int64s:
        """See ``IndexState``."""
        self._merge_loaded()
        entries = self._entries
        none: dict[bytes, int] = {}
        pairs = zip(keys.strings(), rows.strings(), strict=True)
        return np.array([entries.get(key, none).get(row, 0) for key, row in pairs], np.int64)

    def extreme_many(self, keys: Packed, *, last: bool) -> Nullable:
        """See ``IndexState``."""
        self._merge_loaded()
        choose = max if last else min
        out: list[bytes | None] = []
        for key in keys.strings():
            entry = self._entries.get(key)
            out.append(choose(entry) if entry else None)
        return packed.nullable(out)

    def before_many(self, keys: Packed, bounds: Packed) -> Nullable:
        """See ``IndexState``."""
        self._merge_loaded()
        none: dict[bytes, int] = {}
        return packed.nullable(
            [
                max((r for r in self._entries.get(key, none) if r < bound), default=None)
                for key, bound in zip(keys.strings(), bounds.strings(), strict=True)
            ]
        )

    def checkpoint(self) -> None:
        """Keep all writes; BugError if a weight is negative."""
        self._check()
        if self._undo is not None:
            self._undo.clear()

    def rollback(self) -> None:
        """Take back all writes since the last checkpoint: the negated diffs cancel them."""
        if self._undo is None:
            raise BugError("rollback of a state that keeps no undo entries")
        while self._undo:
            keys, rows, weights = self._undo.pop()
            self._add(keys, rows, [-weight for weight in weights])

    def pieces(self) -> Pieces:
        """Return all pairs in physical key order; BugError if a weight is negative."""
        if self._loaded and not self._entries:
            keys, rows, weights = zip(*self._loaded, strict=True)
            whole = packed.joined(keys), packed.joined(rows), np.concatenate(weights)
            self._loaded = [whole]
            return loaded.index_pieces(*whole)
        self._merge_loaded()
        self._check()
        prefixes = keygroups.physical([*self._entries])
        found, numbers = overlay.flat(self._entries, prefixes)
        one = layout.encode_weight(1)
        return loaded.pieces(found, [one if w == 1 else layout.encode_weight(w) for w in numbers])

    def _merge_loaded(self) -> None:
        """Add loaded pairs to the entries."""
        found, self._loaded = self._loaded, []
        for keys, rows, weights in found:
            self.add_many(keys, rows, weights)

    def _check(self) -> None:
        self._merge_loaded()
        if self._negative == 0:
            return
        raise BugError(f'state "{self._name}" holds {self._negative} rows of negative weight')

    def _add(self, keys: list[bytes], rows: list[bytes], weights: list[int]) -> None:
        if self._ordered:
            for key in set(keys):
                self._ordered.pop(key, None)
        self._negative += overlay.add(self._entries, keys, rows, weights)


class MemoryStore:
    """All states of one view, in memory.

    ``undo=False`` keeps no undo entries, for population, which starts afresh when it fails.
    """

    def __init__(self, *, undo: bool = True) -> None:
        self._undo = undo
        self._maps: dict[str, MemoryMap] = {}
        self._indexes: dict[str, MemoryIndex] = {}

    def map(self, name: str) -> MemoryMap:
        """See ``StateStore``."""
        if name not in self._maps:
            self._maps[name] = MemoryMap(undo=self._undo)
        return self._maps[name]

    def index(self, name: str) -> MemoryIndex:
        """See ``StateStore``."""
        if name not in self._indexes:
            self._indexes[name] = MemoryIndex(name, undo=self._undo)
        return self._indexes[name]

    def checkpoint(self) -> None:
        """Keep all writes so far."""
        for state in self._states().values():
            state.checkpoint()

    def rollback(self) -> None:
        """See ``StateStore``."""
        for state in self._states().values():
            state.rollback()

    def dump(self) -> dict[str, layout.Pairs]:
        """Return the pairs of every state in physical key order, as RocksDB holds them."""
        states = self._states()
        return {name: [*loaded.pairs(states[name].pieces())] for name in sorted(states)}

    def runs(self) -> dict[str, Pieces]:
        """Return the pairs of ``dump`` as iterators, each of which sorts its state when read."""
        states = self._states()
        return {name: _lazily(states[name]) for name in sorted(states)}

    def _states(self) -> dict[str, MemoryMap | MemoryIndex]:
        states: dict[str, MemoryMap | MemoryIndex] = {}
        states.update(self._maps)
        states.update(self._indexes)
        return states


def _scanned(found: overlay.Found) -> Scanned:
    at, rows, weights = found
    return np.array(at, np.int64), packed.pack(rows), np.array(weights, np.int64)


def _lazily(state: MemoryMap | MemoryIndex) -> Pieces:
    yield from state.pieces()


def _joined(pieces: list[tuple[Packed, Packed]]) -> tuple[Packed, Packed]:
    keys, values = zip(*pieces, strict=True)
    return packed.joined(keys), packed.joined(values)
