"""Databases for tests: empty ones, reused after cleaning, and copies of one with the catalog.

Creating a database creates 300 files, which is slow on a file system that has just removed as many
(ext4: 200 ms, more than most tests take). So a database is cleaned and renamed instead. The new
name locks out processes that a test has left running: they still ask for the old name.

The installation of Headrace's catalog takes 0.25 s of processor time, a copy of a database that has
it 0.05 s. A copy is dropped after its use.
"""

from __future__ import annotations

import uuid

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from headrace.sql import install
from tests.waiting import wait_until

USES_MAX = 25
"""After so many uses its catalogs are full of dead rows."""

_CLEAN = """
DO $$
DECLARE
    one text;
BEGIN
    FOR one IN SELECT format('DROP EVENT TRIGGER %I', evtname) FROM pg_event_trigger
        UNION ALL SELECT format('DROP PUBLICATION %I', pubname) FROM pg_publication
        UNION ALL SELECT format('DROP SCHEMA %I CASCADE', nspname) FROM pg_namespace
                   WHERE oid >= 16384 AND nspname !~ '^pg_' OR nspname = 'public'
        UNION ALL SELECT format('ALTER ROLE %I IN DATABASE %I RESET ALL', rolname, datname)
                    FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = setrole
                    JOIN pg_database d ON d.oid = setdatabase
                   WHERE datname = current_database()
        UNION ALL SELECT format('ALTER DATABASE %I RESET ALL', current_database())
    LOOP
        EXECUTE one;
    END LOOP;
END $$;
CREATE SCHEMA public AUTHORIZATION pg_database_owner;
GRANT USAGE ON SCHEMA public TO PUBLIC;
"""
_LEFT = """
SELECT what FROM (
    SELECT 'schema ' || nspname AS what, oid FROM pg_namespace
     WHERE nspname <> 'public' AND nspname !~ '^pg_(toast_)?temp_'
    UNION ALL SELECT 'relation ' || relname, oid FROM pg_class
     WHERE relnamespace NOT IN (SELECT oid FROM pg_namespace WHERE nspname ~ '_temp_')
    UNION ALL SELECT 'type ' || typname, oid FROM pg_type
     WHERE typnamespace NOT IN (SELECT oid FROM pg_namespace WHERE nspname ~ '_temp_')
    UNION ALL SELECT 'function ' || proname, oid FROM pg_proc
    UNION ALL SELECT 'operator ' || oprname, oid FROM pg_operator
    UNION ALL SELECT 'cast', oid FROM pg_cast
    UNION ALL SELECT 'collation ' || collname, oid FROM pg_collation
    UNION ALL SELECT 'extension ' || extname, oid FROM pg_extension
    UNION ALL SELECT 'language ' || lanname, oid FROM pg_language
    UNION ALL SELECT 'wrapper ' || fdwname, oid FROM pg_foreign_data_wrapper
    UNION ALL SELECT 'default privileges', oid FROM pg_default_acl
    UNION ALL SELECT 'large object', oid FROM pg_largeobject_metadata
    UNION ALL SELECT 'rights', 16384 FROM pg_database
     WHERE datname = current_database() AND (datacl IS NOT NULL OR datconnlimit <> -1)
    UNION ALL SELECT 'settings', 16384 FROM pg_db_role_setting
      JOIN pg_database d ON d.oid = setdatabase WHERE datname = current_database()
) AS all_of_them WHERE oid >= 16384 LIMIT 5
"""


class Databases:
    """The databases of the tests on one server; ``server`` is a superuser's connection string."""

    def __init__(self, server: str) -> None:
        self.server = server
        self._clean: list[str] = []
        self._uses: dict[str, int] = {}
        self._template = ""
        """Name of the database with the catalog that is copied."""

    def take(self, *, installed: bool = False) -> str:
        """Return the name of an empty database; the name was never used before.

        ``installed``: it has Headrace's catalog, as ``install`` leaves it.
        """
        name = f"h_test_{uuid.uuid4().hex[:12]}"
        if installed:
            self._copy(name)
            return name
        with self._connect() as conn:
            if self._clean:
                old = self._clean.pop()
                self._uses[name] = self._uses.pop(old)
                statement = sql.SQL("ALTER DATABASE {} RENAME TO {}")
                conn.execute(statement.format(sql.Identifier(old), sql.Identifier(name)))
                # A process that was about to end may have made one since it was emptied.
                drop_slots(conn, name)
            else:
                self._uses[name] = 0
                conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return name

    def give_back(self, name: str) -> None:
        """End the database's sessions and slots and empty it; drop it if that fails.

        A copy of the one with the catalog is dropped.
        """
        if name not in self._uses:
            drop_database(self.server, name)
            return
        self._uses[name] += 1
        with self._connect() as conn:
            conn.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = %s AND pid <> pg_backend_pid()",
                (name,),
            )
            drop_slots(conn, name)
        if self._uses[name] < USES_MAX and self._empty(name):
            self._clean.append(name)
        else:
            self._drop(name)

    def close(self) -> None:
        """Drop the databases that no test uses."""
        if self._template:
            self._drop(self._template)
        while self._clean:
            self._drop(self._clean.pop())

    def _copy(self, name: str) -> None:
        """Create a database with the catalog."""
        if not self._template:
            self._template = self.take()
            with self._connect(self._template) as conn:
                install.install(conn)
        with self._connect() as conn:
            statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
            conn.execute(statement.format(*map(sql.Identifier, (name, self._template))))

    def _empty(self, name: str) -> bool:
        """Remove all objects of a database; return whether it is empty then."""
        try:
            with self._connect(name) as conn:
                conn.execute("SET lock_timeout = '5s'")
                conn.execute(_CLEAN)
                return not conn.execute(_LEFT).fetchall()
        except psycopg.Error:
            return False

    def _drop(self, name: str) -> None:
        del self._uses[name]
        drop_database(self.server, name)

    def _connect(self, name: str | None = None) -> psycopg.Connection:
        dsn = make_conninfo(self.server, dbname=name) if name else self.server
        return psycopg.connect(dsn, autocommit=True, prepare_threshold=None)


def drop_database(server: str, name: str) -> None:
    """Drop the database ``name`` and the replication slots in it."""
    with psycopg.connect(server, autocommit=True) as conn:
        drop_slots(conn, name)
        statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
        conn.execute(statement.format(sql.Identifier(name)))


def drop_slots(conn: psycopg.Connection, name: str) -> None:
    """Drop the replication slots of database ``name``, even active ones."""

    def gone() -> bool:
        slots = conn.execute(
            "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s", (name,)
        ).fetchall()
        for slot, pid in slots:
            if pid is not None:
                conn.execute("SELECT pg_terminate_backend(%s)", (pid,))
                continue
            try:
                conn.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
            except (psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
                continue  # another session was faster; look again
        return not slots

    wait_until(gone, f"the slots of {name} are free")
