"""How large states are, at a bounded cost: what is in memory is counted, of the rest a part.

A state that is wholly in memory knows how many entries it has.  Of one that is not, the first key
groups are looked at on disk: groups are by a hash of the key, so that they are about equally large,
and as many as were seen whole stand for all.  That is as of the last checkpoint, and an estimate.
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
"""Pairs that are looked at for all states of a store."""
_BYTES_PER_READ: Final = 1 << 20
_PAIRS_PER_READ: Final = 1024


class StoredSize(msgspec.Struct, frozen=True):
    """``rows`` entries; ``bytes``: in memory if all is there, else of keys and values."""

    rows: int
    bytes: int
    exact: bool


def sizes(store: RocksStore) -> dict[str, StoredSize]:
    """Of each state of a store, by name; without those that cannot be read; from any thread."""
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
    """What was seen of a state: of ``groups`` whole groups; 0: not even one to its end."""

    rows: int
    octets: int
    groups: int

    def whole(self) -> StoredSize:
        """What all groups are like, if they are like these."""
        scale = layout.GROUPS / self.groups
        return StoredSize(round(self.rows * scale), round(self.octets * scale), exact=False)


def _seen(tier: Tier, pairs_max: int) -> _Part:
    """The first pairs of a state, as far as they are of groups that end among them."""
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
    """What states may have whose first group is longer than anybody looks.

    As many entries as the files of the family count, but for those of the other states, in equal
    shares.
    """
    counted = family.entries() - sum(size.rows for size in known.values() if not size.exact)
    out = {}
    for name, part in parts.items():
        rows = max(counted // len(parts), part.rows)
        out[name] = StoredSize(rows, rows * part.octets // max(part.rows, 1), exact=False)
    return out
