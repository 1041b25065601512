"""What each procedure does: a table from its name to a handler that asks builder or worker.

The same handlers serve calls on the commander's port and those of the command table.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, Protocol

import structlog

from headrace import clock
from headrace.errors import (
    TransientError,
    UndefinedError,
    UserError,
)
from headrace.server.context import Context
from headrace.server.messages import ResultSet
from headrace.server.procedures import SIGNATURES, Invocation
from headrace.server.progress import Reporter, ready
from headrace.server.waits import Waits
from headrace.types import INT8, TEXT

LINGER_S: Final = 60.0
"""Seconds a cancelled call waits for the builder to clean up."""
BUILDER_WAIT_S: Final = 30.0
"""Seconds a call waits for a builder that is being started again."""

_UNCOUNTED: Final = frozenset(("wait_for",))
"""What costs nothing but a socket."""
_PLANNED_PHASES: Final = frozenset(("pending", "planning"))

VERIFIED: Final = (("surplus", INT8), ("missing", INT8), ("contents", TEXT))
"""Columns of verify_view; ``sql/verify_view.sql`` has the same."""

Report = Callable[[str], None]
_log = structlog.get_logger(__name__)


class Peer(Protocol):
    """What a handler may ask of builder or worker."""

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
    """Runs calls; keeps those that go on after their caller was answered."""

    def __init__(
        self,
        builder: Callable[[], Awaitable[Peer]],
        waits: Waits | None = None,
        worker: Callable[[], Awaitable[Peer]] | None = None,
        per_role_max: int = 0,
    ) -> None:
        """``builder`` and ``worker`` wait until it can be asked and give its peer.

        ``per_role_max``: calls of one role under way; 0: any number.
        """
        self._per_role_max = per_role_max
        self._under_way: Counter[str] = Counter()
        self._builder = builder
        self._waits = waits
        self._worker = worker
        self._background: set[asyncio.Task[Any]] = set()
        self._handlers: dict[str, Callable[..., Awaitable[ResultSet | None]]] = {
            "create_view": self._create_view,
            "drop_view": self._drop_view,
            "create_index": self._create_index,
            "drop_index": self._drop_index,
            "explain_view": self._explain_view,
            "check_view": self._check_view,
            "pause_view": self._pause_view,
            "resume_view": self._resume_view,
            "alter_view": self._alter_view,
            "rename_view": self._rename_view,
            "set_owner": self._set_owner,
            "resync_view": self._resync_view,
            "verify_view": self._verify_view,
            "wait_for": self._wait_for,
            "fail_batch": self._fail_batch,
        }

    async def run(
        self, invocation: Invocation, context: Context, report: Report
    ) -> ResultSet | None:
        """Carry out ``invocation``; rows for a query, None for a CALL."""
        handler = self._handlers.get(invocation.procedure)
        if handler is None:
            raise UserError(f'unknown procedure "{invocation.procedure}"')
        arguments = dict(invocation.arguments)
        for parameter in SIGNATURES[invocation.procedure]:
            if arguments.get(parameter.name) is None:
                if parameter.required:
                    raise UserError(
                        f'argument "{parameter.name}" of {invocation.procedure}'
                        " must not be null",
                        sqlstate="22004",
                    )
                arguments[parameter.name] = parameter.default
        if invocation.procedure in _UNCOUNTED:
            return await handler(arguments, context, report)
        with self._counted(context.caller):
            return await handler(arguments, context, report)

    @contextlib.contextmanager
    def _counted(self, caller: str) -> Iterator[None]:
        """Inside, one more call of a role is under way."""
        if self._per_role_max and self._under_way[caller] >= self._per_role_max:
            raise UserError(
                f'role "{caller}" has {self._under_way[caller]} calls under way and may'
                " have no more",
                hint="Wait for some, or have the setting commands_per_role_max raised.",
                sqlstate="53400",
            )
        self._under_way[caller] += 1
        try:
            yield
        finally:
            self._under_way[caller] -= 1
            self._under_way += Counter()  # without those that have none

    async def create_again(self, row: dict[str, Any]) -> None:
        """Start again a view that was created without waiting, before the engine died."""
        context = Context(row["owner"], row["settings"])
        name = f"{_quoted(row['schema_name'])}.{_quoted(row['view_name'])}"
        # Its names are qualified: the search path it was written under is not kept.
        query = row["canonical"] or row["query"]
        arguments = {
            "name": name,
            "query": query,
            "options": row["options"],
            "unasked": True,
        }
        await self._create_view(
            arguments,
            context,
            lambda line: _log.info("population", view=name, line=line),
        )

    async def _create_view(
        self, arguments: dict[str, Any], context: Context, report: Report
    ) -> None:
        options = arguments["options"]
        if not isinstance(options, dict):
            raise UserError("options must be a JSON object")
        block = options.get("block", True)
        if not isinstance(block, bool):
            raise UserError('option "block" must be true or false')
        reporter = Reporter(arguments["name"], report)
        accepted = asyncio.Event()

        def progress(step: dict[str, Any]) -> None:
            reporter(step)
            if step.get("phase") not in _PLANNED_PHASES:
                accepted.set()

        if block:
            started = clock.monotonic()
            answer = await self._call("create_view", arguments, context, progress)
            reporter.flush()
            if answer.get("notice"):
                report(str(answer["notice"]))
            report(ready(int(answer["rows"]), clock.monotonic() - started))
            return
        task = asyncio.create_task(
            self._call("create_view", arguments, context, progress)
        )
        await self._until_accepted(task, accepted, arguments["name"])

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

    async def _drop_view(
        self, arguments: dict[str, Any], context: Context, report: Report
    ) -> None:
        answer = await self._call("drop_view", arguments, context)
        for key in ("message", "notice"):
            if isinstance(answer, dict) and answer.get(key):
                report(str(answer[key]))

    async def _create_index(
        self, arguments: dict[str, Any], context: Context, report: Report
    ) -> None:
        await self._call("create_index", arguments, context)

    async def _drop_index(
        self, arguments: dict[str, Any], context: Context, report: Report
    ) -> None:
        await self._call("drop_index", arguments, context)

    async def _explain_view(
        self, arguments: dict[str, Any], context: Context, report: Report
    ) -> ResultSet:
        params = {
            "query_or_name": arguments["name_or_query"],
            "stage": arguments["stage"],
        }
        answer = await self._call("explain_view", params, context)
        return ResultSet.of_lines("plan", _lines(answer, arguments["stage"]))

    async def _check_view(
        self, arguments: dict[str, Any], context: Context, report: Report
    ) -> ResultSet:
        answer = await self._call("check_view", arguments, context)
        # A CALL answers one row.
        return ResultSet((("plan", TEXT),), [("\n".join(_lines(answer, "physical")),)])

    async def _pause_view(
        self, arguments: dict[str, Any], context: Context, report: Report
    ) -> None:
        reporter = Reporter(arguments["name"], report)
        await self._call("pause_view", arguments, context, reporter)

    async def _resume_view(
        self, arguments: dict[str, Any], context: Context, report: Report
    ) -> None:
        reporter = Reporter(arguments["name"], report)
        await self._call("resume_view", arguments, context, reporter)

    async def _rename_view(
        self, arguments: dict[str, Any], context: Context, report: Report
    ) -> None:
        await self._call("rename_view", arguments, context)

    async def _alter_view(
        self, arguments: dict[str, Any], context: Context, report: Report
    ) -> None:
        await self._refill("alter_view", arguments, context, report)

    async def _set_owner(
        self, arguments: dict[str, Any], context: Context, report: Report
    ) -> None:
        await self._refill("set_owner", arguments, context, report)

    async def _resync_view(
        self, arguments: dict[str, Any], context: Context, report: Report
    ) -> None:
        await self._refill("resync_view", arguments, context, report)

    async def _refill(
        self, method: str, arguments: dict[str, Any], context: Context, report: Report
    ) -> None:
        reporter = Reporter(arguments["name"], report)
        answer = await self._call(method, arguments, context, reporter)
        reporter.flush()
        report(str(answer["notice"]))

    async def _verify_view(
        self, arguments: dict[str, Any], context: Context, report: Report
    ) -> ResultSet:
        reporter = Reporter(arguments["name"], report)
        answer = await self._call("verify_view", arguments, context, reporter)
        if answer.get("notice"):
            report(str(answer["notice"]))
        return ResultSet(
            VERIFIED, [(int(s), int(m), str(c)) for s, m, c in answer["rows"]]
        )

    async def _wait_for(
        self, arguments: dict[str, Any], context: Context, report: Report
    ) -> None:
        if self._waits is None:
            raise TransientError("the worker process is not running")
        await self._waits.wait_for(arguments, context)

    async def _fail_batch(
        self, arguments: dict[str, Any], context: Context, report: Report
    ) -> None:
        if self._worker is None:
            raise TransientError("the worker process is not running")
        try:
            async with asyncio.timeout(BUILDER_WAIT_S):
                worker = await self._worker()
        except TimeoutError as error:
            raise TransientError("the worker process is not running") from error
        params = {"txid": arguments["txid"], "caller": context.caller}
        await worker.call("fail_batch", params)

    async def _call(
        self,
        method: str,
        arguments: dict[str, Any],
        context: Context,
        progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> Any:
        params = {**arguments, "caller": context.caller, "settings": context.settings}
        try:
            async with asyncio.timeout(BUILDER_WAIT_S):
                builder = await self._builder()
        except TimeoutError as error:
            raise TransientError("the builder process is not running") from error
        return await builder.call(method, params, progress, linger_s=LINGER_S)


def _lines(answer: Any, stage: str) -> list[str]:
    """An explanation as lines, in whichever form the planner gives it."""
    if isinstance(answer, dict):
        if stage not in answer:
            raise UndefinedError(
                f'there is no plan of stage "{stage}"',
                hint=f"Stages: {', '.join(sorted(answer))}.",
                sqlstate="22023",
            )
        answer = answer[stage]
    if isinstance(answer, str):
        return answer.rstrip("\n").split("\n")
    if isinstance(answer, list):
        return [x if isinstance(x, str) else json.dumps(x) for x in answer]
    raise UserError(f'there is no plan of stage "{stage}"')


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
