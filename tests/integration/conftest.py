"""Connections to the engine of a test, and the objects that exist before the test begins.

Constants of a module: ``TABLES``, statements for the source; ``MARKER``, whether to create the
marker and its view; ``VIEWS``, queries by view name.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from headrace.embedded.engine import EmbeddedEngine
from tests.waiting import create_marker

ITEMS = """
CREATE TABLE items (id int PRIMARY KEY, g int, x numeric);
INSERT INTO items SELECT i, i % 5, i * 1.50 FROM generate_series(1, 100) i;
"""


@pytest.fixture
def source(engine: EmbeddedEngine, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    """Open a direct connection to a database with the module's ``TABLES``."""
    with psycopg.connect(engine.source, autocommit=True, prepare_threshold=None) as conn:
        conn.execute(getattr(request.module, "TABLES", ""))
        yield conn


@pytest.fixture
def commander(
    engine: EmbeddedEngine, source: psycopg.Connection, request: pytest.FixtureRequest
) -> Iterator[psycopg.Connection]:
    """Open a connection to the port of an engine with the module's ``VIEWS``."""
    with psycopg.connect(engine.dsn, autocommit=True, prepare_threshold=None) as conn:
        if getattr(request.module, "MARKER", False):
            create_marker(source, conn)
        for name, query in getattr(request.module, "VIEWS", {}).items():
            conn.execute("CALL headrace.create_view(%s, %s)", (name, query))
        yield conn
