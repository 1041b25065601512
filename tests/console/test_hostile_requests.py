"""The HTTP port without a database: malformed requests, foreign host names, requests that starve."""

from __future__ import annotations

import asyncio
import logging
import random
import socket

import pytest
import structlog

from headrace.config import Settings
from tests.console.test_port import Health, post, request, serving, talk
from tests.waiting import eventually

VALID = (
    request("GET /api/me HTTP/1.1"),
    request("GET /api/events?view=v HTTP/1.1", "Cookie: headrace-1=x"),
    request("GET /static/app.js HTTP/1.1", 'If-None-Match: "x"'),
    post("/api/login", {"token": "a wrong token"}),
    post("/api/sql", {"action": "check", "query": "SELECT 1"}),
    request("GET /api/log?level=error&before=7 HTTP/1.1", "Cookie: headrace-1=x"),
    request(
        "POST /api/login HTTP/1.1",
        *("Content-Type: application/json", "Transfer-Encoding: chunked"),
        body=b"2\r\n{}\r\n0\r\n\r\n",
    ),
    b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" * 3,
)
PIECES = (
    *(b"\r\n", b"\n", b"\0", b":", b" ", b"\xff", b"%00", b"%ff", b"[", b"]", b"zz\r\n", b"-1"),
    *(b"Host: x:y\r\n", b"Host: [\r\n", b"Host: \r\n", b"Host: x:99999999\r\n", b"Cookie: =;\r\n"),
    *(b"Content-Length: 9\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n"),
    *(
        b"Upgrade: websocket\r\nConnection: upgrade\r\n",
        b"Content-Length: x\r\n",
        b"//",
        b"http://",
    ),
)
NAMED = (
    b"GET /api/me HTTP/1.1\r\nHost: x:y\r\n\r\n",
    b"GET /api/me HTTP/1.1\r\nHost: [\r\n\r\n",
    b"GET /api/me HTTP/1.1\r\nHost: x:99999\r\n\r\n",
    b"GET /api/me HTTP/1.1\r\nHost: a@b:c\r\n\r\n",
    b"POST /api/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /api/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: 90\r\n\r\n{",
    b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\nnonsense\r\n\r\n",
)


@pytest.fixture
def settings(tmp_path):
    return Settings(
        source="host=127.0.0.1 port=1 dbname=x user=x", data_dir=tmp_path, http="127.0.0.1:0"
    )


def mutated(rng):
    data = bytearray(rng.choice(VALID))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at:at] = rng.choice(PIECES)
            case 1:
                line = data.rfind(b"\r\n", 0, at) + 2 if b"\r\n" in data[:at] else 0
                data[line:line] = rng.choice(PIECES)
            case 2:
                del data[at : at + rng.randint(1, 30)]
            case _:
                del data[at:]
                if not data:
                    data += b"x"
    return bytes(data)


async def send(number, data):
    """Send ``data`` and end the sending side; wait until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", number)
    try:
        writer.write(data)
        writer.write_eof()
        async with asyncio.timeout(20):
            await reader.read()
    except OSError:
        pass
    finally:
        writer.transport.abort()


def test_malformed_requests_write_no_tracebacks(settings, caplog):
    """Tracebacks would fill the disk, and cost the sender nothing."""
    rng = random.Random(13)
    requests = [*NAMED, *(mutated(rng) for _ in range(150))]

    async def main():
        async with serving(settings) as number:
            for data in requests:
                await send(number, data)
            server = serving.now
            await eventually(lambda: not server._state.tasks, what="all requests have ended")
            return await talk(number, request("GET /livez HTTP/1.1"))

    with caplog.at_level(logging.DEBUG), structlog.testing.capture_logs() as events:
        answer = asyncio.run(main())
    assert answer.endswith(b"ok\n")
    loud = [e for e in events if e["log_level"] in ("warning", "error") or "exc_info" in e]
    assert loud == []
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (post("/api/sql", {"action": "check", "query": "SELECT 1"}), b"401"),
        (post("/api/sql", b"x" * 10_000_000), b"401"),
        (post("/api/sql", {}, "Content-Type: text/plain"), b"415"),
        (
            post("/api/sql", {}, "Content-Type: application/json", "Sec-Fetch-Site: cross-site"),
            b"403",
        ),
        (request("PUT /api/sql HTTP/1.1"), b"405"),
        (request("GET /api/log?text=%00 HTTP/1.1"), b"401"),
        (post("/api/log", {}), b"405"),
    ],
)
def test_nothing_is_done_for_a_stranger(settings, sent, status):
    """No body is read before the login is known, and no page of another site is answered."""

    async def main():
        async with serving(settings) as number:
            return await talk(number, sent)

    answer = asyncio.run(main())
    # A body that is not read resets the connection, with or without the answer.
    assert answer == b"" or answer.split(b" ")[1] == status


def test_an_error_of_ours_is_logged_a_few_times(settings):
    class Broken(Health):
        async def metrics(self):
            raise ZeroDivisionError

    async def main():
        async with serving(settings, Broken()) as number:
            return [await talk(number, request("GET /metrics HTTP/1.1")) for _ in range(9)]

    with structlog.testing.capture_logs() as events:
        answers = asyncio.run(main())
    assert {a.split(b" ")[1] for a in answers} == {b"500"}
    assert [e["event"] for e in events] == ["request failed"] * 3


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(
            (h, b"200")
            for h in ("127.0.0.1:8080", "10.0.0.7", "[::1]:8080", "[fe80::1]", "LOCALHOST")
        ),
        *((h, b"200") for h in ("headrace", "a.localhost:1", "db.internal", socket.gethostname())),
        *((h, b"200") for h in ("known.example.com", "Known.Example.com:443")),
        *(
            (h, b"421")
            for h in ("evil.example.com", "evil.example.com:8080", "127.0.0.1.evil.example")
        ),
        *(
            (h, b"421")
            for h in ("localhost.evil.example", "xlocalhost.com", "1.2.3", "evil.example.")
        ),
        *((h, b"400") for h in ("", "a b", "evil.example/127.0.0.1", "x:y", "a@b", "[", "x, y")),
    ],
)
def test_only_known_host_names_are_answered(settings, host, status):
    """A page whose domain is pointed to this address must not read /metrics."""
    known = settings.replace(http_hosts="other.example.com, known.example.com")

    async def main():
        async with serving(known) as number:
            head = b"GET /metrics HTTP/1.1\r\nConnection: close\r\nHost: %s\r\n\r\n"
            return await talk(number, head % host.encode())

    answer = asyncio.run(main())
    assert answer.split(b" ")[1] == status, answer
    assert (b"a 1" in answer) == (status == b"200")


def test_http_1_0_needs_no_host(settings):
    async def main():
        async with serving(settings) as number:
            return await talk(number, b"GET /livez HTTP/1.0\r\n\r\n")

    assert asyncio.run(main()).endswith(b"ok\n")


def test_requests_for_metrics_share_their_computation(settings):
    class Slow(Health):
        def __init__(self):
            self.begun = self.running = self.most = 0
            self.may_end = asyncio.Event()

        async def metrics(self):
            self.begun += 1
            self.running += 1
            self.most = max(self.most, self.running)
            await self.may_end.wait()
            self.running -= 1
            return f"a {self.begun}\n"

    async def main():
        health = Slow()
        async with serving(settings, health) as number:
            asking = [
                asyncio.create_task(talk(number, request("GET /metrics HTTP/1.1")))
                for _ in range(40)
            ]
            await eventually(lambda: len(serving.now._state.tasks) == 40, what="all wait")
            live = await talk(number, request("GET /livez HTTP/1.1"))
            health.may_end.set()
            return live, await asyncio.gather(*asking), health

    live, answers, health = asyncio.run(main())
    assert live.endswith(b"ok\n")
    assert {a.split(b" ")[1] for a in answers} == {b"200"}
    assert health.most == 1
    assert health.begun <= 2


def test_an_answer_is_not_older_than_its_request(settings):
    class Counted(Health):
        count = 0

        async def metrics(self):
            self.count += 1
            return f"a {self.count}\n"

    async def main():
        async with serving(settings, Counted()) as number:
            return [await talk(number, request("GET /metrics HTTP/1.1")) for _ in range(3)]

    assert [a.rpartition(b"a ")[2] for a in asyncio.run(main())] == [b"1\n", b"2\n", b"3\n"]


def test_wrong_logins_do_not_lock_out_the_token(settings):
    """The source is unreachable: the right token is told so, a wrong one is not."""

    async def main():
        async with serving(settings) as number:
            token = (settings.data_dir / "console.token").read_text().strip()
            wrong = [await talk(number, post("/api/login", {"token": f"x{n}"})) for n in range(12)]
            return wrong, await talk(number, post("/api/login", {"token": token}))

    wrong, right = asyncio.run(main())
    assert [a.split(b" ")[1] for a in wrong] == [b"403"] * 10 + [b"429"] * 2
    assert right.split(b" ")[1] == b"403"
    assert b"the database cannot be reached now" in right
