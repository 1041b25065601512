"""Many statements in one round trip: a libpq pipeline that one Sync ends.

The server executes them one by one until one fails, and skips the rest without parsing it.
So a statement that fails unless a condition holds guards the statements after it.

Statements are prepared under Headrace's own names, from their text alone, so that the text
determines the type of each parameter.  All parameters are sent as text.
"""

from __future__ import annotations

import functools
import re
import select
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

Connection = psycopg.Connection[Any]
Row = tuple[Any, ...]

_KEPT_MAX: Final = 2_000
"""Prepared statements of a connection; further ones are planned at each execution."""
_NOT_KEPT_MAX: Final = 10 * _KEPT_MAX
"""Executions of further ones after which all are deallocated: the prepared ones may be unused."""
_NAMED: Final = re.compile(r"%\((\w+)\)s")


@dataclass(frozen=True, slots=True)
class Sent:
    """A statement with parameters ``$1``, ``$2`` …; ``kept``: it is repeated, so prepare it."""

    text: bytes
    values: Sequence[Any] = ()
    kept: bool = False

    @classmethod
    def named(cls, text: str, values: Mapping[str, Any]) -> Self:
        """Create a kept statement from a text with parameters ``%(name)s``."""
        numbered, names = _numbered(text)
        return cls(numbered, [values[name] for name in names], kept=True)


@dataclass(frozen=True, slots=True)
class Got:
    """Result of a statement: its rows, and the number of rows that it returned or changed."""

    rows: list[Row]
    count: int


class Pipelined:
    """Pipelines on one connection, between its other statements.

    REQUIRES: psycopg prepares nothing on it.  After a ROLLBACK psycopg would deallocate all
    prepared statements, also those of this class; and after a second DEALLOCATE it may miss the
    loss of its own.
    """

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._names: dict[bytes, bytes] = {}
        self._not_kept = 0
        self._stale = False

    def exchange(
        self, statements: Sequence[Sent], sent: Callable[[], None] = lambda: None
    ) -> list[Got]:
        """Execute ``statements``; ``sent`` is called after they are sent, before the answers.

        Raises:
            psycopg.Error: the error of the first failed statement; or the connection is lost.
        """
        conn = self._conn
        if self._stale or self._not_kept > _NOT_KEPT_MAX:
            conn.execute("DEALLOCATE ALL")
            self._names, self._not_kept, self._stale = {}, 0, False
        try:
            conn.pgconn.enter_pipeline_mode()
            wanted = self._send(statements)
            sent()
            answers, failed = self._read(wanted)
            conn.pgconn.exit_pipeline_mode()
        except BaseException:
            # Unread answers are still to come.
            conn.close()
            raise
        if failed is not None:
            # The PREPAREs after the failed statement were skipped.
            self._stale = True
            raise failed
        return answers

    def _send(self, statements: Sequence[Sent]) -> list[bool]:
        """Send them; return for each expected answer whether it is a statement's."""
        pgconn = self._conn.pgconn
        wanted = []
        for statement in statements:
            values = [_text(value) for value in statement.values] or None
            name = self._names.get(statement.text)
            if name is None and statement.kept and len(self._names) < _KEPT_MAX:
                name = self._names[statement.text] = b"headrace_%d" % len(self._names)
                pgconn.send_prepare(name, statement.text)
                wanted.append(False)
            if name is not None:
                pgconn.send_query_prepared(name, values)
            else:
                pgconn.send_query_params(statement.text, values)
                self._not_kept += statement.kept
            wanted.append(True)
        pgconn.pipeline_sync()
        while pgconn.flush():
            # The server may wait until its answers are read before it reads more.
            if self._wait(select.POLLIN | select.POLLOUT) & ~select.POLLOUT:
                pgconn.consume_input()
        return wanted

    def _read(self, wanted: list[bool]) -> tuple[list[Got], psycopg.Error | None]:
        pgconn = self._conn.pgconn
        answers: list[Got] = []
        failed: psycopg.Error | None = None
        place = 0
        while True:
            while pgconn.is_busy():
                self._wait(select.POLLIN)
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                if pgconn.status != pq.ConnStatus.OK:
                    raise psycopg.OperationalError("the connection is lost") from failed
                continue
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                return answers, failed
            if result.status == pq.ExecStatus.FATAL_ERROR:
                failed = failed or psycopg.errors.error_from_result(result)
            elif failed is None and wanted[place]:
                answers.append(self._answer(result))
            place += 1

    def _answer(self, result: pq.abc.PGresult) -> Got:
        rows: list[Row] = []
        if result.ntuples:
            loading = Transformer(self._conn)
            loading.set_pgresult(result)
            rows = loading.load_rows(0, result.ntuples, tuple)
        return Got(rows, result.command_tuples or 0)

    def _wait(self, events: int) -> int:
        poll = select.poll()
        poll.register(self._conn.pgconn.socket, events)
        return poll.poll()[0][1]


def _text(value: Any) -> bytes | None:
    """Return a value as Postgres reads it; a list becomes an array literal."""
    if value is None:
        return None
    if isinstance(value, list):
        value = f"{{{','.join(map(_element, value))}}}"
    return str(value).encode()


def _element(element: Any) -> str:
    if element is None:
        return "NULL"
    if not isinstance(element, str):
        return str(element)
    escaped = element.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@functools.lru_cache(maxsize=256)
def _numbered(text: str) -> tuple[bytes, tuple[str, ...]]:
    names = tuple(dict.fromkeys(_NAMED.findall(text)))
    numbered = _NAMED.sub(lambda found: f"${names.index(found[1]) + 1}", text)
    return numbered.replace("%%", "%").encode(), names
