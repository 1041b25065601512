"""A session of the admin database: not relayed; its commands are handled here (``orders.py``).

The source authenticates the login as for any session, to the source's own database.  Then that
connection is closed, and the commands are answered here, by the simple and the extended protocol.
This is a part of the state machine of ``protocol.py``: in state ORDERED a command is running
(``desk.py``), and nothing more is read.

There are no transactions: a command takes effect at once.  BEGIN and similar statements are
answered so that drivers work that send them unasked.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.errors import HeadraceError, ProtocolError, UnsupportedError, UserError
from headrace.server import messages as m
from headrace.server import orders
from headrace.server.actions import Carry, Close
from headrace.server.flow import Flow
from headrace.server.orders import Order
from headrace.server.states import SessionState
from headrace.types import INT2, INT4, INT8, TEXT, UNKNOWN, VARCHAR

_NAMES_MAX: Final = 100
"""Limit of statements, and of portals, per client."""
_NO_DATA, _PARSED, _BOUND = m.message(b"n"), m.message(b"1"), m.message(b"2")
_CLOSED, _EMPTY, _SUSPENDED = m.message(b"3"), m.message(b"I"), m.message(b"s")
_INTEGERS: Final = {INT2: "!h", INT4: "!i", INT8: "!q"}
_TEXTS: Final = frozenset((TEXT, VARCHAR, UNKNOWN))
_SYNC, _TERMINATE, _QUERY = b"SXQ"
_IGNORED: Final = frozenset(b"Hdcf")
"""Flush, because nothing is held back; and COPY data, which Postgres ignores outside of a COPY."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    order: Order
    oid: int = INT8
    """Type of its parameter, if it has one."""


@dataclass(slots=True)
class _Portal:
    order: Order
    formats: tuple[int, ...]
    rows: m.ResultSet | None = None
    """Remaining rows, once the portal was executed."""


@dataclass(frozen=True, slots=True)
class Carried:
    """Outcome of a command."""

    tag: str
    found: m.ResultSet | None = None
    notices: Sequence[str] = ()


class Admin:
    """Protocol handler of one session of the admin database."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._prepared: dict[bytes, _Prepared] = {}
        self._portals: dict[bytes, _Portal] = {}
        self._skipping = False
        """Whether messages up to a Sync are ignored, after an error."""
        self._status = b"I"
        self._portal: _Portal | None = None
        """Portal of the running command; None: it came by the simple protocol."""
        self._limit = 0
        self._steps: dict[int, Callable[[bytes], None]] = {
            ord("P"): self._on_parse,
            ord("B"): self._on_bind,
            ord("D"): self._on_describe,
            ord("E"): self._on_execute,
            ord("C"): self._on_close,
            ord("F"): self._on_function,
        }

    def read(self) -> None:
        """Process the client's messages as far as possible now."""
        flow = self._flow
        while flow.state is SessionState.ADMIN and len(flow.client) >= m.HEADER_BYTES:
            kind = flow.client[0]
            (length,) = struct.unpack_from("!i", flow.client, 1)
            m.check_length(kind, length)
            if length > flow.rules.statement_bytes_max:
                flow.die("the message is too long for the admin database", "54000")
                return
            if len(flow.client) <= length:
                return
            body = bytes(flow.client[m.HEADER_BYTES : length + 1])
            del flow.client[: length + 1]
            self._on_message(kind, body)

    def finish(self, carried: Carried) -> None:
        """Finish the running command."""
        flow, portal = self._flow, self._portal
        for text in carried.notices:
            flow.to_client(m.notice_response(text, encoding=flow.encoding))
        flow.fire("carried_out")
        if portal is not None:
            portal.rows = carried.found
            self._send_rows(portal, self._limit, carried.tag)
            return
        out = b""
        if carried.found is not None:
            out = m.row_description(carried.found.columns)
            out += m.data_rows(carried.found, (), flow.encoding)
        flow.to_client(out + m.command_complete(carried.tag) + self._ready())

    def fail(self, fields: dict[str, str]) -> None:
        """Fail the running command."""
        self._flow.fire("carried_out")
        self._refuse(fields, simple=self._portal is None)

    # --- messages

    def _on_message(self, kind: int, body: bytes) -> None:
        if kind == _TERMINATE:
            self._flow.close(Close())
        elif kind == _QUERY:
            self._skipping = False
            self._tried(self._on_query, body, simple=True)
        elif kind == _SYNC:
            self._skipping = False
            self._portals.pop(b"", None)
            self._flow.to_client(self._ready())
        elif kind in _IGNORED or self._skipping:
            return
        elif step := self._steps.get(kind):
            self._tried(step, body, simple=kind == ord("F"))
        else:
            raise ProtocolError(f"invalid frontend message type {kind}")

    def _tried(self, step: Callable[[bytes], None], body: bytes, *, simple: bool) -> None:
        try:
            step(body)
        except ProtocolError:
            raise
        except HeadraceError as error:
            self._refuse(error.fields(), simple=simple)

    def _refuse(self, fields: dict[str, str], *, simple: bool) -> None:
        if self._status == b"T":
            self._status = b"E"
        out = m.error_response(fields, encoding=self._flow.encoding)
        self._skipping = not simple
        self._flow.to_client(out + self._ready() if simple else out)

    def _ready(self) -> bytes:
        return m.ready_for_query(self._status)

    def _on_query(self, body: bytes) -> None:
        self._prepared.pop(b"", None)
        self._portals.pop(b"", None)
        order = orders.read(self._text(body.rstrip(b"\x00")))
        if order.parameters:
            raise UserError("there is no parameter $1", sqlstate="42P02")
        if self._silently(order):
            self._flow.to_client(self._ready())
        else:
            self._carry(order, None)

    def _on_parse(self, body: bytes) -> None:
        parsed = m.read_parse(body)
        self._room(self._prepared, parsed.name, "42P05")
        order = orders.read(self._text(parsed.query))
        oid = parsed.oids[0] if parsed.oids and parsed.oids[0] else INT8
        self._prepared[parsed.name] = _Prepared(order, oid)
        self._flow.to_client(_PARSED)

    def _on_bind(self, body: bytes) -> None:
        bound = m.read_bind(body)
        prepared = self._statement(bound.statement)
        order = prepared.order
        if len(bound.parameters) != order.parameters:
            raise UserError(
                f"{len(bound.parameters)} parameters are given, {order.parameters} are needed",
                sqlstate="08P01",
            )
        columns = order.columns or ()
        if len(bound.result_formats) not in (0, 1, len(columns)):
            raise UserError("the number of result formats is wrong", sqlstate="08P01")
        if bound.parameters:
            order = replace(order, number=self._number(prepared.oid, *bound.parameters[0]))
        self._room(self._portals, bound.portal, "42P03")
        self._portals[bound.portal] = _Portal(order, bound.result_formats)
        self._flow.to_client(_BOUND)

    def _on_describe(self, body: bytes) -> None:
        kind, name = body[:1], m.Reader(body[1:]).cstring()
        if kind == b"P":
            portal = self._bound(name)
            columns, formats = portal.order.columns, portal.formats
        else:
            prepared = self._statement(name)
            order = prepared.order
            given = struct.pack("!h", order.parameters)
            given += struct.pack("!I", prepared.oid) * order.parameters
            self._flow.to_client(m.message(b"t", given))
            columns, formats = order.columns, ()
        self._flow.to_client(m.row_description(columns, formats) if columns else _NO_DATA)

    def _on_execute(self, body: bytes) -> None:
        reader = m.Reader(body)
        portal, limit = self._bound(reader.cstring()), reader.int32()
        if portal.rows is not None:
            self._send_rows(portal, limit, "SHOW")
        elif not self._silently(portal.order):
            self._limit = limit
            self._carry(portal.order, portal)

    def _on_close(self, body: bytes) -> None:
        kept = self._portals if body[:1] == b"P" else self._prepared
        kept.pop(m.Reader(body[1:]).cstring(), None)
        self._flow.to_client(_CLOSED)

    def _on_function(self, body: bytes) -> None:
        raise UnsupportedError("the admin database has no functions")

    # --- parts of it

    def _text(self, data: bytes) -> str:
        text = self._flow.decode(data)
        if text is None:
            raise UserError("the text cannot be read in its encoding", sqlstate="22021")
        return text

    def _silently(self, order: Order) -> bool:
        """Answer a command that needs no action; return whether it was one."""
        if self._status == b"E" and order.verb not in ("commit", "end", "rollback", "abort"):
            raise UserError(
                "current transaction is aborted, commands ignored until end of transaction block",
                sqlstate="25P02",
            )
        if order == orders.EMPTY:
            self._flow.to_client(_EMPTY)
            return True
        tag = order.silent
        if tag is None:
            return False
        if order.verb in ("begin", "start"):
            self._status = b"T"
        elif tag in ("COMMIT", "ROLLBACK"):
            tag = "ROLLBACK" if self._status == b"E" else tag
            self._status = b"I"
        elif order.verb == "deallocate":
            if order.subject:
                self._prepared.pop(order.subject.encode(), None)
            else:
                self._prepared.clear()
        self._flow.to_client(m.command_complete(tag))
        return True

    def _carry(self, order: Order, portal: _Portal | None) -> None:
        self._portal = portal
        self._flow.fire("ordered")
        self._flow.act(Carry(order, self._flow.user))

    def _send_rows(self, portal: _Portal, limit: int, tag: str) -> None:
        """Send the next rows of a portal; all remaining ones if ``limit`` is 0."""
        flow, found = self._flow, portal.rows
        if found is None:
            flow.to_client(m.command_complete(tag))
            return
        count = limit if limit > 0 else len(found.rows)
        now = m.ResultSet(found.columns, found.rows[:count])
        portal.rows = m.ResultSet(found.columns, found.rows[count:])
        out = m.data_rows(now, portal.formats, flow.encoding)
        more = limit > 0 and len(now.rows) == limit
        flow.to_client(out + (_SUSPENDED if more else m.command_complete(tag)))

    def _statement(self, name: bytes) -> _Prepared:
        found = self._prepared.get(name)
        if found is None:
            raise UserError("the prepared statement does not exist", sqlstate="26000")
        return found

    def _bound(self, name: bytes) -> _Portal:
        found = self._portals.get(name)
        if found is None:
            raise UserError("the portal does not exist", sqlstate="34000")
        return found

    def _room(self, kept: dict[bytes, _Prepared] | dict[bytes, _Portal], name: bytes, taken: str
              ) -> None:  # fmt: skip
        if name and name in kept:
            raise UserError("the name is taken already", sqlstate=taken)
        if len(kept) >= _NAMES_MAX and name not in kept:
            raise UserError(f"more than {_NAMES_MAX} are not kept here", sqlstate="53400")

    def _number(self, oid: int, form: int, data: bytes | None) -> int:
        """Return the session id in a value of Bind, of type ``oid`` and in format ``form``."""
        if data is None:
            raise UserError("the session must not be null", sqlstate="22004")
        if oid in _INTEGERS and form == 1:
            pattern = _INTEGERS[oid]
            if len(data) != struct.calcsize(pattern):
                raise UserError(
                    "incorrect binary data format in bind parameter 1", sqlstate="22P03"
                )
            return int(struct.unpack(pattern, data)[0])
        if oid not in _INTEGERS and oid not in _TEXTS:
            raise UserError("a session is a whole number", sqlstate="42804")
        return orders.read_number(self._text(data))
