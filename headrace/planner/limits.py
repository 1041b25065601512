"""Limits of planning: processor time, the size of trees and plans, and cancellation.

Planning is a loop over trees on one thread.  Each pass calls ``check`` at every node.  So a query
that takes too long is refused, and a canceled call or a closed connection ends its planning at
once.  Where no limit is applied, ``check`` does nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from headrace import clock
from headrace.errors import HeadraceError, UnsupportedError, UserError

NODES_MAX: Final = 20_000
"""Nodes of a logical plan."""
COLUMNS_MAX: Final = 400_000
"""Columns of all its nodes, copies that were made on the way included: about 1 kB each."""
PARTS_MAX: Final = 1_000_000
"""Parts of an expression: columns, constants, operators and functions."""
LARGE_CHARS: Final = 16_384
"""Length of the text of a query from which it is large, in characters."""
LARGE_TREES: Final = 1_000_000
"""Length of all trees of a query together from which it is large, in characters."""
_ANY: Final = 1 << 30
_HINT: Final = "Read fewer views and subqueries in one query."


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """Limits of planning one query."""

    time_ms: int = 60_000
    """Milliseconds of processor time; 0: any time."""


Cancelling = Callable[[Callable[[], object]], contextlib.AbstractContextManager[None]]
"""While inside the context that it makes, a cancel also calls the function."""


class LargeQuery(Exception):
    """Raised inside ``small`` by the text or the tree that is too large."""


class _Here(threading.local):
    tree_chars: int | None = None
    """Characters of trees that may still be read; None: any number."""
    until: float | None = None
    """When ``cpu_until`` can be reached at the earliest, on the monotonic clock."""
    cpu_until = 0.0
    time_ms = 0
    interrupt: Callable[[], None] | None = None
    cancelling: Cancelling | None = None
    idle: Callable[[], None] | None = None


_here = _Here()


@contextlib.contextmanager
def interruptible(interrupt: Callable[[], None], cancelling: Cancelling) -> Iterator[None]:
    """Call ``interrupt``, which may raise, repeatedly while this thread plans inside the context.

    While planning waits for Postgres, ``cancelling`` receives the function that ends the wait.
    """
    before = _here.interrupt, _here.cancelling
    _here.interrupt, _here.cancelling = interrupt, cancelling
    try:
        yield
    finally:
        _here.interrupt, _here.cancelling = before


@contextlib.contextmanager
def cancelling(action: Callable[[], object]) -> Iterator[None]:
    """Call ``action``, on another thread, if a cancel arrives inside the context."""
    if _here.cancelling is None:
        yield
        return
    with _here.cancelling(action):
        yield


@contextlib.contextmanager
def small() -> Iterator[None]:
    """Raise ``LargeQuery`` once this thread is about to read a large query inside the context.

    A query is large by its text, or by its trees: the ``pg_node_tree`` texts of itself and of the
    views that it reads.  They show what planning costs better than a text ``SELECT * FROM v``.
    """
    before, _here.tree_chars = _here.tree_chars, LARGE_TREES
    try:
        yield
    finally:
        _here.tree_chars = before


def check_text(chars: int) -> None:
    """Check the text of a query of that many characters, before it is read.

    Raises:
        LargeQuery: inside ``small``, it is large.
    """
    if _here.tree_chars is not None and chars >= LARGE_CHARS:
        raise LargeQuery


def check_tree(chars: int) -> None:
    """Count a tree of that many characters, before it is read.

    Raises:
        LargeQuery: inside ``small``, it is one too many.
    """
    if _here.tree_chars is None:
        return
    _here.tree_chars -= chars
    if _here.tree_chars < 0:
        raise LargeQuery


def tree_chars() -> int:
    """Return the number of characters of a tree that suffice for ``check_tree`` to refuse it."""
    return (_ANY if _here.tree_chars is None else _here.tree_chars) + 1


@contextlib.contextmanager
def between(idle: Callable[[], None]) -> Iterator[None]:
    """Call ``idle`` repeatedly while this thread plans inside the context."""
    before, _here.idle = _here.idle, idle
    try:
        yield
    finally:
        _here.idle = before


@contextlib.contextmanager
def applied(limits: PlanLimits) -> Iterator[None]:
    """Apply ``limits`` to the query that this thread plans inside the context."""
    before = _here.until, _here.cpu_until, _here.time_ms
    _here.time_ms = limits.time_ms
    _here.cpu_until = time.thread_time() + limits.time_ms / 1000
    _here.until = clock.monotonic() + limits.time_ms / 1000 if limits.time_ms else None
    try:
        yield
    finally:
        _here.until, _here.cpu_until, _here.time_ms = before


def check() -> None:
    """Raise if planning has taken too long, or if its job was canceled.

    Raises:
        UserError: 54000, it has taken too long.
    """
    if _here.idle is not None:
        _here.idle()
    if _here.interrupt is not None:
        _here.interrupt()
    # A thread takes no more processor time than passes, and the clock costs no system call.
    if _here.until is None or clock.monotonic() < _here.until:
        return
    left = _here.cpu_until - time.thread_time()
    if left > 0:
        _here.until = clock.monotonic() + left
        return
    raise too_slow(_here.time_ms)


def too_slow(time_ms: int) -> UserError:
    """Return the error of a query whose planning takes longer than ``time_ms``."""
    return UserError(
        f"planning the query takes more than {time_ms} ms",
        hint=f"{_HINT} Or raise the setting planning_time_ms_max.",
        sqlstate="54000",
    )


def wanted() -> bool:
    """Return whether the job that plans was not canceled."""
    try:
        if _here.interrupt is not None:
            _here.interrupt()
    except HeadraceError:
        return False
    return True


def check_nodes(count: int) -> None:
    """Raise if a plan of ``count`` nodes is too large.

    Raises:
        UnsupportedError: it is.
    """
    if count > NODES_MAX:
        raise UnsupportedError(
            f"a query with a plan of more than {NODES_MAX} nodes is not supported", hint=_HINT
        )


def check_columns(number: int) -> None:
    """Raise if the column of that ``number`` is one too many; columns are numbered from 1.

    Raises:
        UnsupportedError: it is.
    """
    if number > COLUMNS_MAX:
        raise UnsupportedError(
            "views and subqueries nested this deeply are not supported",
            detail=f"The query has over {COLUMNS_MAX} columns of intermediate results. A subquery"
            " that reads columns of the queries around it is computed for their rows.",
            hint="Write some of the subqueries as joins or groups.",
        )


def check_parts(count: int) -> None:
    """Raise if an expression of ``count`` parts is too large.

    Raises:
        UnsupportedError: it is.
    """
    if count > PARTS_MAX:
        raise UnsupportedError(
            f"an expression of more than {PARTS_MAX} parts is not supported",
            detail="Each reference to a computed column counts with all parts of its expression.",
        )
