"""Rows of ``headrace.assertion_states``, as populations write them; all else is the commander's.

The commander judges the rows by the view's history (``sql/violations.py``).  A population changes
them beside the history, so it leaves a *fill*: the number of rows that are there after a txid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from headrace.errors import UserError
from headrace.sql import history
from headrace.sql.assertion_spec import AssertionSpec
from headrace.sql.history import StoredHistory

Connection = psycopg.Connection[Any]

SAMPLE_CHARS_MAX: Final = 65_536
"""Limit of the text of all rows of one sample."""
_INSERT: Final = """
INSERT INTO headrace.assertion_states
       (view_id, on_violation, sample, grace, fill_txid, fill_rows, fill_sample, fill_lsn)
SELECT v.id, %(on_violation)s, %(sample)s, coalesce(%(grace)s::interval, '0'), 0, %(rows)s,
       %(texts)s, v.start_lsn
  FROM headrace.views v WHERE v.id = %(view)s RETURNING id"""
_COPY_TARGET: Final = "COPY headrace.webhook_targets (assertion_id, url, secret) FROM STDIN"
_REFILLED: Final = """
UPDATE headrace.assertion_states SET fill_txid = %(txid)s, fill_rows = %(rows)s,
       fill_sample = %(texts)s, fill_lsn = %(lsn)s::pg_lsn, fill_at = clock_timestamp()
 WHERE view_id = %(view)s"""
_NOTIFY: Final = """
SELECT pg_catalog.pg_notify(%s, h.id::text) FROM headrace.histories h
 WHERE h.view_id = %s AND pg_catalog.pg_notification_queue_usage() < 0.5"""
_RENAMED: Final = """
UPDATE headrace.violations x SET assertion = pg_catalog.format('%%I.%%I', v.schema_name, v.view_name)
  FROM headrace.assertion_states a JOIN headrace.views v ON v.id = a.view_id
 WHERE a.view_id = %s AND x.assertion_id = a.id"""


@dataclass(frozen=True, slots=True)
class TableContents:
    """Number of rows of a table, and the texts of some of them."""

    rows: int
    texts: list[str]


def chars_of(sample: int) -> int:
    """Return the limit of the text of one row of a sample."""
    return SAMPLE_CHARS_MAX // max(sample, 8)


def contents(
    conn: Connection, name: sql.Composable, image: sql.Composable, sample: int
) -> TableContents:
    """Return the contents of a result table; ``image``: expression for the text of its row ``t``.

    REQUIRES: the caller's transaction has made or locked the table.
    """
    counted: Any = conn.execute(sql.SQL("SELECT count(*) FROM {}").format(name)).fetchone()
    texts = conn.execute(
        sql.SQL("SELECT pg_catalog.left({}, %s) FROM {} t LIMIT %s").format(image, name),
        (chars_of(sample), sample),
    )
    return TableContents(int(counted[0]), [row[0] for row in texts.fetchall()])


def insert(
    conn: Connection, view_id: int, spec: AssertionSpec, found: TableContents, secret: str
) -> None:
    """Make a view an assertion, in the transaction that creates its table with ``found``."""
    values = {
        **{"view": view_id, "on_violation": spec.on_violation, "sample": spec.sample},
        **{"grace": spec.grace, "rows": found.rows, "texts": found.texts},
    }
    row: Any = conn.execute(_INSERT, values).fetchone()
    if spec.webhook is not None:
        # A server that logs statements also logs their parameters, but not the data of COPY.
        with conn.cursor() as cursor, cursor.copy(_COPY_TARGET) as sent:
            sent.write_row((row[0], spec.webhook, secret))
    conn.execute(_NOTIFY, (history.ASSERTED, view_id))


def sample_of(conn: Connection, view_id: int) -> int | None:
    """Return how many rows of an assertion are sampled; None: the view is not an assertion."""
    row = conn.execute(
        "SELECT sample FROM headrace.assertion_states WHERE view_id = %s", (view_id,)
    ).fetchone()
    return None if row is None else int(row[0])


def refilled(conn: Connection, view_id: int, kept: StoredHistory, found: TableContents) -> None:
    """Store what a population has left, in its transaction.

    ``kept``: the view's history, which has gone on with the txid of that population.
    """
    values = {"view": view_id, "txid": kept.txid, "lsn": kept.lsn}
    conn.execute(_REFILLED, values | {"rows": found.rows, "texts": found.texts})
    conn.execute(_NOTIFY, (history.ASSERTED, view_id))


def renamed(conn: Connection, view_id: int) -> None:
    """Give the violations of an assertion its new name."""
    conn.execute(_RENAMED, (view_id,))


def check_grace(conn: Connection, text: str) -> None:
    """Raise UserError (22023) if ``text`` is not an interval, or is negative."""
    error: str | None = "It is negative."
    try:
        with conn.transaction():
            row = conn.execute(
                "SELECT %(text)s::interval >= '0' AND now() + %(text)s::interval IS NOT NULL",
                {"text": text},
            ).fetchone()
    except psycopg.DataError as refused:
        row, error = None, refused.diag.message_primary
    if row is None or not row[0]:
        raise UserError(
            f'option "grace" cannot be "{text}"',
            detail=error,
            hint="Write an interval, for example '30 seconds'.",
        )
