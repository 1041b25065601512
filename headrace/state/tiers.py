"""One state in two tiers: a versioned map in memory over a section of a column family.

    reads ──► state map (SkipList) ──missing──► section (on disk, as of the last checkpoint)
    writes ─► state map ──changes──► checkpoint ──► section

The keys of a state form 256 groups.  The map holds every entry of a *resident* group, and of a
*spilled* group only the entries that are in no checkpoint yet.  So entries and removals in the map
always override the section.  A key without an entry in the map is absent if its group is resident;
in a spilled group it is looked up in the section.

Batches are sorted physically first, so that neighbours in the map and on disk are read together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from headrace.errors import BugError
from headrace.kernels.buffers import Int64s
from headrace.kernels.packed import Packed
from headrace.state import columns, layout, loaded
from headrace.state.columns import Section, reading
from headrace.state.map import keygroups
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

    # --- reading and writing, in physical keys of any order

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the newest values of physical keys."""
        order = in_order(keys)
        ordered = keygroups.gather(keys, order)
        values, missing = self.map.get_many(ordered)
        if missing:
            found = self.section.get(keygroups.gather(ordered, missing))
            keygroups.place(values, missing, found)
        out: list[bytes | None] = keygroups.scatter(values, order)
        return out

    def put(self, keys: list[bytes], values: list[bytes | None]) -> None:
        """Set physical keys; None removes.  A later duplicate wins."""
        order = in_order(keys)
        self.written += len(keys)
        self.map.put_many(keygroups.gather(keys, order), keygroups.gather(values, order))

    def add(self, keys: list[bytes], weights: list[int]) -> None:
        """Add to the weights of physical keys."""
        order = in_order(keys)
        ordered = keygroups.gather(keys, order)
        missing: list[int] = []
        bases: list[bytes | None] = []
        if self.spilled:
            missing = self.map.missing(ordered)
            bases = self.section.get(keygroups.gather(ordered, missing))
        self.written += len(keys)
        self.map.add_many(ordered, keygroups.gather(weights, order), missing, bases)

    def scan(self, prefixes: list[bytes]) -> tuple[list[int], list[bytes], list[int]]:
        """Return (position, rest of the key, weight) of every entry under each prefix."""
        order = in_order(prefixes)
        with reading(self.name):
            positions, rests, weights = self.map.scan_many(
                keygroups.gather(prefixes, order), self._base()
            )
        return keygroups.regroup(positions, rests, weights, order)

    def first(
        self, prefixes: list[bytes], starts: list[bytes], count: int
    ) -> tuple[list[int], list[bytes], list[int]]:
        """Scan up to ``count`` entries of each prefix, from ``starts`` (with prefix) on."""
        order = in_order(starts)
        with reading(self.name):
            positions, rests, weights = self.map.first_many(
                keygroups.gather(prefixes, order),
                keygroups.gather(starts, order),
                count,
                self._base(),
            )
        return keygroups.regroup(positions, rests, weights, order)

    def before(self, prefixes: list[bytes], bounds: list[bytes]) -> list[bytes | None]:
        """Return the last rest of a key under each prefix before a bound (with prefix)."""
        order = in_order(bounds)
        with reading(self.name):
            found = self.map.extreme_many(
                keygroups.gather(prefixes, order),
                keygroups.gather(bounds, order),
                True,
                self._base(),
            )
        out: list[bytes | None] = keygroups.scatter(found, order)
        return out

    def extreme(self, prefixes: list[bytes], *, last: bool) -> list[bytes | None]:
        """Return the first or last rest of a key under each prefix."""
        order = in_order(prefixes)
        ordered = keygroups.gather(prefixes, order)
        ends = keygroups.prefix_ends(ordered) if last else []
        with reading(self.name):
            found = self.map.extreme_many(ordered, ends, last, self._base())
        out: list[bytes | None] = keygroups.scatter(found, order)
        return out

    def items(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield all entries in physical order, in bounded chunks."""
        base = self.section.own_iterator() if self.spilled else None
        with reading(self.name):
            yield from self.map.items(base)

    def _base(self) -> Any:
        return self.section.iterator() if self.spilled else None

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

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ``MapState``."""
        return self.tier.get(keygroups.physical(list(keys)))

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """See ``MapState``."""
        if len(keys) != len(values):
            raise BugError("keys and values differ in length")
        self.tier.put(keygroups.physical(list(keys)), list(values))

    def load(self, keys: Packed, values: Packed) -> None:
        """See ``MapState``."""
        found = keys.strings()
        if len(set(found)) < len(found) or any(v is not None for v in self.get_many(found)):
            raise loaded.twice()
        self.put_many(found, values.strings())

    def scan(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """See ``MapState``."""
        for keys, values in self.tier.items():
            yield keygroups.logical(keys), values


class TieredIndex:
    """An ``IndexState``."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier

    def scan_many(self, keys: Sequence[bytes]) -> tuple[list[int], list[bytes], list[int]]:
        """See ``IndexState``."""
        return self.tier.scan(keygroups.physical(list(keys)))

    def first_many(
        self, keys: Sequence[bytes], count: int, starts: Sequence[bytes] | None = None
    ) -> tuple[list[int], list[bytes], list[int]]:
        """See ``IndexState``."""
        prefixes = keygroups.physical(list(keys))
        bounds = prefixes
        if starts is not None:
            bounds = [p + s for p, s in zip(prefixes, starts, strict=True)]
        return self.tier.first(prefixes, bounds, count)

    def add_many(
        self, keys: Sequence[bytes], rows: Sequence[bytes], weights: Sequence[int]
    ) -> None:
        """See ``IndexState``."""
        if len(keys) != len(weights):
            raise BugError("keys and weights differ in length")
        self.tier.add(keygroups.physical_rows(list(keys), list(rows)), list(weights))

    def load(self, keys: Packed, rows: Packed, weights: Int64s) -> None:
        """See ``IndexState``."""
        self.add_many(keys.strings(), rows.strings(), weights.tolist())

    def weight_many(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> list[int]:
        """See ``IndexState``."""
        physical = keygroups.physical_rows(list(keys), list(rows))
        out: list[int] = keygroups.weights_of(self.tier.get(physical))
        return out

    def extreme_many(self, keys: Sequence[bytes], *, last: bool) -> list[bytes | None]:
        """See ``IndexState``."""
        return self.tier.extreme(keygroups.physical(list(keys)), last=last)

    def before_many(self, keys: Sequence[bytes], bounds: Sequence[bytes]) -> list[bytes | None]:
        """See ``IndexState``."""
        prefixes = keygroups.physical(list(keys))
        limits = [p + b for p, b in zip(prefixes, bounds, strict=True)]
        return self.tier.before(prefixes, limits)


def in_order(keys: list[bytes]) -> list[int]:
    """Return positions of ``keys`` in ascending order; the sort is stable."""
    return sorted(range(len(keys)), key=keys.__getitem__)
