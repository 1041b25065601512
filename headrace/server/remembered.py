"""What a session has prepared that concerns the commander; bounded, and forgotten safely.

Calls of ours: forgotten ones are relayed, and the procedure in the database carries them out.
Statements that may be COPY FROM STDIN: when they are too many, every one may be.  Neither is
certain before the source has accepted what was sent: an error makes it forget the new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.server.procedures import Given

BYTES_MAX: Final = 262_144
"""Bytes of statements and of values that one session may have remembered."""
_NAME_BYTES_MAX: Final = 256
_NAMES_MAX: Final = 100
_PARSE: Final = ord("P")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A Parse of a call: its text, declared types, and which settings it was read under."""

    text: str
    oids: tuple[int, ...]
    settings: int


@dataclass(frozen=True, slots=True)
class BoundCall:
    """A Bind of such a statement."""

    prepared: Prepared
    given: Sequence[Given]
    formats: tuple[int, ...]
    size: int


class PreparedCalls:
    """Prepared calls of ours, by name, and the portals bound to them."""

    def __init__(self) -> None:
        self._statements: dict[bytes, Prepared] = {}
        self._portals: dict[bytes, BoundCall] = {}
        self._new: set[bytes] = set()
        self._bytes = self._portal_bytes = 0

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._statements)

    @property
    def empty(self) -> bool:
        """Whether there are none, nor portals of those that were."""
        return not (self._statements or self._portals)

    @property
    def size(self) -> int:
        """Bytes of texts and values."""
        return self._bytes + self._portal_bytes

    def prepare(self, name: bytes, prepared: Prepared) -> None:
        """Remember a statement, if there is room."""
        self.forget(name)
        size = len(name) + len(prepared.text)
        if self._bytes + size <= BYTES_MAX:
            self._bytes += size
            self._statements[name] = prepared
            self._new.add(name)

    def bind(
        self, portal: bytes, statement: bytes, given: Sequence[Given], formats: tuple[int, ...]
    ) -> None:
        """The portal is bound to the statement, whether it is ours or not."""
        self.unbind(portal)
        prepared = self._statements.get(statement)
        size = len(portal) + sum(len(g.data or b"") + 64 for g in given)
        if prepared and self._portal_bytes + size <= BYTES_MAX:
            self._portal_bytes += size
            self._portals[portal] = BoundCall(prepared, given, formats, size)

    def bound(self, portal: bytes) -> BoundCall | None:
        """What the portal is, if it is ours."""
        return self._portals.get(portal)

    def prepared(self, statement: bytes) -> Prepared | None:
        """What the statement is, if it is ours."""
        return self._statements.get(statement)

    def forget(self, name: bytes) -> None:
        """The statement is not ours any more."""
        old = self._statements.pop(name, None)
        if old:
            self._bytes -= len(name) + len(old.text)
            self._new.discard(name)

    def unbind(self, portal: bytes) -> None:
        """The portal is not ours any more."""
        old = self._portals.pop(portal, None)
        if old:
            self._portal_bytes -= old.size

    def forget_all(self) -> None:
        """Nothing is known any more."""
        self._statements.clear()
        self._new.clear()
        self._bytes = 0
        self.end_segment()

    def end_segment(self) -> None:
        """Portals do not outlive a transaction."""
        self._portals.clear()
        self._portal_bytes = 0

    def confirm(self) -> None:
        """The source has accepted everything."""
        self._new.clear()

    def refuse(self) -> None:
        """The source has refused something: perhaps a new one."""
        for name in list(self._new):
            self.forget(name)
        self.end_segment()


class PossibleCopies:
    """Statements and portals that may be COPY FROM STDIN; kept when in doubt."""

    def __init__(self) -> None:
        self._names: set[tuple[int, bytes]] = set()
        self._replaced: set[tuple[int, bytes]] = set()
        self._any = False

    def __bool__(self) -> bool:
        """Whether there are any."""
        return self._any or bool(self._names)

    def has(self, kind: int, name: bytes) -> bool:
        """Whether what ``kind`` (Parse, Bind) made under ``name`` may be one."""
        return self._any or (kind, name) in self._names

    def put(self, kind: int, name: bytes, *, may_copy: bool) -> None:
        """``kind`` has made ``name`` anew."""
        key = kind, name
        if may_copy:
            self._names.add(key)
            self._replaced.discard(key)
            if len(name) > _NAME_BYTES_MAX or len(self._names) > _NAMES_MAX:
                self.put_any()
        elif key in self._names:
            self._replaced.add(key)

    def put_any(self) -> None:
        """Some of them, nobody knows which: from now on all may be."""
        self._any = True
        self._names.clear()
        self._replaced.clear()

    def confirm(self, *, idle: bool) -> None:
        """The source has accepted everything: what was replaced is.

        ``idle``: it is in no transaction, so there are no portals.
        """
        self._names -= self._replaced
        self._replaced.clear()
        if idle:
            self._names = {key for key in self._names if key[0] == _PARSE}

    def refuse(self) -> None:
        """The source has refused something: perhaps what should replace it."""
        self._replaced.clear()


def may_copy_in(text: bytes) -> bool:
    """Whether a text can begin a COPY FROM STDIN (keywords are ASCII in every encoding).

    Postgres takes STDOUT for it as well.
    """
    low = text.lower()
    return b"copy" in low and (b"stdin" in low or b"stdout" in low)
