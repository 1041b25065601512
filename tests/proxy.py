"""TCP proxies for tests: they cut, stall, delay and half-close connections, or drop the answer to
COMMIT.

``Line`` has a latency and a bandwidth, like a wire.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from typing import Final

from tests.waiting import time_passes

Pair = tuple[socket.socket, socket.socket]
_COMMIT_DONE: Final = b"C\x00\x00\x00\x0bCOMMIT\x00"


class Proxy:
    """A proxy that relays connections to ``host:port``; ``port`` is its own."""

    def __init__(self, host: str, port: int, at: str = "127.0.0.1") -> None:
        self._target = (host, port)
        self._server = socket.create_server((at, 0))
        self.port: int = self._server.getsockname()[1]
        self.drop_commit_every = 0
        """Cut a connection instead of passing on every n-th answer to COMMIT; 0: never."""
        self.behind = b""
        """Bytes that clients get after each piece of an answer."""
        self.commits = 0
        self.dropped = 0
        self.delay_s = 0.0
        """Delay of each piece, in seconds."""
        self.bytes_per_s = 0.0
        """Bandwidth of a connection in each direction; 0: unlimited."""
        self.flowing = threading.Event()
        self.flowing.set()
        self._pairs: set[Pair] = set()
        self._deaf: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def connections(self) -> int:
        """Return the number of open connections."""
        return len(self._pairs)

    def cut(self) -> None:
        """Close every connection."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._end(pair)

    def half_close(self, *, towards_client: bool) -> None:
        """Close one direction of every connection; the other one stays open.

        Towards the client: the client reads the end, and its writes still arrive. Towards the
        server: the server sees an end of file, although its client is still there.
        """
        with self._lock:
            pairs = list(self._pairs)
        for client, server in pairs:
            end = client if towards_client else server
            self._deaf.add(end)
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_WR)

    def stall(self) -> None:
        """Pass no data on until ``resume``."""
        self.flowing.clear()

    def resume(self) -> None:
        self.flowing.set()

    def close(self) -> None:
        self._server.close()
        self.flowing.set()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            pair = (client, server)
            for end in pair:  # a network does not wait for more data
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.add(pair)
            for source, sink, answers in ((client, server, False), (server, client, True)):
                threading.Thread(
                    target=self._relay, args=(pair, source, sink, answers), daemon=True
                ).start()

    def _relay(self, pair: Pair, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.flowing.wait()
                if self.delay_s or self.bytes_per_s:
                    time_passes(self.delay_s + len(data) / (self.bytes_per_s or 1e12))
                if answers and _COMMIT_DONE in data:
                    self.commits += 1
                    if self.drop_commit_every and self.commits % self.drop_commit_every == 0:
                        self.dropped += 1
                        break
                if sink not in self._deaf:
                    sink.sendall(data + self.behind if answers else data)
        self._end(pair)

    def _end(self, pair: Pair) -> None:
        with self._lock:
            self._pairs.discard(pair)
        self._deaf.difference_update(pair)
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Line(Proxy):
    """A proxy that delays everything by ``delay_s`` and limits the bytes per second in each
    direction.

    The data in transit is bounded, as by a router; then the sender blocks. ``deaf`` drops the data
    of one direction and keeps the connection, so the sender notices no loss.
    """

    _ON_ITS_WAY = 16
    _PIECE = 16_384

    def __init__(self, host: str, port: int, at: str = "127.0.0.1") -> None:
        super().__init__(host, port, at)
        self.deaf: bool | None = None
        """True: data for the client is dropped; False: data for the server."""

    def _relay(self, pair: Pair, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        way: queue.Queue[tuple[float, bytes] | None] = queue.Queue(self._ON_ITS_WAY)
        out = threading.Thread(target=self._deliver, args=(way, sink, answers), daemon=True)
        out.start()
        with contextlib.suppress(OSError):
            while data := source.recv(self._PIECE):
                way.put((time.monotonic() + self.delay_s, data))
        way.put(None)
        out.join()
        self._end(pair)

    def _deliver(
        self, way: queue.Queue[tuple[float, bytes] | None], sink: socket.socket, answers: bool
    ) -> None:
        free = 0.0
        while (item := way.get()) is not None:
            due, data = item
            self.flowing.wait()
            began = max(due, free, time.monotonic())
            free = began + (len(data) / self.bytes_per_s if self.bytes_per_s else 0.0)
            time_passes(max(free - time.monotonic(), 0.0))
            if self.deaf is not answers and sink not in self._deaf:
                with contextlib.suppress(OSError):
                    sink.sendall(data)
