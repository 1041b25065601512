"""Row security: each role sees in a view the rows that the view's query would give that role.

Postgres itself is the reference: each role runs the query, and reads the view.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import psycopg
import pytest

from tests import seeds
from tests.security.roles import connect, role
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.shared_engine,
    pytest.mark.engine_with(HEADRACE_CATALOG_POLL_MS="300", HEADRACE_SINK_RETRY_MS="50"),
]

TENANTS = ("a", "b", "c")
TABLES = """
CREATE TABLE {b}.o (id int PRIMARY KEY, tenant text, who name, k int, n numeric);
CREATE TABLE {b}.i (id int PRIMARY KEY, o int, tenant text, q int);
CREATE TABLE {b}.free (id int PRIMARY KEY, tenant text);
CREATE TABLE {b}.members (who name, tenant text, PRIMARY KEY (who, tenant));
CREATE VIEW {b}.through WITH (security_invoker) AS SELECT * FROM {b}.o;
INSERT INTO {b}.free SELECT n, chr(96 + n % 4) FROM generate_series(1, 6) n;
INSERT INTO {b}.members VALUES ('{x}', 'a'), ('{x}', 'b'), ('{y}', 'c');
ALTER TABLE {b}.o OWNER TO {b};
ALTER TABLE {b}.i OWNER TO {b};
GRANT USAGE ON SCHEMA {b} TO PUBLIC;
GRANT SELECT ON ALL TABLES IN SCHEMA {b} TO {b}, {r}, {x}, {y}, {z}, {g};
"""
CONDITIONS = (
    "tenant = current_setting('app.tenant', true)",
    "tenant = current_setting('app.tenant', true)",
    "tenant IN (SELECT m.tenant FROM {b}.members m WHERE m.who = current_user)",
    "EXISTS (SELECT 1 FROM {b}.members m WHERE m.who = current_user AND m.tenant = {t}.tenant)",
    "tenant <> 'b' AND tenant IS NOT NULL",
    "true",
    "pg_has_role(current_user, '{g}', 'USAGE')",
)
QUERIES = (
    "SELECT id, tenant, n FROM {b}.o",
    "SELECT id, tenant AS t, k FROM {b}.o WHERE k > 1",
    "SELECT tenant, count(*) AS c, sum(n) AS s FROM {b}.o GROUP BY tenant",
    "SELECT tenant AS whose, max(k) AS m FROM {b}.through GROUP BY tenant HAVING max(k) > 1",
    "SELECT count(*) AS c FROM {b}.o",
    "SELECT o.id, o.tenant, i.q FROM {b}.o JOIN {b}.i ON i.o = o.id AND i.tenant = o.tenant",
    "SELECT o.id, o.tenant, i.tenant AS it, i.q FROM {b}.o JOIN {b}.i ON i.o = o.id",
    "SELECT o.id, o.tenant, i.q FROM {b}.o LEFT JOIN {b}.i ON i.o = o.id AND i.tenant = o.tenant",
    "SELECT f.id, o.tenant, o.k FROM {b}.free f LEFT JOIN {b}.o ON o.tenant = f.tenant",
    "SELECT f.id, o.tenant, o.k FROM {b}.free f JOIN {b}.o ON o.tenant = f.tenant",
    "SELECT DISTINCT tenant, k FROM {b}.o",
    "SELECT tenant, q AS n FROM {b}.i UNION ALL SELECT tenant, k FROM {b}.o",
    "SELECT tenant FROM {b}.o EXCEPT SELECT tenant FROM {b}.i",
    "SELECT tenant FROM {b}.o INTERSECT ALL SELECT tenant FROM {b}.free",
    "SELECT id, tenant, rank() OVER (PARTITION BY tenant ORDER BY k) AS r FROM {b}.o",
    "SELECT id, tenant, rank() OVER (ORDER BY k) AS r FROM {b}.o",
    "SELECT DISTINCT ON (tenant) tenant, id FROM {b}.o ORDER BY tenant, k, id",
    "SELECT tenant, k, count(*) AS c FROM {b}.o GROUP BY GROUPING SETS ((tenant, k), (tenant))",
    "SELECT id, tenant, (SELECT count(*) FROM {b}.i WHERE i.tenant = o.tenant) AS c FROM {b}.o",
    "SELECT id, tenant, (SELECT sum(i.q) FROM {b}.i WHERE i.tenant = o.tenant AND i.q < o.k) AS c"
    " FROM {b}.o",
    "SELECT id, tenant FROM {b}.o WHERE EXISTS (SELECT FROM {b}.i WHERE i.tenant = o.tenant)",
    "SELECT id, tenant FROM {b}.o WHERE NOT EXISTS"
    " (SELECT FROM {b}.i WHERE i.tenant = o.tenant AND i.o = o.id)",
    "SELECT id, tenant FROM {b}.o WHERE k IN (SELECT q FROM {b}.i)",
    "WITH w AS MATERIALIZED (SELECT * FROM {b}.o) SELECT x.id, y.id AS o, x.tenant FROM w x JOIN w y"
    " ON x.tenant = y.tenant AND x.k < y.k",
    "SELECT tenant, id FROM {b}.o ORDER BY id LIMIT 3",
    "SELECT x.tenant, x.c FROM {b}.free f, LATERAL (SELECT tenant, count(*) AS c FROM {b}.o"
    " WHERE o.k > f.id GROUP BY tenant) x",
)
CHANGES = (
    *("CREATE POLICY {p} ON {t} USING ({c})",) * 3,
    *("CREATE POLICY {p} ON {t} AS RESTRICTIVE FOR SELECT USING ({c})",),
    *("CREATE POLICY {p} ON {t} TO {g} USING ({c})", "CREATE POLICY {p} ON {t} TO {x}, {y} USING ({c})"),
    *("CREATE POLICY {p} ON {t} AS RESTRICTIVE TO {g} USING ({c})",),
    *("DROP POLICY {p} ON {t}",) * 4,
    *("ALTER POLICY {p} ON {t} USING ({c})",) * 2,
    *("ALTER POLICY {p} ON {t} TO {z}",),
    *("ALTER TABLE {t} ENABLE ROW LEVEL SECURITY",) * 4,
    *("ALTER TABLE {t} DISABLE ROW LEVEL SECURITY", "ALTER TABLE {t} FORCE ROW LEVEL SECURITY"),
    *("ALTER TABLE {t} NO FORCE ROW LEVEL SECURITY",),
    *("GRANT {g} TO {x}", "REVOKE {g} FROM {x}", "GRANT {b} TO {y}", "REVOKE {b} FROM {y}"),
    *("INSERT INTO {b}.members VALUES ('{z}', 'a') ON CONFLICT DO NOTHING",),
)  # fmt: skip


def state(server: psycopg.Connection, view: str) -> tuple:
    return server.execute(
        "SELECT status, sqlstate, headrace.view_message(id) FROM headrace.views"
        " WHERE format('%%I.%%I', schema_name, view_name) = %s",
        (view,),
    ).fetchone()


@contextlib.contextmanager
def cast(server: psycopg.Connection) -> Iterator[dict[str, str]]:
    """Create roles and tables: {b} owns them, {r} the views, {x}, {y} and {z} read."""
    with contextlib.ExitStack() as stack:
        names = {
            key: stack.enter_context(role(server, name, options))
            for key, name, options in (
                ("g", "team", ""), ("b", "boss", ""), ("r", "reader", ""),
                ("x", "xena", ""), ("y", "yves", ""), ("z", "zoe", "BYPASSRLS"),
            )
        }  # fmt: skip
        server.execute(TABLES.format(**names))
        stack.callback(drop_views, server)
        yield names


def drop_views(server: psycopg.Connection) -> None:
    for (view,) in server.execute(
        "SELECT format('%I.%I', schema_name, view_name) FROM headrace.views ORDER BY id DESC"
    ).fetchall():
        server.execute("CALL headrace.drop_view(%s)", (view,))


class World:
    """Random changes of policies and rows; views of {r} that all roles may read."""

    def __init__(self, engine, server, names: dict[str, str], seed: int) -> None:
        self.engine, self.server, self.names = engine, server, names
        self.chance = random.Random(seed)
        self.views: dict[str, str] = {}
        self.number = 0
        self.sessions = {
            key: connect(engine.source, names[key]) for key in ("r", "x", "y", "z", "b")
        }
        for session in self.sessions.values():
            # Postgres plans a prepared statement anew for a policy, but not for a membership.
            session.prepare_threshold = None
        self.seen = {"equal": 0, "refused": 0, "hidden": 0}

    def close(self) -> None:
        for session in self.sessions.values():
            session.close()

    def write(self) -> None:
        chance, b = self.chance, self.names["b"]
        with self.server.transaction():
            for _ in range(chance.randint(1, 4)):
                self.number += 1
                row = (self.number, chance.choice((*TENANTS, None)), chance.randint(0, 4))
                self.server.execute(f"INSERT INTO {b}.o VALUES (%s, %s, 'w', %s, 1.50)", row)
                other = (self.number, chance.randint(1, 9), row[1], chance.randint(0, 4))
                self.server.execute(f"INSERT INTO {b}.i VALUES (%s, %s, %s, %s)", other)
            at, moved = chance.randint(1, self.number), chance.choice(TENANTS)
            self.server.execute(f"UPDATE {b}.o SET tenant = %s WHERE id = %s", (moved, at))
            self.server.execute(f"DELETE FROM {b}.i WHERE id = %s", (chance.randint(1, 99),))

    def change(self) -> str:
        names = self.names
        table = f"{names['b']}.{self.chance.choice('oi')}"
        condition = self.chance.choice(CONDITIONS).format(**names, t=table.rpartition(".")[2])
        text = self.chance.choice(CHANGES).format(
            **names, t=table, c=condition, p=self.chance.choice(("p", "q"))
        )
        with contextlib.suppress(psycopg.errors.UndefinedObject, psycopg.errors.DuplicateObject):
            self.server.execute(text)
        return text

    def make(self, number: int, query: str) -> None:
        """Create a view, unless it is refused because of row security."""
        view, text = f"{self.names['r']}.v{number}", query.format(**self.names)
        try:
            self.sessions["r"].execute("CALL headrace.create_view(%s, %s)", (view, text))
        except psycopg.errors.FeatureNotSupported as error:
            if "row security of table" not in str(error):
                raise
            self.seen["refused"] += 1
            return
        self.views[view] = text
        readers = ", ".join(self.names[key] for key in "xyzb")
        self.sessions["r"].execute(f"GRANT SELECT ON {view} TO {readers}")

    def differing(self, view: str) -> str | None:
        """Return how a role sees other rows in a view than by its query; None: no role does."""
        status, code, message = state(self.server, view)
        if status == "error":
            assert code == "55H01", message
            return None if "cannot be carried over" in message else message
        if status != "running":
            return status
        for key, session in self.sessions.items():
            for tenant in ("a", "c"):
                session.execute("SELECT set_config('app.tenant', %s, false)", (tenant,))
                seen = rows(session, f"SELECT * FROM {view}")
                wanted = rows(session, self.views[view])
                if seen != wanted:
                    return f"{key} with tenant {tenant} sees {seen}, not {wanted}"
                self.seen["equal"] += 1
                self.seen["hidden"] += len(seen) < len(rows(self.server, self.views[view]))
        return None

    def check(self, done: list[str]) -> None:
        for view, query in self.views.items():
            found: list[str | None] = []

            def settled(view: str = view, found: list = found) -> bool:
                found[:] = [self.differing(view)]
                return found[0] is None

            try:
                wait_until(settled, view)
            except AssertionError:
                raise AssertionError((query, found, state(self.server, view), done)) from None


def rows(conn: psycopg.Connection, query: str) -> list[str]:
    return sorted(map(repr, conn.execute(query).fetchall()))


def walk(engine, server, seed: int, queries: int, steps: int) -> dict[str, int]:
    print(f"HEADRACE_POLICY_SEED={seed}")
    with cast(server) as names:
        world = World(engine, server, names, seed)
        try:
            done = [world.change() for _ in range(world.chance.randint(0, 6))]
            world.write()
            for number, query in enumerate(world.chance.sample(QUERIES, queries)):
                world.make(number, query)
            world.check(done)
            for _ in range(steps):
                done.append(world.change())
                world.write()
                world.check(done)
        finally:
            world.close()
        return world.seen


def test_each_role_sees_what_its_query_would_give(engine, server):
    walk(engine, server, seeds.chosen("HEADRACE_POLICY_SEED"), queries=6, steps=8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_many_policies(engine, server, seed):
    walk(engine, server, seed, queries=8, steps=16)


@contextlib.contextmanager
def secured(engine, server, query: str, options: str = "{}") -> Iterator[dict]:
    """Create a view of {r} over tables where a tenant sees its rows; yield names and sessions."""
    with cast(server) as names, contextlib.ExitStack() as stack:
        server.execute(
            "INSERT INTO {b}.o SELECT n, chr(96 + n % 3), 'w', n, n FROM generate_series(1, 9) n;"
            "ALTER TABLE {b}.o ENABLE ROW LEVEL SECURITY;"
            "CREATE POLICY p ON {b}.o USING (tenant = current_setting('app.tenant', true))".format(
                **names
            )
        )
        sessions = {
            key: stack.enter_context(connect(engine.source, names[key])) for key in ("r", "x", "z")
        }
        for session in sessions.values():
            session.execute("SET app.tenant = 'a'")
        query = query.format(**names)
        sessions["r"].execute("CALL headrace.create_view('v', %s, %s)", (query, options))
        sessions["r"].execute(f"GRANT SELECT ON v TO {names['x']}, {names['z']}")
        yield {"names": names, "view": f"{names['r']}.v", **sessions}


OWN = "SELECT id, tenant, k FROM {b}.o"


def test_rows_written_after_a_policy_are_shown_under_it(engine, server):
    """The new policy counts for the rows that its own transaction has written, too."""
    with secured(engine, server, OWN) as it:
        view, table, x = it["view"], f"{it['names']['b']}.o", it["x"]
        assert rows(x, f"SELECT id FROM {view}") == ["(1,)", "(4,)", "(7,)"]
        for number in range(100, 140, 10):
            hidden = number % 20 == 0
            test = "tenant = 'c'" if hidden else "tenant = current_setting('app.tenant', true)"
            with server.transaction():
                server.execute(f"ALTER POLICY p ON {table} USING ({test})")
                server.execute(f"INSERT INTO {table} VALUES ({number}, 'a', 'w', 1, 1)")

            def arrived(number: int = number, hidden: bool = hidden) -> bool:
                seen = (number,) in x.execute(f"SELECT id FROM {view}").fetchall()
                assert not (seen and hidden), number
                return bool(rows(server, f"SELECT FROM {view} WHERE id = {number}"))

            wait_until(arrived, "the row is not written")
            wait_until(
                lambda: rows(x, f"SELECT id FROM {view}") == rows(x, f"SELECT id FROM {table}"),
                "the policy is not applied",
            )


def test_roles_that_a_policy_names_can_be_dropped(engine, server):
    """A policy of ours keeps no role alive, and a renamed role keeps its rights."""
    with secured(engine, server, OWN) as it:
        table, view, x = f"{it['names']['b']}.o", it["view"], it["x"]
        with role(server, "guest") as guest:
            server.execute(f"CREATE POLICY q ON {table} TO {guest} USING (tenant = 'b')")
            server.execute(f"GRANT {guest} TO {it['names']['x']}")

            def same() -> bool:
                return rows(x, f"SELECT id FROM {view}") == rows(x, f"SELECT id FROM {table}")

            wait_until(lambda: same() and len(rows(x, f"SELECT FROM {view}")) == 6, "no guest")
            server.execute(f"ALTER ROLE {guest} RENAME TO {guest}_2")
            wait_until(lambda: same() and len(rows(x, f"SELECT FROM {view}")) == 6, "renamed")
            server.execute(f"ALTER ROLE {guest}_2 RENAME TO {guest}")
            wait_until(lambda: same() and len(rows(x, f"SELECT FROM {view}")) == 6, "renamed again")
            server.execute(f"DROP POLICY q ON {table}")  # and, at once, the role
        wait_until(lambda: same() and len(rows(x, f"SELECT FROM {view}")) == 3, "still a guest")


def test_what_shows_all_rows_is_refused_to_those_who_see_some(engine, server):
    with secured(engine, server, OWN, '{"history": "1 hour"}') as it:
        view, x, r = it["view"], it["x"], it["r"]
        for session in (x, r):
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="hides rows"):
                session.execute("SELECT * FROM headrace.verify_view(%s)", (view,)).fetchall()
            for call in (f"view_changes('{view}', 0)", f"view_as_of(NULL::{view}, 1)"):
                with pytest.raises(psycopg.errors.FeatureNotSupported):
                    session.execute(f"SELECT * FROM headrace.{call}")
        for session in (it["z"], server):
            session.execute("CALL headrace.wait_for(%s)", (view,))
            found = session.execute("SELECT * FROM headrace.verify_view(%s)", (view,)).fetchall()
            assert found == []
        # No policy applies to a role with BYPASSRLS.
        assert len(rows(it["z"], f"SELECT FROM {view}")) == 9
        assert len(rows(x, f"SELECT FROM {view}")) == 3


def test_a_table_that_is_made_again_or_altered_keeps_the_policies(engine, server):
    with secured(engine, server, OWN) as it:
        view, x, r = it["view"], it["x"], it["r"]
        server.execute(f"DROP TABLE {view}")
        server.execute("CALL headrace.resync_view(%s)", (view,))
        r.execute(f"GRANT SELECT ON v TO {it['names']['x']}")
        assert len(rows(x, f"SELECT FROM {view}")) == 3
        for query in (
            "SELECT tenant AS whose, id FROM {b}.o",
            "SELECT id, tenant, k, n FROM {b}.o WHERE k > 2",
            "SELECT tenant, sum(n) AS s FROM {b}.o GROUP BY tenant",
        ):
            text = query.format(**it["names"])
            r.execute("CALL headrace.alter_view('v', %s)", (text,))
            assert rows(x, f"SELECT * FROM {view}") == rows(x, text) != rows(server, text)
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="row security"):
            r.execute(
                "CALL headrace.alter_view('v', %s)",
                ("SELECT sum(n) AS s FROM {b}.o".format(**it["names"]),),
            )
        # No policy applies to the new owner, with whose rights the view is planned again.
        server.execute("CALL headrace.set_owner(%s, %s)", (view, it["names"]["z"]))
        assert rows(x, f"SELECT * FROM {view}") == rows(server, f"SELECT * FROM {view}")


def test_a_view_over_a_secured_view_has_its_policies(engine, server):
    with secured(engine, server, OWN) as it:
        view, x, r = it["view"], it["x"], it["r"]
        r.execute("CALL headrace.create_connection_point('point', 'v')")
        given = {"over": "{}", "fed": '{"from": "point"}', "stacked": '{"first_rows": "views"}'}
        for name, options in given.items():
            text = f"SELECT tenant, max(k) AS m FROM {view} GROUP BY tenant"
            r.execute("CALL headrace.create_view(%s, %s, %s)", (name, text, options))
            r.execute(f"GRANT SELECT ON {name} TO {it['names']['x']}")
            assert rows(x, f"SELECT * FROM {it['names']['r']}.{name}") == ["('a', 7)"], name
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="row security"):
            r.execute(f"CALL headrace.create_view('all', 'SELECT sum(k) AS s FROM {view}')")
        # A role that may not see the query of a view learns no name in it.
        with connect(engine.source, it["names"]["x"]) as other:
            text = f"SELECT sum(k) AS s FROM {view}"
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="row security") as hidden:
                other.execute("CALL headrace.create_view('spy', %s)", (text,))
            assert '"v"' in str(hidden.value)
            assert f"{it['names']['b']}.o" not in str(hidden.value)
            assert "tenant" not in str(hidden.value)
            assert 'table "o"' not in str(hidden.value)
        # A view of Postgres reads its tables with the rights of its owner for every role.
        server.execute(
            f"CREATE VIEW {it['names']['b']}.defined AS SELECT * FROM {view};"
            f"ALTER VIEW {it['names']['b']}.defined OWNER TO {it['names']['x']};"
            f"GRANT SELECT ON {it['names']['b']}.defined TO {it['names']['r']}"
        )
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="row security") as refused:
            r.execute(
                f"CALL headrace.create_view('w', 'SELECT id FROM {it['names']['b']}.defined')"
            )
        assert "security_invoker" in refused.value.diag.message_hint
        server.execute(f"DROP VIEW {it['names']['b']}.defined")
        r.execute("CALL headrace.drop_view('fed')")
        r.execute("CALL headrace.drop_connection_point('point')")


def test_tables_with_the_same_condition_may_have_another_order_of_columns(engine, server):
    with cast(server) as names, connect(engine.source, names["r"]) as r:
        b = names["b"]
        test = "x < y AND y = current_setting('app.top')::int"
        for table, columns in (("ab", "x int, y int"), ("ba", "y int, x int")):
            server.execute(
                f"CREATE TABLE {b}.{table} (id int PRIMARY KEY, {columns});"
                f"INSERT INTO {b}.{table} (id, x, y) SELECT n, n % 3, n % 4"
                " FROM generate_series(1, 24) n;"
                f"ALTER TABLE {b}.{table} ENABLE ROW LEVEL SECURITY;"
                f"CREATE POLICY p ON {b}.{table} USING ({test});"
                f"GRANT SELECT ON {b}.{table} TO {names['r']}"
            )
        r.execute("SET app.top = '2'")
        join = f"FROM {b}.ab AS l JOIN {b}.ba AS m ON l.id = m.id"
        outer = f"FROM {b}.ba AS m LEFT JOIN {b}.ab AS l ON l.x = m.x AND l.y = m.y"
        for number, query in enumerate(
            (
                f"SELECT l.id, l.x, l.y, m.x AS mx, m.y AS my {join}",
                f"SELECT m.id, m.x AS v, m.y AS w, l.id AS other {outer}",
                f"SELECT x, y FROM {b}.ab UNION ALL SELECT x, y FROM {b}.ba",
            )
        ):
            r.execute("CALL headrace.create_view(%s, %s)", (f"o{number}", query))
            assert rows(r, f"SELECT * FROM o{number}") == rows(r, query) != [], query
        crossed = f"FROM {b}.ba AS m LEFT JOIN {b}.ab AS l ON l.x = m.y AND l.y = m.x"
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="row security"):
            r.execute(
                f"CALL headrace.create_view('w', 'SELECT m.id, m.x, m.y, l.id AS l {crossed}')"
            )


@pytest.mark.parametrize("harm", ["DROP FUNCTION {b}.mine", "DROP TABLE {b}.members"])
def test_dropping_what_a_policy_uses_shows_no_rows(engine, server, harm):
    """DROP … CASCADE also drops the policies that use the object, at the tables and the view."""
    with cast(server) as names, connect(engine.source, names["r"]) as r:
        server.execute(
            "CREATE FUNCTION {b}.mine() RETURNS text STABLE LANGUAGE sql"
            " AS $$ SELECT current_setting('app.tenant', true) $$;"
            "INSERT INTO {b}.o SELECT n, chr(96 + n % 3), 'w', n, n FROM generate_series(1, 9) n;"
            "INSERT INTO {b}.i SELECT n, n, chr(96 + n % 3), n FROM generate_series(1, 9) n;"
            "ALTER TABLE {b}.o ENABLE ROW LEVEL SECURITY;"
            "ALTER TABLE {b}.i ENABLE ROW LEVEL SECURITY;"
            "CREATE POLICY p ON {b}.o USING (tenant = {b}.mine());"
            "CREATE POLICY p ON {b}.i USING (EXISTS (SELECT 1 FROM {b}.members m"
            " WHERE m.who = current_user AND m.tenant = i.tenant))".format(**names)
        )
        queries = {
            "one": "SELECT id, tenant FROM {b}.o".format(**names),
            "other": "SELECT id, tenant FROM {b}.i".format(**names),
            "joined": "SELECT o.id, o.tenant FROM {b}.o JOIN {b}.i USING (id, tenant)".format(
                **names
            ),
        }
        for view, query in queries.items():
            r.execute('CALL headrace.create_view(%s, %s, \'{"on_change": "stop"}\')', (view, query))
            r.execute(f"GRANT SELECT ON {view} TO {names['x']}")
        with connect(engine.source, names["x"]) as x:
            x.execute("SET app.tenant = 'a'")
            read = {view: f"SELECT * FROM {names['r']}.{view}" for view in queries}
            for view, query in queries.items():
                assert rows(x, read[view]) == rows(x, query) != []
            server.execute(f"{harm.format(**names)} CASCADE")
            for view, query in queries.items():
                assert rows(x, read[view]) == rows(x, query), view
            assert rows(x, read["joined"]) == []
            wait_until(lambda: state(server, f"{names['r']}.joined")[0] == "error", "not noticed")
            assert rows(x, read["joined"]) == []
