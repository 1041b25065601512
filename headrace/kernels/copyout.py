# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# mypy: disable-error-code="name-defined"
# ruff: noqa: F821  Get and Free are types of copyout.pxd
"""Reads many messages of COPY data at once, since libpq returns one row per call.

The addresses of libpq's functions are passed, so that they are from the library that owns the
connection.  The interpreter lock is not held.

This module works compiled only.
"""

from __future__ import annotations

import cython
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.libc.stdlib import free as release
from cython.cimports.libc.stdlib import realloc
from cython.cimports.libc.string import memcpy


def read(
    get: cython.size_t,
    free: cython.size_t,
    connection: cython.size_t,
    size: cython.Py_ssize_t,
    rows: cython.Py_ssize_t,
) -> tuple[bytes, int]:
    """Read messages of COPY data until there are ``size`` bytes or ``rows`` messages.

    ``get``, ``free``: addresses of ``PQgetCopyData`` and ``PQfreemem``.  Returns the bytes, and
    the last result of ``PQgetCopyData``: above 0: there may be more, -1: end, -2: error.
    """
    get_message: Get = cython.cast(Get, get)
    free_message: Free = cython.cast(Free, free)
    out: cython.p_char = cython.NULL
    used: cython.Py_ssize_t = 0
    room: cython.Py_ssize_t = 0
    length: cython.int = 1
    full: cython.bint = False
    with cython.nogil:
        while used < size and rows > 0:
            message: cython.p_char = cython.NULL
            length = get_message(cython.cast(cython.p_void, connection), cython.address(message), 0)
            if length <= 0:
                break
            if used + length > room:
                room = max(used + length, 2 * room, 65536)
                grown: cython.p_char = cython.cast(cython.p_char, realloc(out, room))
                if grown == cython.NULL:
                    full = True
                    free_message(message)
                    break
                out = grown
            memcpy(out + used, message, length)
            free_message(message)
            used += length
            rows -= 1
    try:
        if full:
            raise MemoryError
        return PyBytes_FromStringAndSize(out, used), length
    finally:
        release(out)
