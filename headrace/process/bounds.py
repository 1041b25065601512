"""Bounds of the work for one view: time, rows, bytes, and a flag that ends it.

Who works for a view does it inside of ``Bound.applied``.  What may amplify (a join, a function
that gives rows, an iteration, a statement for the user's Postgres) asks the bound of its thread
before it goes on, and gets ``LimitExceeded``, or whatever ``cancel`` was given.  Where no bound is
applied, nothing is bounded.

What counts is the view's own work, so that a slow machine trips nobody: processor time of the
thread, and apart from it the time that statements take in Postgres, of which a wait that this
thread slept through counts as a short one.  Both grow with the rows that there are to work on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from headrace import clock
from headrace.errors import HeadraceError, LimitExceeded

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.config import Settings

OWN_MS_PER_ROW: Final = 0.1
"""Milliseconds of our own for each row that a collection takes (it needs 0.002 to 0.01)."""
ASKED_MS_PER_ROW: Final = 0.25
"""Milliseconds in Postgres for each argument tuple (it needs 0.005 to 0.015)."""
ROWS_PER_ROW: Final = 100
"""Rows of an intermediate result for each row of the transaction, besides the limit."""
BYTES_PER_BYTE: Final = 16
"""Likewise bytes."""
VALUES_PER_LIMIT: Final = 4
"""A value may have this part of the bytes of the limit."""
WAIT_S_MAX: Final = 0.1
"""What one wait counts at most: the thread asks to be woken after half of it."""

OPTION_FACTOR_MAX: Final = 10
"""An option may be this many times its setting: a view's work delays that of the others."""

TIME: Final = "view_time_ms_max"
ROWS: Final = "view_rows_max"
MEMORY: Final = "view_memory_bytes_max"
IDLE: Final = "population_idle_ms_max"
NAMES: Final = (TIME, MEMORY, ROWS)
"""Settings, and options of create_view."""


class Described(Protocol):
    """A part of a view's query that gives rows."""

    @property
    def words(self) -> str:
        """What it is called in SQL."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one transaction (or step of a population) may cost a view; 0: any amount."""

    time_ms: int = 0
    memory_bytes: int = 0
    rows: int = 0
    time_name: str = TIME
    """The setting that the time is of."""

    @property
    def value_bytes(self) -> int:
        """The largest value."""
        return self.memory_bytes // VALUES_PER_LIMIT


def of(settings: Settings, own: Mapping[str, int], *, own_group: bool = True) -> Limits:
    """Return what one transaction may cost a view that has these options.

    ``own_group``: it is in a named commit group, and may take longer than the setting.
    """

    def one(name: str, most: int, factor: int = OPTION_FACTOR_MAX) -> int:
        given = own.get(name, most)
        # What was allowed to it may have been under a higher setting, or by an earlier version.
        return min(given, most * factor) if most else given

    return Limits(
        one(TIME, settings.view_time_ms_max, OPTION_FACTOR_MAX if own_group else 1),
        one(MEMORY, settings.view_memory_bytes_max),
        one(ROWS, settings.view_rows_max),
    )


def of_filling(settings: Settings, own: Mapping[str, int]) -> Limits:
    """What a step of the population may cost such a view: nobody else waits for it."""
    usual = of(settings, own)
    return Limits(
        settings.population_idle_ms_max,
        usual.memory_bytes * OPTION_FACTOR_MAX,
        usual.rows * OPTION_FACTOR_MAX,
        IDLE,
    )


class Bound:
    """What is left of the limits of one view, for one transaction at a time.

    One thread at a time works under it; ``cancel`` may come from any.
    """

    def __init__(self, limits: Limits, what: str = "one transaction") -> None:
        """``what`` the limits are for, in the words of messages."""
        self.limits: Final = limits
        self._what = what
        self._ended: HeadraceError | None = None
        self._inside = False
        self.asking: tuple[str, float] | None = None
        """What Postgres evaluates just now, and since when, on the monotonic clock."""
        self.begin()

    def begin(self) -> None:
        """A new transaction: nothing is used up, and nobody has cancelled it."""
        self._ended = None
        self._own_s = 0.0
        self._begin_own()
        self._own_ms_max = float(self.limits.time_ms)
        self._asked_s = 0.0
        self._asked_ms_max = float(self.limits.time_ms)
        self._rows_max = self.limits.rows
        self._bytes_max = self.limits.memory_bytes
        self._made: dict[int, list[int]] = {}

    def progress(self) -> None:
        """It gets on: the time until now does not count."""
        self._own_s = self._asked_s = 0.0
        self._begin_own()

    @property
    def inside(self) -> bool:
        """Whether somebody works under it now; from any thread."""
        return self._inside

    @property
    def taken_s(self) -> float:
        """Seconds that the transaction has taken so far, its own and those in Postgres."""
        return self._own_s + self._asked_s

    def cancel(self, reason: HeadraceError) -> None:
        """Have what is under way raise ``reason``; from any thread."""
        self._ended = reason

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, this thread works under the bound."""
        before, _here.bound = current(), self
        self._begin_own()
        self._inside = True
        try:
            yield
        finally:
            self._own_s += time.thread_time() - self._own_from
            self._inside = False
            _here.bound = before

    def _begin_own(self) -> None:
        self._since = clock.monotonic()
        self._own_from = time.thread_time()

    # --- what it takes in

    def admit(self, rows: int, size: int) -> None:
        """The transaction has ``rows`` more, of ``size`` bytes."""
        self._own_ms_max += OWN_MS_PER_ROW * rows
        self._rows_max += ROWS_PER_ROW * rows
        self._bytes_max += BYTES_PER_BYTE * size

    def asked(self, rows: int, shown: str = "") -> None:
        """Postgres is about to be asked about so many argument tuples; ``shown``: for what."""
        self._asked_ms_max += ASKED_MS_PER_ROW * rows
        self.asking = (shown, clock.monotonic())

    def answered(self) -> None:
        """It has answered."""
        self.asking = None

    # --- what it costs

    def check(self) -> None:
        """Raise if it was cancelled, or has taken too long."""
        if self._ended is not None:
            raise self._ended
        if not self.limits.time_ms:
            return
        # What a thread has taken is never more than what has passed, which costs no system call.
        if (self._own_s + clock.monotonic() - self._since) * 1000 <= self._own_ms_max:
            return
        own_s = self._own_s + time.thread_time() - self._own_from
        if own_s * 1000 > self._own_ms_max:
            raise self._slow("")

    def waited(self, seconds: float) -> None:
        """Postgres has been at work for this view; raises as ``check`` does."""
        _here.waited_ns += int(seconds * 1e9)
        self._asked_s += min(seconds, WAIT_S_MAX)
        if self.limits.time_ms and self._asked_s * 1000 > self._asked_ms_max:
            raise self._slow("An expression that Postgres evaluates had not ended.")
        self.check()

    def expect(self, part: Described, rows: int) -> None:
        """``part`` is about to give so many rows more; raises as ``check`` does."""
        self.check()
        made = self._made.setdefault(id(part), [0, 0])
        if self.limits.rows and made[0] + rows > self._rows_max:
            raise self._exceeded(
                ROWS, f"{self._rows_max} rows", f"It is {part.words} that gives them."
            )

    def room(self, part: Described) -> int | None:
        """How many rows ``part`` may still give; None: any number."""
        if not self.limits.rows:
            return None
        made = self._made.get(id(part))
        return max(self._rows_max - (made[0] if made else 0), 0)

    def made(self, part: Described, rows: int, size: int) -> None:
        """``part`` has given so many rows, of ``size`` bytes; raises as ``check`` does."""
        self._own_ms_max += OWN_MS_PER_ROW * rows
        self.expect(part, rows)
        made = self._made[id(part)]
        made[0] += rows
        made[1] += size
        if self.limits.memory_bytes and made[1] > self._bytes_max:
            raise self._exceeded(
                MEMORY, f"{self._bytes_max} bytes", f"It is {part.words} that does."
            )

    def received(self, size: int, given: int) -> None:
        """A statement about ``given`` bytes of arguments has had an answer of ``size`` so far."""
        limit = self.limits.memory_bytes
        if limit and size > limit + BYTES_PER_BYTE * given:
            raise self._exceeded(
                MEMORY, f"{limit} bytes", "It is the values of expressions that Postgres evaluates."
            )

    def too_large(self, size: str) -> LimitExceeded:
        """A value has ``size`` bytes, which is too much."""
        return self._exceeded(
            MEMORY,
            f"{self.limits.memory_bytes} bytes",
            f"A value has {size} bytes, and may have {self.limits.value_bytes}.",
        )

    def _slow(self, detail: str) -> LimitExceeded:
        return self._exceeded(self.limits.time_name, f"{self.limits.time_ms} ms", detail)

    def _exceeded(self, name: str, shown: str, detail: str) -> LimitExceeded:
        verb = {MEMORY: "needs", ROWS: "makes"}.get(name, "takes")
        hint = "Raise the setting of that name."
        if name in NAMES:
            now = {
                TIME: self.limits.time_ms,
                MEMORY: self.limits.memory_bytes,
                ROWS: self.limits.rows,
            }
            group = '"commit_group": "slow", ' if name == TIME else ""
            hint = (
                "Create the view with a higher limit: options =>"
                f" '{{{group}\"{name}\": {now[name] * OPTION_FACTOR_MAX}}}' (or raise the setting"
                " of that name for all views)."
            )
        return LimitExceeded(
            f"the view {verb} more than {shown} for {self._what}: {name}",
            detail=detail or None,
            hint=hint,
        )


class _Here(threading.local):
    bound: Bound | None = None
    waited_ns = 0


_here = _Here()


def current() -> Bound | None:
    """The bound that this thread works under."""
    return _here.bound


def waited_ns() -> int:
    """How long this thread has waited for Postgres under bounds, of all time, nanoseconds."""
    return _here.waited_ns


def check() -> None:
    """``Bound.check`` of this thread's bound, if there is one."""
    if _here.bound is not None:
        _here.bound.check()


def room(part: Described) -> int | None:
    """``Bound.room`` of this thread's bound; None: any number."""
    return None if _here.bound is None else _here.bound.room(part)


def made(part: Described, batches: Sequence[pa.RecordBatch]) -> None:
    """``Bound.made`` of this thread's bound, if there is one."""
    if _here.bound is not None and batches:
        _here.bound.made(part, *_measured(batches))


def admit(batches: Sequence[pa.RecordBatch]) -> None:
    """``Bound.admit`` of this thread's bound, if there is one; raises as ``check`` does."""
    if _here.bound is not None and batches:
        _here.bound.admit(*_measured(batches))
        _here.bound.check()


def _measured(batches: Sequence[pa.RecordBatch]) -> tuple[int, int]:
    """Rows and bytes."""
    if len(batches) == 1:  # as a rule
        return batches[0].num_rows, batches[0].nbytes
    return sum(batch.num_rows for batch in batches), sum(batch.nbytes for batch in batches)


def expect(part: Described, rows: int) -> None:
    """``Bound.expect`` of this thread's bound, if there is one."""
    if _here.bound is not None:
        _here.bound.expect(part, rows)


def progress() -> None:
    """``Bound.progress`` of this thread's bound, if there is one."""
    if _here.bound is not None:
        _here.bound.progress()
