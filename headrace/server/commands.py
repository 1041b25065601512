"""Execution of calls (``sql/verbs.py``): asks the builder or the worker, and reports the answer.

Calls on the commander's port and calls of the command table are executed alike.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Protocol

import msgspec
import structlog

from headrace import clock
from headrace.config import Settings
from headrace.errors import TransientError, UserError
from headrace.postgres.tokens import identifier
from headrace.server.context import CallContext
from headrace.server.messages import ResultSet
from headrace.server.procedures import Invocation
from headrace.server.progress import Reporter, ready
from headrace.server.waits import SessionWaits
from headrace.sql.verbs import (
    VERBS,
    CreateView,
    Request,
    Verb,
    ViewRequest,
    WaitFor,
)
from headrace.sql.view_spec import ViewSpec
from headrace.sql.views import Unfinished
from headrace.types import BOOL, FLOAT8, INT8, TEXT

LINGER_S: Final = 60.0
"""Seconds that a cancelled call waits for the builder to clean up."""
BUILDER_WAIT_S: Final = 30.0
"""Seconds that a call waits for a builder that is being restarted."""

ROLE_BYTES_MAX: Final = 4 << 20
"""Limit of bytes of text of all running calls of one role; ``sql/commands.sql`` has the same."""

_PLANNED_PHASES: Final = frozenset(("pending", "planning"))

VERIFIED: Final = (("surplus", INT8), ("missing", INT8), ("contents", TEXT))
"""Columns of verify_view; ``sql/verify_view.sql`` has the same."""
QUEUES: Final = (
    *(("queue", TEXT), ("reader", TEXT), ("node", TEXT)),
    *(("queued_rows", INT8), ("queued_bytes", INT8), ("blocks", INT8), ("contiguous", BOOL)),
    *(("resident_bytes", INT8), ("base_txid", INT8), ("front_txid", INT8)),
    *(("tail_txid", INT8), ("head_txid", INT8), ("behind_bytes", INT8)),
    *(("kind", TEXT), ("priority", INT8), ("resident_pct", INT8), ("running", BOOL)),
)
"""Columns of queues; ``sql/queues.sql`` has the same."""
BATCHES: Final = (
    *(("txid", INT8), ("attempt", INT8), ("state", TEXT), ("at", TEXT), ("transactions", INT8)),
    *(("rows", INT8), ("views", INT8), ("process_us", INT8), ("wait_us", INT8)),
    *(("write_us", INT8), ("fresh_us", INT8)),
)
"""Columns of batches; ``sql/batches.sql`` has the same."""
MEMORY: Final = (("part", TEXT), ("view", TEXT), ("bytes", INT8), ("limit_bytes", INT8))
"""Columns of memory; ``sql/memory.sql`` has the same."""
VIEW_STATS: Final = (
    *(("node", TEXT), ("collection", TEXT), ("shared", BOOL), ("worker", TEXT)),
    *(("rows_in", INT8), ("rows_out", INT8), ("batches", INT8), ("busy_us", INT8)),
    *(("cpu_us", INT8), ("state_rows", INT8), ("state_bytes", INT8), ("state_exact", BOOL)),
    *(("queued_rows", INT8), ("queued_bytes", INT8)),
)
"""Columns of view_stats; ``sql/view_stats.sql`` has the same."""
ADVICE: Final = (
    *(("topic", TEXT), ("subject", TEXT), ("finding", TEXT)),
    *(("value", FLOAT8), ("unit", TEXT), ("advice", TEXT)),
)
"""Columns of advise; ``sql/advise.sql`` has the same."""
WORKERS: Final = (
    *(("worker", TEXT), ("state", TEXT), ("pid", INT8), ("views", INT8)),
    *(("memory_bytes", INT8), ("since", TEXT), ("address", TEXT)),
)
"""Columns of workers; ``sql/workers.sql`` has the same."""
CLIENTS: Final = (
    *(("id", INT8), ("role", TEXT), ("database", TEXT), ("application_name", TEXT)),
    *(("state", TEXT), ("transaction", TEXT), ("call", TEXT), ("call_ms", INT8)),
    *(("connected_at", TEXT), ("idle_ms", INT8), ("queries", INT8), ("received_bytes", INT8)),
    *(("sent_bytes", INT8), ("address", TEXT), ("port", INT8), ("tls", TEXT)),
    *(("server_pid", INT8), ("server_tls", TEXT)),
)
"""Columns of clients; ``sql/clients.sql`` has the same."""
CLIENT_STATS: Final = (
    *(("database", TEXT), ("clients", INT8), ("clients_total", INT8), ("queries", INT8)),
    *(("received_bytes", INT8), ("sent_bytes", INT8), ("calls", INT8), ("call_errors", INT8)),
    ("call_us", INT8),
)
"""Columns of client_stats; ``sql/client_stats.sql`` has the same."""
SETTINGS: Final = (("name", TEXT), ("value", TEXT), ("initial", TEXT), ("reloads", BOOL))
"""Columns of settings; ``sql/settings.sql`` has the same."""
LINKS: Final = (
    *(("worker", TEXT), ("kind", TEXT), ("up", BOOL), ("latency_us", INT8), ("bandwidth", INT8)),
    *(("most", INT8), ("out_bytes_per_s", INT8), ("in_bytes_per_s", INT8)),
    *(("packed", BOOL), ("overridden", BOOL)),
)
"""Columns of links; ``sql/links.sql`` has the same."""
PLACEMENT: Final = (
    *(("what", TEXT), ("name", TEXT), ("worker", TEXT), ("why", TEXT)),
    *(("bytes_s", INT8), ("cost", INT8), ("ns_per_row", INT8)),
)
"""Columns of explain_placement; ``sql/explain_placement.sql`` has the same."""
REBALANCE: Final = (
    *(("view", TEXT), ("worker_now", TEXT), ("worker_then", TEXT), ("busy_us", INT8)),
    *(("moved", BOOL), ("problem", TEXT)),
)
"""Columns of rebalance; ``sql/rebalance.sql`` has the same."""
SOURCES: Final = (
    *(("source", TEXT), ("state", TEXT), ("position", TEXT), ("lag_bytes", INT8)),
    *(("changes", INT8), ("heard_at", TEXT), ("views", INT8), ("tables", INT8), ("problem", TEXT)),
)
"""Columns of sources; ``sql/sources.sql`` has the same."""

Report = Callable[[str], None]
_log = structlog.get_logger(__name__)


class CommandPeer(Protocol):
    """Connection to the builder or the worker."""

    async def call(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        progress: Callable[[dict[str, Any]], None] | None = None,
        *,
        linger_s: float = 0.0,
    ) -> Any:
        """Send a request and wait for its answer (``rpc.Peer.call``)."""


class Commands:
    """Runs calls, and holds those that go on after their caller was answered."""

    def __init__(
        self,
        settings: Settings,
        builder: Callable[[], Awaitable[CommandPeer]],
        waits: SessionWaits | None = None,
        worker: Callable[[], Awaitable[CommandPeer]] | None = None,
        per_role_max: int = 0,
        see: Callable[[dict[str, list[str]]], Awaitable[str | None]] | None = None,
    ) -> None:
        """Take ``builder`` and ``worker``, which return the process's peer once it is up.

        ``per_role_max``: limit of running calls per role; 0: none.  ``see`` takes the names of the
        other processes when these change, and may return a notice.
        """
        self._settings = settings
        self._see = see
        self._per_role_max = per_role_max
        self._under_way: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        """Bytes of text of the running calls, by role."""
        self._builder = builder
        self._waits = waits
        self._worker = worker
        self._background: set[asyncio.Task[Any]] = set()
        self._here: Mapping[str, Callable[[Request], Awaitable[Any]]] = {}
        """Handlers of the verbs that this process carries out, but for ``wait_for``."""

    async def run(
        self, invocation: Invocation, context: CallContext, report: Report
    ) -> ResultSet | None:
        """Run ``invocation``; return rows for a query, None for a CALL."""
        verb, request = _request(invocation, context, self._settings)
        if isinstance(request, WaitFor):
            # Not counted: waiting costs only a socket.
            await self._wait_for(request)
            return None
        with self._counted(context.caller, _size(invocation)):
            if isinstance(request, CreateView):
                await self._create_view(verb, request, report)
                return None
            return await self._carry_out(verb, request, report)

    @contextlib.contextmanager
    def _counted(self, caller: str, size: int) -> Iterator[None]:
        """Count a call of a role, with ``size`` bytes of text, as running while inside."""
        if self._per_role_max and self._under_way[caller] >= self._per_role_max:
            raise UserError(
                f'role "{caller}" has {self._under_way[caller]} calls under way and may'
                " have no more",
                hint="Wait for some, or have the setting commands_per_role_max raised.",
                sqlstate="53400",
            )
        if self._under_way[caller] and self._bytes[caller] + size > ROLE_BYTES_MAX:
            raise UserError(
                f'calls of role "{caller}" under way have {self._bytes[caller]} bytes of text and'
                f" may have no more than {ROLE_BYTES_MAX}",
                hint="Wait for some.",
                sqlstate="53400",
            )
        self._under_way[caller] += 1
        self._bytes[caller] += size
        try:
            yield
        finally:
            self._under_way[caller] -= 1
            self._bytes[caller] -= size
            # Drop the roles with a count of zero.
            self._under_way += Counter()
            self._bytes += Counter()

    def handle(self, handlers: Mapping[str, Callable[[Request], Awaitable[Any]]]) -> None:
        """Carry out these verbs by ``handlers``."""
        self._here = handlers

    def limit(self, per_role_max: int) -> None:
        """Change the limit of running calls per role."""
        self._per_role_max = per_role_max

    async def create_again(self, row: Unfinished) -> None:
        """Create again a view that was created without waiting, before the engine died."""
        name = f"{identifier(row.schema)}.{identifier(row.name)}"
        # The canonical query has qualified names; the search path of the call is not kept.
        query = row.canonical or row.query
        caller, settings = row.owner, row.settings
        options = ViewSpec.from_request(row.options, self._settings)
        await self._create_view(
            VERBS["create_view"],
            CreateView(name, query, options, caller=caller, settings=settings, unasked=True),
            lambda line: _log.info("population", view=name, line=line),
        )

    async def _create_view(self, verb: Verb, request: CreateView, report: Report) -> None:
        reporter = Reporter(request.name, report)
        accepted = asyncio.Event()

        def progress(step: dict[str, Any]) -> None:
            reporter(step)
            if step.get("phase") not in _PLANNED_PHASES:
                accepted.set()

        if request.options.block:
            started = clock.monotonic()
            answer = await self._ask(verb, request, progress)
            reporter.flush()
            _say(answer, report)
            if "rows" in answer:  # else it existed already
                report(ready(int(answer["rows"]), clock.monotonic() - started))
            return
        task = asyncio.create_task(self._ask(verb, request, progress))
        await self._until_accepted(task, accepted, request.name)

    async def _until_accepted(
        self, task: asyncio.Task[Any], accepted: asyncio.Event, view: str
    ) -> None:
        """Return once the view is planned; the task goes on without its caller."""
        waiter = asyncio.create_task(accepted.wait())
        try:
            await asyncio.wait((task, waiter), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,))
            raise
        finally:
            waiter.cancel()
        if task.done():
            await task
            return
        self._background.add(task)

        def done(finished: asyncio.Task[Any]) -> None:
            self._background.discard(finished)
            if not finished.cancelled() and (error := finished.exception()):
                _log.warning("view was not created", view=view, reason=str(error))

        task.add_done_callback(done)

    async def _carry_out(self, verb: Verb, request: Request, report: Report) -> ResultSet | None:
        """Send the request, report its messages, and return its rows, if any."""
        reporter = None
        if isinstance(request, ViewRequest):
            reporter = Reporter(request.name, report, steps=verb.tells)
        answer = await self._ask(verb, request, reporter)
        if isinstance(answer, dict) and "others" in answer and self._see is not None:
            slow = await self._see(answer["others"])
            answer["notice"] = "; ".join(filter(None, (answer.get("notice"), slow)))
        if reporter is not None and verb.fills:
            reporter.flush()
        _say(answer, report)
        shown = _SHOWN.get(verb.name)
        return shown(answer) if shown else None

    async def _wait_for(self, request: WaitFor) -> None:
        if self._waits is None:
            raise TransientError("the worker process is not running")
        await self._waits.wait_for(request)

    async def _ask(
        self, verb: Verb, request: Request, progress: Callable[[dict[str, Any]], None] | None = None
    ) -> Any:
        """Send the request to the verb's process, and return its answer."""
        if verb.by == "commander":
            return await self._here[verb.name](request)
        gone = TransientError(f"the {verb.by} process is not running")
        by_builder = verb.by == "builder"
        connected = self._builder if by_builder else self._worker
        if connected is None:
            raise gone
        try:
            async with asyncio.timeout(BUILDER_WAIT_S):
                peer = await connected()
        except TimeoutError as error:
            raise gone from error
        linger = LINGER_S if by_builder else 0.0
        return await peer.call(verb.name, request.message(), progress, linger_s=linger)


def _size(invocation: Invocation) -> int:
    """Return the bytes of a call's arguments."""
    return len(msgspec.json.encode(invocation.arguments, enc_hook=str))


def _request(
    invocation: Invocation, context: CallContext, settings: Settings
) -> tuple[Verb, Request]:
    """Return the verb and request of an invocation, with valid options; NULL means the default."""
    verb = VERBS.get(invocation.procedure)
    if verb is None:
        raise UserError(f'unknown procedure "{invocation.procedure}"')
    arguments = dict(invocation.arguments)
    for parameter in verb.parameters:
        if arguments.get(parameter.name) is None:
            if parameter.required:
                raise UserError(
                    f'argument "{parameter.name}" of {invocation.procedure} must not be null',
                    sqlstate="22004",
                )
            arguments[parameter.name] = parameter.default
        if parameter.options is not None:
            given = arguments[parameter.name]
            arguments[parameter.name] = parameter.options.from_request(given, settings)
    about: dict[str, Any] = {"caller": context.caller, "settings": context.settings}
    return verb, verb.request(**arguments, **about)


def _say(answer: Any, report: Report) -> None:
    """Report the messages in an answer."""
    if not isinstance(answer, dict):
        return
    told = [answer.get("message"), answer.get("notice"), *answer.get("notices", ())]
    for text in filter(None, told):
        report(str(text))


def _explained(answer: dict[str, Any]) -> ResultSet:
    return ResultSet.of_lines("plan", answer["lines"])


def _checked(stages: dict[str, str]) -> ResultSet:
    # A CALL returns one row.
    return ResultSet((("plan", TEXT),), [(stages["physical"].rstrip("\n"),)])


def _verified(answer: dict[str, Any]) -> ResultSet:
    rows = [(int(s), int(m), str(c)) for s, m, c in answer["rows"]]
    return ResultSet(VERIFIED, rows)


_SHOWN: Final[dict[str, Callable[[Any], ResultSet]]] = {
    "explain_view": _explained,
    "check_view": _checked,
    "advise": partial(ResultSet, ADVICE),
    "create_worker_token": lambda answer: ResultSet((("token", TEXT),), [(answer["token"],)]),
    "verify_view": _verified,
    "queues": partial(ResultSet, QUEUES),
    "memory": partial(ResultSet, MEMORY),
    "batches": partial(ResultSet, BATCHES),
    "workers": partial(ResultSet, WORKERS),
    "links": partial(ResultSet, LINKS),
    "sources": partial(ResultSet, SOURCES),
    "rebalance": partial(ResultSet, REBALANCE),
    "explain_placement": partial(ResultSet, PLACEMENT),
    "view_stats": partial(ResultSet, VIEW_STATS),
    "clients": partial(ResultSet, CLIENTS),
    "client_stats": partial(ResultSet, CLIENT_STATS),
    "settings": partial(ResultSet, SETTINGS),
}
"""Functions that build the result set, for verbs that return rows."""
