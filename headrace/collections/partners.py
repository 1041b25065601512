"""Which rows of one side of a join have a partner: what outer, semi and anti joins show.

A *lone* row has none.  Outer and anti joins show lone rows, semi joins the others.  A row comes
to be lone, or ceases to be, only as of a TimeEnd, so all is found there from what changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from headrace.errors import BugError
from headrace.kernels import rows
from headrace.state.contract import IndexState, StateStore

_KEYS_MAX: Final = 4096
"""Keys that are looked up at once: bounds the rows held as Python objects."""

Rows = tuple[list[bytes], list[int]]
"""Encoded rows of one side, and their weights."""


class PartnersByKey:
    """Without residual predicates a row has a partner if its key has rows on the other side.

    O(changes), and O(rows of a key) for a key whose last partner went or whose first came.
    """

    def __init__(
        self, node_id: str, own: IndexState, other: IndexState, *, lone: bool
    ) -> None:
        self._id = node_id
        self._own = own
        self._other = other
        self._lone = lone
        self._loaded: dict[bytes, None] = {}
        self._before: dict[bytes, bool] = {}
        """Keys that the other side touched: whether they had partners before that."""
        self._keys: list[bytes] = []
        self._rows: list[bytes] = []
        self._weights: list[int] = []

    def load(self, keys: Iterable[bytes]) -> None:
        """Rows under ``keys`` come to this side, where nothing was before this txid."""
        self._loaded.update(dict.fromkeys(keys))

    def add(
        self, keys: list[bytes], encoded: list[bytes], weights: Sequence[int]
    ) -> None:
        """Rows of this side."""
        self._keys += keys
        self._rows += encoded
        self._weights += weights

    def touch(self, keys: Iterable[bytes]) -> None:
        """Rows under ``keys`` are about to change on the other side."""
        new = [key for key in dict.fromkeys(keys) if key not in self._before]
        if new:
            self._before.update(zip(new, self._met(new), strict=True))

    def end(self) -> Iterator[Rows]:
        """What has changed in what is shown since the last call, consolidated.

        Raises:
            BugError: a weight is negative.
        """
        loaded, self._loaded = list(self._loaded), {}
        for chunk in _chunks(loaded):
            met = self._met(chunk)
            shown = [k for k, m in zip(chunk, met, strict=True) if m != self._lone]
            yield from self._all(shown, 1)
        if self._before or self._keys:
            yield self._changes()

    def _changes(self) -> Rows:
        touched = list(self._before)
        after = dict(zip(touched, self._met(touched), strict=True))
        alone = [k for k in dict.fromkeys(self._keys) if k not in after]
        before = self._before | dict(zip(alone, self._met(alone), strict=True))
        # Where it was shown before, what changed; where that turned, all of the key as it is.
        sums = rows.Consolidator()
        kept = [i for i, key in enumerate(self._keys) if before[key] != self._lone]
        sums.add([self._rows[i] for i in kept], [self._weights[i] for i in kept])
        self._before, self._keys, self._rows, self._weights = {}, [], [], []
        for sign, met in ((1, not self._lone), (-1, self._lone)):
            turned = [k for k in touched if before[k] != after[k] and after[k] == met]
            for found, weights in self._all(turned, sign):
                sums.add(found, weights)
        return sums.items()

    def _met(self, keys: list[bytes]) -> list[bool]:
        found = self._other.extreme_many(keys, last=False) if keys else []
        return [row is not None for row in found]

    def _all(self, keys: list[bytes], sign: int) -> Iterator[Rows]:
        for chunk in _chunks(keys):
            _, found, weights = self._own.scan_many(chunk)
            if min(weights, default=0) < 0:
                raise negative(self._id)
            yield found, [sign * weight for weight in weights]


class PartnersByRow:
    """With residual predicates a row has a partner if it is in some pair that passes them.

    ``pairs`` is key -> row -> the weights of its pairs, summed up: bilinear like the pairs
    themselves, and 0 just if the row is lone (or not there).  O(changes + changed pairs).
    """

    def __init__(
        self, node_id: str, own: IndexState, pairs: IndexState, *, lone: bool
    ) -> None:
        self._id = node_id
        self._own = own
        self._pairs = pairs
        self._lone = lone
        self._rows: Counter[tuple[bytes, bytes]] = Counter()
        self._changed: Counter[tuple[bytes, bytes]] = Counter()

    def add(
        self, keys: list[bytes], encoded: list[bytes], weights: Sequence[int]
    ) -> None:
        """Rows of this side."""
        _sum(self._rows, keys, encoded, weights)

    def pair(
        self, keys: list[bytes], encoded: list[bytes], weights: Sequence[int]
    ) -> None:
        """This side's half of pairs that have passed, with the weights of the pairs."""
        _sum(self._changed, keys, encoded, weights)

    def end(self) -> Iterator[Rows]:
        """See ``PartnersByKey``."""
        self._store_pairs()
        touched = list(dict.fromkeys((*self._rows, *self._changed)))
        out: list[bytes] = []
        weights: list[int] = []
        for start in range(0, len(touched), _KEYS_MAX):
            chunk = touched[start : start + _KEYS_MAX]
            keys, encoded = [key for key, _ in chunk], [row for _, row in chunk]
            numbers = self._own.weight_many(keys, encoded)
            pairs = self._pairs.weight_many(keys, encoded)
            for item, number, paired in zip(chunk, numbers, pairs, strict=True):
                if number < 0 or paired < 0:
                    raise negative(self._id)
                was = number - self._rows[item]
                change = self._shown(number, paired)
                change -= self._shown(was, paired - self._changed[item])
                if change:
                    out.append(item[1])
                    weights.append(change)
        self._rows, self._changed = Counter(), Counter()
        yield out, weights

    def _store_pairs(self) -> None:
        items = [(k, row, w) for (k, row), w in self._changed.items() if w]
        if items:
            keys, encoded, weights = (list(part) for part in zip(*items, strict=True))
            self._pairs.add_many(keys, encoded, weights)

    def _shown(self, number: int, pairs: int) -> int:
        return number if (pairs == 0) == self._lone else 0


def negative(node_id: str) -> BugError:
    """What to raise when a row is there less than no times."""
    return BugError(f'a row in state "{node_id}" has a negative weight')


def lone_states(store: StateStore, node_id: str, port: int) -> IndexState:
    """The state of ``PartnersByRow.pairs`` for one side."""
    return store.index(f"{node_id}.{('left', 'right')[port]}_pairs")


def _sum(
    sums: Counter[tuple[bytes, bytes]],
    keys: list[bytes],
    encoded: list[bytes],
    weights: Sequence[int],
) -> None:
    for key, row, weight in zip(keys, encoded, weights, strict=True):
        sums[key, row] += weight


def _chunks(keys: list[bytes]) -> Iterator[list[bytes]]:
    for start in range(0, len(keys), _KEYS_MAX):
        yield keys[start : start + _KEYS_MAX]
