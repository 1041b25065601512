"""Stated properties of the links to workers (``add_link``), in the rows of ``headrace.nodes``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

Connection = psycopg.Connection[Any]

LATENCY_MS_MAX: Final = 60_000
BYTES_PER_S_MIN: Final = 1000


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """Properties of a link between ``main`` and a worker; None: not known yet."""

    latency_us: int | None = None
    """One way, microseconds."""
    bytes_per_s: int | None = None

    def over(self, measured: LinkFacts) -> LinkFacts:
        """Return these values, and those of ``measured`` where they are missing."""
        return LinkFacts(
            measured.latency_us if self.latency_us is None else self.latency_us,
            measured.bytes_per_s if self.bytes_per_s is None else self.bytes_per_s,
        )


def said(conn: Connection) -> dict[str, LinkFacts]:
    """Return the stated properties of links, by worker; links without any are left out."""
    rows = conn.execute(
        "SELECT name, latency_ms * 1000, bytes_per_s FROM headrace.nodes"
        " WHERE latency_ms IS NOT NULL OR bytes_per_s IS NOT NULL"
    ).fetchall()
    return {str(name): LinkFacts(latency, rate) for name, latency, rate in rows}


def put(
    conn: Connection, worker: str, latency_ms: int | None = None, bytes_per_s: int | None = None
) -> bool:
    """Store the stated properties of a link, or remove them; False: there is no such worker."""
    changed = conn.execute(
        "UPDATE headrace.nodes SET latency_ms = %s, bytes_per_s = %s WHERE name = %s",
        (latency_ms, bytes_per_s, worker),
    )
    return changed.rowcount > 0
