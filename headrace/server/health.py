"""What /metrics and /readyz tell: the state of the source, the views and the processes.

Everything is asked when it is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from headrace.config import Settings
from headrace.postgres.connect import async_dicts
from headrace.server.supervisor import Supervisor
from headrace.sql.status import SHOWN

_TIMEOUT_S: Final = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured value."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    kind: str = "gauge"


class Health:
    """Asks the source and the supervisor."""

    def __init__(
        self, settings: Settings, supervisor: Supervisor, version: str, sessions: Callable[[], int]
    ) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._version = version
        self._sessions = sessions

    async def ready(self) -> tuple[bool, str]:
        """Whether the engine works, and if not, why: processes, source, slot.

        Not the views: a view stopped by its own data is in the metrics, and no reason to
        take the server out of service.
        """
        for child in (self._supervisor.worker, self._supervisor.builder):
            if not child.up:
                return False, f"the {child.name} process is not running {child.problem}"
        try:
            _, slot = await self._ask(views=False)
        except (psycopg.Error, TimeoutError):
            # What it says may name hosts and roles: that is for the log.
            return False, "the source is not reachable"
        if not slot or not slot["active"]:
            return False, "the replication slot is not active"
        return True, "ok"

    async def metrics(self) -> str:
        """All samples in Prometheus' text format."""
        samples = self._process_samples()
        try:
            views, slot = await self._ask(views=True)
        except (psycopg.Error, TimeoutError):
            samples.append(Sample("headrace_source_up", 0))
        else:
            samples.append(Sample("headrace_source_up", 1))
            samples += _slot_samples(slot, self._settings)
            for view in views:
                samples += _view_samples(view)
        return render(samples)

    def _process_samples(self) -> list[Sample]:
        out = [
            Sample("headrace_build_info", 1, (("version", self._version),)),
            Sample("headrace_wire_connections", self._sessions()),
        ]
        for child in self._supervisor.children:
            label = (("process", child.name),)
            out.append(Sample("headrace_process_up", int(child.up), label))
            out.append(Sample("headrace_process_restarts_total", child.restarts, label, "counter"))
        return out

    async def _ask(self, *, views: bool) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        async with asyncio.timeout(_TIMEOUT_S):
            conn = await async_dicts(self._settings.source, name="headrace health")
            async with conn:
                found: list[dict[str, Any]] = []
                if views:
                    listed = await conn.execute("SELECT * FROM headrace.list_views()")
                    found = await listed.fetchall()
                slot = await (
                    await conn.execute(
                        "SELECT active, wal_status, safe_wal_size,"
                        " confirmed_flush_lsn - '0/0'::pg_lsn AS confirmed,"
                        " restart_lsn - '0/0'::pg_lsn AS restart,"
                        " pg_current_wal_lsn() - '0/0'::pg_lsn AS current,"
                        " pg_current_wal_lsn() - restart_lsn AS retained"
                        " FROM pg_catalog.pg_replication_slots WHERE slot_name = %s",
                        (self._settings.slot_name,),
                    )
                ).fetchone()
                return found, slot


def _slot_samples(slot: dict[str, Any] | None, settings: Settings) -> list[Sample]:
    name = "headrace_source_slot_active"
    if slot is None:
        return [Sample(name, 0)]
    out = [
        Sample(name, int(slot["active"])),
        Sample("headrace_source_wal_budget_bytes", settings.wal_budget_bytes),
        Sample("headrace_source_slot_wal_status", 1, (("status", str(slot["wal_status"])),)),
    ]
    for column, metric in (
        ("confirmed", "headrace_source_confirmed_flush_lsn"),
        ("restart", "headrace_source_restart_lsn"),
        ("current", "headrace_source_current_wal_lsn"),
        ("retained", "headrace_source_retained_wal_bytes"),
        ("safe_wal_size", "headrace_source_slot_safe_wal_bytes"),
    ):
        if slot[column] is not None:
            out.append(Sample(metric, float(slot[column])))
    return out


def _view_samples(view: dict[str, Any]) -> list[Sample]:
    label = (("view", str(view["name"])),)
    out = [
        Sample("headrace_view_state", int(view["status"] == s), (*label, ("state", s)))
        for s in SHOWN
    ]
    if view["lag_ms"] is not None:
        seconds = float(view["lag_ms"]) / 1000
        out.append(Sample("headrace_view_freshness_seconds", seconds, label))
    out += [
        Sample(f"headrace_view_{column}", float(view[column]), label)
        for column in ("lag_bytes", "rows", "txid")
        if view[column] is not None
    ]
    return out


def render(samples: list[Sample]) -> str:
    """Prometheus' text format: samples of one name together, under its TYPE."""
    lines: list[str] = []
    names = list(dict.fromkeys(s.name for s in samples))
    for name in names:
        same = [s for s in samples if s.name == name]
        lines.append(f"# TYPE {name} {same[0].kind}")
        for sample in same:
            labels = ",".join(f'{k}="{_escape(v)}"' for k, v in sample.labels)
            shown = f"{{{labels}}}" if labels else ""
            lines.append(f"{name}{shown} {sample.value:.15g}")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
