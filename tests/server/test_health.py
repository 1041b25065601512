"""Prometheus text and the HTTP port."""

from __future__ import annotations

import asyncio
import re

import msgspec
import pytest

from headrace.runtime.histogram import Histogram
from headrace.server.http import HttpServer
from headrace.server.metrics import Page


def test_what_names_have_is_escaped():
    page = Page()
    page.put("view_rows", 1, 'x"\\\n')
    page.put("batches_total", 2.5)
    page.put("view_rows", 12_345_678_901, "y")
    # In the order of the table, each name once; a value is as exact as a double.
    assert page.render() == (
        "# HELP headrace_batches_total Batches that are in the tables.\n"
        "# TYPE headrace_batches_total counter\nheadrace_batches_total 2.5\n"
        "# HELP headrace_view_rows Rows of its table, as estimated.\n"
        "# TYPE headrace_view_rows gauge\n"
        'headrace_view_rows{view="x\\"\\\\\\n"} 1.0\n'
        'headrace_view_rows{view="y"} 1.2345678901e+10\n'
    )


def test_a_histogram_counts_what_is_below_each_bound():
    told = Histogram()
    for seconds in (0.001, 0.0011, 0.3, 100):
        told.note(seconds)
    page = Page()
    page.count("sink_transaction_seconds", msgspec.structs.asdict(told.told()))
    buckets = dict(re.findall(r'_bucket{le="(\S+)"} (\S+)', page.render()))
    # A bound is part of its bucket, as Prometheus has it.
    assert [buckets[le] for le in ("0.001", "0.0025", "0.25", "0.5", "60.0", "+Inf")] == [
        *("1.0", "2.0", "2.0", "3.0", "3.0", "4.0"),
    ]
    assert "headrace_sink_transaction_seconds_count 4.0\n" in page.render()
    assert "headrace_sink_transaction_seconds_sum 100.3021\n" in page.render()


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
