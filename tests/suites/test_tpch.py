"""The 22 queries of TPC-H, over generated rows, under refresh streams."""

from __future__ import annotations

import psycopg
import pytest

from bench.tpch_data import Tpch, queries
from tests.compared import difference, multiset
from tests.waiting import bump, create_marker, wait_for

SCALE = 0.001
STREAMS = 3


@pytest.fixture(scope="module")
def tables(running_engine):
    with psycopg.connect(running_engine.source, autocommit=True) as conn:
        data = Tpch(conn, SCALE)
        data.load()
        with psycopg.connect(running_engine.dsn, autocommit=True) as commander:
            create_marker(conn, commander)
            for name, query in queries().items():
                commander.execute(f"CALL headrace.create_view('{name.lower()}', $q${query}$q$)")
        yield conn, data


def test_every_query_stays_equal(tables):
    """Nearly every query has rows at some time, so that equality proves something."""
    conn, data = tables
    shown = check(conn, "population")
    for number in range(STREAMS):
        for step, changed in enumerate(data.refresh(number, 0.01)):
            assert changed > 0
            wait_for(conn, bump(conn))
            shown |= check(conn, f"stream {number}, step {step}")
    assert len(queries().keys() - shown) <= 3, shown


def check(conn: psycopg.Connection, where: str) -> set[str]:
    """Check that every view equals its query; return the names of the views that have rows."""
    shown = set()
    for name, query in queries().items():
        want, got = multiset(conn, query), multiset(conn, f"SELECT * FROM {name}")
        assert want == got, f"{where}, {name}\n{difference(want, got)}"
        if want:
            shown.add(name)
    return shown
