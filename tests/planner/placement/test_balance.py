"""Distribution of whole views over workers: hand-made loads, and properties of all loads."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.planner.placement.balance import ViewLoad, ViewMove, balanced, emptied

WORKERS = ["main", "w1", "w2"]
LOADS = st.lists(st.tuples(st.sampled_from(WORKERS), st.integers(0, 1000)), max_size=12).map(
    lambda found: [ViewLoad(n, w, float(b)) for n, (w, b) in enumerate(found)]
)


def loads(*found: tuple[str, float | None]) -> list[ViewLoad]:
    return [ViewLoad(number, worker, busy) for number, (worker, busy) in enumerate(found)]


def busiest(found: list[ViewLoad], moves: list[ViewMove], workers: list[str]) -> float:
    at = {move.view: move.worker for move in moves}
    total: Counter[str] = Counter()
    for load in found:
        total[at.get(load.view, load.worker)] += load.busy
    return max((total[name] for name in workers), default=0.0)


def test_the_view_that_helps_most_goes_to_who_has_least():
    found = loads(("main", 60), ("main", 30), ("main", 20), ("w1", 50))
    assert balanced(found, WORKERS) == [ViewMove(0, "w2")]


def test_what_is_even_or_cannot_be_split_stays():
    assert balanced(loads(("main", 50), ("w1", 52), ("w2", 49)), WORKERS) == []
    assert balanced(loads(("main", 100)), WORKERS) == []
    assert balanced(loads(("main", 0), ("main", 0)), WORKERS) == []
    assert balanced(loads(("main", 1), ("main", 2)), ["main"]) == []
    assert balanced([], WORKERS) == []


def test_a_worker_is_left_by_the_heaviest_first():
    found = loads(("w1", 5), ("w1", 40), ("main", 30), ("w2", 10), ("w1", 0))
    moves = emptied(found, "w1", WORKERS)
    assert moves == [ViewMove(1, "w2"), ViewMove(0, "main"), ViewMove(4, "main")]
    assert emptied(found, "w1", ["main", "w1"]) == [ViewMove(n, "main") for n in (1, 0, 4)]


def test_what_is_not_measured_counts_as_the_others_do_and_stays():
    """It counts neither as zero, which draws other views to its worker, nor as the heaviest."""
    assert balanced(loads(("main", None), ("main", 40), ("w1", 40), ("w2", 0)), WORKERS) == [
        ViewMove(1, "w2")
    ]
    assert balanced(loads(("main", None), ("main", None)), WORKERS) == []
    found = loads(("w1", None), ("w1", None), ("main", 10), ("w2", 10), ("w1", None))
    assert Counter(move.worker for move in emptied(found, "w1", WORKERS)) == {"main": 2, "w2": 1}
    assert len(emptied(loads(("w1", None)), "w1", WORKERS)) == 1


@given(LOADS)
def test_each_move_is_worth_it_and_none_is_undone(found):
    moves = balanced(found, WORKERS)
    assert len({move.view for move in moves}) == len(moves)
    for count in range(len(moves)):
        before = busiest(found, moves[:count], WORKERS)
        assert busiest(found, moves[: count + 1], WORKERS) <= before
    if moves:
        assert busiest(found, moves, WORKERS) < busiest(found, [], WORKERS)


@given(LOADS)
def test_nothing_is_left_and_only_that_moves(found):
    moves = emptied(found, "w1", WORKERS)
    assert {m.view for m in moves} == {x.view for x in found if x.worker == "w1"}
    assert all(move.worker != "w1" for move in moves)
