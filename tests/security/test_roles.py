"""The role that a session claims is checked against the role that logged in."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.security.conftest import Nobody

CALL = "CALL headrace.create_view('v', 'SELECT 1')"


@pytest.fixture
def nobody(shared_nobody: Nobody) -> Nobody:
    return shared_nobody


@pytest.fixture
def admin(nobody: Nobody) -> Iterator[psycopg.Connection]:
    with psycopg.connect(nobody.commander.source, autocommit=True) as conn:
        yield conn


@pytest.fixture
def boss(nobody: Nobody, admin: psycopg.Connection) -> Iterator[str]:
    """A role that ``nobody`` may not become unless a test grants it."""
    name = f"{nobody.name}_boss"
    run(admin, "CREATE ROLE {}", name)
    yield name
    run(admin, "DROP ROLE {}", name)


def run(conn: psycopg.Connection, text: str, *names: str) -> None:
    conn.execute(sql.SQL(text).format(*map(sql.Identifier, names)))


def connect(nobody: Nobody, user: str = "") -> psycopg.Connection:
    given = make_conninfo(nobody.commander.dsn, user=user or nobody.name)
    return psycopg.connect(given, autocommit=True)


def refused(conn: psycopg.Connection, login: str, caller: str) -> None:
    """Check that a call is refused in both protocols, and the session goes on."""
    for arguments in (None, ["v"]):
        text = CALL if arguments is None else CALL.replace("'v'", "%s")
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
            conn.execute(text, arguments)
        assert caught.value.diag.message_primary == (f'role "{login}" may not act as "{caller}"')
        assert conn.execute("SELECT current_user").fetchone() == (caller,)


def test_a_membership_that_ended_ends_for_a_session_that_uses_it(nobody, admin, boss):
    run(admin, "GRANT {} TO {}", boss, nobody.name)
    with connect(nobody) as conn:
        run(conn, "SET ROLE {}", boss)
        conn.execute(CALL)
        assert nobody.callers() == {boss}
        run(admin, "REVOKE {} FROM {}", boss, nobody.name)
        refused(conn, nobody.name, boss)
        conn.execute("RESET ROLE")
        conn.execute(CALL)
    assert nobody.callers() == {boss, nobody.name}
    assert len(nobody.commander.builder.calls) == 2


def test_a_superuser_that_is_none_any_more_is_nobody_else(nobody, admin, boss):
    other = f"{boss}_root"
    run(admin, "CREATE ROLE {} LOGIN SUPERUSER", other)
    try:
        with connect(nobody, other) as conn:
            run(conn, "SET SESSION AUTHORIZATION {}", boss)
            conn.execute(CALL)
            assert nobody.callers() == {boss}
            run(admin, "ALTER ROLE {} NOSUPERUSER", other)
            refused(conn, other, boss)
    finally:
        run(admin, "DROP ROLE {}", other)
    assert len(nobody.commander.builder.calls) == 1


def test_a_role_with_a_new_name_has_to_connect_again(nobody, admin):
    """The old name may belong to another role by now."""
    old, new = f"{nobody.name}_old", f"{nobody.name}_new"
    run(admin, "CREATE ROLE {} LOGIN", old)
    with connect(nobody, old) as conn:
        run(admin, "ALTER ROLE {} RENAME TO {}", old, new)
        run(admin, "CREATE ROLE {} LOGIN", old)
        try:
            refused(conn, old, new)
        finally:
            run(admin, "DROP ROLE {}, {}", old, new)
    assert nobody.commander.builder.calls == []


def test_a_grant_without_set_is_not_enough(nobody, admin, boss):
    if admin.info.server_version < 160000:
        pytest.skip("Postgres before 16 has no such grants")
    run(admin, "GRANT {} TO {}", boss, nobody.name)
    with connect(nobody) as conn:
        run(conn, "SET ROLE {}", boss)
        run(admin, "GRANT {} TO {} WITH SET FALSE", boss, nobody.name)
        refused(conn, nobody.name, boss)
    assert nobody.commander.builder.calls == []
