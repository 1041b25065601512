"""Whole views over workers: which to move so that the busiest worker has less to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_WORTH: Final = 0.1
"""Part of the busiest worker's load that a move has to take off: each costs filling a view anew."""


@dataclass(frozen=True, slots=True)
class ViewLoad:
    """Load of a view on its worker."""

    view: int
    worker: str
    busy: float | None
    """Time that its collections take per second, in any unit that is the same for all; None: it was
    not measured for long enough.  Then it counts as much as the mean of all other views, and is not
    moved for the sake of balance."""


@dataclass(frozen=True, slots=True)
class ViewMove:
    """A view that moves to another worker."""

    view: int
    worker: str


def balanced(loads: Sequence[ViewLoad], workers: Sequence[str]) -> list[ViewMove]:
    """Return the moves that relieve the busiest worker, each to the least busy one.

    Each view moves at most once.  With equal loads the first of ``workers``, or of ``loads``, is
    used.
    """
    at = {load.view: load.worker for load in loads}
    filled, unknown = _filled(loads)
    moves: list[ViewMove] = []
    least = max(_totals(filled, at, workers).values())
    worth = 0
    while (move := _best(filled, at, workers, unknown | {move.view for move in moves})) is not None:
        at[move.view] = move.worker
        moves.append(move)
        # Of several that are the busiest each has to lose something for it to be worth it.
        if (most := max(_totals(filled, at, workers).values())) < least:
            least, worth = most, len(moves)
    return moves[:worth]


@dataclass(frozen=True, slots=True)
class _Load:
    """A load that counts as ``busy``."""

    view: int
    worker: str
    busy: float


def _filled(loads: Sequence[ViewLoad]) -> tuple[list[_Load], set[int]]:
    """Return the loads, unknown ones replaced by the mean, and the views with unknown ones."""
    known = [load.busy for load in loads if load.busy is not None]
    mean = sum(known) / len(known) if known else 1.0
    filled = [
        _Load(load.view, load.worker, mean if load.busy is None else load.busy) for load in loads
    ]
    return filled, {load.view for load in loads if load.busy is None}


def _best(
    loads: Sequence[_Load], at: dict[int, str], workers: Sequence[str], staying: set[int]
) -> ViewMove | None:
    """Return the move that relieves the busiest worker most; None: no move is worth it."""
    total = _totals(loads, at, workers)
    busiest = max(workers, key=total.__getitem__)
    idlest = min(workers, key=total.__getitem__)
    there = [x for x in loads if at[x.view] == busiest and x.view not in staying and x.busy > 0]

    def after(load: _Load) -> float:
        return max(total[busiest] - load.busy, total[idlest] + load.busy)

    best = min(there, key=after, default=None)
    if best is None or total[busiest] - after(best) < _WORTH * total[busiest]:
        return None
    return ViewMove(best.view, idlest)


def emptied(loads: Sequence[ViewLoad], leaving: str, workers: Sequence[str]) -> list[ViewMove]:
    """Return the moves that empty ``leaving``: heaviest view first, each to the idlest worker.

    REQUIRES: ``workers`` has another one.
    """
    others = [name for name in workers if name != leaving]
    at = {load.view: load.worker for load in loads}
    filled, _ = _filled(loads)
    moves = []
    for load in sorted(filled, key=lambda x: -x.busy):
        if load.worker == leaving:
            total = _totals(filled, at, others)
            at[load.view] = min(others, key=total.__getitem__)
            moves.append(ViewMove(load.view, at[load.view]))
    return moves


def _totals(loads: Iterable[_Load], at: dict[int, str], workers: Sequence[str]) -> dict[str, float]:
    out = dict.fromkeys(workers, 0.0)
    for load in loads:
        if at[load.view] in out:
            out[at[load.view]] += load.busy
    return out
