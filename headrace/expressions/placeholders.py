"""Finding ``$1`` … ``$n`` in an expression's SQL, outside of everything quoted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from headrace.postgres.tokens import scan


def substitute(sql: str, replace: Callable[[int], str]) -> str:
    """``sql`` with every placeholder ``$n`` replaced by ``replace(n)``."""
    out: list[str] = []
    at = 0
    for kind, start, end in scan(sql):
        if kind == "parameter":
            out += (sql[at:start], replace(int(sql[start + 1 : end])))
            at = end
    return "".join([*out, sql[at:]])


_SHOWN_MAX: Final = 120


def shown(sqls: Iterable[str]) -> str:
    """Expressions for people, who know the arguments: placeholders are ``…``."""
    text = ", ".join(substitute(sql, lambda _: "…") for sql in sqls)
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"


def renumber(sql: str, mapping: dict[int, int]) -> str:
    """``sql`` with placeholder ``$n`` called ``$mapping[n]``."""
    return substitute(sql, lambda n: f"${mapping[n]}")
