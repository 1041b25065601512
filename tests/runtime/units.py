"""Units and their index without an engine, and the index as threads see it during a change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from headrace.collections import plan
from headrace.runtime import unit_index
from headrace.runtime.positions import StateMark
from headrace.runtime.registry import Registry
from headrace.runtime.unit_index import UnitIndex
from headrace.runtime.views import View
from headrace.sink.table import ResultTable
from headrace.sql.status import CursorState


class Lock:
    """A lock that calls ``seen`` whenever another thread could take it, after a release."""

    def __init__(self, seen: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._seen = seen

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._seen()


class Moments:
    """Records the states of an index that other threads may see during a change."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._looking = False
        self.seen: list[set[int]] = []
        self.look: Callable[[], None] = lambda: self.seen.append(
            {unit.id for unit in self.index.behind(9)}
        )
        threads = SimpleNamespace(Lock=lambda: Lock(self._look))
        monkeypatch.setattr(unit_index, "threading", threads)
        self.index = UnitIndex()
        self.views: Registry[View] = Registry(self.index)

    def _look(self) -> None:
        if not self._looking:
            self._looking = True
            self.look()
            self._looking = False

    def during(self, change: Callable[[], object]) -> list[set[int]]:
        """Return the sets of views behind txid 9 that were visible during the change."""
        self.seen.clear()
        change()
        assert self.seen, "the change has not reached the index"
        return self.seen


def view(
    number: int,
    txid: int = 3,
    cursor: CursorState = CursorState.LEADING,
    mark: StateMark | None = None,
) -> View:
    """Return a view with a trivial plan, at a txid or a mark."""
    schema = ()
    source = plan.SourceSpec("s", 1, "public", "t", (), (), True, schema=schema)
    made = View(
        number,
        plan.PhysicalPlan((source, plan.SinkSpec("sink", "s", schema))),
        {},
        0,
        ResultTable(number, "public", f"v{number}", number, schema, ()),
        cursor,
    )
    made.restore(None, mark or StateMark(txid, txid, txid))
    return made
