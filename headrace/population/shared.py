"""Snapshots shared by populations: jobs that arrive while one is being made share the next one.

    a ─────── slot ── reads ─────┐
    b, c, d ─ (wait) ───────────── slot ── all three read ──┐
    e ──────────────────────────── (waits) ─────────────────── slot ── …

Creating a slot waits until every writing transaction has ended, and then for those that began
meanwhile.  On a busy server that is most of a population's time, and it costs the same for many
populations as for one.  A separate thread makes each snapshot, so that a job that gives up does
not affect the others.  The snapshot ends with the last job that shares it.

* Invariant 1: a job has published its tables, committed, before it joins (E3, E4); the creation of
  a slot begins after all jobs that share it have joined.
* Invariant 2: one slot is created at a time, and at most ``alive_max`` exist, because slots are a
  scarce resource of the whole server.
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
    """The jobs that share one snapshot; guarded by the lock of ``Snapshots``."""

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
        """Whether the snapshot and its slot are gone."""

    def _hear(self, step: dict[str, Any]) -> None:
        self.message = step.get("message") or self.message


class Snapshots:
    """The snapshots of one builder; for any thread."""

    def __init__(self, alive_max: int) -> None:
        self._alive_max: Final = alive_max
        self._changed = threading.Condition()
        # The fields below are guarded by the lock of ``_changed``.
        self._numbers = itertools.count(1)
        self._forming: _Group | None = None
        self._making: _Group | None = None
        self._alive: set[_Group] = set()

    @contextlib.contextmanager
    def join(self, job: Job, settings: Settings, limit_s: float = math.inf) -> Iterator[Snapshot]:
        """Yield a snapshot that was made after this call, valid during the block.

        ``limit_s``: the longest wait for it.

        REQUIRES: the tables to read are published, committed.

        Raises:
            HeadraceError: as ``snapshot.export``; SnapshotBlocked also after ``limit_s``.
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
                # A group that has not begun waits for the same transactions as the one before it.
                making = self._making
                message = group.message or (making.message if making is not None else None)
            if message is not None and message != told:
                job.phase("snapshot", message=message)
                told = message
            if clock.monotonic() >= until:
                raise snapshots.blocked((message or "").removeprefix(WAITING))

    def _leave(self, group: _Group) -> None:
        """Leave the group; the last job waits until the snapshot is gone."""
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
        """Begin to make the next snapshot, if none is being made and the limit allows it."""
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
                    # The slot of an earlier process may still exist.
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
        except Exception as error:  # noqa: BLE001  raised again in the waiting jobs
            group.error = error
        finally:
            with self._changed:
                group.ended = True
                self._alive.discard(group)
                self._over(group)

    def _over(self, group: _Group) -> None:
        """Mark the group as not being made any more, and begin the next one."""
        if self._making is group:
            self._making = None
        self._begin()
        self._changed.notify_all()


def _again(error: Exception) -> HeadraceError:
    """Return a copy of ``error`` for one of several waiting jobs."""
    if not isinstance(error, HeadraceError):
        return BugError(f"internal error in a snapshot: {error!r}")
    return error.again()
