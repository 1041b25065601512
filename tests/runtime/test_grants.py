"""One memory budget: reservations never exceed it, and every requester advances (E-24)."""

from __future__ import annotations

import random
import threading
import time

import pytest

from headrace.errors import Interrupted
from headrace.process.memory_reservations import Grants
from tests.waiting import time_passes

MIB = 1 << 20


class Asking(threading.Thread):
    """A thread that reserves ``size`` bytes again and again, until it has had ``wanted``."""

    def __init__(self, grants: Grants, size: int, wanted: int, held_s: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.grants, self.size, self.wanted, self.held_s = grants, size, wanted, held_s
        self.had = 0
        self.most = 0

    def run(self) -> None:
        rng = random.Random(self.size)
        while self.had < self.wanted:
            with self.grants.ask(min(self.size, self.wanted - self.had)) as granted:
                self.most = max(self.most, self.grants.granted_bytes)
                self.had += granted
                time_passes(self.held_s * rng.random())


def all_get_on(asking: list[Asking], timeout_s: float) -> None:
    for thread in asking:
        thread.start()
    until = time.monotonic() + timeout_s
    for thread in asking:
        thread.join(max(until - time.monotonic(), 0))
    assert [t.had for t in asking] == [t.wanted for t in asking]


def test_e24_five_collections_share_a_budget():
    """Five collections ask for 4 MiB each of 10: the sum stays below, and none waits for ever."""
    grants = Grants(10 * MIB, MIB)
    asking = [Asking(grants, 4 * MIB, 40 * MIB, 0.002) for _ in range(5)]
    all_get_on(asking, 60)
    assert 4 * MIB < max(t.most for t in asking) <= 10 * MIB
    assert grants.granted_bytes == 0


@pytest.mark.slow
def test_e24_stress():
    """Many threads reserve memory of all sizes for a minute."""
    grants = Grants(10 * MIB, MIB)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        sizes = (100, MIB, 4 * MIB, 9 * MIB, 100 * MIB)
        asking = [Asking(grants, sizes[i % 5], 30 * sizes[i % 5], 0.0005) for i in range(20)]
        all_get_on(asking, 60)
        assert max(t.most for t in asking) <= 10 * MIB


def test_e24_a_grant_is_a_share_of_what_is_free():
    grants = Grants(10 * MIB, MIB)
    with grants.ask(2 * MIB) as alone:
        assert alone == 2 * MIB
    with grants.ask(100 * MIB) as half:
        assert half == 5 * MIB, "something is left for who comes next"


def test_who_asked_first_is_first():
    """Small reservations do not overtake large ones for ever."""
    grants = Grants(4 * MIB, 4 * MIB)
    order: list[str] = []
    held = threading.Event()

    def ask(name: str, size: int) -> None:
        with grants.ask(size):
            order.append(name)

    with grants.ask(4 * MIB):
        waiting = []
        for name, size in (("large", 4 * MIB), ("small", 1)):
            thread = threading.Thread(target=ask, args=(name, size), daemon=True)
            thread.start()
            waiting.append(thread)
            while len(grants._waiting) < len(waiting):
                held.wait(0.001)
        assert order == []
    for thread in waiting:
        thread.join(10)
    assert order == ["large", "small"]


def test_who_waits_may_be_told_to_give_up():
    grants = Grants(MIB, MIB)

    def check() -> None:
        raise Interrupted("enough")

    with grants.ask(MIB):
        with pytest.raises(Interrupted), grants.ask(MIB, check):
            raise AssertionError("there was nothing to have")
        assert grants._waiting == []
    with grants.ask(MIB) as granted:
        assert granted == MIB
