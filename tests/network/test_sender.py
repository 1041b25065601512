"""Messages in flight are bounded, ordered and numbered; a lost or repeated one ends the link."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import OutOfReach
from headrace.network import messages
from headrace.network import sender as senders
from headrace.network.ends import Near, Relayed
from headrace.network.link import FlightLink
from headrace.network.messages import (
    BeginBatch,
    Drop,
    EndStage,
    Greeting,
    Packing,
    StageDone,
    TableRows,
    ToWorker,
    UnitDiffs,
)
from headrace.network.port import Ended, FlightPort, FlightSession
from headrace.network.probe import Probed
from headrace.network.sender import Sender
from tests.network.relay import dialed
from tests.network.test_link import Other, linked, politely, silently
from tests.network.test_messages import BATCH
from tests.proxy import Line
from tests.waiting import wait_until

_RNG = random.Random(4)
ROWS = pa.record_batch({"n:1": pa.array([_RNG.randbytes(1000) for _ in range(1000)])})
"""A megabyte that cannot be compressed."""


class Wire:
    """A link's writer that loses a message, or sends one twice."""

    def __init__(self, writer: Any, lost: int = -1, twice: int = -1) -> None:
        self._writer, self._lost, self._twice, self._at = writer, lost, twice, -1

    def write_metadata(self, message: pa.Buffer) -> None:
        self._at += 1
        for _ in range(0 if self._at == self._lost else 2 if self._at == self._twice else 1):
            self._writer.write_metadata(message)

    def close(self) -> None:
        self._writer.close()


@pytest.mark.parametrize("trouble", [{"lost": 3}, {"twice": 3}])
def test_what_is_lost_or_comes_twice_ends_the_link(tmp_path: Path, trouble: dict[str, int]) -> None:
    """The messages before the lost or repeated one are received, and none after it."""
    with linked(tmp_path / "w1.flight", silently) as (made, other, _):
        made.sender._writer = Wire(made.sender._writer, **trouble)
        with contextlib.suppress(OutOfReach):
            for unit in range(100):
                made.send(Drop(unit))
        assert other.ended.wait(10)
        heard = [other.heard.get() for _ in range(other.heard.qsize())]
        expected = trouble.get("lost", 4)
        assert heard == [Drop(unit) for unit in range(expected)]
        wait_until(lambda: not made.up, "this end hears of it")


@pytest.mark.parametrize("trouble", [{"lost": 1}, {"twice": 1}])
def test_so_does_an_answer(tmp_path: Path, trouble: dict[str, int]) -> None:
    def answer(session: FlightSession, word: ToWorker) -> None:
        if not isinstance(session._writer, Wire):
            session._writer = Wire(session._writer, **trouble)
        session.send(UnitDiffs(1), BATCH)
        session.send(UnitDiffs(1), BATCH)
        session.send(StageDone(5, 0, {1: 0.0}, {}, None, False, False, 0))

    with linked(tmp_path / "w1.flight", answer) as (made, _, _woken):
        made.send(BeginBatch(5, 5, 0, 0, 0, [[1]], {}))
        with pytest.raises(OutOfReach) as caught:
            made.results(5, 0)
        assert "message" in str(caught.value.detail)


def test_rows_that_a_sender_has_counted_and_not_sent_are_missed(tmp_path: Path) -> None:
    """A wrong count is a bug of the sender, not of the wire."""

    def answer(session: FlightSession, word: ToWorker) -> None:
        session.send(UnitDiffs(1), BATCH)
        session._rows[1] += 1
        session.send(StageDone(5, 0, {1: 0.0}, {}, None, False, False, 0))

    with linked(tmp_path / "w1.flight", answer) as (made, _, _woken):
        made.send(BeginBatch(5, 5, 0, 0, 0, [[1]], {}))
        with pytest.raises(OutOfReach) as caught:
            made.results(5, 0)
        assert "got {1: 3} of the rows {1: 4} of txid 5" in str(caught.value.detail)


class Living(Other):
    """Sends heartbeats, as a worker does."""

    def _serve(self, session: FlightSession) -> None:
        ended = threading.Event()

        def beat() -> None:
            with contextlib.suppress(Ended):
                session.beat(ended, list, lambda: False)

        thread = threading.Thread(target=beat)
        thread.start()
        try:
            super()._serve(session)
        finally:
            ended.set()
            session.wake()
            thread.join()


@contextlib.contextmanager
def far_linked(folder: Path, other: Other, bytes_per_s: float = 0.0) -> Iterator[FlightLink]:
    """Yield a link as to another machine; ``bytes_per_s``: the rate of each of its connections."""
    here = Relayed(folder / "w2.sock")
    with contextlib.ExitStack() as stack:
        port = FlightPort(here, other._serve, other.interrupted.append, folder)
        stack.callback(port.shutdown)
        end = stack.enter_context(dialed(here, folder))
        if bytes_per_s:
            line = stack.enter_context(
                contextlib.closing(Line("127.0.0.1", int(end.address.rpartition(":")[2])))
            )
            line.bytes_per_s = bytes_per_s
            end = replace(end, address=f"127.0.0.1:{line.port}")
        made = FlightLink("w2", end, lambda: None)
        stack.callback(made.close)
        yield made


def test_what_a_reader_does_not_take_in_is_bounded_at_both_ends(tmp_path: Path) -> None:
    """The test sends ten times what may wait and be in flight: the sender blocks."""
    reading = threading.Event()

    def stuck(session: FlightSession, word: ToWorker) -> None:
        reading.wait(60)

    other = Living(tmp_path / "unused", stuck)
    sent = 0
    with far_linked(tmp_path, other) as made:

        def flood() -> None:
            nonlocal sent
            for _ in range(200):
                made.send(TableRows(1), ROWS)
                sent += 1
            made.send(EndStage(1, 200_000))

        thread = threading.Thread(target=flood)
        thread.start()
        bound = senders._WAITING_BYTES_MAX
        wait_until(lambda: made.sender._waiting_bytes >= bound, "it is full")
        assert not thread.join(0.5)
        assert thread.is_alive(), "who sends waits"
        assert sent < 30
        # One more piece may wait than the bound; HTTP/2 and sockets hold some in flight.
        assert made.sender._waiting_bytes <= bound + ROWS.nbytes
        # A message without rows does not wait for room, so that no lack of room can block it.
        made.send(Drop(1))
        reading.set()
        thread.join(60)
        assert not thread.is_alive()
        rows = 0

        def all_came() -> bool:
            nonlocal rows
            while not other.heard.empty():
                word = other.heard.get()
                rows += isinstance(word, TableRows)
                if isinstance(word, EndStage):
                    return True
            return False

        wait_until(all_came, "all has come")
        assert rows >= 200
        assert made.sender._waiting_bytes == 0
    other.port.shutdown()


def test_a_link_is_measured_while_it_is_idle(tmp_path: Path) -> None:
    other = Living(tmp_path / "unused", politely)
    with far_linked(tmp_path, other) as made:
        made.join(Greeting([]))
        wait_until(lambda: made.sender.figures().bandwidth is not None, "it is measured")
        figures = made.sender.figures()
        assert figures.latency_us is not None
        assert figures.bandwidth is not None
        assert 0 < figures.latency_us < 1_000_000
        assert figures.bandwidth > 100_000
        assert figures.out_now < 1000, "a probe is no traffic"
        made.send(TableRows(1), ROWS)
        wait_until(lambda: made.sender.figures().out_now > 0, "that was traffic")
        # The user's override decides whether rows are compressed.
        for rate, packs in ((1_000, True), (10**12, False), (1_000, True)):
            made.sender.override(rate)
            assert made.sender.compresses == packs
    other.port.shutdown()


def test_a_slow_line_is_measured_to_be_slow(tmp_path: Path) -> None:
    """No machine is so fast that more than the line's rate passes; a busy one measures less."""
    other = Living(tmp_path / "unused", politely)
    with far_linked(tmp_path, other, bytes_per_s=100_000) as made:
        made.join(Greeting([]))
        wait_until(lambda: made.sender.figures().bandwidth is not None, "it is measured")
        bandwidth = made.sender.figures().bandwidth
        assert bandwidth is not None
        assert bandwidth < 200_000
    other.port.shutdown()


@pytest.mark.parametrize("far", [True, False])
def test_compression_follows_what_was_said_and_pieces_the_line(far: bool) -> None:
    """A line that is measured as slow has heartbeats between small pieces, despite any override."""
    sender = Sender(None, None, lambda _: None, far=far)
    small, large, slow = messages.PIECE_BYTES, messages.FAST_PIECE_BYTES, 1_000_000
    for said, measured, form in (
        (10**9, None, Packing(False, small)),
        (None, None, Packing(True, small)),
        (10**9, slow, Packing(False, small)),
        (None, slow, Packing(True, small)),
        (None, 10**9, Packing(False, large)),
        (slow, 10**9, Packing(True, large)),
    ):
        before = len(sender._waiting)
        sender.override(said)
        if measured is not None:
            sender.probed(Probed(100, measured))
        assert [item.word for item in sender._waiting][before:][-1:] == ([form] if far else [])
        assert sender.compresses == (far and form.packed)
        if measured is None:
            said_at_first = Sender(None, said, lambda _: None, far=far)
            assert said_at_first.compresses == (far and form.packed)


def test_an_interrupt_overtakes_what_a_slow_line_holds(tmp_path: Path) -> None:
    """Megabytes are in the buffers of its connection, and need a minute to pass."""
    other = Living(tmp_path / "unused", politely)
    with far_linked(tmp_path, other, bytes_per_s=100_000) as made:
        for _ in range(6):
            made.send(TableRows(1), ROWS)
        wait_until(lambda: made.sender.moved > 3_000_000, "as much is on its way as may be")

        def interrupted() -> bool:
            made.interrupt([4, 5])
            return [4, 5] in other.interrupted

        wait_until(interrupted, "it is interrupted", every_s=0.5)
        assert made.sender._waiting_bytes > 0, "rows still wait"
    other.port.shutdown()


def test_on_this_machine_nothing_is_compressed(tmp_path: Path) -> None:
    other = Living(tmp_path / "w1.flight", politely)
    made = FlightLink("w1", Near(tmp_path / "w1.flight"), lambda: None)
    with contextlib.closing(made):
        made.join(Greeting([]))
        made.sender.override(1_000)
        made.send(TableRows(1), ROWS)
        wait_until(lambda: made.sender.figures().latency_us is not None, "it has been looked at")
        assert not made.sender.compresses
        # The rows' own size, and little more: nothing is compressed.
        assert made.sender._meter.sent.total > ROWS.nbytes
    other.port.shutdown()


def test_a_worker_of_another_version_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    with linked(tmp_path / "w1.flight", politely) as (made, _, _woken):
        made.join(Greeting([]))
        monkeypatch.setattr("headrace.network.link.PROTOCOL", b"headrace units 1")
        with pytest.raises(OutOfReach) as caught:
            FlightLink("w1", made.end, lambda: None).join(Greeting([]))
        assert "another version" in str(caught.value.detail)
        assert made.up
