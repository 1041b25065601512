"""Read-only statements for evaluation: settings, type names, results, lost connections.

Settings are ``PINNED_SETTINGS`` overlaid with those captured from the view, so that functions see
what the view's creator saw.  Values are sent as unambiguous text (ISO dates, explicit ``+00``) and
returned under the *pinned* settings.  If a captured setting changes the output of values, the
statement computes everything first (a materialised CTE) and resets the settings for its output.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg.pq.abc import PGresult

from headrace import clock, errors
from headrace.errors import (
    BugError,
    DefiniteFailure,
    ErrorFamily,
    Interrupted,
    OutOfReach,
    RowError,
)
from headrace.expressions.link import Key, Unconnected
from headrace.expressions.pool import Pool
from headrace.postgres import failures
from headrace.postgres.settings import FORCED, FUNCTION_PATH, OUTPUT, PINNED_SETTINGS, canonical
from headrace.process import bounds
from headrace.process.bounds import Described
from headrace.types import Field, arrow_type

_DEFAULT_COLLATION: Final = 100

_TOO_LARGE: Final = "headrace: too many bytes: "
"""Prefix of the error for a value that is too large.  A function that raises the same text is
reported as if it had returned such a value."""

_NUMBERS: Final = itertools.count()

_TERMINATED: Final = "57P01"
"""SQLSTATE of a session that ``pg_terminate_backend`` or a server shutdown has ended."""
_ENDED: Final = {_TERMINATED, None}
"""None: the connection ended without an error message."""
_ATTEMPTS_MAX: Final = 3
_OPENED_S: Final = 2.0
"""A statement that has waited longer for a connection is not retried."""
_READ_ONLY: Final = "25006"
"""SQLSTATE read_only_sql_transaction; evaluation is always read-only, so a retry cannot help."""


class EvaluatorSession:
    """Statements of one view over connections of a pool; not thread-safe."""

    def __init__(
        self,
        dsn: str,
        settings: dict[str, str],
        *,
        trusted: bool,
        pool: Pool,
        owner: str,
        value_bytes_max: int = 0,
    ) -> None:
        """Create a session; ``owner`` owns the expressions, if they are not trusted.

        ``value_bytes_max`` is the maximum size of one value of a result in bytes (0: no limit).
        """
        self._number = next(_NUMBERS)
        self._pool = pool
        self._owner = owner
        self._value_bytes_max = value_bytes_max
        captured = {canonical(k): v for k, v in settings.items() if k.lower() not in FORCED}
        path = captured.pop(FUNCTION_PATH, None)
        if path is not None and not trusted:
            # With the engine's privileges no name may resolve to an object of a user.
            captured["search_path"] = path
        effective = {
            **PINNED_SETTINGS,
            **captured,
            "default_transaction_read_only": "on",
        }
        self._switched = [name for name in OUTPUT if effective[name] != PINNED_SETTINGS[name]]
        self._key = Key(dsn, tuple(effective.items()), None if trusted else owner)
        self._types: dict[int, tuple[str, bool]] = {}
        self._collations: dict[int, str] = {}

    @property
    def context(self) -> Hashable:
        """Return what the value of an expression depends on, besides its arguments."""
        return self._key

    def statement(self, source: str, columns: Sequence[str]) -> str:
        """Return a SELECT of ``columns`` (expressions) from ``source``, ordered by column ``o``."""
        names = [f"e{i}" for i in range(len(columns))]
        inner = ", ".join(f"{c} AS {n}" for c, n in zip(columns, names, strict=True))
        if not self._switched:
            outs = ", ".join(names)
            # Expressions come from the planner; names in them were quoted by Postgres.
            # OFFSET 0: each value is computed once, before it is measured.
            return (
                f"SELECT {outs} FROM (SELECT {inner}, o FROM {source} OFFSET 0) q"  # noqa: S608
                f" WHERE {self._fits('q', names)} ORDER BY o"
            )
        # set_config is volatile and needs all of r, so every value is computed before the reset.
        resets = ", ".join(
            f"pg_catalog.set_config('{name}', '{PINNED_SETTINGS[name]}', true)"
            for name in self._switched
        )
        outs = ", ".join(f"r.{n}" for n in names)
        return (
            f"WITH r AS MATERIALIZED (SELECT {inner}, o FROM {source}), "  # noqa: S608
            f"s AS MATERIALIZED (SELECT c, {resets} "
            "FROM (SELECT pg_catalog.count(*) AS c FROM r OFFSET 0) k) "
            f"SELECT {outs} FROM s CROSS JOIN r WHERE s.c OPERATOR(pg_catalog.>=) 0"
            f" AND {self._fits('r', names)} ORDER BY r.o"
        )

    def _fits(self, table: str, names: Sequence[str]) -> str:
        """Return a condition that raises ``_TOO_LARGE`` for a row with an oversized value."""
        if not self._value_bytes_max or not names:
            return "true"
        sizes = [f"pg_catalog.pg_column_size({table}.{name})" for name in names]
        size = sizes[0] if len(sizes) == 1 else f"GREATEST({', '.join(sizes)})"
        return (
            f"CASE WHEN {size} OPERATOR(pg_catalog.>) {self._value_bytes_max} THEN"
            f" pg_catalog.textcat('{_TOO_LARGE}', {size}::pg_catalog.text)"
            "::pg_catalog.bool ELSE true END"
        )

    def parameters(self, fields: Sequence[Field]) -> tuple[list[str], list[str]]:
        """Return SQL for columns that are sent as arrays, typed and collated as ``fields``.

        Returns the arguments of ``unnest`` (``$1`` …), and the expressions over its columns
        ``u.a1`` … that compute columns ``a1`` ….
        """
        names = self.type_names(f.oid for f in fields)
        collations = self.collation_names(f.collation for f in fields)
        arrays, columns = [], []
        for i, f in enumerate(fields, 1):
            name, plain = names[f.oid]
            arrays.append(f"${i}::{name if plain else 'text'}[]")
            value = f"u.a{i}" if plain else f"u.a{i}::{name}"
            # Outside of a subquery its COLLATE is an implicit collation, as of a table's column.
            if collation := collations.get(f.collation):
                value = f"({value}) COLLATE {collation}"
            columns.append(f"{value} AS a{i}")
        return arrays, columns

    def type_names(self, oids: Iterable[int]) -> dict[int, tuple[str, bool]]:
        """Return SQL names by OID, each with whether its arrays can be ``unnest``-ed to it."""
        wanted = [oid for oid in dict.fromkeys(oids) if oid not in self._types]
        if wanted:
            rows = self.fetch(
                "SELECT t.oid, pg_catalog.format_type(t.oid, -1), t.typtype,"
                " t.typarray, t.typlen, t.typelem, t.typdelim FROM pg_catalog.pg_type t"
                " WHERE t.oid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.oid[])",
                ["{" + ",".join(map(str, wanted)) + "}"],
            )
            for oid, name, kind, array, length, element, delimiter in rows:
                assert oid is not None and name is not None, "catalog columns"
                nested = length == "-1" and element != "0"
                plain = array != "0" and kind in ("b", "e", "r", "m") and not nested
                # Arrays of box, or of PostGIS's geometry, have another delimiter.
                plain = plain and delimiter == ","
                self._types[int(oid)] = (name, plain)
        missing = [oid for oid in wanted if oid not in self._types]
        if missing:
            raise DefiniteFailure(f"type with OID {missing[0]} does not exist", sqlstate="42704")
        return self._types

    def collation_names(self, oids: Iterable[int]) -> dict[int, str]:
        """Return the collations' quoted names by OID, without 0 and the database's default."""
        wanted = {*oids} - {0, _DEFAULT_COLLATION, *self._collations}
        if wanted:
            rows = self.fetch(
                "SELECT c.oid, pg_catalog.quote_ident(n.nspname::pg_catalog.text),"
                " pg_catalog.quote_ident(c.collname::pg_catalog.text)"
                " FROM pg_catalog.pg_collation c JOIN pg_catalog.pg_namespace n"
                "   ON n.oid OPERATOR(pg_catalog.=) c.collnamespace"
                " WHERE c.oid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.oid[])",
                ["{" + ",".join(map(str, sorted(wanted))) + "}"],
            )
            for oid, schema, name in rows:
                assert oid is not None, "catalog columns"
                self._collations[int(oid)] = f"{schema}.{name}"
        if wanted - self._collations.keys():
            raise DefiniteFailure("a collation does not exist", sqlstate="42704")
        return self._collations

    def fetch(
        self,
        sql: str,
        params: Sequence[str],
        results: Sequence[Field] | None = None,
        rows: int = 0,
        part: Described | None = None,
        shown: str = "",
    ) -> list[tuple[str | None, ...]]:
        """Return the rows of a query as text; ``rows``: number of argument tuples.

        ``part``: the part of the view's query that returns the rows, if their number is not known;
        ``shown``: the expressions, for messages.

        A statement whose connection is lost is retried on a new one.

        Raises:
            Interrupted: Postgres is not reachable, or the statement failed with a transient error.
            RowError: a row of the arguments made the statement fail.
            DefiniteFailure: the statement can no longer run.
            LimitExceeded: it takes, or returns, more than the thread's resource bound allows.
        """
        bound = bounds.current()
        if bound is None:
            return self._answer(sql, params, results, part)
        bound.asked(rows, shown)
        try:
            return self._answer(sql, params, results, part)
        finally:
            bound.answered()

    def _answer(
        self,
        sql: str,
        params: Sequence[str],
        results: Sequence[Field] | None,
        part: Described | None,
    ) -> list[tuple[str | None, ...]]:
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            began = clock.monotonic()
            try:
                return self._fetch(sql, params, results, part, fresh=attempt > 1)
            except Unconnected as error:
                # It may have been terminated while it was opened; if the server is down, the
                # next attempt fails too.
                ended = self._key.owner is not None and error.error.sqlstate in _ENDED
                if ended and attempt < _ATTEMPTS_MAX and error.at < began + _OPENED_S:
                    self._pool.not_opened(self._key, self._owner, since=began)
                    continue
                raise OutOfReach(_message(error.error), sqlstate="08001") from error
            except _Lost as lost:
                if attempt == _ATTEMPTS_MAX:
                    raise Interrupted(
                        f"the connection that evaluates expressions was lost:"
                        f" {_message(lost.error)}",
                        sqlstate=lost.error.sqlstate or "08006",
                    ) from lost
                self._pool.forget(self._key.dsn)
            except psycopg.Error as error:
                _raise(error)
        raise AssertionError("the last attempt returns or raises")

    def _fetch(
        self,
        sql: str,
        params: Sequence[str],
        results: Sequence[Field] | None,
        part: Described | None,
        *,
        fresh: bool,
    ) -> list[tuple[str | None, ...]]:
        """Run a statement; ``fresh``: the connection was opened after an earlier one was lost."""
        with self._pool.link(self._key, self._owner) as link:
            try:
                given = [p.encode() for p in params]
                statement = link.run(sql.encode(), given, whose=self._number)
                return _rows(statement, sum(map(len, given)), results, part)
            except psycopg.Error as error:
                # User code can raise any SQLSTATE.
                if link.conn.closed or failures.is_lost(error):
                    link.conn.close()
                    if error.sqlstate in _ENDED:
                        proven = fresh and error.sqlstate == _TERMINATED
                        self._pool.terminated(link, self._owner, proven=proven)
                    raise _Lost(error) from error
                raise
            except BaseException:
                self._pool.end(link, self._owner)
                raise


class _Lost(Exception):
    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.error: Final = error


def _rows(
    statement: Iterator[PGresult],
    given: int,
    results: Sequence[Field] | None,
    part: Described | None,
) -> list[tuple[str | None, ...]]:
    """Return the rows of a statement that was sent ``given`` bytes of arguments."""
    bound = bounds.current()
    found: list[tuple[str | None, ...]] = []
    size, checked = 0, False
    for result in statement:
        if not checked:
            for i, field in enumerate(results or ()):
                _check_type(result.ftype(i), field)
            checked = True
        width, get = range(result.nfields), result.get_value
        for i in range(result.ntuples):
            values = [get(i, j) for j in width]
            size += sum(len(v) for v in values if v is not None)
            found.append(tuple(None if v is None else v.decode() for v in values))
        if bound is not None:
            bound.received(size, given)
            if part is not None:
                bound.expect(part, len(found))
    return found


def _check_type(oid: int, field: Field) -> None:
    if oid == field.oid:
        return
    # The types may differ (varchar for text) if their text is parsed in the same way.
    if arrow_type(oid) != arrow_type(field.oid):
        raise BugError(f"an expression of type OID {field.oid} came back as type OID {oid}")


def _raise(error: psycopg.Error) -> NoReturn:
    """Raise the error for an answer of a live connection; user code may have chosen its text."""
    code, message = error.sqlstate, _message(error)
    bound = bounds.current()
    if bound is not None and _TOO_LARGE in message:
        raise bound.too_large(message.rpartition(_TOO_LARGE)[2].strip('"')) from error
    if code is None:
        raise BugError(f"the statement could not be sent: {message}") from error
    family = errors.family(code)
    if family is ErrorFamily.DEFINITE or code == _READ_ONLY:
        raise DefiniteFailure(message, sqlstate=code) from error
    if family is ErrorFamily.TRANSIENT:
        raise Interrupted(message, sqlstate=code) from error
    raise RowError(message, sqlstate=code) from error


def _message(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error).strip() or type(error).__name__


def integers(values: npt.NDArray[np.int64]) -> str:
    """Format a parameter of type int8[]."""
    return "{" + ",".join(map(str, values.tolist())) + "}"
