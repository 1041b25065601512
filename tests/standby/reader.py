"""A primary, its standby, and a second standby, the *reader*, which decodes for the engine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.embedded.postgres import EmbeddedPostgres
from tests.failover.drill import Drill, connect
from tests.failover.pair import Pair
from tests.waiting import wait_until

VERSION = max(16, int(os.environ.get("HEADRACE_TEST_PG", "18")))
_SLOT = "to_reader"


class Trio(Pair):
    """The pair of servers, and the reader."""

    def __init__(self, version: int = VERSION) -> None:
        super().__init__(version)
        self.reader = self.clone(_SLOT)

    def renew_reader(self, above: EmbeddedPostgres | None = None) -> None:
        """Replace the reader by one that follows the primary, or standby ``above``."""
        self.reader.destroy()
        self.reader = self.clone(_SLOT, above=above)

    @contextlib.contextmanager
    def without_reader(self) -> Iterator[None]:
        """Stop the reader for a while."""
        self.reader.stop()
        try:
            yield
        finally:
            self.reader.start()

    def promote_reader(self) -> None:
        """Let the reader take over; the primary may live on."""
        with connect(self.reader.dsn()) as conn:
            assert conn.execute("SELECT pg_promote(true, 60)").fetchone() == (True,)

    def follow(self) -> None:
        """Let the reader follow the server that is the primary now."""
        with self.connect() as conn:
            conn.execute("SELECT pg_create_physical_replication_slot(%s, true)", (_SLOT,))
        with connect(self.reader.dsn()) as conn:
            source = f"{self.primary.dsn()} application_name=reader"
            conn.execute(f"ALTER SYSTEM SET primary_conninfo = '{source}'")
            conn.execute("SELECT pg_reload_conf()")

    def set_reader(self, name: str, value: str) -> None:
        """Change a setting of the reader that needs no restart."""
        with connect(self.reader.dsn()) as conn:
            conn.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            conn.execute("SELECT pg_reload_conf()")
            wait_until(lambda: conn.execute(f"SHOW {name}").fetchone() == (value,), "it is set")

    def slots(self, *, reader: bool) -> list[str]:
        """Return the logical slots of the reader, or of the primary."""
        with connect((self.reader if reader else self.primary).dsn()) as conn:
            rows = conn.execute(
                "SELECT slot_name FROM pg_replication_slots WHERE slot_type = 'logical'"
                " AND NOT temporary"
            ).fetchall()
        return [row[0] for row in rows]

    def close(self) -> None:
        self.reader.destroy()
        super().close()


class Reading(Drill):
    """One database and engine, whose changes the reader decodes."""

    def __init__(self, trio: Trio, name: str, folder: Path, **env: str) -> None:
        self.trio = trio
        super().__init__(
            trio, name, folder, **{"HEADRACE_DECODE_FROM": trio.reader.dsn(name)} | env
        )
        with connect(trio.reader.dsn()) as conn:
            exists = "SELECT FROM pg_database WHERE datname = %s"
            wait_until(lambda: conn.execute(exists, (name,)).fetchone() == (), "it is replayed")

    def close(self) -> None:
        self.engine.kill9()
        with contextlib.suppress(psycopg.Error), connect(self.trio.reader.dsn()) as conn:
            conn.execute(
                "SELECT pg_terminate_backend(active_pid), pg_drop_replication_slot(slot_name)"
                " FROM pg_replication_slots WHERE database = %s",
                (self.name,),
            )
        super().close()


@pytest.fixture(scope="module")
def trio() -> Iterator[Trio]:
    """Yield a primary and a reader, for the tests of one file that import this fixture."""
    made = Trio()
    yield made
    made.close()


@contextlib.contextmanager
def reading(trio: Trio, name: str, folder: Path, **env: str) -> Iterator[Reading]:
    """Yield an engine that was not started yet."""
    made = Reading(trio, name, folder, **env)
    try:
        yield made
    except BaseException:
        print(made.engine.log[-20_000:])
        raise
    finally:
        made.close()


def note(made: Reading) -> str:
    """Return the notes of the views, as ``list_views()`` shows them."""
    with made.pair.connect(made.name) as conn:
        rows = conn.execute("SELECT status, message FROM headrace.list_views()").fetchall()
    return "; ".join(f"{status}: {message}" for status, message in rows)


def server_log(server: EmbeddedPostgres) -> str:
    return server.log.read_text(errors="replace")
