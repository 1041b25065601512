"""A source with Headrace's schema, and engines on it in this process.

A module sets constants: ``TABLES``, statements for the source; ``READY``, whether to wait for the
first stream of a started engine (the default).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.process import faults
from tests.runtime.harness import Running, starting


@pytest.fixture
def source(
    catalog: None, database: str, request: pytest.FixtureRequest
) -> Iterator[psycopg.Connection]:
    """Yield a connection to a database with Headrace's schema and the module's ``TABLES``."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(getattr(request.module, "TABLES", ""))
        yield conn


@pytest.fixture
def start(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Running]]:
    """Yield a function that starts an engine; stop running engines and disarm faults at the end."""
    ready = getattr(request.module, "READY", True)
    with starting(database, tmp_path / "data", ready=ready) as run:
        yield run
        faults.arm("")
