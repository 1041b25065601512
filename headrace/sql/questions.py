"""Questions that functions ask the engine from inside of a query; on an event loop.

``sql/pose_question.sql`` describes the locks that a question consists of.  Any role can hold such
locks in its own session, so a question is evidence of its session only: it is answered for a role
that the session may become.  Its command has a number made of the process and a random key.

Arguments follow word by word (``sql/send_arguments.sql``), encrypted, because every role can see
locks.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import psycopg
from psycopg.rows import class_row, tuple_row

from headrace.sql.commands import Taken
from headrace.sql.status import CommandStatus
from headrace.sql.verbs import VERBS

Connection = psycopg.AsyncConnection[Any]
Blocking = psycopg.Connection[Any]

_LOCK_CLASS: Final = 1_212_437_063
_SIGNAL_CLASS: Final = 1_212_437_064
_KEY_MAX: Final = (1 << 31) - 1
_SET_OPTION_SINCE: Final = 160_000
"""Postgres 16 lets a member inherit from a role without the right to SET ROLE to it."""
_SIZE_MAX: Final = 1 << 16
"""Limit of bytes of arguments; ``sql/ask_engine.sql`` has the same."""
_WORD: Final = 4
"""Bytes of arguments that a lock carries."""
_WORDS_AT: Final = 3
"""Distance of the first of these locks from the key."""
_ASKED: Final = """
WITH l AS MATERIALIZED (
  SELECT k.pid, k.classid::bigint AS class, k.objid::bigint AS key FROM pg_locks k
   WHERE k.locktype = 'advisory' AND k.objsubid = 2 AND k.granted
     AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())),
q AS MATERIALIZED (
  SELECT DISTINCT ON (l.pid) l.pid, l.key FROM l WHERE l.class = %s ORDER BY l.pid, l.key)
SELECT DISTINCT ON (q.pid) q.pid, q.key, r.key AS role, v.key AS verb, n.key AS number
  FROM q JOIN l r ON r.pid = q.pid AND r.class = q.key
  JOIN l v ON v.pid = q.pid AND v.class = q.key + 1 JOIN l n ON n.pid = q.pid AND n.class = q.key + 2
 ORDER BY q.pid, r.key, v.key, n.key"""
_WORDS: Final = """
SELECT q.n, k.classid::bigint - q.first, k.objid::bigint
  FROM unnest(%s::int[], %s::bigint[], %s::int[], %s::int[]) WITH ORDINALITY
       q (pid, first, received, words, n)
  JOIN pg_locks k ON k.pid = q.pid AND k.classid::bigint >= q.first + q.received
   AND k.classid::bigint < q.first + q.words
 WHERE k.locktype = 'advisory' AND k.objsubid = 2 AND k.granted
   AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
 ORDER BY 1, 2"""
_STANDS: Final = """
SELECT EXISTS (SELECT FROM pg_locks k WHERE k.locktype = 'advisory' AND k.objsubid = 2 AND k.granted
   AND k.classid::bigint = %s AND k.objid::bigint = %s AND k.pid = %s
   AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))"""
_JUDGED: Final = """
SELECT r.rolname, pg_has_role(a.usesysid, r.oid, %(option)s),
       (SELECT n.name FROM unnest(%(verbs)s::text[]) n(name)
         WHERE hashtext(n.name)::bigint & 4294967295 = %(verb)s)
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
       error = %(error)s::jsonb, progress = %(progress)s::jsonb,
       finished_at = CASE WHEN %(error)s::text IS NOT NULL THEN clock_timestamp() END
 WHERE id = %(id)s"""
_NOT_ALLOWED: Final = {
    "C": "42501",
    "M": "the session may not ask the engine as role {}",
    "D": "A function that runs as its owner asks as this owner, and the session may not SET ROLE to it.",
    "H": "Call it as the session's own role.",
}
_TOO_LARGE: Final = {"C": "54000", "M": "the arguments of a question may have 64 kB"}
_GARBLED: Final = {"C": "22023", "M": "the arguments of a question cannot be read"}
_GONE: Final = {"C": "57014", "M": "canceling statement due to user request"}
_RECEIVE: Final = "UPDATE headrace.commands SET progress = %s WHERE id = %s"
_RECEIVED: Final = """
UPDATE headrace.commands SET progress = %s, arguments = %s, settings = %s WHERE id = %s"""
_REFUSE: Final = """
UPDATE headrace.commands SET status = %s, error = %s, progress = NULL,
       finished_at = clock_timestamp() WHERE id = %s"""


@dataclass(frozen=True, slots=True)
class Question:
    """Question of the session with process ``pid``; every other field is untrusted input."""

    pid: int
    key: int
    role: int
    """OID of the role that asks."""
    verb: int
    """Hash of the verb's name, without a sign."""
    number: int
    """For ``what_if_hold`` the table, for every other verb the bytes of the arguments."""

    @property
    def command(self) -> int:
        """Number of its command; ``sql/pose_question.sql`` makes the same."""
        return (1 << 62) + (self.pid << 31) + self.key


class _Said(msgspec.Struct):
    """Arguments and settings of a question; untrusted input."""

    arguments: msgspec.Raw
    settings: msgspec.Raw


_SAID: Final = msgspec.json.Decoder(_Said)


@dataclass(slots=True)
class SentArguments:
    """Question whose arguments are being received."""

    question: Question
    procedure: str
    caller: str
    secret: str = field(default_factory=lambda: secrets.token_hex(32))
    said: bytearray = field(default_factory=bytearray)

    @property
    def words(self) -> int:
        """The number of words of its arguments."""
        return -(-self.question.number // _WORD)

    @property
    def received(self) -> int:
        """The number of words that have come."""
        return len(self.said) // _WORD

    def add(self, at: int, word: int) -> None:
        """Take word ``at``; one that is not the next is ignored."""
        if at == self.received < self.words:
            pad = hashlib.sha256(f"{self.secret}{at}".encode()).digest()[:_WORD]
            self.said += (word ^ int.from_bytes(pad, "big")).to_bytes(_WORD, "big")

    def command(self) -> Taken | None:
        """Return its command, once all words have come; None: they cannot be read."""
        try:
            said = _SAID.decode(self.said[: self.question.number])
            parts = bytes(said.arguments).decode(), bytes(said.settings).decode()
        except (ValueError, RecursionError):
            return None
        return Taken(self.question.command, self.procedure, *parts, self.caller)


async def asked(conn: Connection) -> list[Question]:
    """Return the questions that sessions ask now, one of each, among them those already taken."""
    async with conn.cursor(row_factory=class_row(Question)) as cursor:
        await cursor.execute(_ASKED, (_LOCK_CLASS,))
        return await cursor.fetchall()


async def take(conn: Connection, question: Question) -> Taken | SentArguments | None:
    """Write the command of a question, and return it, or the state of its arguments, if it has any.

    None: there is nothing to carry out.  A question that the session may not ask gets a failed
    command.
    """
    newer = conn.info.server_version >= _SET_OPTION_SINCE
    sought = {
        "option": "SET" if newer else "MEMBER",
        "verbs": [verb.name for verb in VERBS.values() if verb.asked],
        **{name: getattr(question, name) for name in ("pid", "role", "verb")},
    }
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(_JUDGED, sought)
        found = await cursor.fetchone()
    if found is None or found[2] is None:
        return None
    caller, allowed, name = found
    told = {"question": question.command, "table": question.number}
    arguments = {p.name: told[p.name] for p in VERBS[name].parameters if p.name in told}
    incoming = None if arguments or not question.number else SentArguments(question, name, caller)
    error = None
    if not allowed:
        error = {k: text.format(caller) for k, text in _NOT_ALLOWED.items()}
    elif incoming and question.number > _SIZE_MAX:
        error = _TOO_LARGE
    command = Taken(question.command, name, _json(arguments), "{}", caller)
    values = {
        **{"id": command.id, "name": name, "arguments": command.arguments, "pid": question.pid},
        **{"key": question.key, "role": question.role, "error": error and _json(error)},
        "progress": _progress(incoming) if incoming else None,
        "status": CommandStatus.FAILED if error else CommandStatus.RUNNING,
    }
    async with conn.transaction():
        if (await conn.execute(_INSERT, values)).rowcount != 1:
            return None
        await conn.execute(_STAMP, values)
    return None if error else incoming or command


async def receive(conn: Connection, all_: Sequence[SentArguments]) -> list[Taken]:
    """Take the words that are there; return the commands whose arguments are complete."""
    questions = [incoming.question for incoming in all_]
    sought = (
        [question.pid for question in questions],
        [question.key + _WORDS_AT for question in questions],
        [incoming.received for incoming in all_],
        [incoming.words for incoming in all_],
    )
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(_WORDS, sought)
        for number, at, word in await cursor.fetchall():
            all_[number - 1].add(at, word)
    done = []
    for incoming, before in zip(all_, sought[2], strict=True):
        if incoming.received < incoming.words:
            if incoming.received > before:
                number = incoming.question.command
                await conn.execute(_RECEIVE, (_progress(incoming), number))
        elif command := await _complete(conn, incoming):
            done.append(command)
    return done


async def _complete(conn: Connection, incoming: SentArguments) -> Taken | None:
    """Write the arguments of a command, and return it; None: it was refused."""
    command = incoming.command()
    if command is not None:
        received = _json({"received": incoming.words})
        try:
            await conn.execute(
                _RECEIVED, (received, command.arguments, command.settings, command.id)
            )
        except (psycopg.DataError, psycopg.IntegrityError):
            command = None  # Postgres accepts less than Python does
    if command is None:
        await _refuse(conn, incoming, _GARBLED)
    return command


async def give_up(conn: Connection, incoming: SentArguments) -> None:
    """End a question whose caller has gone before all words had come."""
    await _refuse(conn, incoming, _GONE)


async def _refuse(conn: Connection, incoming: SentArguments, error: Mapping[str, str]) -> None:
    await conn.execute(_REFUSE, (CommandStatus.FAILED, _json(error), incoming.question.command))


def _progress(incoming: SentArguments) -> str:
    return _json({"received": incoming.received, "secret": incoming.secret})


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
