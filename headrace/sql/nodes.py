"""Rows of ``headrace.nodes``: the workers that views may be placed on, besides ``main``."""

from __future__ import annotations

import hashlib
import hmac
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
_ON: Final = """
(v.options ->> 'placement' = {0} OR EXISTS (SELECT FROM jsonb_each_text(v.placed_parts) p WHERE p.value = {0}))"""
_LISTED: Final = f"""
SELECT n.name, n.added_at::text, count(v.id), count(v.id) FILTER (WHERE v.options ->> 'placement' = n.name),
       n.token IS NOT NULL, n.address, n.seen_at > clock_timestamp() - %s * interval '1 second', n.capacity,
       n.lost_at IS NOT NULL
  FROM headrace.nodes n LEFT JOIN headrace.views v ON {_ON.format("n.name")}
 GROUP BY n.name ORDER BY n.name"""  # noqa: S608  constants
_PLACEMENTS: Final = """
SELECT id, quote_ident(schema_name) || '.' || quote_ident(view_name), status, options -> 'placement', placed_parts
  FROM headrace.views WHERE status NOT IN ('pending', 'populating') ORDER BY id"""
_PLACED: Final = f"""
SELECT quote_ident(v.schema_name) || '.' || quote_ident(v.view_name) FROM headrace.views v
 WHERE {_ON.format("%(name)s::text")} ORDER BY 1"""  # noqa: S608  constants
_LOADS: Final = """
SELECT id, options -> 'placement', placed_parts, CASE WHEN placed_parts <> '{}' THEN plan END,
       (SELECT count(*) FROM jsonb_array_elements(plan -> 'nodes') n
         WHERE n ->> 'kind' NOT IN ('Source', 'Sink', 'Feed'))
  FROM headrace.views WHERE status <> 'error' ORDER BY id"""


@dataclass(frozen=True, slots=True)
class WorkerNode:
    """A worker."""

    name: str
    since: str
    views: int
    """How many views are placed on it, wholly or in part."""
    whole: int
    """How many wholly."""
    far: bool
    """Whether it is on another machine."""
    address: str | None
    """Where it listens there; None: it has not said so."""
    seen: bool | None
    """Whether it has said so lately."""
    capacity: int
    """Collections that strategies may place there."""
    lost: bool
    """Whether it counts as lost for good."""


@dataclass(frozen=True, slots=True)
class PlacedView:
    """Where a view is."""

    name: str
    status: str
    whole: str
    """The worker that has all of it; in parts, the one that has the rest."""
    parts: dict[str, str]


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What a view takes of workers."""

    view_id: int
    whole: str
    """The worker that has all of it; '': the one that writes has it, but for its parts."""
    parts: dict[str, str]
    plan: Any
    """As JSON, if it has parts."""
    collections: int
    """How many it has, but for sources and its sink."""


def whole(option: object) -> str:
    """The worker that has all of a view by its option ``placement``; '': it is cut, or ours."""
    named = option if isinstance(option, str) else ""
    return "" if named == MAIN or named in STRATEGIES else named


def listed(conn: Connection) -> list[WorkerNode]:
    """All of them, by name."""
    return [WorkerNode(*row) for row in conn.execute(_LISTED, (SILENCE_S,)).fetchall()]


def placements(conn: Connection) -> dict[int, PlacedView]:
    """The views that have their tables, by their ids."""
    return {
        int(n): PlacedView(str(name), str(status), whole(at) or MAIN, dict(cut))
        for n, name, status, at, cut in conn.execute(_PLACEMENTS)
    }


def loads(conn: Connection) -> list[WorkerLoad]:
    """What each view takes that has not stopped for good."""
    rows = conn.execute(_LOADS).fetchall()
    return [
        WorkerLoad(int(n), whole(at), dict(cut), plan, int(c or 0)) for n, at, cut, plan, c in rows
    ]


def known(conn: Connection, name: str) -> bool:
    """Whether there is one of that name; inside of a transaction it stays until that ends."""
    found = conn.execute("SELECT FROM headrace.nodes WHERE name = %s FOR KEY SHARE", (name,))
    return found.fetchone() is not None


def lost(conn: Connection) -> set[str]:
    """Those that count as lost for good."""
    found = conn.execute("SELECT name FROM headrace.nodes WHERE lost_at IS NOT NULL")
    return {str(name) for (name,) in found}


def lose(conn: Connection, name: str) -> None:
    """Nothing is placed on a worker from now on, until it is back (``find``)."""
    conn.execute("UPDATE headrace.nodes SET lost_at = now() WHERE name = %s", (name,))


def find(conn: Connection, name: str) -> None:
    """A worker that counted as lost is back."""
    conn.execute("UPDATE headrace.nodes SET lost_at = NULL WHERE name = %s", (name,))


def insert(conn: Connection, name: str, capacity: int) -> bool:
    """Enter one; False: there is one of that name."""
    made = conn.execute(
        "INSERT INTO headrace.nodes (name, capacity) VALUES (%s, %s) ON CONFLICT (name) DO NOTHING",
        (name, capacity),
    )
    return made.rowcount > 0


def delete(conn: Connection, name: str) -> bool:
    """Forget one; False: there is none of that name."""
    return conn.execute("DELETE FROM headrace.nodes WHERE name = %s", (name,)).rowcount > 0


def placed(conn: Connection, name: str) -> list[str]:
    """The views that are placed on it."""
    return [str(row[0]) for row in conn.execute(_PLACED, {"name": name})]


def invite(conn: Connection, name: str, digest: bytes) -> bool:
    """Enter one on another machine, or give it another token (its digest); False: it is on ours."""
    made = conn.execute(
        "INSERT INTO headrace.nodes AS n (name, token) VALUES (%s, %s) ON CONFLICT (name)"
        " DO UPDATE SET token = EXCLUDED.token, address = NULL, certificate = NULL, seen_at = NULL"
        " WHERE n.token IS NOT NULL",
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
    """Register the worker that owns ``token`` at ``address``; return the engine's certificate.

    The token is not sent.  The proof is that of SCRAM (RFC 5802): it is valid for this address and
    certificate, and only while the server's clock shows nearly the time that it was made for.
    """
    name, _, secret = token.partition(".")
    [(now,)] = conn.execute(
        "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    ).fetchall()
    proof = join_proof(secret, f"{name}\n{now}\n{address}\n{certificate.decode()}")
    [(other,)] = conn.execute(
        "SELECT headrace.join_worker(%s, %s, %s, %s, %s)",
        (name, now, proof, address, certificate.decode()),
    ).fetchall()
    return str(other).encode()


def join_proof(secret: str, message: str) -> bytes:
    """Return the secret, encrypted with a key stream that only its SHA-256 and ``message`` give."""
    plain = secret.encode()
    key = hashlib.sha256(plain).digest()
    parts = (hmac.digest(key, f"{i}\n{message}".encode(), "sha256") for i in (1, 2))
    stream = b"".join(parts)[: len(plain)]
    return bytes(a ^ b for a, b in zip(plain, stream, strict=True))
