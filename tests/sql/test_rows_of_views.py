"""Rows that are written about all views, while another session drops or resyncs one of them."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from headrace.sql import held, samples
from headrace.sql.held import Behind, Holding, PublishedCursor

END = {
    "dropped": "DELETE FROM headrace.views WHERE id = 2",
    "replaced": "UPDATE headrace.views SET id = 9 WHERE id = 2",
}
KINDS = ["behind", "cursor", "work"]


@pytest.fixture
def conn(catalog, database):
    with psycopg.connect(database, autocommit=True) as made:
        made.execute(
            "INSERT INTO headrace.views (id, schema_name, view_name, query, status)"
            " SELECT i, 'public', 'v' || i, '', 'running' FROM generate_series(1, 3) i"
        )
        yield made


def put(dsn: str) -> tuple[bool, bool]:
    """Write rows about three views as the commander does; wait for no lock."""

    async def write() -> tuple[bool, bool]:
        options = "-c lock_timeout=1000"
        async with await psycopg.AsyncConnection.connect(dsn, options=options) as conn:
            told = [{"id": i, "batches": 1, "rows_per_s": 1.0} for i in (1, 2, 3)]
            await samples.put(conn, told)
            return await held.put(
                conn,
                [Holding(i, "a batch", 5.0) for i in (1, 2, 3)],
                [Behind(i, "0/1", 1e9) for i in (1, 2, 3)],
                [PublishedCursor(i, "catching_up") for i in (1, 2, 3)],
            )

    return asyncio.run(write())


def known(conn) -> list[tuple]:
    return conn.execute("SELECT view_id, kind FROM headrace.held ORDER BY 1, 2").fetchall()


def sampled(conn) -> list[int]:
    return [i for (i,) in conn.execute("SELECT DISTINCT view_id FROM headrace.samples ORDER BY 1")]


@pytest.mark.parametrize("again", [False, True], ids=["new rows", "rows that were there"])
@pytest.mark.parametrize("end", END.values(), ids=END)
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
def test_the_other_views_lose_nothing(conn, database, end, commit, again):
    if again:
        assert put(database) == (False, True)
    with psycopg.connect(database) as other:
        other.execute(end)
        assert put(database) == (False, False)
        if commit:
            other.commit()
        else:
            other.rollback()
    with_it = [1, 2, 3] if again and not commit else [1, 3]
    if again and commit and "UPDATE" in end:
        with_it = [1, 3, 9]  # the rows went along
    assert known(conn) == [(i, kind) for i in with_it for kind in KINDS]
    assert sampled(conn) == with_it
    there = [1, 3] if commit else [1, 2, 3]
    assert put(database) == (False, True)
    assert known(conn) == [(i, kind) for i in there for kind in KINDS]


def test_samples_are_summed_up(conn, database):
    conn.execute(
        "INSERT INTO headrace.samples (view_id, step_s, at, batches, rows_per_s)"
        " SELECT i, 10, date_bin('1 min', clock_timestamp(), 'epoch') - interval '90 s', 4, 2"
        " FROM generate_series(1, 3) i"
    )

    async def coarsen() -> None:
        async with await psycopg.AsyncConnection.connect(database) as again:
            await samples.coarsen(again)

    with psycopg.connect(database) as other:
        other.execute(END["dropped"])
        asyncio.run(coarsen())
        other.commit()
    found = conn.execute(
        "SELECT view_id, batches FROM headrace.samples WHERE step_s = 60 ORDER BY 1"
    ).fetchall()
    assert found == [(1, 4), (3, 4)]
