"""View names: parsed like identifiers in Postgres, resolved to a schema, checked for rights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

from headrace.errors import (
    DuplicateError,
    PrivilegeError,
    TransientError,
    UndefinedError,
    UserError,
)
from headrace.postgres import tokens
from headrace.postgres.acting import act_as
from headrace.postgres.connect import Connection
from headrace.sql import views
from headrace.sql.status import UNFINISHED
from headrace.sql.views import ViewRow

_BYTES_MAX: Final = 63
_OURS: Final = "headrace"


@dataclass(frozen=True, slots=True)
class ViewName:
    """Schema and name of a view's result table."""

    schema: str
    name: str
    new_schema: bool = False
    """The schema does not exist; it is created, for the caller, together with the table."""


@dataclass(frozen=True, slots=True)
class Role:
    """An existing role: its OID, and its current name."""

    oid: int
    name: str


def parse(conn: Connection, text: str) -> tuple[str | None, str]:
    """Return (schema or None, name) of ``name`` or ``schema.name``, quoted or not.

    Raises:
        UserError: 42602 (not an identifier), 42622 (longer than 63 bytes).
    """
    if "\x00" in text:
        raise UserError("invalid name syntax: zero byte", sqlstate="42602")
    try:
        with conn.transaction():
            row = conn.execute("SELECT pg_catalog.parse_ident(%s)", (text,)).fetchone()
    except psycopg.errors.InvalidParameterValue as error:
        raise UserError(
            f'invalid name syntax: "{text}"',
            detail=error.diag.message_detail,
            hint="Write it as name or schema.name, with double quotes where SQL needs them.",
            sqlstate="42602",
        ) from error
    assert row is not None, "a function call answers one row"
    parts: list[str] = row[0]
    if len(parts) > 2:
        raise UserError(
            f"improper qualified name (too many dotted names): {text}", sqlstate="42602"
        )
    for part in parts:
        if not part:
            raise UserError("zero-length delimited identifier", sqlstate="42602")
        if len(part.encode()) > _BYTES_MAX:
            raise UserError(
                f'identifier "{part}" is too long',
                detail=f"An identifier may have at most {_BYTES_MAX} bytes.",
                sqlstate="42622",
            )
    return (parts[0], parts[1]) if len(parts) == 2 else (None, parts[0])


def resolve_new(
    conn: Connection, text: str, caller: str | None, settings: dict[str, str]
) -> ViewName:
    """Return the name of a new view called ``text``, after all checks that need no plan.

    Raises:
        UserError: 42602, 42622, 3F000 (no such schema), 42P07 or 42710 (name taken).
        PrivilegeError: the caller may not create in the schema.
    """
    given, name = parse(conn, text)
    schema = _current_schema(conn, caller, settings) if given is None else given
    hint = None
    if given is None:
        hint = f"It is the first schema of your search_path. Name another one: public.{text}."
    if schema in (_OURS, "information_schema") or schema.startswith("pg_"):
        raise PrivilegeError(f'permission denied for schema "{schema}"', hint=hint)
    row: Any = conn.execute(
        "SELECT n.oid, has_schema_privilege(coalesce(%(caller)s, current_user), n.oid,"
        " 'CREATE') FROM pg_namespace n WHERE n.nspname = %(schema)s",
        {"caller": caller, "schema": schema},
    ).fetchone()
    if row is None:
        return _resolve_new_schema(conn, schema, name, caller)
    oid, may_create = row
    if not may_create:
        raise PrivilegeError(f"permission denied for schema {schema}", hint=hint)
    _check_free(conn, int(oid), schema, name)
    return ViewName(schema, name)


def find(
    conn: Connection, text: str, caller: str | None, settings: dict[str, str]
) -> ViewRow | None:
    """Return the view called ``text``: in its schema, or the first on the caller's search path."""
    schema, name = parse(conn, text)
    path = [schema] if schema is not None else search_path(conn, caller, settings)
    return views.find(conn, name, path)


def find_named(
    conn: Connection, text: str, caller: str | None, settings: dict[str, str]
) -> ViewRow | None:
    """Return the view that ``text`` names, or None if ``text`` is not a name but a query.

    Raises:
        UndefinedError: 42P01, there is no view of that name.
    """
    try:
        parse(conn, text)
    except UserError:
        return None
    view = find(conn, text, caller, settings)
    if view is None:
        raise UndefinedError(
            f'view "{text}" does not exist',
            hint="See headrace.list_views(). For a query that is not a view yet, pass the query"
            " itself.",
            sqlstate="42P01",
        )
    return view


def find_here(
    conn: Connection, text: str, caller: str | None, settings: dict[str, str]
) -> ViewRow | None:
    """Return the finished view that a new one called ``text`` would replace, or None."""
    schema, name = parse_new(conn, text, caller, settings)
    found = views.find(conn, name, [schema])
    return None if found is None or found.status in UNFINISHED else found


def parse_new(
    conn: Connection, text: str, caller: str | None, settings: dict[str, str]
) -> tuple[str, str]:
    """Return schema and name of a new view called ``text``; the schema need not exist."""
    schema, name = parse(conn, text)
    return (_current_schema(conn, caller, settings) if schema is None else schema), name


def search_path(conn: Connection, caller: str | None, settings: dict[str, str]) -> list[str]:
    """Return the existing schemas of the caller's search path."""
    with conn.transaction(force_rollback=True):
        act_as(conn, caller, settings)
        row: Any = conn.execute("SELECT pg_catalog.current_schemas(false)").fetchone()
    return [str(schema) for schema in row[0]]


def find_owned(
    conn: Connection, text: str, caller: str | None, settings: dict[str, str]
) -> ViewRow:
    """Return the view called ``text``, for an action that only its owner may take.

    Raises:
        UndefinedError: 42P01, there is no such view.
        PrivilegeError: the caller is neither its owner nor a superuser.
    """
    view = find(conn, text, caller, settings)
    if view is None:
        raise UndefinedError(
            f'view "{text}" does not exist', hint="See headrace.list_views().", sqlstate="42P01"
        )
    check_owner(conn, view, caller)
    return view


def lock(conn: Connection, view: ViewRow) -> ViewRow:
    """Lock the catalog row of a view that was found before; return it as it is now.

    Since it was found, its creation may have ended, or another call may have altered it.

    Raises:
        UndefinedError: 42P01, the view was dropped since.
        UserError: 55006, the view's ID has changed since, by a resync or a new creation.
        TransientError: 55006, the view was renamed since.
    """
    views.lock(conn, view.id)
    return again(conn, view)


def again(conn: Connection, view: ViewRow) -> ViewRow:
    """Return a view that was found before as it is now; errors as for ``lock``.

    REQUIRES: the view's row is locked, if it is still there.
    """
    now = views.of_id(conn, view.id)
    if now is not None and (now.schema, now.name) != (view.schema, view.name):
        raise TransientError(
            f"view {view.shown} was renamed to {now.shown} meanwhile",
            hint="Call this once more.",
            sqlstate="55006",
        )
    if now is not None:
        return now
    if views.find(conn, view.name, [view.schema]) is None:
        raise UndefinedError(f'view "{view.name}" was dropped', sqlstate="42P01")
    raise UserError(
        f'view "{view.name}" was rebuilt meanwhile',
        hint="Call this once more.",
        sqlstate="55006",
    )


def check_owner(conn: Connection, view: ViewRow, caller: str | None) -> None:
    """Raise PrivilegeError unless ``caller`` may act as the owner of ``view``."""
    if not acts_for_owner(conn, view, caller):
        raise PrivilegeError(f"must be owner of view {view.name}")


def acts_for_owner(conn: Connection, view: ViewRow, caller: str | None) -> bool:
    """Return whether ``caller`` may act as the owner of ``view``; None, the server, always may."""
    if caller is None:
        return True
    row: Any = conn.execute(
        "SELECT r.rolsuper OR r.rolname = current_user"
        " OR EXISTS (SELECT FROM pg_roles o WHERE o.oid = %(owner)s::bigint::oid"
        "             AND pg_has_role(r.oid, o.oid, 'USAGE'))"
        " FROM pg_roles r WHERE r.rolname = %(caller)s",
        {"owner": view.owner, "caller": caller},
    ).fetchone()
    return bool(row and row[0])


def role(conn: Connection, name: str | None) -> Role:
    """Return the role called ``name``; None means the role of this connection.

    Raises:
        UndefinedError: 42704, there is no such role.
    """
    found = conn.execute(
        "SELECT r.oid::bigint, r.rolname FROM pg_roles r"
        " WHERE r.rolname = coalesce(%s::name, current_user)",
        (name,),
    ).fetchone()
    if found is None:
        raise UndefinedError(f'role "{name}" does not exist')
    return Role(*found)


def role_of(conn: Connection, oid: int) -> Role:
    """Return the role with the OID ``oid``.

    Raises:
        UndefinedError: 42704, the role was dropped.
    """
    found = conn.execute(
        "SELECT r.oid::bigint, r.rolname FROM pg_roles r WHERE r.oid = %s::bigint::oid", (oid,)
    ).fetchone()
    if found is None:
        raise UndefinedError("the role that owns the view was dropped")
    return Role(*found)


def _current_schema(conn: Connection, caller: str | None, settings: dict[str, str]) -> str:
    with conn.transaction(force_rollback=True):
        act_as(conn, caller, settings)
        row: Any = conn.execute("SELECT pg_catalog.current_schema()").fetchone()
    if row[0] is None:
        raise UndefinedError("no schema has been selected to create in", sqlstate="3F000")
    return str(row[0])


def _resolve_new_schema(conn: Connection, schema: str, name: str, caller: str | None) -> ViewName:
    row: Any = conn.execute(
        "SELECT has_database_privilege(coalesce(%s, current_user), current_database(), 'CREATE')",
        (caller,),
    ).fetchone()
    if not row[0]:
        raise UndefinedError(f'schema "{schema}" does not exist', sqlstate="3F000")
    return ViewName(schema, name, new_schema=True)


def _check_free(conn: Connection, namespace: int, schema: str, name: str) -> None:
    row: Any = conn.execute(
        "SELECT EXISTS (SELECT FROM pg_class"
        "  WHERE relnamespace = %(n)s AND relname = %(name)s),"
        " EXISTS (SELECT FROM pg_type WHERE typnamespace = %(n)s AND typname = %(name)s)",
        {"n": namespace, "name": name},
    ).fetchone()
    if row[0]:
        raise DuplicateError(f'relation "{name}" already exists', sqlstate="42P07")
    if row[1]:
        raise DuplicateError(f'type "{name}" already exists', sqlstate="42710")
    if views.is_taken(conn, schema, name):
        argument = tokens.argument(tokens.qualified(schema, name))
        raise DuplicateError(
            f'view "{name}" already exists',
            detail="Its result table was dropped or renamed.",
            hint=f"CALL headrace.drop_view({argument}) removes what is left of it.",
            sqlstate="42P07",
        )
