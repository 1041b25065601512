"""Engines whose views are on three workers, two of them elsewhere, whatever test has them.

``HEADRACE_TEST_SPREAD=1 pytest tests/differential tests/conformance``: each view that a test
creates is placed on the next worker in turn, and those elsewhere are reached over TLS by addresses
and lines of their own.
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
"""What an engine has to know whose views are to be altered as soon as they are there."""
WANTED = bool(os.environ.get("HEADRACE_TEST_SPREAD"))
ELSEWHERE = {"w2": ("127.0.0.2", 0.0005, 5e7), "w3": ("127.0.0.3", 0.001, 1e7)}
"""Address, seconds one way, bytes per second."""


def environment() -> dict[str, str]:
    """What an engine has to know for it."""
    if not WANTED:
        return {}
    return {**_READ, "HEADRACE_TEST_PLACES": ",".join(("main", *ELSEWHERE))}


@contextlib.contextmanager
def spread(engine: EmbeddedEngine, folder: Path) -> Iterator[None]:
    """Inside, the workers elsewhere are there, if they are wanted."""
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
