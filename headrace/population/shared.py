"""Snapshots that populations share: who comes while one is made gets the next one.

    a ─────── slot ── reads ─────┐
    b, c, d ─ (wait) ───────────── slot ── all three read ──┐
    e ──────────────────────────── (waits) ─────────────────── slot ── …

A slot waits until every transaction that writes has ended, and then for those that began
meanwhile.  That is most of a population's time where others write, and costs the same for many
populations as for one.  Each snapshot is made by a thread of its own, so that whoever gives up
takes nothing from the others; it ends with the last of those who share it.

* Invariant 1: who joins has published its tables, committed, before (E3, E4): a
  slot is begun after all who share it have joined.
* Invariant 2: one slot is made at a time, and there are never more than ``alive_max``: slots are
  few, and belong to the whole server.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections.abc import Iterator
from typing import Any, Final

import structlog

from headrace import clock
from headrace.config import Settings
from headrace.errors import BugError, HeadraceError
from headrace.population import snapshot as snapshots
from headrace.population.job import Job
from headrace.population.snapshot import WAITING, Snapshot
from headrace.process import identity

_log = structlog.get_logger(__name__)
_POLL_S: Final = 0.2


class _Group:
    """Those who share one snapshot; guarded by the lock of ``Snapshots``."""

    def __init__(self, settings: Settings, number: int) -> None:
        self.settings: Final = settings
        self.number: Final = number
        self.job: Final = Job(self._hear, f"snapshot-{number}")
        self.members = 0
        self.message: str | None = None
        self.snapshot: Snapshot | None = None
        self.error: Exception | None = None
        self.begun = False
        self.ended = False
        """Nothing is left of it."""

    def _hear(self, step: dict[str, Any]) -> None:
        self.message = step.get("message") or self.message


class Snapshots:
    """The snapshots of one builder; for any thread."""

    def __init__(self, alive_max: int) -> None:
        self._alive_max: Final = alive_max
        self._changed = threading.Condition()
        # Guarded by its lock.
        self._numbers = itertools.count(1)
        self._forming: _Group | None = None
        self._making: _Group | None = None
        self._alive: set[_Group] = set()

    @contextlib.contextmanager
    def join(self, job: Job, settings: Settings, limit_s: float = math.inf) -> Iterator[Snapshot]:
        """A snapshot that is made from now on, as long as the block lasts.

        ``limit_s``: for how long to wait for it.

        REQUIRES: the tables that are read from it are published, committed.

        Raises:
            HeadraceError: as ``snapshot.export``; it is blocked also after ``limit_s``.
        """
        until = clock.monotonic() + limit_s
        group = self._enter(settings)
        try:
            yield self._made(group, job, until)
        finally:
            self._leave(group)

    def _enter(self, settings: Settings) -> _Group:
        with self._changed:
            if self._forming is None:
                self._forming = _Group(settings, next(self._numbers))
            group = self._forming
            group.members += 1
            self._begin()
            return group

    def _made(self, group: _Group, job: Job, until: float) -> Snapshot:
        told = None
        while True:
            job.check()
            with self._changed:
                self._changed.wait_for(
                    lambda: group.snapshot is not None or group.error is not None, _POLL_S
                )
                if group.error is not None:
                    raise _again(group.error) from group.error
                if group.snapshot is not None:
                    return group.snapshot
                # A group that is not begun waits for what the one before it waits for.
                making = self._making
                message = group.message or (making.message if making is not None else None)
            if message is not None and message != told:
                job.phase("snapshot", message=message)
                told = message
            if clock.monotonic() >= until:
                raise snapshots.blocked((message or "").removeprefix(WAITING))

    def _leave(self, group: _Group) -> None:
        """The last one to leave waits until nothing is left of it."""
        with self._changed:
            group.members -= 1
            if group.members:
                return
            if not group.begun:
                self._forming = None
                return
            self._changed.notify_all()
            making = group is self._making
        if making:
            group.job.cancel()
        with self._changed:
            self._changed.wait_for(lambda: group.ended)

    # --- making, under the lock

    def _begin(self) -> None:
        """Begin with the next one if it is time."""
        group = self._forming
        if group is None or self._making is not None:
            return
        if len(self._alive) >= self._alive_max:
            return
        self._forming, self._making = None, group
        group.begun = True
        threading.Thread(target=self._make, args=(group,), name=group.job.name, daemon=True).start()

    # --- its thread

    def _make(self, group: _Group) -> None:
        settings = group.settings
        try:
            with (
                snapshots.export(
                    group.job,
                    settings.source,
                    slot_name=settings.slot_name,
                    # A slot of an earlier process may not be gone yet.
                    number=f"{identity.name()}_{group.number}",
                    wait_ms=settings.population_lock_wait_ms,
                ) as snapshot,
                self._changed,
            ):
                group.snapshot = snapshot
                self._alive.add(group)
                self._over(group)
                _log.info("snapshot shared", populations=group.members)
                self._changed.wait_for(lambda: not group.members)
        except Exception as error:  # noqa: BLE001  it is raised where somebody waits
            group.error = error
        finally:
            with self._changed:
                group.ended = True
                self._alive.discard(group)
                self._over(group)

    def _over(self, group: _Group) -> None:
        """It is not being made any more: the next one may be."""
        if self._making is group:
            self._making = None
        self._begin()
        self._changed.notify_all()


def _again(error: Exception) -> HeadraceError:
    """``error`` for one of several who get it."""
    if not isinstance(error, HeadraceError):
        return BugError(f"internal error in a snapshot: {error!r}")
    return error.again()
