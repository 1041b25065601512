"""Questions of functions, from the locks of their sessions to commands (``sql/questions.py``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import psycopg

from headrace.sql import questions
from headrace.sql.commands import Taken
from headrace.sql.questions import Question, SentArguments

_PAUSE_S_MIN: Final = 0.003
"""Seconds between two looks while arguments come, or a query asks for each of its rows."""
_PAUSE_S_MAX: Final = 0.2
_GROWTH: Final = 1.1
"""Factor by which the pause grows with each look that finds nothing new."""
_TAKEN_MAX: Final = 16
"""Limit of questions taken at once."""

Connection = psycopg.AsyncConnection[Any]


class QuestionTaker:
    """Takes questions, and begins their commands."""

    def __init__(self, begin: Callable[[Taken], None]) -> None:
        """Take ``begin``, which begins a command."""
        self._begin = begin
        self._known: set[Question] = set()
        self._incoming: dict[Question, SentArguments] = {}
        self.pause_s = _PAUSE_S_MAX
        """Seconds until the next look."""

    @property
    def incoming(self) -> list[int]:
        """Numbers of the commands whose arguments are not complete."""
        return [question.command for question in self._incoming]

    async def look(self, conn: Connection) -> None:
        """Look for questions, and for words of those that were taken."""
        self.pause_s = min(self.pause_s * _GROWTH, _PAUSE_S_MAX)
        found = await questions.asked(conn)
        for question in [*self._incoming.keys() - found]:
            await questions.give_up(conn, self._incoming.pop(question))
        new = [question for question in found if question not in self._known][:_TAKEN_MAX]
        self._known = self._known.intersection(found).union(new)
        for question in new:
            try:
                taken = await questions.take(conn, question)
            except psycopg.errors.ConfigurationLimitExceeded:
                self._known.discard(question)  # too many commands wait: it is taken later
                continue
            self.pause_s = _PAUSE_S_MIN
            if isinstance(taken, SentArguments):
                self._incoming[question] = taken
            elif taken is not None:
                self._begin(taken)
        if self._incoming:
            await self._receive(conn)

    async def _receive(self, conn: Connection) -> None:
        all_ = [*self._incoming.values()]
        before = sum(incoming.received for incoming in all_)
        for command in await questions.receive(conn, all_):
            self._begin(command)
        if sum(incoming.received for incoming in all_) > before:
            self.pause_s = _PAUSE_S_MIN
        self._incoming = {
            question: incoming
            for question, incoming in self._incoming.items()
            if incoming.received < incoming.words
        }
