"""A Headrace call in a client session: waiting for an idle source, its context, its end.

The call begins as ``Pending``.  Then the source is asked for the caller and its settings, and only
after that the call runs.  In a transaction block, or after an error, it is relayed instead.
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

_NAME: Final = b"__headrace_"
_ANSWERS: Final = b"12DC33"
_Q, _E, _S, _ROW = b"QESD"


class Calling:
    """Steps of the call that a session waits for."""

    def __init__(self, flow: Flow, queries: Queries) -> None:
        self._flow = flow
        self._queries = queries
        self._synced = False
        self._nonce = ""
        self._context: CallContext | None = None
        self._at = 0
        """Number of answers to the context query that have come."""
        self._end: Callable[[], None] | None = None
        """Ends the call once the source has answered the last Sync."""

    @property
    def _pending(self) -> Pending:
        pending = self._flow.pending
        assert pending is not None, "there is a call"
        return pending

    # --- before the call

    def begin(self) -> None:
        """Begin with a pending call; first the source must answer all earlier messages."""
        self._synced = False
        if not self._flow.pipeline.settled:
            # (Not a Sync: if the call is relayed after all, its portal must still exist.)
            self._flow.to_source(m.FLUSH)
        self.check()

    def check(self) -> None:
        """Continue a call that waits for the barrier, once the source owes nothing."""
        flow = self._flow
        if flow.state is not SessionState.BARRIER or not flow.pipeline.settled:
            return
        pending = self._pending
        idle = flow.pipeline.status == b"I" and not flow.pipeline.ignoring
        if not self._synced and (not idle or pending.settings != flow.settings):
            # In a transaction block Postgres refuses the call, in its own state; after an error it
            # is skipped; under other settings the text may be a different statement.
            self._relay()
        elif pending.extended and not self._synced:
            # This Sync ends the implicit transaction that Parse and Bind began. The client never
            # sees its ReadyForQuery; the client's own Sync brings another.
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
        flow.pipeline.relays(_E if pending.extended else _Q)
        flow.to_source(pending.message)

    # --- answers of the source before the call

    def on_context(self, kind: int, message: bytes, *, failed: bool) -> None:
        """Process an answer to the context query.

        Raises:
            ProtocolError: it is not the next of the expected answers.
        """
        expected = _ANSWERS[self._at : self._at + 1]
        if failed or kind not in expected:
            raise _unexpected()
        self._at += 1
        if kind == _ROW:
            row = m.read_data_row(message[5:])
            self._context = read_context(row, self._nonce, self._flow.encoding)

    def on_context_ready(self, message: bytes, *, failed: bool) -> bytes:
        """Process the ReadyForQuery of the context query; return the client's bytes instead."""
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
        """Process a ReadyForQuery before the context query; return the client's bytes instead."""
        flow = self._flow
        if not self._synced:
            # Send earlier answers before anything that follows the barrier.
            flow.to_client(message)
            self.check()
        elif failed:
            flow.pending = None
            flow.fire("failed")
        else:
            self.check()
        return b""

    # --- while the call runs

    def keep_alive(self) -> None:
        """Send a Sync, so that the source does not treat the session as idle.

        The client does not see the answer.
        """
        flow = self._flow
        if flow.state is SessionState.RUNNING and not flow.keeping_alive:
            flow.keeping_alive = True
            flow.pipeline.relays(_S)
            flow.to_source(m.SYNC)

    def on_kept_alive(self) -> None:
        """Process the answer to that Sync."""
        self._flow.keeping_alive = False
        end, self._end = self._end, None
        if end is not None:
            end()

    # --- the end of the call

    def finish(self, found: m.ResultSet | None) -> None:
        """Finish the call; ``found`` is its result, if it has rows."""
        self._once_answered(lambda: self._finish(found))

    def fail(self, fields: dict[str, str]) -> None:
        """Fail the call with these fields; a position is relative to the query."""
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
            out += m.data_rows(found, flow.encoding)
        out += m.command_complete("CALL")
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
