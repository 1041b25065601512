"""What the engine's thread and the sink's thread hand to each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import pyarrow as pa

from headrace import clock
from headrace.errors import HeadraceError
from headrace.postgres.definitions import Definitions
from headrace.postgres.privileges import Right
from headrace.runtime.views import View
from headrace.sink.table import ResultTable
from headrace.sql.history import Moment
from headrace.sql.progress import Progress


@dataclass(frozen=True, slots=True)
class ViewPart:
    """What a txid means to one view; everything that writing it needs."""

    view_id: int
    target: ResultTable
    group: str
    progress: Progress
    """As the engine knows it; its epoch makes us the owner."""
    diffs: pa.RecordBatch | None
    """None, or without rows: the view did not change."""
    known: Definitions | None = None
    """What ``diffs`` were computed under, besides tables."""
    rights: Sequence[Right] = ()
    """Without which the view is not written."""
    kept: bool = False
    """Whether its changes are kept as well."""

    @classmethod
    def of(
        cls,
        view: View,
        diffs: pa.RecordBatch | None,
        relied_on: Callable[[View], tuple[Definitions | None, Sequence[Right]]],
    ) -> Self:
        """The part of ``view``; ``relied_on`` is asked only where something is written."""
        assert view.progress is not None, "live views are owned"
        part = cls(view.id, view.target, view.commit_group, view.progress, diffs)
        if not part.changes:
            return part
        known, rights = relied_on(view)
        return replace(part, known=known, rights=rights, kept=view.kept)

    @property
    def changes(self) -> bool:
        """Whether there is something to write."""
        return self.diffs is not None and self.diffs.num_rows > 0


@dataclass(frozen=True, slots=True)
class CommitJob:
    """A processed txid, to be committed."""

    txid: int
    attempt: int
    lsn: int
    """Where its last transaction ends."""
    transactions: int
    commit_time_us: int
    parts: tuple[ViewPart, ...]
    shared: tuple[int, ...] = ()
    """Ids of the shared subplans that have processed it for their readers."""
    size: int = 0
    """Bytes of the rows to be written."""

    @property
    def moment(self) -> Moment:
        """When its changes are made, as histories have it."""
        return Moment(self.txid, self.lsn, clock.from_postgres(self.commit_time_us))


@dataclass(slots=True)
class Answer:
    """A committed txid."""

    job: CommitJob
    progress: dict[int, Progress] = field(default_factory=dict)
    """Where the result tables are now."""
    failed: dict[int, HeadraceError] = field(default_factory=dict)
    """Views that could not be written."""
    gone: set[int] = field(default_factory=set)
    """Views that the catalog does not have any more."""
    seconds: dict[str, float] = field(default_factory=dict)
    """What writing took, by commit group."""


class Closed(Exception):
    """There will be no job any more."""


class Jobs(Protocol):
    """Where a sink thread has its jobs from, and says what has become of them."""

    @property
    def busy_s(self) -> float:
        """For how long the oldest txid that is not committed has been under way."""

    def next_job(self, timeout_s: float) -> CommitJob | None:
        """The next one; None: nothing for ``timeout_s``, a moment for upkeep.

        ``committed``, ``failed`` or ``rested`` must follow.

        Raises:
            Closed: there will be none any more.
        """

    def committed(self, answer: Answer) -> None:
        """The job is in the tables."""

    def failed(self, error: Exception) -> None:
        """The job, or the upkeep, failed; nothing comes out any more until somebody rewinds."""

    def rested(self) -> None:
        """The upkeep is done."""
