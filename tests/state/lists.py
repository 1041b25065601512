"""States and the state map as tests write them: lists of bytes in, lists out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headrace.collections import listed
from headrace.kernels import packed
from headrace.kernels.packed import Nullable, Packed
from headrace.state.map import skiplist
from headrace.state.map.skipkeys import Keys


class SkipList(skiplist.SkipList):
    """The compiled map with the arguments and results of its reference."""

    def get_many(self, keys: Sequence[bytes]) -> tuple[list[bytes | None], list[int]]:
        *values, missing = super().get_many(_keys(keys))
        return Nullable(*values).strings(), sorted(missing)

    def missing(self, keys: Sequence[bytes]) -> list[int]:
        return sorted(super().missing(_keys(keys)))

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        found = packed.nullable(values)
        super().put_many(_keys(keys), found.data, found.bounds, found.valid)

    def add_many(self, keys: Sequence[bytes], deltas: Sequence[int], *base: Any) -> int:
        return super().add_many(_keys(keys), np.array(deltas, np.int64), *base)

    def changes(self, snapshot: int) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
        for data, bounds, *values in super().changes(snapshot):
            yield Packed(data, bounds).strings(), Nullable(*values).strings()

    def scan_many(self, prefixes: Sequence[bytes], base: Any) -> listed.Listed:
        return _rows(super().scan_many(_keys(prefixes), base))

    def first_many(
        self, prefixes: Sequence[bytes], starts: Sequence[bytes], count: int, base: Any
    ) -> listed.Listed:
        return _rows(super().first_many(_keys(prefixes, starts), count, base))

    def extreme_many(
        self, prefixes: Sequence[bytes], ends: Sequence[bytes | None], last: bool, base: Any
    ) -> list[bytes | None]:
        bounded = last and all(
            e is not None and e.startswith(k) for e, k in zip(ends, prefixes, strict=True)
        )
        keys = _keys(prefixes, [end or b"" for end in ends] if bounded else None)
        return Nullable(*super().extreme_many(keys, last, bounded, base)).strings()


class ListedMap(listed.ListedMap):
    """A ``MapState`` with lists."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)


class ListedIndex(listed.ListedIndex):
    """An ``IndexState`` with lists."""

    def first_many(
        self, keys: Sequence[bytes], count: int, starts: Sequence[bytes] | None = None
    ) -> listed.Listed:
        begins = None if starts is None else packed.pack(starts)
        return listed.listed(self.state.first_many(packed.pack(keys), count, begins))

    def weight_many(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> list[int]:
        return self.state.weight_many(packed.pack(keys), packed.pack(rows)).tolist()

    def before_many(self, keys: Sequence[bytes], bounds: Sequence[bytes]) -> list[bytes | None]:
        return self.state.before_many(packed.pack(keys), packed.pack(bounds)).strings()

    def extreme_many(self, keys: Sequence[bytes], *, last: bool) -> list[bytes | None]:
        return self.state.extreme_many(packed.pack(keys), last=last).strings()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)


def listed_map(store: Any, name: str) -> ListedMap:
    """Return the map state ``name`` of a store."""
    return ListedMap(store.map(name))


def listed_index(store: Any, name: str) -> ListedIndex:
    """Return the index state ``name`` of a store."""
    return ListedIndex(store.index(name))


def _keys(keys: Sequence[bytes], rest: Sequence[bytes] | None = None) -> Keys:
    """Return keys that begin with their group, each up to the end of its ``rest``, if given."""
    found = packed.pack(keys)
    if rest is None:
        return Keys(found.data, found.bounds, physical=True)
    if len(rest) != len(keys):
        raise ValueError("prefixes and starts differ in length")
    ends = packed.pack([end[len(key) :] for key, end in zip(keys, rest, strict=True)])
    return Keys(found.data, found.bounds, ends.data, ends.bounds, physical=True)


def _rows(found: tuple[Any, ...]) -> listed.Listed:
    positions, data, bounds, weights = found
    return listed.listed((positions, Packed(data, bounds), weights))
