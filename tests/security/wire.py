"""A client that sends arbitrary protocol messages one by one over a socket.

Drivers follow the protocol; an attacker does not. Only framing is implemented here.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from typing import Self

from headrace.server.pipeline import OwedAnswers
from tests.waiting import PATIENCE_S

Message = tuple[str, bytes]


def message(kind: str, body: bytes = b"") -> bytes:
    """Return a message with type byte and length."""
    return kind.encode("latin-1") + struct.pack("!i", len(body) + 4) + body


def startup(**parameters: str) -> bytes:
    """Return a StartupMessage of version 3.0."""
    body = struct.pack("!i", 0x30000)
    for name, value in parameters.items():
        body += f"{name}\0{value}\0".encode()
    return struct.pack("!i", len(body) + 5) + body + b"\0"


def query(text: str) -> bytes:
    """Return a Query message."""
    return message("Q", text.encode() + b"\0")


def parse(text: str, name: str = "") -> bytes:
    """Return a Parse message without declared types."""
    return message("P", f"{name}\0{text}\0".encode() + b"\0\0")


def bind(*values: bytes, portal: str = "", name: str = "") -> bytes:
    """Return a Bind message with values in text format."""
    body = f"{portal}\0{name}\0".encode() + b"\0\0" + struct.pack("!h", len(values))
    for value in values:
        body += struct.pack("!i", len(value)) + value
    return message("B", body + b"\0\0")


def execute(portal: str = "") -> bytes:
    """Return an Execute message without a row limit."""
    return message("E", portal.encode() + b"\0\0\0\0\0")


def describe(what: str = "P") -> bytes:
    """Return a Describe message for the unnamed portal (P) or statement (S)."""
    return message("D", what.encode() + b"\0")


SYNC = message("S")
FLUSH = message("H")
COPY_DONE = message("c")


def copy_data(data: bytes) -> bytes:
    """Return a CopyData message."""
    return message("d", data)


def run(text: str) -> bytes:
    """Return one statement in the extended protocol, without Sync."""
    return parse(text) + bind() + describe() + execute()


def fields(body: bytes) -> dict[str, str]:
    """Return the fields of an ErrorResponse."""
    parts = [p for p in body.split(b"\0") if p]
    return {chr(p[0]): p[1:].decode("utf-8", "replace") for p in parts}


class Wire:
    """One connection; the messages received are kept in ``seen``."""

    def __init__(self, port: int, **parameters: str) -> None:
        """Connect, and log in without a password if parameters are given."""
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(PATIENCE_S)
        self._buffer = b""
        self._at = 0
        """Number of bytes of the buffer that were parsed."""
        self.seen: list[Message] = []
        if parameters:
            self.send(startup(**parameters))
            self.until("Z")

    def send(self, *data: bytes) -> None:
        """Send all the data at once."""
        self.socket.sendall(b"".join(data))

    def read(self) -> Message | None:
        """Return the next message; None at the end of the connection."""
        while not self._whole():
            try:
                part = self.socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not part:
                return None
            self._buffer, self._at = self._buffer[self._at :] + part, 0
        size = 1 + struct.unpack_from("!i", self._buffer, self._at + 1)[0]
        found = chr(self._buffer[self._at]), self._buffer[self._at + 5 : self._at + size]
        self._at += size
        self.seen.append(found)
        return found

    def _whole(self) -> bool:
        have = len(self._buffer) - self._at
        return have >= 5 and have > struct.unpack_from("!i", self._buffer, self._at + 1)[0]

    def until(self, kind: str, count: int = 1) -> list[Message]:
        """Return the messages up to the ``count``-th of ``kind``; fail if the connection ends."""
        out: list[Message] = []
        for found in self.rest():
            out.append(found)
            count -= found[0] == kind
            if count == 0:
                return out
        raise AssertionError(f"the connection ended: {out}")

    def rest(self, stop: Callable[[Message], bool] = lambda _: False) -> Iterator[Message]:
        """Yield messages until ``stop`` or the end of the connection."""
        while (found := self.read()) is not None:
            yield found
            if stop(found):
                return

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def kinds(messages: list[Message]) -> str:
    """Return the types of the messages as a string."""
    return "".join(k for k, _ in messages)


def ready_owed(pipeline: OwedAnswers) -> int:
    """Return how many ReadyForQuery messages the source still owes the client."""
    return sum(1 for kind in pipeline._owed if kind in b"SQF")
