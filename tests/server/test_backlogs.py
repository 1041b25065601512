"""When a view is computed anew instead of catching up: the decision, without a clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.server.backlogs import Episode, Pauses, worth_computing
from headrace.sql.backlogs import LaggingView


def view(number: int, cost_s: float) -> LaggingView:
    return LaggingView(
        number, f"public.v{number}", "", "owner", leads=True, wal=0, covered=0, cost_s=cost_s
    )


def behind(wal: int, rate: int, seconds: int) -> Episode:
    """Return an episode in which a view covers ``rate`` bytes each second."""
    made = Episode()
    for second in range(seconds + 1):
        made.look(float(second), rate * second, wal)
    return made


def test_the_time_left_follows_from_the_rate():
    assert behind(1_000, 10, 2).left_s is None, "it was measured for too short a time"
    assert behind(1_000, 10, 4).left_s == 96
    assert behind(1_000, 0, 60).left_s is None, "nothing is known while a batch takes long"


def test_what_the_sink_writes_is_no_target():
    """The rows of a result table are in the WAL that a view must pass, too."""
    made = Episode()
    for second in range(50):
        made.look(float(second), 10 * second, 500 + 90 * second)
    assert made.left_s == 1
    made.look(50.0, 500, 5_000)  # it reaches the target, and gets the next one
    assert made.left_s is None


def test_the_rate_is_that_of_the_last_seconds():
    made = behind(100_000, 1_000, 40)
    for second in range(41, 101):
        made.look(float(second), 40_000 + 10 * (second - 40), 100_000)
    assert made.left_s == (100_000 - 40_600) / 10


def test_a_slow_start_is_no_rate():
    """A worker that has just started loads its states, and then catches up fast."""
    made = behind(100_000, 10, 4)
    assert made.left_s == (100_000 - 40) / 10
    for second in range(5, 9):
        made.look(float(second), 20_000 * (second - 4), 100_000)
    assert made.left_s == 1


def test_views_of_one_thread_are_computed_together_or_not_at_all():
    slow = behind(1_000, 10, 10)  # 90 s left
    assert worth_computing([(slow, view(1, 20))]) == {1: 90}
    both = worth_computing([(slow, view(1, 20)), (slow, view(2, 40))])
    assert both == {1: 30, 2: 60}
    assert worth_computing([(slow, view(1, 20)), (slow, view(2, 80))]) == {}
    assert worth_computing([(behind(100, 10, 8), view(1, 0.1))]) == {}, "it is nearly there"


def test_a_view_that_stands_still_has_no_rate():
    """A long batch ends, or a report comes, and the position makes one step."""
    made = Episode()
    for second in range(10):
        made.look(float(second), 0 if second < 9 else 300, 10**9)
    assert made.left_s is None


def test_a_view_that_steps_back_has_no_rate():
    """A resync goes back to its snapshot, and its view is the same one."""
    for last in (100, 50):
        made = Episode()
        for second, at in enumerate((100, 200, 300, 400, last)):
            made.look(float(second), at, 10**6)
        assert made.left_s is None


def test_pauses_grow_while_a_view_is_tried_again_and_again():
    pauses, key, now, seen = Pauses(), ("v", ""), 0.0, []
    for _ in range(20):
        assert pauses.over(key, now)
        pauses.begin(key, now, 30.0)
        assert not pauses.over(key, now + 1)
        begun = now
        while not pauses.over(key, now):
            now += 10
        seen.append(now - begun)
    assert seen[0] == 300
    assert seen[:5] == [300 * 2**n for n in range(5)]
    assert seen[-1] == 6 * 3600
    now += 24 * 3600  # it has kept up for a day
    pauses.begin(key, now, 1.0)
    assert pauses.over(key, now + 60)


@given(
    st.lists(st.tuples(st.integers(1, 1_000), st.integers(3, 40), st.floats(0.01, 1e4)), max_size=9)
)
def test_what_is_chosen_takes_less_time_than_catching_up(made):
    pairs = [(behind(100_000, rate, n), view(i, cost)) for i, (rate, n, cost) in enumerate(made)]
    chosen = worth_computing(pairs)
    left_s = max((e.left_s or 0.0 for e, _ in pairs), default=0.0)
    assert sum(v.cost_s for _, v in pairs if v.id in chosen) < left_s or not chosen
    assert sum(chosen.values()) <= left_s * 1.001
    assert all(chosen[v.id] >= v.cost_s for _, v in pairs if v.id in chosen)
