"""Engines whose views are placed on three workers, two of them remote, for any test.

``HEADRACE_TEST_SPREAD=1 pytest tests/differential tests/conformance``: each view that a test
creates is placed on the next worker in turn. The remote workers are reached over TLS, at addresses
and over lines of their own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psycopg

from headrace.embedded.engine import EmbeddedEngine
from tests.far import FarWorker, token

_FOLDER = Path(__file__).parent / "spreading"
_READ = {"PYTHONPATH": os.pathsep.join(filter(None, (str(_FOLDER), os.environ.get("PYTHONPATH"))))}
ALTERED = {**_READ, "HEADRACE_TEST_ALTERED": "1"}
"""Environment of an engine that alters each view right after it was created."""
WANTED = bool(os.environ.get("HEADRACE_TEST_SPREAD"))
ELSEWHERE = {"w2": ("127.0.0.2", 0.0005, 5e7), "w3": ("127.0.0.3", 0.001, 1e7)}
"""Address, latency one way in seconds, bytes per second."""


def environment() -> dict[str, str]:
    """Return the environment of an engine that spreads its views."""
    if not WANTED:
        return {}
    return {**_READ, "HEADRACE_TEST_PLACES": ",".join(("main", *ELSEWHERE))}


@contextlib.contextmanager
def spread(engine: EmbeddedEngine, folder: Path) -> Iterator[None]:
    """Start the remote workers for the duration of the context, if the run wants them."""
    with contextlib.ExitStack() as stack:
        made = []
        for name, (host, delay_s, bytes_per_s) in ELSEWHERE.items() if WANTED else ():
            with psycopg.connect(engine.dsn, autocommit=True) as conn:
                given = token(conn, name)
            far = FarWorker(engine.source, folder / name, given, host)
            stack.callback(far.close)
            far.network.delay_s, far.network.bytes_per_s = delay_s, bytes_per_s
            far.start()
            made.append(far)
        for far in made:
            far.ready()
        yield
