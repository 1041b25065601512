"""Questions of functions, from the locks of their sessions to commands (``sql/questions.py``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import psycopg

from headrace import clock
from headrace.sql import questions
from headrace.sql.commands import Taken
from headrace.sql.questions import Question, SentArguments

IDLE_S: Final = 0.2
"""Seconds between two looks for questions."""
_BUSY_S: Final = 0.003
"""As ``IDLE_S``, while arguments come."""
_SOON_S: Final = 0.01
"""As ``IDLE_S``, for a while after a question: a query may ask one for each of its rows."""
_SOON_FOR_S: Final = 1.0
_SILENCE_S: Final = 0.5
"""Seconds without a word after which no more are expected soon."""
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
        self._asked = self._heard = -_SOON_FOR_S
        """When the last question was taken, and when the last word came."""

    @property
    def incoming(self) -> list[int]:
        """Numbers of the commands whose arguments are not complete."""
        return [question.command for question in self._incoming]

    @property
    def pause_s(self) -> float:
        """Seconds until the next look."""
        now = clock.monotonic()
        if self._incoming and now - self._heard < _SILENCE_S:
            return _BUSY_S
        return _SOON_S if now - self._asked < _SOON_FOR_S else IDLE_S

    async def look(self, conn: Connection) -> None:
        """Look for questions, and for words of those that were taken."""
        found = await questions.asked(conn)
        for question in [*self._incoming.keys() - found]:
            await questions.give_up(conn, self._incoming.pop(question))
        new = [question for question in found if question not in self._known][:_TAKEN_MAX]
        self._known = self._known.intersection(found).union(new)
        for question in new:
            self._asked = clock.monotonic()
            try:
                taken = await questions.take(conn, question)
            except psycopg.errors.ConfigurationLimitExceeded:
                self._known.discard(question)  # too many commands wait: it is taken later
                continue
            if isinstance(taken, SentArguments):
                self._incoming[question] = taken
                self._heard = self._asked
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
            self._heard = clock.monotonic()
        self._incoming = {
            question: incoming
            for question, incoming in self._incoming.items()
            if incoming.received < incoming.words
        }
