"""The queue contract of edges."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.errors import BugError
from headrace.runtime.edges import Edge
from headrace.types import Diffs, TimeEnd


def diffs(txid: int, rows: int = 1, attempt: int = 0) -> Diffs:
    batch = pa.record_batch([pa.array(range(rows), pa.int64())], names=["__weight"])
    return Diffs(txid, attempt, batch)


def test_every_successor_gets_everything_in_order():
    edge = Edge("e")
    edge.open(["a", "b"], 0)
    first, end, second = diffs(1), TimeEnd(1, 0, 1), diffs(2)
    edge.put(first)
    assert edge.pull("a") == [first]
    edge.put(end)
    edge.put(second)
    assert edge.pull("a") == [end, second]
    assert edge.statistics()["frames"] == 3
    assert edge.pull("b") == [first, end, second]
    assert edge.statistics()["frames"] == 0
    assert edge.pull("b") == []


def test_nothing_may_follow_its_time_end():
    edge = Edge("e")
    edge.open(["a"], 4)
    with pytest.raises(BugError):
        edge.put(diffs(4))
    edge.put(TimeEnd(5, 0))
    with pytest.raises(BugError):
        edge.put(diffs(5))


def test_frames_of_an_old_attempt_are_dropped_and_counted():
    edge = Edge("e")
    edge.open(["a"], 0)
    edge.put(diffs(1, attempt=2))
    edge.put(diffs(1, attempt=1))
    assert len(edge.pull("a")) == 1
    assert edge.statistics()["dropped"] == 1


def test_a_successor_that_leaves_keeps_nothing():
    edge = Edge("e")
    edge.open(["a", "b"], 0)
    edge.put(diffs(1, rows=3))
    edge.pull("a")
    assert edge.statistics()["rows"] == 3
    edge.leave("b")
    assert edge.statistics()["rows"] == 0
