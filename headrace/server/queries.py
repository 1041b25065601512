"""Simple and extended queries of a client: finds the Headrace calls, now or at a later Execute.

It also tracks which messages may begin a copy, even those that are relayed unread.
"""

from __future__ import annotations

from typing import Final

from headrace.server import messages as m
from headrace.server.flow import Flow, Pending
from headrace.server.procedures import Given, bind
from headrace.server.remembered import PossibleCopies, Prepared, PreparedCalls, may_copy_in
from headrace.server.statements import SCHEMA, parse

_Q, _P, _B, _E = b"QPBE"
_NAMED: Final = frozenset((_P, _B))
_SCHEMA: Final = SCHEMA.encode()
_RENAMING: Final = (b"prepare", b"deallocate", b"discard")


class Queries:
    """Detector of Headrace calls in the queries of one session."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._calls = PreparedCalls()
        self._copies = PossibleCopies()
        self._executes = 0

    @property
    def remembers(self) -> bool:
        """Whether any prepared statement is tracked."""
        return bool(self._calls) or bool(self._copies)

    @property
    def plain(self) -> bool:
        """Whether no message can concern a tracked statement or portal."""
        return self._calls.empty and not self._copies

    def relayed(self, kinds: bytes) -> None:
        """Record relayed messages of these types.

        REQUIRES: ``plain``, and that their texts are ``dull``.
        """
        executes = kinds.rpartition(b"S")[2].rpartition(b"Q")[2].count(b"E")
        ended = b"S" in kinds or b"Q" in kinds
        self._executes = executes if ended else self._executes + executes
        self._flow.pipeline.asks(kinds.replace(b"H", b""))

    def read(self, kind: int, message: bytes) -> bool:
        """Process a whole message; return whether to relay it now."""
        if kind == _Q:
            return self._on_query(message)
        if kind == _E:
            return self._on_execute(message)
        if kind == _P:
            self._on_parse(message)
        elif kind == _B:
            self._on_bind(message)
        return self._flow.pipeline.relays(kind)

    def skim(self, kind: int, begin: bytes) -> None:
        """Record a message that is relayed unread; ``begin`` is the start of its body."""
        pipeline, may_copy = self._flow.pipeline, False
        if not pipeline.ignoring and not pipeline.copying:
            if kind == _Q:
                may_copy = True
                self._calls.forget_all()
                self._executes = 0
            elif kind == _E:
                self._executes += 1
            elif kind in _NAMED:
                self._on_long(kind, begin)
        pipeline.relays(kind, may_copy=may_copy)

    def end_segment(self) -> None:
        """Record a Sync, or a message that ends the implicit transaction like one."""
        self._executes = 0
        self._calls.end_segment()

    def confirm(self, *, idle: bool) -> None:
        """Record that the source has accepted everything; ``idle``: it is in no transaction."""
        self._calls.confirm()
        self._copies.confirm(idle=idle)

    def refuse(self) -> None:
        """Record an error of the source: new statements may be missing."""
        self._calls.refuse()
        self._copies.refuse()

    def _on_long(self, kind: int, begin: bytes) -> None:
        """Record a Parse or Bind that is too long to parse; its names may still be readable."""
        if kind == _B and not self.remembers:
            return
        names = begin.split(b"\x00", 2)[:-1]
        if len(names) < 1 + (kind == _B):
            self._calls.forget_all()
            self._copies.put_any()
        elif kind == _P:
            self._calls.forget(names[0])
            self._copies.put(_P, names[0], may_copy=True)
        else:
            self._calls.unbind(names[0])
            may_copy = self._copies.has(_P, names[1])
            self._copies.put(_B, names[0], may_copy=may_copy)

    def _on_query(self, message: bytes) -> bool:
        flow = self._flow
        self.end_segment()
        # A Query drops the unnamed statement.
        self._calls.forget(b"")
        low = message.lower()
        if _SCHEMA in low:
            text = flow.decode(message[5:].rstrip(b"\x00"))
            if text is not None:
                statement = parse(text, standard_strings=flow.standard_strings)
                invocation = bind(statement, (), flow.encoding) if statement else None
                if invocation:
                    flow.pending = Pending(invocation, text, message, flow.settings, extended=False)
                    flow.fire("ours")
                    return False
        self._forget_renamed(low)
        return flow.pipeline.relays(_Q, may_copy=may_copy_in(low))

    def _on_parse(self, message: bytes) -> None:
        flow = self._flow
        parsed = m.read_parse(message[5:])
        low = parsed.query.lower()
        self._calls.forget(parsed.name)
        self._copies.put(_P, parsed.name, may_copy=may_copy_in(low))
        self._forget_renamed(low)
        if _SCHEMA not in low:
            return
        text = flow.decode(parsed.query)
        if text is None:
            return
        if parse(text, standard_strings=flow.standard_strings):
            prepared = Prepared(text, parsed.oids, flow.settings)
            self._calls.prepare(parsed.name, prepared)

    def _on_bind(self, message: bytes) -> None:
        bound = m.read_bind(message[5:])
        may_copy = self._copies.has(_P, bound.statement)
        self._copies.put(_B, bound.portal, may_copy=may_copy)
        given: list[Given] = []
        prepared = self._calls.prepared(bound.statement)
        if prepared:
            oids = prepared.oids
            given = [
                Given(f, data, oids[i] if i < len(oids) else 0)
                for i, (f, data) in enumerate(bound.parameters)
            ]
        self._calls.bind(bound.portal, bound.statement, given)

    def _on_execute(self, message: bytes) -> bool:
        flow = self._flow
        portal = m.Reader(message[5:]).cstring()
        bound = self._calls.bound(portal)
        self._executes += 1
        # After another Execute the same transaction may hold changes, so Postgres decides.
        if bound and self._executes == 1:
            text = bound.prepared.text
            statement = parse(text, standard_strings=flow.standard_strings)
            invocation = statement and bind(statement, bound.given, flow.encoding)
            if invocation:
                settings = bound.prepared.settings
                flow.pending = Pending(invocation, text, message, settings, extended=True)
                flow.fire("ours")
                return False
        return flow.pipeline.relays(_E, may_copy=self._copies.has(_B, portal))

    def _forget_renamed(self, low: bytes) -> None:
        """Forget all prepared calls, leaving them to the database, if SQL may redefine a name."""
        if self._calls and any(w in low for w in _RENAMING):
            self._calls.forget_all()


def dull(low: bytes) -> bool:
    """Return whether a lower-case text certainly has no Headrace call and begins no copy."""
    return _SCHEMA not in low and not may_copy_in(low)
