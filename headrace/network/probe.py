"""Probes of a link: how long a message takes, and how many bytes per second go through.

Placement weighs links by these two numbers.  Ordinary traffic does not show them: most messages
fit into buffers, and the answer to a batch waits for the worker to compute it.  So a probe is a
separate exchange, in which the worker sends back each message.  It runs while the link is
otherwise idle, and its result is dropped if the link was used meanwhile.  Until a probe has
succeeded, the numbers are unknown.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from headrace import clock

PROBE: Final = b"headrace probe"
"""Descriptor of the exchange in which the worker sends back each message (``echo``)."""

_ROUND_TRIPS: Final = 7
"""Smallest messages that are exchanged first; the fastest one is the round trip."""
_OUTLIERS: Final = 2
"""Round trips that may take longer, by TCP's delayed acknowledgements for example (40 ms)."""
_FIRST_BYTES: Final = 1 << 10
_GROWTH: Final = 4
_MOST_BYTES: Final = 1 << 18
"""Size of the largest message.  With all attempts at every size a probe moves less than 4 MiB."""
_ATTEMPTS: Final = (3, 5)
"""Least and most per size.  The fastest counts, for a busy machine and TCP's slow start only add
time; but another one has to confirm it."""
_CONFIRMED: Final = 2
"""Two attempts agree if the slower one takes at most so many times as long."""
_STEP_S: Final = 0.06
"""Bound of the expected transfer time of a message, beyond the round trip: three attempts and all
smaller messages take less than 250 ms."""
_STEP_MOST_S: Final = 0.25
"""The same where round trips vary."""
_DEADLINE_S: Final = 5.0
"""Time limit of a probe on a link on which nothing comes back."""
_CLOCK_S: Final = 1e-4
"""A shorter time cannot be distinguished from zero."""
_JITTER: Final = 0.1
"""Part of the round trip by which it varies: a shorter transfer is indistinguishable from zero."""

_NOISE: Final = 4.0
"""A transfer that takes less than this times the spread of the round trips shows nothing ..."""
_FAST_S: Final = 5e-3
"""... unless it takes no longer than this: then the largest message shows an ordinary link or a
faster one, for noise only adds time."""

PROBES: Final = 3
"""Number of probes of a new link, and of the latest probes that count (``meter.py``)."""
SOON_S: Final = 1.0
"""Time between these; twice as long each time that one fails, or the link is used meanwhile."""
AGAIN_S: Final = 300.0
"""Time between later probes, while the link is idle."""
_QUIET_BYTES: Final = 4096
"""Traffic between two looks below which a link is idle: heartbeats are smaller."""
_SHARE_MAX: Final = 8
"""A probe counts if other traffic was less than its own bytes divided by this."""


@dataclass(frozen=True, slots=True)
class Probed:
    """Result of a probe."""

    latency_us: int
    """Half of the round trip, in microseconds."""
    bandwidth: int
    """Bytes per second, the mean of both directions."""
    moved: int = 0
    """Bytes that the probe sent and got."""


class Unsteady(Exception):
    """Equal messages took very different times: the probe shows nothing."""


def measure(there_and_back: Callable[[int], float]) -> Probed:
    """Probe a link by sending messages and getting them back.

    ``there_and_back`` does so with a message of a given size, and returns the seconds it took.

    Messages grow while the next larger one is expected to take at most 60 ms beyond the round
    trip, or four round trips if that is longer.  At its final size a probe tries at least three
    times.  So a slow line carries a few kilobytes, and a fast one enough to be measured.  Where
    round trips vary because the machine is busy, messages may take longer.

    Raises:
        Unsteady: no two attempts agree, or round trips vary by as much as a transfer takes.
    """
    trips = sorted(there_and_back(1) for _ in range(_ROUND_TRIPS))
    trip_s, noise_s = trips[0], _NOISE * (trips[-1 - _OUTLIERS] - trips[0])
    step_s = max(_STEP_S, _GROWTH * trip_s, min(_GROWTH * noise_s, _STEP_MOST_S))
    size, moved = _FIRST_BYTES, 0
    took: list[float] = []
    while len(took) < _ATTEMPTS[0] or took[1] > _CONFIRMED * max(took[0], _FAST_S):
        if len(took) == _ATTEMPTS[1]:
            raise Unsteady
        took.append(max(there_and_back(size) - trip_s, _JITTER * trip_s, _CLOCK_S))
        took.sort()
        moved += 2 * size
        if size < _MOST_BYTES and _GROWTH * took[0] <= step_s:
            size, took = size * _GROWTH, []
    if _FAST_S < took[0] < noise_s:
        raise Unsteady
    return Probed(round(trip_s * 1e6 / 2), round(2 * size / took[0]), moved)


def echo(reader: Any, writer: Any) -> None:
    """Send back every message until the other end ends the exchange."""
    with contextlib.suppress(StopIteration, pa.ArrowException, OSError):
        while True:
            writer.write_metadata(reader.read_chunk().app_metadata)


def probe(client: Any) -> Probed:
    """Probe the link to the worker of ``client``.

    Raises:
        ArrowException: the worker is gone, or the probe took too long.
        OSError: the same.
        Unsteady: it shows nothing.
    """
    options = flight.FlightCallOptions(timeout=_DEADLINE_S)
    descriptor = flight.FlightDescriptor.for_command(PROBE)
    writer, reader = client.do_exchange(descriptor, options)
    content = pa.py_buffer(os.urandom(_MOST_BYTES))

    def there_and_back(size: int) -> float:
        began = clock.monotonic()
        writer.write_metadata(content.slice(0, size))
        reader.read_chunk()
        return clock.monotonic() - began

    with contextlib.closing(writer):
        try:
            there_and_back(1)  # the exchange begins with it
            return measure(there_and_back)
        except StopIteration:
            raise pa.ArrowException("the worker ended the probe") from None


class Prober:
    """Probes a link when it has begun, and rarely afterwards, while nothing else uses it."""

    def __init__(
        self, name: str, client: Any, moved: Callable[[], int], record: Callable[[Probed], None]
    ) -> None:
        """Watch a link: ``moved`` returns its bytes so far, ``record`` takes results."""
        self._name: Final = name
        self._client = client
        self._moved = moved
        self._record = record
        self._seen = 0
        """Bytes on the link at the last look."""
        self._due = 0.0
        self._soon_s = SOON_S
        self._done = 0
        """Probes that succeeded."""
        self._lock = threading.Lock()
        # Guarded by the lock.
        self._running = False
        self._files = 0
        """File transfers under way."""
        self._disturbed = False
        """Whether a file was transferred during the probe."""

    def look(self) -> None:
        """Begin a probe, on a thread of its own, if one is due and the link is idle."""
        moved = self._moved()
        quiet, self._seen = moved - self._seen <= _QUIET_BYTES, moved
        with self._lock:
            if not quiet or self._running or self._files or clock.monotonic() < self._due:
                return
            self._running, self._disturbed = True, False
        threading.Thread(target=self._run, name=f"headrace-probe-{self._name}", daemon=True).start()

    @contextlib.contextmanager
    def transfer(self) -> Iterator[None]:
        """Suppress probes while a file is transferred over the link."""
        with self._lock:
            self._files += 1
            self._disturbed = True
        try:
            yield
        finally:
            with self._lock:
                self._files -= 1

    def _run(self) -> None:
        before, found = self._moved(), None
        with contextlib.suppress(pa.ArrowException, OSError, Unsteady):
            found = probe(self._client)
        with self._lock:
            self._running = False
            if found is not None:
                used = self._moved() - before > found.moved // _SHARE_MAX
                found = None if used or self._disturbed else found
            self._done += found is not None
            self._soon_s = SOON_S if found is not None else min(2 * self._soon_s, AGAIN_S)
            wait_s = self._soon_s if found is None or self._done < PROBES else AGAIN_S
            self._due = clock.monotonic() + wait_s
        if found is not None:
            self._record(found)
