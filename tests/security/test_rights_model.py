"""The rights that a view lacks are those that Postgres refuses: random rights, queries run by
readers.

``row_security = off`` makes Postgres refuse a query that it would answer only in part.
"""

from __future__ import annotations

import contextlib
import random
from typing import cast

import psycopg
import pytest

from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.planner import PlanRequest
from headrace.population.context import JobContext, WorkerProtocol
from headrace.population.populate import plan_with_facts
from headrace.population.spark import Spark
from headrace.postgres import fingerprint
from headrace.sql import install, results
from headrace.sql.view_spec import ViewSpec
from tests import seeds
from tests.security.roles import role

QUERIES = (
    "SELECT id, v FROM {b}.t",
    "SELECT v FROM {b}.t",
    "SELECT count(*) AS n FROM {b}.t",
    "SELECT t AS whole FROM {b}.t",
    "SELECT id, {b}.f(v) AS v FROM {b}.t",
    "SELECT t.id FROM {b}.t JOIN {s}.t AS o ON o.id = t.v",
    "SELECT id, f FROM {s}.seen",
    "SELECT id FROM {s}.through",
    "SELECT id FROM {s}.twice",
)
SETUP = """
CREATE SCHEMA {s};
GRANT USAGE ON SCHEMA {s} TO PUBLIC;
CREATE TABLE {b}.t (id int PRIMARY KEY, v int, w text);
CREATE TABLE {s}.t (id int PRIMARY KEY, v int);
INSERT INTO {b}.t VALUES (1, 1, 'w');
INSERT INTO {s}.t VALUES (1, 1);
CREATE FUNCTION {b}.f(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1; END';
CREATE VIEW {s}.seen AS SELECT id, {b}.f(v) AS f FROM {b}.t;
CREATE VIEW {s}.through WITH (security_invoker) AS SELECT id, v FROM {b}.t;
CREATE VIEW {s}.twice AS SELECT id FROM {s}.through UNION ALL SELECT id FROM {s}.t;
ALTER VIEW {s}.seen OWNER TO {r1};
ALTER VIEW {s}.twice OWNER TO {r2};
GRANT SELECT ON {s}.seen, {s}.through, {s}.twice, {s}.t, {b}.t TO {r0}, {r1}, {r2};
"""
CHANGES = (
    *("GRANT SELECT ON {b}.t TO {r}", "REVOKE SELECT ON {b}.t FROM {r}") * 3,
    *("GRANT SELECT (id, v) ON {b}.t TO {r}", "REVOKE SELECT (v) ON {b}.t FROM {r}"),
    *("GRANT SELECT (id, v, w) ON {b}.t TO {r}", "REVOKE SELECT (id) ON {b}.t FROM {r}"),
    *("GRANT SELECT (w) ON {b}.t TO {r}", "REVOKE SELECT (w) ON {b}.t FROM {r}"),
    *("GRANT SELECT ON {b}.t TO PUBLIC", "REVOKE SELECT ON {b}.t FROM PUBLIC"),
    *("GRANT SELECT ON {s}.t TO {r}", "REVOKE SELECT ON {s}.t FROM {r}"),
    *("GRANT SELECT ON {s}.{v} TO {r}", "REVOKE SELECT ON {s}.{v} FROM {r}"),
    *("GRANT USAGE ON SCHEMA {s} TO {r}", "REVOKE USAGE ON SCHEMA {s} FROM {r}"),
    *("GRANT USAGE ON SCHEMA {s} TO PUBLIC", "REVOKE USAGE ON SCHEMA {s} FROM PUBLIC"),
    *("GRANT EXECUTE ON FUNCTION {b}.f TO {r}", "REVOKE EXECUTE ON FUNCTION {b}.f FROM {r}"),
    "GRANT EXECUTE ON FUNCTION {b}.f TO PUBLIC",
    "REVOKE EXECUTE ON FUNCTION {b}.f FROM PUBLIC",
    *("GRANT SELECT ON {b}.t, {s}.t TO {g}", "REVOKE SELECT ON {b}.t FROM {g}"),
    *("GRANT {g} TO {r}", "REVOKE {g} FROM {r}") * 2,
    *("GRANT pg_read_all_data TO {r}", "REVOKE pg_read_all_data FROM {r}"),
    *("ALTER ROLE {r} BYPASSRLS", "ALTER ROLE {r} NOBYPASSRLS"),
    *("ALTER ROLE {r} SUPERUSER", "ALTER ROLE {r} NOSUPERUSER", "ALTER ROLE {r} NOSUPERUSER"),
    *("ALTER ROLE {r} NOINHERIT", "ALTER ROLE {r} INHERIT"),
    *("ALTER TABLE {b}.t ENABLE ROW LEVEL SECURITY", "ALTER TABLE {b}.t DISABLE ROW LEVEL SECURITY"),
    *("ALTER TABLE {b}.t FORCE ROW LEVEL SECURITY", "ALTER TABLE {b}.t NO FORCE ROW LEVEL SECURITY"),
    *("ALTER TABLE {b}.t OWNER TO {r}", "ALTER TABLE {b}.t OWNER TO {b}", "ALTER TABLE {b}.t OWNER TO {g}"),
)  # fmt: skip


def refused(conn: psycopg.Connection, reader: str, query: str) -> str | None:
    """Return why Postgres refuses the query; None if it does not."""
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(f"SET LOCAL row_security = off; SET LOCAL ROLE {reader}")
            conn.execute(query)
    except psycopg.errors.InsufficientPrivilege as error:
        return str(error)
    return None


def test_what_lacks_is_what_postgres_refuses(database, tmp_path):
    chance = random.Random(seeds.chosen("HEADRACE_RIGHTS_SEED"))
    with contextlib.ExitStack() as stack:
        conn = stack.enter_context(psycopg.connect(database, autocommit=True))
        install.install(conn)
        names = ("b", "g", "r0", "r1", "r2")
        named = {name: stack.enter_context(role(conn, name)) for name in names}
        named["s"] = f"{named['b']}_side"
        conn.execute(SETUP.format(**named))
        stack.callback(conn.execute, f"DROP SCHEMA {named['s']} CASCADE")
        readers = [named[name] for name in ("r0", "r1", "r2")]
        known = take(conn, database, tmp_path, readers, named)
        assert {reader for reader, _, _ in known} == set(readers)
        seen = set()
        for _ in range(120):
            change = chance.choice(CHANGES).format(
                **named, r=chance.choice(readers), v=chance.choice(("seen", "through", "twice"))
            )
            with contextlib.suppress(psycopg.errors.InvalidGrantOperation):
                conn.execute(change)
            found = fingerprint.read(
                conn, [facts for _, _, facts in known], "none", results.revisions
            )
            for (reader, query, before), now in zip(known, found, strict=True):
                why = refused(conn, reader, query)
                assert bool(now["lacks"]) == (why is not None), (
                    change, reader, query, why, now["lacks"],
                )  # fmt: skip
                error = fingerprint.difference(before, now, published=False)
                # A policy that applies now is carried over by a resync.
                assert error is None or error.code in ("42501", "55H01") or not why, error
                seen.add(why is None)
        assert seen == {True, False}


def take(conn, database, path, readers, named) -> list:
    """Return (reader, query, facts) of the queries that can be planned while all rights exist."""
    eval_dsn = install.ensure_eval_role(conn, path, database)
    settings = Settings(source=database, data_dir=path, eval_dsn=eval_dsn or "")
    context = planning(settings)
    out = []
    for reader in readers:
        for query in QUERIES:
            text = query.format(**named)
            assert refused(conn, reader, text) is None
            request = PlanRequest(text, reader, {"search_path": "public"})
            out.append((reader, text, plan_with_facts(context, conn, request, ViewSpec())[1]))
    return out


def planning(settings: Settings) -> JobContext:
    """Return a context for planning; nothing is populated, so there is no engine."""
    return JobContext(settings, cast("WorkerProtocol", None), Spark(settings))


@pytest.mark.parametrize("right", ["EXECUTE ON FUNCTION {b}.f", "USAGE ON SCHEMA {b}"])
def test_what_lacks_at_first_is_refused(database, tmp_path, right):
    """Postgres itself does not require EXECUTE when a query is analysed."""
    with psycopg.connect(database, autocommit=True) as conn:
        install.install(conn)
        with role(conn, "b") as boss, role(conn, "r") as reader:
            eval_dsn = install.ensure_eval_role(conn, tmp_path, database)
            evals = psycopg.conninfo.conninfo_to_dict(eval_dsn)["user"]
            conn.execute(
                f"CREATE TABLE {boss}.t (id int PRIMARY KEY, v int);"
                f"CREATE FUNCTION {boss}.f(int) RETURNS int IMMUTABLE LANGUAGE plpgsql"
                f" AS 'BEGIN RETURN $1; END'; GRANT SELECT ON {boss}.t TO {reader};"
                f"GRANT USAGE ON SCHEMA {boss} TO {evals};"
                f"GRANT EXECUTE ON FUNCTION {boss}.f TO {evals};"
                f"REVOKE {right.format(b=boss)} FROM PUBLIC"
            )
            query = f"SELECT id, {boss}.f(v) AS v FROM {boss}.t"
            assert refused(conn, reader, query)
            settings = Settings(source=database, data_dir=tmp_path, eval_dsn=eval_dsn)
            request = PlanRequest(query, reader, {"search_path": "public"})
            context = planning(settings)
            with pytest.raises((HeadraceError, psycopg.Error)) as caught:
                plan_with_facts(context, conn, request, ViewSpec())
            assert "permission denied" in str(caught.value)
            conn.execute(f"GRANT {right.format(b=boss)} TO {reader}")
            plan_with_facts(context, conn, request, ViewSpec())
