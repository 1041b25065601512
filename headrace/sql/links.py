"""What is said of the links to workers (``add_link``), in the rows of ``headrace.nodes``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

Connection = psycopg.Connection[Any]

LATENCY_MS_MAX: Final = 60_000
BYTES_PER_S_MIN: Final = 1000


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """What a link between ``main`` and a worker is like; None: nobody knows yet."""

    latency_us: int | None = None
    """One way, microseconds."""
    bytes_per_s: int | None = None

    def over(self, measured: LinkFacts) -> LinkFacts:
        """What holds where this was said, and that was measured."""
        return LinkFacts(
            measured.latency_us if self.latency_us is None else self.latency_us,
            measured.bytes_per_s if self.bytes_per_s is None else self.bytes_per_s,
        )


def said(conn: Connection) -> dict[str, LinkFacts]:
    """What is said of links, by worker; those of which nothing is are not in it."""
    rows = conn.execute(
        "SELECT name, latency_ms * 1000, bytes_per_s FROM headrace.nodes"
        " WHERE latency_ms IS NOT NULL OR bytes_per_s IS NOT NULL"
    ).fetchall()
    return {str(name): LinkFacts(latency, rate) for name, latency, rate in rows}


def put(
    conn: Connection, worker: str, latency_ms: int | None = None, bytes_per_s: int | None = None
) -> bool:
    """Say what a link is like, or that what is measured counts; False: there is no such worker."""
    changed = conn.execute(
        "UPDATE headrace.nodes SET latency_ms = %s, bytes_per_s = %s WHERE name = %s",
        (latency_ms, bytes_per_s, worker),
    )
    return changed.rowcount > 0
