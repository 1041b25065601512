"""Fixtures of the differential tests: one engine for all tests, and a connection to either side.

The tests only make tables and views, so they can share an engine; other tests cannot.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from headrace.embedded.engine import EmbeddedEngine


@pytest.fixture
def engine(shared_engine: EmbeddedEngine) -> EmbeddedEngine:
    return shared_engine


@pytest.fixture
def source(engine: EmbeddedEngine) -> Iterator[psycopg.Connection]:
    with psycopg.connect(engine.source, autocommit=True, prepare_threshold=None) as conn:
        conn.execute("SET timezone = 'UTC'")
        conn.execute("SET extra_float_digits = 1")
        yield conn


@pytest.fixture
def commander(engine: EmbeddedEngine) -> Iterator[psycopg.Connection]:
    with psycopg.connect(engine.dsn, autocommit=True, prepare_threshold=None) as conn:
        yield conn
