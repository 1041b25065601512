"""The actions behind the demo's keys; each runs on its own thread and reports its result."""

from __future__ import annotations

import os
import signal
import threading
import webbrowser
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg import sql

from headrace import clock
from headrace.counting import counted
from headrace.embedded import shop
from headrace.embedded.engine import EmbeddedEngine
from headrace.sql.status import UNFINISHED
from headrace.sql.violations import CHANNEL

_SAID_MAX: Final = 4
_PATIENCE_S: Final = 60.0
_VIOLATED_S: Final = 3.0
"""Seconds until the order that violates the assertion is cancelled."""
_WORKER: Final = "headrace.runtime.worker"


class DemoActions:
    """Actions that are started by a key; at most one for each key at a time."""

    def __init__(self, engine: EmbeddedEngine, source: str) -> None:
        self._engine = engine
        self._source = source
        self._said: deque[str] = deque(maxlen=_SAID_MAX)
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    @property
    def said(self) -> list[str]:
        """The last reports, newest last."""
        return list(self._said)

    def press(self, key: str) -> None:
        """Start the action of ``key``, unless it is running."""
        acts = {
            "w": ("writing a burst", self._burst),
            "k": ("killing the worker", self._kill),
            "v": ("comparing each view with its query", self._verify),
            "a": ("placing an order for nothing", self._violate),
            "c": ("opening the console", self._open),
        }
        with self._lock:
            if key not in acts or key in self._busy:
                return
            self._busy.add(key)
        text, act = acts[key]
        self.say(f"{text} …")
        thread = threading.Thread(target=self._guarded, args=(key, act), daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        """Wait for the running actions."""
        for thread in self._threads:
            thread.join(_PATIENCE_S)

    def say(self, text: str) -> None:
        """Add a line to the reports."""
        self._said.append(text)

    def _guarded(self, key: str, act: Callable[[], None]) -> None:
        try:
            act()
        except (psycopg.Error, OSError, TimeoutError) as error:
            self.say(f"{key}: {str(error).strip().splitlines()[0]}")
        finally:
            with self._lock:
                self._busy.discard(key)

    def _burst(self) -> None:
        """Place many orders in one transaction; report when all views have them."""
        with psycopg.connect(self._source, autocommit=True) as conn:
            rows = shop.burst(conn)
            committed = clock.monotonic()
            self._say_seen(f"burst: {rows:,} rows in one transaction", committed)

    def _kill(self) -> None:
        """Kill the worker with SIGKILL; report when all views have caught up, and verify them."""
        pid = self._engine.child(_WORKER)
        if pid is None:
            self.say("kill: the worker is just starting")
            return
        os.kill(pid, signal.SIGKILL)
        killed = clock.monotonic()
        self._say_seen(f"kill -9 {pid}", killed)
        self._verify()

    def _violate(self) -> None:
        """Place an order that violates the assertion; report when it is noticed; cancel it."""
        with psycopg.connect(self._source, autocommit=True) as conn:
            conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(CHANNEL)))
            order = shop.give_away(conn)
            committed = clock.monotonic()
            heard = next(conn.notifies(timeout=_PATIENCE_S, stop_after=1), None)
            took_ms = (clock.monotonic() - committed) * 1000
            if heard is None:
                self.say(f"assertion: order {order} was not noticed")
            else:
                self.say(f"assertion: order {order} for nothing, notified after  {took_ms:,.0f} ms")
            clock.sleep(_VIOLATED_S)
            shop.cancel(conn, order)
            self.say(f"assertion: order {order} is cancelled")

    def _open(self) -> None:
        """Open the console in the default browser."""
        address = self._engine.console
        if address is None or not webbrowser.open(address):
            self.say("console: could not open a browser; the address is shown below")

    def _say_seen(self, text: str, since: float) -> None:
        """Wait until the views have everything committed so far; report the time it took."""
        for view in self._views():
            with psycopg.connect(self._engine.dsn, autocommit=True) as conn:
                conn.execute("CALL headrace.wait_for(%s)", (view,))
        self.say(
            f"{text}; visible in all views after  {(clock.monotonic() - since) * 1000:,.0f} ms"
        )

    def _verify(self) -> None:
        """Compare each view with its query, computed by Postgres; report the differing rows."""
        for view in self._views():
            began = clock.monotonic()
            differing = self._asked(
                sql.SQL("SELECT * FROM headrace.verify_view({})").format(sql.Literal(view))
            )
            found = f"{counted(len(differing), 'row')} DIFFER" if differing else "no row differs"
            took_s = clock.monotonic() - began
            self.say(f"verify {view}: {found} ({took_s:.1f} s)")

    def _views(self) -> list[str]:
        return [
            name
            for name, status in self._asked(
                sql.SQL("SELECT name, status FROM headrace.list_views() ORDER BY name")
            )
            if status not in UNFINISHED
        ]

    def _asked(self, statement: sql.SQL | sql.Composed) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._engine.dsn, autocommit=True) as conn:
            return list(conn.execute(statement))
