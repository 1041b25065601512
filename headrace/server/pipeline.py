"""What the source still owes a session: a model of Postgres' side of one connection.

A session tells it each message that it relays and each that comes back; it knows from that
whether the source is idle, copies in, or ignores everything up to a Sync, and how many
ReadyForQuery are still to come.  Every message of the extended protocol has one answer, in
order; an error takes the place of all answers up to the Sync.  An answer that the model does
not expect is a ProtocolError: the session ends, nobody guesses.

COPY FROM STDIN needs care: the source drops the Syncs that it reads while it copies, and
answers those that it reads after an error, and from outside nobody sees which is which.  So
what follows a statement that may be one is held (``gated``) until it has answered, and Syncs
sent during a copy are kept back here: more data shows that they are to be dropped, an error
or another message that they are not.  None ever reaches a source that goes on copying.

Source: PostgresMain and CopyGetData of Postgres.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from headrace.errors import ProtocolError
from headrace.kernels import wire

_Q, _P, _B, _D, _E, _C, _S, _F, _H = b"QPBDECSFH"
_COPY: Final = frozenset(b"dcf")
_COPY_END: Final = frozenset(b"cf")
_ONLY_COPYING: Final = frozenset(b"dcfSHX")
_EXTENDED: Final = frozenset((_P, _B, _D, _E, _C))
_WHOLE: Final = frozenset((_Q, _F))
"""Answered by one ReadyForQuery of their own, with anything before it."""
_IDLE: Final = b"I"
# Answer -> the messages that it is the last answer of.
_LAST: Final[dict[int, frozenset[int]]] = {
    ord("1"): frozenset((_P,)),
    ord("2"): frozenset((_B,)),
    ord("3"): frozenset((_C,)),
    ord("T"): frozenset((_D,)),
    ord("n"): frozenset((_D,)),
    ord("C"): frozenset((_E,)),
    ord("s"): frozenset((_E,)),
    ord("I"): frozenset((_E,)),
}
_COPY_IN: Final = ord("G")
_COPY_OUT: Final = ord("H")
# The same for ``wire.answers``: rows, data, notices, notifications and parameters answer nothing.
_PLAIN: Final = bytes(
    ord("Z") if kind == ord("Z") else ord("d") if kind in b"DdcNAt" else max(_LAST.get(kind, (0,)))
    for kind in range(256)
)
_WHOLES: Final = wire.kinds(bytes(_WHOLE))


class OwedAnswers:
    """See the module."""

    def __init__(self) -> None:
        self.status = _IDLE
        """Of the last ReadyForQuery: I, T or E."""
        self.copying = False
        """The source reads CopyData."""
        self.ignoring = False
        """The source ignores everything up to a Sync that it has not been sent yet."""
        self.gated = False
        """Nothing may be relayed until the source has answered."""
        self.asked = 0
        """How many statements were sent: each Query, and each Execute."""
        self._owed: deque[int] = deque()
        self._syncs = 0
        """Kept back: what was sent since the last data."""

    @property
    def settled(self) -> bool:
        """Whether the source has answered all it was sent."""
        return not self._owed

    @property
    def plain(self) -> bool:
        """Whether messages do no more than ask and answer."""
        return not (self.copying or self.ignoring or self.gated)

    @property
    def ready_owed(self) -> int:
        """How many ReadyForQuery are still to come."""
        return sum(1 for k in self._owed if k == _S or k in _WHOLE)

    def asks(self, kinds: bytes) -> None:
        """Relayed are messages of these types, none of which may copy; it is ``plain``."""
        self._owed.extend(kinds)
        self.asked += kinds.count(b"Q") + kinds.count(b"E")

    def answered(self, data: bytes) -> bool:
        """Messages of the source have come; false: not all are plain answers, nothing is done."""
        status: int = wire.answers(data, self._owed, _PLAIN, _WHOLES)
        if status > 0:
            self.status = bytes((status,))
        return status >= 0

    def relays(self, kind: int, *, may_copy: bool = False) -> bool:
        """A message of the client is at hand; False: it is not to be relayed.

        ``may_copy``: it may be a COPY FROM STDIN, or begin one.
        """
        if self.copying:
            if kind == _S:
                self._syncs += 1
            elif kind in _COPY:
                self._syncs = 0
            if kind in _COPY_END:
                self.copying = False
                # One Query may hold several COPYs.
                self.gated = bool(self._owed) and self._owed[0] == _Q
            return kind not in (_S, _H)
        if kind == _S:
            self.ignoring = False
            self._owed.append(kind)
        elif not self.ignoring and (kind in _EXTENDED or kind in _WHOLE):
            self._owed.append(kind)
            self.asked += kind in (_Q, _E)
            self.gated = may_copy and kind in (_Q, _E)
        return True

    def answers(self, kind: int) -> None:
        """A message of the source has come (its head: nothing of the body is needed).

        Raises:
            ProtocolError: it answers nothing that was sent.
        """
        head = self._owed[0] if self._owed else 0
        if kind in _LAST:
            if head in _LAST[kind]:
                self._pop()
            elif head not in _WHOLE:
                raise _lost()
        elif kind == _COPY_IN:
            if not self.gated or head not in (_Q, _E):
                raise _lost()
            self.gated, self.copying = False, True
            self._syncs = 0
        elif kind == _COPY_OUT:
            # One Execute is one statement: it copies out, so it does not copy in.
            self.gated = self.gated and head != _E

    def interrupts(self, kind: int) -> int | None:
        """A message is at hand; how many Syncs kept back are to be sent before it.

        None: it does not interrupt a copy.  A message that does may not be sent while the
        source copies: it ends the session then.  So it does not copy any longer, or nothing
        matters any more; which it is the message itself has to tell, so it must be relayed.
        """
        if not self.copying or kind in _ONLY_COPYING:
            return None
        self.copying = False
        return self._release()

    def fails(self) -> int:
        """An ErrorResponse has come; how many Syncs kept back are to be sent now."""
        if self._owed and self._owed[0] in _EXTENDED:
            while self._owed and self._owed[0] != _S:
                self._owed.popleft()
            self.ignoring = not self._owed
            self.gated = self.gated and bool(self._owed)
        if not self.copying:
            return 0
        self.copying = False
        return self._release()

    def _release(self) -> int:
        count, self._syncs = self._syncs, 0
        for _ in range(count):
            self.relays(_S)
        return count

    def ready(self, status: bytes) -> int:
        """A ReadyForQuery has come; returns the message that it answers."""
        if not self._owed or (self._owed[0] != _S and self._owed[0] not in _WHOLE):
            raise _lost()
        self.copying = False
        self.status = status
        return self._pop()

    def _pop(self) -> int:
        kind = self._owed.popleft()
        self.gated = self.gated and bool(self._owed)
        return kind


def _lost() -> ProtocolError:
    return ProtocolError("the source answers what it was not asked")
