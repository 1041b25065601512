"""Promotions of the standby that decodes, and of another one, which it then follows."""

from __future__ import annotations

import random
from collections.abc import Iterator

import psycopg
import pytest

from tests.failover.drill import Writer, connect
from tests.standby.reader import Trio, note, reading
from tests.waiting import at_any_moment, wait_until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def trio() -> Iterator[Trio]:
    """Three servers for one test, which are not the same afterwards."""
    made = Trio()
    yield made
    made.close()


def insert(conn: psycopg.Connection, *ids: int) -> None:
    for i in ids:
        conn.execute("INSERT INTO orders VALUES (%s, 1, 1, 390)", (i,))


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_standby_that_decodes_becomes_the_primary(trio, tmp_path, seed):
    rng = random.Random(seed)
    trio.ports.append(trio.reader.port)
    with reading(trio, "heir", tmp_path) as made:
        ids = made.open()
        writer = Writer(trio.dsn(made.name), rng)
        try:
            wait_until(lambda: writer.written > 50, "it writes")
            trio.primary.kill()
            at_any_moment(rng, 0.0, 0.5)
            trio.promote_reader()
            trio.primary.destroy()
            trio.primary = trio.reader
            before = writer.written
            wait_until(lambda: writer.written > before + 50, "it writes to the new primary")
        finally:
            writer.stop()
        made.equal()
        assert made.ids() == ids, "no view was filled anew"
        assert "decode_from is the primary" in made.engine.log
        made.engine.restart()
        with trio.connect(made.name) as conn:
            insert(conn, 1000)
        made.equal()


def test_a_clone_never_reaches_the_views(trio, tmp_path):
    """The standby is promoted by mistake: two servers accept writes."""
    with reading(trio, "clone", tmp_path) as made:
        ids = made.open()
        made.equal()
        trio.promote_reader()
        with trio.connect(made.name) as conn:
            # First, so that transactions of the clone have ids that are visible on the primary.
            insert(conn, *range(1000, 1200))
            with connect(trio.reader.dsn(made.name)) as clone:
                insert(clone, *range(2000, 2100))
            told = "the standby of decode_from is on timeline 2, the primary on 1"
            wait_until(lambda: told in made.engine.log, lambda: note(made))
            query = "SELECT count(*) FROM large WHERE id >= 2000"
            assert conn.execute(query).fetchone() == (0,), "rows of the clone"
            assert made.ids() == ids
            assert note(made).count(told) == len(ids)
        # A new standby takes its place, with a new slot.
        trio.renew_reader()
        made.engine.stop()
        made.engine.env["HEADRACE_DECODE_FROM"] = trio.reader.dsn(made.name)
        made.engine.start()
        wait_until(lambda: set(made.ids().values()).isdisjoint(ids.values()), "all are filled anew")
        made.equal()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_standby_is_behind_one_that_is_promoted(trio, tmp_path, seed):
    """Nothing interrupts its feedback, so no vacuum removes what its slot needs."""
    rng = random.Random(seed)
    trio.add_standby()
    trio.renew_reader(above=trio.standby)
    with reading(trio, "behind", tmp_path) as made:
        ids = made.open()
        writer = Writer(trio.dsn(made.name), rng)
        try:
            wait_until(lambda: writer.written > 50, "it writes")
            trio.promote(kill=rng.random() < 0.5)
            before = writer.written
            wait_until(lambda: writer.written > before + 50, "it writes to the new primary")
        finally:
            writer.stop()
        made.equal()
        assert made.ids() == ids, "no view was filled anew"


def test_the_standby_follows_another_that_is_promoted(trio, tmp_path):
    """It follows later; unless the new primary has removed rows of the catalog, all goes on."""
    trio.add_standby()
    with reading(trio, "follower", tmp_path) as made:
        ids = made.open()
        writer = Writer(trio.dsn(made.name), random.Random(1))
        try:
            wait_until(lambda: writer.written > 50, "it writes")
            trio.promote(kill=False)
            told = "has not followed the primary to timeline 2"
            wait_until(lambda: told in made.engine.log, "it is logged")
            trio.follow()
            before = writer.written
            wait_until(lambda: writer.written > before + 50, "it writes to the new primary")
        finally:
            writer.stop()

        def refilled() -> bool:
            return "was invalidated by the server" in made.engine.log

        wait_until(lambda: refilled() or not made.wrong(), made.wrong, every_s=0.05)
        made.equal()
        assert refilled() or made.ids() == ids


def test_a_standby_with_changes_that_were_lost_is_refused(trio, tmp_path):
    """The promoted standby lacked the last commits, which the one that decodes has."""
    trio.add_standby()
    with reading(trio, "ahead", tmp_path) as made:
        ids = made.open()
        made.equal()
        trio.stall()
        with trio.connect(made.name) as conn:
            insert(conn, *range(1000, 1100))
            last = conn.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
        with connect(trio.reader.dsn()) as conn:
            replayed = "SELECT pg_last_wal_replay_lsn() >= %s"
            wait_until(lambda: conn.execute(replayed, last).fetchone() == (True,), "it is ahead")
        trio.promote(kill=True)
        told = "has changes that the primary does not have"
        wait_until(lambda: told in made.engine.log, "it is logged")
        with trio.connect(made.name) as conn:
            query = "SELECT count(*) FROM large WHERE id >= 1000"
            assert conn.execute(query).fetchone() == (0,), "changes that were lost"
        made.engine.stop()
        trio.renew_reader()
        made.engine.env["HEADRACE_DECODE_FROM"] = trio.reader.dsn(made.name)
        made.engine.start()
        wait_until(lambda: set(made.ids().values()).isdisjoint(ids.values()), "all are filled anew")
        made.equal()
