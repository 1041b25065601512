"""Change capture: records what is written into one result table, for ``verify_view``.

``verify_view`` reads a table at some txid, and the view's query at a snapshot a little later. The
diffs between the two come from a tap. While a tap is *cutting*, the snapshot is being made. Source
transactions are kept apart for some time, so that its position becomes a boundary between two
batches.  A population that reads only the tables of other views needs no such boundary
(``population/feeding.py``).

* Invariant 1: a tap has the diffs of every txid that its view has passed since ``begin``, once.
* Invariant 2: ``position`` of a tap that cuts answers only if no batch has transactions on both
  sides of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

import pyarrow as pa
import structlog

from headrace import clock
from headrace.errors import DefiniteFailure, HeadraceError, TransientError
from headrace.forwarder.stream import Stream
from headrace.kernels import copytext, text
from headrace.runtime.engine_state import EngineState
from headrace.runtime.jobs import CommitJob
from headrace.runtime.views import View
from headrace.types import format_lsn

_log = structlog.get_logger(__name__)

CUTTING_S_MAX: Final = 90.0
"""Seconds after which a tap stops cutting: its job is probably gone."""


@dataclass(slots=True)
class _Batch:
    txid: int
    end_lsn: int
    transactions: int
    first_lsn: int
    instant: int

    def crosses(self, lsn: int) -> bool:
        """Return whether it may have transactions on both sides of ``lsn``."""
        return self.transactions > 1 and self.first_lsn <= lsn < self.end_lsn


@dataclass(slots=True)
class _Tap:
    view_id: int
    path: Path
    file: IO[bytes]
    apart_s: float | None
    """For how long transactions are kept apart, if a boundary at the position is needed."""
    cutting_until: float
    """When cutting ends at the latest, on the monotonic clock."""
    cutting_lsn: int | None = None
    """The position, as soon as it is known."""
    batches: list[_Batch] = field(default_factory=list)
    passed: set[int] = field(default_factory=set)
    error: HeadraceError | None = None


class ChangeCapture:
    """Change captures of one engine; every method runs on the engine's thread."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._taps: dict[tuple[str, int], _Tap] = {}
        """By job and view."""
        self._told: tuple[Stream | None, frozenset[int], float | None] = (None, frozenset(), None)

    def begin(self, job: str, view: View, apart_s: float | None) -> Path:
        """Record what is written for ``view`` from now on; return the path of the COPY text file.

        Its columns are txid, weight and those of the view.  ``apart_s``: for how long transactions
        are kept apart, so that a batch ends at a position that is not known yet; None: none need.

        Raises:
            DefiniteFailure: the view does not run now.
        """
        if not view.live:
            raise DefiniteFailure(
                f"view {view.target.shown} does not run: it is"
                f" {'being resynced' if view.suspended else view.status}",
                detail=view.message,
            )
        self._end((job, view.id))
        view.leave_step()  # it takes part in every batch from now on
        folder = self._state.settings.tmp_dir
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"tap-{job}-{view.id}.copy"
        until = clock.monotonic() + CUTTING_S_MAX
        self._taps[job, view.id] = _Tap(view.id, path, path.open("wb"), apart_s, until)
        self.check()
        return path

    def passed(self, view: View, job: CommitJob, diffs: pa.RecordBatch | None) -> None:
        """Record ``diffs``, which ``job`` has written into the table of ``view``."""
        txid = job.txid
        for tap in self._taps.values():
            # After a rewind, a batch comes again with the same diffs.
            if tap.view_id != view.id or txid in tap.passed or tap.error:
                continue
            tap.passed.add(txid)
            tap.batches.append(
                _Batch(txid, job.lsn, job.transactions, job.first_lsn, job.commit_time_us)
            )
            if diffs is not None and diffs.num_rows:
                try:
                    tap.file.write(_lines(view, txid, diffs))
                except OSError as error:
                    # The verification fails, not the view.
                    tap.error = TransientError(f"captured changes cannot be written: {error}")

    def cut_until(self, job: str, view_id: int, lsn: int) -> None:
        """Let a batch end at ``lsn``; transactions need not be kept apart for it any more.

        Raises:
            TransientError: there is no such tap (any more).
        """
        tap = self._tap(job, view_id)
        tap.cutting_lsn = lsn
        self.check()

    def position(self, job: str, view_id: int, lsn: int) -> int:
        """Return the last txid before ``lsn`` (0: none since ``begin``).

        REQUIRES: the view covers ``lsn``.

        Raises:
            TransientError: a batch spans ``lsn``, or the tap is gone: begin again.
        """
        tap = self._tap(job, view_id)
        if tap.error:
            raise tap.error
        beyond = next((b for b in tap.batches if b.end_lsn > lsn), None)
        if tap.apart_s is not None and beyond is not None and beyond.crosses(lsn):
            raise TransientError(
                f"batch {beyond.txid} reaches over {format_lsn(lsn)}", sqlstate="40001"
            )
        tap.file.flush()
        return max((b.txid for b in tap.batches if b.end_lsn <= lsn), default=0)

    def instant(self, job: str, view_id: int, txid: int) -> int:
        """Return the view's now() at ``txid``; 0 if that is not known here."""
        batches = self._tap(job, view_id).batches
        return next((b.instant for b in batches if b.txid == txid), 0)

    def end(self, job: str) -> None:
        """Remove the taps of a job, if there are any."""
        for key in [key for key in self._taps if key[0] == job]:
            self._end(key)

    def _end(self, key: tuple[str, int]) -> None:
        tap = self._taps.pop(key, None)
        if tap is not None:
            tap.file.close()
            tap.path.unlink(missing_ok=True)
            self.check()

    def keep(self, jobs: set[str]) -> None:
        """Remove the taps of all other jobs."""
        for key in [key for key in self._taps if key[0] not in jobs]:
            self._end(key)

    @property
    def any(self) -> bool:
        """Whether there is any tap."""
        return bool(self._taps)

    def has(self, view_id: int) -> bool:
        """Return whether there is a tap of a view."""
        return any(tap.view_id == view_id for tap in self._taps.values())

    def check(self) -> None:
        """Make the stream cut batches as the taps need; the engine calls this in each cycle."""
        stream = self._state.stream
        if stream is None:
            return
        now = clock.monotonic() if self._taps else 0.0
        taps = [tap for tap in self._taps.values() if tap.apart_s is not None]
        ends = frozenset(tap.cutting_lsn for tap in taps if tap.cutting_lsn is not None)
        unknown = [
            tap.apart_s
            for tap in taps
            if tap.apart_s is not None and tap.cutting_lsn is None and now < tap.cutting_until
        ]
        told = (stream, ends, max(unknown, default=None))
        if told != self._told:
            stream.batcher.divide(*told[1:])
            self._told = told

    def _tap(self, job: str, view_id: int) -> _Tap:
        tap = self._taps.get((job, view_id))
        if tap is None:
            raise TransientError("the worker was restarted meanwhile", sqlstate="40001")
        return tap


def _lines(view: View, txid: int, diffs: pa.RecordBatch) -> bytes:
    schema = view.target.schema
    count = diffs.num_rows
    columns = [
        pa.array([str(txid)] * count, pa.string()),
        diffs.column(len(schema)).cast(pa.string()),
    ]
    columns += [text.for_input(diffs.column(i), f.oid) for i, f in enumerate(schema)]
    return bytes(copytext.join(columns))
