"""The certificate of the source is renewed, also under another authority, while the engine runs."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from cryptography import x509
from psycopg.conninfo import make_conninfo

from headrace.embedded.engine import EmbeddedEngine
from headrace.embedded.postgres import EmbeddedPostgres
from tests.faults import copies
from tests.faults.certificates import Authority
from tests.faults.copies import connect
from tests.waiting import wait_until

BEFORE = (
    "SELECT pid FROM pg_stat_activity WHERE datname = 'app' AND application_name LIKE 'headrace%'"
)


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    packaged = [int(p.name) for p in Path("/usr/lib/postgresql").glob("*") if p.name.isdigit()]
    if not packaged:
        pytest.skip(
            "the wheel's servers have no TLS; a server from the system's packages is needed"
        )
    with EmbeddedPostgres(None, max(packaged), durable=False) as made:
        copies.new_database(made, "app")
        with connect(made.dsn("app")) as conn:
            conn.execute(copies.TABLES)
        yield made


def serve(server: EmbeddedPostgres, authority: Authority) -> None:
    """Give the server a new certificate, and wait until new connections get it."""
    serial = authority.install(server.data_dir)
    with connect(server.dsn()) as conn:
        conn.execute("ALTER SYSTEM SET ssl = on")
        conn.execute("SELECT pg_reload_conf()")
    wait_until(lambda: shown(server) == serial, "the new certificate is served", every_s=0.05)


def shown(server: EmbeddedPostgres) -> int | None:
    """Return the serial number of the certificate that a new connection gets."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(struct.pack(">II", 8, 80877103))
        if sock.recv(1) != b"S":
            return None
        with context.wrap_socket(sock) as secured:
            data = secured.getpeercert(binary_form=True)
    assert data is not None, "the server has one"
    return x509.load_der_x509_certificate(data).serial_number


def cut(server: EmbeddedPostgres) -> None:
    """End the engine's connections, so that it makes new ones."""
    with connect(server.dsn("app")) as conn:
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = 'app' AND pid <> pg_backend_pid()"
        )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root.crt"


@pytest.fixture
def start(server: EmbeddedPostgres, root: Path, start_engine):
    def start(authority: Authority) -> EmbeddedEngine:
        serve(server, authority)
        root.write_bytes(authority.root)
        dsn = make_conninfo(server.dsn("app"), sslmode="verify-full", sslrootcert=str(root))
        made = start_engine(dsn)
        copies.create_views(made)
        return made

    return start


def relayed(engine: EmbeddedEngine) -> bool:
    """Return whether a client of the engine's port reaches the source."""
    try:
        # The client speaks with the engine, which has no certificate here.
        dsn = make_conninfo(engine.dsn, sslmode="disable", sslrootcert=None)
        with connect(dsn) as client:
            return client.execute("SELECT count(*) > 0 FROM sums").fetchone() == (True,)
    except psycopg.OperationalError:
        return False


def test_a_certificate_renewed_by_the_same_authority(server, start):
    """Streams go on, and later connections accept the new certificate."""
    authority = Authority("one")
    engine = start(authority)
    dsn = server.dsn("app")
    before = copies.ids(dsn)
    with connect(dsn) as conn:
        sessions = conn.execute(BEFORE).fetchall()
    serve(server, authority)
    copies.exact(dsn)
    with connect(dsn) as conn:
        assert set(sessions) & set(conn.execute(BEFORE).fetchall()), "the stream goes on"
    assert "stream interrupted" not in engine.log
    assert relayed(engine)
    cut(server)
    copies.exact(dsn)
    assert relayed(engine)
    assert copies.ids(dsn) == before, "no view was filled anew"


def test_another_authority_than_the_root_file_names(server, start, root):
    """The log says why it does not connect; the new root file is enough, without a restart."""
    engine = start(Authority("one"))
    dsn = server.dsn("app")
    before, pid = copies.ids(dsn), engine.pid
    other = Authority("another")
    serve(server, other)
    copies.exact(dsn)
    cut(server)
    wait_until(lambda: "certificate verify failed" in engine.log, "it is named", every_s=0.05)
    with connect(dsn) as conn:
        conn.execute("INSERT INTO t (n) SELECT i FROM generate_series(1, 30) i")
    assert not relayed(engine), "no connection without verification"
    root.write_bytes(b"no certificate")
    root.write_bytes(other.root)
    copies.exact(dsn)
    wait_until(lambda: relayed(engine), "clients are relayed")
    assert engine.pid == pid
    assert engine.running
    assert copies.ids(dsn) == before, "no view was filled anew"
