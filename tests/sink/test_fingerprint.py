"""Fingerprints of a result table while other sessions change the database."""

from __future__ import annotations

import threading

import psycopg
import pytest

from headrace.postgres.connect import connect
from headrace.sink import table


@pytest.mark.parametrize(
    "what", ["TABLE v", "TABLES IN SCHEMA public", "ALL TABLES", "TABLE v (a) WHERE (a > 1)"]
)
def test_publications_of_it(database, what):
    with connect(database, name="test") as conn:
        conn.execute("CREATE TABLE public.v (a int PRIMARY KEY); CREATE TABLE public.w (a int)")
        ((oid, other),) = conn.execute(
            "SELECT 'public.v'::regclass::oid::int, 'public.w'::regclass::oid::int"
        ).fetchall()
        found = table.fingerprint(conn, oid)
        assert found is not None
        assert found.published == ()
        conn.execute(f"CREATE PUBLICATION p FOR {what.replace('v', 'public.v', 1)}")
        for number in (oid, other):
            # The publications that Postgres lists.
            rows = conn.execute(
                "SELECT pubname FROM pg_publication_tables t WHERE to_regclass(quote_ident("
                "schemaname) || '.' || quote_ident(tablename))::oid::int = %s",
                (number,),
            ).fetchall()
            found = table.fingerprint(conn, number)
            assert found is not None
            assert found.published == tuple(name for (name,) in rows)


def test_a_publication_that_is_dropped_meanwhile(database):
    over = threading.Event()

    def publish() -> None:
        with psycopg.connect(database, autocommit=True) as other:
            while not over.is_set():
                other.execute("CREATE PUBLICATION p FOR TABLE public.v")
                other.execute("DROP PUBLICATION p")

    with connect(database, name="test") as conn:
        conn.execute("CREATE TABLE public.v (a int PRIMARY KEY)")
        ((oid,),) = conn.execute("SELECT 'public.v'::regclass::oid::int").fetchall()
        thread = threading.Thread(target=publish)
        thread.start()
        try:
            seen = {table.fingerprint(conn, oid).published for _ in range(1500)}
        finally:
            over.set()
            thread.join()
        assert seen == {(), ("p",)}
