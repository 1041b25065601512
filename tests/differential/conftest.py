"""Fixtures of the differential tests: one engine per module, and a connection to either side."""

from __future__ import annotations

import psycopg
import pytest


@pytest.fixture
def engine(shared_engine):
    return shared_engine


@pytest.fixture
def source(engine):
    with psycopg.connect(
        engine.source, autocommit=True, prepare_threshold=None
    ) as conn:
        conn.execute("SET timezone = 'UTC'")
        conn.execute("SET extra_float_digits = 1")
        yield conn


@pytest.fixture
def commander(engine):
    with psycopg.connect(engine.dsn, autocommit=True, prepare_threshold=None) as conn:
        yield conn
