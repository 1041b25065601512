"""Sizes of states at a bounded cost: exact in memory, estimated from a sample on disk.

A state that is wholly in memory counts its entries.  For another one, the first key groups are
read from disk.  Groups are by a hash of the key and so about equally large: the size is
extrapolated from the groups read to their end.  It is an estimate as of the last checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from headrace.errors import HeadraceError
from headrace.state import layout
from headrace.state.columns import Family
from headrace.state.store import RocksStore
from headrace.state.tiers import Tier

PAIRS_MAX: Final = 32_768
"""Pairs read for all states of a store together."""
_BYTES_PER_READ: Final = 1 << 20
_PAIRS_PER_READ: Final = 1024


class StoredSize(msgspec.Struct, frozen=True):
    """Size of a state: entries, and bytes in memory, or of keys and values if not ``exact``."""

    rows: int
    bytes: int
    exact: bool


def sizes(store: RocksStore) -> dict[str, StoredSize]:
    """Return the sizes of a store's states by name, without unreadable ones; from any thread."""
    tiers = dict(store.tiers)
    share = PAIRS_MAX // max(sum(bool(tier.spilled) for tier in tiers.values()), 1)
    out: dict[str, StoredSize] = {}
    parts: dict[str, _Part] = {}
    for name, tier in tiers.items():
        if not tier.spilled:
            out[name] = StoredSize(tier.map.size, tier.map.live_bytes, exact=True)
            continue
        with contextlib.suppress(HeadraceError):
            part = _seen(tier, share)
            if part.groups:
                out[name] = part.whole()
            else:
                parts[name] = part
    if parts:
        with contextlib.suppress(HeadraceError):
            out |= _unseen(next(tiers[name].section.family for name in parts), parts, out)
    return out


@dataclass(frozen=True, slots=True)
class _Part:
    """A sample of a state: pairs of ``groups`` whole groups; 0: the first has no end in it."""

    rows: int
    octets: int
    groups: int

    def whole(self) -> StoredSize:
        """Return the size extrapolated to all groups."""
        scale = layout.GROUPS / self.groups
        return StoredSize(round(self.rows * scale), round(self.octets * scale), exact=False)


def _seen(tier: Tier, pairs_max: int) -> _Part:
    """Sample the first pairs of a state, limited to groups that end among them."""
    counts: dict[int, list[int]] = {}
    reader = tier.section.groups(0, layout.GROUPS - 1)
    left, ended = max(pairs_max, 1), False
    while left > 0 and not ended:
        keys, values = reader.read(min(left, _PAIRS_PER_READ), _BYTES_PER_READ)
        ended = not keys
        left -= len(keys)
        for key, value in zip(keys, values, strict=True):
            seen = counts.setdefault(key[0], [0, 0])
            seen[0] += 1
            seen[1] += len(key) + len(value)
    reader.close()
    last = layout.GROUPS if ended else max(counts)
    whole = [numbers for group, numbers in counts.items() if group < last or not last]
    return _Part(sum(n for n, _ in whole), sum(b for _, b in whole), last)


def _unseen(
    family: Family, parts: Mapping[str, _Part], known: Mapping[str, StoredSize]
) -> dict[str, StoredSize]:
    """Estimate states whose first group is larger than the sample.

    They get equal shares of the entries in the family's files, minus those of the other states.
    """
    counted = family.entries() - sum(size.rows for size in known.values() if not size.exact)
    out = {}
    for name, part in parts.items():
        rows = max(counted // len(parts), part.rows)
        out[name] = StoredSize(rows, rows * part.octets // max(part.rows, 1), exact=False)
    return out
