"""One batch through the dataflows of the views."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import pyarrow as pa
import structlog

from headrace.config import Settings
from headrace.errors import (
    BugError,
    DefiniteFailure,
    HeadraceError,
    RowsLost,
    StateDamaged,
    StructureChanged,
    TransientError,
)
from headrace.forwarder.batcher import Batch
from headrace.kernels.pgoutput import Begin, Changes, Decoder, RelationChanged
from headrace.runtime import culprit
from headrace.runtime.columns import Description
from headrace.runtime.edges import Edge, TableDiffs
from headrace.runtime.views import View
from headrace.types import Diffs, TimeEnd

_log = structlog.get_logger(__name__)

THREADS: Final = max(2, os.cpu_count() or 2)
LOST_MAX: Final = 3
"""Attempts of a batch that may lose rows on an edge; then it is no accident."""


@dataclass(slots=True)
class Outcome:
    """What a batch did: diffs per view, and the views that failed."""

    attempt: int
    diffs: dict[int, pa.RecordBatch] = field(default_factory=dict)
    failed: dict[int, HeadraceError] = field(default_factory=dict)


class Describer(Protocol):
    """Who knows tables (``runtime.watch``)."""

    def described(self, found: Sequence[Description]) -> dict[int, HeadraceError]:
        """The stream describes tables; the views, by id, that must not take rows after it."""

    def numbered(self, changes: Changes, xid: int) -> pa.RecordBatch:
        """A change batch with columns by number, ``n:<attnum>``; ``xid`` is its last one."""


class Frames:
    """The change batches of one batch, in chunks; may be read again (for one that failed)."""

    def __init__(
        self,
        batch: Batch,
        decoder: Decoder,
        txid: int,
        attempt: int,
        describer: Describer,
        instant: int = 0,
    ) -> None:
        """``describer`` is told which tables the stream describes anew, before their rows.

        ``instant`` is the recorded time of the batch, microseconds since 2000-01-01 UTC: every
        view that reads the clock takes part, also where none of its tables has changed.
        """
        self.instant: Final = instant
        self.stopped: dict[int, HeadraceError] = {}
        """What it answered: views that must not take the rows, by id."""
        self._describer = describer
        self._xids: dict[int, int] = {}
        """Transactions by the LSN that their rows have."""
        self._batch = batch
        self._decoder = decoder
        self._txid = txid
        self._attempt = attempt
        self._kept: list[list[TableDiffs]] | None = None

    def __iter__(self) -> Iterator[list[TableDiffs]]:
        """Chunks of frames; REQUIRES: read to the end, the decoder must see every message."""
        if self._kept is not None:
            yield from self._kept
            return
        kept, xid = [], 0
        for messages in self._batch.chunks():
            events = [*self._decoder.feed(messages), *self._decoder.flush()]
            found = []
            for event in events:
                if isinstance(event, Begin):
                    self._xids[event.final_lsn] = xid = event.xid
                elif isinstance(event, RelationChanged):
                    found.append(Description(xid, event.relation))
            if found:
                self.stopped |= self._describer.described(found)
            chunk = [
                TableDiffs(
                    e.relation.oid,
                    Diffs(self._txid, self._attempt, self._numbered(e)),
                )
                for e in events
                if isinstance(e, Changes)
            ]
            if not self._batch.spooled:
                kept.append(chunk)
            yield chunk
        if not self._batch.spooled:
            self._kept = kept

    def _numbered(self, changes: Changes) -> pa.RecordBatch:
        lsns = changes.batch.column("__lsn")
        return self._describer.numbered(changes, self._xids[lsns[-1].as_py()])

    def all(self) -> list[TableDiffs] | None:
        """Every frame; None when they do not fit into memory."""
        if self._batch.spooled or self._kept is None:
            return None
        return [frame for chunk in self._kept for frame in chunk]


class Processor:
    """Runs dataflows on a pool of threads whose number does not depend on the views."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pool = ThreadPoolExecutor(THREADS, "headrace-cpu")
        # All at once: their number shall not depend on how much there is to do (E-15).
        ready = threading.Barrier(THREADS)
        for _ in range(THREADS):
            self._pool.submit(ready.wait)
        self.edge = Edge("source")

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def run(
        self, views: Sequence[View], frames: Frames, txid: int, attempt: int
    ) -> Outcome:
        """Process one batch for ``views``, each of which has processed the one before.

        A view that fails for good is in ``failed``; its state must go back.

        Raises:
            TransientError: nothing is lost; the whole batch must be processed again.
        """
        outcome = Outcome(attempt)
        touched: set[int] = set()
        sent = 0
        self.edge.open((view.id for view in views), txid - 1)
        for chunk in frames:
            outcome.failed |= _only(frames.stopped, views)
            busy = [
                view
                for view in views
                if view.id not in outcome.failed
                and any(self._reads(view, frame) for frame in chunk)
            ]
            if not busy:
                continue  # not sent at all, and so not counted
            for frame in chunk:
                self.edge.put(frame)
                sent += frame.diffs.batch.num_rows
            new = {view.id for view in busy} - touched
            touched |= new
            self._each(
                busy,
                partial(self._ingest, new, txid, attempt, frames.instant),
                outcome,
            )
            for view in views:
                if view not in busy and view.id not in outcome.failed:
                    self.edge.pull(view.id)
            for view_id in outcome.failed:
                self.edge.leave(view_id)
        if frames.instant:
            woken = [
                view
                for view in views
                if view.plan.temporal
                and view.id not in touched
                and view.id not in outcome.failed
            ]
            new = {view.id for view in woken}
            touched |= new
            self._each(
                woken,
                partial(self._ingest, new, txid, attempt, frames.instant),
                outcome,
            )
            for view_id in outcome.failed:
                self.edge.leave(view_id)
        self.edge.put(TimeEnd(txid, attempt, sent))
        ending = [v for v in views if v.id in touched and v.id not in outcome.failed]

        def end(view: View) -> None:
            self.edge.pull(view.id)
            outcome.diffs[view.id] = view.flow(self._settings).end(txid, attempt)
            # Before the sink's commit: what cannot be stored must not appear either.
            assert view.store is not None, "it has a dataflow"
            view.store.prepare()

        self._each(ending, end, outcome)
        for view in views:
            if view.id not in outcome.failed:
                view.processed = txid
        return outcome

    def _reads(self, view: View, frame: TableDiffs) -> bool:
        return any(s.table_oid == frame.table_oid for s in view.plan.sources)

    def _ingest(
        self, new: set[int], txid: int, attempt: int, instant: int, view: View
    ) -> None:
        flow = view.flow(self._settings)
        if view.id in new:
            view.begin(txid)
            flow.begin(txid, attempt, instant)
        for frame in self.edge.pull(view.id):
            if isinstance(frame, TableDiffs):
                flow.ingest(frame.table_oid, frame.diffs.batch)

    def _each(
        self, views: Sequence[View], work: Callable[[View], None], outcome: Outcome
    ) -> None:
        """``work`` on every view, side by side when there are several."""
        if len(views) == 1:
            errors: Iterable[HeadraceError | None] = [_guarded(work, views[0])]
        else:
            errors = list(self._pool.map(lambda v: _guarded(work, v), views))
        for view, error in zip(views, errors, strict=True):
            if isinstance(error, RowsLost) and outcome.attempt >= LOST_MAX:
                outcome.failed[view.id] = BugError(
                    f"rows are lost in every attempt: {error.message}"
                )
                continue
            if isinstance(error, TransientError):
                raise error
            if error is not None:
                outcome.failed[view.id] = error

    def blame(
        self, view: View, error: HeadraceError, frames: Frames, txid: int
    ) -> HeadraceError:
        """``error`` with the source row that causes it, where one can be found.

        The view's state is that before ``txid`` afterwards, or an earlier one.
        """
        everything = frames.all()
        by_row = isinstance(error, DefiniteFailure) and not isinstance(
            error, StateDamaged | StructureChanged
        )
        view.back(txid)
        if everything is None or not by_row or view.id in frames.stopped:
            return error

        def fails(prefix: Sequence[TableDiffs]) -> bool:
            view.back(txid)
            if view.processed != txid - 1:
                return False  # the state went back further: nothing can be said
            try:
                view.begin(txid)
                flow = view.flow(self._settings)
                flow.begin(txid, 0, frames.instant)
                for frame in prefix:
                    flow.ingest(frame.table_oid, frame.diffs.batch)
                flow.end(txid)
            except DefiniteFailure:
                return True
            return False

        try:
            where = culprit.find(view.plan, everything, fails)
        except HeadraceError as second:
            _log.warning("culprit not found", view=view.id, reason=second.message)
            return error
        finally:
            view.back(txid)
        if not where:
            return error
        return type(error)(
            f"{error.message} {where}",
            detail=error.detail,
            hint=error.hint,
            sqlstate=error.code,
        )


def _only(
    errors: dict[int, HeadraceError], views: Sequence[View]
) -> dict[int, HeadraceError]:
    """The errors of ``views``."""
    return {view.id: errors[view.id] for view in views if view.id in errors}


def _guarded(work: Callable[[View], None], view: View) -> HeadraceError | None:
    """The error of ``work``, if any.  A bug stops its view only, with the story in the log."""
    try:
        work(view)
    except TransientError as error:
        return error
    except HeadraceError as error:
        if isinstance(error, BugError):
            _log.exception(
                "view stopped by a bug", view=view.id, story=view.story.tell()
            )
        return error
    except Exception as error:  # noqa: BLE001  the boundary of one view's dataflow
        _log.exception("view stopped by a bug", view=view.id, story=view.story.tell())
        return BugError(f"internal error in the view's dataflow: {error!r}")
    return None
