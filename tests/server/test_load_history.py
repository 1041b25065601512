"""When views move to executors and home: over readings of a virtual clock."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.server.load_history import (
    CALM_S,
    LIMIT_CPU,
    SUSTAINED_S,
    LoadHistory,
    Reading,
    Verdict,
)

STEP_S = 5.0
READINGS = st.lists(
    st.builds(
        lambda over, main, more: (over, main, main + more),
        st.booleans(),
        st.floats(0, 1.5),
        st.floats(0, 1.5),
    ).flatmap(lambda load: st.tuples(st.just(load), st.integers(1, 150))),
    max_size=8,
)


def judged(loads: list[tuple[bool, float, float]]) -> list[tuple[Reading, Verdict]]:
    history = LoadHistory()
    readings = [Reading(n * STEP_S, *load) for n, load in enumerate(loads)]
    return [(reading, history.judge(reading)) for reading in readings]


@given(READINGS)
@example([((True, 1.0, 1.0), 30), ((False, 0.1, 0.1), 130)])
def test_each_verdict_has_its_reason_for_all_its_time(runs):
    found = judged([load for load, count in runs for _ in range(count)])
    last_spread = -SUSTAINED_S
    for n, (reading, verdict) in enumerate(found):
        if verdict is Verdict.SPREAD:
            before = [r for r, _ in found[: n + 1] if r.at >= reading.at - SUSTAINED_S]
            assert before[0].at <= reading.at - SUSTAINED_S
            assert all(r.overloaded and r.main_cpu >= LIMIT_CPU for r in before)
            assert reading.at - last_spread >= SUSTAINED_S
            last_spread = reading.at
        elif verdict is Verdict.GATHER:
            before = [r for r, _ in found[: n + 1] if r.at >= reading.at - CALM_S]
            assert before[0].at <= reading.at - CALM_S
            assert not any(r.overloaded for r in before)
            assert reading.at - last_spread >= CALM_S


@given(st.integers(0, 400))
def test_lasting_load_spreads_and_lasting_calm_gathers(between):
    loads = [(True, 1.0, 1.0)] * 7 + [(False, 0.9, 1.2)] * between + [(False, 0.1, 0.2)] * 121
    verdicts = [verdict for _, verdict in judged(loads)]
    assert verdicts[6] is Verdict.SPREAD
    assert set(verdicts[7:-1]) <= {Verdict.STAY}
    assert verdicts[-1] is Verdict.GATHER


def test_a_process_that_waits_for_others_is_not_the_limit():
    assert {v for _, v in judged([(True, LIMIT_CPU - 0.1, 0.7)] * 200)} == {Verdict.STAY}


def test_readings_before_a_gap_do_not_count():
    history = LoadHistory()
    times = [0.0, 5.0, 10.0, 60.0, 65.0]
    assert {history.judge(Reading(at, True, 1.0, 1.0)) for at in times} == {Verdict.STAY}
    assert history.judge(Reading(90.0, True, 1.0, 1.0)) is Verdict.SPREAD
