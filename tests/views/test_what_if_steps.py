"""Steps of ``what_if`` that depend on moments which a call from outside does not meet."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.collections import plan
from headrace.config import Settings
from headrace.errors import QueryCancelled, TransientError
from headrace.forks.run import Fork, ForkedUnit
from headrace.network.messages import UnitRecord
from headrace.population.job import Job
from headrace.population.places import RolePlaces
from headrace.process.bounds import Bound, Limits
from headrace.runtime.durable_units import DurableUnits, WantedUnits
from headrace.sql.verbs import WhatIf
from headrace.state.rocks import RocksDatabase
from headrace.views import what_if
from headrace.views.what_if import HeldStates
from tests.plans import finish, table
from tests.streams import INSERT, Op
from tests.waiting import PATIENCE_S, wait_until


def silent(_: dict[str, Any]) -> None:
    pass


def room_left(tmp_path: Path, views: int) -> int | None:
    """Return how many rows the last of some equal views might still have produced."""
    here = table(1)
    physical = plan.to_json(finish(here.source("s")))
    records = [UnitRecord(number, physical, {}, 0, "", {}) for number in range(views)]
    settings = Settings.of({"source": "host=/nonexistent", "data_dir": str(tmp_path)})
    database = RocksDatabase(tmp_path / f"state{views}")
    fork = Fork(settings, {"": database}, [ForkedUnit.of_record(r, "") for r in records])
    bound = Bound(Limits(rows=1000))
    try:
        found = fork.diffs([(1, here.changes([Op(INSERT, ("1", "1", "x", "1.0"))]))], 0, bound)
    finally:
        fork.close()
    assert [batch.num_rows for batch in found.values()] == [1] * views
    return bound.room(SimpleNamespace(words="none"))


def test_each_view_has_the_whole_bound(tmp_path: Path) -> None:
    """The limits are those of one view, however many views there are."""
    assert room_left(tmp_path, 5) == room_left(tmp_path, 1)


def test_states_are_not_dropped_while_their_call_waits(tmp_path: Path) -> None:
    places, job = RolePlaces(1), Job(silent)
    held = HeldStates(None, {}, [], tmp_path / "held", (), {}, 0)
    context: Any = SimpleNamespace(explanations=places, held={7: held})
    ended: list[BaseException] = []

    def call() -> None:
        try:
            what_if.what_if(context, job, WhatIf(7, "{}"))
        except QueryCancelled as error:
            ended.append(error)

    with places.take(Job(silent), None):
        thread = threading.Thread(target=call)
        thread.start()
        wait_until(lambda: not context.held, "they belong to the call")
        job.cancel()
        thread.join(PATIENCE_S)
    assert len(ended) == 1


@pytest.mark.parametrize("what", ["back", "unreachable", "lags"])
def test_no_checkpoint_is_begun_for_a_view_that_has_fallen_behind(what: str) -> None:
    """Else one would follow the other until the call is cancelled."""
    begun: list[int] = []
    mark = SimpleNamespace(txid=9)
    view = SimpleNamespace(
        id=1, store=object(), mark=mark, durable=SimpleNamespace(txid=5), reachable=True, leads=True
    )
    state: Any = SimpleNamespace(
        unit={1: view}.get, views={1: view}, checkpoints=SimpleNamespace(underway=False)
    )
    durability: Any = SimpleNamespace(end=lambda: None, begin=lambda: begun.append(1))
    units, wanted = DurableUnits(state, durability), WantedUnits({1: 9}, [1], {})
    assert units.durable(wanted) is None
    assert begun == [1]
    match what:
        case "back":
            mark.txid = 8
        case "unreachable":
            view.reachable = False
        case _:
            view.leads = False
    with pytest.raises(TransientError) as found:
        units.durable(wanted)
    assert found.value.code == "40001"
    assert begun == [1]
    state.views.clear()  # dropped
    view.leads, view.reachable, mark.txid = False, True, 9
    view.durable.txid = 9
    assert units.durable(wanted) == [view]
