"""Events of the engine for the page that filters them: as the logged-in role may see them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from headrace.console.access import Person
from headrace.console.graph_collector import Full
from headrace.sql import seen

SHOWN_MAX: Final = 100
"""Events of one answer."""
ASKING_MAX: Final = 16
"""Limit of requests of one identity at one time: one is answered, the others wait."""
TEXT_MAX: Final = 200
QUERY_S: Final = 4.0
"""Less than the time that other queries wait for the connection."""
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


@dataclass(slots=True)
class _Turn:
    """The requests of one identity."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    asking: int = 0


class EventPage:
    """Answers pages of events, one at a time for each identity."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    async def answer(self, person: Person, filters: dict[str, Any]) -> dict[str, Any]:
        """Return the newest events that pass the filters, and whether there are older ones.

        Raises:
            Full: too many requests of this identity are waiting.
            psycopg.Error, TimeoutError: the database does not answer.
        """
        turn = self._turns.setdefault(person.key, _Turn())
        if turn.asking >= ASKING_MAX:
            raise Full("too many requests for events are running")
        turn.asking += 1
        try:
            async with turn.lock:
                rows = await _rows(person, filters)
        finally:
            turn.asking -= 1
            if not turn.asking:
                self._turns.pop(person.key, None)
        events = [row | {"fields": msgspec.Raw(row["fields"].encode())} for row in rows]
        return {"events": events[:SHOWN_MAX], "more": len(events) > SHOWN_MAX}


async def _rows(person: Person, filters: dict[str, Any]) -> list[dict[str, Any]]:
    conn = person.conn
    if conn is None:
        raise TimeoutError
    async with asyncio.timeout(QUERY_S):
        return await seen.events(conn, filters, SHOWN_MAX + 1)
