"""Links to workers: their rows in links(), their settings, and the identity of both ends."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.far import FarWorker, token
from tests.integration import test_workers
from tests.integration.test_fed import change
from tests.integration.test_workers import MOST, SUMS, check, place, refused, running
from tests.security.roles import connect, role
from tests.waiting import wait_until

TABLES = test_workers.TABLES
FAKED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long off(void) { const char *s = getenv("FAKED_S"); return s ? atol(s) : 0; }
int clock_gettime(clockid_t id, struct timespec *t) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int out = real(id, t);
    if (id == CLOCK_REALTIME) t->tv_sec += off();
    return out;
}
int gettimeofday(struct timeval *t, void *z) {
    struct timespec s;
    clock_gettime(CLOCK_REALTIME, &s);
    t->tv_sec = s.tv_sec; t->tv_usec = s.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *t) {
    struct timespec s;
    clock_gettime(CLOCK_REALTIME, &s);
    if (t) *t = s.tv_sec;
    return s.tv_sec;
}
"""
"""Source of a library that shifts the time of day by FAKED_S seconds."""


def links(conn: psycopg.Connection) -> dict[str, dict]:
    """Return the rows of links(), by worker."""
    cursor = conn.execute("SELECT * FROM headrace.links()")
    assert cursor.description is not None
    names = [column.name for column in cursor.description]
    return {row[0]: dict(zip(names, row, strict=True)) for row in cursor.fetchall()}


@contextlib.contextmanager
def elsewhere(engine, folder: Path, given: str, host: str = "127.0.0.2") -> Iterator[FarWorker]:
    made = FarWorker(engine.source, folder, given, host)
    try:
        yield made
    finally:
        made.close()


def ids(conn: psycopg.Connection) -> dict[str, int]:
    rows = conn.execute("SELECT view_name, id FROM headrace.views").fetchall()
    return {str(name): int(number) for name, number in rows}


def test_links_are_told_and_may_be_said(engine, commander, source, tmp_path):
    commander.execute("CALL headrace.add_worker('w1')")
    given = token(commander, "w2")
    with elsewhere(engine, tmp_path / "far", given) as far:
        far.network.delay_s, far.network.bytes_per_s = 0.03, 1e6
        far.start()
        far.ready()
        found = links(commander)
        assert {n: (row["kind"], row["up"]) for n, row in found.items()} == {
            "w1": ("here", False),
            "w2": ("elsewhere", False),
        }, "nobody has had reason to make them"
        place(commander, "sums", SUMS, "w1")
        place(commander, "most", MOST, "w2")
        rng = random.Random(1)
        change(source, rng)
        check(commander, sums=SUMS, most=MOST)

        def told() -> bool:
            return all(row["latency_us"] is not None for row in links(commander).values())

        wait_until(told, "both are measured")
        found = links(commander)
        assert all(row["up"] for row in found.values())
        assert found["w1"]["latency_us"] < found["w2"]["latency_us"]
        assert 30_000 <= found["w2"]["latency_us"] < 300_000, "so long is one way"
        assert found["w2"]["out_bytes_per_s"] > 0
        assert found["w2"]["in_bytes_per_s"] > 0
        assert (found["w1"]["packed"], found["w2"]["packed"]) == (False, True)
        said_of_links(engine, commander, source)
        goes_on_from_where_it_was(commander, source, far, rng)
        # A second worker of that name starts on another machine: the first one stays.
        with elsewhere(engine, tmp_path / "twin", given, "127.0.0.3") as twin:
            twin.start()
            assert twin.end(signal.SIGCONT) == 1
            assert twin.said('worker "w2" has joined from elsewhere')
            assert twin.said(f"It listens on {far.address}")
            assert not twin.said("Traceback")
        change(source, rng)
        check(commander, sums=SUMS, most=MOST)


def said_of_links(engine, commander, source) -> None:
    commander.execute("CALL headrace.add_link('w2', latency_ms => 7)")
    commander.execute("CALL headrace.add_link('w1', bytes_per_s => 2000)")
    found = links(commander)
    assert (found["w2"]["latency_us"], found["w2"]["overridden"]) == (7000, True)
    assert (found["w1"]["bandwidth"], found["w1"]["overridden"]) == (2000, True)
    commander.execute("CALL headrace.add_link('w2', bytes_per_s => 1000000000)")
    wait_until(lambda: not links(commander)["w2"]["packed"], "it is fast, somebody says")
    assert links(commander)["w2"]["latency_us"] > 7000, "of that nothing is said any more"
    commander.execute("CALL headrace.add_link('w2', 1, 2000)")
    wait_until(lambda: links(commander)["w2"]["packed"], "it is slow, somebody says")
    assert not links(commander)["w1"]["packed"], "on this machine never"
    for call, code in {
        "add_link('w3', 1)": "42704",
        "add_link('main', 1)": "42704",
        "add_link('w2')": "22023",
        "add_link('w2', -1)": "22023",
        "add_link('w2', latency_ms => 60001)": "22023",
        "add_link('w2', bytes_per_s => 999)": "22023",
        "add_link(NULL, 1)": "22004",
        "drop_link('w3')": "42704",
    }.items():
        assert refused(commander, f"CALL headrace.{call}").sqlstate == code, call
    with role(source, "stranger") as stranger, connect(engine.dsn, stranger) as conn:
        assert conn.execute("SELECT * FROM headrace.links()").fetchall() == []
        for call in ("add_link('w2', 1)", "drop_link('w2')"):
            assert refused(conn, f"CALL headrace.{call}").sqlstate == "42501"
    for worker in ("w1", "w2"):
        commander.execute(f"CALL headrace.drop_link('{worker}')")
    assert not any(row["overridden"] for row in links(commander).values())
    [(rows,)] = source.execute("CALL headrace.show_links()").fetchall()
    assert [row["worker"] for row in rows] == ["w1", "w2"]
    assert links(source).keys() == {"w1", "w2"}


def goes_on_from_where_it_was(commander, source, far: FarWorker, rng: random.Random) -> None:
    """Cut a link while rows come: the remote part is still the same one and lacks nothing."""
    before, deployed = ids(source), far.log.read_text().count("unit deployed")
    assert deployed == 1
    for _ in range(3):
        far.network.stall()
        change(source, rng)
        far.network.cut()
        change(source, rng)
        far.network.resume()
        wait_until(lambda: running(commander, "most"), "it goes on")
        change(source, rng)
        check(commander, sums=SUMS, most=MOST)
    assert ids(source) == before, "nothing was filled anew"
    assert far.log.read_text().count("unit deployed") == deployed, "nor sent again"


@pytest.mark.slow
def test_whose_token_is_void_is_let_go(engine, commander, source, tmp_path):
    with elsewhere(engine, tmp_path / "far", token(commander, "w2")) as far:
        far.start()
        far.ready()
        place(commander, "sums", SUMS, "w2")
        rng = random.Random(1)
        change(source, rng)
        check(commander, sums=SUMS)
        before, newer = ids(source), token(commander, "w2")
        # It goes on until the token is checked; then both ends refuse the link.
        wait_until(lambda: not links(commander)["w2"]["up"], "it is let go")
        wait_until(lambda: far.said("cannot join"), "and hears why")
        change(source, rng)
        far.write(newer)
        wait_until(lambda: running(commander, "sums"), "it goes on with the new one")
        change(source, rng)
        check(commander, sums=SUMS)
        assert ids(source) == before


@pytest.mark.slow
def test_another_takes_its_place_once_it_is_gone(engine, commander, source, tmp_path):
    """It has no states: the view is populated again.  The first one returns, and is refused."""
    given = token(commander, "w2")
    with (
        elsewhere(engine, tmp_path / "far", given) as far,
        elsewhere(engine, tmp_path / "twin", given, "127.0.0.3") as twin,
    ):
        far.start()
        far.ready()
        place(commander, "sums", SUMS, "w2")
        before = ids(source)
        far.die()

        def taken() -> bool:
            before = len(twin.log.read_text()) if twin.log.exists() else 0
            twin.start()

            def said() -> str:
                return twin.log.read_text()[before:]

            wait_until(lambda: "joined from" in said() or "ready on" in said(), "it is known")
            return "ready on" in said() or bool(twin.end(signal.SIGCONT) != 1)

        wait_until(taken, "the other one takes its place")
        wait_until(lambda: ids(source) != before and running(commander, "sums"), "filled anew")
        change(source, random.Random(1))
        check(commander, sums=SUMS)
        far.start()
        assert far.end(signal.SIGCONT) == 1
        assert far.said('worker "w2" has joined from elsewhere')
        check(commander, sums=SUMS)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler")
@pytest.mark.parametrize("years", [-50, 150])
def test_a_clock_that_is_off_does_no_harm(engine, commander, source, tmp_path, years):
    (tmp_path / "faked.c").write_text(FAKED)
    library = tmp_path / "faked.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "faked.c"), "-ldl"],
        check=True,
    )
    with elsewhere(engine, tmp_path / "far", token(commander, "w2")) as far:
        far.start(LD_PRELOAD=str(library), FAKED_S=str(years * 365 * 86400))
        far.ready()
        assert not far.said(source.execute("SELECT now()::date::text").fetchone()[0]), "it is off"
        query = (
            "SELECT g, count(*) AS n, sum(x) AS s FROM items"
            " WHERE now() > timestamptz '2020-01-01 UTC' + g * interval '1 minute'"
            " AND now() < timestamptz '2100-01-01 UTC' - g * interval '1 minute' GROUP BY g"
        )
        place(commander, "sums", SUMS, "w2")
        place(commander, "timely", query, "w2")
        rng = random.Random(1)
        for _ in range(3):
            change(source, rng)
            check(commander, sums=SUMS, timely=query)
        far.network.cut()
        change(source, rng)
        wait_until(
            lambda: running(commander, "sums") and running(commander, "timely"), "they go on"
        )
        check(commander, sums=SUMS, timely=query)
