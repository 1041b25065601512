"""Placeholders ``$1`` … ``$n`` in an expression's SQL, outside of quotes and comments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from headrace.postgres.tokens import scan


def substitute(sql: str, replace: Callable[[int], str]) -> str:
    """Replace every placeholder ``$n`` by ``replace(n)``."""
    out: list[str] = []
    at = 0
    for kind, start, end in scan(sql):
        if kind == "parameter":
            out += (sql[at:start], replace(int(sql[start + 1 : end])))
            at = end
    return "".join([*out, sql[at:]])


_SHOWN_MAX: Final = 120


def shown(sqls: Iterable[str]) -> str:
    """Return expressions as shown to users, with ``…`` for each placeholder."""
    text = ", ".join(substitute(sql, lambda _: "…") for sql in sqls)
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"


def renumber(sql: str, mapping: dict[int, int]) -> str:
    """Rename each placeholder ``$n`` to ``$mapping[n]``."""
    return substitute(sql, lambda n: f"${mapping[n]}")
