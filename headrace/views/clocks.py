"""A query as of an instant: what reads the clock in it replaced by a constant.

The text must be Postgres' own of a view (``pg_get_viewdef``): there ``CURRENT_DATE`` and its kin
are never anything else outside of quotes, and an unqualified ``now()`` is that of the system.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

_TOKEN: Final = re.compile(
    r"""(?P<quoted>\bE'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*")
      | (?<![\w."$])(?P<now>now\(\)|transaction_timestamp\(\)|CURRENT_TIMESTAMP\b(?!\())
      | (?<![\w."$])(?P<date>CURRENT_DATE\b)
      | (?<![\w."$])(?P<local>LOCALTIMESTAMP\b(?!\())""",
    re.VERBOSE | re.DOTALL,
)


def at(query: str, instant: datetime) -> str:
    """``query`` with ``instant`` for the time of its transaction."""
    now = f"'{instant.isoformat(sep=' ')}'::pg_catalog.timestamptz"

    def replaced(found: re.Match[str]) -> str:
        match found.lastgroup:
            case "now":
                return f"({now})"
            case "date":
                return f"(({now})::pg_catalog.date)"
            case "local":
                return f"(({now})::pg_catalog.timestamp)"
            case _:
                return found[0]

    return _TOKEN.sub(replaced, query)
