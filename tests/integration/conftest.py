"""Connections to the engine of a module; what it fills them with, its own fixtures of these names say."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from headrace.embedded.engine import EmbeddedEngine

ITEMS = """
CREATE TABLE items (id int PRIMARY KEY, g int, x numeric);
INSERT INTO items SELECT i, i % 5, i * 1.50 FROM generate_series(1, 100) i;
"""


@pytest.fixture
def source(engine: EmbeddedEngine) -> Iterator[psycopg.Connection]:
    """A direct connection."""
    with psycopg.connect(engine.source, autocommit=True) as conn:
        yield conn


@pytest.fixture
def commander(
    engine: EmbeddedEngine, source: psycopg.Connection
) -> Iterator[psycopg.Connection]:
    """A connection to the port, when there is what ``source`` makes."""
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        yield conn
