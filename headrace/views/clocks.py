"""A query as of an instant: what reads the clock in it replaced by a constant.

The text must be Postgres' own of a view (``pg_get_viewdef``): there ``CURRENT_DATE`` and its kin
are never anything else outside of quotes, and an unqualified ``now()`` is that of the system.
"""

from __future__ import annotations

from datetime import datetime

from headrace.postgres.tokens import split


def at(query: str, instant: datetime) -> str:
    """``query`` with ``instant`` for the time of its transaction."""
    now = f"('{instant.isoformat(sep=' ')}'::pg_catalog.timestamptz)"
    parts = ["", *split(query), *[""] * 3]
    for place in range(2, len(parts) - 4, 2):
        before, word, behind = parts[place - 2], parts[place], parts[place + 2]
        if before == ".":
            continue
        if word in ("now", "transaction_timestamp") and behind == "(":
            if parts[place + 4] == ")":
                parts[place : place + 5] = [now, *[""] * 4]
        elif word == "CURRENT_TIMESTAMP" and behind != "(":
            parts[place] = now
        elif word == "CURRENT_DATE":
            parts[place] = f"({now}::pg_catalog.date)"
        elif word == "LOCALTIMESTAMP" and behind != "(":
            parts[place] = f"({now}::pg_catalog.timestamp)"
    return "".join(parts)
