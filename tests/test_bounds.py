"""Bounds on a view: which work counts, and which does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from headrace.config import Settings
from headrace.errors import Interrupted, LimitExceeded, UserError
from headrace.kernels import packed
from headrace.process import bounds
from headrace.process.bounds import Bound, Limits
from headrace.sql.view_spec import ViewSpec
from headrace.state.rocks import RocksDatabase
from tests.waiting import time_passes


class Part:
    words = "a join"


def work(seconds: float) -> None:
    """Use ``seconds`` of this thread's processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_nothing_is_bounded_where_no_bound_is_applied():
    bounds.check()
    bounds.expect(Part(), 10**12)
    assert bounds.room(Part()) is None


def test_own_time_counts_and_waiting_does_not():
    bound = Bound(Limits(time_ms=100))
    with bound.applied():
        time_passes(0.3)
        bounds.check()
        work(0.2)
        with pytest.raises(LimitExceeded, match=r"more than 100 ms .* view_time_ms_max"):
            bounds.check()
    bound.begin()
    with bound.applied():
        bounds.check()


def test_time_between_two_pieces_of_work_does_not_count():
    bound = Bound(Limits(time_ms=100))
    for _ in range(2):
        with bound.applied():
            work(0.04)
        work(0.2)
    with bound.applied():
        bounds.check()
        work(0.1)
        with pytest.raises(LimitExceeded):
            bounds.check()


def test_a_transaction_with_many_rows_may_take_its_time():
    bound = Bound(Limits(time_ms=1))
    with bound.applied():
        bound.admit(10_000, 0)
        work(0.2)
        bounds.check()


def test_keys_that_are_sought_on_disk_may_take_their_time(tmp_path):
    keys = packed.pack([b"%d" % i for i in range(400)])
    database = RocksDatabase(tmp_path / "db")
    store = database.view(1)
    store.begin(1)
    store.map("m").put_many(keys, packed.all_valid(keys))
    store.index("i").add_many(keys, keys, np.ones(400, np.int64))
    store.prepare()
    store.commit(1)
    checkpoint = database.begin_checkpoint([(store, 1)], {})
    checkpoint.write(sync=False)
    database.end_checkpoint(checkpoint)

    def reads(of) -> list[Callable[[], object]]:
        states = of.map("m"), of.index("i")
        return [
            lambda: states[0].get_many(keys),
            lambda: states[1].scan_many(keys),
            lambda: states[1].weight_many(keys, keys),
            lambda: states[1].first_many(keys, 1),
            lambda: states[1].extreme_many(keys, last=True),
            lambda: states[1].add_many(keys, keys, np.ones(400, np.int64)),
        ]

    def limited(read: Callable[[], object]) -> bool:
        with Bound(Limits(time_ms=1)).applied():
            read()
            work(0.2)
            try:
                bounds.check()
            except LimitExceeded:
                return True
        return False

    store.begin(2)
    assert all(map(limited, reads(store))), "all of it is in memory"
    cold = database.view(1, 1)
    cold.begin(2)
    assert not any(map(limited, reads(cold)))
    database.close()


def test_a_wait_that_was_slept_through_counts_as_a_short_one():
    bound = Bound(Limits(time_ms=1000))
    bound.waited(50.0)
    for _ in range(9):
        bound.waited(0.1)
    with pytest.raises(LimitExceeded, match="view_time_ms_max"):
        bound.waited(0.1)
    bound.begin()
    bound.waited(0.9)


def test_rows_are_counted_for_each_part_and_in_proportion():
    bound = Bound(Limits(rows=1000))
    one, two = Part(), Part()
    with bound.applied():
        batch = pa.record_batch({"n": range(600)})
        bounds.made(one, *bounds.measured([batch]))
        bounds.made(two, *bounds.measured([batch]))
        assert bounds.room(one) == 400
        bounds.expect(one, 400)
        with pytest.raises(LimitExceeded, match="more than 1000 rows") as caught:
            bounds.expect(one, 401)
        assert caught.value.detail == "The rows come from a join."
        assert '{"view_rows_max": 10000}' in (caught.value.hint or "")
        bounds.admit(*bounds.measured([batch]))
        bounds.expect(one, 60_000)


def test_bytes():
    batch = pa.record_batch({"n": ["x" * 1000] * 10})
    with Bound(Limits(memory_bytes=25_000)).applied():
        part = Part()
        bounds.made(part, *bounds.measured([batch, batch]))
        with pytest.raises(LimitExceeded, match="view_memory_bytes_max"):
            bounds.made(part, *bounds.measured([batch]))


def test_a_cancel_from_another_thread_ends_what_is_under_way():
    bound = Bound(Limits())
    with bound.applied():
        other = threading.Thread(target=lambda: bound.cancel(Interrupted("enough")))
        other.start()
        other.join()
        with pytest.raises(Interrupted, match="enough"):
            bounds.check()
    bound.begin()
    with bound.applied():
        bounds.check()


def test_a_bound_inside_of_another():
    outer, inner = Bound(Limits(rows=1)), Bound(Limits(rows=10))
    part = Part()
    with outer.applied():
        with inner.applied():
            bounds.expect(part, 10)
        with pytest.raises(LimitExceeded):
            bounds.expect(part, 10)
    assert bounds.current() is None


def test_options_are_bounded_by_the_settings():
    settings = Settings(view_time_ms_max=1000)
    raised = {"view_time_ms_max": 10_000, "view_rows_max": 5}
    options = ViewSpec.of(raised | {"commit_group": "slow"})
    options.check(settings)
    with pytest.raises(UserError, match="only in a commit group of its own") as caught:
        ViewSpec.of(raised).check(settings)
    assert '{"commit_group": "slow", "view_time_ms_max": 10000}' in (caught.value.hint or "")
    ViewSpec.of({"view_time_ms_max": 1000}).check(settings)
    assert bounds.of(settings, options.limits, own_group=False).time_ms == 1000
    assert bounds.of(settings, options.limits) == Limits(10_000, settings.view_memory_bytes_max, 5)
    with pytest.raises(UserError, match="must be at most 10000"):
        ViewSpec.of({"view_time_ms_max": 10_001}).check(settings)
    with pytest.raises(UserError, match="must be a number from 1"):
        ViewSpec.of({"view_time_ms_max": 0})
    # A view that was created under a higher setting.
    assert bounds.of(settings, {"view_time_ms_max": 90_000}).time_ms == 10_000
    unbounded = Settings(view_time_ms_max=0)
    ViewSpec.of({"view_time_ms_max": 90_000}).check(unbounded)
    assert bounds.of(unbounded, {"view_time_ms_max": 90_000}).time_ms == 90_000
