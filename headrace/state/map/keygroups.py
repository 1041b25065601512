# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False
# mypy: disable-error-code="no-any-return,untyped-decorator"
"""Physical keys of states: one byte for the key group, then the key (then the row).

The group is a hash of the key, so groups are about equally large; all rows of a key are in one
group.  The hash is on disk: changing it needs a new state format.
"""

from __future__ import annotations

import struct
from typing import Any

import cython

_GROUPS = [bytes((i,)) for i in range(256)]
_unpack = struct.Struct("<q").unpack


@cython.locals(key=bytes, c=cython.uchar, h=cython.ulonglong)
@cython.returns(cython.Py_ssize_t)
@cython.cfunc
def _group(key: bytes) -> int:
    """Return the key group: FNV-1a over 30 bits, folded to 8."""
    h = 0x11C9DC5
    for c in key:
        h = ((h ^ c) * 0x1000193) & 0x3FFFFFFF
    return (h ^ (h >> 8) ^ (h >> 16) ^ (h >> 24)) & 0xFF


@cython.locals(keys=list, out=list, i=cython.Py_ssize_t, key=bytes, first=bytes, groups=list)
def physical(keys: list[bytes]) -> list[bytes]:
    """Return the physical form of each key; for an index, it is the prefix of the key's rows."""
    out: list[bytes] = [b""] * len(keys)
    groups = _GROUPS
    for i in range(len(keys)):
        key = keys[i]
        first = groups[_group(key)]
        out[i] = first + key
    return out


@cython.locals(
    keys=list,
    rows=list,
    out=list,
    i=cython.Py_ssize_t,
    key=bytes,
    row=bytes,
    first=bytes,
    groups=list,
)
def physical_rows(keys: list[bytes], rows: list[bytes]) -> list[bytes]:
    """Return the physical form of each (key, row); ValueError if they differ in number."""
    if len(keys) != len(rows):
        message = "keys and rows differ in length"
        raise ValueError(message)
    out: list[bytes] = [b""] * len(keys)
    groups = _GROUPS
    for i in range(len(keys)):
        key = keys[i]
        row = rows[i]
        first = groups[_group(key)]
        out[i] = first + key + row
    return out


@cython.locals(
    keys=cython.const_uchar[::1],
    limits=cython.const_longlong[::1],
    rows=cython.const_uchar[::1],
    row_limits=cython.const_longlong[::1],
    out=cython.uchar[::1],
    i=cython.Py_ssize_t,
    p=cython.Py_ssize_t,
    q=cython.Py_ssize_t,
    h=cython.ulonglong,
    group=cython.Py_ssize_t,
)
def put_physical(
    keys: memoryview, limits: memoryview, rows: memoryview, row_limits: memoryview, out: memoryview
) -> None:
    """Write the physical forms of packed (key, row) consecutively into ``out``.

    If ``row_limits`` is empty, there are no rows.  REQUIRES: ``out`` has a byte more for each key.
    """
    p = 0
    for i in range(len(limits) - 1):
        group = p
        p += 1
        h = 0x11C9DC5
        for q in range(limits[i], limits[i + 1]):
            h = ((h ^ keys[q]) * 0x1000193) & 0x3FFFFFFF
            out[p] = keys[q]
            p += 1
        out[group] = (h ^ (h >> 8) ^ (h >> 16) ^ (h >> 24)) & 0xFF
        if len(row_limits):
            for q in range(row_limits[i], row_limits[i + 1]):
                out[p] = rows[q]
                p += 1


@cython.locals(found=list, out=list, i=cython.Py_ssize_t, key=bytes)
def logical(found: list[bytes]) -> list[bytes]:
    """Return keys without their group, the inverse of ``physical``."""
    out: list[bytes] = [b""] * len(found)
    for i in range(len(found)):
        key = found[i]
        out[i] = key[1:]
    return out


@cython.locals(prefix=bytes, keys=list, out=list, i=cython.Py_ssize_t, key=bytes)
def prefixed(prefix: bytes, keys: list[bytes]) -> list[bytes]:
    """Return the keys with ``prefix`` before each."""
    out: list[bytes] = [b""] * len(keys)
    for i in range(len(keys)):
        key = keys[i]
        out[i] = prefix + key
    return out


@cython.cclass
class Within:
    """A view of an iterator, limited to keys with a prefix, which it removes from them.

    ``end`` is above every key with the prefix, and not a key itself.
    """

    _base = cython.declare(object)
    _prefix = cython.declare(bytes)
    _end = cython.declare(bytes)
    _key = cython.declare(object)

    def __init__(self, base: Any, prefix: bytes, end: bytes) -> None:
        self._base = base
        self._prefix = prefix
        self._end = end
        self._key = None

    def seek(self, key: bytes) -> None:
        """Go to the first key that is not below ``key``."""
        self._base.seek(self._prefix + key)

    def seek_for_prev(self, key: bytes) -> None:
        """Go to the last key that is not above ``key``."""
        self._base.seek_for_prev(self._prefix + key)

    def seek_to_last(self) -> None:
        """Go to the last key."""
        self._base.seek_for_prev(self._end)

    def valid(self) -> bool:
        """Return whether it is at a key; if not, ``status`` raises the error, if any."""
        if not self._base.valid():
            return False
        key: bytes = self._base.key()
        if not key.startswith(self._prefix):
            return False
        self._key = key[len(self._prefix) :]
        return True

    def key(self) -> bytes:
        """Return the key; REQUIRES: ``valid`` returned True since the last move."""
        return self._key

    def value(self) -> bytes:
        """Return the value; REQUIRES: as ``key``."""
        return self._base.value()

    def next(self) -> None:
        """Move to the next key."""
        self._base.next()

    def prev(self) -> None:
        """Move to the previous key."""
        self._base.prev()

    def status(self) -> None:
        """Raise the error of the last read, if any."""
        self._base.status()


@cython.locals(items=list, order=list, out=list, i=cython.Py_ssize_t)
def gather(items: list[Any], order: list[int]) -> list[Any]:
    """Return ``items[order[0]], items[order[1]], …``."""
    out = [None] * len(order)
    for i in range(len(order)):
        out[i] = items[order[i]]
    return out


@cython.locals(items=list, order=list, out=list, i=cython.Py_ssize_t)
def scatter(items: list[Any], order: list[int]) -> list[Any]:
    """Invert ``gather`` by a permutation."""
    out = [None] * len(order)
    for i in range(len(order)):
        out[order[i]] = items[i]
    return out


@cython.locals(values=list, positions=list, found=list, i=cython.Py_ssize_t, k=cython.Py_ssize_t)
def place(values: list[Any], positions: list[int], found: list[Any]) -> None:
    """Set ``values[positions[i]] = found[i]``; ValueError if they differ in number."""
    if len(positions) != len(found):
        message = "positions and values differ in length"
        raise ValueError(message)
    for i in range(len(positions)):
        k = positions[i]
        values[k] = found[i]


@cython.locals(
    positions=list,
    rows=list,
    weights=list,
    order=list,
    starts=list,
    ends=list,
    i=cython.Py_ssize_t,
    k=cython.Py_ssize_t,
    n=cython.Py_ssize_t,
    begin=cython.Py_ssize_t,
    end=cython.Py_ssize_t,
    out_positions=list,
    out_rows=list,
    out_weights=list,
)
def regroup(
    positions: list[int], rows: list[bytes], weights: list[int], order: list[int]
) -> tuple[list[int], list[bytes], list[int]]:
    """Reorder the result of a scan of keys in ``order`` as if they had not been reordered."""
    n = len(order)
    starts = [0] * n
    ends = [0] * n
    begin = 0
    for i in range(len(positions) + 1):
        if i == len(positions) or positions[i] != positions[begin]:
            if i > begin:
                k = order[positions[begin]]
                starts[k] = begin
                ends[k] = i
            begin = i
    out_positions = []
    out_rows = []
    out_weights = []
    for k in range(n):
        begin = starts[k]
        end = ends[k]
        for i in range(begin, end):
            out_positions.append(k)
            out_rows.append(rows[i])
            out_weights.append(weights[i])
    return out_positions, out_rows, out_weights


@cython.locals(values=list, out=list, i=cython.Py_ssize_t)
def weights_of(values: list[bytes | None]) -> list[int]:
    """Decode values as weights; 0 for None."""
    out = [0] * len(values)
    for i in range(len(values)):
        value = values[i]
        if value is not None:
            out[i] = _unpack(value)[0]
    return out


@cython.locals(prefixes=list, out=list, i=cython.Py_ssize_t, k=cython.Py_ssize_t, prefix=bytes)
def prefix_ends(prefixes: list[bytes]) -> list[bytes | None]:
    """Return the least string above all strings with each prefix; None: there is none."""
    out: list[bytes | None] = [None] * len(prefixes)
    for i in range(len(prefixes)):
        prefix = prefixes[i]
        k = len(prefix)
        while k > 0 and prefix[k - 1] == 255:
            k -= 1
        if k > 0:
            out[i] = prefix[: k - 1] + _GROUPS[prefix[k - 1] + 1]
    return out


@cython.locals(n=cython.Py_ssize_t, left=cython.longlong, keys=list, values=list)
def read_pairs(iterator: Any, count: int, bytes_max: int) -> tuple[list[bytes], list[bytes]]:
    """Read up to ``count`` pairs or ``bytes_max`` bytes from the iterator's position on.

    The caller checks ``status``.
    """
    keys = []
    values = []
    left = bytes_max
    n = count
    for _ in range(n):
        if left <= 0 or not iterator.valid():
            break
        key = iterator.key()
        value = iterator.value()
        keys.append(key)
        values.append(value)
        left -= len(key) + len(value)
        iterator.next()
    return keys, values


@cython.locals(
    prefix=bytes,
    keys=list,
    values=list,
    key=bytes,
    value=bytes,
    left=cython.longlong,
    n=cython.Py_ssize_t,
    skipped=cython.Py_ssize_t,
    end=cython.int,
)
def take_pairs(
    items: Any, prefix: bytes, last: int, count: int, bytes_max: int
) -> tuple[list[bytes], list[bytes]]:
    """Read the next pairs with the prefix, which is removed, and a key group up to ``last``.

    Up to ``count``, or about ``bytes_max`` bytes; none: the end or an error.
    """
    keys = []
    values = []
    left = bytes_max
    n = count
    skipped = len(prefix)
    end = last
    for found in items:
        key = found[0]
        if not key.startswith(prefix) or key[skipped] > end:
            break
        value = found[1]
        left -= len(key) + len(value)
        keys.append(key[skipped:])
        values.append(value)
        n -= 1
        if n <= 0 or left <= 0:
            break
    return keys, values


@cython.locals(
    keys=list, values=list, i=cython.Py_ssize_t, total=cython.longlong, key=bytes, value=object
)
@cython.returns(cython.longlong)
def pair_bytes(keys: list[bytes], values: list[bytes | None]) -> int:
    """Return the bytes of keys and values."""
    total = 0
    for i in range(len(keys)):
        key = keys[i]
        value = values[i]
        total += len(key)
        if value is not None:
            total += len(value)
    return total


@cython.locals(prefix=bytes, keys=list, values=list, i=cython.Py_ssize_t, key=bytes)
def write_batch(
    batch: Any, handle: Any, prefix: bytes, keys: list[bytes], values: list[bytes | None]
) -> None:
    """Add each pair to a write batch, with ``prefix`` before its key; None deletes."""
    put = batch.put
    delete = batch.delete
    for i in range(len(keys)):
        key = keys[i]
        if values[i] is None:
            delete(prefix + key, handle)
        else:
            put(prefix + key, values[i], handle)


@cython.locals(
    prefix=bytes,
    keys=list,
    values=list,
    valid=cython.const_uchar[::1],
    i=cython.Py_ssize_t,
    key=bytes,
    previous=bytes,
)
def write_file(
    file: Any,
    prefix: bytes,
    keys: list[bytes],
    values: list[bytes],
    valid: memoryview,
    previous: bytes,
) -> bytes:
    """Append pairs to a sorted file, with ``prefix`` before keys; those not ``valid`` are removals.

    Keys ascend.  A key equal to the previous one (``previous`` before the first) is the same change
    and is skipped.  Returns the last key, with the prefix.
    """
    for i in range(len(keys)):
        key = keys[i]
        key = prefix + key
        if key == previous:
            continue
        if valid[i]:
            file[key] = values[i]
        else:
            del file[key]
        previous = key
    return previous
