"""What a call needs to know of the session it was made in: role and settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headrace.errors import ProtocolError, UserError
from headrace.postgres.settings import AS_JSON, CAPTURED

CONTEXT_QUERY: Final = (
    f"SELECT $1::pg_catalog.text, current_user::pg_catalog.text, ({AS_JSON})::pg_catalog.text"
)


@dataclass(frozen=True, slots=True)
class CallContext:
    """The session's current role and captured settings."""

    caller: str
    settings: dict[str, str]


def read_context(values: Sequence[bytes | None], nonce: str, encoding: str) -> CallContext:
    """The context in the row that ``CONTEXT_QUERY`` gives.

    Only a row that carries the nonce is one: it was made up for this very question, after
    everything that the client has sent was answered.
    """
    if len(values) != 3 or values[0] != nonce.encode():
        raise ProtocolError("the source answers what it was not asked")
    if values[1] is None or values[2] is None:
        raise ProtocolError("unexpected answer to the context query")
    caller, settings = (v.decode(encoding) for v in values[1:] if v is not None)
    return CallContext(caller, msgspec.json.decode(settings, type=dict[str, str]))


def settings_of(given: Any) -> dict[str, str]:
    """Settings out of a row that anybody may have written: the captured ones, all texts.

    Raises:
        UserError: they are anything else.
    """
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise UserError("the settings of the call are not texts by name")
    unknown = given.keys() - set(CAPTURED)
    if unknown:
        raise UserError(f'"{min(unknown)}" is no setting of a call')
    return dict(given)
