"""How large states are, at a bounded cost: what is in memory is counted, of the rest a part.

A state that is wholly in memory knows how many entries it has.  Of one that is not, the first key
groups are looked at on disk: groups are by a hash of the key, so that they are about equally large,
and as many as were seen whole stand for all.  That is as of the last checkpoint, and an estimate.
"""

from __future__ import annotations

import contextlib
from typing import Final

import msgspec

from headrace.errors import HeadraceError
from headrace.state import layout
from headrace.state.store import RocksStore
from headrace.state.tiers import Tier

PAIRS_MAX: Final = 32_768
"""Pairs that are looked at for all states of a store."""
_BYTES_PER_READ: Final = 1 << 20
_PAIRS_PER_READ: Final = 1024


class StateSize(msgspec.Struct, frozen=True):
    """``rows`` entries; ``bytes``: in memory if all is there, else of keys and values."""

    rows: int
    bytes: int
    exact: bool


def sizes(store: RocksStore) -> dict[str, StateSize]:
    """Of each state of a store, by name; without those that cannot be read; from any thread."""
    tiers = dict(store.tiers)
    share = PAIRS_MAX // max(sum(bool(tier.spilled) for tier in tiers.values()), 1)
    out = {}
    for name, tier in tiers.items():
        with contextlib.suppress(HeadraceError):
            out[name] = _size(tier, share)
    return out


def _size(tier: Tier, pairs_max: int) -> StateSize:
    if not tier.spilled:
        return StateSize(tier.map.size, tier.map.live_bytes, exact=True)
    whole, size, groups = _seen(tier, pairs_max)
    if groups == layout.GROUPS:
        # Nothing is left out but what came since the checkpoint.
        return StateSize(whole, size, exact=False)
    return StateSize(whole * layout.GROUPS // groups, size * layout.GROUPS // groups, exact=False)


def _seen(tier: Tier, pairs_max: int) -> tuple[int, int, int]:
    """Pairs and bytes of the first groups, and how many groups these are, one at least.

    Where not even the first was seen to its end, it counts for what the files of the whole
    column family say of it.
    """
    counts: dict[int, list[int]] = {}
    reader = tier.section.groups(0, layout.GROUPS - 1)
    left, ended = pairs_max, False
    while left > 0 and not ended:
        keys, values = reader.read(min(left, _PAIRS_PER_READ), _BYTES_PER_READ)
        ended = not keys
        left -= len(keys)
        for key, value in zip(keys, values, strict=True):
            seen = counts.setdefault(key[0], [0, 0])
            seen[0] += 1
            seen[1] += len(key) + len(value)
    reader.close()
    if ended:
        return sum(n for n, _ in counts.values()), sum(b for _, b in counts.values()), layout.GROUPS
    last = max(counts)
    if last == 0:
        return _first_of_many(tier, *counts[0])
    whole = [numbers for group, numbers in counts.items() if group < last]
    return sum(n for n, _ in whole), sum(b for _, b in whole), last


def _first_of_many(tier: Tier, rows: int, size: int) -> tuple[int, int, int]:
    """What one group may have, of which ``rows`` were seen: as if the family were this state."""
    keys = int(tier.section.family.rows.property_int_value("rocksdb.estimate-num-keys") or 0)
    most = max(rows, keys // layout.GROUPS)
    return most, most * size // max(rows, 1), 1
