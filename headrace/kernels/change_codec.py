# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# mypy: disable-error-code="attr-defined,no-any-return,untyped-decorator,misc,index"
"""The compiled loops of ``pgoutput.Changes``: values of row messages to a change batch.

    row messages ── Cells: place and size of each text ──► columns ──► record batch

Integers, booleans, dates and times are read where the message has them; other values are copied
once, as text.  Arrow takes the whole batch in one call.  The interpreter lock is not held for large
batches.

This module works compiled only; ``pgoutput`` has the readable reference.
"""

from __future__ import annotations

import contextlib
import functools

import cython
import pyarrow as pa
from cython.cimports.headrace.kernels.arrow_memory import (
    BOOL,
    FIXED,
    TEXT,
    ArrowArray,
    Building,
    allocate,
    allocate_batch,
)
from cython.cimports.headrace.kernels.change_codec import Texts, Wanted
from cython.cimports.headrace.kernels.datetimes import read
from cython.cimports.headrace.kernels.pointers import bytes_of, ints_of, longs_of
from cython.cimports.headrace.kernels.text import (
    BOOLEAN,
    CALENDAR,
    FLOAT,
    INTEGER,
    STRING,
    read_int,
)
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memcpy, memset

from headrace.kernels import arrow_memory, datetimes, text
from headrace.kernels.cells import Cells
from headrace.types import arrow_type

_LARGE = cython.declare(cython.Py_ssize_t, 512)
_HEAD = [pa.field("__op", pa.int8()), pa.field("__lsn", pa.int64()), pa.field("__old", pa.int8())]
_TYPED, _UNSENT = 1, 2
_SCHEMAS_MAX = 64
"""Schemas kept for the same columns; they differ in malformed and unsent values."""


@cython.cclass
class Columns:
    """Columns of a change batch: how their values are read."""

    def __init__(self, columns: tuple[tuple[str, int, int], ...]) -> None:
        """``columns``: as in ``pgoutput.Changes.select``."""
        i: cython.Py_ssize_t
        self.columns = columns
        self.schemas: dict[bytes, pa.Schema] = {}
        self.floats = []
        self.count = len(columns)
        self.wanted = cython.cast(
            cython.pointer[Wanted], calloc(self.count + 1, cython.sizeof(Wanted))
        )
        if self.wanted == cython.NULL:
            raise MemoryError
        for i in range(self.count):
            _name, place, oid = columns[i]
            wanted: cython.pointer[Wanted] = self.wanted + i
            wanted.place = place
            wanted.form = text.form_of(oid)
            if wanted.form == FLOAT:
                self.floats.append((i, oid))
                wanted.form = STRING
            elif wanted.form == INTEGER:
                wanted.low, wanted.high = text.RANGES[oid]
            elif wanted.form == CALENDAR:
                wanted.calendar = datetimes.KINDS[oid]
            if wanted.form != STRING:
                wanted.kind, wanted.width = arrow_memory.kind_of(arrow_type(oid))

    def __dealloc__(self) -> None:
        free(self.wanted)


@functools.lru_cache(maxsize=4096)
def _columns(columns: tuple[tuple[str, int, int], ...]) -> Columns:
    return Columns(columns)


@cython.cfunc
def _schema(made: Columns, state: bytes) -> pa.Schema:
    """Return the schema of a batch; ``state`` has flags of each column."""
    found = made.schemas.get(state)
    if found is None:
        fields = list(_HEAD)
        for (name, _, oid), flags in zip(made.columns, state, strict=True):
            kind = arrow_type(oid) if flags & _TYPED else pa.string()
            fields += [pa.field(f"n:{name}", kind), pa.field(f"o:{name}", kind)]
            if flags & _UNSENT:
                fields.append(pa.field(f"u:{name}", pa.bool_()))
        if len(made.schemas) >= _SCHEMAS_MAX:
            made.schemas.clear()
        found = made.schemas[state] = pa.schema(fields)
    return found


def select(
    found: Cells, width: cython.Py_ssize_t, columns: tuple[tuple[str, int, int], ...]
) -> pa.RecordBatch:
    """See ``pgoutput.Changes.select``; ``width``: the number of columns of the relation."""
    made: Columns = _columns(columns)
    batch = cython.declare(ArrowArray)
    texts = cython.declare(Texts)
    c: cython.Py_ssize_t
    wanted: cython.pointer[Wanted]
    place: cython.Py_ssize_t
    at: cython.Py_ssize_t = 3
    there: cython.p_const_uchar = bytes_of(found.there)
    texts.data = bytes_of(found.source)
    texts.places = longs_of(found.places)
    texts.sizes = ints_of(found.sizes)
    texts.rows = len(found.lsns)
    for c in range(made.count):
        at += 2 + ((there[made.wanted[c].place] >> 1) & 1)
    state = bytearray(made.count)
    allocate_batch(cython.address(batch), texts.rows, at)
    try:
        _copied(batch.children[0], bytes_of(found.ops), texts.rows, 1)
        _copied(
            batch.children[1],
            cython.cast(cython.p_const_uchar, longs_of(found.lsns)),
            texts.rows,
            8,
        )
        _copied(batch.children[2], bytes_of(found.olds), texts.rows, 1)
        at = 3
        for c in range(made.count):
            wanted = made.wanted + c
            place = wanted.place
            if _both(batch.children + at, texts, wanted, width, there, wanted.form):
                state[c] = _TYPED if wanted.form != STRING else 0
            else:
                _both(batch.children + at, texts, wanted, width, there, STRING)
            at += 2
            if there[place] & 2:
                state[c] |= _UNSENT
                _unsent(batch.children[at], texts, place)
                at += 1
        out = pa.RecordBatch._import_from_c(  # noqa: SLF001
            cython.cast(cython.size_t, cython.address(batch)), _schema(made, bytes(state))
        )
    finally:
        if batch.release != cython.NULL:
            batch.release(cython.address(batch))
    return _with_floats(out, made) if made.floats else out


@cython.cfunc
def _with_floats(batch: pa.RecordBatch, made: Columns) -> pa.RecordBatch:
    names, arrays = batch.schema.names, batch.columns
    for c, oid in made.floats:
        at = names.index(f"n:{made.columns[c][0]}")
        with contextlib.suppress(ValueError):
            parsed = [text.parse(arrays[at], oid), text.parse(arrays[at + 1], oid)]
            arrays[at : at + 2] = parsed
    return pa.RecordBatch.from_arrays(arrays, names)


@cython.cfunc
@cython.exceptval(-1, check=False)
def _copied(
    array: cython.pointer[ArrowArray],
    values: cython.p_const_uchar,
    rows: cython.Py_ssize_t,
    width: cython.int,
) -> cython.int:
    building = cython.declare(Building)
    building.kind, building.width, building.nulls = FIXED, width, 0
    allocate(cython.address(building), array, rows)
    memcpy(building.values, values, rows * width)
    return 0


@cython.cfunc
@cython.exceptval(-1, check=False)
def _unsent(
    array: cython.pointer[ArrowArray], texts: Texts, place: cython.Py_ssize_t
) -> cython.int:
    """Fill ``array`` with a bool per row: the value is TOASTed, unchanged and so not sent."""
    i: cython.Py_ssize_t
    building = cython.declare(Building)
    building.kind, building.width, building.nulls = BOOL, 1, 0
    allocate(cython.address(building), array, texts.rows)
    sizes: cython.pointer[cython.const_int] = texts.sizes + place * texts.rows
    for i in range(texts.rows):
        if sizes[i] == -2:
            building.values[i >> 3] |= 1 << (i & 7)
    return 0


@cython.cfunc
@cython.exceptval(-1, check=False)
def _both(
    arrays: cython.pointer[cython.pointer[ArrowArray]],
    texts: Texts,
    wanted: cython.pointer[Wanted],
    width: cython.Py_ssize_t,
    there: cython.p_const_uchar,
    form: cython.int,
) -> cython.int:
    """Make the new and the old values of a column; make none and return 0 if one is malformed."""
    old: cython.Py_ssize_t
    made: cython.Py_ssize_t
    place: cython.Py_ssize_t
    for old in range(2):
        place = wanted.place + old * width
        if not _column(arrays[old], texts, wanted, place, there[place] & 1, form):
            for made in range(old + 1):
                arrays[made].release(arrays[made])
            return 0
    return 1


@cython.cfunc
@cython.exceptval(-1, check=False)
def _column(
    array: cython.pointer[ArrowArray],
    texts: Texts,
    wanted: cython.pointer[Wanted],
    place: cython.Py_ssize_t,
    some: cython.int,
    form: cython.int,
) -> cython.int:
    """Make the column at ``place``; return 0 if a text is malformed."""
    building = cython.declare(Building)
    good: cython.int = 1
    building.kind, building.width = TEXT, 0
    building.nulls, building.size = texts.rows, 0
    if form != STRING:
        building.kind, building.width = wanted.kind, wanted.width
    mine = cython.declare(Texts)
    mine.data, mine.rows = texts.data, texts.rows
    if some:  # else there may be no places, of old values
        mine.places = texts.places + place * texts.rows
        mine.sizes = texts.sizes + place * texts.rows
        _measure(mine, cython.address(building))
    allocate(cython.address(building), array, texts.rows)
    if not some:
        _fill_nothing(cython.address(building), texts.rows)
    elif texts.rows > _LARGE:
        with cython.nogil:
            good = _fill(mine, cython.address(building), wanted, form)
    else:
        good = _fill(mine, cython.address(building), wanted, form)
    return good


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _measure(texts: Texts, to: cython.pointer[Building]) -> cython.void:
    """Count the NULLs, and the bytes of all texts."""
    i: cython.Py_ssize_t
    to.nulls = 0
    for i in range(texts.rows):
        if texts.sizes[i] < 0:
            to.nulls += 1
        else:
            to.size += texts.sizes[i]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill_nothing(to: cython.pointer[Building], rows: cython.Py_ssize_t) -> cython.void:
    if to.valid != cython.NULL:
        memset(to.valid, 0, (rows + 7) >> 3)
    if to.kind == TEXT:
        memset(to.offsets, 0, (rows + 1) * cython.sizeof(cython.int))
    elif to.kind != BOOL:
        memset(to.values, 0, rows * to.width)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill(
    texts: Texts,
    to: cython.pointer[Building],
    wanted: cython.pointer[Wanted],
    form: cython.int,
) -> cython.int:
    """Fill the column; return 0 if a text is malformed."""
    i: cython.Py_ssize_t
    size: cython.int
    start: cython.int = 0
    good: cython.bint = True
    place: cython.longlong
    least: cython.longlong = wanted.low
    greatest: cython.longlong = wanted.high
    value = cython.declare(cython.longlong)
    to_value: cython.p_longlong = cython.address(value)
    if form == STRING:
        to.offsets[0] = 0
    for i in range(texts.rows):
        size = texts.sizes[i]
        value = 0
        if size < 0:
            to.valid[i >> 3] &= ~(1 << (i & 7))
            size = 0
        elif form == INTEGER:
            place = texts.places[i]
            good = read_int(texts.data, place, place + size, least, greatest, to_value, 0)
        elif form == CALENDAR:
            place = texts.places[i]
            good = read(texts.data, place, place + size, wanted.calendar, to_value, 0)
        elif form == BOOLEAN:
            value = texts.data[texts.places[i]] if size == 1 else 0
            good = value == 116 or value == 102  # t or f
            value = value == 116
        if not good:
            return 0
        if form == STRING:
            if size:
                memcpy(to.values + start, texts.data + texts.places[i], size)
            start += size
            to.offsets[i + 1] = start
        elif form == BOOLEAN:
            if value:
                to.values[i >> 3] |= 1 << (i & 7)
        elif to.width == 8:
            memcpy(to.values + 8 * i, cython.address(value), 8)
        elif to.width == 4:
            memcpy(to.values + 4 * i, cython.address(value), 4)
        else:
            memcpy(to.values + to.width * i, cython.address(value), to.width)
    return 1
