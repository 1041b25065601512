"""Data of /metrics and /readyz: the state of the source, the views and the processes.

Each request asks the database and the worker anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from headrace.config import Settings
from headrace.console.host_interface import ProcessUsage
from headrace.errors import HeadraceError
from headrace.postgres.connect import async_dicts
from headrace.server.commands import CommandPeer
from headrace.server.supervisor import Supervisor
from headrace.sql import deliveries, origins
from headrace.sql.status import SHOWN, CursorState, Status

if TYPE_CHECKING:
    from headrace.server.metrics import Page

Connection = psycopg.AsyncConnection[dict[str, Any]]

_TIMEOUT_S: Final = 5
_WORKER_S: Final = 3
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

_SLOT: Final = """
SELECT s.active, s.wal_status, s.safe_wal_size,
       s.confirmed_flush_lsn - '0/0'::pg_lsn AS confirmed, s.restart_lsn - '0/0'::pg_lsn AS restart,
       greatest(w.lsn - s.restart_lsn, 0) AS retained,
       extract(epoch FROM a.flush_lag)::float8 AS lag_s
  FROM pg_catalog.pg_replication_slots s
 CROSS JOIN (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                         ELSE pg_current_wal_lsn() END AS lsn) w
  LEFT JOIN pg_catalog.pg_stat_replication a ON a.pid = s.active_pid
 WHERE s.slot_name = %s"""
_CURRENT: Final = "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn AS current"
# Oldest first: a new view does not displace any of those reported one by one.
_VIEWS: Final = "SELECT * FROM headrace.view_states() ORDER BY id"
_ASSERTIONS: Final = """
SELECT a.name, CASE WHEN a.state = 'violated' AND a.violation IS NULL THEN 'pending' ELSE a.state END AS state
  FROM headrace.assertions() a"""
_ASSERTION_STATES: Final = ("holds", "pending", "violated", "unknown")


class Health:
    """Collects data from the source, the supervisor and the worker."""

    def __init__(
        self,
        settings: Settings,
        supervisor: Supervisor,
        version: str,
        sessions: Callable[[], int],
        worker: Callable[[], Awaitable[CommandPeer]],
    ) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._version = version
        self._sessions = sessions
        self._worker = worker

    async def ready(self) -> tuple[bool, str]:
        """Return whether the engine works, and if not, why: processes, source, slot.

        Views do not count: a view stopped by its own data is in the metrics, and is no reason to
        take the server out of service.
        """
        for child in (self._supervisor.worker, self._supervisor.builder):
            if not child.up:
                return False, f"the {child.name} process is not running {child.problem}"
        try:
            async with self._asking() as conn:
                slot = await self._slot(conn)
        except (psycopg.Error, TimeoutError):
            # The error may name hosts and roles, so it is not returned.
            return False, "the source is not reachable"
        if slot is None or not slot["active"]:
            where = " on the standby of decode_from" if self._settings.decode_from else ""
            return False, f"the replication slot is not active{where}"
        return True, "ok"

    async def metrics(self) -> str:
        """Return all samples in Prometheus' text format (``console/host_interface.py``)."""
        # Import the Prometheus library only when it is needed.
        from headrace.server.metrics import Page

        page = Page()
        self._processes(page)
        told = await self._worker_measures()
        page.put("worker_told", told is not None)
        if told is not None:
            _worker(page, told)
        try:
            async with self._asking() as conn:
                slot = await self._slot(conn)
                views = await _asked(conn, _VIEWS)
                sources = await origins.activity(conn)
                # Only if there is one: else a page costs nothing more.
                asserted = any(view["assertion"] for view in views)
                assertions = await _asked(conn, _ASSERTIONS) if asserted else []
                undelivered = await deliveries.undelivered(conn) if asserted else {}
        except (psycopg.Error, TimeoutError):
            page.put("source_up", 0)
            return await asyncio.to_thread(page.render)
        page.put("source_up", 1)
        _slot(page, slot, self._settings)
        for name, up, changed in sources:
            page.put("other_source_up", up, name)
            page.put("other_source_changes_total", changed, name)
        _all_views(page, views)
        shown = views[: self._settings.metrics_views_max]
        page.put("views_left_out", len(views) - len(shown))
        for view in shown:
            _view(page, view)
        _assertions(page, assertions, self._settings.metrics_views_max)
        for status, number in undelivered.items():
            page.put("webhook_deliveries", number, status)
        if told is not None:
            names = {view["id"]: str(view["name"]) for view in shown}
            _told_of_views(page, names, told)
        return await asyncio.to_thread(page.render)

    def _processes(self, page: Page) -> None:
        page.put("build_info", 1, self._version)
        page.put("wire_connections", self._sessions())
        for child in self._supervisor.children:
            page.put("process_up", child.up, child.name)
            page.put("process_restarts_total", child.restarts, child.name)
        for used in self.usage():
            page.put("process_cpu_seconds_total", used.cpu_s, used.name)
            page.put("process_resident_bytes", used.memory_bytes, used.name)

    def usage(self) -> list[ProcessUsage]:
        """Return the usage of each process; one that has just ended is left out."""
        pids = {child.name: child.pid for child in self._supervisor.children}
        found = (_usage(name, pid) for name, pid in {**pids, "commander": os.getpid()}.items())
        return [used for used in found if used is not None]

    async def _worker_measures(self) -> dict[str, Any] | None:
        """Return the worker's measures; None: it does not answer."""
        with contextlib.suppress(HeadraceError, OSError, TimeoutError):
            async with asyncio.timeout(_WORKER_S):
                peer = await self._worker()
                most = {"collections_max": self._settings.metrics_collections_max}
                return dict(await peer.call("measures", most))
        return None

    async def _slot(self, source: Connection) -> dict[str, Any] | None:
        """Return the slot, compared with the source's WAL; None: it cannot be found."""
        dsn, name = self._settings.decode_from, self._settings.slot_name
        rows: list[dict[str, Any]] = []
        if not dsn:
            rows = await _asked(source, _SLOT, name)
        else:
            with contextlib.suppress(psycopg.Error, TimeoutError):
                async with self._asking(dsn) as standby:
                    rows = await _asked(standby, _SLOT, name)
        if not rows:
            return None
        [current] = [row["current"] for row in await _asked(source, _CURRENT)]
        confirmed = rows[0]["confirmed"]
        lag = None if confirmed is None else max(current - confirmed, 0)
        return rows[0] | {"current": current, "lag_bytes": lag}

    @contextlib.asynccontextmanager
    async def _asking(self, dsn: str = "") -> AsyncIterator[Connection]:
        """Connect to the source, or to ``dsn``, for a few seconds."""
        async with asyncio.timeout(_TIMEOUT_S):
            conn = await async_dicts(dsn or self._settings.source, name="headrace health")
            async with conn:
                yield conn


async def _asked(conn: Connection, text: str, *values: Any) -> list[dict[str, Any]]:
    return await (await conn.execute(text, values)).fetchall()


def _usage(name: str, pid: int | None) -> ProcessUsage | None:
    """Return the usage of a process; None: it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        # Skip the process name, which may contain any character.
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        cpu_s = sum(map(int, words[11:13])) / _TICKS_PER_S
        return ProcessUsage(name, int(pid or 0), cpu_s, int(words[21]) * _PAGE_BYTES)
    return None


def _slot(page: Page, slot: dict[str, Any] | None, settings: Settings) -> None:
    page.put("source_slot_active", bool(slot and slot["active"]))
    page.put("source_wal_budget_bytes", settings.wal_budget_bytes)
    if slot is None:
        return
    page.put("source_slot_wal_status", 1, str(slot["wal_status"]))
    for column, name in (
        ("confirmed", "source_confirmed_flush_lsn"),
        ("restart", "source_restart_lsn"),
        ("current", "source_current_wal_lsn"),
        ("retained", "source_retained_wal_bytes"),
        ("safe_wal_size", "source_slot_safe_wal_bytes"),
        ("lag_bytes", "source_slot_lag_bytes"),
        ("lag_s", "source_slot_lag_seconds"),
    ):
        if slot[column] is not None:
            page.put(name, slot[column])


def _all_views(page: Page, views: Sequence[Mapping[str, Any]]) -> None:
    states = Counter(str(view["status"]) for view in views)
    for state in SHOWN:
        page.put("views", states[state], state)
    lags = [view["lag_ms"] for view in views if view["status"] == Status.RUNNING]
    known = [lag for lag in lags if lag is not None]
    if known or not lags:
        page.put("views_freshness_max_seconds", max(known, default=0) / 1000)


def _view(page: Page, view: Mapping[str, Any]) -> None:
    name = str(view["name"])
    for state in SHOWN:
        page.put("view_state", view["status"] == state, name, state)
    for cursor in CursorState:
        page.put("view_cursor", view["cursor"] == cursor, name, cursor)
    if view["lag_ms"] is not None:
        page.put("view_freshness_seconds", float(view["lag_ms"]) / 1000, name)
    for column in ("lag_bytes", "rows", "txid"):
        if view[column] is not None:
            page.put(f"view_{column}", view[column], name)


def _assertions(page: Page, assertions: Sequence[Mapping[str, Any]], most: int) -> None:
    states = Counter(str(row["state"]) for row in assertions)
    for state in _ASSERTION_STATES:
        page.put("assertions", states[state], state)
    for row in assertions[:most]:
        if row["state"] != "unknown":
            page.put("assertion_violated", row["state"] == "violated", str(row["name"]))


def _worker(page: Page, told: Mapping[str, Any]) -> None:
    """Add the worker's own samples."""
    totals, checkpoints = told["totals"], told["checkpoints"]
    histograms = totals["histograms"]
    page.put("batches_total", told["batches_total"])
    page.put("stream_reconnects_total", told["reconnects"])
    page.put("batches_in_flight", told["in_flight"])
    page.put("transactions_total", totals["transactions"])
    page.put("rows_written_total", totals["rows"])
    page.put("errors_total", totals["errors"])
    page.put("restarts_total", totals["restarts"])
    page.count("commit_visible_seconds", histograms["visible"])
    for phase in ("process", "wait", "write"):
        page.count("batch_phase_seconds", histograms[phase], phase)
    page.count("sink_transaction_seconds", histograms["sink"])
    page.count("checkpoint_seconds", checkpoints["durations"])
    page.put("checkpoint_failures_total", checkpoints["failures"])
    for name, up in told["workers"].items():
        page.put("worker_up", up, name)
    page.put("memory_budget_bytes", told["memory_budget_bytes"])
    for row in told["memory"]:
        page.put("memory_bytes", row["bytes"], row["part"])
        if row["limit"] is not None:
            page.put("memory_limit_bytes", row["limit"], row["part"])


def _told_of_views(page: Page, names: Mapping[int, str], told: Mapping[str, Any]) -> None:
    """Add the worker's samples of the views in ``names``, and of their collections."""
    for key, numbers in told["views"].items():
        name = names.get(int(key))
        if name is None:
            continue
        page.put("view_state_bytes", numbers["state_bytes"], name)
        page.put("view_batches_total", numbers["batches"], name)
        page.put("view_rows_written_total", numbers["rows"], name)
        page.put("view_errors_total", numbers["errors"], name)
        page.put("view_restarts_total", numbers["restarts"], name)
        page.count("view_commit_visible_seconds", numbers["visible"], name)
    read: Counter[str] = Counter()
    left_out = told["collections_left_out"]
    for row in told["collections"]:
        unit = row["unit"]
        name = names.get(unit) if unit > 0 else f"subplan {-unit}"
        if name is None:
            left_out += 1
            continue
        if unit > 0:
            read[name] += row["rows_in"] if row["input"] else 0
        labels = (name, row["node"], row["collection"], row["worker"])
        page.put("collection_rows_in_total", row["rows_in"], *labels)
        page.put("collection_rows_out_total", row["rows_out"], *labels)
        page.put("collection_busy_seconds_total", row["busy_s"], *labels)
        if row["state_bytes"] is not None:
            page.put("collection_state_bytes", row["state_bytes"], *labels)
    for name, rows in read.items():
        page.put("view_rows_read_total", rows, name)
    page.put("collections_left_out", left_out)
