"""What a link is like, by what goes over it: figures from arithmetic on times that are given."""

from __future__ import annotations

import pytest

from headrace.network import pace
from headrace.network.meter import LinkMeter
from headrace.network.pace import LinkPace

MB = 1_000_000


def test_nothing_is_known_of_a_new_link() -> None:
    told = LinkMeter().told(100.0)
    assert (told.latency_us, told.bandwidth, told.most) == (None, None, None)
    assert (told.out_now, told.in_now) == (0, 0)


def test_latency_is_half_of_the_least_round_trip() -> None:
    meter = LinkMeter()
    for at, trip in ((1.0, 0.100), (2.0, 0.042), (3.0, 0.300)):
        meter.answered(at, at + trip)
    assert meter.told(4.0).latency_us == 21_000
    # What is older than half a minute says nothing any more.
    meter.answered(40.0, 40.2)
    assert meter.told(40.2).latency_us == 100_000


def test_bandwidth_is_what_arrived_in_the_time_but_for_the_way() -> None:
    meter = LinkMeter()
    meter.answered(0.0, 0.1)
    # A megabyte at 2 MB/s over 50 ms each way: said to have arrived 0.6 s after it was sent.
    meter.sends(MB, 10.0)
    assert meter.under_way == MB
    meter.arrived(MB, 10.6)
    assert meter.told(10.6).bandwidth == pytest.approx(2 * MB)
    assert meter.under_way == 0


def test_little_says_nothing() -> None:
    meter = LinkMeter()
    for n in range(100):
        meter.sends(1000, n)
        meter.arrived(1000 * (n + 1), n + 0.5)
    assert meter.told(100.0).bandwidth is None
    # Ten seconds' worth: 10 of 1000 bytes each.
    assert meter.told(99.0).out_now == 1000


def test_what_never_rests_is_judged_bit_by_bit() -> None:
    meter = LinkMeter()
    got = 0
    for n in range(1, 101):  # 100 kB each tenth of a second, always 300 kB ahead
        meter.sends(100_000 if n > 1 else 400_000, n / 10)
        got += 100_000
        meter.arrived(got, n / 10 + 0.1)
    assert meter.told(10.1).bandwidth == pytest.approx(MB, rel=0.06)


def test_the_most_of_late_counts_and_the_most_ever_is_kept() -> None:
    meter = LinkMeter()
    for at, took in ((0.0, 0.1), (10.0, 1.0), (45.0, 2.0)):
        meter.sends(MB, at)
        meter.arrived(meter.under_way and round(MB * (1 + (at > 0) + (at > 10))), at + took)
    told = meter.told(50.0)
    assert told.bandwidth == pytest.approx(MB / 2)
    assert told.most == pytest.approx(10 * MB)


def test_what_comes_tells_the_bandwidth_where_nothing_is_sent() -> None:
    meter = LinkMeter()
    for n in range(6):  # 100 kB each 20 ms, but for the first one, which says nothing
        meter.came(100_000, 5.0 + n * 0.02)
    assert meter.told(5.1).bandwidth == pytest.approx(5 * MB)
    # What is sent tells more surely: nobody has to make it first.
    meter.sends(MB, 6.0)
    meter.arrived(MB, 6.1)
    assert meter.told(6.1).bandwidth == pytest.approx(10 * MB)


def test_who_claims_to_have_got_more_than_was_sent_is_not_believed() -> None:
    meter = LinkMeter()
    meter.sends(1000, 0.0)
    meter.arrived(10**9, 0.1)
    meter.sends(1000, 1.0)
    assert meter.under_way == 1000


def test_a_slow_link_is_packed_and_one_in_between_stays_as_it_is() -> None:
    before = pace.first(far=True)
    assert before.packed, "nobody knows"
    seen = []
    for rate in (20, 40, 59, 61, 40, 31, 29, 40):
        before = pace.of(rate * MB, None, before)
        seen.append(before.packed)
    assert seen == [True, True, True, False, False, False, True, True]


def test_what_somebody_says_decides_of_packing_and_what_is_so_of_sizes() -> None:
    before = pace.first(far=True)
    fast = pace.of(10_000, 10**9, before)
    assert not fast.packed
    assert fast.piece_bytes is not None
    assert fast.piece_bytes <= 1 << 14, "a word would have to wait for longer"
    slow = pace.of(10**9, 10_000, fast)
    assert slow.packed
    assert slow.window_bytes == 1 << 23


@pytest.mark.parametrize("rate", [1, 10_000, 200_000, MB, 50 * MB, 10**10])
def test_pieces_and_windows_are_bounded(rate: int) -> None:
    found = pace.of(rate, None, pace.first(far=True))
    assert found.piece_bytes is not None
    assert 1 << 14 <= found.piece_bytes <= 1 << 20
    assert found.piece_bytes <= found.window_bytes
    assert 1 << 18 <= found.window_bytes <= 1 << 23


def test_on_this_machine_nothing_is_packed_whatever_is_measured_or_said() -> None:
    near = pace.first(far=False)
    assert pace.of(1000, 1000, near) == near == LinkPace(False, None, 1 << 26)
