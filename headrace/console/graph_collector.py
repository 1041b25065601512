"""Collects the data that one identity sees, once for all its tabs.

A *topic* is data that is queried together: ``overview``, ``samples``, each view that is open in a
tab.  Its last answer is encoded once, as a frame.  The tabs that follow it are woken and send that
frame, so a slow tab skips some and delays no other tab.  While no tab is open, nothing is queried.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import psycopg
import structlog

from headrace import clock
from headrace.console import access
from headrace.console.access import Gone, Person
from headrace.console.graph import graph
from headrace.console.host_interface import HostInterface
from headrace.console.process_samples import ProcessSamples
from headrace.errors import HeadraceError
from headrace.process import tasks
from headrace.sql import seen

LOOK_S: Final = 2.0
SAMPLES_S: Final = 10.0
PLAN_S: Final = 30.0
LAG_S: Final = 10.0
SAMPLES_KEPT_S: Final = 900
ASK_S: Final = 3.0
QUERY_S: Final = 15.0
"""Longer than the statement_timeout, to allow for the network."""
VIEWS_MAX: Final = 1_000
"""Limit of listed views."""
VIEWS_OPEN_MAX: Final = 16
"""Limit of views that one identity has open at one time, over all its tabs."""
STREAMS_MAX: Final = 48
"""Limit of tabs of one identity."""
BATCHES_SHOWN: Final = 120
OVERVIEW: Final = "overview"
SAMPLES: Final = "samples"
FINE: Final = "processes"
COARSE: Final = "processes of a day"
LOG: Final = "log"
"""Topic of tabs that show events: the id of the newest one."""
SAMPLED_MAX: Final = 300
"""Limit of views with a curve in the list."""
_CALLS: Final = ("memory", "workers", "sources", "batches")
_LAG: Final = ("at", "step_s", "p50_ms", "p99_ms", "lag_ms", "rows_per_s", "state_bytes")
_log = structlog.get_logger(__name__)


def frame(event: str, data: Any) -> bytes:
    """Return a server-sent event; JSON has no line breaks of its own."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), msgspec.json.encode(data))


@dataclass(slots=True)
class Topic:
    """The last answer to one topic, and its version."""

    version: int = 0
    values: dict[str, Any] = field(default_factory=dict)
    """Parts that are queried less often, and the times when they are due."""
    _whole: bytes | None = None
    _make: Callable[[], bytes] | None = None
    _news: bytes = b""

    def put(self, whole: bytes) -> bool:
        """Store the next answer; return whether it differs from the last."""
        if whole == self._whole:
            return False
        self.version, self._whole, self._news = self.version + 1, whole, b""
        return True

    def add(self, news: bytes, make: Callable[[], bytes]) -> None:
        """Store the next answer as ``news`` since the last; ``make`` makes the whole if needed."""
        self.version, self._whole, self._make, self._news = self.version + 1, None, make, news

    def since(self, version: int) -> bytes:
        """Return the frame that a tab with ``version`` lacks; 0: it has none."""
        if self._news and version and version == self.version - 1:
            return self._news
        if self._whole is None:
            assert self._make is not None, "it has been put or added"
            self._whole = self._make()
        return self._whole


class Tab:
    """A tab: the topics that it follows, and the versions that it has."""

    def __init__(self, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self.changed = asyncio.Event()
        self._seen: dict[str, int] = {}

    def frames(self, topics: dict[str, Topic]) -> list[bytes]:
        """Return the frames that it lacks."""
        out = []
        self.changed.clear()
        for name in self.topics:
            topic, had = topics.get(name), self._seen.get(name, 0)
            if topic is None or topic.version == had:
                continue
            out.append(topic.since(had))
            self._seen[name] = topic.version
        return out


class Full(Exception):
    """A limit of the console is reached."""


class GraphCollector:
    """The collector of one identity's data."""

    def __init__(
        self,
        identity: Person,
        outside: HostInterface,
        again: Callable[[], Awaitable[access.Connection]] | None,
        processes: ProcessSamples | None = None,
    ) -> None:
        """Take ``again``, which opens another connection; None: a lost one ends the login.

        ``processes``: shown only to members of the engine's role.
        """
        self.identity = identity
        self.gone = ""
        """Why the login is over; empty: it is not."""
        names = (OVERVIEW, SAMPLES, FINE, COARSE, LOG)
        self.topics: dict[str, Topic] = {name: Topic() for name in names}
        self.looks = 0
        """Number of rounds of queries."""
        self._outside = outside
        self._again = again
        self._processes = processes
        self._sampled = (0, 0)
        """Versions of the samples of processes that the topics have."""
        self._streams: set[Tab] = set()
        self._open: Counter[str] = Counter()
        self._wake = asyncio.Event()
        self._points: dict[str, list[list[Any]]] = {}
        self._task = asyncio.create_task(tasks.forever("console", self._run, LOOK_S))

    def follow(self, view: str | None, *, log: bool = False) -> Tab:
        """Add a tab; ``log``: it shows events.

        Raises:
            Full: there are too many, or too many different views are open.
        """
        if len(self._streams) >= STREAMS_MAX:
            raise Full("too many tabs are open")
        if view is not None:
            if view not in self._open and len(self._open) >= VIEWS_OPEN_MAX:
                raise Full("too many views are open")
            self._open[view] += 1
            self.topics.setdefault(_topic(view), Topic())
        whole = (OVERVIEW, SAMPLES, FINE, COARSE)
        names = whole if view is None else (OVERVIEW, _topic(view))
        stream = Tab((*names, LOG) if log else names)
        self._streams.add(stream)
        self._wake.set()
        return stream

    def leave(self, stream: Tab, view: str | None) -> None:
        """Remove a closed tab."""
        self._streams.discard(stream)
        if view is not None:
            self._open[view] -= 1
            if not self._open[view]:
                del self._open[view]
                self.topics.pop(_topic(view), None)

    async def close(self, why: str) -> None:
        """End, and let the tabs know."""
        self.gone = self.gone or why
        self._rouse()
        self._task.cancel()
        conn, self.identity.conn = self.identity.conn, None
        await access.let_go(conn)

    async def _run(self) -> None:
        while not self.gone:
            if not self._streams:
                self._wake.clear()
                await self._wake.wait()
            self._wake.clear()
            try:
                await self._look()
            except (psycopg.Error, TimeoutError, Gone) as error:
                await self._failed(error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()  # a new tab need not wait

    async def _failed(self, error: Exception) -> None:
        conn = self.identity.conn
        if conn is None or conn.closed or not isinstance(error, psycopg.Error):
            self.identity.conn = None
            await access.let_go(conn)
            if self._again is None or isinstance(error, Gone):
                self.gone = str(error) if isinstance(error, Gone) else "the connection was lost"
                self._rouse()
                return
        _log.debug("console cannot ask", reason=str(error).strip())
        self._put(OVERVIEW, frame("trouble", {"message": "the database does not answer"}))

    async def _look(self) -> None:
        if self.identity.conn is None:
            assert self._again is not None, "else it is over"
            self.identity.conn = await self._again()
        conn = self.identity.conn
        self.looks += 1
        async with asyncio.timeout(QUERY_S):
            # Check the role each time: it may have been dropped, renamed, or shut out.
            me = await access.welcome(conn)
            facts, views = await seen.status(conn), await seen.views(conn, VIEWS_MAX)
            assertions = await seen.assertions(conn, VIEWS_MAX)
        told = {**await self._overview(me, facts, views), "assertions": assertions}
        self._put(OVERVIEW, frame(OVERVIEW, told))
        async with asyncio.timeout(QUERY_S):
            await self._samples(conn)
        if me["sees_all"]:
            self._put_processes()
        if any(LOG in stream.topics for stream in self._streams):
            async with asyncio.timeout(QUERY_S):
                newest = await seen.newest_event(conn)
            self._put(LOG, frame(LOG, {"newest": newest}))
        for view in list(self._open):
            topic = self.topics.get(_topic(view))
            if topic is not None:
                answer = await self._view(conn, me["role"], view, topic)
                self._put(_topic(view), frame("view", answer))

    async def _overview(
        self, me: dict[str, Any], facts: list[dict[str, Any]], views: list[dict[str, Any]]
    ) -> dict[str, Any]:
        answers = await asyncio.gather(*(self._asked(name, {}, me["role"]) for name in _CALLS))
        told: dict[str, Any] = dict(zip(_CALLS, answers, strict=True))
        if told["batches"]:
            told["batches"] = told["batches"][:BATCHES_SHOWN]
        return {
            "role": me["role"],
            "database": me["database"],
            "version": self._outside.version,
            "at": clock.now().timestamp(),
            "facts": facts,
            "views": views,
            **told,
        }

    async def _asked(
        self, name: str, arguments: dict[str, Any], role: str
    ) -> list[dict[str, Any]] | None:
        """Return the rows of a call; None: the process that answers it is down."""
        try:
            async with asyncio.timeout(ASK_S):
                return await self._outside.ask(name, arguments, role)
        except (HeadraceError, TimeoutError, OSError):
            return None

    async def _samples(self, conn: access.Connection) -> None:
        topic, now = self.topics[SAMPLES], clock.monotonic()
        if now < topic.values.get("due", 0.0):
            return
        topic.values["due"] = now + SAMPLES_S / 2
        after = topic.values.get("after", 0)
        rows = await seen.samples(conn, after)
        if not rows and topic.version:
            return
        news: dict[str, list[list[Any]]] = {}
        for row in reversed(rows):
            after = max(after, row["at"])
            if row["name"] in self._points or len(self._points) < SAMPLED_MAX:
                point = [row["at"], _short(row["p50_ms"]), _short(row["p99_ms"]), row["lag_ms"]]
                self._points.setdefault(row["name"], []).append(point)
                news.setdefault(row["name"], []).append(point)
        topic.values["after"] = after
        self._points = {
            name: kept
            for name, points in self._points.items()
            if (kept := [p for p in points if p[0] > after - SAMPLES_KEPT_S])
        }
        topic.add(frame(SAMPLES, {"whole": False, "views": news}), self._all_samples)
        self._rouse()

    def _put_processes(self) -> None:
        samples = self._processes
        if samples is None:
            return
        versions = samples.version, samples.coarse_version
        if versions[0] != self._sampled[0]:
            self._put(FINE, frame("processes", {"fine": samples.fine()}))
        if versions[1] != self._sampled[1]:
            self._put(COARSE, frame("processes", {"coarse": samples.coarse()}))
        self._sampled = versions

    def _all_samples(self) -> bytes:
        return frame(SAMPLES, {"whole": True, "views": self._points})

    async def _view(
        self, conn: access.Connection, role: str, name: str, topic: Topic
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(QUERY_S):
                found = await seen.view(conn, name)
            if found is None:
                return {"name": name, "missing": True}
            # From here on it is the name of a view that the role may see.
            stats = await self._asked("view_stats", {"name": name}, role)
            await self._refresh(conn, role, name, topic.values)
        except psycopg.Error:
            if conn.closed:
                raise
            return {"name": name, "missing": True}  # it was dropped after the query
        told = {name: topic.values[name] for name in ("graph", "plan", "lag")}
        return {**found, **told, "at": clock.now().timestamp(), "stats": stats}

    async def _refresh(
        self, conn: access.Connection, role: str, name: str, values: dict[str, Any]
    ) -> None:
        """Refresh the parts that change seldom, or are long."""
        now = clock.monotonic()
        if now >= values.get("plan_due", 0.0):
            arguments = {"name_or_query": name, "stage": "physical", "format": "json"}
            lines = await self._asked("explain_view", arguments, role)
            async with asyncio.timeout(QUERY_S):
                # Take the stored plan if no process can say what is shared just now.
                stored = "" if lines else await seen.plan(conn, name)
            text = "\n".join(line["plan"] for line in lines) if lines else stored
            values |= {"graph": graph(text), "plan": text, "plan_due": now + PLAN_S}
        if now >= values.get("lag_due", 0.0):
            async with asyncio.timeout(QUERY_S):
                rows = await seen.lag(conn, name)
            values["lag"] = {c: [_short(r[c]) for r in reversed(rows)] for c in _LAG}
            values["lag_due"] = now + LAG_S

    def _put(self, name: str, whole: bytes) -> None:
        topic = self.topics.get(name)
        if topic is not None and topic.put(whole):
            self._rouse()

    def _rouse(self) -> None:
        for stream in self._streams:
            stream.changed.set()


def _topic(view: str) -> str:
    return f"view {view}"


def _short(value: float | None) -> float | None:
    return value if value is None or isinstance(value, int) else round(value, 2)
