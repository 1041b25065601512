"""Running window functions over consecutive ranges of their rows, for a population.

Rows are sorted by partition, then by ORDER BY, and divided into ranges; peers are in one range.
Each range alone gives a *summary*.  From all summaries follows the *start* of each range: the state
of the calls after the rows before it.  With its start, a range gives the output and the state of
its rows, the same as ``Running`` over all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import encode
from headrace.collections.by_key import demand_none_negative
from headrace.collections.running import Running, RunningPage
from headrace.collections.running_calls import Calls
from headrace.errors import RowError
from headrace.kernels import order, packed, packed_order, restart_points
from headrace.kernels import running as kernel
from headrace.kernels.buffers import Int64s
from headrace.kernels.packed import Packed
from headrace.kernels.restart_points import Points
from headrace.state.contract import StateStore
from headrace.types import TEXT, Field, Schema, diff_batch

SUMMARY: Final[Schema] = (Field("summary", TEXT),)
"""Output columns of ``RunningSummary``."""


class RangeSummary(msgspec.Struct, frozen=True):
    """Summary of a range that has rows; lines are those of ``kernels.running``."""

    part: str
    """Name of the task that has the range."""
    first: bytes
    """Key of its first partition."""
    last: bytes
    """Key of its last partition; the following fields but ``head`` are about its lines here."""
    rows: int
    since: list[int]
    """Lines since the last restart point, by those before the range (``since_after``)."""
    values: bytes | None
    """Values at the last line, as a row; None: a sum is out of range here, maybe not in all."""
    past: list[bytes]
    """Input rows of the last lines, as many as calls look back."""
    head: list[tuple[bytes, int]]
    """First entries of the first partition with weights; they have the lines that calls look
    ahead."""


DECODER: Final = msgspec.json.Decoder(RangeSummary)


class RangeStart(msgspec.Struct, frozen=True):
    """State of the calls before the first line of a range."""

    rows: int = 0
    """Number of earlier lines of its first partition."""
    since: int = 0
    """Lines since the last restart point."""
    values: bytes | None = None
    """Values at the last of these lines, as a row; None: there is none."""
    past: list[bytes] = []
    """Input rows of the last of these lines, as many as calls look back."""
    following: list[tuple[bytes, int]] = []
    """Entries behind the range, of its last partition, with weights, as many as calls look
    ahead."""


def starts(
    node: plan.WindowSpec, in_schema: Schema, summaries: Sequence[RangeSummary]
) -> dict[str, RangeStart] | None:
    """Return the start of each range by the name of its task; ``summaries``: in order.

    None: the sums of ranges cannot be represented; those of all rows perhaps can.
    """
    calls = Calls(node, in_schema)
    out: dict[str, RangeStart] = {}
    before, key = RangeStart(), b""
    for place, found in enumerate(summaries):
        if found.values is None:
            return None
        start = before if place and key == found.first else RangeStart()
        following = _following(found, summaries[place + 1 :], calls.ahead)
        out[found.part] = msgspec.structs.replace(start, following=following)
        if found.first != found.last:
            start = RangeStart()  # of the last partition
        try:
            values = (
                found.values if start.values is None else calls.merged(start.values, found.values)
            )
        except RowError:
            return None
        past = [*start.past, *found.past][-calls.back :] if calls.back else []
        before = RangeStart(start.rows + found.rows, found.since[start.since], values, past)
        key = found.last
    return out


def _following(
    found: RangeSummary, later: Sequence[RangeSummary], ahead: int
) -> list[tuple[bytes, int]]:
    """Return the entries of ``RangeStart.following``."""
    out: list[tuple[bytes, int]] = []
    for each in later:
        if each.first != found.last or sum(weight for _, weight in out) >= ahead:
            break
        out += each.head
        if each.last != each.first:
            break
    return out


@dataclass(slots=True)
class _Sorted:
    """Entries of some partitions, sorted, with net weights."""

    keys: Packed
    """Keys of the partitions."""
    begins: Int64s
    """First entry of each partition, and the end of the last."""
    entries: Packed
    weights: Int64s


class RunningRange(Running):
    """The rows of a range with the values of window functions; see ``Running``.

    State: as ``Running``, of the lines of the range.
    Time: emits on the only TimeEnd.
    """

    def __init__(self, node: plan.WindowSpec, in_schema: Schema, start: RangeStart) -> None:
        super().__init__(node, in_schema)
        self._start = start
        self._arrived: list[tuple[Packed, Packed, Int64s]] = []

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        if batch.num_rows:
            self._arrived.append(self._stored(batch))
        return []

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        found = self._sorted()
        if found is None:
            return []
        count = len(found.keys)
        of_entry = np.repeat(np.arange(count), np.diff(found.begins))
        self._state.load(found.keys.take(of_entry), found.entries, found.weights)
        page = self._page(found, self._start)
        settled = self._settled(page, count)
        self._load_points(found.keys, page, settled)
        return self._changed(page, settled)

    def _sorted(self) -> _Sorted | None:
        """Return all entries that have arrived; None: there are no rows."""
        arrived, self._arrived = self._arrived, []
        if not arrived:
            return None
        keys = packed.joined([keys for keys, _, _ in arrived])
        entries = packed.joined([entries for _, entries, _ in arrived])
        weights = np.concatenate([weights for _, _, weights in arrived])
        del arrived
        both = packed.appended(keys, entries)
        ascending = packed_order.sorted_order(both)
        firsts = np.flatnonzero(packed_order.repeated(both, ascending) == 0)
        sums = np.add.reduceat(weights[ascending], firsts)
        demand_none_negative(sums, self.id)
        chosen = ascending[firsts][sums > 0]
        if not len(chosen):
            return None
        keys = keys.take(chosen)
        begins = np.flatnonzero(packed_order.repeated(keys, np.arange(len(keys))) == 0)
        return _Sorted(
            keys.take(begins),
            np.append(begins, len(chosen)),
            entries.take(chosen),
            sums[sums > 0],
        )

    def _page(self, found: _Sorted, start: RangeStart) -> RunningPage:
        """Return all lines, and the entries behind them, as a page after the changes."""
        count, entries, weights = len(found.keys), found.entries, found.weights
        begins = found.begins
        if start.following:
            behind, times = zip(*start.following, strict=True)
            entries = packed.joined([entries, packed.pack(behind)])
            weights = np.concatenate((weights, np.array(times, np.int64)))
            begins = np.append(begins[:-1], len(weights))
        orders, encoded = order.split(entries)
        weights = np.concatenate((np.zeros_like(weights), weights))
        lines = kernel.lines(begins, orders, weights, np.zeros(count, np.uint8), 0)
        places = np.zeros(2 * count, np.int64)
        places[count] = start.rows
        known = np.arange(0 if start.values is None else 1)
        carried = self._calls.resumed(
            _pack([] if start.values is None else [start.values]),
            known,
            count,
            _pack(start.past),
            np.zeros(len(start.past), np.int64),
        )
        computed = self._calls.computed(lines, encoded, weights, places, carried)
        numbers = computed.numbers if self._calls.numbered else np.zeros_like(lines.entry)
        points = Points(entries, lines.copy, computed.encoded(), numbers)
        return RunningPage(entries, orders, computed, points, np.zeros(count, np.int64))

    def _settled(self, page: RunningPage, count: int) -> restart_points.Settled:
        """Return that all lines of ``count`` partitions are new, except those behind the range."""
        ends = page.computed.lines.bounds[count + 1 :].copy()
        ends[-1] -= sum(weight for _, weight in self._start.following)
        none = np.zeros(0, np.int64)
        return restart_points.Settled(none, np.arange(ends[-1]), ends, np.ones(count, np.uint8))

    def _load_points(
        self, keys: Packed, page: RunningPage, settled: restart_points.Settled
    ) -> None:
        """Store the restart points of the range."""
        since = np.zeros(len(keys), np.int64)
        since[0] = self._start.since
        lines, none = page.computed.lines, np.zeros(0, np.int64)
        old = restart_points.parsed(packed.empty(0))
        kept = restart_points.keep(lines, page.points, settled, none, old, since)
        if len(kept.added):
            found = keys.take(lines.half[kept.added] - len(keys))
            ones = np.ones(len(kept.added), np.int64)
            self._out.load(found, page.stored(kept.added), ones)


class RunningSummary(RunningRange):
    """The summary of the rows of a range, as JSON text.

    Meaning, shape: one row of ``SUMMARY``; none if there are no input rows.
    State: none.
    """

    def __init__(self, node: plan.WindowSpec, in_schema: Schema, part: str) -> None:
        super().__init__(node, in_schema, RangeStart())
        self._part = part

    def open(self, store: StateStore) -> None:
        """See ``Collection``."""

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        found = self._sorted()
        if found is None:
            return []
        text = msgspec.json.encode(self._summary(found)).decode()
        return [diff_batch(SUMMARY, [pa.array([text])], pa.array([1], pa.int64()))]

    def _summary(self, found: _Sorted) -> RangeSummary:
        first, last = found.keys.take(np.array([0, len(found.keys) - 1])).strings()
        low, high = found.begins[-2:].tolist()
        alone = _Sorted(
            found.keys.take(np.array([len(found.keys) - 1])),
            np.array([0, high - low]),
            found.entries.take(np.arange(low, high)),
            found.weights[low:],
        )
        rows, head = int(alone.weights.sum()), [*_head(found, self._calls.ahead)]
        try:
            page = self._page(alone, self._start)
        except RowError:
            return RangeSummary(self._part, first, last, rows, [], None, [], head)
        sizes = np.bincount(page.computed.lines.group)[1:]
        after = self._calls.carried(page.computed, np.ones(1, np.int64))
        return RangeSummary(
            self._part,
            first,
            last,
            rows,
            restart_points.since_after(sizes).tolist(),
            encode(after.values, 1).strings()[0],
            after.past.strings(),
            head,
        )


def _head(found: _Sorted, ahead: int) -> Iterator[tuple[bytes, int]]:
    """Yield the entries of ``RangeSummary.head``."""
    lines = 0
    for place in range(found.begins[1] if ahead else 0):
        if lines >= ahead:
            break
        weight = int(found.weights[place])
        yield found.entries.part(place, place + 1).strings()[0], weight
        lines += weight


def _pack(strings: Sequence[bytes]) -> Packed:
    return packed.pack(strings) if strings else packed.empty(0)
