# cython: language_level=3, boundscheck=False, wraparound=False
# mypy: disable-error-code="no-any-return"
# C types are annotations, which mypy sees as Any.
"""Physical keys of states: one byte for the key group, then the key (then the row).

The group is a hash of the key, so groups are about equally large; all rows of a key are in one
group.
"""

from __future__ import annotations

from typing import Any

import cython

if cython.compiled:
    from cython.cimports.headrace.kernels.hashes import fnv, fnv_copy, group_of
else:
    from headrace.kernels.hashes import fnv, fnv_copy, group_of

_GROUPS = [bytes((i,)) for i in range(256)]


def physical(keys: list[bytes]) -> list[bytes]:
    """Return the physical form of each key; for an index, it is the prefix of the key's rows."""
    i: cython.Py_ssize_t
    out: list[bytes] = [b""] * len(keys)
    groups: list[bytes] = _GROUPS
    for i in range(len(keys)):
        key: bytes = keys[i]
        first: bytes = groups[group_of(fnv(key, 0, len(key)))]
        out[i] = first + key
    return out


def put_physical(
    keys: cython.const_uchar[::1],
    limits: cython.const_longlong[::1],
    rows: cython.const_uchar[::1],
    row_limits: cython.const_longlong[::1],
    out: cython.uchar[::1],
) -> None:
    """Write the physical forms of packed (key, row) consecutively into ``out``.

    If ``row_limits`` is empty, there are no rows.  REQUIRES: ``out`` has a byte more for each key.
    """
    i: cython.Py_ssize_t
    q: cython.Py_ssize_t
    data: cython.p_const_uchar = cython.address(keys[0]) if cython.compiled else keys
    target: cython.p_uchar = cython.address(out[0]) if cython.compiled else out
    p: cython.Py_ssize_t = 0
    for i in range(len(limits) - 1):
        out[p] = group_of(fnv_copy(data, limits[i], limits[i + 1], target, p + 1))
        p += 1 + limits[i + 1] - limits[i]
        if len(row_limits):
            for q in range(row_limits[i], row_limits[i + 1]):
                out[p] = rows[q]
                p += 1


def logical(found: list[bytes]) -> list[bytes]:
    """Return keys without their group, the inverse of ``physical``."""
    i: cython.Py_ssize_t
    out: list[bytes] = [b""] * len(found)
    for i in range(len(found)):
        key: bytes = found[i]
        out[i] = key[1:]
    return out


def prefixed(prefix: bytes, keys: list[bytes]) -> list[bytes]:
    """Return the keys with ``prefix`` before each."""
    i: cython.Py_ssize_t
    out: list[bytes] = [b""] * len(keys)
    for i in range(len(keys)):
        key: bytes = keys[i]
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


def gather(items: list[Any], order: list[int]) -> list[Any]:
    """Return ``items[order[0]], items[order[1]], …``."""
    i: cython.Py_ssize_t
    out = [None] * len(order)
    for i in range(len(order)):
        out[i] = items[order[i]]
    return out


def read_pairs(iterator: Any, count: int, bytes_max: int) -> tuple[list[bytes], list[bytes]]:
    """Read up to ``count`` pairs or ``bytes_max`` bytes from the iterator's position on.

    The caller checks ``status``.
    """
    keys = []
    values = []
    left: cython.longlong = bytes_max
    n: cython.Py_ssize_t = count
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


def take_pairs(
    items: Any, prefix: bytes, last: int, count: int, bytes_max: int
) -> tuple[list[bytes], list[bytes]]:
    """Read the next pairs with the prefix, which is removed, and a key group up to ``last``.

    Up to ``count``, or about ``bytes_max`` bytes; none: the end or an error.
    """
    keys = []
    values = []
    left: cython.longlong = bytes_max
    n: cython.Py_ssize_t = count
    skipped: cython.Py_ssize_t = len(prefix)
    end: cython.int = last
    for found in items:
        key: bytes = found[0]
        if not key.startswith(prefix) or key[skipped] > end:
            break
        value: bytes = found[1]
        left -= len(key) + len(value)
        keys.append(key[skipped:])
        values.append(value)
        n -= 1
        if n <= 0 or left <= 0:
            break
    return keys, values


def pair_bytes(keys: list[bytes], values: list[Any]) -> int:
    """Return the bytes of keys and values."""
    i: cython.Py_ssize_t
    total: cython.longlong = 0
    for i in range(len(keys)):
        key: bytes = keys[i]
        value = values[i]
        total += len(key)
        if value is not None:
            total += len(value)
    return total


def write_batch(
    batch: Any, handle: Any, prefix: bytes, keys: list[bytes], values: list[bytes | None]
) -> None:
    """Add each pair to a write batch, with ``prefix`` before its key; None deletes."""
    i: cython.Py_ssize_t
    put = batch.put
    delete = batch.delete
    for i in range(len(keys)):
        key: bytes = keys[i]
        if values[i] is None:
            delete(prefix + key, handle)
        else:
            put(prefix + key, values[i], handle)


def write_file(
    file: Any,
    prefix: bytes,
    keys: cython.const_uchar[::1],
    key_bounds: cython.const_longlong[::1],
    values: cython.const_uchar[::1],
    bounds: cython.const_longlong[::1],
    valid: cython.const_uchar[::1],
    order: cython.const_longlong[::1],
    previous: bytes,
) -> bytes:
    """Append packed pairs to a sorted file in ``order``, with ``prefix`` before keys.

    Those not ``valid`` are removals.  The keys ascend in that order.  A key equal to the previous
    one (``previous`` before the first) is the same change and is skipped.  Returns the last key,
    with the prefix.
    """
    i: cython.Py_ssize_t
    for i in range(len(order)):
        k: cython.Py_ssize_t = order[i]
        key: bytes = prefix + _string(keys, key_bounds[k], key_bounds[k + 1])
        if key == previous:
            continue
        if valid[k]:
            file[key] = _string(values, bounds[k], bounds[k + 1])
        else:
            del file[key]
        previous = key
    return previous


@cython.cfunc
def _string(
    data: cython.const_uchar[::1], begin: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> bytes:
    if not cython.compiled:
        return bytes(data[begin:end])
    if begin == end:
        return b""
    source: cython.p_const_char = cython.cast(cython.p_const_char, cython.address(data[0]))
    return source[begin:end]
