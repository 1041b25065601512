"""The batching policy, by properties of its decisions; no clock, no engine, no server."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.forwarder import policy
from headrace.forwarder.policy import CheckpointLimits, Meeting, Stay

NOW = st.floats(0.0, 1e6)
SECONDS = st.floats(0.0, 100.0)
FLAG = st.booleans()
PENDING = st.just(0) | st.integers(0, 200)
LIMITS = st.builds(CheckpointLimits, st.integers(1, 100), SECONDS, SECONDS)
FACTS = {"owed": FLAG, "large": FLAG, "crowded": FLAG, "ahead": FLAG}


# --- batches of the views that lead


@given(NOW, SECONDS, SECONDS, st.floats(0.0, math.inf), SECONDS, SECONDS)
def test_more_latency_never_means_smaller_batches(opened, interval, worked, rested, one, other):
    less, more = sorted((one, other))
    ends = [
        policy.closes_at(
            opened, interval, rested, policy.gather_s(latency, -math.inf), pressed=False
        )
        for latency in (less, more)
    ]
    assert ends == sorted(ends)
    # Half of the latency is left to process the batch.
    assert ends[1] <= opened + max(interval, more / 2)


@given(NOW, SECONDS, SECONDS, SECONDS, SECONDS)
def test_longer_work_never_means_smaller_batches(opened, interval, gather, one, other):
    rested = [policy.rested_at(opened, worked) for worked in sorted((one, other))]
    ends = [policy.closes_at(opened, interval, at, gather, pressed=False) for at in rested]
    assert opened + gather <= ends[0] <= ends[1] <= opened + max(interval, gather)
    # The engine rests for a part of the time that it works, so that it can keep up.
    assert opened <= rested[0] <= rested[1] <= opened + max(one, other)


@given(NOW, SECONDS, st.floats(0.0, math.inf), SECONDS)
def test_a_pressed_batch_is_taken_at_once(opened, interval, rested, gather):
    assert policy.closes_at(opened, interval, rested, gather, pressed=True) <= opened


@given(NOW, SECONDS)
def test_a_batch_that_finds_the_engine_rested_does_not_gather(opened, interval):
    assert policy.closes_at(opened, interval, opened, 0.0, pressed=False) == opened


@given(SECONDS, st.floats(0.0, 1.0), FLAG, FLAG)
def test_no_batch_waits_longer_than_for_the_next_duty(due_s, meeting_s, full, held):
    waits = policy.waits_s(due_s, meeting_s, full=full, held=held)
    assert (waits is None) == (not (full or held or meeting_s))
    if waits is not None:
        assert 0.0 <= waits <= due_s
        assert not meeting_s or waits <= meeting_s


@given(st.integers(0, 1_000), st.integers(1, 1_000), FLAG)
def test_a_batch_is_complete_from_the_limit_of_rows_on(messages, rows_max, alone):
    now, later = (policy.is_complete(n, rows_max, alone=alone) for n in (messages, messages + 1))
    assert now == (alone or messages >= rows_max)
    assert later >= now


@given(st.integers(0, 1_000), st.integers(0, 1_000), FLAG)
def test_batches_move_to_the_log_before_the_stream_must_wait(buffered, bytes_max, takeable):
    full = policy.is_full(buffered, bytes_max, takeable=takeable)
    assert full == (takeable and buffered > bytes_max)
    assert policy.is_crowded(buffered, bytes_max) >= full
    assert policy.is_crowded(buffered + 1, bytes_max) >= policy.is_crowded(buffered, bytes_max)
    assert not policy.is_crowded(bytes_max // 2, bytes_max)


@given(FLAG, FLAG)
def test_read_ahead_takes_turns_and_stops_for_views_that_read_the_clock(has_room, reads_clock):
    goes_on = [
        policy.may_read_ahead(n, has_room=has_room, reads_clock=reads_clock) for n in range(1_000)
    ]
    assert goes_on == sorted(goes_on, reverse=True)
    assert goes_on[0] == (has_room and not reads_clock)
    assert not goes_on[-1]


@given(st.integers(0, 3_000), st.integers(0, 200_000), st.integers(0, 100), st.integers(0, 1_000))
def test_more_views_or_rows_never_change_together_rather_than_fewer(views, rows, one, other):
    assert policy.takes_together(1, 0)
    assert not policy.takes_together(300, 0)
    assert not policy.takes_together(1, 100_000)
    fewer = policy.takes_together(views, rows)
    assert fewer >= policy.takes_together(views + one, rows + other)


# --- batches of the views that lag


@pytest.mark.parametrize("fixed_s", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("each_s", [0.0001, 0.003, 0.02, 0.2])
def test_a_part_has_as_many_views_as_fit_its_time(fixed_s, each_s):
    """The fixed cost of a part neither makes it long nor lets it shrink to one view."""
    left, size, sizes = 2_000, policy.first_part(), []
    while left:
        part = min(left, size.count)
        size = size.took(part, fixed_s + part * each_s)
        sizes.append(part)
        left -= part
    # The first part knows nothing of the views.
    assert all(fixed_s + n * each_s <= 3 * policy._COALESCED_S for n in sizes[1:] if n > 1)
    assert sum(fixed_s + n * each_s for n in sizes) <= 10 + 3 * 2_000 * each_s


@given(st.lists(st.integers(0, 6 << 20), min_size=1, max_size=60), st.data())
def test_a_coalesced_batch_is_as_large_as_its_bytes_allow(sizes, data):
    after = data.draw(st.integers(0, len(sizes) - 1))
    end = data.draw(st.integers(after + 1, len(sizes)))
    asked = []

    def bytes_after(txid: int) -> int:
        asked.append(txid)
        return sum(sizes[txid:])

    last = policy.last_coalesced(after, end, bytes_after)
    assert after < last <= end
    # Only a batch of a single txid may be larger.
    assert last == after + 1 or sum(sizes[after:last]) <= policy._COALESCED_BYTES
    assert last == end or sum(sizes[after : last + 1]) > policy._COALESCED_BYTES
    assert after + 1 < end or not asked, "nothing is to be decided"


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 40))
def test_a_coalesced_batch_has_a_limited_number_of_txids(after, waiting):
    last = policy.last_coalesced(after, after + waiting, lambda _: 0)
    assert last - after == min(waiting, policy.COALESCED_TXIDS)


@given(
    st.dictionaries(st.sampled_from("abcde"), st.integers(0, 100)), st.integers(1, 100), st.data()
)
def test_a_slow_group_takes_most_of_a_batch(seconds, limit_s, data):
    slow = policy.slow_group(seconds, limit_s)
    most = {g for g, took in seconds.items() if took >= 2 * (sum(seconds.values()) - took)}
    assert ({slow} - {None}) == {g for g in most if seconds[g] >= limit_s}
    if slow is not None:
        longer = seconds | {slow: seconds[slow] + data.draw(st.integers(0, 100))}
        assert policy.slow_group(longer, limit_s) == slow, "more load does not make it fast"


@given(st.lists(st.tuples(st.floats(0.0, 200.0), FLAG), max_size=60))
def test_a_single_slow_batch_moves_no_group(batches):
    """As the engine counts: a group lags after its second slow batch in a window."""
    since, now, times, slow_at = 0.0, 0.0, 0, []
    for passed, slow in batches:
        now += passed
        if policy.counts_anew(since, now):
            since, times = now, 0
        times += slow
        slow_at += [now] * slow
        if slow and policy.must_lag(times):
            assert len(slow_at) >= 2
            assert slow_at[-1] - slow_at[-2] <= policy._WITHIN_S
            times = 0


@given(st.lists(st.tuples(st.floats(0.0, 5_000.0), st.lists(SECONDS, max_size=3)), max_size=20))
def test_a_lagging_group_that_is_fast_returns_after_its_stay(visits):
    """Each stay is longer than the one before, but none is longer than an hour."""
    stay, now, lengths = None, 0.0, []
    for fast_s, slow_again in visits:
        stay = Stay.begin(stay, now)
        for passed in slow_again:
            now += passed
            stay = stay.begin_again(now)
        assert stay.until == now + stay.seconds
        lengths.append(stay.seconds)
        now = stay.until + fast_s
    assert lengths == sorted(lengths)
    assert all(30.0 <= s <= 3_600.0 for s in lengths)
    assert lengths[7:] == [3_600.0] * len(lengths[7:])


@given(NOW)
def test_a_log_without_room_is_tried_again(now):
    assert now < policy.refused_until(now) <= now + 3_600.0


TARGETS = st.sets(
    st.sampled_from([0, 60, 100, 500, 1_000, 60_000]).map(policy.target_s), min_size=2, max_size=4
)


@given(TARGETS, st.lists(st.floats(0.001, 1.0), min_size=20, max_size=200))
def test_the_time_is_divided_by_latency_targets(targets, batches):
    """No class falls behind its share by more than one batch, and none waits for ever."""
    waiting = {target: [1] for target in targets}
    turns, used = policy.FairShares(), dict.fromkeys(targets, 0.0)
    for took_s in batches:
        target, at = turns.next(waiting)
        assert at == 1
        used[target] += took_s * target
        turns = turns.took(waiting, target, took_s)
        assert max(used.values()) - min(used.values()) <= 1.0 + 1e-9


@given(TARGETS, st.lists(st.floats(0.001, 1.0), max_size=50), st.data())
def test_a_class_that_had_no_work_gets_no_more_than_the_others(targets, batches, data):
    alone, *_ = targets
    turns = policy.FairShares()
    for took_s in batches:
        turns = turns.took([alone], alone, took_s)
    waiting = {target: [1] for target in targets}
    for _ in range(2 * len(targets)):
        target, _ = turns.next(waiting)
        turns = turns.took(waiting, target, data.draw(st.floats(0.001, 1.0)))
        assert max(turns.used.values()) - min(turns.used.values()) <= 1.0 + 1e-9


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True).map(sorted))
def test_the_furthest_views_of_a_class_alternate_with_the_nearest(positions):
    turns, got = policy.FairShares(), []
    for _ in range(6):
        target, at = turns.next({0.0: positions})
        turns = turns.took([0.0], target, 0.1)
        got.append(at)
    assert got == [positions[-1], positions[0]] * 3


STEPS = st.lists(
    st.tuples(
        st.floats(0.0, 3.0),
        st.sampled_from([0, 3, 8, 9, 1_000, math.inf]),
        st.sampled_from([0.0, 0.1, 0.2, math.inf]),
        st.sampled_from([False, False, False, True]),
    ),
    max_size=200,
)


@given(STEPS)
def test_new_batches_wait_for_at_most_a_tenth_of_the_time(steps):
    """This also holds if a view is about to lead again and again, and if the engine does other work."""
    meeting, now, waited, first = Meeting(), 0.0, 0.0, None
    for passed, lacks, lacks_s, met in steps:
        begun = meeting
        meeting, wait_s = meeting.at(now, lacks, lacks_s, 4)
        assert 0.0 <= wait_s <= 1.0
        assert not wait_s or lacks <= 8 or lacks_s <= 0.1, "it waits for no view that is far behind"
        if meeting.until > begun.until:  # another wait begins
            first = now if first is None else first
            assert waited <= (now - first) / 10 + 1e-6
        if met:
            meeting = meeting.met()
        elif wait_s:
            waited += min(passed, wait_s)
        now += min(passed, wait_s) if wait_s else passed


@given(st.floats(0.0, 100.0), st.integers(0, 8), st.integers(1, 12))
def test_new_batches_wait_longer_until_the_view_leads(start, lacks, times):
    meeting, waits = Meeting(), []
    now = start
    meeting, wait_s = meeting.at(now, lacks, math.inf, 4)
    assert wait_s == 0.0, "at first it may come without that"
    for _ in range(times):
        now = max(now + 0.15, meeting.again)
        meeting, wait_s = meeting.at(now, lacks, math.inf, 4)
        waits.append(wait_s)
        assert meeting.again >= now + 10 * wait_s, "a tenth of the time"
        again, rest_s = meeting.at(now + wait_s / 2, lacks, math.inf, 4)
        assert again == meeting
        assert rest_s == pytest.approx(wait_s / 2, abs=1e-6)
        assert meeting.at(now + wait_s, lacks, math.inf, 4) == (meeting, 0.0)
    assert waits == [min(0.1 * 2**n, 1.0) for n in range(times)]
    assert meeting.met().at(meeting.again, lacks, math.inf, 4)[1] == 0.1, (
        "a success makes it short again"
    )
    gone, _ = meeting.at(meeting.again, math.inf, math.inf, 4)
    assert gone.at(meeting.again, lacks, math.inf, 4)[1] == 0.0, "it lingers first, again"


def test_batches_gather_while_a_view_catches_up_for_long():
    assert [policy.gather_s(0.0, s) for s in (-math.inf, 0.5, 2.0)] == [0.0, 0.0, 0.02]
    assert policy.gather_s(1.0, 2.0) == policy.gather_s(1.0, 0.0) > 0.02


@given(st.lists(st.tuples(st.floats(0.0, 0.3), st.integers(0, 3)), min_size=1, max_size=40))
def test_since_when_a_txid_has_passed(steps):
    """It is exact for the last 0.1 s; before that, some time that is longer ago."""
    times, now, txid, begun = policy.PassingTimes(), 1_000.0, 0, {}
    for passed, more in steps:
        now, txid = now + passed, txid + more
        begun.setdefault(txid, now)
        times = times.noted(txid, now)
        for has in range(txid + 1):
            later = [at for known, at in begun.items() if known > has]
            true = min(later, default=now)
            found = times.since(has, now)
            assert found == true or (true <= found < now - 0.1)
        assert len(times.times) < 100
    assert times.noted(txid - 1, now).since(txid - 2, now) == now, "after a new beginning"


# --- checkpoints


@given(LIMITS, NOW, PENDING, st.fixed_dictionaries(FACTS), st.sampled_from([*FACTS]))
def test_more_to_save_never_means_a_later_checkpoint(limits, last, pending, facts, more):
    limits = replace(limits, idle_s=max(limits.interval_s, limits.idle_s))
    due = limits.due(last, pending, **facts)
    assert limits.due(last, pending + 1, **facts) <= due
    assert limits.due(last, pending, **(facts | {more: True})) <= due


@given(LIMITS, NOW, PENDING, st.fixed_dictionaries(FACTS))
def test_a_checkpoint_is_due_within_its_interval_or_not_at_all(limits, last, pending, facts):
    due = limits.due(last, pending, **facts)
    idle = not (pending or facts["owed"] or facts["crowded"])  # large states need a commit
    assert (due == math.inf) == (idle and not facts["ahead"])
    assert idle or last <= due <= last + limits.interval_s
    assert due in {last, last + limits.interval_s, last + limits.idle_s, math.inf}
    if pending >= limits.txids or facts["owed"]:
        assert due == last
    if idle and facts["ahead"]:
        assert due == last + limits.idle_s


@given(LIMITS, st.integers(0, 2_000))
def test_batches_go_on_while_a_few_checkpoints_fail(limits, pending):
    assert limits.missing(pending) == (pending >= 8 * limits.txids)
    assert limits.missing(pending + 1) >= limits.missing(pending)


@given(st.floats(0.2, 100.0))
def test_no_pause_after_failures_is_unbounded(longest_s):
    pauses = [policy.backoff_s(n, longest_s) for n in (*range(100), 10_000)]
    assert pauses[0] == 0.2
    assert all(a <= b <= min(2 * a, longest_s) for a, b in itertools.pairwise(pauses[:100]))
    assert pauses[-1] == longest_s


def coalesced(
    fixed_s: float, txid_s: float, batches: int, noise: Callable[[], float] = lambda: 1.0
) -> list[tuple[int, float]]:
    """Return the txids and seconds of the batches of a view that is far behind."""
    size, taken = policy.CoalescedSize(), []
    for _ in range(batches):
        taken.append((size.count, (fixed_s + size.count * txid_s) * noise()))
        size = size.took(*taken[-1])
    return taken


@given(st.floats(0.0, 0.2), st.floats(1e-5, 0.3))
def test_coalesced_batches_take_half_a_second(fixed_s, txid_s):
    later = coalesced(fixed_s, txid_s, 60)[20:]
    assert all(seconds <= 0.6 or txids == 1 for txids, seconds in later)
    assert all(seconds >= 0.2 or txids in (1, 1_000) for txids, seconds in later)


@given(st.floats(0.0, 30.0), st.floats(1e-6, 0.1), st.randoms(use_true_random=False))
def test_smaller_batches_let_no_view_fall_behind(fixed_s, txid_s, rng):
    """Also if the time of a batch hardly depends on its size, or on chance."""
    for noise, worst in ((lambda: 1.0, 2.5), (lambda: 2.0 ** rng.uniform(-1, 1), 8.0)):
        taken = coalesced(fixed_s, txid_s, 400, noise)
        txids, seconds = map(sum, zip(*taken, strict=True))
        first_s = fixed_s + 1_000 * txid_s
        assert seconds - 20 * first_s <= worst * txids / 1_000 * first_s


@given(st.lists(st.tuples(st.integers(1, 1_000), st.floats(0.0, 100.0)), max_size=50))
def test_the_size_of_a_coalesced_batch_stays_within_its_bounds(batches):
    size = policy.CoalescedSize()
    for txids, seconds in batches:
        size = size.took(min(txids, size.count), seconds)
        assert 1 <= size.count <= 1_000
