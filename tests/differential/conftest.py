"""Fixtures of the differential tests: one engine for all of them, and a connection to either side.

They make tables and views, and nothing else: no other test of an engine is as harmless.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.conftest import started


@pytest.fixture(scope="package")
def running_engine(databases, tmp_path_factory, request):
    with started(databases, tmp_path_factory, request.node) as engine:
        yield engine


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
