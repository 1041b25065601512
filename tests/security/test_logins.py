"""Roles that the source admits without a password are not admitted through the port."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headrace.config import Settings
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.errors import PrerequisiteError
from headrace.sql import install
from tests.engines import Engine
from tests.security import wire as w
from tests.server.conftest import Running
from tests.waiting import PATIENCE_S, wait_until

SYSTEM = Path("/usr/lib/postgresql/15/bin/postgres")
PASSWORD = "s3cret"
HBA = """
local all all peer map=us
host all postgres 127.0.0.1/32 trust
host all joe,nobody 127.0.0.1/32 {joe}
host all all 127.0.0.1/32 trust
"""


def certificate(folder: Path, name: str, key: str = "rsa:2048") -> tuple[str, str]:
    """Create a self-signed certificate for localhost; return the paths of it and its key."""
    cert, secret = folder / f"{name}.pem", folder / f"{name}.key"
    words = ["-newkey", key] if key.startswith("rsa") else [
        "-newkey", "ec", "-pkeyopt", f"ec_paramgen_curve:{key}"]  # fmt: skip
    subprocess.run(
        ["openssl", "req", "-x509", *words, "-nodes", "-days", "2", "-subj",
         f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", str(secret), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return str(cert), str(secret)


class Source:
    """A server of the test, with its own pg_hba.conf and TLS settings."""

    def __init__(self, server: EmbeddedPostgres, folder: Path) -> None:
        self.server = server
        self.certificate = certificate(folder, "source")
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute(f"CREATE ROLE joe LOGIN PASSWORD '{PASSWORD}'")
            conn.execute("CREATE ROLE limited LOGIN CREATEROLE")
            conn.execute("GRANT CREATE ON DATABASE postgres TO limited")
            conn.execute("SET ROLE limited")
            install.install(conn)
            conn.execute("RESET ROLE")
            for number, kind in enumerate(("cert", "key")):
                file = server.data_dir / f"server.{kind}"
                shutil.copy(self.certificate[number], file)
                shutil.chown(file, *_owner(server.data_dir))
                file.chmod(0o600)
                conn.execute(f"ALTER SYSTEM SET ssl_{kind}_file = 'server.{kind}'")

    @property
    def dsn(self) -> str:
        return self.server.dsn()

    def configure(self, *, ssl: bool = False, joe: str = "scram-sha-256") -> None:
        """Switch TLS on or off, and set the authentication method of joe."""
        text = HBA.format(joe=joe)
        (self.server.data_dir / "pg_hba.conf").write_text(text)
        names = f"us {getpass.getuser()} all\nus {getpass.getuser()} joe\n"
        names += f"us {getpass.getuser()} postgres\n"
        (self.server.data_dir / "pg_ident.conf").write_text(names)
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(f"ALTER SYSTEM SET ssl = {'on' if ssl else 'off'}")
        self.server.restart()


def _owner(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_uid, found.st_gid


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    """A source with TLS: the wheels' servers are built without it, the system's has it."""
    if not SYSTEM.exists():
        pytest.skip(f"no Postgres with TLS here: there is no {SYSTEM}")
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make certificates with")
    folder = tmp_path_factory.mktemp("certificates")
    with EmbeddedPostgres(None, 15, durable=False) as server:
        yield Source(server, folder)


@pytest.fixture
def begin(source: Source, tmp_path: Path) -> Iterator[object]:
    """A function that starts a commander on the source."""
    running: list[Running] = []

    def start(dsn: str = "", **settings: object) -> Running:
        given = {"allow_trust": False} | settings
        running.append(Running(dsn or source.dsn, tmp_path, **given))
        return running[-1]

    yield start
    for one in running:
        one.stop()


def connect(commander: Running, **options: object) -> psycopg.Connection:
    given = {"user": "joe", "password": PASSWORD, "autocommit": True} | options
    return psycopg.connect(commander.dsn, **given)


# --- without a challenge


@pytest.mark.parametrize("user", ["postgres", "joe"])
def test_a_login_without_a_question_is_refused(source, begin, user):
    source.configure(joe="trust")
    commander = begin()
    with pytest.raises(psycopg.OperationalError) as caught:
        connect(commander, user=user)
    assert "without authentication" in str(caught.value)
    assert "allow_trust" in str(caught.value)
    with w.Wire(commander.port) as conn:
        conn.send(w.startup(user=user, database="postgres"))
        answers = list(conn.rest())
    assert w.kinds(answers) == "E"
    assert w.fields(answers[0][1])["C"] == "28000"


def test_a_password_sent_unasked_is_no_answer(source, begin):
    source.configure(joe="trust")
    with w.Wire(begin().port) as conn:
        conn.send(w.startup(user="joe", database="postgres"))
        conn.send(w.message("p", b"x\0"))
        assert w.kinds(list(conn.rest())) == "E"


def test_allow_trust_lets_in_whom_the_source_lets_in(source, begin):
    source.configure(joe="trust")
    with connect(begin(allow_trust=True)) as conn:
        assert conn.execute("SELECT current_user").fetchone() == ("joe",)


@pytest.mark.parametrize("method", ["scram-sha-256", "password"])
def test_a_question_answered_is_a_login(source, begin, method):
    source.configure(joe=method)
    commander = begin()
    with connect(commander) as conn:
        conn.execute("CALL headrace.create_view('v', 'SELECT 1')")
    assert commander.builder.calls[0][1]["caller"] == "joe"
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        connect(commander, password="wrong")


def test_a_source_on_a_unix_socket_with_peer(source, begin, tmp_path):
    """The commander's own user has a name on the source, which clients must not borrow."""
    folder = Path("/tmp") / f"headrace-peer-{tmp_path.name}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    try:
        with psycopg.connect(source.dsn, autocommit=True) as conn:
            conn.execute(f"ALTER SYSTEM SET unix_socket_directories = '{folder}'")
        source.configure()
        dsn = make_conninfo(source.dsn, host=str(folder))
        with pytest.raises(psycopg.OperationalError, match="without authentication"):
            connect(begin(dsn))
    finally:
        with psycopg.connect(source.dsn, autocommit=True) as conn:
            conn.execute("ALTER SYSTEM RESET unix_socket_directories")
        source.server.restart()
        shutil.rmtree(folder)


# --- TLS


@pytest.fixture
def tls(source: Source, tmp_path: Path) -> dict[str, str]:
    cert, key = certificate(tmp_path, "commander")
    return {"tls_cert": cert, "tls_key": key}


MODES = [
    {"sslmode": "disable"},
    {"sslmode": "prefer"},
    {"sslmode": "require"},
    {"sslmode": "verify-full"},
    {"sslmode": "require", "channel_binding": "disable"},
    {"sslmode": "require", "channel_binding": "require"},
    {"sslmode": "require", "sslnegotiation": "direct"},
    {"sslmode": "verify-full", "sslnegotiation": "direct", "channel_binding": "require"},
]


@pytest.mark.parametrize("source_tls", [True, False], ids=["tls source", "clear source"])
@pytest.mark.parametrize("key", ["rsa:2048", "secp384r1"])
def test_scram_with_every_mode_of_a_client(source, begin, tmp_path, source_tls, key):
    source.configure(ssl=source_tls)
    cert, secret = certificate(tmp_path, "commander", key)
    commander = begin(tls_cert=cert, tls_key=secret)
    for mode in MODES:
        options = mode | ({"sslrootcert": cert} if "full" in mode["sslmode"] else {})
        with connect(commander, host="localhost", **options) as conn:
            assert conn.pgconn.ssl_in_use == (mode["sslmode"] != "disable"), mode
            assert conn.execute(
                "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
            ).fetchone() == (source_tls,)
            conn.execute("CALL headrace.create_view('v', 'SELECT 1')")
        for wrong in ("wrong", "s3crete"):
            with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
                connect(commander, host="localhost", password=wrong, **options)
        with pytest.raises(
            psycopg.OperationalError, match='authentication failed for user "nobody"'
        ):
            connect(commander, user="nobody", host="localhost", **options)
    assert {c[1]["caller"] for c in commander.builder.calls} == {"joe"}


@pytest.mark.skipif(shutil.which("psql") is None, reason="no psql")
@pytest.mark.parametrize("mode", ["prefer", "require"])
def test_psql_of_the_system(source, begin, tls, mode):
    source.configure(ssl=True)
    dsn = make_conninfo(
        begin(**tls).dsn, user="joe", password=PASSWORD, sslmode=mode,
        channel_binding="require",
    )  # fmt: skip
    done = subprocess.run(
        ["psql", "-X", dsn, "-c", "\\conninfo", "-c", "SELECT 5"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "SSL connection" in done.stdout, done.stderr
    assert "5" in done.stdout


def test_one_certificate_for_both_sides_needs_no_verifiers(source, begin):
    """The client's proof is bound to a certificate that the source has too."""
    source.configure(ssl=True)
    dsn = make_conninfo(source.dsn, user="limited")
    cert, key = source.certificate
    commander = begin(dsn, tls_cert=cert, tls_key=key)
    for mode in MODES:
        options = mode | {"sslrootcert": cert} if "full" in mode["sslmode"] else mode
        with connect(commander, host="localhost", **options) as conn:
            assert conn.execute("SELECT current_user").fetchone() == ("joe",)


def test_what_cannot_work_does_not_start(source, tls, tmp_path):
    source.configure(ssl=True)
    env = {f"HEADRACE_{k.upper()}": v for k, v in tls.items()}
    with psycopg.connect(source.dsn, autocommit=True) as conn:
        conn.execute("ALTER ROLE limited REPLICATION")
        conn.execute("GRANT CREATE ON DATABASE postgres TO limited")
        conn.execute("DROP SCHEMA headrace CASCADE")
    engine = Engine(
        make_conninfo(source.dsn, user="limited"), tmp_path / "engine",
        env={**env, "HEADRACE_SPARK_WARM": "false"},
    )  # fmt: skip
    try:
        with pytest.raises(PrerequisiteError) as caught:
            engine.start()
    finally:
        engine.kill9()
        with psycopg.connect(source.dsn, autocommit=True) as conn:
            conn.execute("DROP SCHEMA IF EXISTS headrace CASCADE")
            conn.execute("DROP PUBLICATION IF EXISTS headrace")
            conn.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
            install.install(conn)
    assert "SCRAM over TLS" in str(caught.value.detail)
    assert "pg_authid" in str(caught.value.detail)


def test_tls_required_refuses_clear_text(source, begin, tls):
    source.configure(ssl=True)
    commander = begin(**tls, tls_required=True)
    with pytest.raises(psycopg.OperationalError, match="must use TLS"):
        connect(commander, sslmode="disable")
    with connect(commander, sslmode="require") as conn:
        assert conn.pgconn.ssl_in_use
    with pytest.raises(Exception, match="tls_required"):
        Settings.of({"tls_required": True})


def test_a_source_that_gives_up_tls_is_not_spoken_to_in_the_clear(source, begin):
    source.configure(ssl=True)
    commander = begin()
    source.configure(ssl=False)
    with pytest.raises(psycopg.OperationalError, match="does not support SSL"):
        connect(commander)


def test_direct_tls_needs_the_name_of_the_protocol(source, begin, tls):
    """Otherwise a client of another service could be led here: an ALPACA attack."""
    import socket
    import ssl

    source.configure(ssl=True)
    commander = begin(**tls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for names in ([], ["http/1.1"]):
        if names:
            context.set_alpn_protocols(names)
        with (
            socket.create_connection(("127.0.0.1", commander.port)) as plain,
            context.wrap_socket(plain) as conn,
        ):
            conn.sendall(w.startup(user="joe", database="postgres"))
            assert conn.recv(1) == b""


def test_direct_tls_may_come_in_any_pieces(source, begin, tls):
    """Any bytes read before the connection is known to be TLS belong to the handshake."""
    import socket
    import ssl

    source.configure(ssl=True)
    commander = begin(**tls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["postgresql"])
    hello = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
    said = hello.read()
    for size in (1, 5, len(said) - 1, len(said)):
        with socket.create_connection(("127.0.0.1", commander.port)) as conn:
            conn.settimeout(PATIENCE_S)
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            conn.sendall(said[:size])
            wait_until(lambda: commander.listener.port._tasks, "the handshake begins")
            conn.sendall(said[size:])
            # A handshake record: the server's part of the handshake.
            assert conn.recv(1) == b"\x16"
        wait_until(lambda: not commander.listener.port.connections, "it is gone")
