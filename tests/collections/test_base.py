"""Alignment of TimeEnds over ports (T-22, E-22), and the helpers for batches."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.collections.base import Collection, Diffed, Message, cut
from headrace.errors import BugError, RowsLost
from headrace.types import INT4, Diffs, Field, TimeEnd
from tests.ledger import diffs, lines

SCHEMA = (Field("x", INT4),)


class Echo(Collection):
    """Passes diffs on and records its calls."""

    def __init__(self, ports: int) -> None:
        super().__init__("echo", SCHEMA, ports)
        self.ended: list[int] = []

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        return [batch]

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        self.ended.append(txid)
        return [diffs(SCHEMA, f"+ {1000 + txid}")]

    def describe(self) -> str:
        return "Echo"


def row(txid: int, value: int) -> Diffs:
    return Diffs(txid, 0, diffs(SCHEMA, f"+ {value}"))


def end(txid: int, rows: int, attempt: int = 0) -> TimeEnd:
    return TimeEnd(txid, attempt, rows)


def told(messages: list[Message]) -> list[str]:
    return [
        f"end {m.txid}" if isinstance(m, TimeEnd) else " ".join(lines(m.batch)) for m in messages
    ]


def test_e22_a_txid_ends_when_it_has_ended_on_all_ports() -> None:
    echo = Echo(2)
    assert told(echo.receive(0, row(1, 7))) == ["+ 7"]
    assert told(echo.receive(0, end(1, 1))) == []
    assert echo._done == -1
    assert told(echo.receive(1, row(1, 8))) == ["+ 8"]
    assert told(echo.receive(1, end(1, 1))) == ["+ 1001", "end 1"]
    assert echo._done == 1


def test_a_port_that_runs_ahead_is_held_back() -> None:
    echo = Echo(2)
    for message in (end(1, 0), row(2, 20), end(2, 1), row(3, 30)):
        assert echo.receive(0, message) == []
    assert told(echo.receive(1, row(1, 10))) == ["+ 10"]
    assert told(echo.receive(1, end(1, 1))) == ["+ 1001", "end 1", "+ 20"]
    assert told(echo.receive(1, end(2, 0))) == ["+ 1002", "end 2", "+ 30"]
    assert told(echo.receive(1, row(3, 31))) == ["+ 31"]


@pytest.mark.parametrize("late", [row(1, 9), TimeEnd(1, 0), row(0, 9)])
def test_nothing_may_follow_at_or_before_an_ended_txid(late: Message) -> None:
    echo = Echo(2)
    echo.receive(0, TimeEnd(1, 0))
    with pytest.raises(BugError):
        echo.receive(0, late)
    echo.receive(1, TimeEnd(1, 0))
    with pytest.raises(BugError):
        echo.receive(1, late)


def test_a_held_port_may_not_go_back_either() -> None:
    echo = Echo(2)
    for message in (TimeEnd(1, 0), TimeEnd(3, 0)):
        echo.receive(0, message)
    with pytest.raises(BugError):
        echo.receive(0, row(2, 1))


@pytest.mark.parametrize("sent", [0, 1, 3])
@pytest.mark.parametrize("ahead", [False, True])
def test_e20_an_end_counts_only_with_all_that_was_sent(sent: int, ahead: bool) -> None:
    echo = Echo(2)
    txid = 1
    if ahead:
        echo.receive(0, end(1, 0))
        txid = 2
    echo.receive(0, row(txid, 1))
    echo.receive(0, row(txid, 2))
    with pytest.raises(RowsLost, match=f"2 of the {sent} rows"):
        echo.receive(0, end(txid, sent))
    assert echo._done < txid


def test_what_goes_out_is_counted_between_two_ends() -> None:
    echo = Echo(1)
    echo.receive(0, row(1, 1))
    echo.receive(0, row(1, 2))
    assert echo.receive(0, end(1, 2))[-1] == end(1, 3)
    assert echo.receive(0, end(2, 0))[-1] == end(2, 1)


def test_messages_of_an_earlier_attempt_are_dropped_and_counted() -> None:
    echo = Echo(2)
    assert told(echo.receive(0, Diffs(1, 2, row(1, 7).batch))) == ["+ 7"]
    assert echo.receive(0, row(1, 6)) == []
    assert echo.receive(1, end(1, 1, attempt=1)) == []
    assert echo.receive(0, end(1, 1, attempt=2)) == []
    assert told(echo.receive(1, end(1, 0, attempt=2))) == ["+ 1001", "end 1"]
    assert echo.receive(1, end(1, 1, attempt=1)) == []
    assert echo.metrics.dropped == 3
    assert echo.receive(0, end(2, 0)) == []


def test_a_later_attempt_may_not_meet_the_rows_of_an_earlier() -> None:
    echo = Echo(2)
    echo.receive(0, row(1, 7))
    with pytest.raises(BugError, match="attempt 1"):
        echo.receive(1, Diffs(1, 1, row(1, 7).batch))


@given(st.data())
def test_e21_any_interleaving_gives_every_txid_its_own_diffs(data: st.DataObject) -> None:
    ports, last = 3, 4
    queues = [
        [m for txid in range(1, last + 1) for m in (row(txid, txid), end(txid, 1))]
        for _ in range(ports)
    ]
    echo, out = Echo(ports), []
    while any(queues):
        port = data.draw(st.sampled_from([p for p in range(ports) if queues[p]]))
        out.extend(told(echo.receive(port, queues[port].pop(0))))
    assert echo.ended == [1, 2, 3, 4]
    parts = [
        list(part)
        for is_end, part in itertools.groupby(out, lambda m: m.startswith("end"))
        if not is_end
    ]
    assert parts == [[f"+ {t}"] * ports + [f"+ {1000 + t}"] for t in range(1, last + 1)]
    assert echo.metrics.as_dict()["rows_in"] == [last] * ports
    assert echo.metrics.rows_out == last * (ports + 1)


def test_diffs_that_cancel_leave_nothing() -> None:
    held = Diffed(SCHEMA)
    held.add(diffs(SCHEMA, "+3 1", "+4 2", "-2 1"))
    held.add(diffs(SCHEMA, "-4 2", "+ ."))
    assert lines(*held.take()) == ["+ .", "+ 1"]
    assert held.take() == []


def test_rows_without_columns_are_counted() -> None:
    held = Diffed(())
    held.add(diffs((), "+3", "-"))
    assert lines(*held.take()) == ["+2"]


def test_large_batches_are_cut_without_loss() -> None:
    batch = diffs(SCHEMA, *(f"+ {i}" for i in range(10)))
    assert [b.num_rows for b in cut(batch, 4)] == [4, 4, 2]
    assert pa.Table.from_batches(cut(batch, 4)).equals(pa.Table.from_batches([batch]))
    assert cut(batch.slice(0, 0)) == []
