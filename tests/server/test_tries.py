"""Automatic retries of stopped views: a simulated clock, and the tries that are due."""

from __future__ import annotations

from headrace.server.tries import WINDOW_S, Tries

BOUND = 3


def at_once_and_later(tries: Tries, now: float, mark: str = "m") -> float:
    """Return when the next try is due, searched second by second."""
    end = now + 2 * WINDOW_S
    while not tries.due(now, mark):
        now += 1
        if now > end:
            return float("inf")
    return now


def test_failures_are_bounded_and_ever_rarer():
    tries, now, pauses = Tries(BOUND), 100.0, []
    assert tries.due(now, "m")
    for _ in range(BOUND - 1):
        tries.failed(now, passing=False)
        later = at_once_and_later(tries, now)
        pauses.append(later - now)
        now = later
    assert pauses == sorted(pauses)
    assert pauses[0] > 0
    tries.failed(now, passing=False)
    assert at_once_and_later(tries, now) == float("inf")
    assert tries.over


def test_what_passes_by_itself_does_not_count():
    tries, now = Tries(BOUND), 0.0
    for _ in range(5 * BOUND):
        assert tries.due(now, "m")
        tries.failed(now, passing=True)
        assert not tries.due(now, "m")
        now = at_once_and_later(tries, now)
    assert not tries.over
    assert now > WINDOW_S, "ever more rarely"


def test_an_alteration_gives_new_tries():
    tries = Tries(BOUND)
    for now in (0.0, 100.0, 200.0):
        assert tries.due(now, "trigger")
        tries.failed(now, passing=False)
    assert not tries.due(300.0, "trigger")
    assert tries.due(301.0, "none")


def test_what_does_not_last_is_given_up():
    tries, now = Tries(BOUND), 0.0
    for _ in range(BOUND):
        now = at_once_and_later(tries, now)
        tries.filled(now)
    assert at_once_and_later(tries, now) == float("inf")
    assert tries.over


def test_a_fight_by_alterations_is_bounded_too():
    """Each alteration is a new mark; their number within the window is bounded."""
    tries, now, begun = Tries(BOUND), 0.0, []
    for number in range(40):
        mark = f"altered {number}"
        if tries.due(now, mark):
            begun.append(now)
            tries.filled(now)
            assert not tries.due(now, f"altered {number} by us"), "our own is none"
        now += 30
    assert len([at for at in begun if at < WINDOW_S]) == BOUND
    # After a quiet time, retries are due again: the view is not left stopped for ever.
    assert at_once_and_later(tries, now, "last") < float("inf")


def test_it_is_forgotten_after_a_quiet_while():
    tries = Tries(BOUND)
    for now in (0.0, 50.0, 100.0):
        assert tries.due(now, "m")
        tries.filled(now)
    assert not tries.forget(101.0)
    assert tries.forget(101.0 + WINDOW_S)
    assert tries.due(102.0 + WINDOW_S, "m")


def test_without_a_bound_it_goes_on():
    tries, now = Tries(None), 0.0
    for _ in range(50):
        assert tries.due(now, "m")
        tries.filled(now)
    for _ in range(50):
        now = at_once_and_later(tries, now)
        tries.failed(now, passing=False)
    assert not tries.over
