"""Events of the engine for the page that filters them: as the logged-in role may see them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headrace.console.access import Person
from headrace.console.graph_collector import Full
from headrace.sql import seen

SHOWN_MAX: Final = 100
"""Events of one answer."""
ASKING_MAX: Final = 4
"""Limit of requests of one identity at one time: they wait for its connection."""
TEXT_MAX: Final = 200
_QUERY_S: Final = 12.0
_LEVELS: Final = {
    "": ("info", "warning", "error", "critical"),
    "warning": ("warning", "error", "critical"),
    "error": ("error", "critical"),
}
_ID_MAX: Final = 2**63 - 1


def filters_of(given: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the filters in the parameters of a request; None: they are none."""
    filters: dict[str, Any] = {}
    for name in ("view", "process", "text"):
        filters[name] = given.get(name, "").strip()
        if len(filters[name]) > TEXT_MAX or "\0" in filters[name]:
            return None
    for name in ("before", "after"):
        number = given.get(name, "")
        if number and not (
            number.isascii() and number.isdigit() and len(number) < len(str(_ID_MAX))
        ):
            return None
        filters[name] = int(number) if number else None
    levels = _LEVELS.get(given.get("level", ""))
    return None if levels is None else filters | {"levels": list(levels)}


class EventPage:
    """Answers pages of events."""

    def __init__(self) -> None:
        self._asking: Counter[str] = Counter()

    async def answer(self, person: Person, filters: dict[str, Any]) -> dict[str, Any]:
        """Return the newest events that pass the filters, and whether there are older ones.

        Raises:
            Full: too many requests of this identity are waiting.
            psycopg.Error, TimeoutError: the database does not answer.
        """
        conn = person.conn
        if conn is None:
            raise TimeoutError
        if self._asking[person.key] >= ASKING_MAX:
            raise Full("too many requests for events are running")
        self._asking[person.key] += 1
        try:
            async with asyncio.timeout(_QUERY_S):
                rows = await seen.events(conn, filters, SHOWN_MAX + 1)
        finally:
            self._asking[person.key] -= 1
            self._asking += Counter()  # drops those with a count of zero
        events = [row | {"fields": msgspec.Raw(row["fields"].encode())} for row in rows]
        return {"events": events[:SHOWN_MAX], "more": len(events) > SHOWN_MAX}
