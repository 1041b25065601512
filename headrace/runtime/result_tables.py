"""A look at the result tables now and then: a view that changes seldom need not wait for its next row.

Each table has a *sign*, which changes when somebody drops, renames or alters it, grants a right on it
or makes an index.  Only then is it looked at closely: a view whose table is gone or altered stops, and
what users have made of the table is written down (sink/kept.py), in case that it goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
import structlog

from headrace import clock
from headrace.postgres import failures
from headrace.sink import kept

if TYPE_CHECKING:
    from headrace.runtime.lifecycle import Lifecycle

_log = structlog.get_logger(__name__)
_SIGNS: Final = """
SELECT v.id, ROW(c.xmin, pg_catalog.to_regclass(
           pg_catalog.format('%%I.%%I', v.schema_name, v.view_name))::oid,
         ARRAY(SELECT i.indexrelid FROM pg_catalog.pg_index i
                WHERE i.indrelid = v.result_oid ORDER BY 1))::text
  FROM headrace.views v LEFT JOIN pg_catalog.pg_class c ON c.oid = v.result_oid
 WHERE v.id = ANY (%s)"""


class ResultTables:
    """Those of one engine's views; every method runs on the engine's thread."""

    def __init__(self, lifecycle: Lifecycle, poll_ms: int) -> None:
        self._lifecycle = lifecycle
        self._every_s = poll_ms / 1000
        self._signs: dict[int, str] = {}
        self.due = 0.0
        """When to look next, on the monotonic clock."""

    def poll(self, conn: psycopg.Connection[Any]) -> None:
        """Look, if it is time to."""
        now = clock.monotonic()
        if now < self.due:
            return
        self.due = now + self._every_s
        live = {view.id: view for view in self._lifecycle.live_views()}
        if not live:
            return
        rows = conn.execute(_SIGNS, (list(live),)).fetchall()
        found: dict[int, str] = dict(rows)
        new = {i: sign for i, sign in found.items() if self._signs.get(i) != sign}
        self._signs = {i: sign for i, sign in self._signs.items() if i in live}
        sound = []
        for view_id, sign in new.items():
            try:
                wrong = self._lifecycle.table_trouble(live[view_id])
            except psycopg.errors.LockNotAvailable:
                continue
            if wrong is not None:
                self._lifecycle.fail(live[view_id], wrong)
                continue
            self._signs[view_id] = sign
            sound.append(view_id)
        if sound:
            self._note(conn, sound)

    def _note(self, conn: psycopg.Connection[Any], views: list[int]) -> None:
        try:
            kept.note(conn, views)
        except psycopg.Error as error:
            if failures.is_lost(error) or conn.closed:
                raise
            # Somebody drops an index just then, say.  It is noted when it changes again.
            _log.info("grants and indexes not noted", reason=str(error))
