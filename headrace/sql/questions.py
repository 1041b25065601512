"""Questions that functions ask the engine from inside of a query; on an event loop.

``sql/ask_engine.sql`` describes the locks that a question consists of.  Any role can hold such
locks in its own session, so a question is evidence of its session only: it is answered for a role
that the session may become.  Its command has a number made of the process and a random key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import psycopg
from psycopg.rows import class_row, tuple_row

from headrace.sql.commands import Taken
from headrace.sql.status import CommandStatus
from headrace.sql.verbs import VERBS, Parameter

Connection = psycopg.AsyncConnection[Any]
Blocking = psycopg.Connection[Any]

_LOCK_CLASS: Final = 1_212_437_063
_SIGNAL_CLASS: Final = 1_212_437_064
_KEY_MAX: Final = (1 << 31) - 1
_SET_OPTION_SINCE: Final = 160_000
"""Postgres 16 lets a member inherit from a role without the right to SET ROLE to it."""
_ASKED: Final = """
WITH l AS MATERIALIZED (
  SELECT k.pid, k.classid::bigint AS class, k.objid::bigint AS key FROM pg_locks k
   WHERE k.locktype = 'advisory' AND k.objsubid = 2 AND k.granted
     AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())),
q AS MATERIALIZED (
  SELECT DISTINCT ON (l.pid) l.pid, l.key FROM l WHERE l.class = %s ORDER BY l.pid, l.key)
SELECT DISTINCT ON (q.pid) q.pid, q.key, r.key AS role, v.key AS verb, s.key AS subject,
       f.key IS NOT NULL AS flag
  FROM q JOIN l r ON r.pid = q.pid AND r.class = q.key
  JOIN l v ON v.pid = q.pid AND v.class = q.key + 1 JOIN l s ON s.pid = q.pid AND s.class = q.key + 2
  LEFT JOIN l f ON f.pid = q.pid AND f.class = q.key + 3
 ORDER BY q.pid, r.key, v.key, s.key"""
_STANDS: Final = """
SELECT EXISTS (SELECT FROM pg_locks k WHERE k.locktype = 'advisory' AND k.objsubid = 2 AND k.granted
   AND k.classid::bigint = %s AND k.objid::bigint = %s AND k.pid = %s
   AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))"""
_JUDGED: Final = """
SELECT r.rolname, pg_has_role(a.usesysid, r.oid, %(option)s),
       (SELECT n.name FROM unnest(%(verbs)s::text[]) n(name)
         WHERE hashtext(n.name)::bigint & 4294967295 = %(verb)s),
       (SELECT format('%%I.%%I', v.schema_name, v.view_name) FROM headrace.views v WHERE v.id = %(subject)s)
  FROM pg_stat_activity a JOIN pg_roles r ON r.oid = %(role)s::bigint::oid WHERE a.pid = %(pid)s"""
# The second look at the locks shows that the process is still the one whose role was read.
_INSERT: Final = """
INSERT INTO headrace.commands (id, procedure, arguments, settings) OVERRIDING SYSTEM VALUE
SELECT %(id)s, %(name)s, %(arguments)s::jsonb, '{}' WHERE EXISTS (
       SELECT FROM pg_locks k WHERE k.locktype = 'advisory' AND k.objsubid = 2 AND k.pid = %(pid)s
          AND k.classid::bigint = %(key)s AND k.objid::bigint = %(role)s)
    ON CONFLICT DO NOTHING"""
# The trigger has stamped the row with the engine's role.
_STAMP: Final = """
UPDATE headrace.commands SET caller = %(role)s::bigint::oid, status = %(status)s,
       error = %(error)s::jsonb,
       finished_at = CASE WHEN %(error)s::text IS NOT NULL THEN clock_timestamp() END
 WHERE id = %(id)s"""
_NOT_ALLOWED: Final = {
    "C": "42501",
    "M": "the session may not ask the engine as role {}",
    "D": "A function that runs as its owner asks as this owner, and the session may not SET ROLE to it.",
    "H": "Call it as the session's own role.",
}
_DROPPED: Final = {"C": "42P01", "M": "the view was dropped meanwhile"}


@dataclass(frozen=True, slots=True)
class Question:
    """Question of the session with process ``pid``; every other field is untrusted input."""

    pid: int
    key: int
    role: int
    """OID of the role that asks."""
    verb: int
    """Hash of the verb's name, without a sign."""
    subject: int
    flag: bool

    @property
    def command(self) -> int:
        """Number of its command; ``sql/ask_engine.sql`` makes the same."""
        return (1 << 62) + (self.pid << 31) + self.key


async def asked(conn: Connection) -> list[Question]:
    """Return the questions that sessions ask now, one of each, among them those already taken."""
    async with conn.cursor(row_factory=class_row(Question)) as cursor:
        await cursor.execute(_ASKED, (_LOCK_CLASS,))
        return await cursor.fetchall()


async def take(conn: Connection, question: Question) -> Taken | None:
    """Write the command of a question, and return it; None: there is nothing to carry out.

    A question that the session may not ask gets a failed command.
    """
    newer = conn.info.server_version >= _SET_OPTION_SINCE
    sought = {
        "option": "SET" if newer else "MEMBER",
        "verbs": [verb.name for verb in VERBS.values() if verb.asked or verb.waits],
        **{name: getattr(question, name) for name in ("pid", "role", "verb", "subject")},
    }
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(_JUDGED, sought)
        found = await cursor.fetchone()
    if found is None or found[2] is None:
        return None
    caller, allowed, name, view = found
    parameters = VERBS[name].parameters
    error = None
    if not allowed:
        error = {k: text.format(caller) for k, text in _NOT_ALLOWED.items()}
    elif view is None and _about_view(parameters, question):
        error = _DROPPED
    arguments = {p.name: view for p in parameters if p.name == "name"}
    arguments |= {p.name: question.flag for p in parameters if p.kind == "bool"}
    told = {"question": question.command, "table": question.subject}
    arguments |= {p.name: told[p.name] for p in parameters if p.name in told}
    command = Taken(question.command, name, _json(arguments), "{}", caller)
    values = {
        **{"id": command.id, "name": name, "arguments": command.arguments, "pid": question.pid},
        **{"key": question.key, "role": question.role, "error": error and _json(error)},
        "status": CommandStatus.FAILED if error else CommandStatus.RUNNING,
    }
    async with conn.transaction():
        if (await conn.execute(_INSERT, values)).rowcount != 1:
            return None
        await conn.execute(_STAMP, values)
    return None if error else command


def _about_view(parameters: Sequence[Parameter], question: Question) -> bool:
    """Return whether the subject of a question must be a view."""
    return any(p.name == "name" and (p.required or question.subject) for p in parameters)


def process(command: int) -> int:
    """Return the process whose session asks the question with this command."""
    return command >> 31 & _KEY_MAX


def present(conn: Blocking, processes: Iterable[int]) -> set[int]:
    """Return those of ``processes`` that the server has."""
    found = conn.execute(
        "SELECT a.pid FROM pg_stat_activity a WHERE a.pid = ANY (%s::int[])", (list(processes),)
    )
    return {int(pid) for (pid,) in found.fetchall()}


def stands(conn: Blocking, command: int) -> bool:
    """Return whether the session still asks the question with this command."""
    row = conn.execute(_STANDS, (_LOCK_CLASS, command & _KEY_MAX, process(command))).fetchone()
    return bool(row and row[0])


@contextmanager
def answered(conn: Blocking, command: int) -> Iterator[None]:
    """Signal inside of the block that the question with this command has its answer.

    The signal is a lock: a session whose snapshot is older than the answer sees it as well.
    If another role has taken it exclusively, this session has seen a signal too early, and no
    longer asks (``stands``).
    """
    lock = (_SIGNAL_CLASS, command & _KEY_MAX)
    row: Any = conn.execute("SELECT pg_try_advisory_lock_shared(%s, %s)", lock).fetchone()
    try:
        yield
    finally:
        if row[0]:
            conn.execute("SELECT pg_advisory_unlock_shared(%s, %s)", lock)


def _json(value: Mapping[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
