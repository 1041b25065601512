"""Rows of ``headrace.nodes``: the workers that views may be placed on, besides ``main``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

Connection = psycopg.Connection[Any]

JOIN_S: Final = 10.0
"""How often a worker on another machine says where it is."""
SILENCE_S: Final = 3 * JOIN_S
"""After which it is taken for lost."""
MAIN: Final = "main"
"""The worker that takes what comes and writes what goes, which no row is of."""
STRATEGIES: Final = ("auto", "bottom_up", "top_down", "ifcop", "exact")
"""What stands instead of a worker's name, and so is none."""
_LISTED: Final = """
SELECT n.name, n.added_at::text, count(v.id), n.token IS NOT NULL, n.address,
       n.seen_at > clock_timestamp() - %s * interval '1 second'
  FROM headrace.nodes n LEFT JOIN headrace.views v ON v.options ->> 'placement' = n.name
 GROUP BY n.name ORDER BY n.name"""
_PLACEMENTS: Final = """
SELECT id, quote_ident(schema_name) || '.' || quote_ident(view_name),
       coalesce(options ->> 'placement', %s) FROM headrace.views WHERE status = 'running' ORDER BY id"""
_PLACED: Final = """
SELECT quote_ident(schema_name) || '.' || quote_ident(view_name) FROM headrace.views
 WHERE options ->> 'placement' = %s ORDER BY 1"""


@dataclass(frozen=True, slots=True)
class WorkerNode:
    """A worker."""

    name: str
    since: str
    views: int
    """How many views are placed on it."""
    far: bool
    """Whether it is on another machine."""
    address: str | None
    """Where it listens there; None: it has not said so."""
    seen: bool | None
    """Whether it has said so lately."""


def whole(option: object) -> str:
    """The worker that has all of a view whose option ``placement`` this is; '': it is cut, or ours."""
    named = option if isinstance(option, str) else ""
    return "" if named == MAIN or named in STRATEGIES else named


def listed(conn: Connection) -> list[WorkerNode]:
    """All of them, by name."""
    return [WorkerNode(*row) for row in conn.execute(_LISTED, (SILENCE_S,)).fetchall()]


def placements(conn: Connection) -> dict[int, tuple[str, str]]:
    """Names and workers of the views that run, by their ids."""
    rows = conn.execute(_PLACEMENTS, (MAIN,)).fetchall()
    return {int(number): (str(name), str(worker)) for number, name, worker in rows}


def known(conn: Connection, name: str) -> bool:
    """Whether there is one of that name; inside of a transaction it stays until that ends."""
    found = conn.execute("SELECT FROM headrace.nodes WHERE name = %s FOR KEY SHARE", (name,))
    return found.fetchone() is not None


def insert(conn: Connection, name: str) -> bool:
    """Enter one; False: there is one of that name."""
    made = conn.execute(
        "INSERT INTO headrace.nodes (name) VALUES (%s) ON CONFLICT (name) DO NOTHING", (name,)
    )
    return made.rowcount > 0


def delete(conn: Connection, name: str) -> bool:
    """Forget one; False: there is none of that name."""
    return conn.execute("DELETE FROM headrace.nodes WHERE name = %s", (name,)).rowcount > 0


def placed(conn: Connection, name: str) -> list[str]:
    """The views that are placed on it."""
    return [str(row[0]) for row in conn.execute(_PLACED, (name,))]


def invite(conn: Connection, name: str, digest: bytes) -> bool:
    """Enter one on another machine, or give it another token (its digest); False: it is on ours."""
    made = conn.execute(
        "INSERT INTO headrace.nodes AS n (name, token) VALUES (%s, %s) ON CONFLICT (name)"
        " DO UPDATE SET token = EXCLUDED.token WHERE n.token IS NOT NULL",
        (name, digest),
    )
    return made.rowcount > 0


def whereabouts(conn: Connection, name: str) -> tuple[str, bytes] | None:
    """Address and certificate of one on another machine; None: it is not known to be there."""
    found = conn.execute(
        "SELECT address, certificate FROM headrace.nodes WHERE name = %s AND token IS NOT NULL"
        " AND address IS NOT NULL",
        (name,),
    ).fetchone()
    return None if found is None else (str(found[0]), str(found[1]).encode())


def join(conn: Connection, token: str, address: str, certificate: bytes) -> bytes:
    """Say where the worker with ``token`` listens; returns the certificate of its engine."""
    [(other,)] = conn.execute(
        "SELECT headrace.join_worker(%s, %s, %s)", (token, address, certificate.decode())
    ).fetchall()
    return str(other).encode()
