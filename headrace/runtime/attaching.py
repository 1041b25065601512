"""Attaching of a new view to the output of another view (A-25; options ``from``, ``first_rows``).

    attach ─► the view's states become those of a shared subplan, which it reads from then on;
              the subplan's output is retained for the new view while its job has a hold
    adopt  ─► the new view reads it, from the txid after its first contents on

* Invariant: between the two, no output is dropped.  If it was, as after a restart of the worker,
  ``attached`` returns false, and the caller begins again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import (
    DefiniteFailure,
    QueryCancelled,
    TransientError,
    UndefinedError,
    UnsupportedError,
)
from headrace.runtime.durability import Durability
from headrace.runtime.engine_state import EngineState
from headrace.runtime.sharing import Sharing
from headrace.sql.status import Status


@dataclass(slots=True)
class Attaching:
    """Attaching to views of one engine; every method runs on the engine's thread."""

    _state: EngineState
    _durability: Durability
    _sharing: Sharing
    _drain: Callable[[], None]

    def attach(self, view_id: int, reader: int, job: str) -> int:
        """Retain the output of a view from now on for ``reader``, which ``job`` builds from it.

        Return the ID of the shared subplan that sends the rows.

        Raises:
            TransientError: not yet.
            UndefinedError: the view is gone, or was refilled.
            DefiniteFailure: 55000, the view is paused.
            QueryCancelled: the job has ended.
            UnsupportedError: the view reads the clock.
        """
        view = self._state.views.get(view_id)
        if view is None:
            raise UndefinedError(f"view {view_id} is not there")
        if view.plan.temporal:
            raise UnsupportedError(
                f"a view that is fed from view {view.target.shown}, which reads the clock,"
                " is not supported",
                hint="Create it without the option: it is planned as one query with that view.",
            )
        if view.status == Status.PAUSED:
            raise DefiniteFailure(f"view {view.target.shown} is paused", sqlstate="55000")
        if job not in self._state.holds.jobs():
            raise QueryCancelled(f'job "{job}" has ended')
        if view.live and view.plan.sink.input not in view.feeds:
            self._sharing.check_partable(view)
            self._settle()  # which other views wait for
        if not view.live:
            state = "being resynced" if view.suspended else view.status
            raise TransientError(
                f"view {view.target.shown} does not run: it is {state}", sqlstate="55000"
            )
        shared = self._sharing.part(view)
        shared.awaited[job] = (reader, shared.mark.txid)
        self._durability.trim([shared])
        return shared.id

    def attached(self, feeder: int, job: str) -> bool:
        """Return whether the output for a job is retained; if so, all commits are durable."""
        shared = self._state.subplans.get(feeder)
        if shared is None or job not in shared.awaited:
            return False
        self._settle()
        return True

    def _settle(self) -> None:
        self._drain()
        self._durability.finish()
