"""Writes a view's diffs into its result table; the caller owns the transaction.

Inserts go in by COPY.  A delete finds its row by the indexed hash of the row, compares every
column exactly (two numerics of different scale are different rows), and deletes as many copies
as the weight says, which is checked against the count.

Nothing of a user runs here, where it would have our rights (reliability.md E16):

* Invariant 1: before a row is written the table is locked, and known to be ours by its OID and
  unaltered by its mark: no other of its name can take its place, nothing changes rows on the way.
* Invariant 2: values become text, and text values, by input and output functions alone, never by
  a cast, which the owner of a type may define at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from headrace import pinned
from headrace.errors import RESYNC, SinkTableError
from headrace.kernels import copytext, text
from headrace.sink import table, trouble
from headrace.sink.table import Target
from headrace.types import (
    BOOL,
    BPCHAR,
    DATE,
    INT2,
    INT4,
    INT8,
    OID,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
    WEIGHT,
    Oid,
)  # fmt: skip

Connection = psycopg.Connection[Any]

SINK_SETTINGS: Final = {
    # Deletes look their rows up one by one in the hash index; statistics of a table that
    # changes all the time must never turn that into a scan per row.
    "enable_seqscan": "off",
    "enable_mergejoin": "off",
    "enable_hashjoin": "off",
    "jit": "off",
    # Progress that could be lost with a crash of the server would let state run ahead of it.
    "synchronous_commit": "on",
}
"""Settings of the sink connection on top of the pinned ones."""

_IDENTICAL: Final = frozenset(
    (BOOL, INT2, INT4, INT8, OID, DATE, TIME, TIMESTAMP, TIMESTAMPTZ, UUID)
)
"""Types whose equality is identity: no need to compare texts."""
_TEXTS: Final = frozenset((TEXT, VARCHAR))

_ROWS_PER_COPY: Final = 65_536
_ROWS_PER_DELETE: Final = 20_000
_LOOKS: Final = 3
"""How often the table may change between a look and its lock."""


@dataclass(frozen=True, slots=True)
class _Statements:
    hold: sql.Composed
    """Locks the table; then says whether its name is ours, and its mark."""
    mark: str
    """What it was when it was found to be as we made it."""
    copy: sql.Composed
    delete: sql.Composed
    by_row: bool
    """Whether the delete takes rows as literals of the table's row type, or an array per column."""


class SinkWriter:
    """Writes diffs over one connection, which has ``SINK_SETTINGS`` and pinned settings."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._statements: dict[int, _Statements] = {}

    def create_table(
        self,
        target: Target,
        query: sql.Composable | str,
        *,
        columns: Sequence[str] = (),
        reader: str | None = None,
    ) -> Oid:
        """See ``table.create``; ``target.oid`` is not used."""
        return table.create(
            self._conn, target.schema_name, target.table_name, query,
            columns=columns, reader=reader,
        )  # fmt: skip

    def forget(self, view_id: int) -> None:
        """The view is gone or changed: its statements are made anew when needed."""
        self._statements.pop(view_id, None)

    def write(self, target: Target, diffs: pa.RecordBatch) -> int:
        """Carry out consolidated ``diffs``; returns the rows written.

        REQUIRES: an open transaction; after an exception it must be rolled back to a savepoint.

        Raises:
            SinkBlocked: the table is locked by somebody else.
            SinkTableError: it is gone, altered, replaced by another of its name, or does not hold
                the rows to delete; or code of a user that runs in the write has failed.
            Interrupted: something else that may pass by itself.
            psycopg.Error: the connection is lost.
        """
        if diffs.num_rows == 0:
            return 0
        try:
            return self._write(target, diffs)
        except psycopg.Error as error:
            if pinned.is_lost(error) or self._conn.closed:
                raise
            # What has become of it is asked when the transaction allows: ``explained``.
            raise trouble.of_view(target, error) from error

    def _write(self, target: Target, diffs: pa.RecordBatch) -> int:
        statements = self._held(target)
        # By place: a view may have a column of that name.
        weights = diffs.column(len(target.schema)).to_numpy()
        gone = np.flatnonzero(weights < 0)
        if len(gone):
            self._delete(target, statements, diffs, weights, gone)
        come = np.flatnonzero(weights > 0)
        if len(come):
            # Copies of a row are rows of their own.
            take = come if (weights[come] == 1).all() else come.repeat(weights[come])
            self._insert(target, statements, diffs, take)
        return int(np.abs(weights).sum())

    def explained(self, target: Target, error: SinkTableError) -> SinkTableError:
        """What was done to the table that made ``error``, if that can be seen; else ``error``.

        REQUIRES: a transaction that has not failed, or none.
        """
        try:
            table.check(self._conn, target)
        except SinkTableError as known:
            return known
        return error

    def _held(self, target: Target) -> _Statements:
        """Lock the table and know it to be as we made it; the statements that fit it."""
        for _ in range(_LOOKS):
            made = self._prepared(target)
            # Without parameters the simple protocol: both statements in one round trip.
            cursor = self._conn.execute(made.hold)
            cursor.nextset()
            row = cursor.fetchone()
            if row == (True, made.mark):
                return made
            # Something harmless, or ``check`` will say what it is.
            self.forget(target.view_id)
            if row is None or not row[0]:
                table.check(self._conn, target)
        raise SinkTableError(
            f"result table {target.shown} is being altered",
            hint=RESYNC,
            sqlstate="55000",
        )

    def _insert(
        self, target: Target, made: _Statements, diffs: pa.RecordBatch, take: np.ndarray
    ) -> None:
        with self._conn.cursor() as cursor, cursor.copy(made.copy) as copy:
            for start in range(0, len(take), _ROWS_PER_COPY):
                part = diffs.take(pa.array(take[start : start + _ROWS_PER_COPY]))
                copy.write(copytext.join(_texts(target, part)))

    def _delete(
        self,
        target: Target,
        made: _Statements,
        diffs: pa.RecordBatch,
        weights: np.ndarray,
        gone: np.ndarray,
    ) -> None:
        for start in range(0, len(gone), _ROWS_PER_DELETE):
            rows = gone[start : start + _ROWS_PER_DELETE]
            part = diffs.take(pa.array(rows))
            texts = _texts(target, part)
            if made.by_row:
                texts = [_row_literals(texts)]
            literals = [copytext.array_literal(c) for c in texts]
            copies = (-weights[rows]).tolist()
            # Numbered parameters: a "%" in a column's name is no placeholder.
            with psycopg.RawCursor(self._conn) as cursor:
                cursor.execute(made.delete, [*literals, copies])
                found = cursor.rowcount
            if found != sum(copies):
                raise SinkTableError(
                    f"result table {target.shown} was changed by somebody else:"
                    f" {sum(copies)} rows should go, {found} were found",
                    hint=RESYNC,
                    sqlstate="55000",
                )

    def _prepared(self, target: Target) -> _Statements:
        made = self._statements.get(target.view_id)
        if made is None:
            made = _compose(self._conn, target)
            self._statements[target.view_id] = made
        return made

    def blockers(self, target: Target) -> list[int]:
        """Processes whose lock keeps us from writing; not between an error and its rollback."""
        rows = self._conn.execute(
            "SELECT DISTINCT l.pid FROM pg_catalog.pg_locks l"
            " WHERE l.relation = %s AND l.granted AND l.pid <> pg_catalog.pg_backend_pid()"
            " AND l.database = (SELECT oid FROM pg_catalog.pg_database"
            "                    WHERE datname = current_database())"
            # What a sink may not write beside.
            " AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',"
            " 'AccessExclusiveLock') ORDER BY 1",
            (target.oid,),
        ).fetchall()
        return [int(row[0]) for row in rows]


def _compose(conn: Connection, target: Target) -> _Statements:
    ask = table.asking_mark(conn, target)
    row = conn.execute(ask).fetchone()
    # In this order: what is altered after the mark was taken shows in the next one.
    table.check(conn, target)
    assert row is not None, "a SELECT without FROM has one row"
    found = table.attributes(conn, target.oid)
    names = [a.name for a in found]
    copy = sql.SQL("COPY {} ({}) FROM STDIN").format(
        target.identifier, sql.SQL(", ").join(map(sql.Identifier, names))
    )
    # A row type's array holds every kind of column, an array's elements only some.
    by_row = any(a.array_name is None for a in found)
    kinds: list[sql.Composable] = [sql.SQL(a.array_name or "") for a in found]
    if by_row:
        kinds = [target.identifier + sql.SQL("[]")]
    arrays = [sql.SQL("${}::{}").format(n, kind) for n, kind in enumerate(kinds, 1)]
    equal = [_same(attribute) for attribute in found]
    flags = table.hashable(conn, found)
    hashed = [a.name for a, ok in zip(found, flags, strict=True) if ok]
    if hashed:
        equal.insert(
            0,
            sql.SQL("{} = {}").format(
                table.row_hash("t", hashed), table.row_hash("g", hashed)
            ),
        )
    weight = _free_name(names)
    delete = sql.SQL(
        "DELETE FROM ONLY {table} WHERE ctid = ANY (ARRAY("
        "SELECT x.ctid FROM (SELECT * FROM unnest({arrays}, ${last}::bigint[])"
        " AS u({names}, {weight}) OFFSET 0) g CROSS JOIN LATERAL ("
        "SELECT t.ctid FROM ONLY {table} t WHERE {equal} LIMIT g.{weight}) x))"
    ).format(
        table=target.identifier,
        arrays=sql.SQL(", ").join(arrays),
        last=len(arrays) + 1,
        names=sql.SQL(", ").join(map(sql.Identifier, names)),
        weight=sql.Identifier(weight),
        equal=sql.SQL(" AND ").join(equal),
    )
    hold = sql.SQL("LOCK TABLE ONLY {} IN ROW EXCLUSIVE MODE; ").format(
        target.identifier
    )
    return _Statements(hold + ask, str(row[1]), copy, delete, by_row)


def _same(attribute: table.Attribute) -> sql.Composed:
    """Whether column values of ``t`` and ``g`` are the same, exactly."""
    name = attribute.name
    form: LiteralString = "{} IS NOT DISTINCT FROM {}"
    if attribute.base_oid == BPCHAR:
        # As text it would lose its trailing blanks.
        form = (
            "pg_catalog.bpcharsend({}) IS NOT DISTINCT FROM pg_catalog.bpcharsend({})"
        )
    elif attribute.base_oid in _TEXTS:
        form = '{} COLLATE "C" IS NOT DISTINCT FROM {} COLLATE "C"'
    elif attribute.base_oid not in _IDENTICAL:
        form = (
            "pg_catalog.format('%L', {}) COLLATE \"C\""
            " = pg_catalog.format('%L', {}) COLLATE \"C\""
        )
    return sql.SQL(form).format(sql.Identifier("t", name), sql.Identifier("g", name))


def _free_name(names: Sequence[str]) -> str:
    name = WEIGHT
    while name in names:
        name += "_"
    return name


def _row_literals(columns: Sequence[pa.StringArray]) -> pa.StringArray:
    """Rows as literals of a composite type; one without a value between its commas is NULL."""
    fields = []
    for column in columns:
        escaped = pc.replace_substring(column, "\\", "\\\\")
        escaped = pc.replace_substring(escaped, '"', '""')
        fields.append(pc.binary_join_element_wise('"', escaped, '"', ""))
    inner = pc.binary_join_element_wise(
        *fields, ",", null_handling="replace", null_replacement=""
    )
    return pc.binary_join_element_wise("(", inner, ")", "")


def _texts(target: Target, diffs: pa.RecordBatch) -> list[pa.StringArray]:
    return [
        text.render(diffs.column(i), field.oid) for i, field in enumerate(target.schema)
    ]
