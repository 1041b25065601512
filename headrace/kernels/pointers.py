# cython: language_level=3
# mypy: disable-error-code="attr-defined,no-any-return,untyped-decorator,misc"
"""Addresses of the memory of numpy arrays.

A typed memory view takes a microsecond for each array, which is more than most loops over one row.
An address takes a tenth of that.  It is valid as long as the caller keeps the array, whose memory
numpy never moves.

Uncompiled kernels use ``buffers.view`` instead.  This module works compiled only; its functions
are in pointers.pxd: ``bytes_of``, ``ints_of``, ``longs_of`` and ``hashes_of`` for reading, and
``new_bytes`` and so on for writing.
"""

from __future__ import annotations

from typing import Any

import cython
from cython.cimports.cpython.buffer import (
    Py_buffer,
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)


@cython.cfunc
def _address_of(array: Any, width: cython.Py_ssize_t, writable: cython.bint) -> cython.p_void:
    """Return the address of a contiguous array whose elements have ``width`` bytes.

    Raises:
        BufferError: it is not contiguous, or read-only.
        ValueError: its elements have another width.
    """
    found = cython.declare(Py_buffer)
    flags: cython.int = PyBUF_WRITABLE if writable else PyBUF_SIMPLE
    PyObject_GetBuffer(array, cython.address(found), flags)
    memory: cython.p_void = found.buf
    size: cython.Py_ssize_t = found.itemsize
    PyBuffer_Release(cython.address(found))
    if size != width:
        raise ValueError(f"elements of {size} bytes where the kernel takes {width}")
    return memory
