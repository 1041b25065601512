"""kill -9 of the worker, the builder and the whole server at random moments.

Writers move money between accounts and record every transfer in a ledger. After any kill nothing is
lost or doubled, and no reader ever sees half of a transfer.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading

import psycopg
import pytest

from tests.compared import differs
from tests.waiting import PATIENCE_S, at_any_moment, create_marker, settle, wait_until

ACCOUNTS = 60
TOTAL = ACCOUNTS * 100
VIEWS = {
    "total": "SELECT sum(balance) AS total, count(*) AS n FROM accounts",
    "per_branch": (
        "SELECT b.name, count(*) AS n, sum(a.balance) AS total, max(a.balance) AS top"
        " FROM accounts a JOIN branches b ON a.branch = b.id GROUP BY b.name"
    ),
    "entries": "SELECT l.id, l.amount, a.branch FROM ledger l JOIN accounts a ON l.account = a.id",
}


def prepare(source: psycopg.Connection) -> None:
    source.execute("CREATE TABLE branches (id int PRIMARY KEY, name text)")
    source.execute("CREATE TABLE accounts (id int PRIMARY KEY, branch int, balance numeric)")
    source.execute("CREATE TABLE ledger (id bigserial PRIMARY KEY, account int, amount numeric)")
    source.execute("INSERT INTO branches SELECT i, 'b' || i FROM generate_series(0, 4) i")
    source.execute(
        f"INSERT INTO accounts SELECT i, i % 5, 100 FROM generate_series(1, {ACCOUNTS}) i"
    )


class Load:
    """Writers and a reader that run until stopped."""

    def __init__(self, dsn: str, seed: int) -> None:
        self.dsn = dsn
        self.stop = threading.Event()
        self.torn: list[object] = []
        self.reads = 0
        self.writes = 0
        self.errors: list[BaseException] = []
        targets = [*(lambda n=n: self._write(seed + n) for n in range(3)), self._read]
        self.threads = [threading.Thread(target=self._guard, args=(t,)) for t in targets]
        for thread in self.threads:
            thread.start()

    def _guard(self, target) -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001  reported by finish()
            self.errors.append(error)

    def _write(self, seed: int) -> None:
        rng = random.Random(seed)
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            while not self.stop.is_set():
                self._transfer(conn, rng)
                self.writes += 1
                self.stop.wait(0.004)

    @staticmethod
    def _transfer(conn: psycopg.Connection, rng: random.Random) -> None:
        a, b = sorted(rng.sample(range(1, ACCOUNTS + 1), 2))
        amount = rng.randint(-20, 20)
        with conn.transaction():
            conn.execute("UPDATE accounts SET balance = balance - %s WHERE id = %s", (amount, a))
            conn.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", (amount, b))
            conn.execute(
                "INSERT INTO ledger (account, amount) VALUES (%s, %s), (%s, %s)",
                (a, -amount, b, amount),
            )
            if rng.random() < 0.2:
                conn.execute(
                    "DELETE FROM ledger WHERE id %% 7 = %s AND account = %s", (rng.randint(0, 6), a)
                )
            if rng.random() < 0.1:
                conn.execute(
                    "UPDATE accounts SET branch = %s WHERE id = %s", (rng.randint(0, 5), a)
                )

    def _read(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            while not self.stop.is_set():
                row = conn.execute("SELECT total, n FROM total").fetchone()
                if row != (TOTAL, ACCOUNTS):
                    self.torn.append(row)
                self.reads += 1
                self.stop.wait(0.002)

    def finish(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(PATIENCE_S)
        assert not self.errors, self.errors
        assert not self.torn, self.torn[:5]
        assert self.reads > 50, "the reader must have run"
        assert self.writes > 50, "the writers must have run"


def connect(dsn: str) -> psycopg.Connection:
    return psycopg.connect(dsn, autocommit=True, prepare_threshold=None)


def kill_child(engine, module: str) -> None:
    pid = engine.child(module)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def assert_equal(source: psycopg.Connection, views: dict[str, str]) -> None:
    for name, query in views.items():
        assert differs(source, name, query) == [], name


@pytest.mark.timeout(420)
@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_lose_and_double_nothing(engine, rounds):
    rng = random.Random(7)
    with connect(engine.source) as source:
        prepare(source)
        with connect(engine.dsn) as commander:
            create_marker(source, commander)
            for name, query in VIEWS.items():
                commander.execute(f"CALL headrace.create_view('{name}', $q${query}$q$)")
        load = Load(engine.source, 1)
        try:
            for round_number in range(rounds):
                at_any_moment(rng, 0.05, 0.9)
                if round_number % 4 == 3:
                    engine.kill9()
                    engine.restart()
                else:
                    kill_child(engine, "headrace.runtime.worker")
                if round_number % 5 == 4:
                    settle(source)
        finally:
            load.finish()
        settle(source)
        assert_equal(source, VIEWS)
        slots = source.execute(
            "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
        ).fetchone()
        assert slots == (1,)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("victim", "times"),
    [
        pytest.param("builder", 3, marks=pytest.mark.slow),
        pytest.param("worker", 3, marks=pytest.mark.slow),
        pytest.param("server", 3, marks=pytest.mark.slow),
        ("server", 1),
    ],
)
def test_kill_during_population_leaves_nothing_or_everything(engine, victim, times):
    rng = random.Random(victim)
    with connect(engine.source) as source:
        prepare(source)
        source.execute(
            "INSERT INTO ledger (account, amount)"
            f" SELECT 1 + i % {ACCOUNTS}, i % 100 FROM generate_series(1, 60000) i"
        )
        with connect(engine.dsn) as commander:
            create_marker(source, commander)
            commander.execute(f"CALL headrace.create_view('total', $q${VIEWS['total']}$q$)")
        load = Load(engine.source, 2)
        done: dict[str, str] = {}
        try:
            for number in range(times):
                done |= attempt(engine, source, f"p{number}", victim, rng)
        finally:
            load.finish()
        settle(source)
        assert_equal(source, {"total": VIEWS["total"], **done})


def attempt(engine, source, name: str, victim: str, rng: random.Random) -> dict[str, str]:
    """Create a view and kill ``victim`` meanwhile; the view is complete afterwards or absent."""
    query = VIEWS["entries"]
    outcome: list[BaseException | None] = []

    def create() -> None:
        try:
            with connect(engine.dsn) as commander:
                commander.execute(f"CALL headrace.create_view('{name}', $q${query}$q$)")
            outcome.append(None)
        except psycopg.Error as error:
            outcome.append(error)

    thread = threading.Thread(target=create)
    thread.start()
    at_any_moment(rng, 0.02, 0.8)
    if victim == "server":
        engine.kill9()
        thread.join(PATIENCE_S)
        engine.restart()
    else:
        module = {"builder": "headrace.views.builder", "worker": "headrace.runtime.worker"}
        kill_child(engine, module[victim])
        thread.join(PATIENCE_S)
    assert outcome, "create_view neither returned nor failed"
    settle(source)
    status = decided(source, name)
    table = source.execute("SELECT to_regclass(%s)", (name,)).fetchone()
    if status == ("running",):
        assert table is not None
        assert table[0] is not None
        return {name: query}
    assert status is None, status
    assert table == (None,)
    assert outcome[0] is not None, "create_view said it succeeded"
    temporary = source.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database() AND temporary"
    ).fetchall()
    assert temporary == []
    return {}


def decided(source, name: str) -> tuple | None:
    """Return the view's catalog status once it is created or gone; a new builder cleans up."""

    def status() -> tuple | None:
        return source.execute(
            "SELECT status FROM headrace.views WHERE view_name = %s", (name,)
        ).fetchone()

    wait_until(lambda: status() not in (("pending",), ("populating",)), status)
    return status()
