"""A view that gets another query: rows and columns change, the table stays."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql

from headrace.collections import plan
from headrace.errors import HeadraceError, UndefinedError
from headrace.population import alter_table_plan, tables
from headrace.population.alter_table_plan import AlterTablePlan
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.replace import Replaced, replace_rows
from headrace.population.staging import Staging
from headrace.postgres.connect import Connection
from headrace.sink import keys, table
from headrace.sql import views
from headrace.sql.history import StoredHistory
from headrace.sql.view_spec import ViewSpec
from headrace.sql.views import StoredView, ViewRow
from headrace.types import Schema
from headrace.views.resync import Replanned, Resync


@dataclass(frozen=True, slots=True)
class Wanted:
    """The query, settings and options that a view is to have."""

    query: str
    settings: dict[str, str]
    options: ViewSpec
    """All options of the altered view, as they were given."""
    same: bool = False
    """Whether to do nothing if the view already has this query and these options."""


class ViewAlteration(Resync):
    """One alter_view after planning."""

    def __init__(
        self,
        context: JobContext,
        job: Job,
        view: ViewRow,
        stored: StoredView,
        again: Replanned,
        wanted: Wanted,
    ) -> None:
        now = replace(stored, options=wanted.options)
        super().__init__(context, job, view, now, again, wanted.query)
        self._before = stored
        self._had_columns = _columns_of(stored)
        self._refilled: table.ResultTable | None = None
        """The result table, if all of its rows were rewritten."""

    def appear(self, conn: Connection, staged: Staging, facts: dict[str, Any]) -> None:
        """Store the new options as well; see ``Resync``."""
        super().appear(conn, staged, facts)
        views.put_options(conn, self._view_id, self._before.options, self._stored.options)

    def check_table(self, conn: Connection) -> None:
        """Refuse changes that break dependent objects as well; see ``Resync``."""
        super().check_table(conn)
        oid = self._view.result_oid
        if oid is not None and table.fingerprint(conn, oid) is not None:
            shape = AlterTablePlan.of(table.attributes(conn, oid), self._planned.columns)
            shape.check(conn, self._as_is(oid), self._target(oid))

    def _had(self) -> tuple[str, ...]:
        return _key_of(self._before)

    def _as_is(self, oid: int) -> table.ResultTable:
        target = self._target(oid)
        columns = target.schema if self._had_columns is None else self._had_columns
        return replace(target, schema=columns, key=self._had())

    def _exchange(
        self, conn: Connection, oid: int, staged: Staging, kept: StoredHistory | None
    ) -> Replaced:
        """Change the columns, then exchange the rows; see ``Resync``."""
        target, before = self._target(oid), self._as_is(oid)
        shape = AlterTablePlan.of(table.attributes(conn, oid), target.schema)
        if shape.makes and not alter_table_plan.is_referred(conn, oid):
            return self._refill(conn, shape, staged)
        if not shape.nothing:
            conn.execute(
                sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(target.identifier)
            )
        shape.check(conn, before, target)
        if not shape.nothing:
            shape.change(conn, target)
        return replace_rows(self._job, conn, target, self._planned, staged, kept=kept)

    def _refill(
        self, conn: Connection, shape: AlterTablePlan, staged: Staging, had: int | None = None
    ) -> Replaced:
        oid = self._view.result_oid
        assert oid is not None, "it is refilled"
        self._refilled = self._target(oid)
        return shape.refill(self._job, conn, self._as_is(oid), self._refilled, staged, had)

    def _adopt(self) -> None:
        """Have the worker adopt the view while a table with new columns is analysed."""
        with ThreadPoolExecutor(1, "headrace-statistics") as beside:
            if self._refilled is not None:
                beside.submit(self._measure, self._refilled)
            super()._adopt()

    def _measure(self, target: table.ResultTable) -> None:
        # The table may be renamed, dropped or locked by now. Autovacuum analyses it later anyway.
        timeout = {"lock_timeout": f"{self._settings.lock_timeout_ms}ms"}
        gone = UndefinedError(f"table {target.shown} was replaced by another table")
        try:
            with (
                self._job.connection(self._dsn, what="statistics", settings=timeout) as conn,
                conn.transaction(),
            ):
                tables.hold(conn, target.identifier, target.oid, gone)
                conn.execute(sql.SQL("ANALYZE {}").format(target.identifier))
        except (HeadraceError, psycopg.Error) as error:
            self._log.warning("statistics not made", reason=str(error))


def _columns_of(stored: StoredView) -> Schema | None:
    """Return the view's previous columns; None: its plan is of an earlier version."""
    try:
        return plan.from_json(stored.plan).sink.schema
    except (ValueError, TypeError, KeyError):
        return None


def _key_of(stored: StoredView) -> tuple[str, ...]:
    try:
        return keys.chosen(stored.options.key, plan.from_json(stored.plan).sink.key)
    except (ValueError, TypeError, KeyError):  # the table is rebuilt in any case
        return ()
