"""Limits on the work for one view: time, rows, bytes, and cancellation.

Work for a view runs inside ``Bound.applied``.  Operations that may amplify (a join, a
set-returning function, an iteration, a statement for the user's Postgres) check the bound of their
thread before they go on.  The check raises ``LimitExceeded``, or the error given to ``cancel``.
Without an applied bound nothing is limited.

Only the view's own work counts, so that a slow machine does not exceed a limit: the thread's CPU
time and, separately, the time of its statements in Postgres.  A single wait counts at most
``WAIT_S_MAX``, even if the thread slept through more.  Both limits grow with the number of rows,
and the first one with the keys whose state is on disk, where a key takes as long as 50 rows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from headrace import clock
from headrace.errors import HeadraceError, LimitExceeded

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.config import Settings

OWN_MS_PER_ROW: Final = 0.1
"""CPU milliseconds allowed for each row that a collection takes (it needs 0.002 to 0.01)."""
SOUGHT_MS_PER_KEY: Final = 1.0
"""CPU milliseconds allowed for each key that is sought on disk (it needs 0.03 to 0.5)."""
ASKED_MS_PER_ROW: Final = 0.25
"""Milliseconds in Postgres allowed for each argument tuple (it needs 0.005 to 0.015)."""
ROWS_PER_ROW: Final = 100
"""Rows of an intermediate result allowed for each row of the transaction, beyond the limit."""
BYTES_PER_BYTE: Final = 16
"""Bytes of an intermediate result allowed for each byte of the transaction, beyond the limit."""
VALUES_PER_LIMIT: Final = 4
"""Divisor of the memory limit that gives the largest size of one value."""
WAIT_S_MAX: Final = 0.1
"""The most that one wait counts; the thread asks to be woken after half of it."""

OPTION_FACTOR_MAX: Final = 10
"""Largest ratio of an option to its setting, because a view's work delays other views."""

_SMALL_BYTES: Final = 16 * 1024

TIME: Final = "view_time_ms_max"
ROWS: Final = "view_rows_max"
MEMORY: Final = "view_memory_bytes_max"
IDLE: Final = "population_idle_ms_max"
NAMES: Final = (TIME, MEMORY, ROWS)
"""Settings, and options of create_view."""


class Described(Protocol):
    """A part of a view's query that produces rows."""

    @property
    def words(self) -> str:
        """Its name in SQL."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one transaction (or step of a population) of a view; 0 means unlimited."""

    time_ms: int = 0
    memory_bytes: int = 0
    rows: int = 0
    time_name: str = TIME
    """The setting that limits the time."""

    @property
    def value_bytes(self) -> int:
        """Largest size of one value, in bytes."""
        return self.memory_bytes // VALUES_PER_LIMIT


def of(settings: Settings, own: Mapping[str, int], *, own_group: bool = True) -> Limits:
    """Return the limits of one transaction for a view with the options ``own``.

    ``own_group``: the view is in a named commit group, and may take longer than the setting.
    """

    def one(name: str, most: int, factor: int = OPTION_FACTOR_MAX) -> int:
        given = own.get(name, most)
        # The option may have been accepted under a higher setting, or by an earlier version.
        return min(given, most * factor) if most else given

    return Limits(
        one(TIME, settings.view_time_ms_max, OPTION_FACTOR_MAX if own_group else 1),
        one(MEMORY, settings.view_memory_bytes_max),
        one(ROWS, settings.view_rows_max),
    )


def of_filling(settings: Settings, own: Mapping[str, int]) -> Limits:
    """Return the higher limits of a step of a population, because no other view waits for it."""
    usual = of(settings, own)
    return Limits(
        settings.population_idle_ms_max,
        usual.memory_bytes * OPTION_FACTOR_MAX,
        usual.rows * OPTION_FACTOR_MAX,
        IDLE,
    )


class Bound:
    """Remaining limits of one view, for one transaction at a time.

    One thread at a time works under it; ``cancel`` may be called from any thread.
    """

    def __init__(self, limits: Limits, what: str = "one transaction") -> None:
        """Take ``what``, the unit of work that error messages name."""
        self.limits: Final = limits
        self._what = what
        self._ended: HeadraceError | None = None
        self._inside = False
        self.asking: tuple[str, float] | None = None
        """The expression that Postgres evaluates now, and its start on the monotonic clock."""
        self.begin()

    def begin(self) -> None:
        """Begin a new transaction: reset usage and cancellation."""
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
        """Reset the time used, because the work makes progress."""
        self._own_s = self._asked_s = 0.0
        self._begin_own()

    @property
    def inside(self) -> bool:
        """Whether a thread works under the bound now; from any thread."""
        return self._inside

    @property
    def taken_s(self) -> float:
        """Seconds that the transaction has taken so far, CPU time plus time in Postgres."""
        return self._own_s + self._asked_s

    def cancel(self, reason: HeadraceError) -> None:
        """Have the next check of the current work raise ``reason``; from any thread."""
        self._ended = reason

    def applied(self) -> Applied:
        """Run a ``with`` block under the bound, on this thread."""
        return Applied(self)

    def enter(self) -> Bound | None:
        """Begin to work under the bound; return the previous one for ``leave``."""
        before, _here.bound = current(), self
        self._begin_own()
        self._inside = True
        return before

    def leave(self, before: Bound | None) -> None:
        """End to work under the bound."""
        self._own_s += time.thread_time() - self._own_from
        self._inside = False
        _here.bound = before

    def _begin_own(self) -> None:
        self._since = clock.monotonic()
        self._own_from = time.thread_time()

    # --- input

    def admit(self, rows: int, size: int) -> None:
        """Raise the limits for ``rows`` more input rows of ``size`` bytes."""
        self._own_ms_max += OWN_MS_PER_ROW * rows
        self._rows_max += ROWS_PER_ROW * rows
        self._bytes_max += BYTES_PER_BYTE * size

    def asked(self, rows: int, shown: str = "") -> None:
        """Record that Postgres is about to evaluate ``shown`` for ``rows`` argument tuples."""
        self._asked_ms_max += ASKED_MS_PER_ROW * rows
        self.asking = (shown, clock.monotonic())

    def answered(self) -> None:
        """Record that Postgres has answered."""
        self.asking = None

    def sought(self, keys: int) -> None:
        """Raise the limit of time for ``keys`` that are sought on disk."""
        self._own_ms_max += SOUGHT_MS_PER_KEY * keys

    # --- usage

    def check(self) -> None:
        """Raise if the work was cancelled or has taken too long."""
        if self._ended is not None:
            raise self._ended
        if not self.limits.time_ms:
            return
        # CPU time never exceeds the elapsed time, which costs no system call to read.
        if (self._own_s + clock.monotonic() - self._since) * 1000 <= self._own_ms_max:
            return
        own_s = self._own_s + time.thread_time() - self._own_from
        if own_s * 1000 > self._own_ms_max:
            raise self._slow("")

    def waited(self, seconds: float) -> None:
        """Count ``seconds`` of waiting for Postgres; raises as ``check`` does."""
        _here.waited_ns += int(seconds * 1e9)
        self._asked_s += min(seconds, WAIT_S_MAX)
        if self.limits.time_ms and self._asked_s * 1000 > self._asked_ms_max:
            raise self._slow("An expression that Postgres evaluates had not finished.")
        self.check()

    def expect(self, part: Described, rows: int) -> None:
        """Raise as ``check`` does, or if ``rows`` more rows of ``part`` exceed the limit."""
        self.check()
        made = self._made.setdefault(id(part), [0, 0])
        if self.limits.rows and made[0] + rows > self._rows_max:
            raise self._exceeded(
                ROWS, f"{self._rows_max} rows", f"The rows come from {part.words}."
            )

    def room(self, part: Described) -> int | None:
        """Return how many more rows ``part`` may produce; None means any number."""
        if not self.limits.rows:
            return None
        made = self._made.get(id(part))
        return max(self._rows_max - (made[0] if made else 0), 0)

    def made(self, part: Described, rows: int, size: int) -> None:
        """Count ``rows`` rows of ``size`` bytes from ``part``; raises as ``expect`` does."""
        self._own_ms_max += OWN_MS_PER_ROW * rows
        self.expect(part, rows)
        made = self._made[id(part)]
        made[0] += rows
        made[1] += size
        if self.limits.memory_bytes and made[1] > self._bytes_max:
            raise self._exceeded(
                MEMORY, f"{self._bytes_max} bytes", f"The memory is used by {part.words}."
            )

    def received(self, size: int, given: int) -> None:
        """Raise if an answer of ``size`` bytes to ``given`` bytes of arguments is too large."""
        limit = self.limits.memory_bytes
        if limit and size > limit + BYTES_PER_BYTE * given:
            raise self._exceeded(
                MEMORY,
                f"{limit} bytes",
                "The memory is used by values of expressions that Postgres evaluates.",
            )

    def too_large(self, size: str) -> LimitExceeded:
        """Return the error for a value of ``size`` bytes, which is too large."""
        return self._exceeded(
            MEMORY,
            f"{self.limits.memory_bytes} bytes",
            f"A value has {size} bytes; the limit is {self.limits.value_bytes}.",
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


class Applied:
    """A bound in force on this thread; a class, since a generator takes twice the time to enter."""

    __slots__ = ("_before", "_bound")

    def __init__(self, bound: Bound) -> None:
        self._bound = bound

    def __enter__(self) -> None:
        self._before = self._bound.enter()

    def __exit__(self, *error: object) -> None:
        self._bound.leave(self._before)


class _Here(threading.local):
    bound: Bound | None = None
    waited_ns = 0


_here = _Here()


def current() -> Bound | None:
    """Return the bound that this thread works under, or None."""
    return _here.bound


def waited_ns() -> int:
    """Return the total nanoseconds that this thread has waited for Postgres under bounds."""
    return _here.waited_ns


def check() -> None:
    """Call ``Bound.check`` of this thread's bound, if there is one."""
    if _here.bound is not None:
        _here.bound.check()


def room(part: Described) -> int | None:
    """Return ``Bound.room`` of this thread's bound; None means any number."""
    return None if _here.bound is None else _here.bound.room(part)


def made(part: Described, rows: int, size: int) -> None:
    """Call ``Bound.made`` of this thread's bound, if there is one."""
    if _here.bound is not None:
        _here.bound.made(part, rows, size)


def admit(rows: int, size: int) -> None:
    """Call ``Bound.admit`` of this thread's bound, if there is one; raises as ``check`` does."""
    if _here.bound is not None:
        _here.bound.admit(rows, size)
        _here.bound.check()


def sought(keys: int) -> None:
    """Call ``Bound.sought`` of this thread's bound, if there is one."""
    if _here.bound is not None:
        _here.bound.sought(keys)


def measured(batches: Sequence[pa.RecordBatch]) -> tuple[int, int]:
    """Return the rows and bytes of batches; a small batch counts with its whole buffers."""
    return sum(batch.num_rows for batch in batches), sum(map(size_of, batches))


def size_of(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch; of a small one those of its buffers, for a tenth of the time.

    Buffers may have rows of other batches, too, so only a few kilobytes are counted that way.
    """
    if batch.num_rows == 0:
        return 0
    size: int = batch.get_total_buffer_size()
    return size if size <= _SMALL_BYTES else batch.nbytes


def expect(part: Described, rows: int) -> None:
    """Call ``Bound.expect`` of this thread's bound, if there is one."""
    if _here.bound is not None:
        _here.bound.expect(part, rows)


def progress() -> None:
    """Call ``Bound.progress`` of this thread's bound, if there is one."""
    if _here.bound is not None:
        _here.bound.progress()
