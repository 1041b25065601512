"""The Postgres server of a run: sessions, locks, progress rows, result tables, and a slot.

A connection of the engine (``Connection``) takes the statements that the engine sends and no other.
Each takes some virtual time on its way there and back.  A connection that is lost with a COMMIT on
its way leaves the outcome open: it is made, is made later, or is not made.

* Invariant: a transaction's writes appear together, at its COMMIT.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql

from headrace import errors
from headrace.kernels import text as texts
from headrace.postgres.pipelined import Got, Sent
from headrace.sink.pipelined_write import PipelinedWrite
from headrace.sink.table import ResultTable
from headrace.sql import history, states
from headrace.types import format_lsn, parse_lsn
from tests.simulation.model import History, Row, Rows, ViewModel
from tests.simulation.scheduler import Scheduler

_WRITE: Final = b"simulated write"
_LOCKED: Final = re.compile(r"LOCK TABLE (.*) IN ROW EXCLUSIVE MODE NOWAIT")
_NAMES: Final = re.compile(r'ONLY ("public"\.)?"?(\w+)"?')
_LOOK_S: Final = 0.01
_NOTICED_S: Final = 2.0
"""Longest time until the server notices that a client is gone."""
_NOTES: Final = (states._SAY_KEPT, states._UNSAY_KEPT, states._END_NOTE, states._TELL)
_QUIET: Final = (states._TELL_LATE, states._LOCKED, history._BEGUN)


@dataclass
class Progress:
    """A row of headrace.progress."""

    epoch: int
    txid: int
    lsn: int


@dataclass
class Catalog:
    """A row of headrace.views."""

    model: ViewModel
    status: str = "running"
    message: str | None = None


@dataclass(frozen=True)
class _Version:
    """The engine's tables after a change, as the standby gets them."""

    lsn: int
    tables: dict[int, Rows]
    progress: dict[int, Progress]
    statuses: dict[int, tuple[str, str | None]]
    epoch: int


@dataclass
class Session:
    """The server's side of a connection."""

    pid: int
    name: str
    open: bool = True
    within: bool = False
    """Whether a transaction is open."""
    failed: bool = False
    writes: dict[int, Rows] = field(default_factory=dict)
    """Rows to add (or, if negative, to remove) by view."""
    marked: dict[int, Rows] = field(default_factory=dict)
    """``writes`` at the savepoint."""
    moves: dict[int, Progress] = field(default_factory=dict)
    """New progress by view."""

    def clear(self) -> None:
        """End the transaction."""
        self.within = self.failed = False
        self.writes, self.marked, self.moves = {}, {}, {}


class Server:
    """See the module text."""

    def __init__(self, scheduler: Scheduler, models: Sequence[ViewModel]) -> None:
        self.scheduler: Final = scheduler
        self.start_lsn: Final = 0x100_0000
        self.history: Final = History(models, self.start_lsn)
        self.views: Final = {model.id: Catalog(model) for model in models}
        self.tables: Final[dict[int, Rows]] = {model.id: Counter() for model in models}
        self.progress: Final = {model.id: Progress(0, 0, self.start_lsn) for model in models}
        self.confirmed = self.start_lsn
        """Position of the slot."""
        self.locked: Final[set[int]] = set()
        """Views whose tables a user has locked."""
        self.refusing: Final[dict[int, int]] = {}
        """Views whose next writes fail with a temporary error, and how many."""
        self.stumbled: Final[set[int]] = set()
        """Views whose last write has failed."""
        self.reachable = True
        self.on_commit: Callable[[Session, dict[int, Progress]], None] = lambda *_: None
        self.connections: Final[list[Connection]] = []
        self.streams: Final[list[Any]] = []
        self._arriving: Final[list[Session]] = []
        """Sessions of lost connections whose COMMIT is on its way, or has arrived."""
        """Running replication connections."""
        self.timeline = 1
        self.switches: Final[dict[int, int]] = {}
        """Where each earlier timeline ended."""
        self.standby: int | None = None
        """LSN up to which a standby has everything; None: there is no standby."""
        self.stalled_until = 0.0
        """Until when the standby gets nothing."""
        self.guarded = False
        """Whether the stream waits for the standby (synchronized_standby_slots)."""
        self._arrival = 0.0
        """When the standby has all WAL written so far, at the earliest."""
        self._slots: list[int] = []
        """Positions of the slot, as the standby copied them."""
        self._versions: list[_Version] = []
        self._epoch = 0
        self._epochs: Final[set[int]] = set()
        """All epochs so far, even those that a promotion has undone."""
        self._owner: Session | None = None
        """Holder of the advisory lock."""
        self._rows: dict[int, Session] = {}
        """Locks of progress rows."""
        self._pids = itertools.count(1_000)

    def connect(self, name: str) -> Connection:
        """Return a new connection.

        Raises:
            TransientError: the server cannot be reached.
        """
        self.scheduler.stand(self.delay())
        if not self.reachable:
            raise errors.TransientError("the server cannot be reached", sqlstate="08006")
        made = Connection(self, Session(next(self._pids), name))
        self.connections.append(made)
        return made

    # --- the standby

    def add_standby(self, *, guarded: bool) -> None:
        """Make a standby that has everything until now."""
        self.standby, self.guarded = self.history.end_lsn, guarded
        self._slots = [self.confirmed]
        self.log()
        self.standby = self.history.end_lsn

    def log(self) -> None:
        """Write WAL for a change of the engine's tables."""
        self.history.write_other(self.scheduler.random)
        if self.standby is None:
            return
        tables = {view_id: Counter(rows) for view_id, rows in self.tables.items()}
        progress = {i: Progress(p.epoch, p.txid, p.lsn) for i, p in self.progress.items()}
        statuses = {i: (row.status, row.message) for i, row in self.views.items()}
        self._versions.append(
            _Version(self.history.end_lsn, tables, progress, statuses, self._epoch)
        )
        self.ship()

    def ship(self) -> None:
        """Send the WAL written so far to the standby, where it arrives later."""
        if self.standby is None:
            return
        lsn, chance, timeline = self.history.end_lsn, self.scheduler.random, self.timeline
        late = self.delay() + (0.2 if chance.random() < 0.1 else 0.0)
        self._arrival = max(self._arrival, self.scheduler.now + late, self.stalled_until)

        def arrive() -> None:
            if timeline == self.timeline and self.standby is not None:
                self.standby = max(self.standby, lsn)
                if chance.random() < 0.3:
                    self._slots.append(min(self.confirmed, lsn))
                for receiver in list(self.streams):
                    receiver.tell()

        self.scheduler.call_at(self._arrival, arrive)

    def promote(self) -> None:
        """Lose the primary; the standby goes on with what it has."""
        lsn, chance = self.standby, self.scheduler.random
        assert lsn is not None, "it was added"
        for receiver in list(self.streams):
            receiver.sever()
        for connection in list(self.connections):
            connection.session.open = False
            self.lose(connection)
        for session in self._arriving:
            session.open = False  # the primary that it would reach is gone
        self._arriving.clear()
        self._owner = None
        self._rows.clear()
        version = max((v for v in self._versions if v.lsn <= lsn), key=lambda v: v.lsn)
        self._versions = [version]
        self.tables.update({i: Counter(rows) for i, rows in version.tables.items()})
        self.progress.update(
            {i: Progress(p.epoch, p.txid, p.lsn) for i, p in version.progress.items()}
        )
        for view_id, (status, message) in version.statuses.items():
            self.views[view_id].status, self.views[view_id].message = status, message
        self._epoch = version.epoch
        self.confirmed = chance.choice(self._slots[-3:])
        self._slots = [self.confirmed]
        self.history.cut(lsn)
        self.switches[self.timeline] = lsn
        self.timeline += 1
        self.scheduler.note(f"timeline {self.timeline} begins at {lsn}, slot {self.confirmed}")
        self.history.write_other(chance)
        self.standby = self.history.end_lsn
        self._arrival = self.scheduler.now

    @property
    def sendable(self) -> int:
        """LSN up to which the stream may send."""
        if self.guarded and self.standby is not None:
            return self.standby
        return self.history.end_lsn

    def delay(self) -> float:
        """Return the time that a message takes."""
        chance = self.scheduler.random
        return chance.choice((0.0001, 0.0003, 0.0005, 0.001, 0.001, 0.02)) * chance.random()

    def lose(self, connection: Connection) -> None:
        """Lose a connection; the outcome of a COMMIT on its way is open."""
        session, chance = connection.session, self.scheduler.random
        if connection.lost:
            return
        connection.lost = True
        self.connections.remove(connection)
        if connection.waiting is not None:
            self.scheduler.wake(connection.waiting)
        later = self.scheduler.now + chance.choice((0.0, 0.05, _NOTICED_S)) * chance.random()
        if connection.committing and chance.random() < 0.7:
            self.scheduler.note(f"COMMIT of {session.pid} arrives later")
            self._arriving.append(session)
            self.scheduler.call_at(later, lambda: self._arrive(session))
        else:
            self.scheduler.call_at(later, lambda: self.end(session))

    def _arrive(self, session: Session) -> None:
        if session.open:
            self.commit(session)
            self.end(session)

    def end(self, session: Session) -> None:
        """End a session, and roll its transaction back."""
        session.open = False
        session.clear()
        self._unlock(session)
        if self._owner is session:
            self._owner = None

    # --- transactions

    def commit(self, session: Session) -> None:
        """Make a session's writes visible."""
        moves = session.moves
        for view_id, rows in session.writes.items():
            table = self.tables[view_id]
            for row, weight in rows.items():
                table[row] += weight
                if not table[row]:
                    del table[row]
        self.progress.update(moves)
        self.stumbled.difference_update(moves)
        session.clear()
        self._unlock(session)
        if moves:
            self.log()
            self.scheduler.note(
                f"{session.name} commits {[(v, r.txid) for v, r in sorted(moves.items())]}"
            )
            self.on_commit(session, moves)

    def roll_back(self, session: Session) -> None:
        """Forget a session's writes."""
        session.clear()
        self._unlock(session)

    def _unlock(self, session: Session) -> None:
        for view_id in [v for v, owner in self._rows.items() if owner is session]:
            del self._rows[view_id]

    def write(self, session: Session, view_id: int, rows: Rows) -> None:
        """Add and remove rows of a view's table; all removed rows must be there."""
        mine = session.writes.setdefault(view_id, Counter())
        for row, weight in rows.items():
            mine[row] += weight
            if self.tables[view_id][row] + mine[row] < 0:
                self.scheduler.fail(f"view {view_id}: a row to remove is not in the table")
            if not mine[row]:
                del mine[row]

    def _take_rows(self, session: Session, ids: Sequence[int], timeout_s: float) -> None:
        """Lock rows of headrace.progress."""
        until = self.scheduler.now + timeout_s
        for view_id in sorted(ids):
            while self._rows.get(view_id, session) is not session:
                if self.scheduler.now >= until:
                    raise psycopg.errors.LockNotAvailable("a row is locked")
                self.scheduler.stand(_LOOK_S)
                if not session.open:
                    raise psycopg.OperationalError("the connection is lost")
            self._rows[view_id] = session

    # --- statements

    def answer(self, session: Session, text: str, values: Any, timeout_s: float) -> list[Any]:
        """Execute a statement of the engine; return its rows."""
        for part, work in _STATEMENTS.items():
            if part in text:
                return work(self, session, values, timeout_s)
        if text in _NOTES:
            return [(True,)]
        if text in _QUIET or text.startswith(("SET ", "SELECT 1 /")) or "paused_by" in text:
            return []
        locked = _LOCKED.match(text)
        if locked:
            names = {name for _, name in _NAMES.findall(locked[1])}
            if any(self.views[view_id].model.name in names for view_id in self.locked):
                raise psycopg.errors.LockNotAvailable("the table is locked")
            return []
        message = f"the simulated server does not know the statement {text!r}"
        raise NotImplementedError(message)

    def _lock(self, session: Session, values: Any, timeout_s: float) -> list[Any]:
        if self._owner is None:
            self._owner = session
        return [(self._owner is session,)]

    def _holders(self, session: Session, values: Any, timeout_s: float) -> list[Any]:
        return [(self._owner.pid, True)] if self._owner is not None else []

    def _terminate(self, session: Session, values: Any, timeout_s: float) -> list[Any]:
        if self._owner is not None and self._owner.pid == values[0]:
            self.end(self._owner)
        return [(True,)]

    def _look(self, session: Session, values: Any, timeout_s: float) -> list[Any]:
        return [("", self.scheduler.now, self.history.end_lsn, [])]

    def _catalog(self, session: Session, values: Any, timeout_s: float) -> list[Any]:
        return [(True,)]

    def _restored(self, session: Session, values: Any, timeout_s: float) -> list[Any]:
        return [(False, True)]

    def _last_epoch(self, session: Session, values: Any, timeout_s: float) -> list[Any]:
        return [(self._epoch,)]

    def _begin_epoch(self, session: Session, values: Any, timeout_s: float) -> list[Any]:
        self._epoch = max(self._epoch, values["known"]) + 1
        if self._epoch in self._epochs:
            self.scheduler.fail(f"epoch {self._epoch} begins again")
        self._epochs.add(self._epoch)
        self.log()
        return [(self._epoch,)]

    def _take_over(self, session: Session, values: Any, timeout_s: float) -> list[Any]:
        ids = [view_id for view_id in values[0] if view_id in self.progress]
        self._take_rows(session, ids, timeout_s)
        out = []
        for view_id in ids:
            row = self.progress[view_id]
            row.epoch += 1
            out.append((view_id, row.epoch, row.txid, format_lsn(row.lsn)))
        if not session.within:
            self._unlock(session)
        self.log()
        return out

    def _advance(self, session: Session, values: Any, timeout_s: float) -> list[Any]:
        txid, _, lsn, _, ids, epochs, txids = values
        self._take_rows(session, ids, timeout_s)
        moved = []
        for view_id, epoch, before in zip(ids, epochs, txids, strict=True):
            row = self.progress[view_id]
            if (row.epoch, row.txid) == (epoch, before):
                session.moves[view_id] = Progress(epoch, txid, parse_lsn(lsn))
                moved.append((view_id,))
        return moved

    def _stored(self, session: Session, values: Any, timeout_s: float) -> list[Any]:
        return [(i, self.progress[i].epoch, self.progress[i].txid) for i in values[0]]

    def _become(self, session: Session, values: Any, timeout_s: float) -> list[Any]:
        changed = []
        for view_id in values["ids"]:
            view = self.views[view_id]
            if view.status in values["before"]:
                view.status, view.message = str(values["to"]), values["message"]
                self.scheduler.note(f"view {view_id} is {view.status}: {view.message}")
                changed.append((view_id,))
        if changed:
            self.log()
        return changed

    def _flushed(self, session: Session, values: Any, timeout_s: float) -> list[Any]:
        return [(format_lsn(self.history.end_lsn),)]

    def _reached(self, session: Session, values: Any, timeout_s: float) -> list[Any]:
        has = self.standby
        standbys = None if has is None else {"standby": format_lsn(has)}
        return [(format_lsn(self.history.end_lsn), standbys)]

    def _exists(self, session: Session, values: Any, timeout_s: float) -> list[Any]:
        return [(1,)] if values[0] in self.views else []


def _one(server: Server, session: Session, values: Any, timeout_s: float) -> list[Any]:
    return [(1,)]


def _nothing(server: Server, session: Session, values: Any, timeout_s: float) -> list[Any]:
    return []


_STATEMENTS: Final[dict[str, Callable[[Server, Session, Any, float], list[Any]]]] = {
    "to_regclass('headrace.views') IS NOT NULL": Server._catalog,
    "IS DISTINCT FROM v.oid::text": Server._restored,
    "SELECT value::bigint FROM headrace.meta": Server._last_epoch,
    "pg_try_advisory_lock": Server._lock,
    "SELECT l.pid, coalesce": Server._holders,
    "pg_terminate_backend": Server._terminate,
    "set_config('application_name'": Server._look,
    "VALUES ('epoch'": Server._begin_epoch,
    "SET epoch = epoch + 1": Server._take_over,
    "UPDATE headrace.progress p SET txid": Server._advance,
    "SELECT view_id, epoch, txid FROM headrace.progress": Server._stored,
    states._BECOME: Server._become,
    "pg_current_wal_flush_lsn": Server._flushed,
    "pg_current_wal_insert_lsn": Server._reached,
    "SELECT 1 FROM headrace.views": Server._exists,
    "a.pid || ' ' ||": _nothing,
    "SELECT %(caller)s::name IS NULL": _one,
    "SELECT name FROM headrace.nodes": _nothing,
    "SELECT 1 /": _one,
}


class Cursor:
    """The result of a statement."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rows: list[Any] = []

    def execute(self, query: Any, values: Any = ()) -> Cursor:
        self._rows = self._connection.ask(query, values)
        return self

    def fetchone(self) -> Any:
        return self._rows[0] if self._rows else None

    def fetchall(self) -> list[Any]:
        return self._rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    @property
    def rowcount(self) -> int:
        return len(self._rows)

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Connection:
    """The engine's side of a connection."""

    def __init__(self, server: Server, session: Session) -> None:
        self.server: Final = server
        self.session: Final = session
        self.info: Final = SimpleNamespace(backend_pid=session.pid)
        self.process: Final = server.scheduler.current.process
        self.timeout_s = 0.3
        self.lost = False
        self.committing = False
        """Whether a COMMIT is on its way."""
        self.waiting: Any = None

    @property
    def closed(self) -> bool:
        """Whether it is lost or closed."""
        return self.lost

    def execute(self, query: Any, values: Any = (), **_: Any) -> Cursor:
        return Cursor(self).execute(query, values)

    def cursor(self) -> Cursor:
        return Cursor(self)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self.execute("BEGIN")
        try:
            yield
        except BaseException:
            if not self.lost:
                self.execute("ROLLBACK")
            raise
        self.execute("COMMIT")

    def close(self) -> None:
        """End the session."""
        if not self.lost:
            self.lost = True
            self.server.connections.remove(self)
            self.server.end(self.session)

    def ask(self, query: Any, values: Any) -> list[Any]:
        """Execute a statement, and return its rows."""
        text = query.as_string(None) if isinstance(query, sql.Composable) else query
        if isinstance(text, bytes):
            text = text.decode()
        with self._on_its_way(commits=text == "COMMIT"):
            return self.run(text, values)

    @contextlib.contextmanager
    def _on_its_way(self, *, commits: bool = False) -> Iterator[None]:
        """Wait for the message's way there, and after the block for that of its answer."""
        self.committing = commits
        try:
            self._travel()
            yield
            self.committing = False
            self._travel()
        finally:
            self.committing = False

    def _travel(self) -> None:
        scheduler = self.server.scheduler
        if not self.lost:
            self.waiting = scheduler.current
            try:
                scheduler.stand(self.server.delay())
            finally:
                self.waiting = None
        if not self.lost and not self.session.open:
            self.server.lose(self)
        if self.lost:
            raise psycopg.OperationalError("the connection is lost")

    def run(self, text: str, values: Any) -> list[Any]:
        """Execute a statement at the server."""
        server, session = self.server, self.session
        if text == "BEGIN":
            session.within = True
        elif text == "ROLLBACK":
            server.roll_back(session)
        elif text == "COMMIT":
            if session.failed:
                server.roll_back(session)
            else:
                server.commit(session)
        elif text.startswith("SAVEPOINT view"):
            session.marked = {i: Counter(rows) for i, rows in session.writes.items()}
        elif text.startswith("ROLLBACK TO SAVEPOINT view"):
            session.writes = {i: Counter(rows) for i, rows in session.marked.items()}
            session.failed = False
        elif text.startswith("SET CONSTRAINTS"):
            pass
        elif text == "SELECT 1":
            return [(1,)]
        else:
            try:
                return server.answer(session, text, values, self.timeout_s)
            except psycopg.Error:
                session.failed = session.within
                raise
        return []

    # --- the sink, besides statements

    def exchange(self, statements: Sequence[Sent], sent: Callable[[], None]) -> list[Got]:
        """Execute statements in one round trip; see ``Pipelined``."""
        commits = any(statement.text == b"COMMIT" for statement in statements)
        answers: list[Got] = []
        failed: psycopg.Error | None = None
        sent()
        with self._on_its_way(commits=commits):
            for statement in statements:
                try:
                    rows = self._one(statement)
                except psycopg.Error as error:
                    failed = error
                    break
                answers.append(rows)
        if failed is not None:
            raise failed
        return answers

    def _one(self, statement: Sent) -> Got:
        if statement.text == _WRITE:
            view_id, rows = statement.values
            if self.server.refusing.get(view_id):
                raise psycopg.errors.SerializationFailure("a temporary error of one view")
            self.server.write(self.session, view_id, rows)
            return Got([], 1)
        rows = self.run(statement.text.decode(), statement.values)
        return Got(rows, len(rows))


class Pipelined:
    """Stands in for ``postgres.pipelined.Pipelined``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def exchange(
        self, statements: Sequence[Sent], sent: Callable[[], None] = lambda: None
    ) -> list[Got]:
        return self._connection.exchange(statements, sent)


class Writer:
    """Stands in for ``sink.writer.SinkWriter``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: set[int] = set()

    def forget(self, view_id: int) -> None:
        self._known.discard(view_id)

    def write(self, target: ResultTable, diffs: pa.RecordBatch) -> int:
        connection, server = self._connection, self._connection.server
        rows = _rows(target, diffs)
        with connection._on_its_way():
            until = server.scheduler.now + connection.timeout_s
            while target.view_id in server.locked:
                if server.scheduler.now >= until:
                    server.stumbled.add(target.view_id)
                    raise errors.SinkBlocked(f"result table {target.shown} is locked")
                server.scheduler.stand(_LOOK_S)
                if connection.lost:
                    raise psycopg.OperationalError("the connection is lost")
            left = server.refusing.get(target.view_id, 0)
            if left:
                server.refusing[target.view_id] = left - 1
                server.stumbled.add(target.view_id)
                raise errors.Interrupted("a temporary error of one view", sqlstate="40001")
            server.write(connection.session, target.view_id, rows)
        self._known.add(target.view_id)
        return len(rows)

    def pipelined(self, target: ResultTable, diffs: pa.RecordBatch) -> PipelinedWrite | None:
        if target.view_id not in self._known:
            return None
        made: Any = SimpleNamespace(name=f'"public"."{target.table_name}"', mark="")
        sent = Sent(_WRITE, (target.view_id, _rows(target, diffs)))
        return PipelinedWrite(target, made, [sent], [1])

    def notes(self, *_: Any) -> list[Sent]:
        return []

    def explained(self, target: ResultTable, error: Exception) -> Exception:
        return error

    def blockers(self, target: ResultTable) -> list[int]:
        return [1]


def _rows(target: ResultTable, diffs: pa.RecordBatch) -> Rows:
    """Return the rows of a view's diffs with their weights."""
    shown = [
        texts.render(diffs.column(place), column.oid).to_pylist()
        for place, column in enumerate(target.schema)
    ]
    weights = diffs.column(len(target.schema)).to_pylist()
    out: Counter[Row] = Counter()
    for row, weight in zip(zip(*shown, strict=True), weights, strict=True):
        out[row] += weight
    return out
