"""A trace of each batch, for a collector that speaks OTLP/HTTP (``otlp_endpoint``).

    batch                       from the commit of its oldest transaction to its being visible
      gather                    until it was taken
      process, wait, write      as in ``batches()``

Its attributes identify the batch and the views that it has changed, a few of them by name.

The worker is asked every second for its last batches, which it keeps anyway.  A thread of the
library sends the spans.  Without the setting nothing of the library is imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from headrace.config import Settings
from headrace.errors import HeadraceError, PrerequisiteError
from headrace.process import tasks
from headrace.server.commands import CommandPeer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

_ASK_S: Final = 1.0
_RETRY_S: Final = 5.0
_TIMEOUT_S: Final = 5.0
_LIBRARY: Final = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")


def check(settings: Settings) -> None:
    """Check that the library for traces is installed, if the setting needs it.

    Raises:
        PrerequisiteError: traces are wanted, and the library is not installed.
    """
    if not settings.otlp_endpoint:
        return
    for name in _LIBRARY:
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise PrerequisiteError(
                'setting "otlp_endpoint" needs the OpenTelemetry library',
                hint="pip install 'headrace[otel]', or leave the setting empty.",
            )


class Traces:
    """The exporter of one engine's traces."""

    def __init__(
        self, settings: Settings, version: str, worker: Callable[[], Awaitable[CommandPeer]]
    ) -> None:
        self._settings = settings
        self._version = version
        self._worker = worker
        self._last = (0, 0)
        """(``at_us``, txid) of the last batch sent; ``at_us`` is in microseconds since 1970."""
        self._provider: TracerProvider | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start, if the setting is given."""
        if self._settings.otlp_endpoint:
            loop = tasks.forever("traces", self._run, _RETRY_S)
            self._task = asyncio.create_task(loop)

    async def stop(self) -> None:
        """Stop, after sending the remaining spans for at most a second."""
        if self._task is None:
            return
        await tasks.end(self._task)
        if self._provider is not None:
            await asyncio.to_thread(self._provider.force_flush, 1_000)

    async def _run(self) -> None:
        tracer = await asyncio.to_thread(self._begin)
        while True:
            with contextlib.suppress(HeadraceError, OSError, TimeoutError):
                async with asyncio.timeout(_TIMEOUT_S):
                    peer = await self._worker()
                    told = await peer.call("batches", {})
                self._send(tracer, told)
            await asyncio.sleep(_ASK_S)

    def _begin(self) -> Tracer:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        if self._provider is None:
            about = {"service.name": "headrace", "service.version": self._version}
            self._provider = TracerProvider(
                resource=Resource.create(about | {"headrace.slot": self._settings.slot_name}),
                shutdown_on_exit=False,
            )
            url = self._settings.otlp_endpoint.rstrip("/") + "/v1/traces"
            self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
        return self._provider.get_tracer("headrace", self._version)

    def _send(self, tracer: Tracer, told: list[dict[str, Any]]) -> None:
        """Send the committed batches that were not sent yet."""
        done = [row for row in told if row["state"] == "committed"]
        for row in reversed(done):  # the oldest first
            at = (row["at_us"], row["txid"])
            if at > self._last:
                self._last = at
                _trace(tracer, row)


def _trace(tracer: Tracer, row: Mapping[str, Any]) -> None:
    from opentelemetry.trace import set_span_in_context

    end = row["at_us"] * 1000
    write = end - _ns(row["write_ms"])
    wait = write - _ns(row["wait_ms"])
    taken = wait - _ns(row["process_ms"])
    begin = min(end - _ns(row["fresh_ms"]), taken)
    names = ("txid", "attempt", "transactions", "rows", "views")
    about = {f"headrace.{name}": row[name] for name in (*names, "view_names")}
    whole = tracer.start_span("batch", start_time=begin, attributes=about)
    inside = set_span_in_context(whole)
    for name, since, until in (
        ("gather", begin, taken),
        ("process", taken, wait),
        ("wait", wait, write),
        ("write", write, end),
    ):
        tracer.start_span(name, context=inside, start_time=since).end(until)
    whole.end(end)


def _ns(ms: float) -> int:
    return round(ms * 1e6)
