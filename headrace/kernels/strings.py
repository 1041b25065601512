# cython: language_level=3, boundscheck=False, wraparound=False
"""Functions over UTF-8 texts, by characters as Postgres counts them in a UTF8 database.

Positions and lengths are int64 columns with int4 values, so that sums of two never wrap.
Functions that cut texts first compute a span of bytes per row, then copy all spans at once.
"""

from __future__ import annotations

import cython
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.kernels import buffers

Tokens = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

ONE, MANY = 256, 257
"""Tokens of a pattern: ``_`` and ``%``; anything less is a byte."""


def concatenated(
    at: Int64s, texts: pa.StringArray, weights: Int64s, delimiter: bytes, count: int
) -> pa.StringArray:
    """Return the texts of each of ``count`` groups in one text, NULL for a group without any.

    Text ``i`` belongs to group ``at[i]``, as often as its weight says; ``at`` ascends, and no text
    is NULL.  OverflowError if the result has more bytes than an array holds.
    """
    starts, valid = np.zeros(count + 1, np.int64), np.zeros(count, np.uint8)
    offsets = buffers.view(buffers.offsets(texts))
    joint = buffers.view(np.frombuffer(delimiter, np.uint8))
    places, times = buffers.view(at), buffers.view(weights)
    size: int = _concatenated_sizes(
        places, offsets, times, len(delimiter), buffers.view(starts), buffers.view(valid)
    )
    if size > buffers.TEXT_BYTES_MAX:
        message = "concatenated texts have more than 2 GB"
        raise OverflowError(message)
    content = np.empty(size, np.uint8)
    _concatenate(
        places,
        buffers.view(buffers.data(texts)),
        offsets,
        times,
        joint,
        buffers.view(starts),
        buffers.view(content),
    )
    return buffers.make_text(starts.astype(np.int32), content, valid, pa.string())


@cython.cfunc
@cython.exceptval(check=False)
def _concatenated_sizes(
    at: cython.const_longlong[::1],
    offsets: cython.const_int[::1],
    weights: cython.const_longlong[::1],
    joint: cython.Py_ssize_t,
    starts: cython.longlong[::1],
    valid: cython.uchar[::1],
) -> cython.longlong:
    """Set the bounds of each group's text; return the last."""
    i: cython.Py_ssize_t
    for i in range(len(at)):
        group: cython.Py_ssize_t = at[i]
        length: cython.longlong = offsets[i + 1] - offsets[i]
        starts[group + 1] += (length + joint) * weights[i]
        valid[group] = 1
    for i in range(len(valid)):
        starts[i + 1] += starts[i]
        if valid[i]:
            starts[i + 1] -= joint
    return starts[len(valid)]


@cython.cfunc
@cython.exceptval(check=False)
def _concatenate(
    at: cython.const_longlong[::1],
    data: cython.const_uchar[::1],
    offsets: cython.const_int[::1],
    weights: cython.const_longlong[::1],
    joint: cython.const_uchar[::1],
    starts: cython.const_longlong[::1],
    out: cython.uchar[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    k: cython.longlong
    p: cython.Py_ssize_t = 0
    for i in range(len(at)):
        first: cython.Py_ssize_t = starts[at[i]]
        for k in range(weights[i]):
            if p != first or (i > 0 and at[i - 1] == at[i]) or k > 0:
                for j in range(len(joint)):
                    out[p] = joint[j]
                    p += 1
            for j in range(offsets[i], offsets[i + 1]):
                out[p] = data[j]
                p += 1


def compile_like(pattern: str) -> Tokens | None:
    """Return the tokens of a LIKE pattern; None if it ends in its escape character."""
    tokens: list[int] = []
    escaped = False
    for byte in pattern.encode():
        if escaped or byte not in b"\\%_":
            tokens.append(byte)
            escaped = False
        elif byte == ord("\\"):
            escaped = True
        elif byte == ord("_"):
            tokens.append(ONE)
        elif not tokens or tokens[len(tokens) - 1] != MANY:
            tokens.append(MANY)
    return None if escaped else np.array(tokens, np.int32)


def like(column: pa.StringArray, tokens: Tokens) -> pa.Array:
    """Return ``column LIKE pattern`` for a pattern of ``compile_like``."""
    out = np.zeros(len(column), np.uint8)
    _like(
        buffers.view(buffers.data(column)),
        buffers.view(buffers.offsets(column)),
        buffers.view(tokens),
        buffers.view(out),
    )
    return buffers.make_fixed(out, buffers.validity(column), pa.bool_())


@cython.cfunc
@cython.exceptval(check=False)
def _like(
    data: cython.const_uchar[::1],
    offsets: cython.const_int[::1],
    tokens: cython.const_int[::1],
    out: cython.uchar[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(out)
    count: cython.Py_ssize_t = len(tokens)
    for i in range(n):
        at: cython.Py_ssize_t = offsets[i]
        end: cython.Py_ssize_t = offsets[i + 1]
        p: cython.Py_ssize_t = 0
        mark: cython.Py_ssize_t = -1  # the token after the last %, which has matched up to ``hold``
        hold: cython.Py_ssize_t = 0
        while True:
            if p < count and tokens[p] == 257:
                p += 1
                if p == count:
                    out[i] = 1
                    break
                mark = p
                hold = at
            elif at == end:
                out[i] = p == count
                break
            elif p < count and tokens[p] == data[at]:
                at += 1
                p += 1
            elif p < count and tokens[p] == 256:
                at += 1
                while at < end and data[at] & 192 == 128:
                    at += 1
                p += 1
            elif mark >= 0:
                hold += 1
                if tokens[mark] < 256:
                    # The rest begins with this byte, which is never inside another character.
                    while hold < end and data[hold] != tokens[mark]:
                        hold += 1
                while hold < end and data[hold] & 192 == 128:
                    hold += 1
                at = hold
                p = mark
            else:
                break


# --- parts of a text


def substring(column: pa.StringArray, start: pa.Array, size: pa.Array) -> pa.Array:
    """Return ``substring(column, start, size)``; a NULL size in a valid row means to the end.

    REQUIRES: no size is negative; ``column`` is NULL where ``start`` is, and where a NULL size
    makes the result NULL.
    """
    n = len(column)
    begins, ends = np.zeros(n, np.int32), np.zeros(n, np.int32)
    _substring(
        buffers.view(buffers.data(column)),
        buffers.view(buffers.offsets(column)),
        buffers.view(buffers.values(start)),
        buffers.view(buffers.values(size)),
        buffers.view(buffers.validity(size)),
        buffers.view(begins),
        buffers.view(ends),
    )
    return _copied(column, begins, ends)


@cython.cfunc
@cython.exceptval(check=False)
def _substring(
    data: cython.const_uchar[::1],
    offsets: cython.const_int[::1],
    start: cython.const_longlong[::1],
    size: cython.const_longlong[::1],
    limited: cython.const_uchar[::1],
    begins: cython.int[::1],
    ends: cython.int[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(begins)
    for i in range(n):
        at: cython.Py_ssize_t = offsets[i]
        end: cython.Py_ssize_t = offsets[i + 1]
        skip: cython.longlong = start[i] - 1 if start[i] > 1 else 0
        while skip > 0 and at < end:
            at += 1
            while at < end and data[at] & 192 == 128:
                at += 1
            skip -= 1
        begins[i] = at
        if limited[i]:
            last: cython.longlong = start[i] + size[i] - (start[i] if start[i] > 1 else 1)
            while last > 0 and at < end:
                at += 1
                while at < end and data[at] & 192 == 128:
                    at += 1
                last -= 1
            ends[i] = at
        else:
            ends[i] = end


def edge(column: pa.StringArray, size: pa.Array, *, right: bool) -> pa.Array:
    """Return ``left(column, size)`` or ``right(column, size)``; negative: all but ``-size``."""
    n = len(column)
    begins, ends = np.zeros(n, np.int32), np.zeros(n, np.int32)
    _edge(
        buffers.view(buffers.data(column)),
        buffers.view(buffers.offsets(column)),
        buffers.view(buffers.values(size)),
        right,
        buffers.view(begins),
        buffers.view(ends),
    )
    return _copied(column, begins, ends)


@cython.cfunc
@cython.exceptval(check=False)
def _edge(
    data: cython.const_uchar[::1],
    offsets: cython.const_int[::1],
    size: cython.const_longlong[::1],
    right: cython.bint,
    begins: cython.int[::1],
    ends: cython.int[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(begins)
    for i in range(n):
        begins[i] = offsets[i]
        ends[i] = offsets[i + 1]
        wanted: cython.longlong = size[i]
        if (wanted >= 0) == right:
            # Count from the end: right(s, 2) begins there, left(s, -2) ends there.
            if wanted < 0:
                wanted = -wanted
            at: cython.Py_ssize_t = offsets[i + 1]
            end: cython.Py_ssize_t = offsets[i]
            while wanted > 0 and at > end:
                at -= 1
                while at > end and data[at] & 192 == 128:
                    at -= 1
                wanted -= 1
        else:
            if wanted < 0:
                # Postgres negates -2147483648 to itself, and skips nothing.
                wanted = -wanted if wanted > -2147483648 else 0
            at = offsets[i]
            end = offsets[i + 1]
            while wanted > 0 and at < end:
                at += 1
                while at < end and data[at] & 192 == 128:
                    at += 1
                wanted -= 1
        if right:
            begins[i] = at
        else:
            ends[i] = at


def split_part(column: pa.StringArray, separator: bytes, fields: pa.Array) -> pa.Array:
    """Return ``split_part(column, separator, fields)``; negative fields count from the end.

    REQUIRES: ``separator`` is not empty, no field is 0.
    """
    n = len(column)
    begins, ends = np.zeros(n, np.int32), np.zeros(n, np.int32)
    _split_part(
        buffers.view(buffers.data(column)),
        buffers.view(buffers.offsets(column)),
        buffers.view(np.frombuffer(separator, np.uint8)),
        buffers.view(buffers.values(fields)),
        buffers.view(begins),
        buffers.view(ends),
    )
    return _copied(column, begins, ends)


@cython.cfunc
@cython.exceptval(check=False)
def _find(
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    needle: cython.const_uchar[::1],
    first: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Find ``needle[first:first + size]`` in ``data[at:end]``; return its position or -1."""
    while at + size <= end:
        k: cython.Py_ssize_t = 0
        while k < size and data[at + k] == needle[first + k]:
            k += 1
        if k == size:
            return at
        at += 1
    return -1


@cython.cfunc
@cython.exceptval(check=False)
def _split_part(
    data: cython.const_uchar[::1],
    offsets: cython.const_int[::1],
    needle: cython.const_uchar[::1],
    fields: cython.const_longlong[::1],
    begins: cython.int[::1],
    ends: cython.int[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(begins)
    size: cython.Py_ssize_t = len(needle)
    for i in range(n):
        at: cython.Py_ssize_t = offsets[i]
        end: cython.Py_ssize_t = offsets[i + 1]
        wanted: cython.longlong = fields[i]
        if wanted < 0:
            count: cython.longlong = 1
            found: cython.Py_ssize_t = _find(data, at, end, needle, 0, size)
            while found >= 0:
                count += 1
                found = _find(data, found + size, end, needle, 0, size)
            wanted += count + 1
        begins[i] = ends[i] = at
        while wanted > 0:
            found = _find(data, at, end, needle, 0, size)
            wanted -= 1
            if wanted == 0:
                begins[i] = at
                ends[i] = found if found >= 0 else end
            elif found < 0:
                break
            else:
                at = found + size


def _copied(
    column: pa.StringArray, begins: npt.NDArray[np.int32], ends: npt.NDArray[np.int32]
) -> pa.Array:
    """Return the bytes ``begins[i]`` … ``ends[i]`` of each row, as texts."""
    valid = buffers.validity(column)
    starts = np.zeros(len(begins) + 1, np.int32)
    np.cumsum(np.where(valid == 1, ends - begins, 0), out=starts[1:])
    content = np.empty(starts[len(begins)], np.uint8)
    _copy(
        buffers.view(buffers.data(column)),
        buffers.view(begins),
        buffers.view(starts),
        buffers.view(content),
    )
    return buffers.make_text(starts, content, valid, pa.string())


@cython.cfunc
@cython.exceptval(check=False)
def _copy(
    data: cython.const_uchar[::1],
    begins: cython.const_int[::1],
    starts: cython.const_int[::1],
    content: cython.uchar[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(begins)
    for i in range(n):
        shift: cython.Py_ssize_t = begins[i] - starts[i]
        for k in range(starts[i], starts[i + 1]):
            content[k] = data[k + shift]


# --- functions with numeric results


def position(column: pa.StringArray, needle: pa.StringArray) -> pa.Array:
    """Return ``strpos(column, needle)``: the number of its first character, 0 if absent."""
    out = np.zeros(len(column), np.int32)
    _position(
        buffers.view(buffers.data(column)),
        buffers.view(buffers.offsets(column)),
        buffers.view(buffers.data(needle)),
        buffers.view(buffers.offsets(needle)),
        buffers.view(out),
    )
    valid = buffers.validity(column) & buffers.validity(needle)
    return buffers.make_fixed(out, valid, pa.int32())


@cython.cfunc
@cython.exceptval(check=False)
def _position(
    data: cython.const_uchar[::1],
    offsets: cython.const_int[::1],
    needle: cython.const_uchar[::1],
    places: cython.const_int[::1],
    out: cython.int[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(out)
    for i in range(n):
        found: cython.Py_ssize_t = _find(
            data, offsets[i], offsets[i + 1], needle, places[i], places[i + 1] - places[i]
        )
        if found >= 0:
            count: cython.int = 1
            for k in range(offsets[i], found):
                if data[k] & 192 != 128:
                    count += 1
            out[i] = count


def first_point(column: pa.StringArray) -> pa.Array:
    """Return ``ascii(column)``: the code point of the first character, 0 for an empty text."""
    out = np.zeros(len(column), np.int32)
    _first_point(
        buffers.view(buffers.data(column)), buffers.view(buffers.offsets(column)), buffers.view(out)
    )
    return buffers.make_fixed(out, buffers.validity(column), pa.int32())


@cython.cfunc
@cython.exceptval(check=False)
def _first_point(
    data: cython.const_uchar[::1], offsets: cython.const_int[::1], out: cython.int[::1]
) -> cython.void:
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(out)
    for i in range(n):
        at: cython.Py_ssize_t = offsets[i]
        end: cython.Py_ssize_t = offsets[i + 1]
        if at == end:
            continue
        c: cython.int = data[at]
        if c >= 240:
            c &= 7
        elif c >= 224:
            c &= 15
        elif c >= 192:
            c &= 31
        at += 1
        while at < end and data[at] & 192 == 128:
            c = c << 6 | (data[at] & 63)
            at += 1
        out[i] = c
