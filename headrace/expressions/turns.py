"""How the processes of one machine take turns at user code, and share findings about its owners.

Turns are file locks: the system releases them when a process ends, and user code in Postgres cannot
take them.  Times are of the monotonic clock, which all processes of a machine share.

A statement may run as long as a population, so a process waits only for a limited time for its
turn.  Then it begins a statement without a turn (``enter_anyway``); findings of any process during
that time prove nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import structlog

_MAIN: Final = "evaluation.lock"
"""Locked by each process while its statements run, exclusively if one runs alone."""
_NEXT: Final = "evaluation.next"
"""Locked exclusively by a process that waits to run alone, so that no new statement begins."""
_LOST: Final = "evaluation.lost"
"""Locked in shared mode by each process that has an abandoned backend."""
_RECORD: Final = "evaluation.json"
_BYTES_MAX: Final = 1 << 20
_LOSSES_MAX: Final = 16

_log = structlog.get_logger(__name__)


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of one process."""

    number: int
    """One more than the number of the previous event."""
    at: float


class Loss(Event, frozen=True, kw_only=True):
    """A session was terminated; any statement that ran after ``since`` may have done it."""

    since: float


class Proof(Event, frozen=True, kw_only=True):
    """A statement of an owner has terminated a session."""

    owner: str


class Record(msgspec.Struct, frozen=True):
    """The findings of all processes."""

    losses: list[Loss] = []
    proofs: list[Proof] = []
    disorder: float = 0.0
    """When a statement last began or ended without a turn."""

    @property
    def events(self) -> list[Event]:
        """All events, in order."""
        return sorted((*self.losses, *self.proofs), key=lambda event: event.number)

    @property
    def number(self) -> int:
        """Number of the last event."""
        return max((event.number for event in self.events), default=0)


_RECORDS: Final = msgspec.json.Decoder(Record)


class _Files(NamedTuple):
    main: _Lock
    following: _Lock
    lost: _Lock
    record: int


class _Lock:
    """A lock on a file; not thread-safe."""

    def __init__(self, path: Path) -> None:
        self.fd: Final = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self, *, alone: bool) -> bool:
        """Take the lock, or change its mode, without waiting; return whether it succeeded."""
        how = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        try:
            fcntl.flock(self.fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def give_back(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_UN)


class EvaluationTurns:
    """The turns of one process; not thread-safe."""

    def __init__(self, folder: Path | None) -> None:
        """Take turns with the processes that share ``folder``; None: this is the only one."""
        self._known = Record()
        self._seen = b""
        self._running = 0
        self._lost = 0
        self._waits = False
        """Whether this process holds ``_NEXT``, to run alone."""
        self._folder: Final = folder
        self._opened: _Files | None = None

    @property
    def _files(self) -> _Files | None:
        """The files, opened at first use; None: there is no folder."""
        folder = self._folder
        if self._opened is None and folder is not None:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700, parents=True)
            record = os.open(folder / _RECORD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            main, following, lost = (_Lock(folder / name) for name in (_MAIN, _NEXT, _LOST))
            self._opened = _Files(main, following, lost, record)
        return self._opened

    # --- turns

    def enter(self, *, alone: bool) -> bool:
        """Begin a statement, alone or beside others; False: not yet, retry or ``give_up``."""
        if self._files is None:
            return True
        main, following = self._files.main, self._files.following
        if alone:
            self._waits = self._waits or following.take(alone=True)
            if not (self._waits and main.take(alone=True)):
                return False
            self.give_up()
            return True
        self.give_up()
        if not following.take(alone=False):
            return False
        entered = self._running > 0 or main.take(alone=False)
        following.give_back()
        self._running += entered
        return entered

    def give_up(self) -> None:
        """Stop waiting to run alone."""
        if self._files is not None and self._waits:
            self._files.following.give_back()
            self._waits = False

    def leave(self, *, alone: bool) -> None:
        """End a statement and its turn."""
        if self._files is None:
            return
        self._running -= not alone
        if not self._running:
            self._files.main.give_back()

    def enter_anyway(self, at: float) -> None:
        """Begin a statement without a turn; findings of other processes meanwhile are void."""
        self.give_up()
        self.lose_backend()
        self._add_disorder(at)

    def leave_anyway(self, at: float) -> None:
        """End a statement that began without a turn."""
        self._add_disorder(at)
        self.find_backend()

    def _add_disorder(self, at: float) -> None:
        with self._locked():
            known = self._read()
            self._write(Record(known.losses, known.proofs, at))

    # --- abandoned backends

    def lose_backend(self) -> None:
        """Record an abandoned backend; its code may still terminate sessions at any time."""
        self._lost += 1
        if self._files is not None:
            fcntl.flock(self._files.lost.fd, fcntl.LOCK_SH)  # another process holds it briefly

    def find_backend(self) -> None:
        """Record that an abandoned backend has ended."""
        self._lost -= 1
        if self._files is not None and not self._lost:
            self._files.lost.give_back()

    @property
    def has_lost(self) -> bool:
        """Whether any process has an abandoned backend."""
        if self._lost or self._files is None:
            return bool(self._lost)
        lost = self._files.lost
        none = lost.take(alone=True)
        if none:
            lost.give_back()
        return not none

    # --- the record

    def read(self) -> Record:
        """Return the record of all processes."""
        if self._opened is None and self._folder and not (self._folder / _RECORD).exists():
            return self._known  # no process has written a record
        if self._files is not None:
            found = os.pread(self._files.record, _BYTES_MAX, 0)
            if found != self._seen:
                with self._locked():
                    self._known = self._read()
        return self._known

    def add_loss(self, since: float, at: float) -> None:
        """Record for all processes that a session was terminated."""
        with self._locked():
            known = self._read()
            losses = [*known.losses, Loss(number=known.number + 1, at=at, since=since)][
                -_LOSSES_MAX:
            ]
            self._write(Record(losses, known.proofs, known.disorder))

    def add_proof(self, owner: str, at: float, oldest: float, most: int) -> None:
        """Record for all processes that an owner's statement has terminated a session.

        Proofs since ``oldest`` are kept, at most the last ``most`` of each owner.
        """
        with self._locked():
            known = self._read()
            others = [p for p in known.proofs if p.owner != owner]
            own = [p for p in known.proofs if p.owner == owner]
            own = [*own, Proof(number=known.number + 1, at=at, owner=owner)][-most:]
            kept = [proof for proof in (*others, *own) if oldest <= proof.at <= at]
            self._write(Record(known.losses, kept, known.disorder))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if self._files is None:
            yield
            return
        fcntl.flock(self._files.record, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._files.record, fcntl.LOCK_UN)

    def _read(self) -> Record:
        if self._files is None:
            return self._known
        self._seen = os.pread(self._files.record, _BYTES_MAX, 0)
        try:
            return _RECORDS.decode(self._seen) if self._seen else Record()
        except msgspec.DecodeError:
            _log.warning("record of terminated sessions is damaged")
            return self._known  # numbers must not restart: other processes know the last one

    def _write(self, record: Record) -> None:
        self._known = record
        if self._files is None:
            return
        # A single write, padded over any longer record, so that a kill cannot tear it.
        data = self._seen = msgspec.json.encode(record).ljust(len(self._seen))
        os.pwrite(self._files.record, data, 0)
