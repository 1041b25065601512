"""The limits of the HTTP port's connections: heads, answers and bytes that are no request."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest

from headrace.config import Settings
from headrace.console import app, port
from headrace.console.host_interface import HostInterface
from headrace.console.port import HttpPort
from headrace.process import admission
from headrace.server import http
from tests.console.test_port import Health, ask, certificate, request, serving, talk
from tests.waiting import eventually, time_passes

GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
HOURS_S = 10_000


@pytest.fixture
def settings(tmp_path):
    return Settings(
        source="host=127.0.0.1 port=1 dbname=x user=x", data_dir=tmp_path, http="127.0.0.1:0"
    )


@pytest.fixture(autouse=True)
def no_limit(monkeypatch):
    """Leave each test with the one limit that it sets."""
    for name in ("HEAD_S", "KEEP_ALIVE_S", "UNREAD_S"):
        monkeypatch.setattr(port, name, HOURS_S)


class Long(Health):
    """Its metrics are longer than all buffers on the way."""

    def __init__(self) -> None:
        self.calls = 0

    async def metrics(self):
        self.calls += 1
        return "x" * 40_000_000


class Blocked(Health):
    """Its metrics come after an event."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.go = asyncio.Event()

    async def metrics(self):
        self.called.set()
        await self.go.wait()
        return "a 1\n"


@pytest.mark.parametrize("before", [GET, GET * 2, GET * 3])
def test_half_a_head_after_an_answer_has_a_time_limit(settings, monkeypatch, before):
    monkeypatch.setattr(port, "HEAD_S", 0.2)

    async def main():
        async with serving(settings) as number:
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(before)
            for _ in range(before.count(b"GET")):
                await reader.readuntil(b"ok\n")
            writer.write(b"GET /li")
            async with asyncio.timeout(60):
                rest = await reader.read()
            writer.close()
            return rest

    assert asyncio.run(main()) == b""


def test_half_a_head_before_the_end_of_an_answer_has_one_too(settings, monkeypatch):
    monkeypatch.setattr(port, "KEEP_ALIVE_S", 0.2)

    async def main():
        async with serving(settings, Blocked()) as number:
            health = serving.now._app._outside.health
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(METRICS + b"\r\nGET /li")
            await health.called.wait()
            health.go.set()
            async with asyncio.timeout(60):
                answer = await reader.read()
            writer.close()
            return answer

    answer = asyncio.run(main())
    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert answer.endswith(b"a 1\n")


def test_an_answer_may_take_longer_than_a_head(settings, monkeypatch):
    """More bytes meanwhile do not end it, and the next head has all of its time."""
    monkeypatch.setattr(port, "HEAD_S", 0.3)

    async def main():
        async with serving(settings, Blocked()) as number:
            health = serving.now._app._outside.health
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(METRICS + b"\r\n")
            await health.called.wait()
            writer.write(GET)
            await asyncio.to_thread(time_passes, 0.7)
            health.go.set()
            async with asyncio.timeout(60):
                first = await reader.readuntil(b"a 1\n")
                second = await reader.readuntil(b"ok\n")
            writer.close()
            return first + second

    assert asyncio.run(main()).count(b"HTTP/1.1 200 OK") == 2


async def streamed(self, scope, receive, send):
    """Send a part of an answer, and the rest when the client has gone."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"part", "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass
    await send({"type": "http.response.body", "body": b"rest"})


@pytest.mark.parametrize("whole", [True, False])
def test_bytes_that_are_no_request_end_an_answer_quietly(settings, monkeypatch, whole):
    """A chunk of the body that is none, after the answer was made, or while it is."""
    monkeypatch.setattr(admission, "tune", lambda sock, timeout_ms: None)
    if not whole:
        monkeypatch.setattr(app.App, "__call__", streamed)

    async def main():
        wrong = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
        async with serving(settings, Long()) as number:
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(METRICS + b"Transfer-Encoding: chunked\r\n\r\n")
            assert (await reader.read(15)) == b"HTTP/1.1 200 OK"
            writer.write(b"nonsense\r\n")
            await eventually(lambda: not serving.now._state.connections, "it is ended")
            await eventually(lambda: not serving.now._state.tasks, "its task has ended")
            writer.transport.abort()
            monkeypatch.undo()
            return wrong, await talk(number, request("GET /livez HTTP/1.1"))

    wrong, other = asyncio.run(main())
    assert wrong == []
    assert other.endswith(b"ok\n")


@pytest.mark.parametrize("sent", [None, b"", GET[:-2]])
def test_over_tls_handshake_and_head_have_a_time_limit(settings, monkeypatch, tmp_path, sent):
    """None: no handshake."""
    monkeypatch.setattr(port, "HEAD_S", 0.5)
    cert, key = certificate(tmp_path)
    secured = settings.replace(http_tls=True, tls_cert=cert, tls_key=key)
    outside = HostInterface(secured, Health(), ask, http._tls(secured), "1")
    trusting = ssl.create_default_context(cafile=cert)
    trusting.check_hostname = False

    async def main():
        server = HttpPort("127.0.0.1:0", outside)
        _, number = await server.start()
        encrypted = None if sent is None else trusting
        rest = b""
        try:
            async with asyncio.timeout(60):
                reader, writer = await asyncio.open_connection("127.0.0.1", number, ssl=encrypted)
                writer.write(sent or b"")
                rest = await reader.read()
                writer.close()
        except ConnectionError:
            pass  # as it should, at any point
        await server.close()
        return rest

    assert asyncio.run(main()) == b""


def test_a_client_that_reads_late_has_all_answers(settings):
    """Each is longer than the buffers; a later one waits until the client reads."""

    async def main():
        async with serving(settings, Long()) as number:
            health = serving.now._app._outside.health
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write((METRICS + b"\r\n") * 3)
            await eventually(lambda: health.calls == 2, "the second answer is made")
            await asyncio.to_thread(time_passes, 0.5)
            calls = health.calls
            (unread,) = (connection._unread for connection in serving.now._room)
            assert unread._handle is not None
            for _ in range(3):
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 OK")
                assert set(await reader.readexactly(40_000_000)) == {ord("x")}
            await eventually(lambda: unread._handle is None, "its time limit is over")
            writer.close()
            return calls

    assert asyncio.run(main()) == 2


def test_the_bytes_of_a_head_are_bounded(settings, monkeypatch):
    monkeypatch.setattr(port, "HEAD_BYTES_MAX", 1_000)

    async def main():
        async with serving(settings) as number:
            return await talk(number, GET[:-2] + b"X: " + b"x" * port.HEAD_BYTES_MAX)

    assert asyncio.run(main()).startswith(b"HTTP/1.1 400 ")


def test_the_system_notices_a_client_that_has_gone(settings):
    async def main():
        async with serving(settings) as number:
            _, writer = await asyncio.open_connection("127.0.0.1", number)
            await eventually(lambda: list(serving.now._room), "it is admitted")
            (connection,) = serving.now._room
            sock = connection.transport.get_extra_info("socket")
            alive = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            writer.close()
            return alive, sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

    assert asyncio.run(main()) == (1, port.UNREAD_S * 2_000)


def test_all_connections_together_are_bounded(settings, monkeypatch):
    monkeypatch.setattr(port, "CONNECTIONS_MAX", 3)

    async def main():
        async with serving(settings) as number:
            open_ = [await asyncio.open_connection("127.0.0.1", number) for _ in range(3)]
            refused = await talk(number, request("GET /livez HTTP/1.1"))
            open_[0][1].close()
            await eventually(lambda: len(serving.now._state.connections) == 2, "one has gone")
            admitted = await talk(number, request("GET /livez HTTP/1.1"))
            for _, writer in open_[1:]:
                writer.close()
            return refused, admitted

    refused, admitted = asyncio.run(main())
    assert refused == b""
    assert admitted.endswith(b"ok\n")


def test_the_end_of_the_port_ends_an_answer_that_does_not(settings, monkeypatch):
    monkeypatch.setattr(port, "_CLOSE_S", 0.2)

    async def main():
        async with asyncio.timeout(60), serving(settings, Blocked()) as number:
            idle, idle_writer = await asyncio.open_connection("127.0.0.1", number)
            idle_writer.write(GET)
            await idle.readuntil(b"ok\n")
            busy, busy_writer = await asyncio.open_connection("127.0.0.1", number)
            busy_writer.write(METRICS + b"\r\n")
            server = serving.now
            await server._app._outside.health.called.wait()
            await server.close()
            ends = [await idle.read()]
            try:
                ends.append(await busy.read())
            except ConnectionResetError:
                ends.append(b"")
            idle_writer.close()
            busy_writer.close()
            return ends

    assert asyncio.run(main()) == [b"", b""]


def test_the_end_of_the_port_waits_for_answers_and_not_for_idle_clients(settings, monkeypatch):
    monkeypatch.setattr(port, "_CLOSE_S", HOURS_S)

    async def main():
        async with asyncio.timeout(60), serving(settings, Blocked()) as number:
            idle, idle_writer = await asyncio.open_connection("127.0.0.1", number)
            idle_writer.write(GET)
            await idle.readuntil(b"ok\n")
            busy, busy_writer = await asyncio.open_connection("127.0.0.1", number)
            busy_writer.write(METRICS + b"\r\n")
            health = serving.now._app._outside.health
            await health.called.wait()
            closing = asyncio.create_task(serving.now.close())
            ends = [await idle.read()]
            health.go.set()
            ends.append(await busy.read())
            await closing
            idle_writer.close()
            busy_writer.close()
            return ends

    idle, busy = asyncio.run(main())
    assert idle == b""
    assert busy.endswith(b"a 1\n")
