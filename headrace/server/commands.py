"""Execution of calls (``sql/verbs.py``): asks the builder or the worker, and reports the answer.

Calls on the commander's port and calls of the command table are executed alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Protocol

import msgspec
import structlog

from headrace import clock, errors
from headrace.config import Settings
from headrace.postgres.tokens import identifier
from headrace.process import rpc
from headrace.server.context import CallContext
from headrace.server.messages import ResultSet
from headrace.server.procedures import Invocation, unknown
from headrace.server.progress import Reporter, ready, short
from headrace.server.waits import SessionWaits
from headrace.sql.held import Holding
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

LINGER_S: Final = 60.0
"""Seconds that a cancelled call waits for the builder to clean up."""
BUILDER_WAIT_S: Final = 30.0
"""Seconds that a call waits for a builder that is being restarted."""

ROLE_BYTES_MAX: Final = 4 << 20
"""Limit of bytes of text of all running calls of one role; ``sql/commands.sql`` has the same."""

_PLANNED_PHASES: Final = frozenset(("pending", "planning"))

_COLUMNS: Final = {
    "verify_view": "surplus missing contents",
    "queues": (
        "queue reader node queued_rows queued_bytes blocks contiguous resident_bytes "
        "base_txid front_txid tail_txid head_txid behind_bytes kind priority resident_pct "
        "running"
    ),
    "memory": "part view bytes limit_bytes",
    "batches": (
        "txid attempt state at transactions rows views process_us wait_us write_us fresh_us"
    ),
    "view_stats": (
        "node collection shared worker rows_in rows_out batches busy_us cpu_us state_rows "
        "state_bytes state_exact queued_rows queued_bytes view"
    ),
    "workers": "worker state pid views memory_bytes since address cpu_s moved",
    "clients": (
        "id role database application_name state transaction call call_ms connected_at "
        "idle_ms queries received_bytes sent_bytes address port tls server_pid server_tls"
    ),
    "client_stats": (
        "database clients clients_total queries received_bytes sent_bytes calls call_errors call_us"
    ),
    "settings": "name value initial reloads",
    "links": (
        "worker kind up latency_us bandwidth most out_bytes_per_s in_bytes_per_s packed overridden"
    ),
    "rebalance": "view worker_now worker_then busy_us moved problem",
    "sources": "source state position lag_bytes changes heard_at views tables problem",
    "advise": "topic subject finding value unit advice",
    "explain_placement": "what name worker why bytes_s cost ns_per_row",
    "why": "txid source contents rows note",
    "why_not": "txid node operator rows reason",
    "what_if_plan": "plan",
    "what_if": "view change times before after note",
}
"""Columns of the functions that ask the engine.  Their rows travel as JSON, so only the function in
``sql/`` has the types."""
DOCUMENTS: Final = {
    "why": frozenset(("contents",)),
    "what_if_plan": frozenset(("plan",)),
    "what_if": frozenset(("before", "after")),
}
"""Of these, the columns whose values are texts of JSON."""

Report = Callable[[str], None]
Later = Callable[[BaseException | None], None]
"""Takes the outcome of a view that is created without waiting: None, or the error."""
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
        self._numbers = itertools.count()
        self._fillings: dict[int, tuple[float, dict[str, Any]]] = {}
        """By number of the call: when it began, and the last step of its population."""
        self._here: Mapping[str, Callable[[Request], Awaitable[Any]]] = {}
        """Handlers of the verbs that this process carries out, but for ``wait_for``."""

    async def run(
        self,
        invocation: Invocation,
        context: CallContext,
        report: Report,
        later: Later | None = None,
    ) -> ResultSet | None:
        """Run ``invocation``; return rows for a query, None for a CALL.

        ``later``: only for a view that is created without waiting.
        """
        verb, request = _request(invocation, context, self._settings)
        if isinstance(request, WaitFor):
            # Not counted: waiting costs only a socket.
            await self._wait_for(request)
            return None
        with self._counted(context.caller, _size(invocation)):
            if isinstance(request, CreateView):
                await self._create_view(verb, request, report, later)
                return None
            return await self._carry_out(verb, request, report)

    @contextlib.contextmanager
    def _counted(self, caller: str, size: int) -> Iterator[None]:
        """Count a call of a role, with ``size`` bytes of text, as running while inside."""
        if self._per_role_max and self._under_way[caller] >= self._per_role_max:
            raise errors.UserError(
                f'role "{caller}" has {self._under_way[caller]} calls under way and may'
                " have no more",
                hint="Wait for some, or have the setting commands_per_role_max raised.",
                sqlstate="53400",
            )
        if self._under_way[caller] and self._bytes[caller] + size > ROLE_BYTES_MAX:
            raise errors.UserError(
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

    async def _create_view(
        self, verb: Verb, request: CreateView, report: Report, later: Later | None = None
    ) -> None:
        reporter = Reporter(request.name, report)
        accepted = asyncio.Event()

        def progress(step: dict[str, Any]) -> None:
            reporter(step)
            if step.get("phase") not in _PLANNED_PHASES:
                accepted.set()

        if request.options.block:
            started = clock.monotonic()
            answer = await self._ask(verb, request, report, progress)
            reporter.flush()
            _say(answer, report)
            if "rows" in answer:  # else it existed already
                report(ready(int(answer["rows"]), clock.monotonic() - started))
            return
        task = asyncio.create_task(self._ask(verb, request, report, progress))
        if later is not None:
            task.add_done_callback(
                lambda done: None if done.cancelled() else later(done.exception())
            )
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
        answer = await self._ask(verb, request, report, reporter)
        if isinstance(answer, dict) and "others" in answer and self._see is not None:
            slow = await self._see(answer["others"])
            answer["notice"] = "; ".join(filter(None, (answer.get("notice"), slow)))
        if reporter is not None and verb.fills:
            reporter.flush()
        _say(answer, report)
        if (shown := _SHOWN.get(verb.name)) is not None:
            return shown(answer)
        return _rows(verb.name, answer) if verb.name in _COLUMNS else None

    async def _wait_for(self, request: WaitFor) -> None:
        if self._waits is None:
            raise errors.TransientError("the worker process is not running", hint=rpc.AGAIN)
        await self._waits.wait_for(request)

    async def _ask(
        self,
        verb: Verb,
        request: Request,
        report: Report,
        progress: Callable[[dict[str, Any]], None] | None,
    ) -> Any:
        """Send the request to the verb's process, and return its answer.

        If the query reads a view that is being refilled, the request waits for the refill.
        """
        while True:
            try:
                return await self._asked(verb, request, progress)
            except errors.UnreadableViewError as stopped:
                below = WaitFor(stopped.view, caller=request.caller, settings=request.settings)
                told = f"waiting for view {stopped.view}, which is being filled again"
                waits = self._waits
                if waits is None or not await waits.runs(below, partial(report, told)):
                    raise

    async def _asked(
        self, verb: Verb, request: Request, progress: Callable[[dict[str, Any]], None] | None
    ) -> Any:
        """Send the request once."""
        if verb.by == "commander":
            return await self._here[verb.name](request)
        gone = errors.TransientError(f"the {verb.by} process is not running", hint=rpc.AGAIN)
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
        try:
            with self._followed(progress) as followed:
                return await peer.call(verb.name, request.message(), followed, linger_s=linger)
        except errors.ViewStopped as stopped:
            return await self._refilled(request, stopped)

    async def _refilled(self, request: Request, stopped: errors.ViewStopped) -> dict[str, Any]:
        """Wait for the refill of a view that has stopped just after a call filled it.

        Raises:
            ViewStopped: it is not refilled automatically.
        """
        if self._waits is None or not isinstance(request, ViewRequest) or request.unasked:
            raise stopped
        again = WaitFor(request.name, caller=request.caller, settings=request.settings)
        try:
            await self._waits.wait_for(again)
        except errors.HeadraceError:
            raise stopped from None
        why = f": {stopped.detail}" if stopped.detail else ""
        return {"notice": f"{stopped.message} meanwhile, and was filled again{why}"}

    @contextlib.contextmanager
    def _followed(
        self, progress: Callable[[dict[str, Any]], None] | None
    ) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Yield ``progress``, with which ``fillings`` also hears of the populations of a call."""
        call, began = next(self._numbers), clock.monotonic()

        def follow(step: dict[str, Any]) -> None:
            if step.get("view_id"):
                self._fillings[call] = (began, step)
            if progress is not None:
                progress(step)

        try:
            yield follow
        finally:
            self._fillings.pop(call, None)

    def fillings(self) -> list[Holding]:
        """Return the populations that are under way."""
        now = clock.monotonic()
        return [
            Holding(int(step["view_id"]), short(step), now - began, "population")
            for began, step in self._fillings.values()
        ]


def _size(invocation: Invocation) -> int:
    """Return the bytes of a call's arguments."""
    return len(msgspec.json.encode(invocation.arguments, enc_hook=str))


def _request(
    invocation: Invocation, context: CallContext, settings: Settings
) -> tuple[Verb, Request]:
    """Return the verb and request of an invocation, with valid options; NULL means the default."""
    verb = VERBS.get(invocation.procedure)
    if verb is None:
        raise unknown(invocation.procedure)
    arguments = dict(invocation.arguments)
    for parameter in verb.parameters:
        if arguments.get(parameter.name) is None:
            if parameter.required:
                raise errors.UserError(
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


def _rows(name: str, answer: Any) -> ResultSet:
    """Return the rows of an answer; it may have notices beside them."""
    rows = answer["rows"] if isinstance(answer, dict) else answer
    return ResultSet(tuple(_COLUMNS[name].split()), rows)


def _of_one(column: str, *values: str) -> ResultSet:
    return ResultSet((column,), [(value,) for value in values])


_SHOWN: Final[dict[str, Callable[[Any], ResultSet]]] = {
    "explain_view": lambda answer: _of_one("plan", *answer["lines"]),
    # A CALL returns one row.
    "check_view": lambda stages: _of_one("plan", stages["physical"].rstrip("\n")),
    "create_worker_token": lambda answer: _of_one("token", answer["token"]),
}
"""Functions that build the result set, for other verbs that return rows."""
