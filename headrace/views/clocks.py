"""A query as of a timestamp: functions that read the clock are replaced by a constant.

The text must be a view's query as Postgres prints it (``pg_get_viewdef``). Outside of quotes,
``CURRENT_DATE`` and its kin are then never anything else, and an unqualified ``now()`` is the one
of pg_catalog.
"""

from __future__ import annotations

from datetime import datetime

from headrace.postgres.tokens import split


def at(query: str, instant: datetime) -> str:
    """Return ``query`` with ``instant`` as the time of its transaction."""
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
