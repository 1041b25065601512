"""The transaction in which a query is bound: role, settings, the temporary view.

Analysing a query can run user code: a literal of a composite type is read at once, which runs the
check of a domain inside.  So a query is analysed only if that code can only be the caller's own
(``literals.py``), and that code must have only the caller's rights.  ``SET ROLE`` does not protect
the engine's rights, since the code may reset the role; a SECURITY DEFINER function does, since the
role cannot be reset inside it.  Hence every text that a caller can influence is analysed, and
computed, in temporary functions that belong to the caller.  That includes generated SQL, in which a
name may mean another object by then.

Such code of the caller can still do two things.  It may alter those functions, since the caller
owns them, so each call first checks that they are still SECURITY DEFINER.  And its objects are on
the caller's search path, so catalog queries run under a separate path (``acting.own_names``).

Postgres' own errors keep SQLSTATE, message, detail and hint; the position is moved to the user's
text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import pq, sql

from headrace.errors import (
    HeadraceError,
    PrerequisiteError,
    PrivilegeError,
    SyntaxUserError,
    UserError,
)
from headrace.planner import limits
from headrace.planner.analyse import literals
from headrace.planner.analyse.catalog import mentioned
from headrace.planner.analyse.nodetree import Node, read_nodes
from headrace.planner.analyse.query_errors import check_kind
from headrace.postgres import acting, failures
from headrace.postgres.connect import Connection
from headrace.postgres.settings import CAPTURED, EVALUATION, FUNCTION_PATH, PINNED_SETTINGS

_VIEW: Final = "headrace_bind"
_REHEARSED: Final = "headrace_rehearsal"
"""Differs from ``_VIEW``: queries that a query reads are rehearsed while its own view exists."""
_LITERAL: Final = r"((?:E)?'(?:[^']|'')*')::([a-z][\w .]*)"
_MARKS: Final = re.compile(f"( SET \\S+ TO ){_LITERAL}( DEFAULT ){_LITERAL}( USING )")
_PREFIX: Final = f"CREATE TEMPORARY VIEW pg_temp.{_VIEW} AS "
_PARSE: Final = f"PREPARE {_VIEW} AS "
_ANALYST: Final = "headrace_analyst"
_MAY_CREATE_TEMPORARY: Final = (
    "SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'TEMPORARY')"
)
_DEFINER: Final = """
SELECT p.prosecdef FROM pg_catalog.pg_proc p
 WHERE p.oid OPERATOR(pg_catalog.=) pg_catalog.to_regprocedure(%s)"""
_FUNCTIONS: Final = (
    """CREATE FUNCTION pg_temp.{name}(pg_catalog.text) RETURNS pg_catalog.void
LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN EXECUTE $1; END'""",
    """CREATE FUNCTION pg_temp.{name}_texts(pg_catalog.text) RETURNS pg_catalog.text[]
LANGUAGE plpgsql SECURITY DEFINER AS
'DECLARE found pg_catalog.text[]; BEGIN EXECUTE $1 INTO found; RETURN found; END'""",
    "GRANT EXECUTE ON FUNCTION pg_temp.{name}(pg_catalog.text),"
    " pg_temp.{name}_texts(pg_catalog.text) TO PUBLIC",
)


def to_error(error: psycopg.Error, *, shift: int = 0, inner: str | None = None) -> HeadraceError:
    """Convert an error of Postgres; the first ``shift`` characters are not the user's text.

    ``inner`` as for ``failures.translate``.
    """
    denied = error.sqlstate == PrivilegeError.sqlstate
    kind = PrivilegeError if denied else UserError
    return failures.translate(error, kind, shift=shift, inner=inner)


@dataclass(frozen=True, slots=True)
class BoundQuery:
    """The temporary view: its tree, its text, its columns."""

    oid: int
    """OID of the view: up to Postgres 15 its own tree names it (as ``old`` and ``new``)."""
    tree: Node
    canonical_sql: str
    columns: list[tuple[str, int, int, int]]
    """(name, type, typmod, collation)"""
    query: str

    def position(self, location: int) -> int | None:
        """Return the 1-based character position in the query of a tree location, if known.

        Postgres 17 and newer do not keep locations.
        """
        octets = (_PREFIX + self.query).encode()
        if not len(_PREFIX) <= location < len(octets):
            return None
        return len(octets[:location].decode(errors="replace")) - len(_PREFIX) + 1


@contextmanager
def binding(conn: Connection, caller: str | None, settings: dict[str, str]) -> Iterator[None]:
    """Run a transaction as ``caller`` with its settings; it is always rolled back."""
    with reading(conn):
        if caller is not None:
            acting.become(conn, caller)
        adopt(conn, settings)
        yield


@contextmanager
def reading(conn: Connection) -> Iterator[None]:
    """Run a transaction that reads the catalog under our own role; it is always rolled back."""
    try:
        with conn.transaction(force_rollback=True):
            yield
    except psycopg.Error as error:
        raise to_error(error) from error


def adopt(conn: Connection, settings: Mapping[str, str]) -> None:
    """Set the caller's settings that a query depends on, for the rest of the transaction."""
    given = {name.lower(): value for name, value in settings.items()}
    _set(conn, {n: given[n.lower()] for n in CAPTURED if n.lower() in given})


def has_xid(conn: Connection) -> bool:
    """Return whether the transaction of ``conn`` has an xid, that is, has written something."""
    row = conn.execute(
        "SELECT pg_catalog.num_nonnulls(pg_catalog.pg_current_xact_id_if_assigned())"
    ).fetchone()
    return bool(row and row[0])


def given_settings(conn: Connection, settings: Mapping[str, str]) -> dict[str, str]:
    """Return ``settings``, completed with the session's values for those not given."""
    rows = conn.execute(
        "SELECT s, pg_catalog.current_setting(s, true)"
        " FROM pg_catalog.unnest(%s::pg_catalog.text[]) s",
        (list(CAPTURED),),
    ).fetchall()
    given = {name.lower() for name in settings}
    own = {n: v for n, v in rows if v is not None and n.lower() not in given}
    return own | dict(settings)


def pin(conn: Connection) -> None:
    """Set, for the rest of the transaction, settings that make texts of values canonical."""
    _set(conn, {n: v for n, v in PINNED_SETTINGS.items() if n != "client_encoding"})


def _set(conn: Connection, settings: dict[str, str]) -> None:
    if not settings:
        return
    conn.execute(
        "SELECT pg_catalog.set_config(s.name, s.value, true)"
        " FROM ROWS FROM (pg_catalog.unnest(%s::pg_catalog.text[]),"
        "                 pg_catalog.unnest(%s::pg_catalog.text[])) s (name, value)",
        (list(settings), list(settings.values())),
    )


def captured_settings(conn: Connection, given: dict[str, str]) -> dict[str, str]:
    """Return the current settings that influence evaluation, including ``FUNCTION_PATH``.

    A view that is planned again keeps the path it was created with, which is in ``given``.
    Afterwards the pinned settings apply (``pin``): texts of values and names are canonical.
    """
    row = conn.execute(
        # Under the caller's search path.
        "SELECT pg_catalog.array_agg(pg_catalog.current_setting(s, true)),"
        "  pg_catalog.current_schemas(false)::pg_catalog.text[]"
        " FROM pg_catalog.unnest(%s::pg_catalog.text[]) s",
        (list(EVALUATION),),
    ).fetchone()
    assert row is not None, "an aggregate gives one row"
    found = {k: v for k, v in zip(EVALUATION, row[0], strict=True) if v is not None}
    pin(conn)
    path = ", ".join([*_quoted(conn, row[1]), "pg_temp"])
    return found | {FUNCTION_PATH: given.get(FUNCTION_PATH, path)}


def _quoted(conn: Connection, schemas: list[str]) -> list[str]:
    row = conn.execute(
        "SELECT pg_catalog.array_agg(pg_catalog.quote_ident(n) ORDER BY place)"
        " FROM pg_catalog.unnest(%s::pg_catalog.text[]) WITH ORDINALITY p (n, place)"
        " WHERE NOT pg_catalog.starts_with(n, 'pg_')",
        (schemas,),
    ).fetchone()
    return (row and row[0]) or []


def bind_query(conn: Connection, query: str, caller: str | None) -> None:
    """Let Postgres analyse ``query`` and make the temporary view of it.

    The syntax is checked first, without analysis: the extended protocol takes exactly one
    statement, and a text that can be prepared cannot smuggle in a clause of CREATE VIEW.

    Raises:
        UnsupportedError: analysing it might run another role's code.
    """
    check_kind(query, standard_strings=standard_strings(conn))
    check_syntax(conn, query)
    employ(conn, caller)
    refuse_others_code(conn, query)
    _make(conn, _VIEW, query, _ANALYST)


def check_syntax(conn: Connection, query: str) -> None:
    """Raise unless ``query`` is one statement that can be prepared; nothing is analysed."""
    if "\0" in query:
        raise SyntaxUserError("the query contains a zero byte")
    text = (_PARSE + query).encode(conn.info.encoding)
    _check(conn, conn.pgconn.prepare(b"", text), shift=len(_PARSE))


def employ(conn: Connection, caller: str | None, analyst: str = _ANALYST) -> None:
    """Create the functions in which queries are analysed as the current user."""
    row = conn.execute(_MAY_CREATE_TEMPORARY).fetchone()
    if row is None or not row[0]:
        raise PrerequisiteError(
            "checking the query needs the right to create temporary tables",
            hint="Run: " + _grant_temporary(conn, caller or conn.info.user),
        )
    for statement in _FUNCTIONS:
        made = statement.format(name=analyst).encode()
        _check(conn, conn.pgconn.exec_params(made, None))


def is_on(conn: Connection, setting: str) -> bool:
    """Return whether a boolean setting of the session is on."""
    row = conn.execute("SELECT pg_catalog.current_setting(%s)", (setting,)).fetchone()
    assert row is not None, "every setting has a value"
    return bool(row[0] == "on")


def standard_strings(conn: Connection) -> bool:
    """Return whether a backslash is an ordinary character in a plain string."""
    return is_on(conn, "standard_conforming_strings")


def refuse_others_code(conn: Connection, query: str, analyst: str = _ANALYST) -> None:
    """Raise if analysing ``query`` as the current user might run another role's code.

    REQUIRES: its syntax is correct, and ``employ`` has created ``analyst`` as that user.
    """
    found = literals.suspects(query, standard_strings=standard_strings(conn))
    if not found:
        return

    def analysed(copy: str) -> Node:
        with conn.transaction(force_rollback=True):
            _make(conn, _REHEARSED, copy, analyst)
            with acting.own_names(conn):
                return _tree(conn, _REHEARSED)

    literals.Rehearsal(conn, query, found).run(analysed, mentioned)


def _make(conn: Connection, view: str, query: str, analyst: str) -> None:
    """Create a temporary view as the owner of ``analyst``."""
    make(conn, (f"CREATE TEMPORARY VIEW pg_temp.{view} AS ", query, ""), analyst)


def make(conn: Connection, parts: tuple[str, str, str], analyst: str = _ANALYST) -> None:
    """Execute, as the caller, the statement of ``parts``: prefix, text and suffix.

    REQUIRES: ``check_syntax`` accepts the text, and so does ``refuse_others_code`` or its like.

    Raises:
        HeadraceError: the error of Postgres; positions refer to the text.
    """
    prefix, made = parts[0], "".join(parts)
    call = f"SELECT {_definer(conn, analyst)}($1::pg_catalog.text)".encode()
    result = conn.pgconn.exec_params(call, [made.encode(conn.info.encoding)])
    _check(conn, result, shift=len(prefix), inner=made)


def _definer(conn: Connection, function: str) -> str:
    """Return the qualified name of a function after checking that it is SECURITY DEFINER.

    Its owner may have altered it while it ran.  No code of the owner runs between this check and
    the call.

    Raises:
        PrivilegeError: the function would run with the rights of its caller.
    """
    name = f"pg_temp.{function}"
    row = conn.execute(_DEFINER, (f"{name}(pg_catalog.text)",)).fetchone()
    if row is None or not row[0]:
        raise PrivilegeError(
            "the query changes the session in which it is analysed",
            detail="Reading one of its literals calls a function that does so.",
        )
    return name


def _tree(conn: Connection, view: str) -> Node:
    row = conn.execute(
        "SELECT ev_action FROM pg_rewrite WHERE ev_class = %s::regclass", (f"pg_temp.{view}",)
    ).fetchone()
    assert row is not None, "the view has been made in this transaction"
    [tree] = read_nodes(row[0])
    return tree


def _check(
    conn: Connection, result: pq.abc.PGresult, *, shift: int = 0, inner: str | None = None
) -> None:
    if result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
        return
    error = psycopg.errors.error_from_result(result, conn.info.encoding)
    raise to_error(error, shift=shift, inner=inner) from error


def _grant_temporary(conn: Connection, role: str) -> str:
    grant = sql.SQL("GRANT TEMPORARY ON DATABASE {} TO {};")
    names = sql.Identifier(conn.info.dbname), sql.Identifier(role)
    return grant.format(*names).as_string(conn)


@dataclass(frozen=True, slots=True)
class StoredQuery:
    """A temporary view as the catalog has it."""

    oid: int
    action: str
    """Text of its tree."""
    printed: str
    columns: list[tuple[str, int, int, int]]


def fetch_view(conn: Connection, view: str = _VIEW) -> StoredQuery:
    """Return the temporary view that was made of a query."""
    name = f"pg_temp.{view}"
    row: tuple[Any, ...] | None = conn.execute(
        "SELECT left(ev_action::text, %(most)s), CASE WHEN length(ev_action::text) < %(most)s"
        " THEN pg_get_viewdef(ev_class, false) END, ev_class FROM pg_rewrite"
        " WHERE ev_class = %(name)s::regclass",
        {"most": limits.tree_chars(), "name": name},
    ).fetchone()
    assert row is not None, "the view has been made in this transaction"
    if row[1] is None:
        limits.check_tree(len(row[0]))
    columns = conn.execute(
        "SELECT attname, atttypid, atttypmod, attcollation FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
        (name,),
    ).fetchall()
    return StoredQuery(int(row[2]), row[0], row[1], columns)


def bound_query(stored: StoredQuery, query: str) -> BoundQuery:
    """Return the bound tree of ``query``; a large tree takes a while to read."""
    [tree] = read_nodes(stored.action)
    printed = _readable(stored.printed.strip())
    return BoundQuery(stored.oid, tree, printed, stored.columns, query)


def read_view(conn: Connection, query: str, view: str = _VIEW) -> BoundQuery:
    """Return the query as Postgres has stored it."""
    return bound_query(fetch_view(conn, view), query)


def _readable(printed: str) -> str:
    """Return a printed query in a form that Postgres can read again.

    Postgres prints the marks of a CYCLE clause with casts, which its grammar does not accept.
    """
    return _MARKS.sub(r"\1\3 \2\4\6 \5\7", printed)


def made_view(conn: Connection, query: str, view: str, analyst: str = _ANALYST) -> BoundQuery:
    """Bind a generated query in a temporary view that continues to exist, and return it.

    Raises:
        psycopg.Error: Postgres does not accept it.
    """
    execute(conn, f"CREATE TEMPORARY VIEW pg_temp.{view} AS {query}", analyst)
    return read_view(conn, query, view)


def execute(conn: Connection, statement: str, analyst: str = _ANALYST) -> None:
    """Execute a statement of our own as the caller; its rows are discarded."""
    call = f"SELECT {_definer(conn, analyst)}(%s::pg_catalog.text)"
    conn.execute(call.encode(), (statement,))


def output_texts(conn: Connection, items: Sequence[str]) -> list[str | None]:
    """Return the values of constant expressions as Postgres prints them.

    Raises:
        psycopg.Error: an expression fails.
    """
    # format() takes a type's output function; a cast to text could be one of a user's.
    shown = ", ".join(
        f"CASE WHEN pg_catalog.num_nulls(q.c{i}) OPERATOR(pg_catalog.=) 0"
        f" THEN pg_catalog.format('%s', q.c{i}) END"
        for i in range(len(items))
    )
    inner = ", ".join(f"{item} AS c{i}" for i, item in enumerate(items))
    # Our own text over names that are quoted where they come from.
    statement = f"SELECT ARRAY[{shown}]::pg_catalog.text[] FROM (SELECT {inner}) q"  # noqa: S608
    call = f"SELECT {_definer(conn, f'{_ANALYST}_texts')}(%s::pg_catalog.text)"
    row = conn.execute(call.encode(), (statement,)).fetchone()
    assert row is not None, "a function call answers one row"
    found: list[str | None] = row[0]
    return found
