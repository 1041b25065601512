"""A call of ours in a session: waiting until the source owes nothing, its context, its end.

It begins as ``Pending``.  Then the source is asked who calls and under which settings, and only
then it runs; in a transaction block, or after an error, it is relayed after all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.errors import ProtocolError
from headrace.server import messages as m
from headrace.server.actions import Run
from headrace.server.context import CONTEXT_QUERY, CallContext, read_context
from headrace.server.flow import Flow, Pending
from headrace.server.queries import Queries
from headrace.server.states import SessionState
from headrace.sql.verbs import VERBS

_NAME: Final = b"__headrace_"
_ANSWERS: Final = b"12DC33"
_Q, _E, _S, _ROW = b"QESD"


class Calling:
    """See the module."""

    def __init__(self, flow: Flow, queries: Queries) -> None:
        self._flow = flow
        self._queries = queries
        self._synced = False
        self._nonce = ""
        self._context: CallContext | None = None
        self._at = 0
        """How many answers to the question for the context have come."""
        self._end: Callable[[], None] | None = None
        """Ends the call once the source has answered the last Sync."""

    @property
    def _pending(self) -> Pending:
        pending = self._flow.pending
        assert pending is not None, "there is a call"
        return pending

    # --- before it

    def begin(self) -> None:
        """There is a call; what is before it is to be answered."""
        self._synced = False
        if not self._flow.pipeline.settled:
            # (While a portal of its own is there.)
            self._flow.to_source(m.FLUSH)
        self.check()

    def check(self) -> None:
        """Go on with the call if it waits for that, and once the source owes nothing."""
        flow = self._flow
        if flow.state is not SessionState.BARRIER or not flow.pipeline.settled:
            return
        pending = self._pending
        idle = flow.pipeline.status == b"I" and not flow.pipeline.ignoring
        if not self._synced and (not idle or pending.settings != flow.settings):
            # In a transaction block Postgres refuses it, in its own state; after an error
            # it is skipped; read under other settings it may be something else.
            self._relay()
        elif pending.extended and not self._synced:
            # Ends the implicit transaction that Parse and Bind began; the client never
            # sees this ReadyForQuery, its own Sync brings it another.
            self._synced = True
            self._queries.end_segment()
            flow.pipeline.relays(_S)
            flow.to_source(m.SYNC)
        else:
            self._ask()

    def _ask(self) -> None:
        flow = self._flow
        flow.fire("idle")
        self._context = None
        self._at = 0
        self._nonce = flow.rules.nonce()
        name = _NAME + self._nonce.encode()
        query = CONTEXT_QUERY.encode()
        flow.to_source(m.extended_query(name, query, self._nonce.encode()))

    def _relay(self) -> None:
        flow, pending = self._flow, self._pending
        flow.pending = None
        flow.fire("not_ours")
        flow.translate(pending.text)
        flow.pipeline.relays(_E if pending.extended else _Q)
        flow.to_source(pending.message)

    # --- what the source says meanwhile

    def on_context(self, kind: int, message: bytes, *, failed: bool) -> None:
        """One of the answers to the context query: these, in this order, and no others."""
        expected = _ANSWERS[self._at : self._at + 1]
        if failed or kind not in expected:
            raise _unexpected()
        self._at += 1
        if kind == _ROW:
            row = m.read_data_row(message[5:])
            self._context = read_context(row, self._nonce, self._flow.encoding)

    def on_context_ready(self, message: bytes, *, failed: bool) -> bytes:
        """The ReadyForQuery after it; what the client gets instead."""
        flow, pending = self._flow, self._pending
        flow.pipeline.status = message[5:6]
        if not failed and self._at == len(_ANSWERS):
            assert self._context is not None, "its row has come"
            flow.fire("answered")
            flow.act(Run(pending.invocation, self._context, flow.user))
            return b""
        if not failed:
            raise _unexpected()
        # The client has already been sent the error.
        flow.pending = None
        if pending.extended:
            flow.fire("failed")
            return b""
        flow.fire("refused")
        return message

    def on_ready(self, message: bytes, *, failed: bool) -> bytes:
        """A ReadyForQuery before it; what the client gets instead."""
        flow = self._flow
        if not self._synced:
            # What was answered before goes out before anything the barrier leads to.
            flow.to_client(message)
            self.check()
        elif failed:
            flow.pending = None
            flow.fire("failed")
        else:
            self.check()
        return b""

    # --- while it runs

    def keep_alive(self) -> None:
        """Send a Sync, so that the source does not take the session for an idle one.

        The client does not see the answer.
        """
        flow = self._flow
        if flow.state is SessionState.RUNNING and not flow.keeping_alive:
            flow.keeping_alive = True
            flow.pipeline.relays(_S)
            flow.to_source(m.SYNC)

    def on_kept_alive(self) -> None:
        """The source has answered that Sync."""
        self._flow.keeping_alive = False
        end, self._end = self._end, None
        if end is not None:
            end()

    # --- its end

    def finish(self, found: m.ResultSet | None) -> None:
        """It is done; ``found`` are its rows, if it has any."""
        self._once_answered(lambda: self._finish(found))

    def fail(self, fields: dict[str, str]) -> None:
        """It failed with these fields (position relative to the query)."""
        self._once_answered(lambda: self._fail(fields))

    def _once_answered(self, end: Callable[[], None]) -> None:
        if self._flow.keeping_alive:
            self._end = end
        else:
            end()

    def _finish(self, found: m.ResultSet | None) -> None:
        flow, pending = self._flow, self._pending
        out = b""
        if found is not None:
            if not pending.extended:
                out += m.row_description(found.columns)
            out += m.data_rows(found, pending.formats, flow.encoding)
        tag = "CALL"
        if found is not None and VERBS[pending.invocation.procedure].selected:
            tag = f"SELECT {len(found.rows)}"
        out += m.command_complete(tag)
        if not pending.extended:
            out += m.ready_for_query(flow.pipeline.status)
        flow.to_client(out)
        flow.pending = None
        flow.fire("finished")

    def _fail(self, fields: dict[str, str]) -> None:
        flow, pending = self._flow, self._pending
        shown = pending.invocation.error_fields(fields)
        flow.to_client(m.error_response(shown, encoding=flow.encoding))
        flow.pending = None
        if pending.extended:
            flow.fire("failed")
        else:
            flow.to_client(m.ready_for_query(flow.pipeline.status))
            flow.fire("finished")


def _unexpected() -> ProtocolError:
    return ProtocolError("the source answers what it was not asked")
