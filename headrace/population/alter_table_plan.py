"""Changes the columns of an existing result table, which keeps its OID and dependent objects.

Columns are identified by name.  The table's columns must have the order of the query's.  So a
column that must move behind an existing one is dropped and added again at the end.

    have  a b c d          stay   a c      (already in the wanted order)
    want  a c b e          gone   d        made anew  b        added  e

An object that depends on a column that is dropped, recreated or retyped would be dropped or break.
``AlterTablePlan.check`` reports such objects before any change, and checks again under the lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import psycopg
from psycopg import sql

from headrace.errors import UnsupportedError, UserError
from headrace.population.job import Job
from headrace.population.publish import copy_rows
from headrace.population.replace import Replaced, retype
from headrace.population.staging import Staging
from headrace.postgres.connect import Connection
from headrace.process import faults
from headrace.sink import keys, table
from headrace.sink.table import ResultColumn, ResultTable
from headrace.sql import points, progress, reads
from headrace.types import FIRST_USER_OID, Field

_DEPENDENTS: Final = """
SELECT a.attname, d.classid::pg_catalog.regclass::text,
       CASE WHEN r.oid IS NOT NULL
            THEN pg_catalog.pg_describe_object('pg_catalog.pg_class'::regclass, r.ev_class, 0)
            ELSE pg_catalog.pg_describe_object(d.classid, d.objid, 0) END
  FROM pg_catalog.pg_depend d
  JOIN pg_catalog.pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
  LEFT JOIN pg_catalog.pg_rewrite r
    ON d.classid = 'pg_catalog.pg_rewrite'::regclass AND r.oid = d.objid
  LEFT JOIN pg_catalog.pg_constraint k
    ON d.classid = 'pg_catalog.pg_constraint'::regclass AND k.oid = d.objid
  LEFT JOIN pg_catalog.pg_class i
    ON d.classid = 'pg_catalog.pg_class'::regclass AND i.oid = d.objid
 WHERE d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = %(table)s
   AND a.attname = ANY (%(names)s) AND d.classid <> 'pg_catalog.pg_policy'::regclass
   AND (k.oid IS NULL OR k.conrelid <> d.refobjid OR k.contype NOT IN ('p', 'n'))
   AND (i.oid IS NULL OR i.relname <> %(hash)s)
 GROUP BY 1, 2, 3 ORDER BY 3, 1"""
"""Objects that depend on columns, except Headrace's own: the key, the row index, policies."""
_REFERRING: Final = """
SELECT pg_catalog.pg_describe_object('pg_catalog.pg_constraint'::regclass, k.oid, 0)
  FROM pg_catalog.pg_constraint k
 WHERE k.contype = 'f' AND k.confrelid = %s AND k.conparentid = 0 ORDER BY 1"""
_EASY: Final = frozenset(("pg_class", "pg_statistic_ext", "pg_publication_rel"))
"""Catalogs of dependent objects that survive a type change: indexes, and objects that only name
the column."""
_ROWS_KEY_LATER: Final = 20_000
"""Number of rows from which a key is created after the rows are written."""
_PLAIN: Final = """
SELECT pg_catalog.has_table_privilege(c.oid, 'TRUNCATE')
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots s
                    WHERE s.plugin <> 'pgoutput' AND s.database = pg_catalog.current_database())
  FROM pg_catalog.pg_class c WHERE c.oid = %s"""
"""Whether TRUNCATE is allowed, and no slot's output plugin might ignore it."""
_SAID: Final = """
SELECT a.attname, pg_catalog.col_description(a.attrelid, a.attnum) FROM pg_catalog.pg_attribute a
 WHERE a.attrelid = %s AND a.attname = ANY (%s) AND NOT a.attisdropped"""
_GRANTED: Final = """
SELECT a.attname, g.privilege_type, r.rolname, g.grantee = 0, g.is_grantable
  FROM pg_catalog.pg_attribute a CROSS JOIN LATERAL pg_catalog.aclexplode(a.attacl) g
  LEFT JOIN pg_catalog.pg_roles r ON r.oid = g.grantee
 WHERE a.attrelid = %s AND a.attname = ANY (%s) AND NOT a.attisdropped
 ORDER BY g.is_grantable DESC"""


@dataclass(frozen=True, slots=True)
class AlterTablePlan:
    """Changes to the columns of a result table, by name."""

    stay: tuple[str, ...]
    gone: tuple[str, ...]
    anew: tuple[str, ...]
    """Columns that are dropped, and added again at the end."""
    added: tuple[str, ...]
    retyped: tuple[str, ...]
    """Columns that stay, with another type."""
    typed: tuple[str, ...]
    """Columns that are recreated with another type."""

    @classmethod
    def of(cls, have: Sequence[ResultColumn], want: Sequence[Field]) -> Self:
        """Return the changes that turn the columns ``have`` into ``want``."""
        places = {column.name: place for place, column in enumerate(have)}
        fields = {field.name: field for field in want}
        stay: list[str] = []
        last = -1
        for field in want:
            place = places.get(field.name, -1)
            if place <= last:
                break
            stay.append(field.name)
            last = place
        others = [f.name for f in want[len(stay) :]]
        changed = {
            column.name
            for column in have
            if column.name in fields and _other_type(column, fields[column.name])
        }
        anew = [name for name in others if name in places]
        return cls(
            tuple(stay),
            tuple(c.name for c in have if c.name not in fields),
            tuple(anew),
            tuple(name for name in others if name not in places),
            tuple(name for name in stay if name in changed),
            tuple(name for name in anew if name in changed),
        )

    @property
    def nothing(self) -> bool:
        """Whether no column is dropped, recreated or added; types may change."""
        return not (self.gone or self.anew or self.added)

    @property
    def makes(self) -> bool:
        """Whether columns are recreated or added, so that every row changes."""
        return bool(self.anew or self.added)

    def check(self, conn: Connection, before: ResultTable, target: ResultTable) -> None:
        """Refuse changes that would break dependent objects.

        ``before``: the table as it is.  ``target``: the table after the change.

        Raises:
            UserError: 2BP01, with the names of the dependent objects.
            UnsupportedError: as ``_check_foreign_types``.
        """
        breaks = self._dependents(conn, target)
        if before.key != target.key:
            rows = conn.execute(_REFERRING, (target.oid,)).fetchall()
            breaks += [f"{row[0]} refers to its key" for row in rows]
        if breaks:
            raise UserError(
                f"cannot alter view {target.shown} because other objects depend on its columns",
                detail="\n".join(dict.fromkeys(breaks)),
                hint="Drop or alter these first, or give the columns the names, types and order"
                " that they have.",
                sqlstate="2BP01",
            )
        self._check_foreign_types(conn, target)

    def _dependents(self, conn: Connection, target: ResultTable) -> list[str]:
        dropped = {*self.gone, *self.anew}
        names = sorted(dropped | set(self.retyped))
        asked = {"table": target.oid, "names": names, "hash": table.index_name(target.oid)}
        out = [
            f"{what} depends on column {column}"
            for column, catalog, what in conn.execute(_DEPENDENTS, asked).fetchall()
            if column in dropped or catalog.rpartition(".")[2] not in _EASY
        ]
        other = {*self.gone, *self.retyped, *self.typed}
        out += [
            f"view {view} depends on column {column}"
            for view, column in reads.users_of_columns(conn, target.oid, sorted(other))
        ]
        out += [
            f'connection point "{point.name}" has the storage key {point.storage_key}'
            for point in points.of_view(conn, target.view_id)
            if point.storage_key in dropped
        ]
        return out

    def _check_foreign_types(self, conn: Connection, target: ResultTable) -> None:
        """Refuse a new column of a user-defined type if foreign keys refer to the table.

        The rows then stay, and the type's name may mean another type when the column is added.
        """
        if self.makes and is_referred(conn, target.oid):
            user = [f.name for f in target.schema if f.name in {*self.anew, *self.added}
                    and f.oid >= FIRST_USER_OID]  # fmt: skip
            if user:
                raise UnsupportedError(
                    f'column "{user[0]}" of a type that is not built in cannot be added to view'
                    f" {target.shown}, to which foreign keys refer",
                    hint="Drop these foreign keys first.",
                )

    def refill(
        self,
        job: Job,
        conn: Connection,
        before: ResultTable,
        target: ResultTable,
        staging: Staging,
        had: int | None = None,
    ) -> Replaced:
        """Give the table its new columns and the staged rows, in the caller's transaction.

        Readers wait for the commit from then on.  Older snapshots still see the old rows.
        ``before``: the table as it is.  ``had``: its number of rows, if the staged rows were
        computed from them.  New columns have no statistics yet.

        REQUIRES: ``repair`` in this transaction; no foreign key refers to the table; ``makes``.

        Raises:
            UserError: as ``check``; 23505 or 23502, the rows violate the key.
        """
        name = target.identifier
        conn.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(name))
        self.check(conn, before, target)
        frozen = had is not None and _made_in_place(conn, target)
        if frozen:
            conn.execute(sql.SQL("TRUNCATE ONLY {}").format(name))
        else:
            had = conn.execute(sql.SQL("DELETE FROM ONLY {}").format(name)).rowcount
        table.drop_hash_index(conn, target.schema_name, target.oid)
        # The table is empty: nothing is evaluated, even if the name means another type by now.
        for field in (f for f in target.schema if f.name in self.retyped):
            old = next(a for a in table.attributes(conn, target.oid) if a.name == field.name)
            (kind,) = table.spelled(conn, [field])
            wrong = retype(conn, name, old, kind, built_in=field.oid < FIRST_USER_OID)
            if wrong is not None:
                raise _broken(target, wrong)
        self.change(conn, target)
        faults.point(faults.RESULT_RESHAPED)
        if target.key and staging.row_count() >= _ROWS_KEY_LATER:
            keys.set_aside(conn, target)
        added = copy_rows(job, conn, name, staging, frozen=frozen)
        job.phase("indexing")
        self.index(conn, target)
        assert had is not None, "it was said, or counted"
        return Replaced(had, added)

    def narrow(self, conn: Connection, before: ResultTable, target: ResultTable) -> int:
        """Drop columns of the table, and keep its rows; return the number of rows.

        REQUIRES: as ``refill``, except that no column is added, recreated or retyped.

        Raises:
            UserError: as ``check``.
        """
        name = target.identifier
        if not self.nothing:
            conn.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(name))
        self.check(conn, before, target)
        if not self.nothing:
            self.change(conn, target)
            faults.point(faults.RESULT_RESHAPED)
        if target.key or not table.has_hash_index(conn, target.oid):
            self.index(conn, target)
        row = conn.execute(
            sql.SQL("SELECT pg_catalog.count(*) FROM ONLY {}").format(name)
        ).fetchone()
        assert row is not None, "an aggregate gives a row"
        return int(row[0])

    def index(self, conn: Connection, target: ResultTable) -> None:
        """Add the key, or without one the row index, after the rows are written."""
        if not target.key:
            table.create_hash_index(conn, target.schema_name, target.table_name)
            return
        found = table.fingerprint(conn, target.oid)
        assert found is not None, "it is locked"
        if found.key != target.key:
            keys.add(conn, target.identifier, target.key)

    def change(self, conn: Connection, target: ResultTable) -> None:
        """Drop and add columns; recreated ones keep their comments and grants.

        Raises:
            UserError: 2BP01, objects depend on the columns, according to Postgres.
            TransientError: a type was renamed or replaced meanwhile.
        """
        fields = [f for f in target.schema if f.name in {*self.anew, *self.added}]
        said = conn.execute(_SAID, (target.oid, list(self.anew))).fetchall()
        granted = conn.execute(_GRANTED, (target.oid, list(self.anew))).fetchall()
        changes = [
            sql.SQL("DROP COLUMN {}").format(sql.Identifier(c)) for c in (*self.gone, *self.anew)
        ]
        changes += [
            sql.SQL("ADD COLUMN {} {}").format(sql.Identifier(field.name), kind)
            for field, kind in zip(fields, table.spelled(conn, fields), strict=True)
        ]
        # Drop the row index, which is created again later, so that it does not go silently.
        table.drop_hash_index(conn, target.schema_name, target.oid)
        try:
            with conn.transaction():
                conn.execute(
                    sql.SQL("ALTER TABLE {} {}").format(
                        target.identifier, sql.SQL(", ").join(changes)
                    )
                )
        except (
            psycopg.errors.DependentObjectsStillExist,
            psycopg.errors.FeatureNotSupported,
            psycopg.errors.InvalidTableDefinition,
            psycopg.errors.ProgramLimitExceeded,
            psycopg.errors.TooManyColumns,
        ) as error:
            said_by = (error.diag.message_primary, error.diag.message_detail)
            raise _broken(target, ": ".join(s for s in said_by if s)) from error
        table.prove_types(conn, target.oid, fields, only=True)
        for column, text in said:
            if text is not None:
                conn.execute(
                    sql.SQL("COMMENT ON COLUMN {}.{} IS {}").format(
                        target.identifier, sql.Identifier(column), sql.Literal(text)
                    )
                )
        for column, privilege, grantee, everybody, grantable in granted:
            if everybody or grantee is not None:
                conn.execute(
                    sql.SQL("GRANT {} ({}) ON TABLE {} TO {}{}").format(
                        sql.SQL(privilege),
                        sql.Identifier(column),
                        target.identifier,
                        sql.SQL("PUBLIC") if everybody else sql.Identifier(grantee),
                        sql.SQL(" WITH GRANT OPTION" if grantable else ""),
                    )
                )


def _made_in_place(conn: Connection, target: ResultTable) -> bool:
    """Return whether rows computed from the table's may be visible to all snapshots.

    That is correct if every existing and future snapshot has the current rows.  Then the table can
    be truncated, without deleting each row, and filled with frozen rows.

    REQUIRES: ``repair`` in this transaction (no triggers); only the sink writes the table.
    """
    row = conn.execute(_PLAIN, (target.oid,)).fetchone()
    found = table.fingerprint(conn, target.oid)
    plain = row is not None and bool(row[0]) and found is not None and not found.published
    return plain and progress.seen_by_all(conn, target.view_id)


def is_referred(conn: Connection, oid: int) -> bool:
    """Return whether foreign keys refer to the table, so that its rows must be updated in place."""
    return conn.execute(_REFERRING, (oid,)).fetchone() is not None


def _broken(target: ResultTable, why: str) -> UserError:
    return UserError(
        f"cannot alter view {target.shown}", detail=f"{why}.".replace("..", "."), sqlstate="2BP01"
    )


def _other_type(column: ResultColumn, field: Field) -> bool:
    return (column.base_oid, column.base_mod) != (field.oid, field.typmod)
