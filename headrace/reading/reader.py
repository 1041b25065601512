"""Client of the processes that parse queries (``child.py``): one request at a time, with limits.

One process parses short texts, another one long texts, which take up to some seconds each.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headrace import clock
from headrace.errors import HeadraceError, SyntaxUserError, TransientError, UserError
from headrace.process.subprocess_pool import Subprocess, SubprocessPool
from headrace.reading import DIALECTS

TEXT_MAX: Final = 1_000_000
"""Maximum length of a query, in characters."""
_WAIT_S: Final = 30.0
"""Maximum seconds for an answer, on a busy machine; ``child.py`` limits the processor time."""
_PATIENCE_S: Final = 2.0
"""Maximum seconds for which planning waits for a tree: it can do without."""
_LONG: Final = 16_384
"""Length from which a text is long, in characters."""
_POLL_S: Final = 0.1
"""Seconds after which a wait checks whether it is still wanted."""
_COMPLEX: Final = "54001"
_SHORTEST: Final = b'{"do": "parse", "text": "SELECT 1"}'
_PASSED: Final = ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TZ")
"""Environment variables that are passed on; none holds a secret."""


@dataclass(frozen=True, slots=True)
class Read:
    """A parsed query: the nodes of its tree (``trees.plain``), and its formatted text."""

    nodes: list[dict[str, Any]]
    text: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """The nodes of a query's tree (``trees.plain``); None: there is none, and ``why``."""

    nodes: list[dict[str, Any]] | None
    why: str = ""


class TextReader:
    """Owner of the processes, which are started at first use; thread-safe."""

    def __init__(self, check: Callable[[], None]) -> None:
        """``check`` is called repeatedly during a request, and may raise to end it."""
        self._short = _Parser(check, lasting=True)
        self._long = _Parser(check)

    def warm(self) -> None:
        """Start the process for short texts in the background."""
        self._short.warm()

    def read(self, text: str) -> Read:
        """Parse a query in Postgres' SQL.

        Raises:
            UserError: it cannot be parsed; has the position.
        """
        found = self._ask({"do": "tree", "text": text})
        return Read(found["tree"], found["text"])

    def parsed(self, text: str) -> Parsed:
        """Return the tree of a query for planning, or the reason why there is none in time."""
        try:
            found = self._ask({"do": "parse", "text": text}, _PATIENCE_S)
        except (UserError, TransientError) as error:
            if error.code == _COMPLEX:
                self.warm()  # the process has been ended
            return Parsed(None, error.message)
        return Parsed(found["tree"])

    def tables(self, text: str, dialect: str) -> list[str]:
        """Return the tables that a query of another dialect names, as Postgres' SQL writes them.

        Raises:
            UserError: there is no such dialect, or the query cannot be parsed.
        """
        return list(self._ask({"do": "tables", "text": text, "dialect": _known(dialect)})["tables"])

    def translated(self, text: str, dialect: str, columns: Mapping[str, Mapping[str, str]]) -> str:
        """Translate a query of another dialect to Postgres' SQL.

        ``columns``: for each table of ``tables``, the name of each column's Postgres type.

        Raises:
            UserError: there is no such dialect, or the query has no exact translation; has the
                position.
        """
        asked = {"do": "translate", "text": text, "dialect": _known(dialect), "columns": columns}
        return str(self._ask(asked)["text"])

    def close(self) -> None:
        """End the processes."""
        self._short.close()
        self._long.close()

    def _ask(self, question: dict[str, Any], patience_s: float = _WAIT_S) -> dict[str, Any]:
        text = question["text"]
        if len(text) > TEXT_MAX:
            raise UserError(
                f"the query has more than {TEXT_MAX} characters, and is not read",
                sqlstate=_COMPLEX,
            )
        parser = self._short if len(text) < _LONG else self._long
        found = parser.answered(msgspec.json.encode(question), patience_s)
        if "refused" not in found:
            return found
        at = found.get("at")
        raise SyntaxUserError(
            str(found["refused"]),
            hint=found.get("hint") or None,
            position=None if at is None else int(at) + 1,
        )


class _Parser:
    """One process at a time."""

    def __init__(self, check: Callable[[], None], *, lasting: bool = False) -> None:
        self._check = check
        self._lock = threading.Lock()
        self._pool: Final = SubprocessPool(_start, lasting=lasting)

    def warm(self) -> None:
        """Let the process answer a short text, so that it is started; in the background."""
        threading.Thread(target=self._warm, name="parser-warm", daemon=True).start()

    def _warm(self) -> None:
        with contextlib.suppress(HeadraceError), self._lock:
            self._answer(_SHORTEST, _WAIT_S, lambda: None)

    def answered(self, request: bytes, patience_s: float) -> dict[str, Any]:
        """Return the answer to a request."""
        until = clock.monotonic() + patience_s
        answer = None
        with contextlib.suppress(TimeoutError), self._turn(until):
            answer = self._answer(request, until - clock.monotonic(), self._check)
        if answer is not None:
            found: dict[str, Any] = msgspec.json.decode(answer)
            return found
        raise UserError(
            "the query takes too long to be read, or too much memory",
            hint="Simplify it, or write it in Postgres' SQL, which needs no translation.",
            sqlstate=_COMPLEX,
        )

    def close(self) -> None:
        """End the process."""
        self._pool.close()

    @contextlib.contextmanager
    def _turn(self, until: float) -> Iterator[None]:
        while not self._lock.acquire(timeout=_POLL_S):
            self._check()
            if clock.monotonic() > until:
                raise TimeoutError
        try:
            yield
        finally:
            self._lock.release()

    def _answer(
        self, request: bytes, patience_s: float, interrupted: Callable[[], None]
    ) -> bytes | None:
        """Return the answer of the process; None: it has exited, or takes too long."""
        until = clock.monotonic() + patience_s

        def check() -> None:
            interrupted()
            if clock.monotonic() > until:
                raise TimeoutError

        process, answer = self._pool.take(), None
        try:
            with contextlib.suppress(TimeoutError):
                process.send(request, check)
                answer = process.receive(check)
        finally:
            if answer is None:
                process.end()
            else:
                self._pool.give_back(process)
        return answer


def _start() -> Subprocess:
    env = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return Subprocess(("-m", "headrace.reading.child"), env)


def _known(dialect: str) -> str:
    known = dialect.lower()
    if known not in DIALECTS:
        raise UserError(
            f'unknown dialect "{dialect}"', hint=f"Dialects are: {', '.join(DIALECTS)}."
        )
    return known
