"""Our own errors in place of the database's, for Headrace calls that were relayed."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.server import messages as m
from headrace.server.procedures import ALONE_HINT
from headrace.server.statements import contains_call


@dataclass(frozen=True, slots=True)
class Translation:
    """Error codes of the source, and the fields that replace such an error."""

    codes: frozenset[str]
    fields: dict[str, str]

    def of(self, message: bytes, encoding: str) -> bytes:
        """Return the ErrorResponse to show to the client."""
        if m.read_report(message[5:]).get("C") in self.codes:
            return m.error_response(self.fields, encoding=encoding)
        return message


def translation(text: str, *, standard_strings: bool) -> Translation | None:
    """Return the translation of errors about ``text``; None if it has no Headrace call."""
    name = contains_call(text, standard_strings=standard_strings)
    if name is None:
        return None
    fields = {
        "C": "25001",
        "M": f"CALL headrace.{name} cannot run inside a transaction block",
        "H": ALONE_HINT,
    }
    return Translation(frozenset(("2D000",)), fields)
