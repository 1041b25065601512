"""Writer of a view's diffs into its result table; the caller owns the transaction.

Rows are inserted by COPY.  A delete finds its row by the table's key, or else by the indexed hash
of the row, and compares every column exactly (numerics of different scale are different rows).
It deletes as many copies as the weight says, and checks the count.  A row whose key stays is
updated (keyed.py).

No code of a user runs here, because it would have our rights (E16):

* Invariant 1: before a row is written the table is locked, identified by its OID, and shown to be
  unaltered by its mark: no other table can take its place, and nothing changes rows on the way.
* Invariant 2: values are converted to and from text by input and output functions alone, never by
  a cast, which the owner of a type may define at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import psycopg
import pyarrow as pa

from headrace.errors import RESYNC, SinkTableError
from headrace.kernels import copytext
from headrace.postgres import failures
from headrace.postgres.pipelined import Sent
from headrace.sink import changes, keyed, keys, table, trouble
from headrace.sink import rows as rows_of
from headrace.sink.pipelined_write import PipelinedWrite, copies
from headrace.sink.statements import Statements, compose
from headrace.sink.table import ResultTable
from headrace.sql import history
from headrace.sql.history import HistoryPosition

Connection = psycopg.Connection[Any]

SINK_SETTINGS: Final = {
    # Deletes look up their rows one by one in the hash index.  Statistics of a table that changes
    # all the time must never turn that into a scan per row.
    "enable_seqscan": "off",
    "enable_mergejoin": "off",
    "enable_hashjoin": "off",
    # One plan for each statement, made once.
    "plan_cache_mode": "force_generic_plan",
    # If a crash of the server could lose progress, the state could be ahead of it.
    "synchronous_commit": "on",
}
"""Settings of the sink connection in addition to the pinned ones."""

_ROWS_PER_COPY: Final = 65_536
_ROWS_PER_DELETE: Final = 20_000
_LOOKS: Final = 3
"""Maximum number of attempts when the table changes between the check and its lock."""


class SinkWriter:
    """Writer of diffs over one connection, which has ``SINK_SETTINGS`` and the pinned settings."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._statements: dict[int, Statements] = {}

    def forget(self, view_id: int) -> None:
        """Discard the statements of a dropped or changed view; they are made again when needed."""
        self._statements.pop(view_id, None)

    def write(self, target: ResultTable, diffs: pa.RecordBatch) -> int:
        """Apply consolidated ``diffs``; return the number of rows written.

        REQUIRES: an open transaction; after an exception it must be rolled back to a savepoint.

        Raises:
            SinkBlocked: another session has locked the table.
            SinkTableError: the table is gone, altered, replaced by another of its name, or lacks
                the rows to delete; or code of a user that runs in the write has failed.
            Interrupted: another error that may pass by itself.
            psycopg.Error: the connection is lost.
        """
        if diffs.num_rows == 0:
            return 0
        try:
            return self._write(target, diffs)
        except psycopg.Error as error:
            if failures.is_lost(error) or self._conn.closed:
                raise
            # The cause is looked up when the transaction allows it: ``explained``.
            raise trouble.of_view(target, error) from error

    def _write(self, target: ResultTable, diffs: pa.RecordBatch) -> int:
        statements = self._locked_statements(target)
        weights, found = keyed.changes(target, diffs)
        try:
            if len(found.old):
                try:
                    with self._conn.transaction():
                        self._apply(target, statements, diffs, weights, found)
                    return int(np.abs(weights).sum())
                except psycopg.errors.UniqueViolation as error:
                    if not keys.unique_index_of_user(self._conn, target, error):
                        raise
                # Rows that swap their values violate such an index between two updates.
                found = keyed.unpaired(found)
            self._apply(target, statements, diffs, weights, found)
        except (psycopg.IntegrityError, psycopg.errors.ProgramLimitExceeded) as error:
            known = keys.violated(target, error)
            if known is None:
                raise
            raise known from error
        return int(np.abs(weights).sum())

    def _apply(
        self,
        target: ResultTable,
        statements: Statements,
        diffs: pa.RecordBatch,
        weights: np.ndarray,
        found: keyed.KeyedChanges,
    ) -> None:
        if len(found.old):
            self._update(target, statements, diffs, found)
        # All deletes before all inserts, so that the key holds after each statement.
        if len(found.gone):
            self._delete(target, statements, diffs, weights, found.gone)
        if len(found.come):
            self._insert(target, statements, diffs, copies(found.come, weights))

    def pipelined(self, target: ResultTable, diffs: pa.RecordBatch) -> PipelinedWrite | None:
        """Return the statements of ``write`` for a pipeline; None: check the table first."""
        made = self._statements.get(target.view_id)
        return None if made is None else PipelinedWrite.of(target, made, diffs)

    def notes(
        self, target: ResultTable, diffs: pa.RecordBatch, at: HistoryPosition
    ) -> Iterator[Sent]:
        """Return statements that keep ``diffs`` in the view's history, after they were written.

        Each returns a row, or none if the history has been removed.
        """
        text = self._prepared(target).note
        for number, part in enumerate(changes.parts(target, diffs)):
            yield Sent(text, history.values(target.view_id, at, number, part), kept=True)

    def explained(self, target: ResultTable, error: SinkTableError) -> SinkTableError:
        """Return the cause of ``error`` if the table's catalog rows show one; else ``error``.

        REQUIRES: a transaction that has not failed, or none.
        """
        try:
            table.check(self._conn, target)
        except SinkTableError as known:
            return known
        cause = error.__cause__
        return (
            keys.unique_index_of_user(self._conn, target, cause)
            or trouble.at_index(self._conn, target, cause)
            or error
        )

    def _locked_statements(self, target: ResultTable) -> Statements:
        """Lock the table, check that it is as we made it, and return its statements."""
        for _ in range(_LOOKS):
            made = self._prepared(target)
            # Without parameters the simple protocol is used: both statements in one round trip.
            cursor = self._conn.execute(made.hold)
            cursor.nextset()
            row = cursor.fetchone()
            if row == (True, made.mark):
                return made
            # The change is harmless, or ``check`` raises its error.
            self.forget(target.view_id)
            if row is None or not row[0]:
                table.check(self._conn, target)
        raise SinkTableError(
            f"result table {target.shown} is being altered", hint=RESYNC, sqlstate="55000"
        )

    def _insert(
        self, target: ResultTable, made: Statements, diffs: pa.RecordBatch, take: np.ndarray
    ) -> None:
        with self._conn.cursor() as cursor, cursor.copy(made.copy) as copy:
            for start in range(0, len(take), _ROWS_PER_COPY):
                part = rows_of.rows_at(diffs, take[start : start + _ROWS_PER_COPY])
                copy.write(copytext.join(rows_of.texts(target, part)))

    def _delete(
        self,
        target: ResultTable,
        made: Statements,
        diffs: pa.RecordBatch,
        weights: np.ndarray,
        gone: np.ndarray,
    ) -> None:
        for start in range(0, len(gone), _ROWS_PER_DELETE):
            rows = gone[start : start + _ROWS_PER_DELETE]
            literals = made.arrays.literals(target, diffs, rows)
            copies = (-weights[rows]).tolist()
            self._run(target, made.delete, [*literals, copies], sum(copies), "go")

    def _update(
        self,
        target: ResultTable,
        made: Statements,
        diffs: pa.RecordBatch,
        found: keyed.KeyedChanges,
    ) -> None:
        assert made.update is not None, "the table has a key"
        for start in range(0, len(found.old), _ROWS_PER_DELETE):
            part = slice(start, start + _ROWS_PER_DELETE)
            text, values = made.update.of(diffs, found.old[part], found.new[part])
            self._run(target, text, values, len(found.old[part]), "change")

    def _run(
        self,
        target: ResultTable,
        statement: bytes,
        parameters: list[Any],
        wanted: int,
        verb: str,
    ) -> None:
        """Execute ``statement``, which has to find ``wanted`` rows."""
        # Numbered parameters: a "%" in a column's name is no placeholder.
        with psycopg.RawCursor(self._conn) as cursor:
            cursor.execute(statement, parameters)
            found = cursor.rowcount
        if found != wanted:
            raise SinkTableError(
                f"result table {target.shown} was changed by another program:"
                f" {wanted} rows should {verb}, {found} were found",
                hint=RESYNC,
            )

    def _prepared(self, target: ResultTable) -> Statements:
        made = self._statements.get(target.view_id)
        if made is None:
            made = compose(self._conn, target)
            self._statements[target.view_id] = made
        return made

    def blockers(self, target: ResultTable) -> list[int]:
        """Return the PIDs whose locks block the sink.  REQUIRES: no failed transaction."""
        rows = self._conn.execute(
            "SELECT DISTINCT l.pid FROM pg_catalog.pg_locks l"
            " WHERE l.relation = %s AND l.granted AND l.pid <> pg_catalog.pg_backend_pid()"
            " AND l.database = (SELECT oid FROM pg_catalog.pg_database"
            "                    WHERE datname = current_database())"
            # Lock modes that conflict with the sink's writes.
            " AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',"
            " 'AccessExclusiveLock') ORDER BY 1",
            (target.oid,),
        ).fetchall()
        return [int(row[0]) for row in rows]
