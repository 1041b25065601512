"""The window functions that ``Running`` computes, for all lines of a page at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import encode, keys_of
from headrace.errors import BugError, RowError
from headrace.kernels import buffers, decimals, frames, numeric, packed, rows, text
from headrace.kernels import running as kernel
from headrace.kernels.buffers import Bytes, Int64s
from headrace.kernels.packed import Packed
from headrace.types import BPCHAR, INT8, NUMERIC, Schema, arrow_type

_INT8_MAX: Final = 2**63 - 1


@dataclass(slots=True)
class Carried:
    """State of the calls after the lines before a page, by half (``kernels.running.Lines``)."""

    values: list[pa.Array]
    """Values of the calls at the last line; NULL if there is no line."""
    known: Bytes
    """Whether there is a line."""
    past: Packed
    """The last lines of all halves, as rows of the input."""
    bounds: Int64s
    """Bounds of the halves in ``past``."""


@dataclass(slots=True)
class Computed:
    """The values of calls at the lines of a page, with the input of their computation."""

    columns: list[pa.Array]
    """The values, of which ``Calls.shown`` makes the results."""
    numbers: Int64s
    """Number of each line in its partition, from 1 on."""
    lines: kernel.Lines
    rows: Packed
    """The input rows of the page, then those of ``before.past``."""
    arguments: list[pa.Array]
    """The columns of ``rows``; none if no call has an argument."""
    before: Carried

    @property
    def entries(self) -> int:
        """Number of entries of the page."""
        return int(self.lines.begins[-1])

    def encoded(self) -> Packed:
        """Return the values of each line as a row."""
        return encode(self.columns, len(self.lines.entry))


class Calls:
    """The calls of one window."""

    def __init__(self, node: plan.WindowSpec, in_schema: Schema) -> None:
        """Create it; REQUIRES: ``node`` is native."""
        self._specs: list[plan.RunningSpec] = []
        self._oids: list[int] = []
        self._by_row: list[bool] = []
        self._shown: list[tuple[int, ...]] = []
        """Per call the numbers of its values: one, or of an average the sum and the count."""
        for call in node.calls:
            if call.running is None:
                raise BugError("a window that is not computed here")
            parts = _parts(call.running, call.result.oid)
            self._shown.append(tuple(range(len(self._specs), len(self._specs) + len(parts))))
            self._specs += [spec for spec, _ in parts]
            self._oids += [oid for _, oid in parts]
            self._by_row += [call.frame.startswith("ROWS")] * len(parts)
        self._in_types = [arrow_type(f.oid) for f in in_schema]
        self._in_oids = [f.oid for f in in_schema]
        self._types = [arrow_type(oid) for oid in self._oids]
        self._reads = {s.argument for s in self._specs} | {s.condition for s in self._specs}
        self._reads.discard(None)
        functions = {spec.function for spec in self._specs}
        self.numbered: Final = not functions.isdisjoint(("row_number", "rank"))
        """Whether values depend on the number of rows before."""
        self._moves = any(s.frame or s.function in ("lag", "lead") for s in self._specs)
        reaches = [_reach(spec) for spec in self._specs]
        self.back: Final = -min(0, *(first for first, _ in reaches))
        """How many lines before a line its values depend on, beyond running values."""
        self.ahead: Final = max(0, *(last for _, last in reaches))
        """How many lines after a line its values depend on."""
        self._defaults = [
            _default(spec, oid, kind)
            for spec, oid, kind in zip(self._specs, self._oids, self._types, strict=True)
        ]

    def shown(self, columns: list[pa.Array]) -> list[pa.Array]:
        """Return the results of the calls out of their values."""
        return [
            _average(*(columns[i] for i in parts)) if len(parts) > 1 else columns[parts[0]]
            for parts in self._shown
        ]

    # --- state after earlier lines

    def resumed(
        self, values: Packed, there: Int64s, count: int, past: Packed, parts: Int64s
    ) -> Carried:
        """Return the state before the first page of ``count`` partitions: of both halves the same.

        ``values``: those at the restart points of the partitions ``there``, which have any.
        ``past``: rows of the last lines of all partitions, which are ``parts``, ascending.
        """
        places = np.full(count, -1, np.int64)
        places[there] = np.arange(len(there))
        places = np.tile(places, 2)
        columns = [_taken(c, places) for c in rows.decode_rows(values, self._types)]
        bounds = np.searchsorted(np.concatenate((parts, parts + count)), np.arange(2 * count + 1))
        past = packed.joined([past, past])
        return Carried(columns, (places >= 0).view(np.uint8), past, bounds)

    def carried(self, page: Computed, more: Int64s) -> Carried:
        """Return the state after a page, of the halves ``more``."""
        lines, before = page.lines, page.before
        begins, ends = lines.bounds[more], lines.bounds[more + 1]
        some = begins < ends
        places = np.where(some, ends - 1, len(lines.entry) + more)
        values = [
            pa.concat_arrays([made, old]).take(pa.array(places))
            for made, old in zip(page.columns, before.values, strict=True)
        ]
        known = some.view(np.uint8) | before.known[more]
        if not self.back:
            return Carried(values, known, packed.empty(0), np.zeros(len(more) + 1, np.int64))
        begins = np.maximum(begins, ends - self.back)
        past_ends = before.bounds[more + 1]
        past_begins = np.maximum(before.bounds[more], past_ends - (self.back - (ends - begins)))
        chosen = [
            page.entries + _ranges(past_begins, past_ends),
            lines.entry[_ranges(begins, ends)],
        ]
        sizes = np.concatenate((past_ends - past_begins, ends - begins))
        parts = np.repeat(np.tile(np.arange(len(more)), 2), sizes)
        ascending = np.argsort(parts, kind="stable")
        past = page.rows.take(np.concatenate(chosen)[ascending])
        return Carried(
            values, known, past, np.searchsorted(parts[ascending], np.arange(len(more) + 1))
        )

    def merged(self, earlier: bytes, later: bytes) -> bytes:
        """Return the values at the last line, as a row, of two adjacent ranges of lines.

        ``earlier``, ``later``: the values at the last line of each range, computed from its lines
        alone.  Values that do not depend on all earlier lines are those of ``later``.

        Raises:
            RowError: a sum is out of its type's range.
        """
        both = rows.decode_rows(packed.pack([earlier, later]), self._types)
        columns = [self._merged(number, column) for number, column in enumerate(both)]
        return encode(columns, 1).strings()[0]

    def _merged(self, number: int, column: pa.Array) -> pa.Array:
        spec = self._specs[number]
        if spec.frame is not None:
            return column.slice(1)
        there = buffers.validity(column).tolist()
        match spec.function:
            case "first_value":
                return column.slice(0, 1)
            case "count" | "dense_rank":
                return pa.array([int(_numbers(column).sum())], column.type)
            case "sum" if all(there):
                texts = column.cast(pa.string()).to_pylist()
                return self._long(number, _total, texts)
            case "min" | "max" if all(there):
                oid = self._in_oids[spec.argument or 0]
                first, second = keys_of([column], [oid], 2).strings()
                least, oldest = _wanted(spec.function, oid)
                same, before = first == second, first < second
                return column.slice(0 if (oldest if same else before == least) else 1, 1)
            case "sum" | "min" | "max":
                return column.slice(0 if there[0] else 1, 1)
            case _:
                return column.slice(1)

    # --- the values at the lines of a page

    def computed(
        self,
        lines: kernel.Lines,
        encoded: Packed,
        weights: Int64s,
        places: Int64s,
        before: Carried,
    ) -> Computed:
        """Return the values at each line of a page.

        ``encoded``: row of each entry of the page; ``weights``: as in ``kernels.running.Merged``.
        ``places``: number of lines before the page, by half.
        ``before``: the state after earlier lines.

        Raises:
            RowError: a sum is out of its type's range.
        """
        half = lines.half
        numbers = (places - lines.bounds[:-1] + 1)[half] + np.arange(len(half))
        found_rows = packed.joined([encoded, before.past]) if self.back else encoded
        arguments = rows.decode_rows(found_rows, self._in_types) if self._reads else []
        page = Computed([], numbers, lines, found_rows, arguments, before)
        near = frames.readable(lines, weights, before.bounds) if self._moves else None
        for number, kind in enumerate(self._types):
            found = self._values(number, page, near)
            page.columns.append(found if found.type == kind else found.cast(kind))
        return page

    def _values(self, number: int, page: Computed, near: frames.Readable | None) -> pa.Array:
        """Return the values of one call."""
        spec, lines = self._specs[number], page.lines
        column = None if spec.argument is None else page.arguments[spec.argument]
        match spec.function:
            case "row_number":
                return pa.array(page.numbers)
            case "rank":
                return pa.array(page.numbers[lines.first])
            case "dense_rank":
                return pa.array(_numbers(page.before.values[number])[lines.half] + lines.group)
            case "lag" | "lead":
                assert near is not None and column is not None, "these move, and have an argument"
                found = near.at(_reach(spec)[0], len(column))
                return pa.concat_arrays([column, self._defaults[number]]).take(pa.array(found))
            case "first_value" | "last_value" if spec.frame is None:
                return self._ends(number, page, column)
        condition = None if spec.condition is None else page.arguments[spec.condition]
        counted = _counted(page, column, condition)
        if spec.frame is None:
            return self._aggregated(number, page, column, counted)
        assert near is not None, "these move"
        return self._moving(number, near.frames(*spec.frame), column, counted)

    def _moving(
        self, number: int, framed: frames.Frames, column: pa.Array | None, counted: Bytes
    ) -> pa.Array:
        """Return the values over moving frames."""
        spec = self._specs[number]
        function = spec.function
        if function == "count":
            return pa.array(framed.counts(counted))
        assert column is not None, "all others have an argument"
        if function == "first_value":
            return _taken(column, framed.firsts())
        if function == "last_value":
            return _taken(column, framed.lasts())
        if function == "sum":
            found = frames.sums(framed, _parsed(column), counted)
            if found is None:
                texts = column.cast(pa.string()).to_pylist()
                return self._long(number, frames.long_sums, framed, texts, counted)
            return self._rendered(number, *found)
        oid = self._in_oids[spec.argument or 0]
        keys = keys_of([column], [oid], len(column))
        return _taken(column, frames.extremes(framed, keys, counted, _wanted(function, oid)))

    def _ends(self, number: int, page: Computed, column: pa.Array) -> pa.Array:
        lines = page.lines
        if self._specs[number].function == "last_value":
            shown = lines.entry if self._by_row[number] else lines.entry[lines.last]
            return column.take(pa.array(shown))
        first = lines.entry[lines.bounds[lines.half]]
        earlier = len(column) + lines.half
        chosen = np.where(page.before.known[lines.half], earlier, first)
        return pa.concat_arrays([column, page.before.values[number]]).take(pa.array(chosen))

    def _aggregated(
        self, number: int, page: Computed, column: pa.Array | None, counted: Bytes
    ) -> pa.Array:
        lines, function = page.lines, self._specs[number].function
        shown = np.arange(len(lines.entry)) if self._by_row[number] else lines.last
        before = page.before.values[number]
        if function == "count":
            sums = buffers.bounds(counted[lines.entry].astype(np.int64))
            counts = _numbers(before)[lines.half] + sums[1:] - sums[lines.bounds[lines.half]]
            return pa.array(counts[shown])
        assert column is not None, "sum, min and max have an argument"
        column, counted = column.slice(0, page.entries), counted[: page.entries]
        if function == "sum":
            return self._summed(number, page, column, counted, shown)
        oid = self._in_oids[self._specs[number].argument or 0]
        chosen = kernel.extremes(
            lines,
            keys_of([column], [oid], len(column)),
            counted,
            keys_of([before], [oid], len(before)),
            buffers.validity(before),
            _wanted(function, oid),
        )
        return _taken(pa.concat_arrays([column, before]), chosen[shown])

    def _summed(
        self, number: int, page: Computed, column: pa.Array, counted: Bytes, shown: Int64s
    ) -> pa.Array:
        before = page.before.values[number]
        found = kernel.sums(page.lines, _parsed(column), counted, _parsed(before))
        if found is None:
            texts, earlier = (c.cast(pa.string()).to_pylist() for c in (column, before))
            sums = self._long(number, kernel.long_sums, page.lines, texts, counted, earlier)
            return sums.take(pa.array(shown))
        kinds, mantissas, scales = found
        return self._rendered(number, kinds[shown], mantissas[shown], scales[shown])

    def _rendered(self, number: int, kinds: Bytes, mantissas: Int64s, scales: Int64s) -> pa.Array:
        """Return sums as a column."""
        kind = self._types[number]
        if buffers.is_text(kind):
            return numeric.render(kinds, mantissas, scales.astype(np.int32))
        return buffers.make_fixed(mantissas, kinds, kind)

    def _long(
        self, number: int, function: Callable[..., list[str | None]], *arguments: Any
    ) -> pa.Array:
        """Return sums of numbers of any size as a column."""
        try:
            found = function(*arguments)
        except OverflowError as error:
            raise RowError(str(error), sqlstate="22003") from None
        kind = self._types[number]
        if buffers.is_text(kind):
            return pa.array(found, kind)
        sums = [None if total is None else int(total) for total in found]
        if any(total is not None and not -_INT8_MAX - 1 <= total <= _INT8_MAX for total in sums):
            raise RowError("bigint out of range", sqlstate="22003")
        return pa.array(sums, kind)


def _parts(spec: plan.RunningSpec, oid: int) -> list[tuple[plan.RunningSpec, int]]:
    """Return the values that a call keeps, with the OIDs of their types."""
    if spec.function != "avg":
        return [(spec, oid)]
    replace = msgspec.structs.replace
    return [(replace(spec, function="sum"), NUMERIC), (replace(spec, function="count"), INT8)]


def _average(sums: pa.Array, counts: pa.Array) -> pa.Array:
    """Return averages as ``numeric_avg`` does: the sums divided by the counts, NULL of none."""
    divisors = np.maximum(_numbers(counts), 1)
    ones = buffers.all_valid(len(divisors))
    scales = np.zeros(len(divisors), np.int32)
    return numeric.div(sums, numeric.render(ones, divisors, scales))


def _reach(spec: plan.RunningSpec) -> tuple[int, int]:
    """Return the first and the last line that are read, as numbers of lines behind the line."""
    if spec.function == "lag":
        return -spec.distance, -spec.distance
    if spec.function == "lead":
        return spec.distance, spec.distance
    return spec.frame or (0, 0)


def _total(texts: list[str]) -> list[str | None]:
    """Return the sum of two numbers."""
    return [decimals.write(decimals.plus(*(decimals.read(text) for text in texts)))]


def _wanted(function: str, oid: int) -> tuple[bool, bool]:
    """Return whether the least is wanted, and whether the first of equal ones."""
    # As numeric_larger and similar functions, the last of equal ones; char(n) the first.
    return function == "min", oid == BPCHAR


def _counted(page: Computed, column: pa.Array | None, condition: pa.Array | None) -> Bytes:
    """Return 1 for each row whose argument is not NULL and whose condition is true."""
    found = buffers.all_valid(len(page.rows)) if column is None else buffers.validity(column)
    if condition is not None:
        found = found & buffers.values(condition) & buffers.validity(condition)
    return found


def _parsed(column: pa.Array) -> kernel.Numbers:
    """Return the values of a column of integers, or of numerics as text."""
    if buffers.is_text(column.type):
        found = numeric.parse(column)
        return found.kinds, found.mantissas, found.scales.astype(np.int64)
    values = buffers.values(column).astype(np.int64)
    return buffers.validity(column), values, np.zeros(len(values), np.int64)


def _numbers(column: pa.Array) -> Int64s:
    """Return the values of a bigint column, 0 for NULL."""
    return np.where(buffers.validity(column), buffers.values(column), 0)


def _taken(column: pa.Array, chosen: Int64s) -> pa.Array:
    """Return the chosen values; -1 stands for NULL."""
    return column.take(pa.array(chosen, mask=chosen < 0))


def _ranges(begins: Int64s, ends: Int64s) -> Int64s:
    """Return the numbers from each begin to before its end, one after the other."""
    sizes = ends - begins
    starts = np.repeat(begins - buffers.bounds(sizes)[:-1], sizes)
    return starts + np.arange(len(starts))


def _default(spec: plan.RunningSpec, oid: int, kind: pa.DataType) -> pa.Array:
    """Return the value of lag and lead without such a row, as a column of one row."""
    if spec.default is None:
        return pa.nulls(1, kind)
    return text.parse(pa.array([spec.default], pa.string()), oid)
