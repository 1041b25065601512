"""The HTTP port without a database: any requests, at any speed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import ssl
import subprocess

import pytest

from headrace.config import Settings
from headrace.console import app, port
from headrace.console.host_interface import HostInterface, ProcessUsage
from headrace.console.port import HttpPort
from headrace.errors import PrerequisiteError, UserError
from headrace.process import admission
from headrace.server import http
from tests.waiting import eventually

NOWHERE = "host=127.0.0.1 port=1 dbname=x user=x"


class Health:
    async def ready(self):
        return False, "the replication slot is not active"

    async def metrics(self):
        return "a 1\n"

    def usage(self):
        return [ProcessUsage("commander", 1, 0.5, 1 << 20)]


async def ask(procedure, arguments, caller):
    return []


@pytest.fixture
def settings(tmp_path):
    return Settings(source=NOWHERE, data_dir=tmp_path, http="127.0.0.1:0")


@contextlib.asynccontextmanager
async def serving(settings, health=None):
    outside = HostInterface(settings, health or Health(), ask, None, "1")
    server = HttpPort(settings.http, outside)
    _, number = await server.start()
    serving.now = server
    try:
        yield number
    finally:
        await server.close()


async def talk(number, sent, patience_s=20.0):
    """Return the whole answer to ``sent``, until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", number)
    writer.write(sent)
    try:
        async with asyncio.timeout(patience_s):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def request(line, *headers, body=b""):
    words = "\r\n".join([line, "Host: x", "Connection: close", *headers])
    return words.encode() + b"\r\n\r\n" + body


def post(path, body, *headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = headers or ("Content-Type: application/json",)
    return request(f"POST {path} HTTP/1.1", f"Content-Length: {len(data)}", *given, body=data)


@pytest.mark.parametrize(
    ("line", "status", "body"),
    [
        ("GET /livez HTTP/1.1", b"200 OK", b"ok\n"),
        (
            "GET /readyz HTTP/1.1",
            b"503 Service Unavailable",
            b"the replication slot is not active\n",
        ),
        ("GET /metrics?x=1 HTTP/1.1", b"200 OK", b"a 1\n"),
        ("GET /other HTTP/1.1", b"404 Not Found", b"not found\n"),
        ("POST /livez HTTP/1.1", b"405 Method Not Allowed", b"only GET\n"),
        ("GET /api/login HTTP/1.1", b"405 Method Not Allowed", b"only POST\n"),
        ("GET /api/logout HTTP/1.1", b"405 Method Not Allowed", b"only POST\n"),
        ("GET /api/events HTTP/1.1", b"401 Unauthorized", b"log in first\n"),
        ("GET /static/../app.py HTTP/1.1", b"404 Not Found", b"not found\n"),
        ("GET /static/%2e%2e/app.py HTTP/1.1", b"404 Not Found", b"not found\n"),
        ("GET //etc/passwd HTTP/1.1", b"404 Not Found", b"not found\n"),
        ("nonsense", b"400 Bad Request", b"Invalid HTTP request received."),
    ],
)
def test_paths(settings, line, status, body):
    async def main():
        async with serving(settings) as number:
            return await talk(number, request(line))

    answer = asyncio.run(main())
    assert answer.startswith(b"HTTP/1.1 " + status), answer[:200]
    assert answer.endswith(b"\r\n\r\n" + body)


def test_a_head_without_end_is_not_read_to_its_end(settings):
    async def main():
        async with serving(settings) as number:
            head = b"GET /" + b"x" * 4_000_000
            return await talk(number, head), await talk(number, request("GET /livez HTTP/1.1"))

    answer, other = asyncio.run(main())
    # Unread data resets the connection, with or without the answer.
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    assert other.endswith(b"ok\n")


def test_without_the_console_there_is_health_only(settings, tmp_path):
    async def main():
        async with serving(settings.replace(console=False)) as number:
            return [
                await talk(number, request(f"GET {path} HTTP/1.1"))
                for path in ("/livez", "/", "/api/me", "/static/app.js")
            ]

    answers = asyncio.run(main())
    assert [a.split(b" ")[1] for a in answers] == [b"200", b"404", b"404", b"404"]
    assert not (tmp_path / "console.token").exists()


def test_every_answer_says_what_a_page_may_do(settings):
    async def main():
        async with serving(settings) as number:
            paths = [
                "/",
                "/static/app.js",
                "/api/me",
                "/livez",
                "/nothing",
                "/manual/security.html",
            ]
            return [await talk(number, request(f"GET {p} HTTP/1.1")) for p in paths]

    for answer in asyncio.run(main()):
        head = answer.partition(b"\r\n\r\n")[0].decode().lower()
        policy = re.search("content-security-policy: (.*)", head)[1]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "http:" not in policy
        assert "frame-ancestors 'none'" in policy
        assert "x-content-type-options: nosniff" in head


def test_the_manual_is_served(settings):
    async def main():
        async with serving(settings) as number:
            paths = ["/manual/", "/manual/manual/start.html", "/manual/nothing.html"]
            return [await talk(number, request(f"GET {p} HTTP/1.1")) for p in paths]

    there, page, nothing = asyncio.run(main())
    assert there.startswith(b"HTTP/1.1 302 ")
    assert b"location: /manual/manual/start.html\r\n" in there
    assert page.startswith(b"HTTP/1.1 200 OK")
    assert b'<h1 id="start-here">Start here</h1>' in page
    assert b"<script" not in page
    assert nothing.startswith(b"HTTP/1.1 404 ")


def test_files_ask_nobody_else_and_are_small(settings):
    whole = 0
    for name, (_, _, data) in app._files("static").items():
        whole += len(data)
        if name.startswith("vendor/"):
            continue
        text = data.decode()
        # Only names of namespaces and of projects may contain a host: they are no requests.
        assert not re.search(r"(?:src|href)=\"(?!/static/|#|\$)|url\((?!#)|@import", text), name
        assert "innerHTML" not in text, name
        assert "eval(" not in text, name
        if name.endswith(".html"):
            assert not re.search(r"<script(?![^>]*src=)|<style| on\w+=| style=", text), name
    assert 50_000 < whole < 400_000
    assert {"index.html", "app.js", "style.css", "vendor/dagre.js"} <= app._files("static").keys()


def test_a_file_that_one_has_is_not_sent_again(settings):
    async def main():
        async with serving(settings) as number:
            first = await talk(number, request("GET /static/app.js HTTP/1.1"))
            tag = re.search(rb'etag: ("\w+")', first)[1].decode()
            return first, await talk(
                number, request("GET /static/app.js HTTP/1.1", f"If-None-Match: {tag}")
            )

    first, again = asyncio.run(main())
    assert b"text/javascript" in first
    assert again.startswith(b"HTTP/1.1 304 ")
    assert again.endswith(b"\r\n\r\n")


def test_what_is_posted_is_json_of_ours(settings):
    hostile = [
        post("/api/login", {"token": "x"}, "Content-Type: text/plain"),
        post("/api/login", b"token=x", "Content-Type: application/x-www-form-urlencoded"),
        post("/api/logout", b"", "Accept: */*"),
        post(
            "/api/logout",
            {},
            *("Content-Type: application/json", "Sec-Fetch-Site: cross-site"),
        ),
        post("/api/login", b"{"),
        post("/api/login", {"token": 7}),
        post("/api/login", {"token": "x", "more": 1}),
        post("/api/login", b"[" * 8_000),
        post("/api/login", {"token": "x" * 10_000}),
        post("/api/login", {}),
        post("/api/login", {"role": "a\0b", "password": "x"}),
        post("/api/login", b'{"role": "a", "password": "\\ud800"}'),
        post("/api/login", {"role": "x" * 64, "password": "x"}),
        post("/api/login", {"role": "postgres", "password": ""}),
        post("/api/login", {"token": "é" * 20}),
    ]

    async def main():
        out = []
        for sent in hostile:
            async with serving(settings) as number:
                out.append((await talk(number, sent)).split(b" ")[1])
        return out

    assert asyncio.run(main()) == [
        *(b"415", b"415", b"415", b"403"),
        *(b"400", b"400", b"400", b"400", b"413"),
        *(b"403", b"403", b"400", b"403", b"403", b"403"),
    ]


def test_a_token_is_guessed_ten_times_a_minute(settings):
    async def main():
        async with serving(settings) as number:
            wrong = [await talk(number, post("/api/login", {"token": f"x{n}"})) for n in range(12)]
            role = await talk(number, post("/api/login", {"role": "a", "password": "b"}))
            # Reading is still allowed.
            return [*wrong, role, await talk(number, request("GET /livez HTTP/1.1"))]

    answers = asyncio.run(main())
    assert [a.split(b" ")[1] for a in answers] == [b"403"] * 10 + [b"429"] * 3 + [b"200"]
    assert re.search(rb"retry-after: (5\d|60)\r\n", answers[10])
    assert b"set-cookie" not in b"".join(answers)


def test_secrets_are_taken_over_tls_or_on_this_computer(settings):
    """Only the actual address of the client counts, not its headers."""

    def safe(host, scheme="http", **more):
        outside = HostInterface(settings.replace(**more), Health(), ask, None, "1")
        made = app.App(outside, None)
        scope = {"type": "http", "scheme": scheme, "server": ("x", 80), "path": "/"}
        scope |= {"client": (host, 1), "headers": [(b"x-forwarded-for", b"127.0.0.1")]}
        scope |= {"query_string": b"", "method": "GET"}
        return made._is_safe(app.Request(scope))

    assert safe("127.0.0.1")
    assert safe("::1")
    assert safe("::ffff:127.0.0.1")
    assert not safe("10.0.0.7")
    assert not safe("fe80::1%eth0")
    assert not safe("")
    assert safe("10.0.0.7", "https")
    assert safe("10.0.0.7", console_plain=True)


def certificate(folder):
    """Return the files of a new certificate and its key."""
    made = [str(folder / "cert.pem"), str(folder / "key.pem")]
    words = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    subprocess.run(
        ["openssl", "req", "-x509", *words, "-subj", "/CN=x", "-out", made[0], "-keyout", made[1]],
        check=True,
        capture_output=True,
    )
    return made


def test_over_tls_a_cookie_is_for_tls_alone(settings, tmp_path):
    made = certificate(tmp_path)
    with pytest.raises(UserError, match="http_tls"):
        settings.replace(http_tls=True)
    secured = settings.replace(http_tls=True, tls_cert=made[0], tls_key=made[1])
    outside = HostInterface(secured, Health(), ask, http._tls(secured), "1")
    assert http._tls(secured.replace(http_tls=False)) is None
    trusting = ssl.create_default_context(cafile=made[0])
    trusting.check_hostname = False
    trusting.set_alpn_protocols(["http/1.1"])

    async def main():
        server = HttpPort("127.0.0.1:0", outside)
        _, number = await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", number, ssl=trusting)
        chosen = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        writer.write(post("/api/logout", {}))
        answer = await reader.read()
        writer.close()
        plain = await talk(number, request("GET /livez HTTP/1.1"))
        await server.close()
        return chosen, answer, plain

    chosen, answer, plain = asyncio.run(main())
    assert chosen == "http/1.1"
    cookie = re.search(rb"set-cookie: (__Host-headrace-\d+)=([^\r]*)", answer)[2].decode()
    assert {"Secure", "HttpOnly", "SameSite=strict"} <= {p.strip() for p in cookie.split(";")}
    assert plain == b""


def test_who_says_half_a_request_is_sent_away(settings, monkeypatch):
    monkeypatch.setattr(port, "HEAD_S", 0.2)
    monkeypatch.setattr(port, "KEEP_ALIVE_S", 0.2)
    monkeypatch.setattr(app, "BODY_S", 0.2)

    async def drip(number):
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await reader.readuntil(b"ok\n")
        with contextlib.suppress(ConnectionError):
            for letter in b"GET / HTTP/1.1\r\nHost: x" * 3:
                writer.write(bytes([letter]))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        assert await reader.read(1) == b""
                        break
        rest = await reader.read()
        writer.close()
        return answer, rest

    async def main():
        async with serving(settings) as number:
            half = talk(number, b"GET /livez HTTP/1.1\r\nHost: x\r\n")
            # A second request on the same connection has no more time.
            second = talk(number, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /li")
            body = talk(
                number,
                b"POST /api/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: 100\r\n\r\n{",
            )
            return await asyncio.gather(half, second, body, talk(number, b""), drip(number))

    half, second, body, nothing, (first, rest) = asyncio.run(main())
    assert first.startswith(b"HTTP/1.1 200 OK")
    assert rest == b""
    assert half == b""
    assert second.count(b"HTTP/1.1 200 OK") == 1
    assert b"200" not in body
    assert nothing == b""


def test_who_reads_nothing_keeps_nobody_waiting(settings, monkeypatch):
    monkeypatch.setattr(port, "UNREAD_S", 0.3)
    # The system would end it too, but later.
    monkeypatch.setattr(admission, "tune", lambda sock, timeout_ms: None)

    class Long(Health):
        async def metrics(self):
            return "x" * 40_000_000

    async def main():
        async with serving(settings, Long()) as number:
            sock = socket.create_connection(("127.0.0.1", number))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            sock.sendall(request("GET /metrics HTTP/1.1"))
            async with asyncio.timeout(2):
                other = await talk(number, request("GET /livez HTTP/1.1"))
            await eventually(lambda: not serving.now._state.connections, "it is given up")
            sock.setblocking(False)
            got = 0
            # The rest in the system's buffers arrives slowly through so small a window.
            with contextlib.suppress(ConnectionResetError, TimeoutError):
                async with asyncio.timeout(1):
                    while part := await asyncio.get_running_loop().sock_recv(sock, 1 << 20):
                        got += len(part)
            sock.close()
            return other, got

    other, got = asyncio.run(main())
    assert other.endswith(b"ok\n")
    assert got < 40_000_000


def test_connections_of_one_address_are_bounded(settings, monkeypatch):
    monkeypatch.setattr(port, "PER_NETWORK_MAX", 5)

    async def main():
        async with serving(settings) as number:
            open_ = [await asyncio.open_connection("127.0.0.1", number) for _ in range(5)]
            refused = await talk(number, request("GET /livez HTTP/1.1"))
            for _, writer in open_:
                writer.close()
                await writer.wait_closed()
            await eventually(lambda: not serving.now._state.connections, "they have gone")
            return refused, await talk(number, request("GET /livez HTTP/1.1"))

    refused, later = asyncio.run(main())
    assert refused == b""
    assert later.endswith(b"ok\n")


def test_an_error_of_ours_is_not_shown(settings):
    class Broken(Health):
        async def metrics(self):
            raise RuntimeError("secret=hunter2")

    async def main():
        async with serving(settings, Broken()) as number:
            return await talk(number, request("GET /metrics HTTP/1.1"))

    answer = asyncio.run(main())
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"hunter2" not in answer


def test_the_token_is_made_once_and_is_a_secret(settings, tmp_path):
    async def main():
        async with serving(settings):
            return (tmp_path / "console.token").read_text()

    made = asyncio.run(main())
    assert len(made.strip()) >= 43
    assert (tmp_path / "console.token").stat().st_mode & 0o077 == 0
    assert asyncio.run(main()) == made
    for text in ("short", "\xff" * 3):
        given = tmp_path / "given"
        given.write_bytes(text.encode("latin-1"))
        given.chmod(0o600)
        with pytest.raises(PrerequisiteError, match="console's token"):
            asyncio.run(_start(settings.replace(console_token_file=str(given))))
    with pytest.raises(PrerequisiteError, match="could not read"):
        asyncio.run(_start(settings.replace(console_token_file=str(tmp_path / "none"))))


async def _start(settings):
    async with serving(settings):
        pass
