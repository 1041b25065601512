# cython: language_level=3
"""Keys of arrays and rows with parts whose text is not canonical, as in interval[] and bpchar[].

Equal values of such a part may have different texts.  A *form* describes the text of a value:

=============  ====================================================================
``1186``       a value of the type with that OID; its key is that of ``kernels.keys``
``[form]``     an array, of any dimensions and bounds
``(form,…)``   a row with these columns
=============  ====================================================================

The key of an array or row is its structure with the keys of its parts in it.  The parts of a whole
column are encoded together, one call per type.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import cython
import numpy as np
import pyarrow as pa

from headrace.kernels import buffers, text
from headrace.kernels.buffers import Int64s

Form = str
Shape = Any
"""A parsed form: an OID, a list with the shape of the elements, a tuple of shapes."""
Encode = Callable[..., list[Any]]

FORMS: Final[dict[int, Form]] = {
    1014: "[1042]",  # bpchar[]
    1187: "[1186]",  # interval[]
    3807: "[3802]",  # jsonb[]
    6151: "[4532]",  # nummultirange[]
}
"""Forms of built-in types, by OID."""
_NULL: Final = b"\x01"
_MALFORMED: Final = "malformed text of an array or row"


def contents(column: pa.Array, form: Form, encode: Encode) -> tuple[buffers.Bytes, Int64s]:
    """Return the key bytes of a column of a form, without markers: contents and n + 1 bounds.

    ``encode`` is ``kernels.keys.encode_keys``.  Raises ValueError for a text of another form.
    """
    shape = _shape(form)
    pieces: list[bytes | int | None] = []
    parts: dict[int, list[bytes | None]] = {}
    try:
        for value in column.cast(pa.binary()).to_pylist():
            if value is not None:
                _write(value, shape, pieces, parts)
            pieces.append(None)
    except IndexError:
        raise ValueError(_MALFORMED) from None
    found = {oid: iter(_encoded(values, oid, encode)) for oid, values in parts.items()}
    out = bytearray()
    starts = np.zeros(len(column) + 1, np.int64)
    row = 0
    for piece in pieces:
        if piece is None:
            row += 1
            starts[row] = len(out)
        elif isinstance(piece, int):
            out += next(found[piece])
        else:
            out += piece
    return np.frombuffer(bytes(out), np.uint8), starts


def _encoded(values: Sequence[bytes | None], oid: int, encode: Encode) -> list[Any]:
    column = pa.array(values, pa.binary()).cast(pa.string())
    return encode([text.parse(column, oid)], [oid], nulls=True)


@functools.lru_cache(maxsize=256)
def _shape(form: Form) -> Shape:
    shape, end = _read_form(form, 0)
    assert end == len(form), "a form is one value"
    return shape


def _read_form(form: Form, at: int) -> tuple[Shape, int]:
    if form[at] == "[":
        element, end = _read_form(form, at + 1)
        return [element], end + 1
    if form[at] == "(":
        columns = []
        while form[at] != ")":
            column, at = _read_form(form, at + 1)
            columns.append(column)
        return tuple(columns), at + 1
    end = at
    while end < len(form) and form[end].isdigit():
        end += 1
    return int(form[at:end]), end


def _write(value: bytes | None, shape: Shape, pieces: list[Any], parts: dict[int, Any]) -> None:
    """Append the pieces of a value's key: bytes, or the OID of a part to be encoded."""
    if isinstance(shape, int):
        parts.setdefault(shape, []).append(value)
        pieces.append(shape)
    elif value is None:
        pieces.append(_NULL)
    elif isinstance(shape, list):
        _write_array(value, shape[0], pieces, parts)
    else:
        _write_row(value, shape, pieces, parts)


def _write_array(value: bytes, element: Shape, pieces: list[Any], parts: dict[int, Any]) -> None:
    end: cython.Py_ssize_t = len(value)
    p: cython.Py_ssize_t = 0
    if value.startswith(b"["):  # [0:1]={…}
        p = value.index(b"=") + 1
        pieces.append(value[:p])
    while p < end:
        c: cython.int = value[p]
        if c == 123 or c == 125:  # { }
            pieces.append(b"{" if c == 123 else b"}")
            p += 1
        elif c == 44:
            p += 1
        elif c == 34:
            start: cython.Py_ssize_t = p + 1
            p = start
            while value[p] != 34:
                p += 2 if value[p] == 92 else 1
            _write(_unescaped(value[start:p]), element, pieces, parts)
            p += 1
        else:
            start = p
            while value[p] != 44 and value[p] != 125:
                p += 1
            bare = value[start:p]
            _write(None if bare == b"NULL" else bare, element, pieces, parts)


def _write_row(
    value: bytes, columns: tuple[Shape, ...], pieces: list[Any], parts: dict[int, Any]
) -> None:
    end: cython.Py_ssize_t = len(value)
    if end < 2 or value[0] != 40 or value[end - 1] != 41:
        raise ValueError(_MALFORMED)
    pieces.append(b"(")
    p: cython.Py_ssize_t = 0
    for column in columns:
        if value[p] != (44 if p else 40):
            raise ValueError(_MALFORMED)
        p += 1
        start: cython.Py_ssize_t = p
        quoted: cython.bint = False
        c: cython.int = value[p]
        while quoted or (c != 44 and c != 41):
            if c == 92:
                p += 1
            elif c == 34:
                quoted = not quoted
            p += 1
            c = value[p]
        field = value[start:p]
        _write(_bare(field) if field else None, column, pieces, parts)
    if p != end - 1:
        raise ValueError(_MALFORMED)


def _unescaped(quoted: bytes) -> bytes:
    """Return an array element without its backslashes."""
    if b"\\" not in quoted:
        return quoted
    out = bytearray()
    p: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(quoted)
    while p < end:
        if quoted[p] == 92:
            p += 1
        out.append(quoted[p])
        p += 1
    return bytes(out)


def _bare(field: bytes) -> bytes:
    """Return a row's column without quotes, in which Postgres doubles quotes and backslashes."""
    if not field.startswith(b'"'):
        return field
    return field[1:-1].replace(b'""', b'"').replace(b"\\\\", b"\\")
