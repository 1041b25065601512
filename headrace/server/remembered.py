"""Prepared statements of a session that concern the commander: bounded, and safe to forget.

A Headrace call that was forgotten is relayed, and the procedure in the database carries it out.  If
too many statements may be COPY FROM STDIN, every statement is treated as one.  New entries are
uncertain until the source has accepted the messages: after an error they are forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.server.procedures import Given

BYTES_MAX: Final = 262_144
"""Limit of bytes of statements, and of bytes of values, remembered for one session."""
_NAME_BYTES_MAX: Final = 256
_NAMES_MAX: Final = 100
_PARSE: Final = ord("P")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A Parse of a call: its text, declared types, and ``Flow.settings`` when it was parsed."""

    text: str
    oids: tuple[int, ...]
    settings: int


@dataclass(frozen=True, slots=True)
class BoundCall:
    """A Bind of a prepared call."""

    prepared: Prepared
    given: Sequence[Given]
    size: int


class PreparedCalls:
    """Prepared Headrace calls by name, and the portals bound to them."""

    def __init__(self) -> None:
        self._statements: dict[bytes, Prepared] = {}
        self._portals: dict[bytes, BoundCall] = {}
        self._new: set[bytes] = set()
        self._bytes = self._portal_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._statements)

    @property
    def empty(self) -> bool:
        """Whether there are neither statements nor portals."""
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

    def bind(self, portal: bytes, statement: bytes, given: Sequence[Given]) -> None:
        """Bind the portal to the statement, which need not be a call."""
        self.unbind(portal)
        prepared = self._statements.get(statement)
        size = len(portal) + sum(len(g.data or b"") + 64 for g in given)
        if prepared and self._portal_bytes + size <= BYTES_MAX:
            self._portal_bytes += size
            self._portals[portal] = BoundCall(prepared, given, size)

    def bound(self, portal: bytes) -> BoundCall | None:
        """Return the bound call of a portal, if any."""
        return self._portals.get(portal)

    def prepared(self, statement: bytes) -> Prepared | None:
        """Return the prepared call of a statement name, if any."""
        return self._statements.get(statement)

    def forget(self, name: bytes) -> None:
        """Forget a statement."""
        old = self._statements.pop(name, None)
        if old:
            self._bytes -= len(name) + len(old.text)
            self._new.discard(name)

    def unbind(self, portal: bytes) -> None:
        """Forget a portal."""
        old = self._portals.pop(portal, None)
        if old:
            self._portal_bytes -= old.size

    def forget_all(self) -> None:
        """Forget all statements and portals."""
        self._statements.clear()
        self._new.clear()
        self._bytes = 0
        self.end_segment()

    def end_segment(self) -> None:
        """Forget all portals: they end with the transaction."""
        self._portals.clear()
        self._portal_bytes = 0

    def confirm(self) -> None:
        """Keep the new statements: the source has accepted everything."""
        self._new.clear()

    def refuse(self) -> None:
        """Forget new statements and all portals: the source has refused something."""
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
        return self._any or bool(self._names)

    def has(self, kind: int, name: bytes) -> bool:
        """Return whether the statement (Parse) or portal (Bind) of that name may be a copy."""
        return self._any or (kind, name) in self._names

    def put(self, kind: int, name: bytes, *, may_copy: bool) -> None:
        """Record that a Parse or Bind has defined ``name`` anew."""
        key = kind, name
        if may_copy:
            self._names.add(key)
            self._replaced.discard(key)
            if len(name) > _NAME_BYTES_MAX or len(self._names) > _NAMES_MAX:
                self.put_any()
        elif key in self._names:
            self._replaced.add(key)

    def put_any(self) -> None:
        """Treat every statement as a possible copy, because it is unknown which ones are."""
        self._any = True
        self._names.clear()
        self._replaced.clear()

    def confirm(self, *, idle: bool) -> None:
        """Drop the replaced entries, because the source has accepted everything.

        ``idle``: it is in no transaction, so there are no portals.
        """
        self._names -= self._replaced
        self._replaced.clear()
        if idle:
            self._names = {key for key in self._names if key[0] == _PARSE}

    def refuse(self) -> None:
        """Keep the replaced entries, because the source may have refused the replacement."""
        self._replaced.clear()


def may_copy_in(text: bytes) -> bool:
    """Return whether a text can begin a COPY FROM STDIN (keywords are ASCII in every encoding).

    Postgres accepts STDOUT in its place as well.
    """
    low = text.lower()
    return b"copy" in low and (b"stdin" in low or b"stdout" in low)
