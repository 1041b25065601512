"""Receivers of webhooks: local HTTP servers on threads, which do as a test tells them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Received:
    """A request."""

    path: str
    headers: dict[str, str]
    """By name in lower case."""
    body: bytes

    @property
    def told(self) -> dict[str, Any]:
        """The body."""
        return json.loads(self.body)

    def is_signed(self, secret: str) -> bool:
        """Return whether the signature is that of Standard Webhooks."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode()
        digest = hmac.new(key, signed + self.body, hashlib.sha256).digest()
        return self.headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()


class Receiver:
    """A server; ``answers`` gives the status of each request by its number, beginning at 0.

    Status 0: no answer comes before the receiver is closed.
    """

    def __init__(self, answers: Callable[[int], int] = lambda _: 204) -> None:
        self.received: list[Received] = []
        self.location = ""
        self._answers = answers
        self._closed = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer._handle(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """An address with a part that must not be logged."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/hook?token=t0ps3cret"

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in request.headers.items()}
        number = len(self.received)
        self.received.append(Received(request.path, headers, body))
        status = self._answers(number)
        if status == 0:
            self._closed.wait()
            return
        request.send_response(status)
        if self.location:
            request.send_header("Location", self.location)
        request.send_header("Content-Length", "0")
        request.end_headers()

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()
