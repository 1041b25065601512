"""A simple client of the HTTP port: one cookie, and server-sent events as they arrive."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headrace.embedded.engine import EmbeddedEngine
from tests.waiting import PATIENCE_S


def port_of(engine: EmbeddedEngine) -> int:
    """Return the engine's HTTP port."""
    found = re.findall(r'"address": ?"127.0.0.1:(\d+)"', engine.log)
    assert found, engine.log
    return int(found[-1])


def token_of(engine: EmbeddedEngine) -> str:
    """Return the token that the engine has made."""
    return Path(engine.data_dir, "console.token").read_text().strip()


class Client:
    """A client like a browser, without its restrictions."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""
        self.headers: dict[str, str] = {}

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        """Return status and body; the answer's headers are stored in ``headers``."""
        return self._ask("GET", path, None, headers)

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Return status and decoded JSON."""
        given = {"content-type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, text = self._ask("POST", path, data, given)
        return status, json.loads(text) if text.startswith(b"{") else text

    def events(self, view: str | None = None) -> Iterator[tuple[str, Any]]:
        """Yield (event, data) as they arrive; closing the iterator disconnects."""
        conn = self._connect()
        path = "/api/events" + (f"?view={quote(view)}" if view else "")
        conn.request("GET", path, headers={"cookie": self.cookie})
        answer = conn.getresponse()
        assert answer.status == 200, answer.read()
        try:
            event = ""
            for line in answer:
                if line.startswith(b"event: "):
                    event = line[7:].decode().strip()
                elif line.startswith(b"data: "):
                    yield event, json.loads(line[6:])
        finally:
            conn.close()

    def first(self, event: str, view: str | None = None) -> Any:
        """Return the data of the first event of that name."""
        stream = self.events(view)
        try:
            return next(data for name, data in stream if name == event)
        finally:
            stream.close()  # type: ignore[attr-defined]

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)

    def _ask(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        conn = self._connect()
        if self.cookie:
            headers = {"cookie": self.cookie} | headers
        conn.request(method, path, body, headers)
        answer = conn.getresponse()
        self.headers = {name.lower(): value for name, value in answer.getheaders()}
        if given := answer.getheader("set-cookie"):
            self.cookie = given.split(";")[0]
        data = answer.read()
        conn.close()
        return answer.status, data
