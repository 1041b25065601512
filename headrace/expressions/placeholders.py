"""Finding ``$1`` … ``$n`` in an expression's SQL, outside of everything quoted.

A small tokenizer of Postgres' lexical rules: string literals (standard and ``E''`` with
backslashes), quoted identifiers, dollar quotes, comments.  Source: Postgres manual, 4.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_TOKEN: Final = re.compile(
    r"""
      (?P<quoted>
          (?:(?<![A-Za-z0-9_$\x80-\U0010ffff])[eE])'(?:[^'\\]|''|\\.)*'
        | '(?:[^']|'')*'
        | "(?:[^"]|"")*"
        | --[^\n]*
      )
    | (?P<open>/\*)
    | (?P<dollar>\$(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?\$)
    | (?P<word>[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*)
    | \$(?P<number>[0-9]+)
    """,
    re.VERBOSE | re.DOTALL,
)


def substitute(sql: str, replace: Callable[[int], str]) -> str:
    """``sql`` with every placeholder ``$n`` replaced by ``replace(n)``."""
    out: list[str] = []
    at = 0
    while match := _TOKEN.search(sql, at):
        out.append(sql[at : match.start()])
        at = _end(sql, match)
        number = match["number"]
        out.append(replace(int(number)) if number else sql[match.start() : at])
    out.append(sql[at:])
    return "".join(out)


def renumber(sql: str, mapping: dict[int, int]) -> str:
    """``sql`` with placeholder ``$n`` called ``$mapping[n]``."""
    return substitute(sql, lambda n: f"${mapping[n]}")


def _end(sql: str, match: re.Match[str]) -> int:
    """Where the token that starts at ``match`` ends."""
    if match["open"]:
        return _comment_end(sql, match.end())
    if tag := match["dollar"]:
        close = sql.find(tag, match.end())
        return len(sql) if close < 0 else close + len(tag)
    return match.end()


def _comment_end(sql: str, at: int) -> int:
    depth = 1  # Postgres' block comments nest
    while depth:
        opened, closed = sql.find("/*", at), sql.find("*/", at)
        if closed < 0:
            return len(sql)
        if 0 <= opened < closed:
            depth, at = depth + 1, opened + 2
        else:
            depth, at = depth - 1, closed + 2
    return at
