"""Prometheus text and the HTTP port."""

from __future__ import annotations

import asyncio

import pytest

from headrace.server.health import Sample, render
from headrace.server.http import HttpServer


def test_render():
    samples = [
        Sample("a", 1, (("view", 'x"\\\n'),)),
        Sample("b", 2.5, (), "counter"),
        Sample("a", 12_345_678_901, (("view", "y"),)),
    ]
    assert render(samples) == (
        '# TYPE a gauge\na{view="x\\"\\\\\\n"} 1\na{view="y"} 12345678901\n'
        "# TYPE b counter\nb 2.5\n"
    )


class Health:
    async def ready(self):
        return False, "the replication slot is not active"

    async def metrics(self):
        return "a 1\n"


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        (b"GET /livez HTTP/1.1", b"200 OK", b"ok\n"),
        (
            b"GET /readyz HTTP/1.1",
            b"503 Service Unavailable",
            b"the replication slot is not active\n",
        ),
        (b"GET /metrics?x=1 HTTP/1.1", b"200 OK", b"a 1\n"),
        (b"GET /other HTTP/1.1", b"404 Not Found", b"not found\n"),
        (b"POST /livez HTTP/1.1", b"405 Method Not Allowed", b"only GET\n"),
        (b"nonsense", b"400 Bad Request", b"malformed request\n"),
        (b"GET /" + b"x" * 20_000, b"", b""),
    ],
)
def test_http(request_line, status, body):
    async def main() -> bytes:
        server = HttpServer("127.0.0.1:0", Health())
        host, port = await server.start()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request_line + b"\r\nHost: x\r\n\r\n")
        try:
            answer = await reader.read()
        except ConnectionResetError:
            answer = b""
        writer.close()
        await server.close()
        return answer

    answer = asyncio.run(main())
    if not status:
        assert answer == b""
        return
    assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n")
    assert answer.endswith(b"\r\n\r\n" + body)
