"""Byte layout of states, shared by memory and disk (and so by population and the worker).

Keys are ordered as unsigned bytes.

=============  =============================  ==========================================
state          physical key                   value
=============  =============================  ==========================================
``MapState``   key group, key                 the value
``IndexState`` key group, key, then the row   the weight: int64, little-endian, never 0
=============  =============================  ==========================================

The key group is one byte, a hash of the key (``kernels.keygroups``): it is the unit that is kept in
memory or not.  Everything about a key is in one group, whatever its rows.

On disk the state's name and a NUL stand before the physical key, and those keys are the state's
*section*.  Small views share one column family (RocksDB's cost of making or dropping one grows with
their number): there the view's name and a slash stand before that.  A view that began large has a
family of its own.  Blocks store what neighbours have in common only once.

Invariant 1: the keys of one ``IndexState`` are prefix-free (``kernels.keys.encode_keys``), so
key and row need no separator and a scan by the prefix ``key`` finds exactly that key's rows, in
byte order of the rows.  The one empty key of a cross product is prefix-free as the only key.
Invariant 2: no name of a state has a byte below 2, so sections do not overlap.
Invariant 3: no name of a view has a slash, so views do not overlap in the shared family.
"""

from __future__ import annotations

import struct
from typing import Final

FORMAT: Final = 5
"""Version of this layout and of the key encoding, and of what collections keep in it.

1 had no key groups, 2 one state per aggregate, 3 one column family per state, 4 one per view.
"""

GROUPS: Final = 256

OWNER_END: Final = "/"
"""Ends the name of a view before its states in the shared column family."""

_WEIGHT: Final = struct.Struct("<q")

Pair = tuple[bytes, bytes]
"""Physical key, value."""
Pairs = list[Pair]
"""In ascending key order: what ``dump`` yields."""


def section(state: str) -> bytes:
    """What the keys of a state begin with on disk."""
    return state.encode() + b"\x00"


def section_end(state: str) -> bytes:
    """The least bytes above every key of a state on disk."""
    return state.encode() + b"\x01"


def owner_bounds(owner: str) -> tuple[bytes, bytes]:
    """The half-open range of the keys below ``owner``, which ends with ``OWNER_END``."""
    first = owner.encode()
    return first, first[:-1] + bytes((first[-1] + 1,))


def state_of(key: bytes) -> str:
    """The name of the state that has a key on disk."""
    return key.partition(b"\x00")[0].decode()


def encode_weight(weight: int) -> bytes:
    """Value of an ``IndexState`` entry."""
    return _WEIGHT.pack(weight)


def decode_weight(value: bytes) -> int:
    """Inverse of ``encode_weight``."""
    weight: int = _WEIGHT.unpack(value)[0]
    return weight
