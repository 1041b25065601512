"""The text of a row, as Postgres writes it, read as its values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_CUT: Final = "…"


def as_object(text: str, columns: Sequence[str]) -> dict[str, str | None]:
    """Return the values of a row by column, as texts; None: NULL.

    The text may be cut: the value at which it ends then ends with an ellipsis, and later ones are
    missing.
    """
    return dict(zip(columns, _values(text), strict=False))


def _values(text: str) -> list[str | None]:
    values: list[str | None] = []
    at, end = 1, len(text)
    while at < end:
        value, at = _value(text, at)
        values.append(value)
        if at < end and text[at] == ")":
            return values
        at += 1  # the comma
    return values


def _value(text: str, at: int) -> tuple[str | None, int]:
    """Return the value at ``at``, and where its comma or parenthesis is."""
    out: list[str] = []
    quoted = is_text = False
    while at < len(text):
        char = text[at]
        if not quoted and char in ",)":
            return ("".join(out) if is_text else None), at
        if char == "\\" or (char == '"' and quoted and text[at + 1 : at + 2] == '"'):
            at += 1
            out.append(text[at : at + 1])
        elif char == '"':
            quoted = not quoted
        else:
            out.append(char)
        is_text = True
        at += 1
    return "".join([*out, _CUT]), at
