"""One state in two tiers: a versioned map in memory over a section of a column family.

    reads ──► state map (SkipList) ──missing──► section (on disk, as of the last checkpoint)
    writes ─► state map ──changes──► checkpoint ──► section

The keys of a state form 256 groups.  The map holds every entry of a *resident* group, and of a
*spilled* group only the entries that are in no checkpoint yet.  So entries and removals in the map
always override the section.  A key without an entry in the map is absent if its group is resident;
in a spilled group it is looked up in the section.

A batch is put in physical order once (``Keys``), so that neighbours in the map and on disk are
read together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from headrace.kernels import numbering, packed
from headrace.kernels.buffers import Bytes, Int64s
from headrace.kernels.packed import Nullable, Packed
from headrace.process import bounds
from headrace.state import columns, layout, loaded
from headrace.state.columns import Section, reading
from headrace.state.contract import Scanned
from headrace.state.map import keygroups
from headrace.state.map.skipkeys import Keys
from headrace.state.map.skiplist import SkipList

_CLEAN_PER_WRITE: Final = 2
"""Superfluous entries dropped for each one written, so that they do not accumulate."""
_SAMPLE_PAIRS: Final = 256
_SAMPLE_BYTES: Final = 64 * 1024
_SAMPLES_IN_SHARED: Final = 16
_NEVER: Final = 1 << 62


class Tier:
    """The two tiers of one state, below ``TieredMap`` and ``TieredIndex``."""

    def __init__(self, section: Section, txid: int) -> None:
        """Open the state in ``section``, which holds the checkpoint of ``txid``."""
        self.section: Final = section
        self.map = SkipList(txids=True, durable=txid)
        self.name: Final = section.name
        self.resident = [True] * layout.GROUPS
        """Per group: whether all its entries are in the map."""
        self.spilled = 0
        """Number of groups that are not resident."""
        self.written = 0
        """Approximate number of entries written since the last checkpoint began."""
        self.cleaning = False
        """Whether the map has entries that a checkpoint has made superfluous."""
        self.closed = False
        self.fresh = not section.empty()
        """Whether the regulator has not yet tried to load all of the state into memory."""
        self._written_before = 0
        self._known: dict[int, int] = {}
        self._typical: int | None = None
        """Approximate bytes of a group, once one is known."""
        if self.fresh:
            for group in range(layout.GROUPS):
                self.make_spilled(group)

    # --- reading and writing

    def get(self, keys: Keys) -> Nullable:
        """Return the newest values."""
        data, ends, valid, missing = self.map.get_many(keys)
        found = Nullable(data, ends, valid)
        if not missing:
            return found
        values = found.strings()
        for place, value in zip(missing, self._sought(keys, missing), strict=True):
            values[place] = value
        return packed.nullable(values)

    def put(self, keys: Keys, values: Nullable) -> None:
        """Set keys; None removes.  A later duplicate wins."""
        self.written += len(keys)
        self.map.put_many(keys, values.data, values.bounds, values.valid)

    def add(self, keys: Keys, weights: Int64s) -> None:
        """Add to the weights of keys."""
        missing: list[int] = []
        bases: list[bytes | None] = []
        if self.spilled:
            missing = self.map.missing(keys)
            bases = self._sought(keys, missing)
        self.written += len(keys)
        self.map.add_many(keys, weights, missing, bases)

    def scan(self, keys: Keys) -> Scanned:
        """Return (position, rest of the key, weight) of every entry under each key."""
        if not self.spilled:
            return _scanned(self.map.scan_many(keys, None))
        with reading(self.name):
            return _scanned(self.map.scan_many(keys, self._base(len(keys))))

    def first(self, keys: Keys, count: int) -> Scanned:
        """Scan up to ``count`` entries of each key, from its rest on."""
        with reading(self.name):
            return _scanned(self.map.first_many(keys, count, self._base(len(keys))))

    def extreme(self, keys: Keys, *, last: bool, bounded: bool = False) -> Nullable:
        """Return the first or last rest of an entry under each key (before the key's rest)."""
        if not self.spilled:
            return Nullable(*self.map.extreme_many(keys, last, bounded, None))
        with reading(self.name):
            return Nullable(*self.map.extreme_many(keys, last, bounded, self._base(len(keys))))

    def items(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield all entries in physical order, in bounded chunks."""
        base = self.section.own_iterator() if self.spilled else None
        with reading(self.name):
            yield from self.map.items(base)

    def _sought(self, keys: Keys, missing: list[int]) -> list[bytes | None]:
        bounds.sought(len(missing))
        return self.section.get(keys.strings(missing))

    def _base(self, keys: int) -> Any:
        """Return an iterator of the section, in which up to ``keys`` keys are sought."""
        if not self.spilled:
            return None
        bounds.sought(keys)
        return self.section.iterator()

    # --- residency, for the regulator

    @property
    def pending_bytes(self) -> int:
        """Approximate bytes written since the last checkpoint began."""
        held: int = self.map.live_bytes
        return min(held, self.written * held // max(self.map.total, 1))

    def estimate(self, group: int) -> int:
        """Estimate the bytes that a spilled group would take in memory."""
        known = self._known.get(group)
        if known is not None:
            return known
        if self._typical is None:
            self._typical = self._sample(group)
        return self._typical

    def _sample(self, group: int) -> int:
        """Read the beginning of a group: the groups of a state are about equally large."""
        # In the shared family the fallback below is a poor estimate, so read more.
        times = _SAMPLES_IN_SHARED if self.section.shared else 1
        pairs_max, bytes_max = times * _SAMPLE_PAIRS, times * _SAMPLE_BYTES
        keys, values = self.section.groups(group, group).read(pairs_max, bytes_max)
        seen: int = keygroups.pair_bytes(keys, values) + columns.NODE_BYTES * len(keys)
        if len(keys) < pairs_max and seen < bytes_max:
            return seen
        # Assume that this state is the whole column family.
        return max(seen, self.section.family.estimate() // layout.GROUPS)

    def learn(self, group: int, size: int) -> None:
        """Record how many bytes a group takes in memory."""
        self._known[group] = size
        before = size if self._typical is None else self._typical
        self._typical = (before + size) // 2

    def forbid(self, group: int) -> None:
        """Mark a group that cannot be read as too large to be loaded."""
        self._known[group] = _NEVER

    def make_spilled(self, group: int) -> None:
        """Mark a group as spilled: reads of it need the section."""
        self.map.set_resident(group, False)
        self.resident[group] = False
        self.spilled += 1

    def make_resident(self, group: int) -> None:
        """Mark a group as resident: all its entries are in the map."""
        self.map.set_resident(group, True)
        self.resident[group] = True
        self.spilled -= 1

    # --- txids and checkpoints

    def commit(self, txid: int) -> None:
        """Commit ``txid``, and clean in proportion to the entries that it wrote."""
        self.map.commit(txid)
        if self.cleaning:
            self.clean(_CLEAN_PER_WRITE * (self.written - self._written_before))
        self._written_before = self.written

    def rollback(self, txid: int) -> None:
        """Discard the writes of ``txid`` and later txids."""
        self.map.rollback(txid)
        self.written = self._written_before

    def snapshot(self, txid: int) -> int:
        """Begin a checkpoint of committed ``txid``."""
        self._written_before = self.written = 0
        snapshot: int = self.map.snapshot(txid)
        return snapshot

    def release(self, snapshot: int) -> None:
        """End a checkpoint that was not written: its changes belong to the next."""
        self.map.release(snapshot)
        self.cleaning = True

    def retire(self, snapshot: int) -> None:
        """End the checkpoint of ``snapshot``, which is in the section now."""
        self.section.refresh()
        self.map.retire(snapshot)
        self.cleaning = True

    def clean(self, limit: int) -> None:
        """Drop up to ``limit`` entries that a checkpoint has made superfluous."""
        self.cleaning = self.map.clean(limit) > 0

    def close(self) -> None:
        """Free the map; REQUIRES: no checkpoint of it is running."""
        if not self.closed:
            self.closed = True
            self.section.refresh()
            self.map.close()


class TieredMap:
    """A ``MapState``."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier

    def get_many(self, keys: Packed) -> Nullable:
        """See ``MapState``."""
        return self.tier.get(Keys(keys.data, keys.bounds))

    def put_many(self, keys: Packed, values: Nullable) -> None:
        """See ``MapState``."""
        self.tier.put(Keys(keys.data, keys.bounds), values)

    def load(self, keys: Packed, values: Packed) -> None:
        """See ``MapState``."""
        distinct, _ = numbering.group(keys)
        if len(distinct) < len(keys) or self.get_many(keys).valid.any():
            raise loaded.twice()
        self.put_many(keys, packed.all_valid(values))

    def scan(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """See ``MapState``."""
        for keys, values in self.tier.items():
            yield keygroups.logical(keys), values


class TieredIndex:
    """An ``IndexState``."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier

    def scan_many(self, keys: Packed) -> Scanned:
        """See ``IndexState``."""
        return self.tier.scan(Keys(keys.data, keys.bounds))

    def first_many(self, keys: Packed, count: int, starts: Packed | None = None) -> Scanned:
        """See ``IndexState``."""
        return self.tier.first(_keys(keys, starts), count)

    def add_many(self, keys: Packed, rows: Packed, weights: Int64s) -> None:
        """See ``IndexState``."""
        self.tier.add(_keys(keys, rows), weights)

    load = add_many

    def weight_many(self, keys: Packed, rows: Packed) -> Int64s:
        """See ``IndexState``."""
        return layout.weights_of(self.tier.get(_keys(keys, rows)))

    def extreme_many(self, keys: Packed, *, last: bool) -> Nullable:
        """See ``IndexState``."""
        return self.tier.extreme(Keys(keys.data, keys.bounds), last=last)

    def before_many(self, keys: Packed, bounds: Packed) -> Nullable:
        """See ``IndexState``."""
        return self.tier.extreme(_keys(keys, bounds), last=True, bounded=True)


def _keys(keys: Packed, rest: Packed | None) -> Keys:
    if rest is None:
        return Keys(keys.data, keys.bounds)
    return Keys(keys.data, keys.bounds, rest.data, rest.bounds)


def _scanned(found: tuple[Int64s, Bytes, Int64s, Int64s]) -> Scanned:
    positions, data, bounds, weights = found
    return positions, Packed(data, bounds), weights
