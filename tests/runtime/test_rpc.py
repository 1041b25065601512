"""Control messages: an error is the same error in the other process."""

from __future__ import annotations

import asyncio

import pytest

from headrace import errors
from headrace.errors import (
    DETAIL_CHARS_MAX,
    MESSAGE_CHARS_MAX,
    BugError,
    HeadraceError,
    PeerGone,
    QueryCancelled,
    RowError,
    TransientError,
)
from headrace.expressions.kernels import FailingRow
from headrace.process import rpc
from tests.waiting import PATIENCE_S

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, HeadraceError)
]


class Other:
    """The other side of a control connection."""

    def __init__(self, path) -> None:
        self.path = path
        self.error: Exception | None = None
        self.peers: list[rpc.Peer] = []
        self.asked = asyncio.Event()

    async def __aenter__(self) -> Other:
        handlers = {"fail": self._fail, "wait": self._wait, "answer": self._answer}
        self._server = await rpc.serve(self.path, handlers, self.peers.append)
        self.peer = await rpc.connect(self.path)
        return self

    async def __aexit__(self, *_) -> None:
        await self.peer.close()
        self._server.close()

    async def _fail(self, params, progress):
        raise self.error

    async def _answer(self, params, progress):
        return {"all": "well"}

    async def _wait(self, params, progress):
        self.asked.set()
        await asyncio.Event().wait()


async def answer(path, error: Exception) -> HeadraceError:
    async with Other(path) as other:
        other.error = error
        with pytest.raises(HeadraceError) as caught:
            await other.peer.call("fail")
        return caught.value


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_keeps_its_class_and_fields(tmp_path, kind):
    error = kind("no", detail="It is.", hint="Do.", position=7, sqlstate="57P01")
    got = asyncio.run(answer(tmp_path / "s", error))
    assert type(got) is kind
    assert got.fields() == error.fields()


def test_a_class_of_elsewhere_arrives_as_the_nearest_known(tmp_path):
    got = asyncio.run(answer(tmp_path / "s", FailingRow("division by zero", 3, "22012")))
    assert type(got) is RowError
    assert got.code == "22012"


def test_a_bug_is_a_bug(tmp_path):
    got = asyncio.run(answer(tmp_path / "s", KeyError("x")))
    assert type(got) is BugError
    assert got.code == "XX000"


def test_whoever_asks_is_told_of_a_death(tmp_path):
    async def run() -> None:
        async with Other(tmp_path / "s") as other:
            call = asyncio.create_task(other.peer.call("wait"))
            await other.asked.wait()
            await other.peers[0].close()
            with pytest.raises(PeerGone) as gone:
                await call
            with pytest.raises(TransientError) as down:
                await other.peer.call("wait")
            assert "headrace.list_views()" in gone.value.hint
            assert down.value.hint == rpc.AGAIN

    asyncio.run(run())


def test_a_cancel_arrives_as_one(tmp_path):
    async def run() -> None:
        async with Other(tmp_path / "s") as other:
            call = asyncio.create_task(other.peer.call("wait", linger_s=60))
            await other.asked.wait()
            number = next(iter(other.peer._waiting))
            other.peer._send(rpc._Cancel(number))
            with pytest.raises(QueryCancelled):
                await call

    asyncio.run(run())


def test_a_request_that_is_cancelled_in_one_go_is_answered(tmp_path):
    """Both lines are read at once: the cancel comes before the request's first step."""
    asked = b'{"type": "_Ask", "id": 1, "method": "wait", "params": {}}\n'
    cancelled = b'{"type": "_Cancel", "id": 1}\n'

    async def run() -> None:
        async with Other(tmp_path / "s") as other, asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
            writer.write(asked + cancelled)
            assert b'"57014"' in await reader.readline()
            assert not any(peer._running for peer in other.peers)
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b'{"type": "_Nonsense", "id": 1}',
        b'{"type": "_Ask", "id": 1, "method": "wait", "params": {}, "more": 1}',
        b'{"type": "_Ask", "id": "1", "method": "wait", "params": {}}',
        b'{"type": "_Ask", "id": 1, "method": "wait"}',
    ],
)
def test_what_is_no_message_ends_the_connection(tmp_path, line):
    async def run() -> None:
        async with Other(tmp_path / "s") as other:
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
            writer.write(line + b"\n")
            assert await reader.read() == b""
            writer.close()
            assert not other.asked.is_set()
            assert (await other.peer.call("answer")) == {"all": "well"}

    asyncio.run(run())


def test_what_no_text_can_hold_is_told_all_the_same(tmp_path):
    got = asyncio.run(answer(tmp_path / "s", RowError("no \ud800", hint="\udfff")))
    assert (got.message, got.hint) == ("no \\ud800", "\\udfff")


def test_no_error_is_larger_than_a_message(tmp_path):
    loud = "loud " * 20_000_000
    got = asyncio.run(answer(tmp_path / "s", RowError(loud, detail=loud, hint=loud)))
    assert got.message.startswith("loud loud")
    assert len(got.message) <= MESSAGE_CHARS_MAX
    assert len(got.detail) <= DETAIL_CHARS_MAX
    assert len(str(got)) <= MESSAGE_CHARS_MAX
