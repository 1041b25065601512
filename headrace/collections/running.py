"""Window functions computed without Postgres, from the first changed row on.

The store contains each partition twice, in the same order: its input rows and its output rows.
After a change the rows are recomputed from the first changed peer group on.  This ends where,
after the last change, the values equal the old ones, because all later values then do too.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import columns_of, cut, encode, keys_of, weights_of
from headrace.collections.by_key import ByKey, Found, demand_none_negative, nothing
from headrace.collections.listed import ListedIndex
from headrace.collections.sorting import Sorter
from headrace.errors import BugError, RowError
from headrace.kernels import decimals, order, packed, rows, text
from headrace.kernels.packed import Packed
from headrace.state.contract import StateStore
from headrace.types import BPCHAR, INT8, Schema, arrow_type, diff_batch

_PAGE_ROWS: Final = 128
"""Rows of the first page from the first change of a partition; later pages grow fourfold."""
_PAGE_ROWS_MAX: Final = 32_768
_COPY: Final = struct.Struct(">I")
_PLACE: Final = struct.Struct(">q")
_BEHIND_COPIES: Final = b"\xff" * 5
_INT8_MAX: Final = 2**63 - 1
_NOTHING: Final[Any] = object()


class Running(ByKey):
    """Each row with the values of window functions that look back (or a few rows ahead).

    Meaning: that of ``Window``.
    Shape: input -> its columns, one per call; key: ``keys``.
    State: ``id``: key -> sort key, tiebreak, row -> weight; ``id.out``: key -> the same, number of
        the copy, values -> 1, the output.
    Time: emits on TimeEnd; reads each touched partition from the first changed peer group to
        where the values equal the old ones again.
    Errors: BugError on a negative weight; RowError if a sum is out of its type's range.
    """

    words = "a window function"
    step = 1024

    def __init__(self, node: plan.WindowSpec, in_schema: Schema) -> None:
        super().__init__(node.id, node.schema, in_schema, node.keys)
        self._node = node
        self._in_types = [arrow_type(f.oid) for f in in_schema]
        self._out_types = [arrow_type(c.result.oid) for c in node.calls]
        self._sorter = Sorter(in_schema, node.keys, node.order, None)
        specs = [call.running for call in node.calls]
        if not self._sorter.native or None in specs:
            raise BugError("a window that is not computed here")
        self._specs = [spec for spec in specs if spec is not None]
        self._in_schema = in_schema
        self._by_row = [c.frame.startswith("ROWS") for c in node.calls]
        self._numbered = any(s.function in ("row_number", "rank") for s in self._specs)
        distances = {
            name: max((s.distance for s in self._specs if s.function == name), default=0)
            for name in ("lag", "lead")
        }
        self._back, self._ahead = distances["lag"], distances["lead"]
        self._defaults = [_default(s, c) for s, c in zip(self._specs, node.calls, strict=True)]
        self._ends: dict[bytes, tuple[bytes, bytes]] = {}
        """Partition -> the first and the last entry touched by the txid."""
        self._state: ListedIndex
        self._out: ListedIndex

    def open(self, store: StateStore) -> None:
        """See ``Collection``."""
        self._state = ListedIndex(store.index(self.id))
        self._out = ListedIndex(store.index(f"{self.id}.out"))

    def describe(self) -> str:
        """See ``Collection``."""
        keys = ", ".join(self.schema[i].name for i in self._node.keys)
        items = ", ".join(
            self.schema[i.column].name + (" DESC" if i.descending else "") for i in self._node.order
        )
        calls = ", ".join(s.function for s in self._specs)
        return f"Window, running, by ({keys}) order ({items}): {calls}"

    def add(self, port: int, keys: Packed, batch: pa.RecordBatch) -> None:
        """See ``ByKey``."""
        columns, count = columns_of(batch), batch.num_rows
        entries = order.entries(
            self._sorter.orders(columns, count),
            self._sorter.rests(columns, count),
            encode(columns, count).strings(),
        )
        self._state.state.add_many(keys, packed.pack(entries), weights_of(batch))
        ends = self._ends
        for key, entry in zip(keys.strings(), entries, strict=True):
            known = ends.get(key)
            if known is None:
                ends[key] = (entry, entry)
            elif entry < known[0]:
                ends[key] = (entry, known[1])
            elif entry > known[1]:
                ends[key] = (known[0], entry)

    def before(self, keys: Packed) -> Found:
        """See ``ByKey``: the state contains the output."""
        return nothing()

    def advance(self, keys: Packed, before: Found) -> list[pa.RecordBatch]:
        """See ``ByKey``."""
        out: list[pa.RecordBatch] = []
        active = self._started([_Part(key, *self._ends.pop(key)) for key in keys.strings()])
        while active:
            out.extend(self._round(active))
            active = [part for part in active if not part.done]
        return out

    # -- first peer group to recompute

    def _started(self, parts: list[_Part]) -> list[_Part]:
        """Start each partition at its first changed peer group, with the running state there."""
        keys = [part.key for part in parts]
        starts, _ = order.split([part.first for part in parts])
        before: list[bytes | None] = [None] * len(parts)
        bounds = starts
        for _ in range(self._ahead):
            found = self._state.before_many(keys, bounds)
            before = [new or old for new, old in zip(found, before, strict=True)]
            bounds = [new or old for new, old in zip(found, bounds, strict=True)]
        starts = [
            start if entry is None else order.split([entry])[0][0]
            for start, entry in zip(starts, before, strict=True)
        ]
        shown = self._out.before_many(keys, starts)
        values, places = self._read([row for row in shown if row is not None])
        known = iter(zip(values, places, strict=True))
        for part, start, row in zip(parts, starts, shown, strict=True):
            part.next = part.old_next = start
            none: list[Any] = [_NOTHING] * len(self._specs)
            last, part.place = next(known) if row is not None else (none, 0)
            part.sums = [self._resumed(i, value) for i, value in enumerate(last)]
        self._look_back(parts, starts)
        return parts

    def _resumed(self, number: int, shown: Any) -> Any:
        """Return the running state of call ``number``, from its last output value."""
        spec = self._specs[number]
        if spec.function in ("count", "dense_rank"):
            return 0 if shown is _NOTHING else shown
        if spec.function == "first_value":
            return shown
        if shown is _NOTHING or shown is None:
            return None
        if spec.function == "sum" and isinstance(shown, str):
            return decimals.read(shown)
        if spec.function in ("min", "max"):
            column = pa.array([shown], self._out_types[number])
            return self._order_keys(spec, column)[0], shown
        return shown

    def _look_back(self, parts: list[_Part], starts: list[bytes]) -> None:
        """Fill the past rows of lag calls with the rows before ``starts``."""
        lags = [i for i, s in enumerate(self._specs) if s.function == "lag"]
        for part in parts:
            part.past = {i: deque(maxlen=self._specs[i].distance) for i in lags}
        bounds = dict(enumerate(starts)) if lags else {}
        missing = dict.fromkeys(bounds, self._back)
        while bounds:
            at = list(bounds)
            keys = [parts[i].key for i in at]
            found = self._state.before_many(keys, [bounds[i] for i in at])
            there = [(i, e) for i, e in zip(at, found, strict=True) if e is not None]
            weights = self._state.weight_many(
                [parts[i].key for i, _ in there], [e for _, e in there]
            )
            columns = self._columns([e for _, e in there])
            bounds = {}
            for row, ((i, entry), weight) in enumerate(zip(there, weights, strict=True)):
                for number, past in parts[i].past.items():
                    room = (past.maxlen or 0) - len(past)
                    past.extendleft([columns[number][row]] * min(weight, room))
                missing[i] -= weight
                if missing[i] > 0:
                    bounds[i] = entry

    # -- a page of each partition

    def _round(self, parts: list[_Part]) -> list[pa.RecordBatch]:
        size = max(part.size for part in parts)
        keys = [part.key for part in parts]
        at, entries, weights = self._state.first_many(keys, size, [p.next for p in parts])
        demand_none_negative(np.array(weights, np.int64), self.id)
        columns = self._columns(entries)
        orders, _ = order.split(entries)
        pages: list[_Page] = []
        outputs: list[list[Any]] = [[] for _ in self._specs]
        low = 0
        for number, part in enumerate(parts):
            high = low
            while high < len(at) and at[high] == number:
                high += 1
            page = _Page(part, low, high, more=high - low == size)
            self._run(page, orders, weights, columns, outputs)
            pages.append(page)
            low = high
        made = [pa.array(v, t) for v, t in zip(outputs, self._out_types, strict=True)]
        values = encode(made, len(outputs[0])).strings()
        self._read_old(pages, entries, size)
        changes = _Changes()
        low = 0
        for page in pages:
            high = low + len(page.copies)
            self._settle(page, orders, entries, values[low:high], changes)
            low = high
        return self._written(changes)

    def _columns(self, entries: list[bytes]) -> list[Any]:
        """Return per call the values of its argument in each entry."""
        used = {s.argument for s in self._specs} | {s.condition for s in self._specs}
        decoded: dict[int, list[Any]] = {}
        arrays: list[pa.Array] = []
        if used - {None}:
            arrays = rows.decode_rows(packed.pack(order.split(entries)[1]), self._in_types)
            decoded = {i: arrays[i].to_pylist() for i in used if i is not None}
        out: list[Any] = []
        for spec in self._specs:
            column = decoded.get(-1 if spec.argument is None else spec.argument)
            if spec.function in ("min", "max"):
                assert spec.argument is not None and column is not None, "has one"
                keys = self._order_keys(spec, arrays[spec.argument])
                column = list(zip(keys, column, strict=True))
            if spec.condition is not None:
                taken = decoded[spec.condition]
                filled = column if column is not None else [True] * len(entries)
                column = [
                    value if yes else _NOTHING for value, yes in zip(filled, taken, strict=True)
                ]
            out.append(column)
        return out

    def _order_keys(self, spec: plan.RunningSpec, column: pa.Array) -> list[bytes]:
        assert spec.argument is not None, "min and max have one"
        oid = self._in_schema[spec.argument].oid
        return keys_of([column], [oid], len(column)).strings()

    def _run(
        self,
        page: _Page,
        orders: list[bytes],
        weights: list[int],
        columns: list[Any],
        outputs: list[list[Any]],
    ) -> None:
        """Compute the rows of ``page`` whose peer groups are complete."""
        part = page.part
        every = [i for i in range(page.low, page.high) for _ in range(weights[i])]
        begin = 0
        while begin < len(every):
            end = begin
            while end < len(every) and orders[every[end]] == orders[every[begin]]:
                end += 1
            if page.more and (end == len(every) or end + self._ahead > len(every)):
                break
            group = every[begin:end]
            for number, spec in enumerate(self._specs):
                if spec.function == "lead":
                    column, last = columns[number], len(every)
                    outputs[number].extend(
                        column[every[i]] if i < last else self._defaults[number]
                        for i in range(begin + spec.distance, end + spec.distance)
                    )
                    continue
                outputs[number].extend(self._group(part, number, group, columns[number]))
            page.places.extend(range(part.place + 1, part.place + 1 + len(group)))
            part.place += len(group)
            page.copies.extend(group)
            page.ends.append(len(page.copies))
            begin = end
        page.rest = every[begin] if begin < len(every) else None

    def _group(
        self, part: _Part, number: int, group: list[int], column: Any
    ) -> Iterator[Any] | list[Any]:
        """Return the values of one call in a complete peer group."""
        spec, count = self._specs[number], len(group)
        match spec.function:
            case "row_number":
                return list(range(part.place + 1, part.place + 1 + count))
            case "rank":
                return [part.place + 1] * count
            case "dense_rank":
                part.sums[number] += 1
                return [part.sums[number]] * count
            case "lag":
                past, out = part.past[number], []
                for i in group:
                    full = len(past) == spec.distance
                    out.append(past[0] if full else self._defaults[number])
                    past.append(column[i])
                return out
            case "first_value":
                if part.sums[number] is _NOTHING:
                    part.sums[number] = column[group[0]]
                return [part.sums[number]] * count
            case "last_value":
                last = column[group[-1]]
                return [column[i] for i in group] if self._by_row[number] else [last] * count
            case _:
                return self._aggregated(part, number, group, column)

    def _aggregated(self, part: _Part, number: int, group: list[int], column: Any) -> list[Any]:
        out, by_row = [], self._by_row[number]
        total = part.sums[number]
        for i in group:
            value = True if column is None else column[i]
            if value is not _NOTHING:
                total = self._plus(self._specs[number], total, value)
            out.append(self._result(number, total) if by_row else None)
        part.sums[number] = total
        return out if by_row else [self._result(number, total)] * len(group)

    def _plus(self, spec: plan.RunningSpec, total: Any, value: Any) -> Any:
        """Return the running state of an aggregate after one more value."""
        if spec.function in ("min", "max"):
            if value[1] is None:
                return total
            if total is None:
                return value
            if value[0] == total[0]:
                # As numeric_larger and similar functions; only that of char(n) keeps the first.
                return total if self._is(spec, BPCHAR) else value
            less = value[0] < total[0]
            return value if less == (spec.function == "min") else total
        if value is None:
            return total
        if spec.function == "count":
            return total + 1
        if isinstance(value, str) or isinstance(total, tuple) or self._is(spec, INT8):
            number = decimals.read(str(value))
            return number if total is None else decimals.plus(total, number)
        return value if total is None else total + value

    def _is(self, spec: plan.RunningSpec, oid: int) -> bool:
        """Return whether the argument is of type ``oid``."""
        return spec.argument is not None and self._in_schema[spec.argument].oid == oid

    def _result(self, number: int, total: Any) -> Any:
        function = self._specs[number].function
        if function == "count" or total is None:
            return total
        if function in ("min", "max"):
            return total[1]
        if isinstance(total, tuple):
            try:
                return decimals.write(total)
            except OverflowError as error:
                raise RowError(str(error), sqlstate="22003") from None
        if not -_INT8_MAX - 1 <= total <= _INT8_MAX:
            raise RowError("bigint out of range", sqlstate="22003")
        return total

    # -- comparison of the old output with the new

    def _read_old(self, pages: list[_Page], entries: list[bytes], size: int) -> None:
        """Read the old output of each page's rows, or all of it to the end of the partition."""
        active = pages
        while active:
            found = self._out.first_many(
                [page.part.key for page in active], size, [p.part.old_next for p in active]
            )
            counts = [0] * len(active)
            for at, row in zip(found[0], found[1], strict=True):
                part = active[at].part
                entry, copy, values, place = _parsed(row)
                part.old[entry, copy] = (values, place, row)
                part.old_next = row + b"\0"
                counts[at] += 1
            left = []
            for page, count in zip(active, counts, strict=True):
                if count < size:
                    continue
                last = _parsed(page.part.old_next[:-1])[0]
                if page.rest is None or (page.copies and last <= entries[page.copies[-1]]):
                    left.append(page)
            active = left

    def _settle(
        self,
        page: _Page,
        orders: list[bytes],
        entries: list[bytes],
        values: list[bytes],
        changes: _Changes,
    ) -> None:
        """Compare the new output of the page with the old one, and note the changes."""
        part = page.part
        used = self._end(page, entries, values)
        copy, previous = 0, -1
        now: dict[tuple[bytes, int], tuple[bytes, int]] = {}
        for at in range(used):
            row = page.copies[at]
            copy = copy + 1 if row == previous else 0
            previous = row
            place = page.places[at] if self._numbered else 0
            now[entries[row], copy] = (values[at], place)
        whole = page.rest is None and not part.done
        last = entries[page.copies[used - 1]] if used else b""
        gone = [key for key in part.old if key not in now and (whole or key[0] <= last)]
        for key in gone:
            changes.remove(part.key, key[0], part.old.pop(key))
        for (entry, number), (value, place) in now.items():
            old = part.old.pop((entry, number), None)
            if old is not None and old[0] == value and old[1] == place:
                continue
            if old is not None:
                changes.remove(part.key, entry, old)
            changes.add(part.key, entry, _packed(entry, number, value, place), value)
        if part.done or page.rest is None:
            part.done = True
            return
        if used:
            # Do not read again the rows just written.
            part.old_next = max(part.old_next, last + _BEHIND_COPIES)
            part.size = min(part.size * 4, _PAGE_ROWS_MAX)
        else:
            part.size *= 4  # a peer group larger than the page
        part.next = orders[page.rest]

    def _end(self, page: _Page, entries: list[bytes], values: list[bytes]) -> int:
        """Return how many leading copies to emit; set ``part.done`` if later rows are unchanged."""
        part = page.part
        begin = 0
        for end in page.ends:
            first, last = page.copies[begin], page.copies[end - 1]
            if entries[first] > part.last:
                part.behind += end - begin
                copy = _run_length(page.copies, end) - 1
                old = part.old.get((entries[last], copy))
                place = page.places[end - 1] if self._numbered else 0
                same = old is not None and old[0] == values[end - 1] and old[1] == place
                is_last = (entries[last], copy + 1) not in part.old
                if same and is_last and part.behind > self._back:
                    part.done = True
                    return end
            begin = end
        return len(page.copies)

    def _written(self, changes: _Changes) -> list[pa.RecordBatch]:
        if not changes.weights:
            return []
        self._out.add_many(changes.keys, changes.rows, changes.weights)
        shown, values, weights = changes.shown()
        if not weights:
            return []
        columns = rows.decode_rows(packed.pack(order.split(shown)[1]), self._in_types)
        columns += rows.decode_rows(packed.pack(values), self._out_types)
        return cut(diff_batch(self.schema, columns, pa.array(weights, pa.int64())))

    def _read(self, found: list[bytes]) -> tuple[list[list[Any]], list[int]]:
        """Return the values of the calls and the places, of rows of ``id.out``."""
        parsed = [_parsed(row) for row in found]
        columns = rows.decode_rows(packed.pack([p[2] for p in parsed]), self._out_types)
        turned = [column.to_pylist() for column in columns]
        return [[c[i] for c in turned] for i in range(len(found))], [p[3] for p in parsed]


@dataclass(slots=True)
class _Part:
    """A partition that is being recomputed."""

    key: bytes
    first: bytes
    last: bytes
    """First and last entry that the txid touched."""
    next: bytes = b""
    """Entry at which the next page begins."""
    old_next: bytes = b""
    old: dict[tuple[bytes, int], tuple[bytes, int, bytes]] = field(default_factory=dict)
    """Old output: (entry, copy) -> (values, place, row of ``id.out``), not yet compared."""
    place: int = 0
    """Number of rows before the next one."""
    sums: list[Any] = field(default_factory=list)
    past: dict[int, deque[Any]] = field(default_factory=dict)
    behind: int = 0
    """Number of copies after the last change so far."""
    size: int = field(default_factory=lambda: _PAGE_ROWS)
    done: bool = False


@dataclass(slots=True)
class _Page:
    """Some entries of a partition: those from ``low`` to before ``high`` of one read."""

    part: _Part
    low: int
    high: int
    more: bool
    """Whether entries may follow."""
    copies: list[int] = field(default_factory=list)
    """Entry of each computed row."""
    places: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """End of each peer group in ``copies``."""
    rest: int | None = None
    """First entry that is not computed; None at the end of the partition."""


class _Changes:
    """Diffs of ``id.out``, and the output diffs that follow from them."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.rows: list[bytes] = []
        self.weights: list[int] = []
        self._shown: dict[tuple[bytes, bytes], int] = {}

    def remove(self, key: bytes, entry: bytes, old: tuple[bytes, int, bytes]) -> None:
        self._note(key, old[2], -1, (entry, old[0]))

    def add(self, key: bytes, entry: bytes, row: bytes, values: bytes) -> None:
        self._note(key, row, 1, (entry, values))

    def _note(self, key: bytes, row: bytes, weight: int, shown: tuple[bytes, bytes]) -> None:
        self.keys.append(key)
        self.rows.append(row)
        self.weights.append(weight)
        self._shown[shown] = self._shown.get(shown, 0) + weight

    def shown(self) -> tuple[list[bytes], list[bytes], list[int]]:
        """Return the entries and values with a weight other than 0, and the weights."""
        kept = [(e, v, w) for (e, v), w in self._shown.items() if w]
        return [e for e, _, _ in kept], [v for _, v, _ in kept], [w for _, _, w in kept]


def _packed(entry: bytes, copy: int, values: bytes, place: int) -> bytes:
    """Return a row of ``id.out``: entry, copy number, values, place, length of the values."""
    tail = _PLACE.pack(place) + _COPY.pack(len(values))
    return entry + _COPY.pack(copy) + values + tail


def _parsed(row: bytes) -> tuple[bytes, int, bytes, int]:
    """Return (entry, copy number, values, place) of a row of ``id.out``."""
    end = len(row) - 12
    begin = end - int(_COPY.unpack(row[-4:])[0])
    copy, place = _COPY.unpack(row[begin - 4 : begin])[0], _PLACE.unpack(row[end:-4])[0]
    return row[: begin - 4], copy, row[begin:end], place


def _run_length(copies: list[int], end: int) -> int:
    """Return how many copies of one entry end at ``end``."""
    count = 1
    while count < end and copies[end - 1 - count] == copies[end - 1]:
        count += 1
    return count


def _default(spec: plan.RunningSpec, call: plan.WindowCallSpec) -> Any:
    """Return the value of lag and lead without such a row."""
    if spec.default is None:
        return None
    column = text.parse(pa.array([spec.default], pa.string()), call.result.oid)
    return column[0].as_py()
