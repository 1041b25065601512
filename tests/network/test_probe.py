"""Probes of a link, over lines in virtual time, and over a socket in use."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.network import probe
from headrace.network.ends import Near
from headrace.network.link import FlightLink
from headrace.network.messages import Greeting
from headrace.network.probe import Probed, Prober, Unsteady, measure
from headrace.population import placing
from headrace.sql.links import LinkFacts
from tests.network.test_link import politely
from tests.network.test_sender import Living
from tests.waiting import wait_until

_SEGMENT = 1448
_LINES = 300


class Line:
    """A line in virtual time with TCP slow start; ``delays`` are the machine's."""

    def __init__(self, rate: float, trip_s: float, delays: Callable[[], float]) -> None:
        self.rate, self.trip_s, self._delays = rate, trip_s, delays
        self.moved, self.passed_s = 0, 0.0
        self._windows = [10 * _SEGMENT, 10 * _SEGMENT]

    def exchange(self, size: int) -> float:
        """Send both ways; each way takes another round trip for every window that it fills."""
        took = self.trip_s + self._delays()
        for way in range(2):
            left = size
            while left > self._windows[way]:
                sent = self._windows[way]
                left -= sent
                self._windows[way] *= 2
                # The line is idle while the acknowledgements come back.
                took += max(sent / self.rate, self.trip_s)
            took += left / self.rate
        self.moved += 2 * size
        self.passed_s += took
        return took


def _line(rng: random.Random, delays: Callable[[], float]) -> Line:
    """Draw a line of 2 kB/s to 2 GB/s, and of 0.1 to 300 ms."""
    return Line(10 ** rng.uniform(3.3, 9.3), 10 ** rng.uniform(-4, -0.52), delays)


def lines(count: int, delays: Callable[[random.Random], float]) -> Iterator[Line]:
    """Draw lines of 2 kB/s to 2 GB/s, and of 0.1 to 300 ms."""
    for seed in range(count):
        rng = random.Random(seed)
        yield Line(
            10 ** rng.uniform(3.3, 9.3), 10 ** rng.uniform(-4, -0.52), lambda r=rng: delays(r)
        )


def test_an_idle_machine_measures_what_a_line_bears() -> None:
    """If the transfer takes no longer than the round trip's jitter, the result is a lower bound."""
    for line in lines(_LINES, lambda rng: 0.0):
        found = measure(line.exchange)
        assert abs(found.latency_us - line.trip_s * 5e5) <= 1 + 1e6 / line.rate
        shown = 2 * probe._MOST_BYTES / max(probe._JITTER * line.trip_s, probe._CLOCK_S)
        assert 0.5 * min(line.rate, shown) <= found.bandwidth <= 1.5 * line.rate, vars(line)


def test_a_busy_machine_does_not_make_a_fast_line_slow() -> None:
    """Every tenth exchange takes up to 200 ms more, because the machine is busy."""
    for seed in range(_LINES):
        rng = random.Random(seed)
        line = Line(
            125e6, 10 ** rng.uniform(-4, -2), lambda r=rng: (r.random() < 0.1) * r.random() / 5
        )
        best = 0
        for _ in range(probe.PROBES):
            with contextlib.suppress(Unsteady):
                best = max(best, measure(line.exchange).bandwidth)
        assert placing.weight(LinkFacts(None, best or None)) < 1.5, seed


def test_a_worker_that_computes_does_not_make_a_fast_line_slow() -> None:
    """Every exchange waits for up to 30 ms, as when a local socket was measured at 380 kB/s.

    Then most probes show no rate, or a fast line; a slow line is measured nevertheless.
    """
    unknown = wrong = measured = 0
    for seed in range(_LINES):
        rng = random.Random(seed)
        fast = Line(125e6, 10 ** rng.uniform(-4, -2), lambda r=rng: r.random() * 0.03)
        slow = Line(1e5, 10 ** rng.uniform(-4, -2), lambda r=rng: r.random() * 0.03)
        try:
            wrong += placing.weight(LinkFacts(None, measure(fast.exchange).bandwidth)) > 10
        except Unsteady:
            unknown += 1
        with contextlib.suppress(Unsteady):
            assert 0.3e5 <= measure(slow.exchange).bandwidth <= 1.5e5, seed
            measured += 1
    assert wrong <= _LINES // 50
    assert unknown < _LINES
    assert measured > _LINES // 2


def test_a_line_that_is_never_the_same_stays_unknown() -> None:
    line = Line(125e6, 1e-3, lambda: 0.1 * 3 ** next(count))
    count = iter(range(100))
    with pytest.raises(Unsteady):
        measure(line.exchange)


def test_a_probe_is_bounded_in_bytes_and_time() -> None:
    """A line is occupied for less than 250 ms, or some round trips; by 15 kB if it is very slow."""
    for line in lines(_LINES, lambda rng: rng.random() * rng.choice((0, 0, 0.3))):
        with contextlib.suppress(Unsteady):
            measure(line.exchange)
        assert line.moved <= 4 << 20
    for line in lines(_LINES, lambda rng: 0.0):
        found = measure(line.exchange)
        assert found.moved <= line.moved <= found.moved + 20
        tiny = found.moved == 3 * 2 * probe._FIRST_BYTES
        assert tiny or found.moved / line.rate <= 0.25 + 20 * line.trip_s, vars(line)


def test_what_was_taken_for_a_slow_link_is_an_ordinary_one() -> None:
    """A local socket was measured at 380 kB/s: 70 kB in a message that waited for the worker."""
    assert placing.weight(LinkFacts()) == 1
    local = Line(1e9, 2e-4, lambda: 0.0)
    assert placing.weight(LinkFacts(None, measure(local.exchange).bandwidth)) < 1.5


class Traffic:
    """A probe that runs until the test ends it, and other traffic on its link."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moved, self.now = 0, 1000.0
        self.results: list[Probed] = []
        self.begun, self.ended = threading.Semaphore(0), threading.Semaphore(0)
        self.outcome: Probed | Exception = Probed(100, 10**8, 1 << 20)
        monkeypatch.setattr(probe, "probe", self._probe)
        monkeypatch.setattr(probe.clock, "monotonic", lambda: self.now)
        self.prober = Prober("w1", None, lambda: self.moved, self.results.append)

    def _probe(self, client: Any) -> Probed:
        self.begun.release()
        self.ended.acquire()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def begins(self) -> bool:
        before = self.prober._running
        self.prober.look()
        return not before and self.prober._running

    def ends(self) -> None:
        self.ended.release()
        wait_until(lambda: not self.prober._running, "it has ended")


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> Traffic:
    return Traffic(monkeypatch)


def test_a_link_is_probed_when_it_begins_and_rarely_afterwards(traffic: Traffic) -> None:
    assert traffic.begins()
    assert not traffic.begins(), "one at a time"
    traffic.moved += 100  # a heartbeat
    traffic.ends()
    for told in range(1, probe.PROBES):
        wait_until(lambda n=told: len(traffic.results) == n, "it is told")
        assert not traffic.begins()
        traffic.now += probe.SOON_S
        assert traffic.begins()
        traffic.ends()
    traffic.now += probe.AGAIN_S - 1
    assert not traffic.begins()
    traffic.now += 1
    assert traffic.begins()
    traffic.ends()


def test_a_link_that_is_used_is_not_probed(traffic: Traffic) -> None:
    for _ in range(3):
        traffic.moved += 100_000
        assert not traffic.begins()
    with traffic.prober.transfer():
        assert not traffic.begins()
    assert traffic.begins()
    traffic.ends()


@pytest.mark.parametrize("use", ["messages", "file", "nothing comes back", "unsteady"])
def test_a_probe_that_was_disturbed_tells_nothing(traffic: Traffic, use: str) -> None:
    assert traffic.begins()
    if use == "messages":
        traffic.moved += 1 << 20
    elif use == "file":
        with traffic.prober.transfer():
            pass
    else:
        traffic.outcome = Unsteady() if use == "unsteady" else OSError("deadline")
    traffic.ends()
    traffic.outcome = Probed(100, 10**8, 1 << 20)
    traffic.prober.look()
    assert traffic.results == []
    traffic.now += 2 * probe.SOON_S
    assert traffic.begins(), "it is tried again soon"
    traffic.ends()
    wait_until(lambda: len(traffic.results) == 1, "it is told")


def test_a_socket_is_probed(tmp_path: Path) -> None:
    """The serving end probes; a local socket is much faster than its first bytes suggest."""
    other = Living(tmp_path / "w1.flight", politely)
    made = FlightLink("w1", Near(tmp_path / "w1.flight"), lambda: None)
    try:
        assert made.sender.figures().bandwidth is None
        made.join(Greeting([]))
        wait_until(lambda: made.sender.figures().bandwidth is not None, "it is measured")
    finally:
        made.close()
        other.port.shutdown()
