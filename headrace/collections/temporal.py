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
from headrace.collections.steps import run_program
from headrace.errors import BugError
from headrace.expressions.evaluate import Program
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import rows
from headrace.state.contract import IndexState, MapState, StateStore
from headrace.types import DATE, TIMESTAMPTZ, Field, Schema, arrow_schema

_CLOCK: Final = Field("now()", TIMESTAMPTZ)
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
"""So many rows are looked at to find out whether any changes."""
_BIAS: Final = 1 << 63
_NOW: Final = b"now"
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class Temporal(base.Collection):
    """Each row, and beside it how it compares with the clock.

    Meaning: at instant T the rows of the input with one boolean column more per test, the test
        with T for now().  As T passes, rows whose tests change are retracted and sent anew.
        T is the instant that the batch's record carries, never before the one of the batch
        before: the same txid has the same T however often it is replayed.
    Shape: input -> input columns, then the tests.  Key: none; any division of the rows will do.
    State: ``id``: per test the rows by the value that they are compared by, in buckets, that
        value before each row; ``id.pages``: which buckets there are, and how many rows in each;
        ``id.clock``: T, and per test the value from which on rows are kept: those that the bound
        has left behind for good (``TimeTest.slack``) are not.
    Time: holds the txid's diffs until TimeEnd.  A test is a function of how the row's ``key``
        stands to ``bound``(T), so only rows between the bounds of the T before and of this T,
        both included, can change.  That holds of any function of the clock, monotone or not (a
        month before the 31st and before the 30th may be the same day).
    Errors: RowError when key, bound or test fails.
    """

    begins = True

    def __init__(
        self, node: plan.TemporalSpec, in_schema: Schema, remote: RemoteEvaluator | None
    ) -> None:
        super().__init__(node.id, node.schema)
        self.instant = 0
        """Set by the driver before a txid: microseconds since 2000-01-01 UTC."""
        self._tests = node.tests
        self._in_schema = in_schema
        self._clocked = arrow_schema((*in_schema, _CLOCK))
        self._program = Program([t.test for t in node.tests], remote)
        self._keys = Program([t.key for t in node.tests], remote)
        self._bounds = Program([t.bound for t in node.tests], remote)
        self._held = base.Diffed(in_schema)
        self._first: list[int] | None = None
        """``_limits`` of the first contents."""
        self._rows: IndexState
        self._pages: IndexState
        self._clock: MapState

    def open(self, store: StateStore) -> None:
        """See ``Collection``."""
        self._rows = store.index(self.id)
        self._pages = store.index(f"{self.id}.pages")
        self._clock = store.map(f"{self.id}.clock")

    def describe(self) -> str:
        """See ``Collection``."""
        return f"Temporal ({len(self._tests)} tests)"

    @property
    def now(self) -> int | None:
        """The instant of its output; None before the first."""
        [value] = self._clock.get_many([_NOW])
        return None if value is None else int(_INSTANT.unpack_from(value)[0])

    def _limits(self) -> list[int]:
        """Per test the least place of rows that are kept."""
        [value] = self._clock.get_many([_NOW])
        if value is None:
            return self._passed(self.instant, [0] * len(self._tests))
        kept = [at for (at,) in _LIMIT.iter_unpack(value[_INSTANT.size :])]
        return kept or [0] * len(self._tests)

    def _passed(self, instant: int, before: list[int]) -> list[int]:
        """``_limits`` at ``instant``; they never go back."""
        if all(test.slack is None for test in self._tests):
            return before
        bounds = self._bounds.run([pa.array([instant], pa.int64())], 1)
        out = list(before)
        for number, (test, bound) in enumerate(zip(self._tests, bounds, strict=True)):
            if test.slack is None:
                continue
            shifted = _shifted(bound.to_pylist()[0], test)
            if shifted is not None:
                out[number] = max(out[number], shifted + _BIAS - test.slack)
        return out

    def near(self, instant: int) -> int:
        """How many rows stand between the bounds of now and of ``instant``."""
        now = self.now
        if now is None or instant <= now:
            return 0
        return sum(self._count(*move) for move in self._moves(now, instant))

    def crossing(self, instant: int) -> int:
        """How many rows would change were it ``instant`` now; ``near`` if very many are near."""
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
        """Make ``now`` the instant; the rows that can change no more go out of the state."""
        limits = self._passed(now, before)
        for number, (old, new) in enumerate(zip(before, limits, strict=True)):
            if 0 < old < new:
                self._forget(number, old, new)
        packed = b"".join(map(_LIMIT.pack, limits))
        self._clock.put_many([_NOW], [_INSTANT.pack(now) + packed])
        return limits

    def _forget(self, number: int, first: int, end: int) -> None:
        """Remove the rows that stand from ``first`` to before ``end``."""
        names = [n for n, _ in self._buckets(number, first, end, ranged=True)]
        at, stamped, weights = self._rows.scan_many(names)
        limit = _PLACE.pack(end)
        gone = [i for i, row in enumerate(stamped) if row[: _PLACE.size] < limit]
        buckets = [names[at[i]] for i in gone]
        counts = [-weights[i] for i in gone]
        self._rows.add_many(buckets, [stamped[i] for i in gone], counts)
        self._pages.add_many([_page(name) for name in buckets], buckets, counts)

    def _pass(self, before: int, now: int) -> list[pa.RecordBatch]:
        """Diffs of the rows that stand otherwise to ``now`` than to ``before``."""
        found: dict[bytes, int] = {}
        for move in self._moves(before, now):
            found |= self._between(*move)
        if not found:
            return []
        if min(found.values()) < 0:
            raise BugError(f'a row in state "{self.id}" has a negative weight')
        out: list[pa.RecordBatch] = []
        for batch in base.cut(base.decode(list(found), self._in_schema, found.values())):
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
        """Take up diffs of the input; only rows from ``limits`` on are kept."""
        columns, weights = base.columns_of(batch), base.weights_of(batch)
        encoded = base.encode(columns, batch.num_rows)
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
        """The tests of the rows at ``instant``."""
        n = batch.num_rows
        clock = pa.repeat(pa.scalar(instant, pa.int64()), n)
        clocked = pa.RecordBatch.from_arrays(
            [*base.columns_of(batch), clock, batch.columns[-1]], schema=self._clocked
        )
        return run_program(self._program, clocked)

    def _wide(self, batch: pa.RecordBatch, tests: list[pa.Array]) -> pa.RecordBatch:
        columns = [*base.columns_of(batch), *tests, batch.columns[-1]]
        return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(self.schema))

    # --- where rows are kept

    def _places(self, values: list[pa.Array]) -> Iterable[list[int | None]]:
        """Per test where each value stands in the order of values; None for NULL.

        Without an order: a number that equal values have in common.
        """
        for test, column in zip(self._tests, values, strict=True):
            if test.ordered:
                yield [None if v is None else v + _BIAS for v in column.to_pylist()]
            else:
                keys = rows.encode_keys([column], [test.oid], nulls=False)
                yield [None if k is None else _hashed(k) for k in keys]

    def _moves(self, before: int, now: int) -> Iterable[tuple[int, int, int]]:
        """(test, first, last) of each test whose bound has moved: from where, to where."""
        clock = [pa.array([before, now], pa.int64())]
        bounds = self._bounds.run(clock, 2)
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
        """Rows that stand from ``first`` to ``last``, or at one of them."""
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
        """How many rows ``_between`` would give, rows that are equal counted one by one."""
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
        """The bucket of a place: values close to each other, a day, or a value of its own."""
        test = self._tests[number]
        fine = test.ordered and test.oid != DATE
        return _AT.pack(number, place >> _FINE if fine else place)

    def _buckets(
        self, number: int, first: int, last: int, *, ranged: bool
    ) -> list[tuple[bytes, int]]:
        """Buckets of places from ``first`` to ``last`` (not ``ranged``: of these two only).

        And how many rows are in each.
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
    """``value`` moved by the test's shift; infinity stays."""
    edges = (-(1 << 31), (1 << 31) - 1) if test.oid == DATE else (_LEAST, _MOST)
    if value is None or value in edges:
        return value
    return max(edges[0] + 1, min(edges[1] - 1, value + test.shift))


def _hashed(key: bytes) -> int:
    """A number that only equal keys are likely to have in common."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")


def _page(bucket: bytes) -> bytes:
    """The page of the directory that names a bucket."""
    number, place = _AT.unpack(bucket)
    return _AT.pack(number, place >> _COARSE)
