"""A view needs its owner's right to read its sources: rights that are revoked, roles that are
dropped.

Postgres itself is the reference for these rights: it runs the query as the owner.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest

from headrace.embedded.engine import EmbeddedEngine
from tests import seeds
from tests.security.roles import connect, role
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.shared_engine,
    # A short poll interval of the catalog lets a view go on sooner.
    pytest.mark.engine_with(HEADRACE_CATALOG_POLL_MS="300", HEADRACE_SINK_RETRY_MS="50"),
]

STATE = """
SELECT status, sqlstate, headrace.view_message(id) FROM headrace.views
 WHERE format('%%I.%%I', schema_name, view_name) = %s"""


@contextlib.contextmanager
def people(server: psycopg.Connection, *names: str, **options: str) -> Iterator[list]:
    """Create roles of these names; drop the views before the roles."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(role(server, n)) for n in names] + [
            stack.enter_context(role(server, n, o)) for n, o in options.items()
        ]
        for (view,) in server.execute(
            "SELECT format('%I.%I', schema_name, view_name) FROM headrace.views ORDER BY id DESC"
        ).fetchall():
            server.execute("CALL headrace.drop_view(%s)", (view,))
        server.execute("DROP SCHEMA IF EXISTS side CASCADE")


@contextlib.contextmanager
def reading(
    engine: EmbeddedEngine, server: psycopg.Connection, options: str = "{}"
) -> Iterator[tuple[str, str, psycopg.Connection]]:
    """Create a table ``t`` of ``boss`` and a view ``v`` of ``reader``; yield names and session."""
    with people(server, "boss", "reader") as (boss, reader):
        server.execute(f"CREATE TABLE {boss}.t (id int PRIMARY KEY, v int)")
        server.execute(f"GRANT SELECT ON {boss}.t TO {reader}")
        with connect(engine.source, reader) as conn:
            conn.execute(
                "CALL headrace.create_view('v', %s, %s)", (f"SELECT id, v FROM {boss}.t", options)
            )
            yield boss, reader, conn


def state(server: psycopg.Connection, view: str) -> tuple:
    return server.execute(STATE, (view,)).fetchone()


def stopped(server: psycopg.Connection, view: str) -> tuple:
    """Return SQLSTATE and message of a view, once it has stopped."""
    wait_until(lambda: state(server, view)[0] == "error", f"{view} goes on")
    return state(server, view)[1:]


def running(server: psycopg.Connection, view: str) -> None:
    wait_until(
        lambda: state(server, view)[0] == "running", f"{view} does not go on: {state(server, view)}"
    )


@dataclass(frozen=True)
class Way:
    """A right of {r}: the statements that grant and revoke it, and the hint that restores it.

    {t} is a table of {b}, or of {u} if ``deep``; {g} is a role with members.
    """

    give: str
    take: str
    hint: str
    query: str = "SELECT id, v FROM {t}"
    of: str = "reader"
    deep: bool = False


GRANT = "GRANT SELECT ON {t} TO {r}"
REVOKE = "REVOKE SELECT ON {t} FROM {r}"
WAYS = {
    "table": Way(GRANT, REVOKE, GRANT),
    "columns": Way(
        "GRANT SELECT (id, v) ON {t} TO {r}",
        "REVOKE SELECT (v) ON {t} FROM {r}",
        "GRANT SELECT (v) ON {t} TO {r}",
    ),
    "everybody": Way("GRANT SELECT ON {t} TO PUBLIC", "REVOKE SELECT ON {t} FROM PUBLIC", GRANT),
    "member": Way("GRANT SELECT ON {t} TO {g}; GRANT {g} TO {r}", "REVOKE {g} FROM {r}", GRANT),
    "schema": Way(
        "GRANT SELECT ON {t} TO {r}; GRANT USAGE ON SCHEMA {b}_side TO {r}",
        "REVOKE USAGE ON SCHEMA {b}_side FROM {r}",
        "GRANT USAGE ON SCHEMA {b}_side TO {r}",
        query="SELECT id, v FROM {b}_side.moved",
    ),
    "function": Way(
        "GRANT SELECT ON {t} TO {r}; GRANT EXECUTE ON FUNCTION {b}.twice TO {r}",
        "REVOKE EXECUTE ON FUNCTION {b}.twice FROM {r}",
        "GRANT EXECUTE ON ROUTINE {b}.twice(integer) TO {r}",
        query="SELECT id, {b}.twice(v) AS v FROM {t}",
    ),
    "attribute": Way("ALTER ROLE {r} SUPERUSER", "ALTER ROLE {r} NOSUPERUSER", GRANT, of="root"),
    "owner": Way("ALTER TABLE {t} OWNER TO {r}", "ALTER TABLE {t} OWNER TO {b}", GRANT),
    "view": Way(
        "GRANT SELECT ON {t} TO {b}; SET ROLE {b}; CREATE OR REPLACE VIEW {b}.seen AS"
        " SELECT * FROM {t}; GRANT SELECT ON {b}.seen TO {r}; RESET ROLE",
        "REVOKE SELECT ON {t} FROM {b}",
        "GRANT SELECT ON {t} TO {b}",
        query="SELECT id, v FROM {b}.seen",
        deep=True,
    ),
    "invoker": Way(
        "GRANT SELECT ON {t} TO {r}; CREATE OR REPLACE VIEW {b}.through"
        " WITH (security_invoker) AS SELECT * FROM {t}; GRANT SELECT ON {b}.through TO {r}",
        REVOKE,
        GRANT,
        query="SELECT id, v FROM {b}.through",
    ),
}


@dataclass
class Case:
    """A way with its names, and a view of its reader."""

    server: psycopg.Connection
    way: Way
    names: dict[str, str]
    name: str

    def say(self, text: str) -> str:
        return text.format(**self.names)

    @property
    def view(self) -> str:
        return f"{self.names['r']}.by_{self.name}"

    @property
    def query(self) -> str:
        return self.say(self.way.query)

    @property
    def table(self) -> str:
        return self.names["t"]

    def make(self) -> None:
        owner = self.names["u" if self.way.deep else "b"]
        self.server.execute(
            f"CREATE TABLE {self.table} (id int PRIMARY KEY, v int);"
            f"INSERT INTO {self.table} VALUES (1, 10), (2, 20);"
            f"ALTER TABLE {self.table} OWNER TO {owner}"
        )
        if self.name == "schema":
            self.server.execute(f"ALTER TABLE {self.table} SET SCHEMA {owner}_side")
            self.names["t"] = f"{owner}_side.moved"
            self.server.execute(f"ALTER TABLE {owner}_side.t_schema RENAME TO moved")

    def give(self) -> None:
        self.server.execute(self.say(self.way.give))

    def take(self) -> None:
        self.server.execute(self.say(self.way.take))

    def write(self, number: int) -> None:
        """Insert a row that the view shows."""
        self.server.execute(f"INSERT INTO {self.table} VALUES (%s, %s)", (number, number))

    def shown(self) -> list:
        return rows(self.server, f"SELECT * FROM {self.view}")


def rows(conn: psycopg.Connection, query: str) -> list:
    return sorted(conn.execute(query).fetchall())


@pytest.fixture
def cases(server):
    """A case for each way."""
    with people(server, "boss", "under", "group", "reader", root="SUPERUSER") as found:
        keys = ("boss", "under", "group", "reader", "root")
        named = dict(zip(keys, found, strict=True))
        boss, side = named["boss"], f"{named['boss']}_side"
        server.execute(f"CREATE SCHEMA {side}")
        evals = server.execute(
            "SELECT string_agg(rolname, ', ') FROM pg_roles WHERE rolname ~ '^headrace_eval'"
        ).fetchone()[0]
        server.execute(
            f"CREATE FUNCTION {boss}.twice(int) RETURNS int IMMUTABLE LANGUAGE plpgsql"
            " AS 'BEGIN RETURN 2 * $1; END';"
            f"REVOKE EXECUTE ON FUNCTION {boss}.twice FROM PUBLIC;"
            f"GRANT EXECUTE ON FUNCTION {boss}.twice TO {evals}"
        )
        out = []
        for name, way in WAYS.items():
            owner = named["under" if way.deep else "boss"]
            names = {
                "b": boss,
                "u": named["under"],
                "g": named["group"],
                "r": named[way.of],
                "t": f"{owner}.t_{name}",
            }
            out.append(Case(server, way, names, name))
        yield out
        server.execute(f"DROP SCHEMA {side} CASCADE")


def test_a_right_that_ends_stops_the_view_until_it_is_back(engine, server, cases):
    for case in cases:
        case.make()
        case.give()
        with connect(engine.source, case.names["r"]) as conn:
            conn.execute(f"CALL headrace.create_view('by_{case.name}', %s)", (case.query,))
            assert rows(conn, case.query) == case.shown(), case.name
    for case in cases:
        case.take()
        case.write(3)
    for case in cases:
        code, message = stopped(server, case.view)
        assert code == "42501", (case.name, message)
        assert case.say(case.way.hint) in message, (case.name, message)
        assert [key for key, _ in case.shown()] == [1, 2], case.name
        # The query as Postgres sees it.
        with (
            connect(engine.source, case.names["r"]) as conn,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            conn.execute(case.query)
    for case in cases:
        case.give()
    for case in cases:
        running(server, case.view)
        case.write(4)
        server.execute("CALL headrace.wait_for(%s)", (case.view,))
        with connect(engine.source, case.names["r"]) as conn:
            assert rows(conn, case.query) == case.shown(), case.name


def test_what_is_committed_after_a_right_ended_is_not_seen(engine, server):
    """Changes after the revocation are never shown, even before the next poll of the catalog."""
    with reading(engine, server) as (boss, reader, _):
        view = f"{reader}.v"
        for number in range(0, 9, 3):
            server.execute(f"INSERT INTO {boss}.t VALUES ({number}, 0)")
            server.execute("CALL headrace.wait_for(%s)", (view,))
            # A row committed before the revocation may be shown.
            server.execute(f"INSERT INTO {boss}.t VALUES ({number + 1}, 0)")
            server.execute(f"REVOKE SELECT ON {boss}.t FROM {reader}")
            server.execute(f"INSERT INTO {boss}.t VALUES ({number + 2}, 1)")
            stopped(server, view)
            found = rows(server, f"SELECT id FROM {view}")
            assert (number,) in found
            assert (number + 2,) not in found
            server.execute(f"GRANT SELECT ON {boss}.t TO {reader}")
            running(server, view)


def test_nothing_is_tried_while_a_right_is_missing(engine, server):
    with reading(engine, server) as (boss, reader, conn):
        view = f"{reader}.v"
        server.execute(f"REVOKE SELECT ON {boss}.t FROM {reader}")
        # A change that normally makes the server populate the view again.
        server.execute(f"ALTER TABLE {boss}.t ALTER v TYPE bigint")
        assert stopped(server, view)[0] in ("42501", "55H01")
        wait_until(lambda: state(server, view)[1] == "42501", str(state(server, view)))
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
            conn.execute("CALL headrace.resync_view('v')")
        assert "permission denied for table t" in str(caught.value)
        assert state(server, view)[:2] == ("error", "42501")
        server.execute(f"GRANT SELECT ON {boss}.t TO {reader}")
        running(server, view)


def test_a_right_that_ends_comes_before_row_security(engine, server):
    """Without the right no resync succeeds, so the message names it, and its return is noticed."""
    with reading(engine, server) as (boss, reader, conn):
        view, secure = f"{reader}.v", f"ALTER TABLE {boss}.t ENABLE ROW LEVEL SECURITY"
        server.execute(
            f"INSERT INTO {boss}.t VALUES (1, 1), (2, 2);"
            f"CREATE POLICY few ON {boss}.t USING (id = 1);"
            f"REVOKE USAGE ON SCHEMA {boss} FROM PUBLIC; GRANT USAGE ON SCHEMA {boss} TO {reader}"
        )
        for changes in (
            f"{secure}; REVOKE USAGE ON SCHEMA {boss} FROM {reader}",
            f"REVOKE SELECT ON {boss}.t FROM {reader}; {secure}",
        ):
            server.execute(changes)
            wait_until(lambda: state(server, view)[1] == "42501", str(state(server, view)))
            assert "GRANT " in state(server, view)[2]
            server.execute(f"GRANT USAGE ON SCHEMA {boss} TO {reader}")
            server.execute(f"GRANT SELECT ON {boss}.t TO {reader}")
            running(server, view)
            assert rows(conn, "SELECT * FROM v") == [(1, 1)]
            server.execute(f"ALTER TABLE {boss}.t DISABLE ROW LEVEL SECURITY")
            wait_until(lambda: len(rows(conn, "SELECT * FROM v")) == 2, "it is not rebuilt")
            running(server, view)


def test_a_view_that_is_not_to_be_filled_by_itself_waits_for_its_owner(engine, server):
    stop = '{"on_change": "stop"}'
    with reading(engine, server, stop) as (boss, reader, conn):
        view = f"{reader}.v"
        server.execute(f"REVOKE SELECT ON {boss}.t FROM {reader}")
        assert stopped(server, view)[0] == "42501"
        server.execute(f"INSERT INTO {boss}.t VALUES (1)")
        server.execute(f"GRANT SELECT ON {boss}.t TO {reader}")
        wait_until(lambda: "rights are back" in state(server, view)[2], "nobody has seen")
        assert state(server, view)[0] == "error"
        conn.execute("CALL headrace.resync_view('v')")
        assert rows(conn, "SELECT id FROM v") == [(1,)]


def test_what_a_row_raises_is_no_right(engine, server):
    """User code may raise the SQLSTATE of a missing right."""
    with people(server, "boss") as (boss,):
        server.execute(
            f"CREATE TABLE {boss}.t (id int PRIMARY KEY, v int);"
            f"CREATE FUNCTION {boss}.deny(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
            " 'BEGIN IF $1 < 0 THEN RAISE insufficient_privilege; END IF; RETURN $1; END';"
            f"ALTER TABLE {boss}.t OWNER TO {boss}"
        )
        with connect(engine.source, boss) as conn:
            conn.execute(f"CALL headrace.create_view('v', 'SELECT id, {boss}.deny(v) AS v FROM t')")
            conn.execute(f"CALL headrace.create_view('healthy', 'SELECT id, v FROM {boss}.t')")
        server.execute(f"INSERT INTO {boss}.t VALUES (1, -1)")
        code, message = stopped(server, f"{boss}.v")
        assert code == "42501"
        for number in range(2, 4):  # by then the rights have been checked again
            server.execute(f"INSERT INTO {boss}.t VALUES ({number}, 1)")
            server.execute(f"REVOKE SELECT ON {boss}.t FROM {boss}")
            stopped(server, f"{boss}.healthy")
            server.execute(f"GRANT SELECT ON {boss}.t TO {boss}")
            running(server, f"{boss}.healthy")
        assert state(server, f"{boss}.v") == ("error", code, message)


def test_views_of_headrace_under_a_view(engine, server):
    """A lower view needs its owner's rights, which may end, and those of the upper view's owner."""
    with people(server, "boss", "middle", "reader") as (boss, middle, reader):
        server.execute(f"CREATE TABLE {boss}.t (id int PRIMARY KEY, v int)")
        server.execute(f"GRANT SELECT ON {boss}.t TO {middle}")
        with connect(engine.source, middle) as conn:
            conn.execute(f"CALL headrace.create_view('u', 'SELECT id, v FROM {boss}.t')")
            conn.execute(f"GRANT SELECT ON u TO {reader}")
        with connect(engine.source, reader) as conn:
            conn.execute(f"CALL headrace.create_view('v', 'SELECT id FROM {middle}.u')")
        lower, upper = f"{middle}.u", f"{reader}.v"
        with connect(engine.source, middle) as conn:
            conn.execute(f"REVOKE SELECT ON u FROM {reader}")
            code, message = stopped(server, upper)
            assert (code, state(server, lower)[0]) == ("42501", "running")
            assert f"GRANT SELECT ON {lower} TO {reader}" in message
            conn.execute(f"GRANT SELECT ON u TO {reader}")
        running(server, upper)
        server.execute(f"REVOKE SELECT ON {boss}.t FROM {middle}")
        code, message = stopped(server, lower)
        assert (code, f"{boss}.t" in message) == ("42501", True)
        # The sources of the lower view are hidden from its readers.
        code, message = stopped(server, upper)
        assert (code, boss in message, lower in message) == ("42501", False, True)
        server.execute(f"INSERT INTO {boss}.t VALUES (1, 1)")
        server.execute(f"GRANT SELECT ON {boss}.t TO {middle}")
        for view in (lower, upper):
            running(server, view)
            server.execute("CALL headrace.wait_for(%s)", (view,))
        assert rows(server, f"SELECT * FROM {upper}") == [(1,)]
        # From then on, the rights of the new owner count.
        server.execute(f"ALTER TABLE {boss}.t OWNER TO {boss}")
        server.execute(f"CALL headrace.set_owner('{lower}', '{boss}')")
        server.execute(f"REVOKE SELECT ON {boss}.t FROM {middle}")
        server.execute(f"INSERT INTO {boss}.t VALUES (2, 2)")
        wait_until(
            lambda: rows(server, f"SELECT * FROM {upper}") == [(1,), (2,)],
            "the view does not follow the one under it",
        )
        running(server, upper)


def test_the_next_role_of_a_name_owns_nothing(engine, server):
    with people(server, "boss", "late") as (boss, late):
        server.execute(f"CREATE TABLE {boss}.t (id int PRIMARY KEY, v int)")
        server.execute(f"INSERT INTO {boss}.t VALUES (1, 1)")
        server.execute("CREATE SCHEMA side; GRANT ALL ON SCHEMA side TO PUBLIC")
        server.execute(f"GRANT SELECT ON {boss}.t TO {late}")
        with connect(engine.source, late) as conn:
            for name in ("a", "b", "c"):
                conn.execute(
                    "CALL headrace.create_view(%s, %s)",
                    (f"side.{name}", f"SELECT id, v FROM {boss}.t"),
                )
        with pytest.raises(psycopg.errors.DependentObjectsStillExist) as caught:
            server.execute(f"DROP ROLE {late}")
        assert "privileges for table side.a" in str(caught.value)
        server.execute(f"DROP OWNED BY {late}; DROP ROLE {late}")
        # At once, before the worker has noticed.
        listed = server.execute(
            "SELECT status, message FROM headrace.list_views() WHERE name = 'side.a'"
        ).fetchone()
        assert listed[0] == "error"
        assert "the role that owned it was dropped" in listed[1]
        server.execute(f"CREATE ROLE {late} LOGIN PASSWORD 'known to the test'")
        server.execute(f"CREATE SCHEMA {late} AUTHORIZATION {late}")
        server.execute(f"GRANT SELECT ON {boss}.t TO {late}")
        with connect(engine.source, late) as conn:
            assert conn.execute("SELECT query FROM headrace.views").fetchall() == []
            for verb in ("drop_view", "resync_view", "resume_view", "pause_view"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(f"CALL headrace.{verb}('side.a')")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(f"CALL headrace.set_owner('side.a', '{late}')")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute("SELECT * FROM side.a")
        assert stopped(server, "side.a")[0] == "42704"
        server.execute(f"INSERT INTO {boss}.t VALUES (2, 2)")
        # A superuser may do anything with them.
        server.execute("CALL headrace.drop_view('side.a')")
        server.execute("CALL headrace.resync_view('side.b')")
        server.execute(f"CALL headrace.set_owner('side.c', '{late}')")
        for view in ("side.b", "side.c"):
            running(server, view)
            assert rows(server, f"SELECT id FROM {view}") == [(1,), (2,)]
        owners = server.execute(
            "SELECT owner::text FROM headrace.views ORDER BY view_name"
        ).fetchall()
        assert owners == [(server.info.user,), (late,)]
        with connect(engine.source, late) as conn:
            assert rows(conn, "SELECT id FROM side.c") == [(1,), (2,)]
            conn.execute("CALL headrace.pause_view('side.c')")


def test_a_role_with_another_name_is_the_same(engine, server):
    with people(server, "boss") as (boss,):
        server.execute(f"CREATE TABLE {boss}.t (id int PRIMARY KEY, v int)")
        server.execute(f"ALTER TABLE {boss}.t OWNER TO {boss}")
        with connect(engine.source, boss) as conn:
            conn.execute("CALL headrace.create_view('v', 'SELECT id, v FROM t')")
            server.execute(f'ALTER ROLE {boss} RENAME TO "{boss} Two"')
            try:
                conn.execute(f"INSERT INTO {boss}.t VALUES (1, 1)")
                conn.execute("CALL headrace.wait_for('v')")
                assert rows(conn, "SELECT * FROM v") == [(1, 1)]
                conn.execute("CALL headrace.resync_view('v')")
                assert state(server, f"{boss}.v")[0] == "running"
                conn.execute("CALL headrace.drop_view('v')")
            finally:
                server.execute(f'ALTER ROLE "{boss} Two" RENAME TO {boss}')


def test_set_owner_asks_what_postgres_asks(engine, server):
    with people(server, "boss", "heir", "friend") as (boss, heir, friend):
        server.execute(f"CREATE TABLE {boss}.t (id int PRIMARY KEY, v int)")
        server.execute(f"ALTER TABLE {boss}.t OWNER TO {boss}")
        view = f"{boss}.v"

        def give(conn, to, name=view):
            conn.execute("CALL headrace.set_owner(%s, %s)", (name, to))

        def refused(conn, to, what):
            with pytest.raises(psycopg.Error) as caught:
                give(conn, to)
            assert what in str(caught.value)
            assert state(server, view)[0] == "running"

        with connect(engine.source, boss) as conn, connect(engine.source, heir) as other:
            conn.execute("CALL headrace.create_view('v', 'SELECT id, v FROM t')")
            conn.execute(f"GRANT SELECT ON v TO {friend}; GRANT SELECT (id) ON v TO PUBLIC")
            refused(other, heir, "must be owner of view v")
            refused(conn, "nobody at all", "invalid name syntax")
            refused(conn, '"nobody at all"', "does not exist")
            refused(conn, heir, f'must be able to SET ROLE "{heir}"')
            server.execute(f"GRANT {heir} TO {boss}")
            refused(conn, heir, f"permission denied for schema {boss}")
            conn.execute(f"GRANT ALL ON SCHEMA {boss} TO {heir}")
            refused(conn, heir, "permission denied for table t")
            conn.execute(f"GRANT SELECT ON t TO {heir}")
            give(conn, heir)
            conn.execute(f"INSERT INTO {boss}.t VALUES (1, 1)")
            server.execute("CALL headrace.wait_for(%s)", (view,))
            for reader in (other, server):
                assert rows(reader, f"SELECT * FROM {view}") == [(1, 1)]
            # Grants by the old owner stay; the old owner's own rights are gone.
            with connect(engine.source, friend) as third:
                assert rows(third, f"SELECT * FROM {view}") == [(1, 1)]
            server.execute(f"REVOKE {heir} FROM {boss}")
            assert rows(conn, f"SELECT id FROM {view}") == [(1,)]  # granted to PUBLIC
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(f"SELECT v FROM {view}")
            refused(conn, boss, "must be owner of view v")
            # From now on the rights of the new owner count.
            conn.execute(f"REVOKE SELECT ON t FROM {heir}")
            assert stopped(server, view)[0] == "42501"


@pytest.mark.slow
def test_a_right_that_ends_while_the_engine_is_down(database, start_engine):
    """Changes of that time are in the stream, but the owner may not read them."""
    with psycopg.connect(database, autocommit=True) as server:
        engine = start_engine(database)
        with people(server, "boss", "reader", "late") as (boss, reader, late):
            server.execute(
                f"CREATE TABLE {boss}.t (id int PRIMARY KEY, v int);"
                f"GRANT SELECT ON {boss}.t TO {reader}, {late}"
            )
            for one in (reader, late):
                with connect(engine.source, one) as conn:
                    conn.execute(f"CALL headrace.create_view('v', 'SELECT id, v FROM {boss}.t')")
            with connect(engine.source, boss) as conn:
                server.execute(f"ALTER TABLE {boss}.t OWNER TO {boss}")
                conn.execute("CALL headrace.create_view('v', 'SELECT id FROM t')")
            engine.kill9()
            # As left by a version that stored no rights.
            server.execute(
                "UPDATE headrace.views SET watched = watched - 'rights' WHERE schema_name = %s",
                (boss,),
            )
            server.execute(f"INSERT INTO {boss}.t VALUES (1, 1)")
            server.execute(f"REVOKE SELECT ON {boss}.t FROM {reader}, {late}")
            server.execute(f"INSERT INTO {boss}.t VALUES (2, 2)")
            server.execute(
                f"ALTER SCHEMA {late} OWNER TO CURRENT_USER; DROP OWNED BY {late};"
                f"DROP ROLE {late}; CREATE ROLE {late} LOGIN PASSWORD 'known to the test';"
                f"GRANT SELECT ON {boss}.t TO {late}"
            )
            engine.start()
            assert stopped(server, f"{reader}.v")[0] == "42501"
            assert stopped(server, f"{late}.v")[0] == "42704"
            for one in (reader, late):
                assert (2,) not in rows(server, f"SELECT id FROM {one}.v")
            server.execute(f"GRANT SELECT ON {boss}.t TO {reader}")
            running(server, f"{reader}.v")
            server.execute(f"CALL headrace.set_owner('{late}.v', '{late}')")
            kept = "SELECT watched ? 'rights' FROM headrace.views WHERE schema_name = %s"
            wait_until(lambda: server.execute(kept, (boss,)).fetchone()[0], "nothing is kept")
            running(server, f"{boss}.v")
            for one in (reader, late, boss):
                server.execute(f"CALL headrace.wait_for('{one}.v')")
                assert rows(server, f"SELECT id FROM {one}.v") == [(1,), (2,)]


CHANGES = (
    *("GRANT SELECT ON {b}.t TO {r}", "REVOKE SELECT ON {b}.t FROM {r}") * 3,
    *("GRANT SELECT ON {b}.o TO {r}", "REVOKE SELECT (id) ON {b}.o FROM {r}"),
    *("GRANT SELECT (id) ON {b}.o TO {r}", "REVOKE SELECT ON {b}.o FROM {r}"),
    *("GRANT SELECT ON {b}.t, {b}.o TO PUBLIC", "REVOKE SELECT ON {b}.t FROM PUBLIC"),
    *("GRANT {g} TO {r}", "REVOKE {g} FROM {r}") * 2,
    *("GRANT SELECT ON {b}.seen TO {r}", "REVOKE SELECT ON {b}.seen FROM {r}"),
    *("GRANT USAGE ON SCHEMA {b} TO {r}", "REVOKE USAGE ON SCHEMA {b} FROM {r}"),
    *("ALTER ROLE {r} BYPASSRLS", "ALTER ROLE {r} NOBYPASSRLS"),
    *("ALTER TABLE {b}.t ENABLE ROW LEVEL SECURITY",)
    + ("ALTER TABLE {b}.t DISABLE ROW LEVEL SECURITY",) * 2,
)
OVER = {
    "plain": "SELECT id, v FROM {b}.t",
    "joined": "SELECT t.id, o.id AS o FROM {b}.t JOIN {b}.o AS o ON o.id = t.id",
    "through": "SELECT id FROM {b}.seen",
}


class Walk:
    """Random changes of rights and rows; each row has the next number."""

    def __init__(self, engine, server, names: dict[str, str], seed: int) -> None:
        self.engine, self.server, self.names = engine, server, names
        self.chance = random.Random(seed)
        self.number = 0
        self.views = {
            f"{names[r]}.{view}": (names[r], query.format(**names))
            for r in ("r0", "r1")
            for view, query in OVER.items()
        }
        self.allowed = dict.fromkeys(self.views, 0)
        """View -> number of the last row when its owner was last allowed to read."""

    def make(self) -> None:
        b, g, r0, r1 = (self.names[k] for k in ("b", "g", "r0", "r1"))
        self.server.execute(
            f"REVOKE USAGE ON SCHEMA {b} FROM PUBLIC; GRANT USAGE ON SCHEMA {b} TO {g};"
            f"CREATE TABLE {b}.t (id int PRIMARY KEY, v int);"
            f"CREATE TABLE {b}.o (id int PRIMARY KEY, v int);"
            f"CREATE VIEW {b}.seen AS SELECT id FROM {b}.t;"
            f"GRANT SELECT ON ALL TABLES IN SCHEMA {b} TO {g}; GRANT {g} TO {r0}, {r1}"
        )
        for view, (reader, query) in self.views.items():
            with connect(self.engine.source, reader) as conn:
                conn.execute("CALL headrace.create_view(%s, %s)", (view, query))

    def refused(self, view: str) -> str | None:
        """Return why Postgres refuses the owner the query; None if it does not."""
        reader, query = self.views[view]
        with connect(self.engine.source, reader) as conn:
            try:
                conn.execute(query)
            except psycopg.errors.InsufficientPrivilege as error:
                return str(error)
        return None

    def write(self) -> None:
        self.number += 1
        for table in ("t", "o"):
            self.server.execute(
                f"INSERT INTO {self.names['b']}.{table} VALUES (%s, %s)", (self.number, self.number)
            )

    def step(self) -> str:
        self.write()
        reader = self.names[self.chance.choice(("r0", "r1"))]
        change = self.chance.choice(CHANGES).format(**self.names, r=reader)
        self._note()
        self.server.execute(change)
        self._note()
        self.write()
        return change

    def _note(self) -> None:
        for view in self.views:
            if self.refused(view) is None:
                self.allowed[view] = self.number

    def settled(self, view: str) -> bool:
        status, code, _ = state(self.server, view)
        if self.refused(view):
            return (status, code) == ("error", "42501")
        if status != "running":
            return False
        self.allowed[view] = self.number
        with connect(self.engine.source, self.views[view][0]) as conn:
            return rows(conn, self.views[view][1]) == rows(conn, f"SELECT * FROM {view}")

    def check(self, done: list[str]) -> set[str]:
        """Wait until each view has the expected state; return the states seen."""
        found = set()
        for view in self.views:
            try:
                wait_until(lambda v=view: self.settled(v), view)
            except AssertionError:
                why = state(self.server, view), self.refused(view), done
                raise AssertionError(f"{view}: {why}") from None
            top = self.server.execute(f"SELECT max(id) FROM {view}").fetchone()[0]
            assert (top or 0) <= self.allowed[view], (view, done)
            found.add(state(self.server, view)[0])
        return found


@pytest.mark.parametrize(
    "settles", [3, pytest.param(40, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_random_rights_and_rows(engine, server, settles):
    seed = seeds.chosen("HEADRACE_RIGHTS_SEED")
    keys = ("b", "g", "r0", "r1")
    with people(server, *keys) as found:
        walk = Walk(engine, server, dict(zip(keys, found, strict=True)), seed)
        walk.make()
        done: list[str] = []
        seen = walk.check(done)
        for _ in range(settles):
            done += [walk.step() for _ in range(walk.chance.randint(1, 6))]
            seen |= walk.check(done)
        assert "running" in seen


def test_a_search_path_that_begins_with_our_schema_is_named(engine, server):
    """A role named headrace has it by default ("$user"); the remedy of the hint works."""
    with role(server, "poor") as poor:
        server.execute(f"GRANT CREATE ON SCHEMA public TO {poor}")
        with connect(engine.dsn, poor) as conn:
            conn.execute(f"CREATE TABLE {poor}.mine (id int PRIMARY KEY)")
            conn.execute("SET search_path = headrace, public")
            query = f"SELECT id FROM {poor}.mine"
            with pytest.raises(psycopg.errors.InsufficientPrivilege) as refused:
                conn.execute(f"CALL headrace.create_view('copied', '{query}')")
            hint = refused.value.diag.message_hint
            assert hint.endswith("Name another one: public.copied.")
            conn.execute(f"CALL headrace.create_view('public.copied', '{query}')")
            conn.execute("CALL headrace.drop_view('public.copied')")
