"""``headrace logs``: the events of all processes on this machine, out of their files.

It needs neither a running server nor the database.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from headrace import clock, events
from headrace.errors import HeadraceError
from headrace.event_files import EventTail, LoggedEvent

_LOOK_S: Final = 0.2
_AT_ONCE: Final = 1_000

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events are shown: of a view (its name or qualified name), from a level on."""

    view: str | None
    level: str

    def passes(self, event: LoggedEvent) -> bool:
        """Return whether ``event`` is shown."""
        if events.LEVELS.get(event.level, 0) < events.LEVELS[self.level]:
            return False
        if self.view is None:
            return True
        view = str(event.fields.get("view", event.fields.get("assertion", "")))
        return self.view in (view, view.rpartition(".")[2])


def run(folder: Path, say: Say, shown: EventFilter, *, last: int, follow: bool, raw: bool) -> int:
    """Say the ``last`` events; ``follow``: and new ones, until Ctrl-C.  ``raw``: as JSON lines.

    Raises:
        HeadraceError: there are no events in ``folder``.
    """
    if not folder.is_dir():
        raise HeadraceError(
            f'no server has written events in "{folder}"',
            hint="Name the data directory of the server with --data-dir or HEADRACE_DATA_DIR.",
            sqlstate="22023",
        )
    tail = EventTail(folder)
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(tail):
        found = sorted(_all(tail, shown), key=lambda event: event.at)
        _say_all(found[max(len(found) - last, 0) :], say, raw=raw)
        while follow:
            _say_all(sorted(_all(tail, shown), key=lambda event: event.at), say, raw=raw)
            sys.stdout.flush()
            clock.sleep(_LOOK_S)
    return 0


def _all(tail: EventTail, shown: EventFilter) -> list[LoggedEvent]:
    found: list[LoggedEvent] = []
    while read := tail.read(_AT_ONCE):
        found += (event for event in read if shown.passes(event))
    return found


def _say_all(found: Iterable[LoggedEvent], say: Say, *, raw: bool) -> None:
    for event in found:
        names = ("event", "level", "process", "pid", "view_id")
        main = {name: found for name in names if (found := getattr(event, name)) is not None}
        if raw:
            say(msgspec.json.encode({"at": event.at, **main, **event.fields}).decode())
        else:
            at = event.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
            say(events.text({"timestamp": at, **main, **event.fields}))
