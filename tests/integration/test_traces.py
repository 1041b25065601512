"""Traces of batches, as a collector receives them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg
import pytest

from headrace.config import Settings
from headrace.errors import PrerequisiteError
from headrace.server import traces
from tests.waiting import wait_until

otlp = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

Span = dict[str, object]


def plain(value) -> object:
    """Return a value of OTLP: a number, or a list of texts."""
    if value.WhichOneof("value") == "array_value":
        return [each.string_value for each in value.array_value.values]
    return value.int_value


class Collector:
    """Collector of OTLP/HTTP on loopback that keeps the spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, str]] = []
        kept = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                kept.take(otlp.ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, request) -> None:
        for of in request.resource_spans:
            self.resources.append({a.key: a.value.string_value for a in of.resource.attributes})
            for scope in of.scope_spans:
                for span in scope.spans:
                    found = {a.key: plain(a.value) for a in span.attributes}
                    self.spans.append(
                        found
                        | {
                            "name": span.name,
                            "trace": span.trace_id,
                            "id": span.span_id,
                            "parent": span.parent_span_id,
                            "from": span.start_time_unix_nano,
                            "to": span.end_time_unix_nano,
                        }
                    )

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.mark.slow  # the library collects spans for 5 s
def test_each_batch_is_a_trace(database, start_engine, collector):
    engine = start_engine(database, HEADRACE_OTLP_ENDPOINT=collector.url)
    with (
        psycopg.connect(database, autocommit=True) as source,
        psycopg.connect(engine.dsn, autocommit=True) as conn,
    ):
        source.execute("CREATE TABLE t (id int PRIMARY KEY)")
        conn.execute("CALL headrace.create_view('v', 'SELECT id FROM t')")
        for key in range(3):
            source.execute("INSERT INTO t SELECT %s * 10 + i FROM generate_series(1, 5) i", (key,))
            conn.execute("CALL headrace.wait_for('v')")
        told = conn.execute("SELECT * FROM headrace.batches()").fetchall()

    def whole() -> list[Span]:
        return [s for s in collector.spans if s["name"] == "batch" and s["headrace.rows"] == 5]

    wait_until(lambda: len(whole()) == 3, lambda: collector.spans)
    assert {s["headrace.txid"] for s in whole()} == {row[0] for row in told if row[5] == 5}
    for span in whole():
        assert (span["headrace.transactions"], span["headrace.views"]) == (1, 1)
        assert span["headrace.view_names"] == ["public.v"]
        inside = [s for s in collector.spans if s["parent"] == span["id"]]
        assert [s["name"] for s in inside] == ["gather", "process", "wait", "write"]
        assert {s["trace"] for s in inside} == {span["trace"]}
        # In sequence, without gaps, from the batch's beginning to its end.
        ends = [span["from"], *(s["to"] for s in inside)]
        assert [s["from"] for s in inside] == ends[:-1]
        assert ends[-1] == span["to"]
        assert ends == sorted(ends)
        [process_us] = [row[7] for row in told if row[0] == span["headrace.txid"]]
        took = (inside[1]["to"] - inside[1]["from"]) / 1000
        assert abs(took - process_us) <= 1
    resource = collector.resources[0]
    assert resource["service.name"] == "headrace"
    assert resource["headrace.slot"].startswith("headrace_")
    collector.close()
    # The worker does not wait for a collector that is gone.
    with (
        psycopg.connect(database, autocommit=True) as source,
        psycopg.connect(engine.dsn, autocommit=True) as conn,
    ):
        source.execute("INSERT INTO t VALUES (1000)")
        conn.execute("CALL headrace.wait_for('v')")
    assert engine.stop() == 0


def test_nothing_is_loaded_where_it_is_off():
    program = (
        "import sys, headrace.server.main\n"
        "print([m for m in sys.modules if m.startswith(('opentelemetry', 'prometheus'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.stdout == "[]\n", done.stderr


def test_what_it_needs_is_told(monkeypatch):
    monkeypatch.setattr(traces, "_LIBRARY", ("opentelemetry.not_there",))
    traces.check(Settings())
    with pytest.raises(PrerequisiteError) as caught:
        traces.check(Settings(otlp_endpoint="http://127.0.0.1:1"))
    assert "headrace[otel]" in str(caught.value.hint)
