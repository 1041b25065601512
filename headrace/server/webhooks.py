"""Delivers the events of assertions to their webhooks: at least once, with retries and a limit.

The queue is a table (``sql/deliveries.py``), so nothing is lost with this process.  Each request is
a task.  A receiver that hangs occupies a few of them, and so delays neither other receivers nor a
commit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any, Final

import msgspec
import psycopg
import structlog

from headrace import clock
from headrace.config import Settings
from headrace.errors import HeadraceError, UserError
from headrace.postgres import connect
from headrace.process import tasks
from headrace.server import webhook_request
from headrace.server.webhook_request import DeliveryError
from headrace.sql import deliveries, webhook_urls
from headrace.sql.deliveries import Connection, Delivery
from headrace.sql.webhook_urls import WebhookUrl

_RETRY_S: Final = 5.0
_KEEP_S: Final = 30.0
"""Seconds for which the connection is kept until a delivery is due."""
_BACKOFF_S_MAX: Final = 3600.0
_TASKS_MAX: Final = 64
_PER_PLACE_MAX: Final = 4
"""Limits of the requests at a time, all together and to one host and port."""

_log = structlog.get_logger(__name__)


def backoff_s(tries: int) -> float:
    """Return the seconds from failed attempt ``tries``, beginning at 1, to the next one."""
    return min(2.0 ** (tries - 1), _BACKOFF_S_MAX)


class WebhookSender:
    """The deliveries of one engine."""

    def __init__(self, settings: Settings, version: str) -> None:
        self._settings = settings
        self._agent = f"headrace/{version}"
        self._woken = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._busy: Counter[str] = Counter()
        """Requests under way, by host and port."""
        self._main: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start delivering."""
        self._main = asyncio.create_task(tasks.forever("webhooks", self._serve, _RETRY_S))

    async def stop(self) -> None:
        """Stop; requests under way are repeated by the next process."""
        for task in (self._main, *self._tasks.values()):
            await tasks.end(task)

    def wake(self) -> None:
        """Look for deliveries."""
        self._woken.set()

    async def _serve(self) -> None:
        while True:
            try:
                in_s = await self._deliver()
            except (psycopg.Error, HeadraceError) as error:
                _log.warning("webhooks not delivered", reason=str(error).strip())
                in_s = _RETRY_S
            await self._wait(in_s)

    async def _deliver(self) -> float | None:
        """Deliver what is due; return the seconds until more is due, None if nothing is queued."""
        settings = self._settings
        async with await connect.async_session(settings.source, name="headrace webhooks") as conn:
            while True:
                self._woken.clear()
                for due in await deliveries.due(conn, self._tasks):
                    self._begin(conn, due.id, due.url)
                in_s = await deliveries.next_in_s(conn, self._tasks)
                if not self._tasks and (in_s is None or in_s > _KEEP_S):
                    return in_s
                # A delivery that is due waits for another one to the same host.
                await self._wait(in_s if in_s is not None and in_s > 0 else _RETRY_S)

    async def _wait(self, seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    def _begin(self, conn: Connection, number: str, text: str) -> None:
        """Begin a delivery, unless too many are under way."""
        url = webhook_urls.parse(text)
        if len(self._tasks) < _TASKS_MAX and self._busy[url.place] < _PER_PLACE_MAX:
            self._busy[url.place] += 1
            self._tasks[number] = asyncio.create_task(self._attempt(conn, number, url))

    async def _attempt(self, conn: Connection, number: str, url: WebhookUrl) -> None:
        try:
            found = await deliveries.load(conn, number)
            if found is not None:
                await self._send(conn, found, url)
        except (psycopg.Error, HeadraceError) as error:
            _log.warning("webhooks not delivered", reason=str(error).strip())
        except Exception:  # noqa: BLE001  the boundary of one delivery
            _log.exception("webhook ended by a bug", delivery=number)
        finally:
            self._busy[url.place] -= 1
            self._busy += Counter()
            del self._tasks[number]
            self.wake()

    async def _send(self, conn: Connection, found: Delivery, url: WebhookUrl) -> None:
        if not found.owned:
            why = "the role that owned the assertion was dropped"
            await deliveries.ended(conn, found.id, "failed", why)
            return
        body, now = msgspec.json.encode(contents(found)), int(clock.now().timestamp())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": self._agent,
            "webhook-id": found.id,
            "webhook-timestamp": str(now),
            "webhook-signature": webhook_request.signature(found.secret, found.id, now, body),
        }
        tries = found.tries + 1
        try:
            webhook_urls.check_allowed(url, self._settings.webhook_hosts)
            timeout_s = self._settings.webhook_timeout_ms / 1000
            await webhook_request.post(url, headers, body, timeout_s)
        except (DeliveryError, UserError) as error:
            last = tries >= self._settings.webhook_tries_max
            _log.warning(
                "webhook not delivered",
                assertion=found.assertion,
                reason=str(error),
                tries=tries,
                again=not last,
            )
            status = "failed" if last else "pending"
            await deliveries.ended(conn, found.id, status, str(error), backoff_s(tries))
        else:
            await deliveries.ended(conn, found.id, "delivered", None)


def contents(found: Delivery) -> dict[str, Any]:
    """Return the body of a request, the same for each attempt."""
    told: dict[str, Any] = {
        **{"id": found.id, "type": f"assertion.{found.event}", "timestamp": found.at.isoformat()},
        **{"assertion": found.assertion, "violation": found.violation, "rows": found.rows},
        **{"transactions": found.transactions, "xids": found.xids},
        **{"first_at": found.first_at.isoformat(), "lsn": found.lsn, "txid": found.txid},
    }
    if not found.may_read:
        return told
    if found.requests:
        told["requests"] = found.requests
    return told | {"sample": found.sample} if found.event == "violated" else told
