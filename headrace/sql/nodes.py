"""Rows of ``headrace.nodes``: the workers that views may be placed on, besides ``main``."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Any, Final

import psycopg

Connection = psycopg.Connection[Any]

JOIN_S: Final = 10.0
"""Seconds between two reports of its address by a worker on another machine."""
SILENCE_S: Final = 3 * JOIN_S
"""Seconds of silence after which it is considered lost."""
MAIN: Final = "main"
"""The worker that reads the stream and writes result tables; it has no row."""
EXECUTOR: Final = "headrace_"
"""Prefix of the names of executors: workers here that the engine itself adds and removes."""
STRATEGIES: Final = ("auto", "bottom_up", "top_down", "ifcop", "exact")
"""Values that may stand in place of a worker's name, and so are not names of workers."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,19}")
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
    """Worker other than ``main``."""

    name: str
    since: str
    views: int
    """Number of views placed on it, wholly or in part."""
    whole: int
    """Number of views placed on it wholly."""
    far: bool
    """Whether it is on another machine."""
    address: str | None
    """Address at which it listens; None: not reported."""
    seen: bool | None
    """Whether it has reported that lately."""
    capacity: int
    """Number of collections that strategies may place there."""
    lost: bool
    """Whether it is considered lost for good."""


@dataclass(frozen=True, slots=True)
class PlacedView:
    """Placement of a view."""

    name: str
    status: str
    whole: str
    """The worker that has all of it, or all but its ``parts``."""
    parts: dict[str, str]


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """Load of a view on workers."""

    view_id: int
    whole: str
    """The worker that has all of it; '': ``main`` has it, except its ``parts``."""
    parts: dict[str, str]
    plan: Any
    """Plan as JSON, if the view has parts."""
    collections: int
    """Number of its collections, without sources and sink."""


def is_name(name: str) -> bool:
    """Return whether a worker may have that name; some of them have a meaning of their own."""
    return _NAME.fullmatch(name) is not None


def is_executor(name: str) -> bool:
    """Return whether a worker is an executor."""
    return name.startswith(EXECUTOR)


def whole(option: object) -> str:
    """Return the worker of a whole view by its option ``placement``; '': ``main``, or in parts."""
    named = option if isinstance(option, str) else ""
    return "" if named == MAIN or named in STRATEGIES else named


def listed(conn: Connection) -> list[WorkerNode]:
    """Return all workers, by name."""
    return [WorkerNode(*row) for row in conn.execute(_LISTED, (SILENCE_S,)).fetchall()]


def placements(conn: Connection) -> dict[int, PlacedView]:
    """Return the placement of each view that has its table, by id."""
    return {
        int(n): PlacedView(str(name), str(status), whole(at) or MAIN, dict(cut))
        for n, name, status, at, cut in conn.execute(_PLACEMENTS)
    }


def loads(conn: Connection) -> list[WorkerLoad]:
    """Return the load of each view that is not in error."""
    rows = conn.execute(_LOADS).fetchall()
    return [
        WorkerLoad(int(n), whole(at), dict(cut), plan, int(c or 0)) for n, at, cut, plan, c in rows
    ]


def lock_existing(conn: Connection, name: str) -> bool:
    """Return whether a worker of that name exists; lock it until the transaction ends."""
    found = conn.execute("SELECT FROM headrace.nodes WHERE name = %s FOR KEY SHARE", (name,))
    return found.fetchone() is not None


def lost_workers(conn: Connection) -> set[str]:
    """Return the workers that count as lost for good."""
    found = conn.execute("SELECT name FROM headrace.nodes WHERE lost_at IS NOT NULL")
    return {str(name) for (name,) in found}


def lose(conn: Connection, name: str) -> None:
    """Mark a worker as lost: nothing is placed on it until it is back (``find``)."""
    conn.execute("UPDATE headrace.nodes SET lost_at = now() WHERE name = %s", (name,))


def find(conn: Connection, name: str) -> None:
    """Mark a lost worker as back."""
    conn.execute("UPDATE headrace.nodes SET lost_at = NULL WHERE name = %s", (name,))


def insert(conn: Connection, name: str, capacity: int) -> bool:
    """Add a worker; return False if the name is taken."""
    made = conn.execute(
        "INSERT INTO headrace.nodes (name, capacity) VALUES (%s, %s) ON CONFLICT (name) DO NOTHING",
        (name, capacity),
    )
    return made.rowcount > 0


def delete(conn: Connection, name: str) -> bool:
    """Delete a worker; return False if there is none of that name."""
    return conn.execute("DELETE FROM headrace.nodes WHERE name = %s", (name,)).rowcount > 0


def placed(conn: Connection, name: str) -> list[str]:
    """Return the views that are placed on a worker."""
    return [str(row[0]) for row in conn.execute(_PLACED, {"name": name})]


def invite(conn: Connection, name: str, digest: bytes) -> bool:
    """Add a remote worker, or replace its token (by digest); False: the worker is a local one."""
    made = conn.execute(
        "INSERT INTO headrace.nodes AS n (name, token) VALUES (%s, %s) ON CONFLICT (name)"
        " DO UPDATE SET token = EXCLUDED.token, address = NULL, certificate = NULL, seen_at = NULL"
        " WHERE n.token IS NOT NULL",
        (name, digest),
    )
    return made.rowcount > 0


def where_placed(conn: Connection, name: str) -> tuple[str, bytes] | None:
    """Return address and certificate of a remote worker; None: it has not joined."""
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
