"""The listener in front of a worker: silent connections do not displace the engine's."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.network import tls_listener
from headrace.network.ends import Far
from headrace.network.tls_listener import TlsListener
from headrace.process import keys
from tests.waiting import PATIENCE_S, wait_until


class Echo:
    """An echo server on a Unix socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.accepted = 0
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen(512)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._server.accept()
                self.accepted += 1
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError), sock:
            while data := sock.recv(65_536):
                sock.sendall(data)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


class Ends:
    """A listener with the server behind it, and its clients."""

    def __init__(self, folder: Path) -> None:
        self.echo = Echo(folder / "echo")
        self.theirs, self.ours = (
            keys.load_or_create(folder / "theirs"),
            keys.load_or_create(folder / "ours"),
        )
        self.other = keys.load_or_create(folder / "other")
        here = Far("127.0.0.1:0", self.ours.certificate, self.theirs)
        self.listener = TlsListener(here, self.echo.path)
        self._folder = folder

    def silent(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.listener.port), PATIENCE_S)

    def dial(
        self, own: keys.KeyPair | None = None, sock: socket.socket | None = None
    ) -> ssl.SSLSocket:
        """Open a TLS connection as the engine does, or with another certificate."""
        own = own or self.ours
        pem = self._folder / "dial.pem"
        pem.write_bytes(own.certificate + own.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=self.theirs.certificate.decode())
        context.load_cert_chain(pem)
        context.set_alpn_protocols(["h2"])
        return context.wrap_socket(sock or self.silent())

    def echoes(self, sock: socket.socket, data: bytes = b"word") -> bool:
        sock.sendall(data)
        got = b""
        while len(got) < len(data) and (part := sock.recv(65_536)):
            got += part
        return got == data

    def close(self) -> None:
        self.listener.close()
        self.echo.close()


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    made = Ends(tmp_path)
    yield made
    made.close()


def ended(sock: socket.socket) -> bool:
    """Return whether the other side closes the connection."""
    try:
        while sock.recv(4_096):
            pass
    except OSError as error:
        return not isinstance(error, TimeoutError)
    return True


def test_hundreds_of_silent_connections_keep_nobody_out(ends: Ends) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(ends.silent()) for _ in range(300)]
        with ends.dial() as engine:
            assert ends.echoes(engine)
            more = [stack.enter_context(ends.silent()) for _ in range(300)]
            assert ends.echoes(engine), "one that has identified itself never makes room"
            assert ended(silent[0]), "the oldest made room"
            most = tls_listener.PER_ADDRESS_MAX + 1
            wait_until(lambda: len(ends.listener._connections) <= most, "they are closed")
            assert all(ended(sock) for sock in more[:200])
        assert ends.echo.accepted == 1, "nothing but the engine has come through"


def test_half_open_handshakes_make_room_too(ends: Ends) -> None:
    with contextlib.ExitStack() as stack:
        hello = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        hello.check_hostname, hello.verify_mode = False, ssl.CERT_NONE
        for _ in range(100):
            out = ssl.MemoryBIO()
            begun = hello.wrap_bio(ssl.MemoryBIO(), out)
            with contextlib.suppress(ssl.SSLWantReadError):
                begun.do_handshake()
            sock = stack.enter_context(ends.silent())
            sock.sendall(out.read())
            assert sock.recv(1), "the listener has answered, and waits"
        with ends.dial() as engine:
            assert ends.echoes(engine)
        most = tls_listener.PER_ADDRESS_MAX + 1
        wait_until(lambda: len(ends.listener._connections) <= most, "they are closed")


def test_silent_after_the_handshake_is_silent(ends: Ends) -> None:
    with contextlib.ExitStack() as stack:
        mute = [stack.enter_context(ends.dial()) for _ in range(tls_listener.PER_ADDRESS_MAX + 1)]
        assert ended(mute[0])
        assert ends.echo.accepted == 0


@pytest.mark.parametrize("how", ["silent", "half a hello", "mute"])
def test_deadline(ends: Ends, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(tls_listener, "LOGIN_S", 1.0)
    with ends.dial() as engine:
        assert ends.echoes(engine)
        with ends.dial() if how == "mute" else ends.silent() as sock:
            if how == "half a hello":
                sock.sendall(b"\x16\x03\x01\x02\x00\x01")
            assert ended(sock)
        assert ends.echoes(engine), "the deadline is for those who have not identified themselves"


def test_other_certificates_and_no_tls_are_refused(ends: Ends) -> None:
    with ends.silent() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert ended(sock)
    with contextlib.suppress(ssl.SSLError, ConnectionError), ends.dial(ends.other) as stranger:
        stranger.sendall(b"word")
        assert ended(stranger)
    with contextlib.suppress(ssl.SSLError, ConnectionError), ends.dial(ends.theirs) as stranger:
        stranger.sendall(b"word")
        assert ended(stranger)
    assert ends.echo.accepted == 0
    with ends.dial() as engine:
        assert ends.echoes(engine)


def test_much_goes_through_and_ends_are_passed_on(ends: Ends) -> None:
    with ends.dial() as engine:
        data = bytes(range(256)) * 20_000
        sender = threading.Thread(target=engine.sendall, args=(data,))
        got = bytearray()
        sender.start()
        while len(got) < len(data):
            got += engine.recv(65_536)
        sender.join()
        assert bytes(got) == data
    wait_until(lambda: not ends.listener._connections, "both sides are closed")


def test_nobody_behind_it(ends: Ends) -> None:
    ends.echo.path.unlink()
    with ends.dial() as engine:
        engine.sendall(b"word")
        assert ended(engine)


def test_close_ends_all(ends: Ends) -> None:
    with ends.silent() as silent, ends.dial() as engine:
        assert ends.echoes(engine)
        ends.listener.close()
        assert ended(silent)
        assert ended(engine)
    with pytest.raises(ConnectionRefusedError):
        ends.silent()
