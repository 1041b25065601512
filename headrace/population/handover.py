"""Requests of a population to the worker: to hold the slot meanwhile, and to adopt the view."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Final

import structlog

from headrace import clock
from headrace.errors import HeadraceError, QueryCancelled, TransientError, UndefinedError
from headrace.population import staging
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.process import faults

_WORKER_WAIT_S: Final = 30.0
_RETRY_S: Final = 0.2


class Handover:
    """Client of the worker for one job."""

    def __init__(self, context: JobContext, job: Job, log: structlog.stdlib.BoundLogger) -> None:
        self._context = context
        self._job = job
        self._log = log
        self._not_adopted: HeadraceError | None = None

    def call(self, method: str, params: dict[str, Any], patience_s: float = _WORKER_WAIT_S) -> Any:
        """Send a request to the worker; retry for ``patience_s``, as while the worker restarts."""
        deadline = clock.monotonic() + patience_s
        while True:
            self._job.check()
            try:
                return self._context.worker.call(method, params, self._job)
            except TransientError:
                if clock.monotonic() >= deadline:
                    raise
                clock.sleep(_RETRY_S)

    def hold(self) -> dict[str, Any]:
        """Keep the slot from advancing; return its position as txid and LSN."""
        answer = self.call("hold", {"job": self._job.name})
        return {"txid": int(answer["txid"]), "lsn": int(answer["lsn"])}

    def release(self) -> None:
        """Let the slot advance again."""
        self._context.worker.call("release", {"job": self._job.name})

    def adopt(self, view_id: int) -> None:
        """Hand the view over to the worker; from here on nothing is undone.

        The wait for a batch ends early if the user cancels; the hand-over then goes on.
        """
        with contextlib.suppress(QueryCancelled):
            self._job.phase("adopting")
        handover = threading.Thread(
            target=self._hand_over, args=(view_id,), name=f"handover {view_id}", daemon=True
        )
        handover.start()
        with contextlib.suppress(QueryCancelled):
            while handover.is_alive():
                self._job.check()
                handover.join(_RETRY_S)
        if self._not_adopted is not None:
            raise self._not_adopted

    def _hand_over(self, view_id: int) -> None:
        """Have the worker adopt the view; it does not need this process for that."""
        try:
            self._have_adopted(view_id)
        except HeadraceError as error:
            self._log.warning("view not adopted", reason=error.message)
            self._not_adopted = error
            if isinstance(error, UndefinedError):
                # The view was dropped, or resynced under another ID: its files are not needed.
                with contextlib.suppress(OSError):
                    staging.of_view(self._context.settings.staging_dir, view_id).remove()
        except OSError as error:
            # The next start removes them, and asks the worker again, which has the view by then.
            self._log.warning("staged files not removed", reason=str(error))

    def _have_adopted(self, view_id: int) -> None:
        deadline = clock.monotonic() + _WORKER_WAIT_S
        adopt = {"view_id": view_id}
        try:
            while True:
                try:
                    self._context.worker.call("adopt", adopt, self._job, cancellable=False)
                    break
                except TransientError:
                    if clock.monotonic() >= deadline:
                        # Keep the files: a worker adopts staged views when it starts.
                        self._log.warning("view adopted later")
                        return
                    clock.sleep(_RETRY_S)
        finally:
            with contextlib.suppress(HeadraceError):
                self.release()
        faults.point(faults.ADOPTED)
        staging.of_view(self._context.settings.staging_dir, view_id).remove()
