"""Tables, views and a load, all derived from a seed, and a witness that reads meanwhile.

Every transaction moves money between accounts, adds the next number of its writer to the ledger and
changes some other rows. So two facts hold in every snapshot, however far the views are: the total
never changes, and a writer's numbers are 1 … n without a gap.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

START = 100
CORE = {
    "total": "SELECT sum(balance) AS total, count(*) AS n FROM accounts",
    "seen": "SELECT writer, count(*) AS n, max(n) AS last FROM ledger GROUP BY writer",
    "entries": "SELECT count(*) AS n FROM ledger",
}
"""Views that the witness reads; every seed has them."""
SHARED = {
    "doubled": "SELECT 2 * n AS m FROM (SELECT count(*) AS n FROM ledger) x",
    "doubled_total": "SELECT total * 2 AS t, n"
    " FROM (SELECT sum(balance) AS total, count(*) AS n FROM accounts) x",
}
"""Views that share subplans with ``CORE``."""

TAGS = 6


def schema(rng: random.Random) -> list[str]:
    """Return the statements that create and fill the tables; the seed determines the sizes."""
    accounts, branches = rng.randint(20, 120), rng.randint(3, 7)
    return [
        "CREATE TABLE branches (id int PRIMARY KEY, name text)",
        f"INSERT INTO branches SELECT i, 'b' || i FROM generate_series(0, {branches}) i",
        "CREATE TABLE accounts (id int PRIMARY KEY, branch int, balance numeric)",
        f"INSERT INTO accounts SELECT i, i % {branches}, {START}"
        f" FROM generate_series(1, {accounts}) i",
        "CREATE TABLE ledger (writer int, n bigint, account int, amount numeric(12, 2),"
        " PRIMARY KEY (writer, n))",
        "CREATE TABLE notes (id int PRIMARY KEY, tag text, size int, body text)",
        # Unchanged values that are stored out of line are not sent again.
        "ALTER TABLE notes ALTER body SET STORAGE EXTERNAL",
        f"INSERT INTO notes SELECT i, 't' || i % {TAGS}, i % 11, repeat(i::text, 5)"
        f" FROM generate_series(1, {rng.randint(0, 200)}) i",
        "CREATE TABLE bag (a int, b text)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        f"INSERT INTO bag SELECT i % 9, 'x' FROM generate_series(1, {rng.randint(0, 80)}) i",
    ]


def _templates(rng: random.Random) -> dict[str, str]:
    few, size = rng.randint(2, 5), rng.randint(1, 9)
    return {
        "copied": "SELECT id, tag, size, body FROM notes",
        "filtered": f"SELECT id, tag, length(body) AS l FROM notes WHERE size < {size}",
        "joined": "SELECT a.id, b.name, a.balance FROM accounts a"
        f" JOIN branches b ON a.branch = b.id WHERE a.id % {few} = 1",
        "per_branch": "SELECT b.name, count(*) AS n, sum(a.balance) AS s, max(a.balance) AS top"
        " FROM accounts a JOIN branches b ON a.branch = b.id GROUP BY b.name",
        "neighbours": "SELECT x.id AS i, y.id AS j FROM accounts x JOIN accounts y"
        f" ON x.branch = y.branch AND x.balance = y.balance WHERE x.id < y.id AND x.id % {few} = 0",
        "tags": "SELECT DISTINCT tag FROM notes",
        "pairs": "SELECT DISTINCT a, b FROM bag",
        "bags": "SELECT a, b FROM bag WHERE a <> 3",
        "extremes": "SELECT tag, count(*) AS n, min(id) AS least, max(id) AS most,"
        " count(DISTINCT size) AS sizes FROM notes GROUP BY tag HAVING count(*) > 1",
        "averages": f"SELECT account % {few} AS g, avg(amount) AS mean, sum(amount) AS s"
        " FROM ledger GROUP BY 1",
        "appended": "SELECT id AS k, tag AS v FROM notes UNION ALL SELECT a, b FROM bag",
        "either": "SELECT tag AS v FROM notes UNION SELECT b FROM bag",
        "crowded": "SELECT n, count(*) AS tags FROM"
        " (SELECT tag, count(*) AS n FROM notes GROUP BY tag) t GROUP BY n",
        "written": "SELECT l.writer, l.n, a.branch FROM ledger l"
        f" JOIN accounts a ON l.account = a.id WHERE l.n % {few} = 0",
    }


def queries(rng: random.Random) -> tuple[dict[str, str], dict[str, str]]:
    """Return the seed's views, and spare ones to create and drop meanwhile."""
    templates = _templates(rng)
    names = rng.sample(list(templates), rng.randint(2, 4) + 3)
    chosen = [(name, templates[name]) for name in names]
    return dict(chosen[:-3]), dict(chosen[-3:])


class Writer:
    """The transactions of one connection, one after the other."""

    def __init__(self, number: int, writers: int, rng: random.Random) -> None:
        self.number = number
        self.writers = writers
        self.rng = rng
        self.done = 0
        self._n = 0
        self._accounts = 0
        self._branches = 0

    def begin(self, conn: psycopg.Connection) -> None:
        """Begin on a new connection; the ledger shows the last committed transaction."""
        row: Any = conn.execute(
            "SELECT (SELECT coalesce(max(n), 0) FROM ledger WHERE writer = %s),"
            " (SELECT count(*) FROM accounts), (SELECT count(*) FROM branches)",
            (self.number,),
        ).fetchone()
        self._n, self._accounts, self._branches = row

    def step(self, conn: psycopg.Connection, *, all_tables: bool = False) -> None:
        """Run one transaction."""
        rng = self.rng
        try:
            with conn.transaction():
                account = self._transfer(conn)
                for change in (self._note, self._put):
                    if all_tables or rng.random() < 0.5:
                        change(conn)
                if rng.random() < 0.004:
                    conn.execute(f"TRUNCATE {rng.choice(('notes', 'bag'))}")
                conn.execute(
                    "INSERT INTO ledger VALUES (%s, %s, %s, %s)",
                    (self.number, self._n + 1, account, rng.randint(-999, 999) / 100),
                )
        except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
            return  # a conflict with another writer; the next transaction will do
        self._n += 1
        self.done += 1

    def _transfer(self, conn: psycopg.Connection) -> int:
        rng = self.rng
        a, b = sorted(rng.sample(range(1, self._accounts + 1), 2))
        amount = rng.randint(-20, 20)
        for account, change in ((a, -amount), (b, amount)):
            conn.execute(
                "UPDATE accounts SET balance = balance + %s WHERE id = %s", (change, account)
            )
        if rng.random() < 0.1:
            conn.execute(
                "UPDATE accounts SET branch = %s WHERE id = %s", (rng.randint(0, self._branches), a)
            )
        return a

    def _mine(self) -> int:
        """Return the id of a note that no other writer changes."""
        return self.rng.randint(0, 60) * self.writers + self.number

    def _note(self, conn: psycopg.Connection) -> None:
        rng, tag = self.rng, f"t{self.rng.randint(0, TAGS)}"
        match rng.randint(0, 5):
            case 0:
                # Too long to be stored inline.
                body = "".join(rng.choices("abcdef", k=rng.choice((3, 3000))))
                conn.execute(
                    "INSERT INTO notes VALUES (%s, %s, %s, %s)"
                    " ON CONFLICT (id) DO UPDATE SET tag = excluded.tag, body = excluded.body",
                    (self._mine(), tag, rng.randint(0, 11), body),
                )
            case 1:
                conn.execute(
                    "INSERT INTO notes SELECT i, %s, i %% 7, 'many' FROM"
                    " generate_series(%s::int, 400, %s) i ON CONFLICT DO NOTHING",
                    (tag, 200 + self.number - 200 % self.writers, self.writers),
                )
            case 2:
                conn.execute(
                    "UPDATE notes SET tag = %s, size = size + 1 WHERE id %% %s = %s AND size < 9",
                    (tag, self.writers * 3, self.number),
                )
            case 3:
                # A changed key, to one that may exist already.
                conn.execute(
                    "UPDATE notes SET id = %s WHERE id = %s AND NOT EXISTS"
                    " (SELECT FROM notes WHERE id = %s)",
                    (target := self._mine(), self._mine(), target),
                )
            case 4:
                conn.execute("DELETE FROM notes WHERE id = %s", (self._mine(),))
            case _:
                conn.execute(
                    "DELETE FROM notes WHERE id %% %s = %s AND size > 8",
                    (self.writers, self.number),
                )

    def _put(self, conn: psycopg.Connection) -> None:
        rng = self.rng
        match rng.randint(0, 3):
            case 0 | 1:
                conn.execute(
                    "INSERT INTO bag SELECT %s, %s FROM generate_series(1, %s)",
                    (rng.randint(0, 9), rng.choice("xyz"), rng.randint(1, 4)),
                )
            case 2:
                conn.execute(
                    "UPDATE bag SET b = %s WHERE a = %s", (rng.choice("xyz"), rng.randint(0, 9))
                )
            case _:
                conn.execute("DELETE FROM bag WHERE a = %s", (rng.randint(0, 9),))


class Threads:
    """Threads that call ``work(conn)`` repeatedly, each on its own connection, until stopped."""

    def __init__(self, dsn: str, failed: Callable[[BaseException], None]) -> None:
        self._dsn = dsn
        self._failed = failed
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(
        self,
        begin: Callable[[psycopg.Connection], None],
        work: Callable[[psycopg.Connection], None],
        pause_s: float,
    ) -> None:
        """Start a thread; ``begin`` runs on every new connection."""
        thread = threading.Thread(target=self._run, args=(begin, work, pause_s))
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """End all threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _run(
        self,
        begin: Callable[[psycopg.Connection], Any],
        work: Callable[[psycopg.Connection], Any],
        pause_s: float,
    ) -> None:
        try:
            while not self._stop.is_set():
                try:
                    with psycopg.connect(self._dsn, autocommit=True, connect_timeout=10) as conn:
                        begin(conn)
                        while not self._stop.is_set():
                            work(conn)
                            self._stop.wait(pause_s)
                except (psycopg.OperationalError, psycopg.InterfaceError):
                    self._stop.wait(0.02)  # the server is down for a moment
        except BaseException as error:  # noqa: BLE001  reported by the driver
            self._failed(error)


class Load:
    """The writers, which can be paused, and the witness."""

    def __init__(self, dsn: str, rng: random.Random, witness: Witness) -> None:
        self.errors: list[BaseException] = []
        self.witness = witness
        self._gate = threading.Lock()
        self._dsn = dsn
        number = rng.randint(1, 3)
        self.writers = [Writer(i, number, random.Random(rng.random())) for i in range(number)]
        self._locks = [threading.Lock() for _ in self.writers]
        self._threads = Threads(dsn, self.errors.append)
        for writer, lock in zip(self.writers, self._locks, strict=True):
            begin, step = self._alone(lock, writer.begin), self._alone(lock, writer.step)
            self._threads.add(begin, step, rng.choice((0.005, 0.02)))
        self._threads.add(witness.begin, witness.look, 0.003)

    @property
    def written(self) -> int:
        """The number of transactions so far."""
        return sum(writer.done for writer in self.writers)

    def pause(self) -> None:
        """Wait until no transaction is open, and begin none until ``resume``."""
        for lock in self._locks:
            lock.acquire()

    def resume(self) -> None:
        for lock in self._locks:
            lock.release()

    def last(self) -> None:
        """Run a transaction of every writer that changes every table. REQUIRES: paused."""
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            for writer in self.writers:
                writer.begin(conn)
                writer.step(conn, all_tables=True)

    def stop(self) -> None:
        self._threads.stop()

    @staticmethod
    def _alone(
        lock: threading.Lock, work: Callable[[psycopg.Connection], None]
    ) -> Callable[[psycopg.Connection], None]:
        """Return ``work`` guarded by the writer's lock, also for its beginning."""

        def alone(conn: psycopg.Connection) -> None:
            with lock:
                work(conn)

        return alone


Rows = list[tuple[Any, ...]]
_PROGRESS = """
    SELECT v.view_name, p.view_id, p.epoch, p.txid,
           -- Its first rows may be ahead of the batch that the others are at, until that batch
           -- has passed the position of the snapshot from which the view was populated.
           CASE WHEN p.lsn <= v.start_lsn THEN 0 ELSE p.lsn - '0/0'::pg_lsn END
      FROM headrace.progress p JOIN headrace.views v ON v.id = p.view_id
"""


class Witness:
    """A reader of the core views and their progress in one snapshot; it records contradictions."""

    def __init__(self) -> None:
        self.reads = 0
        self.agreed = 0
        """Number of reads in which two views were at the same batch, and so had to agree."""
        self.torn: list[str] = []
        self.absent = threading.Event()
        """Set while the core views may be missing, because they are created again."""
        self._total: tuple[Any, ...] | None = None
        self._last: dict[int, int] = {}
        self._marks: dict[int, tuple[int, int, int]] = {}

    def begin(self, conn: psycopg.Connection) -> None:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        row: Any = conn.execute(
            "SELECT count(*) * %s::numeric, count(*) FROM accounts", (START,)
        ).fetchone()
        self._total = row

    def look(self, conn: psycopg.Connection) -> None:
        """Read everything once."""
        try:
            with conn.transaction():
                progress = conn.execute(_PROGRESS).fetchall()
                total = conn.execute("SELECT total, n FROM total").fetchall()
                seen = conn.execute("SELECT writer, n, last FROM seen").fetchall()
                entries = conn.execute("SELECT n FROM entries").fetchall()
        except psycopg.errors.UndefinedTable:
            if not self.absent.is_set():
                self.torn.append("a core view is not there")
            return
        if self.absent.is_set():
            return
        self.reads += 1
        self._check(progress, total, seen, entries)

    def _check(self, progress: Rows, total: Rows, seen: Rows, entries: Rows) -> None:
        if total != [self._total]:
            self._note(f"total is {total}, not {self._total}")
        for writer, n, last in seen:
            if n != last:
                self._note(f"writer {writer}: {n} entries, the last is {last}")
            if last < self._last.get(writer, 0):
                self._note(f"writer {writer}: back to {last} from {self._last[writer]}")
            self._last[writer] = last
        at = {}
        for name, view_id, epoch, txid, lsn in progress:
            at[name] = mark = (txid, lsn)
            before = self._marks.get(view_id, (0, 0, 0))
            if any(a < b for a, b in zip((epoch, *mark), before, strict=True)):
                self._note(f"progress of {name}: {before} to {(epoch, *mark)}")
            self._marks[view_id] = (epoch, *mark)
        if "seen" in at and at["seen"] == at.get("entries") and at["seen"][1]:
            self.agreed += 1
            numbers = [sum(n for _, n, _ in seen)]
            if numbers != [n for (n,) in entries]:
                self._note(f"seen {numbers} and entries {entries} disagree at {at}")

    def _note(self, what: str) -> None:
        if len(self.torn) < 20:
            self.torn.append(f"{time.strftime('%X')} {what}")
