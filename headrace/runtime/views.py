"""Views as the worker sees them: catalog row, state, dataflow, result table.

A view's *cursor* says where the view stands among the batches (``CursorState``).  The view leaves
its commit group when the cursor stops leading, and rejoins it when the cursor leads again.  A view
without a cursor has stopped until a resync, and holds back nothing.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
import psycopg
import structlog

from headrace import clock, events
from headrace.collections import plan, subplans
from headrace.collections.dataflow import Dataflow
from headrace.collections.plan import PhysicalPlan
from headrace.config import Settings
from headrace.errors import RESYNC, BugError, HeadraceError, StateDamaged, UndefinedError
from headrace.expressions.pool import Pool
from headrace.expressions.remote import RemoteEvaluator
from headrace.forwarder.policy import CoalescedSize
from headrace.postgres import tokens
from headrace.process import bounds
from headrace.process.bounds import Bound, Limits
from headrace.runtime.event_log import EventLog
from headrace.runtime.positions import Meta, Position, StateMark
from headrace.runtime.remote_worker import RemoteStore
from headrace.runtime.unit_position import UnitPosition
from headrace.sink import keys
from headrace.sink.table import ResultTable
from headrace.sql import nodes, states
from headrace.sql import views as catalog
from headrace.sql.progress import Progress
from headrace.sql.status import OWNED, CursorState, Status
from headrace.sql.view_spec import ViewSpec
from headrace.sql.views import WorkedView
from headrace.state import layout
from headrace.state.rocks import RocksStore
from headrace.types import parse_lsn

Connection = psycopg.Connection[Any]

_log = structlog.get_logger(__name__)

_CURSORS: Final = {
    Status.RUNNING: CursorState.CATCHING_UP,
    Status.SINK_ERROR: CursorState.BLOCKED,
    Status.PAUSED: CursorState.PAUSED,
}
"""Cursors of views that are loaded, by status; the stream finds out which of them lead."""


@dataclass(slots=True)
class Unit(UnitPosition):
    """An object with its own state and dataflow: a view, or a subplan that views share."""

    clock: ClassVar[Iterator[int]] = itertools.count(1)
    """Logical clock that orders the beginnings and ends of all units' work."""

    plan: PhysicalPlan
    """The whole plan; see ``own``."""
    settings: dict[str, str]
    start_lsn: int
    store: RocksStore | RemoteStore | None = field(default=None, kw_only=True)
    dataflow: Dataflow | None = field(default=None, kw_only=True)
    remote: RemoteEvaluator | None = field(default=None, kw_only=True)
    own: PhysicalPlan = field(init=False)
    """The plan that its dataflow computes: ``plan`` over the rows of ``feeds``."""
    temporal: bool = field(init=False)
    """Whether it reads the clock."""
    feeds: dict[str, int] = field(init=False)
    """Nodes of ``plan`` whose rows come from shared subplans: id of each."""
    story: EventLog = field(default_factory=EventLog, kw_only=True)
    works: int = field(default=0, kw_only=True)
    """Number of txids that it has begun."""
    stirred: int = field(default=0, kw_only=True)
    """When its work last began or ended, by ``clock``: its values were computed then."""
    limits: dict[str, int] = field(default_factory=dict, kw_only=True)
    """Limits for one txid that differ from the settings (``bounds.NAMES``)."""
    brief: bool = field(default=False, kw_only=True)
    """Whether its dataflow had little to do in the last txid."""
    coalesced: CoalescedSize = field(default_factory=CoalescedSize, kw_only=True)
    """The size of its batches while it lags."""
    bound: Bound | None = field(default=None, kw_only=True)
    """The bound that it works under; set at its first use."""
    placed: str = field(default="", kw_only=True)
    """The worker that has its states; '': this one."""
    staged: bool = field(default=False, kw_only=True)
    """Whether its first states are still staged, for its worker is unreachable (``wait_at``)."""

    def __post_init__(self) -> None:
        self.stirred = next(Unit.clock)
        self.temporal = self.plan.temporal
        self.feed_on({})

    def feed_on(self, feeds: Mapping[str, int]) -> None:
        """Read the rows of these nodes from shared subplans; REQUIRES: nothing is in flight."""
        self.feeds = dict(feeds)
        self.own = subplans.over_feeds(self.plan, feeds) if feeds else self.plan
        self.dataflow = None
        self._changed()

    def lsn_from(self, lsn: int) -> int:
        """See ``UnitPosition``: its first contents are complete up to ``start_lsn``."""
        return max(lsn, self.start_lsn)

    def compute(self, whole: PhysicalPlan) -> None:
        """Continue with another plan that fits its states; REQUIRES: nothing is in flight."""
        self.plan = whole
        self.feed_on(self.feeds)

    @property
    def session_owner(self) -> str:
        """The session owner that its expressions are evaluated for."""
        return f"unit {self.id}"

    def bounds_of(self, config: Settings) -> Limits:
        """Return the limits of one transaction."""
        return bounds.of(config, self.limits)

    def bounded(self, config: Settings) -> Bound:
        """Return the bound that it works under."""
        if self.bound is None:
            self.bound = Bound(self.bounds_of(config))
        return self.bound

    def flow(self, config: Settings, pool: Pool) -> Dataflow:
        """Return its dataflow; build it from the state if there is none."""
        if self.dataflow is None:
            store = self.here
            if any(feed.id not in self.feeds for feed in self.own.feeds):
                raise BugError(f"view {self.id} is fed by nobody")
            if self.remote is None:
                self.remote = RemoteEvaluator(
                    config.source,
                    self.settings,
                    config.eval_dsn or None,
                    pool=pool,
                    owner=self.session_owner,
                    value_bytes_max=self.bounds_of(config).value_bytes,
                )
            self.dataflow = Dataflow(self.own, store, self.remote, self.start_lsn)
        return self.dataflow

    def clocked(self, config: Settings, pool: Pool) -> Dataflow | RemoteStore:
        """Return the object that knows when its rows are due."""
        return self.store if isinstance(self.store, RemoteStore) else self.flow(config, pool)

    def restore(self, store: RocksStore | RemoteStore | None, mark: StateMark) -> None:
        """Set its state, with nothing in flight; None: the state is out of reach."""
        self.leave_step()
        self.store = store
        self.staged = False
        self._mark = self.durable = mark
        self._processed = mark.txid
        self.dataflow = None
        self._begun.clear()
        self.stirred = next(Unit.clock)
        self._marks = {mark.txid: mark}
        self._changed()

    def wait_at(self, position: Position) -> None:
        """Note that its first states are staged, as of ``position``.

        The worker that loads them needs all batches after it. This includes batches without rows:
        otherwise it cannot be checked later that none is missing (``Loading``).
        """
        self.restore(None, StateMark(position.txid, position.lsn, position.txid))
        self.staged = True
        self._changed()

    def lose_store(self) -> None:
        """Mark its states as unusable."""
        self.store = None
        self._changed()

    @property
    def here(self) -> RocksStore:
        """Its states.

        Raises:
            BugError: they are not in this process.
        """
        if not isinstance(self.store, RocksStore):
            raise BugError(f"view {self.id} has no state here")
        return self.store

    def has_rows(self, sources: Iterable[str]) -> bool:
        """Return whether one of these sources has rows in its states, which are in this process."""
        return any(keys for name in sources for keys, _ in self.here.map(name).scan())

    @property
    def reachable(self) -> bool:
        """Whether its states can be worked on."""
        store = self.store
        return store is not None and (isinstance(store, RocksStore) or store.up)

    def begin(self, txid: int) -> None:
        """Begin ``txid`` in its state, before its dataflow writes."""
        assert self.store is not None, "live views have state"
        self.leave_step()
        self.works += 1
        self.stirred = next(Unit.clock)
        if self.bound is not None:
            self.bound.begin()
        self.store.begin(txid)
        self._begun.append(txid)

    def commit(self, mark: StateMark) -> None:
        """Commit ``mark.txid``, the lowest one in flight, which is in its table."""
        assert self.store is not None, "live views have state"
        if self._begun and self._begun[0] == mark.txid:
            self.store.commit(mark.txid)
            del self._begun[0]
            self.stirred = next(Unit.clock)
        self._marks[mark.txid] = mark
        self._move(mark)

    def checkpointed(self, mark: StateMark) -> None:
        """Record that ``mark`` is durable."""
        self.durable = mark
        if isinstance(self.store, RemoteStore):
            self.store.durable = mark.txid
            if mark.txid > self.mark.txid:
                # The worker was lost while the checkpoint was written, and comes back with it.
                self.processed = mark.txid
                self._move(mark)
        self._marks = {t: m for t, m in self._marks.items() if t >= mark.txid}
        self._marks[mark.txid] = mark
        if self.listener is not None:
            self.listener.update_mark(self)

    def note(self, meta: Meta) -> None:
        """Add metadata to a checkpoint that must be stored together with its mark."""

    @property
    def progress_mark(self) -> tuple[int, int, int]:
        """The mark as another worker stores it, and reports it when it reconnects."""
        return self.mark.txid, self.mark.lsn, self.mark.sink_txid

    def back(self, txid: int) -> None:
        """Undo the changes of all txids from ``txid`` on, in flight or not.

        ``processed`` is then the txid of the state: before ``txid``, and perhaps before ``mark``,
        which goes back with it.
        """
        self.leave_step()
        self.processed = min(self.processed, txid - 1)
        if self.store is None or not any(begun >= txid for begun in self._begun):
            return
        self.dataflow = None
        self.stirred = next(Unit.clock)
        found = self.store.rollback(txid)
        self._begun = [begun for begun in self._begun if begun <= found]
        self.processed = min(self.processed, found)
        if found < self.mark.txid:
            # Between two marks nothing has changed the unit.
            known = max((txid for txid in self._marks if txid <= found), default=None)
            if known is None:
                raise BugError(f"view {self.id} went back to the unknown txid {found}")
            self._move(self._marks[known])

    def reset(self) -> None:
        """Undo everything that is not committed."""
        self.back(self.mark.txid + 1)

    def release(self) -> None:
        """Release a unit that is gone: its state must not be used any more."""
        self.reset()
        self.lose_store()
        if self.remote is not None:
            self.remote.close()


@dataclass(slots=True)
class View(Unit):
    """One maintained view."""

    target: ResultTable
    _cursor: CursorState | None
    owner: str = ""
    message: str | None = None
    progress: Progress | None = None
    """The progress row with the epoch that makes this process the owner of the result table."""
    commit_group: str = ""
    """Views of one group are written in one transaction; '': the unnamed group."""
    _latency_ms: int = 0
    parts: dict[str, str] = field(default_factory=dict)
    """Worker by node of its plan that is computed elsewhere, together with all its inputs."""
    shares: bool = True
    """Whether it may share subplans with other views."""
    kept: bool = False
    """Whether it has a history (``sql/history.py``); known once the view is owned."""
    retry_at: float = 0.0
    retry_s: float = 0.0
    tries: tuple[int, int] = (0, 0)
    """A mark, and how often the view was interrupted there."""
    doom: HeadraceError | None = None
    """Why the view must stop, until that is in the catalog."""
    _suspended: str | None = None
    _quietly: bool = False
    """Whether it has left without an event."""
    _left_at: float | None = None
    """When it left its commit group, on the monotonic clock; None: it has not, in this process."""

    @property
    def cursor(self) -> CursorState | None:
        """The state of its cursor, None if it has stopped; ``turn`` sets it."""
        return self._cursor

    @property
    def status(self) -> Status:
        """The view's status."""
        cursor = self._cursor  # read once: another thread may call this while it changes
        return Status.ERROR if cursor is None else cursor.status

    @property
    def left_at(self) -> float | None:
        """When it left its commit group, on the monotonic clock; None: it has not."""
        return self._left_at

    @property
    def latency_ms(self) -> int:
        """Allowed delay in milliseconds from a commit until the table shows it; 0: none."""
        return self._latency_ms

    @property
    def suspended(self) -> str | None:
        """The job that has suspended writes, because it replaces the contents."""
        return self._suspended

    def write_to(self, target: ResultTable) -> None:
        """Write to ``target`` from now on: the table of that name may be another one."""
        self.target = target
        self._changed()

    def turn(
        self, to: CursorState, reason: str = "", *, quietly: bool = False, **facts: Any
    ) -> None:
        """Set the state of its cursor; the caller updates the status in the catalog.

        One event is logged when the view leaves its commit group, with ``reason`` and ``facts``,
        and one when it is back.  ``quietly``: both only for debugging, unless it turns again.
        """
        before, left_at, now = self._cursor, self._left_at, clock.monotonic()
        if before == to and (left_at is None) == (to == CursorState.LEADING):
            return
        self._cursor = to
        self._changed()
        self.story.add(to, reason=reason, txid=self.processed)
        told = {"view": self.id, "state": to, "reason": reason, **facts}
        if to == CursorState.LEADING:
            self._left_at = None
            if left_at is not None:
                after_s = round(now - left_at, 3)
                if self._quietly:
                    _log.debug("view joined its commit group", view=self.id, after_s=after_s)
                else:
                    _log.info("view joined its commit group", view=self.id, after_s=after_s)
        elif left_at is not None and not self._quietly:
            _log.debug("cursor of a view changed", **told)
        else:
            self._left_at, self._quietly = left_at or now, quietly
            if quietly:
                _log.debug("view left its commit group", **told)
            elif to in (CursorState.BLOCKED, CursorState.LOST):
                _log.warning("view left its commit group", **told)
            else:
                _log.info("view left its commit group", **told)

    def end(self) -> None:
        """Take away its cursor, because it has stopped."""
        self._cursor = None
        self._changed()

    def suspend(self, job: str | None) -> None:
        """Suspend writes for ``job``; None: resume them."""
        self._suspended = job
        if job is not None and self._cursor == CursorState.LEADING:
            self.turn(CursorState.CATCHING_UP, "its contents are being replaced")
        self._changed()

    def allow(self, latency_ms: int) -> None:
        """Set the latency target."""
        self._latency_ms = latency_ms
        self._changed()

    def place(self, placed: str, parts: Mapping[str, str]) -> None:
        """Place its states on other workers: all on worker ``placed``, or those of ``parts``."""
        self.placed, self.parts = placed, dict(parts)
        self.shares = self.shares and not placed and not parts
        self._changed()

    @property
    def written_txids(self) -> Collection[int]:
        """See ``UnitPosition``: the txid of its table."""
        return () if self.progress is None else (self.progress.txid,)

    def written_txid(self, txid: int) -> int:
        """Return the txid at which its table was written last."""
        return self._mark.sink_txid if self.progress is None else self.progress.txid

    @property
    def session_owner(self) -> str:
        """Its owner: views of one owner may share sessions, and see what another has left there."""
        return f"owner {self.owner}"

    def bounds_of(self, config: Settings) -> Limits:
        """Return the limits of one transaction; the unnamed group has those of the settings."""
        return bounds.of(config, self.limits, own_group=bool(self.commit_group))

    @property
    def live(self) -> bool:
        """Whether batches are processed for it."""
        return self.status == Status.RUNNING and self._suspended is None

    @property
    def leads(self) -> bool:
        """Whether it processes each batch together with the other views of its commit group."""
        return self._cursor == CursorState.LEADING

    @property
    def owned(self) -> bool:
        """Whether the source must retain what it has not processed yet."""
        return self._cursor is not None

    @property
    def argument(self) -> str:
        """Its name, escaped for a text literal in a call; without the quotes."""
        return tokens.doubled(tokens.qualified(self.target.schema_name, self.target.table_name))


def load(conn: Connection) -> list[View]:
    """Return all views that should run, in order of id; stop those whose row cannot be read."""
    out = []
    for row in catalog.worked(conn, some=OWNED):
        try:
            out.append(_view(row))
        except Exception as error:  # noqa: BLE001  the boundary of one view's catalog row
            _log.exception("view cannot be read", view=row.id)
            damage = StateDamaged(
                "the view's catalog row cannot be read", detail=repr(error), hint=RESYNC
            )
            states.become(conn, row.id, Status.ERROR, damage)
    return out


def load_one(conn: Connection, view_id: int) -> View:
    """Return one view.

    Raises:
        UndefinedError: there is none.
    """
    found = catalog.worked(conn, view_id)
    if not found:
        raise UndefinedError(f"view {view_id} does not exist")
    return _view(found[0])


def resync_hint(view: View, before: str = "") -> str:
    """Return the hint with the call that fills the view anew; ``before``: a step to take first."""
    call = f"CALL headrace.resync_view('{view.argument}')"
    return f"{before}, then {call}." if before else f"{call} rebuilds it."


@dataclass(frozen=True, slots=True)
class Manifest:
    """The staged results of a population."""

    lsn: int
    """Consistent point of its snapshot, which contains all commits before it."""
    txid: int
    """The txid of its hold: all batches up to it are before ``lsn``."""
    runs: list[Path]
    feeds: dict[str, int]
    """Nodes whose rows come from shared subplans of other views: id of each."""
    fed_by: tuple[int, ...]
    """The views whose tables the first rows are from."""
    replaces: int
    """The id of the view until now, if its rows were right; else 0."""
    doubted: bool
    """Whether the earlier rows of the view may have been wrong, and so the views filled from it."""
    mark: StateMark | None
    """The mark of exported states; None: the states are of a population."""
    lineage: str
    """The lineage of the batch records for which that mark is valid."""
    kept: int
    """The view whose states it takes over (``state_reuse.py``); 0: it has its own."""
    nodes: frozenset[str]
    """The nodes of these states."""


def next_owner(config: Settings, view_id: int) -> int:
    """Return the staged view that is to take over the states of ``view_id``; 0: none."""
    return _find_staged(config, lambda found: found.kept == view_id)


def successor(config: Settings, view_id: int) -> int:
    """Return the staged view that replaces ``view_id``, whose rows were right; 0: none."""
    return _find_staged(config, lambda found: found.replaces == view_id)


def _find_staged(config: Settings, wanted: Callable[[Manifest], bool]) -> int:
    folder = config.staging_dir
    for path in folder.iterdir() if folder.exists() else ():
        if path.name.isdecimal():
            with contextlib.suppress(StateDamaged, OSError):
                found = manifest(config, int(path.name))
                if found is not None and wanted(found):
                    return int(path.name)
    return 0


def staged(config: Settings, view_id: int) -> bool:
    """Return whether a view has staged states, readable or not."""
    return _manifest_path(config, view_id).exists()


def _manifest_path(config: Settings, view_id: int) -> Path:
    return config.staging_dir / str(view_id) / "manifest.json"


def manifest(config: Settings, view_id: int) -> Manifest | None:
    """Return the staged state of a view; None if there is none.

    Raises:
        StateDamaged: it is not as the population left it.
    """
    path = _manifest_path(config, view_id)
    folder = path.parent
    if not path.exists():
        return None
    try:
        data = msgspec.json.decode(path.read_bytes())
        if data["format"] != layout.FORMAT:
            raise StateDamaged("the view's staged state has another format")
        lsn = data.get("start_lsn", data["lsn"])
        return Manifest(
            parse_lsn(lsn) if isinstance(lsn, str) else int(lsn),
            int(data["txid"]),
            [folder / file for file in data["runs"]],
            {str(node): int(feeder) for node, feeder in data.get("feeds", {}).items()},
            tuple(map(int, data.get("fed_by", ()))),
            int(data.get("replaces", 0)),
            bool(data.get("doubted", False)),
            StateMark(*map(int, data["mark"])) if "mark" in data else None,
            str(data.get("lineage", "")),
            int(data.get("kept", 0)),
            frozenset(map(str, data.get("nodes", ()))),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateDamaged(
            "the view's staged state is damaged", detail=f"{error!r} in {path}."
        ) from error


def _view(row: WorkedView) -> View:
    try:
        rebuilt = plan.from_json(row.plan)
    except (ValueError, TypeError, KeyError) as error:
        raise BugError(
            f"view {row.id} has no physical plan in the catalog", detail=f"{error!r}."
        ) from error
    if not row.parts.keys() <= {node.id for node in rebuilt.nodes}:
        raise BugError(f"view {row.id} has parts that are not in its plan")
    options = ViewSpec.of(row.options or {})
    placed = nodes.whole(options.placement)
    made = View(
        row.id,
        rebuilt,
        {str(k): str(v) for k, v in (row.settings or {}).items()},
        parse_lsn(row.start_lsn) if row.start_lsn else 0,
        ResultTable(
            row.id,
            row.schema_name,
            row.view_name,
            row.result_oid or 0,
            rebuilt.sink.schema,
            keys.chosen(options.key, rebuilt.sink.key),
            planned_key=options.key is None,
            conditions=rebuilt.sink.conditions,
        ),
        _CURSORS.get(Status(row.status)),
        row.owner or "",
        commit_group=options.commit_group,
        _latency_ms=options.latency_ms,
        placed=placed,
        parts={} if placed else dict(row.parts),
        shares=options.sharing and not placed and not row.parts,
        limits=dict(options.limits),
        # An earlier process has logged why such a view left.
        _left_at=None if row.status == Status.RUNNING else clock.monotonic(),
    )
    events.know_view(made.id, made.target.shown)
    return made
