"""A look at the result tables now and then: a view that seldom changes need not wait for a row.

Each table has a *sign*, which changes when somebody drops, renames or alters it, grants a right on
it or makes an index.  Only then is it looked at closely: a view whose table is gone or altered
stops, and what users have made of the table is written down (sink/kept.py), in case that it goes.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView

import psycopg
import structlog
from psycopg import sql

from headrace import clock
from headrace.errors import RESYNC, HeadraceError, SinkBlocked, SinkTableError
from headrace.postgres import failures, fingerprint
from headrace.runtime.book import Book
from headrace.runtime.views import Connection, View
from headrace.sink import table, trouble
from headrace.sql import results

_log = structlog.get_logger(__name__)
_Looked = tuple[str, KeysView[int]]


def unwritable(book: Book, view: View, *, lock: bool = False) -> HeadraceError | None:
    """Why a result table cannot be written; ``lock``: also whether it is locked now."""
    conn, shown = book.owner.conn, view.target.shown
    try:
        with conn.transaction():
            if lock:
                conn.execute(
                    sql.SQL("LOCK TABLE ONLY {} IN ROW EXCLUSIVE MODE NOWAIT").format(
                        view.target.identifier
                    )
                )
            table.check(conn, view.target, book.settings.publication_name)
    except SinkTableError as error:
        return error
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return SinkTableError(f"result table {shown} was dropped", hint=RESYNC)
    except psycopg.errors.LockNotAvailable:
        # The system catalog, where no lock was asked for: whoever asks comes again.
        if not lock:
            raise
        return SinkBlocked(f"result table {shown} is locked")
    except psycopg.Error as error:
        if failures.is_lost(error) or failures.is_transient(error):
            raise
        return trouble.of_view(view.target, error)
    return None


class ResultTables:
    """Those of one engine's views; every method runs on the engine's thread."""

    def __init__(self, book: Book, fail: Callable[[View, HeadraceError], None]) -> None:
        """``fail`` stops a view."""
        self._book = book
        self._fail = fail
        self._signs: dict[int, str] = {}
        self._looked: _Looked | None = None
        """The source's snapshot and the live views when all was last looked at."""
        self.due = 0.0
        """When to look next, on the monotonic clock."""

    def poll(self) -> None:
        """Look, if it is time to."""
        book = self._book
        conn = book.owner.conn
        now = clock.monotonic()
        if now < self.due:
            return
        self.due = now + book.settings.catalog_poll_ms / 1000
        live = {view.id: view for view in book.views.values() if view.live}
        if not live:
            return
        # DDL and GRANT take effect by transactions, so an idle source costs one short query.
        at: _Looked | None = (fingerprint.snapshot(conn), live.keys())
        if at == self._looked:
            return
        self._looked = None
        found = results.signs(conn, live)
        new = {i: sign for i, sign in found.items() if self._signs.get(i) != sign}
        self._signs = {i: sign for i, sign in self._signs.items() if i in live}
        sound = []
        for view_id, sign in new.items():
            try:
                wrong = unwritable(book, live[view_id])
            except psycopg.errors.LockNotAvailable:
                at = None
                continue
            if wrong is not None:
                self._fail(live[view_id], wrong)
                continue
            self._signs[view_id] = sign
            sound.append(view_id)
        if sound:
            self._note(conn, sound)
        self._looked = at

    def _note(self, conn: Connection, views: list[int]) -> None:
        try:
            results.note_kept(conn, views)
        except psycopg.Error as error:
            if failures.is_lost(error) or conn.closed:
                raise
            # Somebody drops an index just then, say.  It is noted when it changes again.
            _log.warning("grants and indexes not noted", reason=str(error))
