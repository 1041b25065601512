"""Long operations of views, described for ``list_views()``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from headrace.network.messages import Work
from headrace.runtime.engine_state import EngineState

LONG_S: Final = 1.0
"""Shorter operations are not reported."""


def describe(
    state: EngineState, works: Sequence[Work], writes: tuple[int, int, float] | None
) -> list[dict[str, Any]]:
    """Return view, description and seconds for each view behind ``works``; for any thread.

    ``writes``: ID of the view being written, number of rows, and seconds so far.
    """
    out = []
    if writes is not None and writes[2] >= LONG_S:
        view_id, rows, seconds = writes
        what = f"its {rows} changed rows are written"
        out.append({"view_id": view_id, "what": what, "seconds": seconds})
    for work in works:
        unit = state.unit(work.unit)
        if unit is None or work.seconds < LONG_S:
            continue
        for view in state.views_of(unit):
            what, seconds = _words(work, view.placed)
            out.append({"view_id": view.id, "what": what, "seconds": seconds})
    return out


def _words(work: Work, worker: str) -> tuple[str, float]:
    if work.asked_s is not None and work.asked_s >= LONG_S:
        asked = work.asked or "values"
        return f"Postgres evaluates {asked} for it", work.asked_s
    if worker:
        return f'worker "{worker}" computes its part of a batch', work.seconds
    return "its part of a batch is computed", work.seconds
