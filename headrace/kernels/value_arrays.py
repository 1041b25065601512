# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# mypy: disable-error-code="attr-defined,no-any-return,untyped-decorator,misc,index"
"""Arrow arrays of a few Python values, for a fraction of the time of ``pa.array``.

This module works compiled only; ``rows.array_of`` uses ``pa.array`` uncompiled.
"""

from __future__ import annotations

from typing import Any

import cython
import pyarrow as pa
from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize
from cython.cimports.headrace.kernels.arrow_memory import (
    FIXED,
    TEXT,
    ArrowArray,
    Building,
    allocate,
)
from cython.cimports.libc.string import memcpy

_INT8 = pa.int64().id
_FLOAT8 = pa.float64().id
_TEXT = pa.string().id
_FEW = 64
_TEXT_MAX = cython.declare(cython.longlong, 2147483647)


def make(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return an array of values, of which some may be None.

    Raises:
        OverflowError: an integer is beyond 64 bits.
        ValueError: the texts have more bytes than offsets can address.
    """
    i: cython.Py_ssize_t
    count: cython.Py_ssize_t = len(values)
    number: int = kind.id
    if count > _FEW or number not in (_INT8, _FLOAT8, _TEXT):
        return pa.array(values, kind)
    building = cython.declare(Building)
    array = cython.declare(ArrowArray)
    whole: cython.longlong
    real: cython.double
    size = cython.declare(cython.Py_ssize_t)
    content: cython.p_const_char
    building.kind, building.width, building.nulls, building.size = FIXED, 8, 0, 0
    if number == _TEXT:
        building.kind, building.width = TEXT, 0
    for i in range(count):
        if values[i] is None:
            building.nulls += 1
        elif number == _TEXT:
            PyUnicode_AsUTF8AndSize(values[i], cython.address(size))
            building.size += size
    if building.size > _TEXT_MAX:
        raise ValueError("too many bytes for one text column")
    allocate(cython.address(building), cython.address(array), count)
    try:
        if number == _TEXT:
            building.offsets[0] = 0
        for i in range(count):
            value = values[i]
            if value is None:
                building.valid[i >> 3] &= ~(1 << (i & 7))
            if number == _TEXT:
                building.offsets[i + 1] = building.offsets[i]
                if value is not None:
                    content = PyUnicode_AsUTF8AndSize(value, cython.address(size))
                    memcpy(building.values + building.offsets[i], content, size)
                    building.offsets[i + 1] += cython.cast(cython.int, size)
            elif number == _INT8:
                whole = 0 if value is None else value
                memcpy(building.values + 8 * i, cython.address(whole), 8)
            else:
                real = 0 if value is None else value
                memcpy(building.values + 8 * i, cython.address(real), 8)
        return pa.Array._import_from_c(  # noqa: SLF001
            cython.cast(cython.size_t, cython.address(array)), kind
        )
    finally:
        if array.release != cython.NULL:
            array.release(cython.address(array))
