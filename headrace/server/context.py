"""Context of a call: the role, settings and limits of the session that made it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headrace.errors import ProtocolError, UserError
from headrace.postgres.settings import AS_JSON, CAPTURED

CONTEXT_QUERY: Final = (
    f"SELECT $1::pg_catalog.text, current_user::pg_catalog.text, ({AS_JSON})::pg_catalog.text,"
    " pg_catalog.current_setting('transaction_read_only'),"
    + ",".join(
        f" pg_catalog.date_part('epoch', pg_catalog.current_setting('{name}')::pg_catalog.interval)"
        "::pg_catalog.text"
        for name in ("statement_timeout", "idle_session_timeout")
    )
)
"""Uses no operators: through the search path they could be the caller's own."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits that Postgres puts on a session, and so on a call that is made in it."""

    read_only: bool = False
    statement_timeout_s: float = 0.0
    """0: none."""
    idle_session_timeout_s: float = 0.0
    """0: none."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """The session's current role, captured settings and limits."""

    caller: str
    settings: dict[str, str]
    limits: SessionLimits = SessionLimits()


def read_context(values: Sequence[bytes | None], nonce: str, encoding: str) -> CallContext:
    """Return the context in the row that ``CONTEXT_QUERY`` gives.

    The row must carry the nonce, which was made for this one query after the source had answered
    everything that the client sent.
    """
    if len(values) != 6 or values[0] != nonce.encode():
        raise ProtocolError("the source answers what it was not asked")
    texts = [value.decode(encoding) for value in values[1:] if value is not None]
    if len(texts) != 5:
        raise ProtocolError("unexpected answer to the context query")
    caller, settings, read_only, statement, idle = texts
    limits = SessionLimits(read_only == "on", float(statement), float(idle))
    return CallContext(caller, msgspec.json.decode(settings, type=dict[str, str]), limits)


def settings_of(given: Any) -> dict[str, str]:
    """Return the settings in a row that any role may have written.

    Raises:
        UserError: they are not the captured ones, all texts.
    """
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise UserError("the settings of the call are not texts by name")
    unknown = given.keys() - set(CAPTURED)
    if unknown:
        raise UserError(f'"{min(unknown)}" is not a setting of a call')
    return dict(given)
