"""Model of Postgres' side of one connection: the answers that the source still owes a session.

The session reports each message that it relays and each answer that comes back.  From these the
model knows whether the source is idle, reads a COPY, or ignores everything up to a Sync, and how
many ReadyForQuery are still to come.  Every message of the extended protocol has one last answer,
in order; an error replaces all answers up to the Sync.  An answer that the model does not expect is
a ProtocolError: the session ends, because guessing would be unsafe.

COPY FROM STDIN needs care.  The source drops the Syncs that it reads while it copies, and answers
those that it reads after an error; the commander cannot see which happened.  So messages after a
statement that may be a COPY are held (``gated``) until it has answered.  Syncs sent during a copy
are kept back here: if more data follows they are dropped, if an error or another message follows
they are sent.  No Sync ever reaches a source that continues to copy.

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
"""Messages answered by a ReadyForQuery of their own, which other answers may precede."""
_IDLE: Final = b"I"
# Answer -> the messages that it is the last answer to.
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
# The same table for ``wire.answers``; ``d``: rows, data, notices, notifications and parameters,
# which are the last answer to no message.
_PLAIN: Final = bytes(
    ord("Z") if kind == ord("Z") else ord("d") if kind in b"DdcNAt" else max(_LAST.get(kind, (0,)))
    for kind in range(256)
)
_WHOLES: Final = wire.kinds(bytes(_WHOLE))


class OwedAnswers:
    """The answers owed on one connection."""

    def __init__(self) -> None:
        self.status = _IDLE
        """Transaction status in the last ReadyForQuery: I, T or E."""
        self.copying = False
        """Whether the source reads CopyData."""
        self.ignoring = False
        """Whether the source ignores everything up to a Sync that it has not been sent yet."""
        self.gated = False
        """Whether nothing may be relayed until the source has answered."""
        self.asked = 0
        """Number of statements sent: Query and Execute messages."""
        self._owed: deque[int] = deque()
        self._syncs = 0
        """Syncs kept back since the last CopyData."""

    @property
    def settled(self) -> bool:
        """Whether the source has answered everything."""
        return not self._owed

    @property
    def plain(self) -> bool:
        """Whether no copy, error or gate is in effect: messages only ask and answer."""
        return not (self.copying or self.ignoring or self.gated)

    def asks(self, kinds: bytes) -> None:
        """Record relayed messages of types ``kinds``, none of which may copy.

        REQUIRES: ``plain``.
        """
        self._owed.extend(kinds)
        self.asked += kinds.count(b"Q") + kinds.count(b"E")

    def answered(self, data: bytes) -> bool:
        """Record answers of the source; return False, with no effect, if not all are plain."""
        status: int = wire.answers(data, self._owed, _PLAIN, _WHOLES)
        if status > 0:
            self.status = bytes((status,))
        return status >= 0

    def relays(self, kind: int, *, may_copy: bool = False) -> bool:
        """Record a message of the client; return False if it must not be relayed.

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
        """Record an answer of the source by its type; the body is not needed.

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
        """Return how many Syncs to send before a message that interrupts a copy; None: it does not.

        Postgres ends the session if such a message arrives while it copies.  So either the copy is
        over, or the session is lost anyway.  The message itself shows which, so it must be relayed.
        """
        if not self.copying or kind in _ONLY_COPYING:
            return None
        self.copying = False
        return self._release()

    def fails(self) -> int:
        """Record an ErrorResponse; return how many Syncs kept back to send now."""
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
        """Record a ReadyForQuery; return the type of the message that it answers.

        Raises:
            ProtocolError: it answers nothing that was sent.
        """
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
