"""The position of a unit among the batches: its own, or one that it shares with other units.

* Invariant: a unit that shares a position reads it from there, and nothing else moves it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from headrace.runtime.positions import Position, StateMark

_EMPTY: Final = StateMark(0, 0, 0)
_START: Final = Position(0, 0)


class UnitListener(Protocol):
    """Receives the changes of units; from any thread."""

    def update(self, unit: Any, /) -> None:
        """Record that some property of a unit has changed."""

    def update_mark(self, unit: Any, /) -> None:
        """Record that only a mark of a unit has changed."""

    def leave_step(self, unit: Any, /) -> None:
        """Give a unit that is in step its own position again."""


@dataclass(slots=True)
class CommonPosition:
    """The position of all units in step (``leading.py``)."""

    processed: int = 0
    """The last txid in their states."""
    committed: Position = _START
    """The last txid that is committed for them, and its end."""


@dataclass(slots=True)
class UnitPosition:
    """The part of a unit that says how far it is."""

    id: int
    durable: StateMark = field(default=_EMPTY, kw_only=True)
    """The state as of the last checkpoint, which survives a crash."""
    listener: UnitListener | None = field(default=None, kw_only=True, repr=False, compare=False)
    """Receives its changes (``unit_index.py``), while it is registered with the engine."""
    _step: CommonPosition | None = field(default=None, kw_only=True, repr=False, compare=False)
    """The position that it shares with other units; None: it has its own."""
    _mark: StateMark = field(default=_EMPTY, kw_only=True)
    _processed: int = field(default=0, kw_only=True)
    _begun: list[int] = field(default_factory=list, kw_only=True)
    """Txids in flight that have changed its state."""
    _marks: dict[int, StateMark] = field(default_factory=dict, kw_only=True)
    """Marks since the last checkpoint, by txid: the points that its state may go back to."""

    @property
    def mark(self) -> StateMark:
        """The state as of the last txid that is committed for it; for any thread."""
        while (step := self._step) is not None:
            mark = self.mark_at(step.committed)
            if self._step is step:
                return mark
        return self._mark

    @property
    def processed(self) -> int:
        """The last txid in its state, committed or not."""
        step = self._step
        return self._processed if step is None else step.processed

    @processed.setter
    def processed(self, txid: int) -> None:
        self.leave_step()
        self._processed = txid

    @property
    def in_step(self) -> bool:
        """Whether it shares its position with other units."""
        return self._step is not None

    @property
    def busy(self) -> bool:
        """Whether a txid in flight has changed its state."""
        return bool(self._begun)

    @property
    def resting_txids(self) -> set[int]:
        """The txids after which it may go on: where it is, and where it may go back or further."""
        own = self.processed, self.mark.txid, self.durable.txid
        return {*own, *self._marks, *self.written_txids}

    @property
    def written_txids(self) -> Collection[int]:
        """Txids that its output may have reached before its state, as after a crash."""
        return ()

    def mark_at(self, at: Position) -> StateMark:
        """Return its mark once everything up to ``at`` is committed for it."""
        return StateMark(at.txid, self.lsn_from(at.lsn), min(self.written_txid(at.txid), at.txid))

    def lsn_from(self, lsn: int) -> int:
        """Return the LSN up to which it is complete with everything up to ``lsn``."""
        return lsn

    def written_txid(self, txid: int) -> int:
        """Return the last txid up to ``txid`` at which its result changed, as far as is known."""
        return txid

    def join_step(self, step: CommonPosition) -> None:
        """Share a position, which is its own now.  REQUIRES: no txid in flight has changed it."""
        assert not self._begun and self._processed == step.processed, "it is where they are"
        self._step = step

    def freeze(self) -> None:
        """Take the shared position as its own; called by its listener, ``UnitIndex.leave_step``."""
        if self._step is not None:
            mark, processed = self.mark, self.processed
            self._mark, self._processed = mark, processed
            self._marks[mark.txid] = mark
            self._step = None

    def leave_step(self) -> None:
        """Have its own position again."""
        if self._step is None:
            return
        if self.listener is not None:
            self.listener.leave_step(self)
        else:
            self.freeze()

    def _move(self, mark: StateMark) -> None:
        self.leave_step()
        self._mark = mark
        listener = self.listener
        if listener is not None:
            listener.update_mark(self)

    def _changed(self) -> None:
        listener = self.listener
        if listener is not None:
            listener.update(self)
