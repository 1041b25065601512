"""A primary and a standby that is ready for a promotion, and their change of roles."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.embedded.binaries import account
from headrace.embedded.postgres import EmbeddedPostgres
from tests.waiting import wait_until

_SETTINGS = {
    "hot_standby_feedback": "on",
    "sync_replication_slots": "on",
    "wal_receiver_status_interval": "1s",
    "wal_keep_size": "64MB",
    "track_commit_timestamp": "off",
}
_SLOT = "to_standby"


class Pair:
    """Two servers; ``primary`` takes writes, ``standby`` follows it or is None."""

    def __init__(self, version: int = 18, settings: dict[str, str] | None = None) -> None:
        self._version = version
        self._settings = _SETTINGS | (settings or {})
        if version < 17:
            del self._settings["sync_replication_slots"]
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-pair-"))
        account().take(self.folder)
        self._made = 0
        self._stalled: int | None = None
        """The process of the standby that receives WAL, if it was stopped."""
        self.primary = self._server()
        self.primary.start()
        self.standby: EmbeddedPostgres | None = None
        self.ports = [self.primary.port]

    def _server(self, port: int = 0) -> EmbeddedPostgres:
        self._made += 1
        return EmbeddedPostgres(
            self.folder / f"server{self._made}",
            self._version,
            self._settings,
            port=port,
            durable=False,
        )

    def dsn(self, dbname: str = "postgres") -> str:
        """Return a connection string that leads to the server that is the primary then."""
        ports = ",".join(map(str, self.ports))
        hosts = ",".join("127.0.0.1" for _ in self.ports)
        return (
            f"host={hosts} port={ports} user=postgres dbname={dbname}"
            " target_session_attrs=read-write connect_timeout=2"
        )

    def connect(self, dbname: str = "postgres") -> psycopg.Connection:
        """Connect to the primary."""
        return psycopg.connect(self.primary.dsn(dbname), autocommit=True, prepare_threshold=None)

    def add_standby(self) -> None:
        """Make a standby of the primary, which keeps WAL for it; its address is free or known."""
        ports = [port for port in self.ports if port != self.primary.port]
        self.standby = self.clone(_SLOT, ports[0] if ports else 0)
        if self.standby.port not in self.ports:
            self.ports.append(self.standby.port)

    def clone(
        self, slot: str, port: int = 0, above: EmbeddedPostgres | None = None
    ) -> EmbeddedPostgres:
        """Make and start a standby of the primary, or of standby ``above``.

        The server above keeps WAL for it with a slot.
        """
        standby, user, above = self._server(port), account(), above or self.primary
        with psycopg.connect(above.dsn(), autocommit=True) as conn:
            conn.execute(
                "SELECT pg_create_physical_replication_slot(%s, true) WHERE NOT EXISTS"
                " (SELECT FROM pg_replication_slots WHERE slot_name = %s)",
                (slot, slot),
            )
        subprocess.run(
            [
                *(standby.bin_dir / "pg_basebackup", "-D", standby.data_dir),
                *("-d", self.primary.dsn(), "-X", "stream", "--checkpoint=fast", "--no-sync"),
                "-R",
            ],
            check=True,
            cwd="/",
            capture_output=True,
            **user.popen_args(),
        )
        with (standby.data_dir / "postgresql.auto.conf").open("a") as conf:
            conf.write(f"primary_slot_name = '{slot}'\n")
            conf.write(f"primary_conninfo = '{above.dsn()} application_name={slot}'\n")
        standby.start()
        return standby

    def renew(self) -> None:
        """Add a standby if there is none, and let nothing wait for it."""
        if self.standby is None:
            self.add_standby()
        with self.connect() as conn:
            conn.execute("ALTER SYSTEM RESET synchronized_standby_slots")
            conn.execute("SELECT pg_reload_conf()")

    def guard(self) -> None:
        """Let logical decoding wait for the standby (synchronized_standby_slots)."""
        with self.connect() as conn:
            conn.execute(f"ALTER SYSTEM SET synchronized_standby_slots = '{_SLOT}'")
            conn.execute("SELECT pg_reload_conf()")

    def wait_synchronised(self, slot: str) -> None:
        """Wait until the standby has a copy of a slot that a promotion makes usable."""
        assert self.standby is not None, "it was added"
        query = (
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s AND synced"
            " AND NOT temporary AND invalidation_reason IS NULL"
        )
        with psycopg.connect(self.standby.dsn(), autocommit=True) as conn:

            def ready() -> bool:
                self.hasten(conn)
                return conn.execute(query, (slot,)).fetchone() == (1,)

            wait_until(
                ready,
                lambda: conn.execute("SELECT * FROM pg_replication_slots").fetchall(),
                every_s=0.1,
            )

    def hasten(self, standby: psycopg.Connection) -> None:
        """Have the standby copy the slots now; left alone it may wait for half a minute."""
        with self.connect() as primary:
            primary.execute("SELECT pg_log_standby_snapshot()")
        # The process that copies slots sleeps for up to 30 s, but reads new settings at once.
        standby.execute("SELECT pg_reload_conf()")

    def stall(self) -> None:
        """Let the standby receive nothing more, so that a promotion loses the last commits."""
        assert self.standby is not None, "it was added"
        with psycopg.connect(self.standby.dsn(), autocommit=True) as conn:
            [(pid,)] = conn.execute("SELECT pid FROM pg_stat_wal_receiver").fetchall()
        os.kill(pid, signal.SIGSTOP)
        self._stalled = pid

    def promote(self, *, kill: bool) -> None:
        """Let the standby take over; ``kill``: the primary dies first, else it is shut down."""
        assert self.standby is not None, "it was added"
        old, new = self.primary, self.standby
        if kill:
            old.kill()
        else:
            old.stop("fast")
        if self._stalled is not None:
            # In this order: it ends before it reads what has arrived meanwhile.
            os.kill(self._stalled, signal.SIGTERM)
            os.kill(self._stalled, signal.SIGCONT)
            self._stalled = None
        with psycopg.connect(new.dsn(), autocommit=True) as conn:
            assert conn.execute("SELECT pg_promote(true, 60)").fetchone() == (True,)
        self.primary, self.standby = new, None
        if self._version >= 17:
            with self.connect() as conn:
                conn.execute("ALTER SYSTEM RESET synchronized_standby_slots")
                conn.execute("SELECT pg_reload_conf()")
        old.destroy()

    def close(self) -> None:
        """Stop both servers and remove their data."""
        for server in (self.primary, self.standby):
            if server is not None:
                server.destroy()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Yield a primary and its standby, for the tests of one file that import this fixture."""
    made = Pair()
    made.add_standby()
    yield made
    made.close()
