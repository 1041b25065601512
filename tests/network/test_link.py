"""A link: messages arrive in order, or it is dead for good, and no caller waits for it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import OutOfReach, RowError
from headrace.network import link
from headrace.network.ends import Near
from headrace.network.link import FlightLink
from headrace.network.messages import (
    FAST_PIECE_BYTES,
    Alive,
    Attach,
    BeginBatch,
    Bye,
    Drop,
    Greeted,
    Greeting,
    Reply,
    StageDone,
    TableRows,
    ToWorker,
    UnitDiffs,
)
from headrace.network.port import Ended, FlightPort, FlightSession
from headrace.network.sender import Sender
from tests.network.test_messages import BATCH
from tests.waiting import wait_until

Answer = Callable[[FlightSession, ToWorker], None]


class Other:
    """The other end: it stores the messages that it receives, and answers as the test requires."""

    def __init__(self, path: Path, answer: Answer) -> None:
        self.heard: queue.Queue[ToWorker] = queue.Queue()
        self.heard_lagging: queue.Queue[ToWorker] = queue.Queue()
        """Messages over the exchange for units that lag."""
        self.interrupted: list[Sequence[int]] = []
        self.ended = threading.Event()
        self._answer = answer
        self.port = FlightPort(Near(path), self._serve, self.interrupted.append, path.parent)

    def _serve(self, session: FlightSession) -> None:
        try:
            while True:
                word, _ = session.receive()
                (self.heard_lagging if session.lagging else self.heard).put(word)
                self._answer(session, word)
        except Ended:
            self.ended.set()


@contextlib.contextmanager
def linked(
    path: Path, answer: Answer, *seconds: float
) -> Iterator[tuple[FlightLink, Other, threading.Event]]:
    """Yield a link, its other end, and the event that its death sets.

    ``seconds``: ``awaited_s`` and ``leading_s`` of the link.
    """
    other, woken = Other(path, answer), threading.Event()
    made = FlightLink("w1", Near(path), woken.set, None, *seconds)
    try:
        yield made, other, woken
    finally:
        made.close()
        other.port.shutdown()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "w1.flight"


def politely(session: FlightSession, word: ToWorker) -> None:
    match word:
        case Greeting():
            session.send(Greeted({1: (2, 3, 4)}, [], 99))
        case BeginBatch():
            session.send(UnitDiffs(1), BATCH)
            session.send(StageDone(word.txid, word.attempt, {1: 0.0}, {}, None, False, False, 0))


def silently(session: FlightSession, word: ToWorker) -> None:
    """Receive messages without an answer."""


def test_what_is_sent_arrives_in_order(path: Path) -> None:
    with linked(path, politely) as (made, other, _):
        assert made.join(Greeting([])).marks == {1: (2, 3, 4)}
        for unit in range(200):
            made.send(Drop(unit))
        for txid in (5, 6):
            made.send(BeginBatch(txid, txid, 0, 0, 0, [[1]], {}))
        done, diffs = made.results(6, 0)  # the result of an earlier batch is dropped
        assert done.txid == 6
        assert diffs[1].equals(BATCH)
        heard = [other.heard.get() for _ in range(203)]
        assert heard[1:201] == [Drop(unit) for unit in range(200)]


def test_who_waits_hears_that_it_is_gone(path: Path) -> None:
    def hang_up(session: FlightSession, word: ToWorker) -> None:
        if isinstance(word, Drop):
            session.send(Bye())

    with linked(path, hang_up) as (made, _, woken):
        made.send(Drop(1))
        with pytest.raises(OutOfReach, match='worker "w1" cannot be reached'):
            made.results(1, 0)
        with pytest.raises(OutOfReach):
            made.answer(1)
        with pytest.raises(OutOfReach):
            made.send(Drop(2))
        assert woken.wait(10)
        assert not made.up


def test_nobody_is_there(path: Path) -> None:
    with pytest.raises(OutOfReach):
        FlightLink("w1", Near(path), lambda: None).join(Greeting([]))


def test_who_gives_no_sign_of_life_is_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "SILENCE_S", 0.5)
    with linked(path, silently) as (made, other, _):
        with pytest.raises(OutOfReach) as caught:
            made.results(1, 0)
        assert "no message has come from it" in str(caught.value.detail)
        # The other end learns of it, too, when it can.
        assert other.ended.wait(30)


def test_signs_of_life_keep_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "SILENCE_S", 2.0)
    ended = threading.Event()

    def living(session: FlightSession, word: ToWorker) -> None:
        for _ in range(30):
            session.send(Alive())
            ended.wait(0.1)
        session.send(Reply(1, 7))

    with linked(path, living) as (made, _, _woken):
        made.send(Drop(1))
        assert made.answer(1) == 7


def test_leading_units_do_not_wait_long_for_a_silent_worker(path: Path) -> None:
    with linked(path, silently, 3_600.0, 0.5) as (made, _, _woken):
        made.send(BeginBatch(5, 5, 0, 0, 0, [[1]], {}))
        with pytest.raises(OutOfReach, match='worker "w1" cannot be reached'):
            made.results(5, 0)
        assert made.silent


def test_a_worker_that_handles_a_batch_of_leading_units_is_not_silent(path: Path) -> None:
    ended = threading.Event()

    def working(session: FlightSession, word: ToWorker) -> None:
        beat = threading.Thread(target=session.beat, args=(ended, list, lambda: True))
        beat.start()
        ended.wait(4.0)
        ended.set()
        beat.join()
        politely(session, word)

    with linked(path, working, 3_600.0, 3.0) as (made, _, _woken):
        made.send(BeginBatch(5, 5, 0, 0, 0, [[1]], {}))
        assert made.results(5, 0)[0].txid == 5


def test_other_callers_have_more_patience(path: Path) -> None:
    """Lagging units, and calls: no leading unit waits with them."""
    ended = threading.Event()

    def late(session: FlightSession, word: ToWorker) -> None:
        if not isinstance(word, Greeting | Attach):
            ended.wait(2.0)
        if isinstance(word, Drop):
            session.send(Reply(1, 7))
        politely(session, word)

    with linked(path, late, 3_600.0, 0.5) as (made, _, _woken):
        made.join(Greeting([]))
        made.send(BeginBatch(5, 5, 0, 0, 0, [[1]], {}), lagging=True)
        assert made.results(5, 0, lagging=True)[0].txid == 5
        made.send(Drop(1))
        assert made.answer(1) == 7


def test_an_error_is_what_it_was(path: Path) -> None:
    def failing(session: FlightSession, word: ToWorker) -> None:
        session.send(Reply(1, error={"C": "22012", "M": "division by zero", "K": "RowError"}))

    with linked(path, failing) as (made, _, _woken):
        made.send(Drop(1))
        with pytest.raises(RowError, match="division by zero"):
            made.answer(1)


def test_what_cannot_be_read_ends_it(path: Path) -> None:
    with linked(path, silently) as (made, other, _):
        made.send(Bye())  # type: ignore[arg-type]  # no word of this side
        assert other.ended.wait(30)
        wait_until(lambda: not made.up, "this end hears of it")


def test_an_interrupt_overtakes_what_is_sent(path: Path) -> None:
    """The interrupt arrives even when the other end no longer reads."""
    reading = threading.Event()

    def stuck(session: FlightSession, word: ToWorker) -> None:
        reading.wait(60)

    with linked(path, stuck) as (made, other, _):
        full = threading.Thread(target=_flood, args=(made,))
        full.start()
        wait_until(lambda: not other.heard.empty(), "it is stuck")
        made.interrupt([4, 5])
        wait_until(lambda: other.interrupted == [[4, 5]], "it is interrupted")
        assert full.is_alive()
        made.close()
        full.join(30)
        assert not full.is_alive()
        reading.set()


def _flood(made: FlightLink) -> None:
    with contextlib.suppress(OutOfReach):
        while True:
            made.send(TableRows(1), BATCH)


def test_batches_of_units_that_lag_go_over_an_exchange_of_their_own(path: Path) -> None:
    """The result of the other batch has not come, and no caller waits for it."""

    def answer(session: FlightSession, word: ToWorker) -> None:
        if isinstance(word, Greeting) or session.lagging:
            politely(session, word)

    with linked(path, answer) as (made, other, _):
        made.join(Greeting([]))
        made.send(BeginBatch(6, 6, 0, 0, 0, [[2]], {}))
        made.send(BeginBatch(3, 5, 0, 0, 0, [[1]], {}), lagging=True)
        done, diffs = made.results(5, 0, lagging=True)
        assert done.txid == 5
        assert diffs[1].equals(BATCH)
        greeting = other.heard.get()
        assert isinstance(greeting, Greeting)
        assert other.heard_lagging.get() == Attach(greeting.session)
        assert isinstance(other.heard.get(), BeginBatch)


def test_much_output_of_a_unit_comes_in_pieces(path: Path, monkeypatch) -> None:
    """Each one is a sign of life, also on this machine."""
    large = pa.record_batch({"a": pa.array(range(1_000_000), pa.int64())})
    sizes, heard = [], Sender.heard

    def counted(sender: Sender, size: int) -> None:
        sizes.append(size)
        heard(sender, size)

    def answer(session: FlightSession, word: ToWorker) -> None:
        if isinstance(word, BeginBatch):
            session.send_rows(UnitDiffs(1), large)
            session.send(StageDone(word.txid, word.attempt, {1: 0.0}, {}, None, False, False, 0))
        else:
            politely(session, word)

    monkeypatch.setattr(Sender, "heard", counted)
    with linked(path, answer) as (made, _, _):
        made.join(Greeting([]))
        made.send(BeginBatch(5, 5, 0, 0, 0, [[1]], {}))
        assert made.results(5, 0)[1][1].equals(large)
    assert max(sizes) < 2 * FAST_PIECE_BYTES


def test_the_link_ends_with_either_exchange(path: Path) -> None:
    def answer(session: FlightSession, word: ToWorker) -> None:
        if session.lagging and isinstance(word, BeginBatch):
            session.send(Bye())
        else:
            politely(session, word)

    with linked(path, answer) as (made, other, woken):
        made.join(Greeting([]))
        made.send(BeginBatch(3, 5, 0, 0, 0, [[1]], {}), lagging=True)
        with pytest.raises(OutOfReach):
            made.results(5, 0, lagging=True)
        with pytest.raises(OutOfReach):
            made.results(6, 0)
        assert woken.wait(10)
        assert other.ended.wait(10)
