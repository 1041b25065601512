"""Byte layout of states, shared by memory and disk (and so by population and the worker).

Keys are ordered as unsigned bytes.

=============  =============================  ==========================================
state          physical key                   value
=============  =============================  ==========================================
``MapState``   key group, key                 the value
``IndexState`` key group, key, then the row   the weight: int64, little-endian, never 0
=============  =============================  ==========================================

The key group is one byte, a hash of the key (``state.map.keygroups``).  A group is in memory or
spilled as a whole.  A key and all its rows are in one group.

On disk the physical key is preceded by the state's name and a NUL; those keys are the state's
*section*.  Small views share one column family, since RocksDB's cost of creating or dropping one
grows with their number; there the view's name and a slash come first.  A view that began large has
a column family of its own.  Blocks store the common prefix of neighbouring keys only once.

Invariant 1: the keys of one ``IndexState`` are prefix-free (``kernels.keys.encode_keys``).  So key
and row need no separator, and a scan by the prefix ``key`` finds exactly that key's rows, in byte
order of the rows.  The one empty key of a cross product is prefix-free as the only key.
Invariant 2: no name of a state has a byte below 2, so sections do not overlap.
Invariant 3: no name of a view has a slash, so views do not overlap in the shared family.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from headrace.kernels.buffers import Int64s
from headrace.kernels.packed import Nullable

FORMAT: Final = 6
"""Version of this layout, of the key encoding, and of the values that collections store.

Version 1 had no key groups, 2 one state per aggregate, 3 one column family per state, 4 one
per view, 5 sums of numerics that could be wrong.
"""

GROUPS: Final = 256

OWNER_END: Final = "/"
"""Ends the name of a view before its states in the shared column family."""

_WEIGHT: Final = struct.Struct("<q")

Pair = tuple[bytes, bytes]
"""Physical key, value."""
Pairs = list[Pair]
"""Pairs in ascending key order, as ``dump`` returns them."""


def section(state: str) -> bytes:
    """Return the prefix of the keys of a state on disk."""
    return state.encode() + b"\x00"


def section_end(state: str) -> bytes:
    """Return the exclusive upper bound of the keys of a state on disk."""
    return state.encode() + b"\x01"


def owner_bounds(owner: str) -> tuple[bytes, bytes]:
    """Return the half-open range of keys with the prefix ``owner`` (it ends in ``OWNER_END``)."""
    first = owner.encode()
    return first, first[:-1] + bytes((first[-1] + 1,))


def state_of(key: bytes) -> str:
    """Return the name of the state that a key on disk belongs to."""
    return key.partition(b"\x00")[0].decode()


def encode_weight(weight: int) -> bytes:
    """Encode a weight as the value of an ``IndexState`` entry."""
    return _WEIGHT.pack(weight)


def decode_weight(value: bytes) -> int:
    """Decode the value of an ``IndexState`` entry."""
    weight: int = _WEIGHT.unpack(value)[0]
    return weight


def weights_of(values: Nullable) -> Int64s:
    """Decode values as weights; 0 for None."""
    out = np.zeros(len(values), np.int64)
    out[values.valid.view(np.bool_)] = values.data.view("<i8")
    return out


def values_of(weights: Int64s) -> Nullable:
    """Encode weights as values; a weight of 0 is None."""
    bounds = np.arange(0, 8 * len(weights) + 1, 8, dtype=np.int64)
    content = np.frombuffer(weights.astype("<i8").tobytes(), np.uint8)
    return Nullable(content, bounds, (weights != 0).view(np.uint8))
