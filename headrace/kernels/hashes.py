# cython: language_level=3, boundscheck=False, wraparound=False
"""The hash that divides keys: among the key groups of a state, and among parallel readers."""

from __future__ import annotations

import cython

_FIRST = cython.declare(cython.ulonglong, 0x11C9DC5)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _next(h: cython.ulonglong, c: cython.uchar) -> cython.ulonglong:
    return ((h ^ c) * 0x1000193) & 0x3FFFFFFF


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def fnv(
    data: cython.p_const_uchar, begin: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.ulonglong:
    """Return the FNV-1a hash of ``data[begin:end]`` over 30 bits.

    The low bits depend only on the low bits of the bytes, so callers fold the hash.  The hash is
    on disk: changing it needs a new state format.
    """
    i: cython.Py_ssize_t
    h: cython.ulonglong = _FIRST
    for i in range(begin, end):
        h = _next(h, data[i])
    return h


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def fnv_copy(
    data: cython.p_const_uchar,
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    out: cython.p_uchar,
    at: cython.Py_ssize_t,
) -> cython.ulonglong:
    """Copy ``data[begin:end]`` to ``out[at:]``; return its hash (``fnv``)."""
    i: cython.Py_ssize_t
    h: cython.ulonglong = _FIRST
    for i in range(begin, end):
        out[at + i - begin] = data[i]
        h = _next(h, data[i])
    return h


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def group_of(h: cython.ulonglong) -> cython.uchar:
    """Return the key group of a state's keys with the hash ``h``: the hash, folded."""
    return (h ^ (h >> 8) ^ (h >> 16) ^ (h >> 24)) & 0xFF
