"""The window functions that ``Running`` computes, for all lines of a page at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import encode, keys_of
from headrace.errors import BugError, RowError
from headrace.kernels import buffers, numeric, packed, rows, text
from headrace.kernels import running as kernel
from headrace.kernels.buffers import Bytes, Int64s
from headrace.kernels.packed import Packed
from headrace.types import BPCHAR, Schema, arrow_type

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
        self._specs = [call.running for call in node.calls if call.running is not None]
        if len(self._specs) < len(node.calls):
            raise BugError("a window that is not computed here")
        self._in_types = [arrow_type(f.oid) for f in in_schema]
        self._in_oids = [f.oid for f in in_schema]
        self._out_types = [arrow_type(call.result.oid) for call in node.calls]
        self._by_row = [call.frame.startswith("ROWS") for call in node.calls]
        self._reads = {s.argument for s in self._specs} | {s.condition for s in self._specs}
        self._reads.discard(None)
        functions = {spec.function for spec in self._specs}
        self.numbered: Final = not functions.isdisjoint(("row_number", "rank"))
        """Whether values depend on the number of rows before."""
        self.back: Final = self._distance("lag")
        """How many lines before a line its values depend on, beyond running values."""
        self.ahead: Final = self._distance("lead")
        """How many lines after a line its values depend on."""
        self._defaults = [
            _default(spec, call.result.oid, kind)
            for spec, call, kind in zip(self._specs, node.calls, self._out_types, strict=True)
        ]

    def _distance(self, function: str) -> int:
        return max((s.distance for s in self._specs if s.function == function), default=0)

    def names(self) -> str:
        """Return the functions, for ``describe``."""
        return ", ".join(spec.function for spec in self._specs)

    def decoded(self, values: Packed) -> list[pa.Array]:
        """Return the values of calls that ``Computed.encoded`` made."""
        return rows.decode_rows(values, self._out_types)

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
        columns = [_taken(column, places) for column in self.decoded(values)]
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
        for number, spec in enumerate(self._specs):
            column = None if spec.argument is None else arguments[spec.argument]
            match spec.function:
                case "row_number":
                    found = pa.array(numbers)
                case "rank":
                    found = pa.array(numbers[lines.first])
                case "dense_rank":
                    found = pa.array(_numbers(before.values[number])[lines.half] + lines.group)
                case "lag" | "lead":
                    found = self._neighbours(number, page, weights, column)
                case "first_value" | "last_value":
                    found = self._ends(number, page, column)
                case _:
                    condition = None if spec.condition is None else arguments[spec.condition]
                    counted = _counted(page.entries, column, condition)
                    found = self._aggregated(number, page, column, counted)
            kind = self._out_types[number]
            page.columns.append(found if found.type == kind else found.cast(kind))
        return page

    def _neighbours(
        self, number: int, page: Computed, weights: Int64s, column: pa.Array
    ) -> pa.Array:
        spec, default = self._specs[number], self._defaults[number]
        distance = spec.distance if spec.function == "lag" else -spec.distance
        sources = (page.entries, len(column))
        chosen = kernel.neighbours(page.lines, weights, distance, page.before.bounds, sources)
        return pa.concat_arrays([column, default]).take(pa.array(chosen))

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
        column = column.slice(0, page.entries)
        if function == "sum":
            return self._summed(number, page, column, counted, shown)
        oid = self._in_oids[self._specs[number].argument or 0]
        chosen = kernel.extremes(
            lines,
            keys_of([column], [oid], len(column)),
            counted,
            keys_of([before], [oid], len(before)),
            buffers.validity(before),
            # As numeric_larger and similar functions, the last of equal ones; char(n) the first.
            (function == "min", oid == BPCHAR),
        )
        return _taken(pa.concat_arrays([column, before]), chosen[shown])

    def _summed(
        self, number: int, page: Computed, column: pa.Array, counted: Bytes, shown: Int64s
    ) -> pa.Array:
        kind, before = self._out_types[number], page.before.values[number]
        found = kernel.sums(page.lines, _parsed(column), counted, _parsed(before))
        if found is None:
            return self._long_sums(kind, page, column, counted, before).take(pa.array(shown))
        kinds, mantissas, scales = found[0][shown], found[1][shown], found[2][shown]
        if buffers.is_text(kind):
            return numeric.render(kinds, mantissas, scales.astype(np.int32))
        return buffers.make_fixed(mantissas, kinds, kind)

    def _long_sums(
        self, kind: pa.DataType, page: Computed, column: pa.Array, counted: Bytes, before: pa.Array
    ) -> pa.Array:
        texts, earlier = (c.cast(pa.string()).to_pylist() for c in (column, before))
        try:
            found = kernel.long_sums(page.lines, texts, counted, earlier)
        except OverflowError as error:
            raise RowError(str(error), sqlstate="22003") from None
        if buffers.is_text(kind):
            return pa.array(found, kind)
        sums = [None if total is None else int(total) for total in found]
        if any(total is not None and not -_INT8_MAX - 1 <= total <= _INT8_MAX for total in sums):
            raise RowError("bigint out of range", sqlstate="22003")
        return pa.array(sums, kind)


def _counted(entries: int, column: pa.Array | None, condition: pa.Array | None) -> Bytes:
    """Return 1 for each entry whose argument is not NULL and whose condition is true."""
    found = buffers.all_valid(entries)
    if column is not None:
        found = buffers.validity(column)[:entries]
    if condition is not None:
        true = buffers.values(condition) & buffers.validity(condition)
        found = found & true[:entries]
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
