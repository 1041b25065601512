"""Concurrent populations: one wait for a snapshot, limited slots, isolated failures."""

from __future__ import annotations

import contextlib
import threading

import psycopg
import pytest

from headrace.errors import DuplicateError, HeadraceError, PrerequisiteError, QueryCancelled
from headrace.population import local
from headrace.population import snapshot as snapshots
from headrace.population.job import Job
from headrace.population.places import Places, RolePlaces
from tests.waiting import PATIENCE_S, wait_until

QUERY = "SELECT region, count(*) AS n FROM customers GROUP BY region"
BAD = "SELECT id, 1 / (id - 5) AS q FROM customers"


@pytest.fixture
def made(monkeypatch):
    """Collect the numbers of all snapshots that were begun."""
    numbers = []
    export = snapshots.export

    def noted(*args, **given):
        numbers.append(given["number"])
        return export(*args, **given)

    monkeypatch.setattr(snapshots, "export", noted)
    return numbers


class Creation:
    """create_view in a thread; ``end`` re-raises its exception."""

    def __init__(self, bench, name: str, query: str = QUERY, **given) -> None:
        self.name, self.query = name, query
        self.messages: list[str] = []
        self.job = Job(lambda step: self.messages.append(step.get("message", "")))
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(bench, given))
        self._thread.start()

    def _run(self, bench, given) -> None:
        try:
            bench.create(self.name, self.query, job=self.job, **given)
        except BaseException as error:  # noqa: BLE001  raised by ``end``
            self.error = error

    def end(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


def members(bench) -> int:
    """Count the populations that wait for the next snapshot."""
    group = bench.context.snapshots._forming
    return group.members if group else 0


def come(bench, *names: str, query: str = QUERY) -> list[Creation]:
    """Start populations that wait for the next snapshot."""
    before = members(bench)
    out = [Creation(bench, name, query) for name in names]
    wait_until(lambda: members(bench) == before + len(names), f"{names} wait")
    return out


@pytest.fixture
def writer(bench):
    """Open a transaction that has written, and leave it open."""
    with psycopg.connect(bench.dsn) as conn:
        conn.execute("INSERT INTO customers VALUES (9000, 'open', '')")
        yield conn


def first(bench) -> Creation:
    """Start a population whose slot waits for the writer."""
    out = Creation(bench, "first")
    wait_until(bench.waits_for_writer, "the slot waits for the writer")
    return out


def whole(bench, *creations: Creation) -> None:
    for creation in creations:
        creation.end()
        assert bench.rows(f"TABLE {creation.name}") == bench.rows(creation.query)


def slots(bench) -> list[tuple]:
    return bench.conn.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    ).fetchall()


def test_who_comes_while_a_slot_is_made_shares_the_next(bench, writer, made):
    one = first(bench)
    others = come(bench, *"abcdef")
    writer.execute("INSERT INTO customers VALUES (9001, 'more', '')")
    writer.commit()
    whole(bench, one, *others)
    assert len(made) == 2
    wait_until(lambda: not slots(bench), "the slots are gone")


def test_all_who_wait_hear_for_which_transaction(bench, writer):
    """Populations whose slot is not begun are told, too: they wait behind the one that is."""
    one = first(bench)
    others = come(bench, *"ab")
    words = f"transaction of postgres (process {writer.info.backend_pid}), started"
    for creation in (one, *others):
        wait_until(lambda c=creation: any(words in m for m in c.messages), creation.name)
    writer.commit()
    whole(bench, one, *others)


def test_who_gives_up_hurts_nobody(bench, writer, made):
    one = first(bench)
    a, b, c = come(bench, *"abc")
    one.job.cancel()
    b.job.cancel()
    for given_up in (one, b):
        with pytest.raises(QueryCancelled):
            given_up.end()
    # The next slot is made for the other two.
    wait_until(bench.waits_for_writer, "it waits for the writer")
    a.job.cancel()
    with pytest.raises(QueryCancelled):
        a.end()
    writer.commit()
    whole(bench, c)
    assert len(made) == 2
    assert bench.conn.execute("SELECT view_name FROM headrace.views").fetchall() == [("c",)]


def test_when_all_give_up_nothing_is_left(bench, writer):
    creations = [first(bench), *come(bench, *"ab")]
    for creation in creations:
        creation.job.cancel()
    for creation in creations:
        with pytest.raises(QueryCancelled):
            creation.end()
    bench.worker.calls = [call for call in bench.worker.calls if call[0] == "hold"]
    bench.worker.calls.append(("release", {}))
    bench.nothing_left()
    assert slots(bench) == []
    assert bench.context.snapshots._alive == set()


def test_one_that_fails_hurts_nobody(bench, writer):
    one = first(bench)
    a, b = come(bench, *"ab")
    (bad,) = come(bench, "bad", query=BAD)
    writer.commit()
    with pytest.raises(HeadraceError, match="division by zero"):
        bad.end()
    whole(bench, one, a, b)


def test_all_who_share_a_slot_hear_why_there_is_none(bench, writer):
    one = first(bench)
    bench.change(population_lock_wait_ms=500)
    others = come(bench, *"ab")
    one.job.cancel()
    with pytest.raises(QueryCancelled):
        one.end()
    for creation in others:
        with pytest.raises(PrerequisiteError, match="stay open") as caught:
            creation.end()
        assert f"process {writer.info.backend_pid}" in caught.value.detail
    assert bench.published() == set()


def test_a_snapshot_that_is_lost_is_lost_for_all_and_made_again(bench, writer, made, monkeypatch):
    """H3, for several populations."""

    def lose() -> None:
        bench.conn.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            " WHERE temporary AND database = current_database()"
        )
        wait_until(lambda: not slots(bench), "it is gone")

    together = threading.Barrier(2, lose)
    load = local.populate
    names = []

    def populate(job, dsn, plan, ref, *args):
        rows = load(job, dsn, plan, ref, *args)
        names.append(ref.name)
        if names.count(names[0]) == len(names):
            together.wait(PATIENCE_S)
        return rows

    one = first(bench)
    others = come(bench, *"ab")
    one.job.cancel()
    with pytest.raises(QueryCancelled):
        one.end()
    monkeypatch.setattr(local, "populate", populate)
    bench.conn.execute("INSERT INTO customers VALUES (9001, 'between', '')")
    writer.commit()
    whole(bench, *others)
    assert len(names) == 4
    assert 3 <= len(made) <= 4


def at_once(bench, count: int) -> None:
    """Plan that many creations before the first one continues."""
    planned = threading.Barrier(count)
    seen = threading.local()

    def wait(method: str) -> None:
        if method == "hold" and not hasattr(seen, "once"):
            seen.once = True
            planned.wait(PATIENCE_S)

    bench.worker.on_call = wait


def test_of_two_with_one_name_one_is_created(bench):
    at_once(bench, 2)
    both = [Creation(bench, "v"), Creation(bench, "v")]
    for creation in both:
        creation._thread.join(PATIENCE_S)
    errors = [c.error for c in both if c.error is not None]
    assert [type(error) for error in errors] == [DuplicateError]
    assert errors[0].code == "42P07"
    assert 'view "v" already exists' in errors[0].message
    assert bench.rows("TABLE v") == bench.rows(QUERY)
    assert bench.published() == {"customers"}


def test_two_views_come_into_one_new_schema(bench):
    at_once(bench, 2)
    whole(bench, Creation(bench, "fresh.a"), Creation(bench, "fresh.b"))


@pytest.mark.parametrize("side_by_side", [1, 2])
def test_so_many_load_at_once(bench, monkeypatch, side_by_side):
    bench.context.places = Places(side_by_side)
    inside, most = set(), []
    load = local.populate

    def populate(job, *args):
        inside.add(job)
        most.append(len(inside))
        if side_by_side == 2 and max(most) < 2:
            wait_until(lambda: max(most) == 2, "another one loads as well")
        try:
            return load(job, *args)
        finally:
            inside.discard(job)

    monkeypatch.setattr(local, "populate", populate)
    whole(bench, *[Creation(bench, name) for name in "abcd"])
    assert max(most) == side_by_side


def test_a_large_one_in_process_loads_alone(bench, monkeypatch):
    inside, most = set(), []
    load = local.populate

    def populate(job, *args):
        inside.add(job)
        most.append(len(inside))
        try:
            return load(job, *args)
        finally:
            inside.discard(job)

    monkeypatch.setattr(local, "populate", populate)
    large = {"options": {"population": "local", "threshold_rows": 1}}
    whole(bench, *[Creation(bench, name, **large) for name in "abc"])
    assert most == [1, 1, 1]


def test_places_are_given_in_order():
    places = Places(3)
    order: list[str] = []

    def take(name: str, wanted: int, job: Job) -> None:
        with contextlib.suppress(QueryCancelled), places.take(job, wanted):
            order.append(name)

    def start(name: str, wanted: int) -> tuple[threading.Thread, Job]:
        job = Job(lambda message: None)
        thread = threading.Thread(target=take, args=(name, wanted, job))
        queued = len(places._queue)
        thread.start()
        wait_until(lambda: len(places._queue) > queued, f"{name} waits")
        return thread, job

    with places.take(Job(lambda message: None)):
        many, _ = start("many", 9)
        _, given_up = start("given up", 1)
        one, _ = start("one", 1)
        given_up.cancel()
        wait_until(lambda: len(places._queue) == 2, "it left")
        assert order == []
    many.join(PATIENCE_S)
    one.join(PATIENCE_S)
    assert order == ["many", "one"]
    assert places._free == 3


def test_a_role_does_not_take_the_places_of_another():
    places, go = RolePlaces(2), threading.Event()
    inside: list[str] = []

    def take(role: str) -> None:
        with places.take(Job(lambda message: None), role):
            inside.append(role)
            assert go.wait(PATIENCE_S)

    threads = [threading.Thread(target=take, args=(role,)) for role in ["a", "a", "a", "b"]]
    for thread in threads:
        thread.start()
    wait_until(lambda: sorted(inside) == ["a", "b"], "one of each")
    go.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(inside) == ["a", "a", "a", "b"]
