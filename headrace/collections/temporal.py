"""Comparisons of a row with the clock."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.collections import base, plan
from headrace.collections.calendar import calendar_run
from headrace.collections.listed import ListedIndex, ListedMap
from headrace.collections.steps import run_program
from headrace.errors import BugError
from headrace.expressions.calendar import CalendarValues
from headrace.expressions.evaluate import Program
from headrace.expressions.ir import Column
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import packed, rows
from headrace.state.contract import StateStore
from headrace.types import DATE, TIMESTAMPTZ, Field, Schema, arrow_schema, arrow_type

_CLOCK: Final = Field("now()", TIMESTAMPTZ)
_NOW_ALONE: Final = Column(0, TIMESTAMPTZ)
_INSTANT: Final = struct.Struct(">q")
_LIMIT: Final = struct.Struct(">Q")
_AT: Final = struct.Struct(">BQ")
_PLACE: Final = struct.Struct(">Q")
_FINE: Final = 22
"""A bucket of rows is 2^22 microseconds, about four seconds, of their keys; of dates, a day."""
_COARSE: Final = 16
"""A page of the directory names up to 2^16 buckets, about three days."""
_PAGES_MAX: Final = 100_000
_COUNTED_MAX: Final = 20_000
"""Maximum number of rows to test in ``crossing``."""
_BIAS: Final = 1 << 63
_NOW: Final = b"now"
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class Temporal(base.Collection):
    """Each row with the results of its comparisons with the clock.

    Meaning: at timestamp T the rows of the input with one more boolean column per test, the test
        with T for now().  As T advances, rows whose tests change are retracted and sent again.
        T is the timestamp in the batch's record, never less than that of the previous batch.
        So a replay of a txid has the same T.
    Shape: input -> input columns, then the tests.  Key: none; rows may be partitioned in any way.
    State: ``id``: per test the rows in buckets of the compared value, each prefixed with that
        value; ``id.pages``: the buckets, and the number of rows in each; ``id.clock``: T, and per
        test the least value whose rows are kept.  Rows that the bound has passed for good
        (``TimeTestSpec.slack``) are removed.
    Time: holds the txid's diffs until TimeEnd.  A test depends only on the order of the row's
        ``key`` and ``bound``(T), so only rows between the previous and the new bound, both
        included, can change.  That is true for any function of the clock, monotone or not (a month
        before the 31st and before the 30th may be the same day).
    Errors: RowError when key, bound or test fails.
    """

    begins = True

    def __init__(
        self, node: plan.TemporalSpec, in_schema: Schema, remote: RemoteEvaluator | None
    ) -> None:
        super().__init__(node.id, node.schema)
        self.instant = 0
        """Timestamp set by the driver before a txid: microseconds since 2000-01-01 UTC."""
        self._tests = node.tests
        self._in_schema = in_schema
        self._clocked = arrow_schema((*in_schema, _CLOCK))
        self._program = Program([t.test for t in node.tests], remote)
        self._keys = Program([t.key for t in node.tests], remote)
        self._bounds = Program([t.bound for t in node.tests], remote)
        calendar = all(t.calendar for t in node.tests)
        self._calendar = CalendarValues([t.bound for t in node.tests], remote) if calendar else None
        self._direct = all(t.bound == _NOW_ALONE and t.oid == TIMESTAMPTZ for t in node.tests)
        """Whether each bound is the clock itself, so it is known when it will reach a row."""
        self._held = base.Diffed(in_schema)
        self._first: list[int] | None = None
        """``_limits`` during population."""
        self._stored: bytes | None = None
        """The timestamp of the output and ``_limits``, as stored, once they were read."""
        self._rows: ListedIndex
        self._pages: ListedIndex
        self._clock: ListedMap

    def open(self, store: StateStore) -> None:
        """See ``Collection``."""
        self._rows = ListedIndex(store.index(self.id))
        self._pages = ListedIndex(store.index(f"{self.id}.pages"))
        self._clock = ListedMap(store.map(f"{self.id}.clock"))
        self._stored = None

    def describe(self) -> str:
        """See ``Collection``."""
        return f"Temporal ({len(self._tests)} tests)"

    @property
    def now(self) -> int | None:
        """The timestamp of its output; None before the first txid."""
        value = self._known()
        return None if value is None else int(_INSTANT.unpack_from(value)[0])

    def _known(self) -> bytes | None:
        if self._stored is None:
            [self._stored] = self._clock.get_many([_NOW])
        return self._stored

    def _limits(self) -> list[int]:
        """Return per test the least position of rows that are kept."""
        value = self._known()
        if value is None:
            return self._passed(self.instant, [0] * len(self._tests))
        kept = [at for (at,) in _LIMIT.iter_unpack(value[_INSTANT.size :])]
        return kept or [0] * len(self._tests)

    def _passed(self, instant: int, before: list[int]) -> list[int]:
        """Return ``_limits`` at ``instant``; they never decrease."""
        if all(test.slack is None for test in self._tests):
            return before
        bounds = self._bounds_at(instant)
        out = list(before)
        for number, (test, bound) in enumerate(zip(self._tests, bounds, strict=True)):
            if test.slack is None:
                continue
            shifted = _shifted(bound.to_pylist()[0], test)
            if shifted is not None:
                out[number] = max(out[number], shifted + _BIAS - test.slack)
        return out

    def until(self, instant: int) -> int:
        """Return until when no row changes, from ``instant`` on; itself if one may have."""
        now = self.now
        if now is None or instant <= now:
            return instant + 1
        until = instant + 1
        if self._calendar is not None:
            run = calendar_run(self._calendar, instant)
            if run.values == calendar_run(self._calendar, now).values:
                return run.until
            until = run.until
        if self.near(instant):
            return instant
        return self._reached_at(instant) if self._direct else until

    def _reached_at(self, instant: int) -> int:
        """Return a timestamp after ``instant`` before which no bound reaches another row.

        REQUIRES: ``_direct``.
        """
        found = []
        for number, test in enumerate(self._tests):
            bound = _shifted(instant, test)
            assert bound is not None, "the clock has a time"
            found.append(self._next(number, bound + _BIAS) - _BIAS - test.shift)
        return max(min(found), instant + 1)

    def _next(self, number: int, place: int) -> int:
        """Return a position after ``place`` before which there is no other row of a test."""
        here = self._bucket(number, place)
        _, stamped, _ = self._rows.scan_many([here])
        if after := [at for row in stamped if (at := _PLACE.unpack_from(row)[0]) > place]:
            return int(min(after))
        page = place >> _FINE >> _COARSE
        _, names, _ = self._pages.scan_many([_AT.pack(number, p) for p in (page, page + 1)])
        later = min((name for name in names if name > here), default=None)
        bucket: int = (page + 2) << _COARSE if later is None else _AT.unpack(later)[1]
        return bucket << _FINE

    def rows(self, instant: int) -> int:
        """See ``near``."""
        return self.near(instant)

    def near(self, instant: int) -> int:
        """Return how many rows are between the bounds of ``now`` and of ``instant``."""
        now = self.now
        if now is None or instant <= now:
            return 0
        return sum(self._count(*move) for move in self._moves(now, instant))

    def crossing(self, instant: int) -> int:
        """Return how many rows would change at ``instant``; ``near`` if that is large."""
        near = self.near(instant)
        now = self.now
        if not 0 < near <= _COUNTED_MAX or now is None:
            return near
        changed: list[int] = [b.num_rows for b in self._pass(now, instant)]
        return sum(changed) // 2

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        if self.insert_only:
            if self._first is None:
                self._first = self._limits()
            return self._enter(batch, self.instant, self._first)
        self._held.add(batch)
        return []

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        before = self.now
        now = self.instant if before is None else max(before, self.instant)
        out: list[pa.RecordBatch] = []
        if before is not None and now > before:
            out = self._pass(before, now)
        limits = self._limits()
        if now != before:
            limits = self._leave_behind(limits, now)
        for batch in self._held.take():
            out += self._enter(batch, now, limits)
        return out

    def _leave_behind(self, before: list[int], now: int) -> list[int]:
        """Store ``now`` as the timestamp, and remove rows that can no longer change."""
        limits = self._passed(now, before)
        for number, (old, new) in enumerate(zip(before, limits, strict=True)):
            if 0 < old < new:
                self._forget(number, old, new)
        self._stored = _INSTANT.pack(now) + b"".join(map(_LIMIT.pack, limits))
        self._clock.put_many([_NOW], [self._stored])
        return limits

    def _forget(self, number: int, first: int, end: int) -> None:
        """Remove the rows at positions from ``first`` to before ``end``."""
        names = [n for n, _ in self._buckets(number, first, end, ranged=True)]
        at, stamped, weights = self._rows.scan_many(names)
        limit = _PLACE.pack(end)
        gone = [i for i, row in enumerate(stamped) if row[: _PLACE.size] < limit]
        buckets = [names[at[i]] for i in gone]
        counts = [-weights[i] for i in gone]
        self._rows.add_many(buckets, [stamped[i] for i in gone], counts)
        self._pages.add_many([_page(name) for name in buckets], buckets, counts)

    def _pass(self, before: int, now: int) -> list[pa.RecordBatch]:
        """Return the diffs of the rows whose tests differ between ``before`` and ``now``."""
        found: dict[bytes, int] = {}
        for move in self._moves(before, now):
            found |= self._between(*move)
        if not found:
            return []
        if min(found.values()) < 0:
            raise BugError(f'a row in state "{self.id}" has a negative weight')
        out: list[pa.RecordBatch] = []
        weights = np.array([*found.values()], np.int64)
        for batch in base.cut(base.decode(packed.pack([*found]), self._in_schema, weights)):
            old, new = self._stand(batch, before), self._stand(batch, now)
            changed = np.zeros(batch.num_rows, np.bool_)
            for was, becomes in zip(old, new, strict=True):
                same = pc.fill_null(pc.equal(was, becomes), False)
                both = pc.and_(pc.is_null(was), pc.is_null(becomes))
                changed |= ~pc.or_(same, both).to_numpy(zero_copy_only=False)
            if not changed.any():
                continue
            mask = pa.array(changed)
            gone = self._wide(batch, old).filter(mask)
            minus = pc.negate(gone.columns[-1])
            out += base.cut(
                pa.RecordBatch.from_arrays([*gone.columns[:-1], minus], schema=gone.schema)
            )
            out += base.cut(self._wide(batch, new).filter(mask))
        return out

    def _enter(self, batch: pa.RecordBatch, now: int, limits: list[int]) -> list[pa.RecordBatch]:
        """Return diffs of the input with their tests; store the rows from ``limits`` on."""
        columns, weights = base.columns_of(batch), base.weights_of(batch).tolist()
        encoded = base.encode(columns, batch.num_rows).strings()
        keys = self._keys.run(columns, batch.num_rows)
        for number, places in enumerate(self._places(keys)):
            limit = limits[number]
            known = [
                (i, place) for i, place in enumerate(places) if place is not None and place >= limit
            ]
            names = [self._bucket(number, place) for _, place in known]
            counts = [weights[i] for i, _ in known]
            stamped = [_PLACE.pack(place) + encoded[i] for i, place in known]
            self._rows.add_many(names, stamped, counts)
            self._pages.add_many([_page(name) for name in names], names, counts)
        return base.cut(self._wide(batch, self._stand(batch, now)))

    def _stand(self, batch: pa.RecordBatch, instant: int) -> list[pa.Array]:
        """Return the test columns of the rows at ``instant``."""
        n = batch.num_rows
        clock = pa.repeat(pa.scalar(instant, pa.int64()), n)
        clocked = pa.RecordBatch.from_arrays(
            [*base.columns_of(batch), clock, batch.columns[-1]], schema=self._clocked
        )
        return run_program(self._program, clocked)

    def _wide(self, batch: pa.RecordBatch, tests: list[pa.Array]) -> pa.RecordBatch:
        columns = [*base.columns_of(batch), *tests, batch.columns[-1]]
        return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(self.schema))

    # --- positions and buckets of rows

    def _places(self, values: list[pa.Array]) -> Iterable[list[int | None]]:
        """Yield per test the position of each value in their order; None for NULL.

        For a type without an order, the position is a hash of the value.
        """
        for test, column in zip(self._tests, values, strict=True):
            if test.ordered:
                yield [None if v is None else v + _BIAS for v in column.to_pylist()]
            else:
                keys = rows.encode_keys([column], [test.oid], nulls=False)
                yield [None if k is None else _hashed(k) for k in keys]

    def _bounds_at(self, *instants: int) -> list[pa.Array]:
        """Return the bounds at timestamps, a column per test."""
        if self._calendar is None:
            return self._bounds.run([pa.array(instants, pa.int64())], len(instants))
        # All views with equal settings share these, so Postgres is rarely asked.
        runs = [calendar_run(self._calendar, instant) for instant in instants]
        out = []
        for number, test in enumerate(self._tests):
            values = packed.pack([run.values[number] for run in runs])
            out += rows.decode_rows(values, [arrow_type(test.bound.oid)])
        return out

    def _moves(self, before: int, now: int) -> Iterable[tuple[int, int, int]]:
        """Yield (test, first, last) for each test whose bound has moved: the range it passed."""
        bounds = self._bounds_at(before, now)
        moved = [
            pa.array([_shifted(v, test) for v in bound.to_pylist()], bound.type)
            if test.ordered
            else bound
            for test, bound in zip(self._tests, bounds, strict=True)
        ]
        for number, (bound, places) in enumerate(zip(moved, self._places(moved), strict=True)):
            first, last = places
            if first is None or last is None:
                raise BugError("the clock has no time")
            if bound[0] != bound[1]:
                yield number, min(first, last), max(first, last)

    def _between(self, number: int, first: int, last: int) -> dict[bytes, int]:
        """Return the rows from ``first`` to ``last``; if not ``ranged``, only those at the ends."""
        ranged = self._tests[number].ranged
        names = [n for n, _ in self._buckets(number, first, last, ranged=ranged)]
        _, stamped, weights = self._rows.scan_many(names)
        low, high = _PLACE.pack(first), _PLACE.pack(last)
        return {
            row[_PLACE.size :]: weight
            for row, weight in zip(stamped, weights, strict=True)
            if (place := row[: _PLACE.size]) in (low, high) or (ranged and low < place < high)
        }

    def _count(self, number: int, first: int, last: int) -> int:
        """Return how many rows ``_between`` would find, equal rows counted one by one."""
        ends = {self._bucket(number, first), self._bucket(number, last)}
        ranged = self._tests[number].ranged
        inside = sum(
            count
            for name, count in self._buckets(number, first, last, ranged=ranged)
            if name not in ends
        )
        _, stamped, weights = self._rows.scan_many(list(ends))
        low, high = _PLACE.pack(first), _PLACE.pack(last)
        return inside + sum(
            weight
            for row, weight in zip(stamped, weights, strict=True)
            if low <= row[: _PLACE.size] <= high
        )

    def _bucket(self, number: int, place: int) -> bytes:
        """Return the bucket of a position: a range of values, a day, or one value."""
        test = self._tests[number]
        fine = test.ordered and test.oid != DATE
        return _AT.pack(number, place >> _FINE if fine else place)

    def _buckets(
        self, number: int, first: int, last: int, *, ranged: bool
    ) -> list[tuple[bytes, int]]:
        """Return the buckets from ``first`` to ``last``, and the number of rows in each.

        If not ``ranged``, return the buckets of these two positions only.
        """
        low, high = self._bucket(number, first), self._bucket(number, last)
        if not (ranged and self._tests[number].ordered):
            names = list({low, high})
            at, _, counts = self._rows.scan_many(names)
            totals = [0] * len(names)
            for place, count in zip(at, counts, strict=True):
                totals[place] += count
            return list(zip(names, totals, strict=True))
        pages = range(_AT.unpack(_page(low))[1], _AT.unpack(_page(high))[1] + 1)
        out: dict[bytes, int] = {}
        for start in range(0, len(pages), _PAGES_MAX):
            part = [_AT.pack(number, page) for page in pages[start : start + _PAGES_MAX]]
            _, names, counts = self._pages.scan_many(part)
            out |= {
                name: count
                for name, count in zip(names, counts, strict=True)
                if low <= name <= high
            }
        return list(out.items())


def _shifted(value: int | None, test: plan.TimeTestSpec) -> int | None:
    """Return ``value`` plus the test's shift; infinity stays."""
    edges = (-(1 << 31), (1 << 31) - 1) if test.oid == DATE else (_LEAST, _MOST)
    if value is None or value in edges:
        return value
    return max(edges[0] + 1, min(edges[1] - 1, value + test.shift))


def _hashed(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")


def _page(bucket: bytes) -> bytes:
    """Return the directory page that lists a bucket."""
    number, place = _AT.unpack(bucket)
    return _AT.pack(number, place >> _COARSE)
