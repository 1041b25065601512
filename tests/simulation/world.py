"""One run: an engine, its server and its disk, random troubles, and the invariants."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import pkgutil
import random
import secrets
import shutil
import tempfile
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import pytest

from headrace import clock
from headrace.collections import plan
from headrace.config import Settings
from headrace.errors import HeadraceError, TransientError
from headrace.postgres.numbering import Observation, StreamAttribute, VisibleXids
from headrace.postgres.slot import SlotState
from headrace.postgres.timeline import Identity
from headrace.process import faults
from headrace.runtime import engine as engines
from headrace.runtime import (
    insight,
    intake_log,
    ownership,
    positions,
    replay,
    result_tables,
    shared,
)
from headrace.runtime.batches import Processor
from headrace.runtime.engine import Engine
from headrace.runtime.views import View
from headrace.runtime.watch import Watch
from headrace.sql.status import CursorState, Status
from headrace.sql.views import WorkedView
from headrace.state import layout
from headrace.state.disk import Disk as StateDisk
from headrace.types import Lsn, format_lsn
from tests.simulation import model, primitives, server, stream
from tests.simulation.disk import DISK_FULL, Disk
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.server import Progress, Server, Session

SETTLED_S: Final = 120.0
"""Virtual seconds within which everything has caught up once all troubles are over."""
_COMMAND_S: Final = 10.0
_SHOWN_EVENTS: Final = 60
_WRITES_BACK: Final = 0.05
"""Probability that pages are written back between two steps of the engine."""


class World:
    """See the module text."""

    def __init__(self, seed: int | str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.scheduler: Final = Scheduler(seed)
        self.chance: Final = random.Random(f"script of {seed}")
        self.models: Final = model.views()
        self.server: Final = Server(self.scheduler, self.models)
        self.server.on_commit = self._committed
        self.disk: Final = Disk(folder, seed)
        self.disk.before_sync = self._before_sync
        self.disk.after_sync = self._step
        self.engine: Engine | None = None
        self.process: Process | None = None
        self.slow: Final[dict[int, float]] = {}
        """Seconds that a view takes for each piece of rows."""
        self.kills = 0
        self._power = False
        self._boots = 0
        self._seen: Final[dict[int, tuple[int, int]]] = {}
        self.patch: Final = patch
        self._settings = Settings(
            source="dbname=simulation",
            data_dir=self.disk.path,
            slot_name="headrace",
            publication_name="headrace",
            batch_interval_ms=self.chance.choice((1, 5, 50)),
            max_inflight_batches=self.chance.choice((1, 2, 4)),
            checkpoint_txids=self.chance.choice((2, 5, 20)),
            checkpoint_interval_ms=self.chance.choice((20, 200, 1_000)),
            feedback_interval_ms=self.chance.choice((20, 200, 1_000)),
            wal_retention=self.chance.choice(("local", "local", "local", "source")),
            queue_bytes_max=4 << 20,
            queue_block_bytes=4_096,
            sink_retry_ms=self.chance.choice((50, 500)),
            lock_timeout_ms=300,
            memory_bytes=64 << 20,
        )
        self._stage()

    # --- the package on simulated ground

    def _stage(self) -> None:
        for view in self.models:
            folder = self._settings.staging_dir / str(view.id)
            folder.mkdir(parents=True)
            lsn = self.server.start_lsn
            facts = {"view_id": view.id, "txid": 0, "lsn": lsn, "start_lsn": lsn, "runs": []}
            (folder / "manifest.json").write_text(json.dumps({**facts, "format": layout.FORMAT}))

    def put_in_place(self) -> None:
        """Let the package use the simulated server and disk."""
        patch, found = self.patch, self.server
        self.disk.watch(patch)
        # A run has few batches: let views lag after a restart that lack fewer than usual.
        patch.setattr(replay, "_NEAR_TXIDS", self.chance.choice((0, replay._NEAR_TXIDS)))

        def connected(settings: Settings, name: str, *_: Any, **__: Any) -> server.Connection:
            made = found.connect(name)
            made.timeout_s = settings.lock_timeout_ms / 1000
            return made

        def slot(conn: server.Connection, *_: Any) -> SlotState:
            conn.execute("SELECT 1")
            return SlotState(Lsn(found.confirmed), Lsn(found.confirmed), None, "reserved")

        for module in (ownership, importlib.import_module("headrace.runtime.link")):
            patch.setattr(module, "connected", connected)
        link = importlib.import_module("headrace.runtime.link")
        patch.setattr(link, "SinkWriter", server.Writer)
        patch.setattr(link, "Pipelined", server.Pipelined)
        patch.setattr(link.SinkLink, "interrupt", lambda this: found.lose(this.sink))
        patch.setattr("psycopg.RawCursor", server.Cursor)
        patch.setattr("headrace.postgres.slot.ensure", slot)
        patch.setattr("headrace.postgres.slot.slot_state", slot)
        patch.setattr("headrace.postgres.timeline.switch_point", self._switch_point)
        patch.setattr("headrace.postgres.timeline.current", self._identity)
        patch.setattr("headrace.postgres.slot.drop_slot", self._lost_slot)
        patch.setattr("headrace.sql.origins.token", lambda _: None)
        patch.setattr("headrace.sql.views.worked", self._worked)
        patch.setattr("headrace.sink.table.find_altered", lambda *_: {})
        patch.setattr(engines, "Watch", _Watch)
        patch.setattr(result_tables.ResultTables, "poll", _poll)
        receiver = functools.partial(stream.Receiver, found, self._confirms)
        patch.setattr("headrace.forwarder.stream.Receiver", receiver)
        patch.setattr("headrace.runtime.copied_stream.Receiver", receiver)
        patch.setattr("headrace.runtime.copied_stream._exhausted", lambda _, error: error)
        patch.setattr("headrace.runtime.copied_stream.secrets.token_hex", lambda _: "copy")
        patch.setattr(Processor, "run", self._checked(Processor.run))
        patch.setattr(shared, "_log", _Log(self._lost_queue))
        patch.setattr(intake_log, "_log", _Log(self._lost_queue))
        patch.setattr(faults, "point", self._pass_point)
        patch.setattr(faults, "rows", self._take_rows)
        # A generator of their own: libraries may draw numbers when they are imported.
        numbers = random.Random("numbers")
        patch.setattr(secrets, "randbits", numbers.getrandbits)
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=numbers.getrandbits(128)))

    def _worked(
        self, conn: server.Connection, view_id: int | None = None, *, some: Any = None
    ) -> list[WorkedView]:
        conn.execute("SELECT 1")
        return [
            WorkedView(
                row.model.id,
                "public",
                row.model.name,
                5_000 + row.model.id,
                plan.to_json(row.model.plan),
                {},
                format_lsn(self.server.start_lsn),
                Status(row.status),
                {"commit_group": row.model.group},
                "owner",
                {},
            )
            for row in self.server.views.values()
            if view_id in (None, row.model.id) and (some is None or row.status in some)
        ]

    def _switch_point(self, dsn: str, expected: Identity, _: str) -> tuple[Identity, Lsn] | None:
        found = self._identity()
        if found == expected:
            return None
        return found, Lsn(self.server.switches[expected.timeline])

    def _identity(self, *_: str) -> Identity:
        self.scheduler.stand(self.server.delay())
        if not self.server.reachable:
            raise TransientError("the server cannot be reached", sqlstate="08006")
        return Identity(stream.SYSTEM, self.server.timeline)

    def promote(self) -> None:
        """Let the standby take over."""
        self.server.promote()
        self._seen.update({i: (p.txid, p.lsn) for i, p in self.server.progress.items()})

    def _lost_slot(self, *_: Any) -> None:
        error = self.engine.state.error if self.engine is not None else None
        self.scheduler.fail(f"the engine gives the stream up: {error}")

    def _lost_queue(self, event: str) -> None:
        """Fail: a checkpoint relies on a queue only after a sync, so it must be found again."""
        # Batches that no checkpoint relies on may be lost.
        if "_check_end" not in {frame.name for frame in traceback.extract_stack()}:
            self.scheduler.fail(f"a queue is not found again: {event}")

    def _pass_point(self, name: str) -> None:
        self._step()

    def _step(self) -> None:
        """Let other tasks run, or the kernel write pages to the disk."""
        self.scheduler.check()
        if self.scheduler.random.random() < _WRITES_BACK:
            self.disk.write_back()
        self.scheduler.pause(0.3)

    def _take_rows(self, unit_id: int, _: Any) -> None:
        seconds = self.slow.get(unit_id, 0.0)
        if seconds:
            self.scheduler.current.cpu_s += seconds
            self.scheduler.stand(seconds)

    def _checked(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``Processor.run`` with a check of the published cursors before and after it."""

        def checked(
            this: Processor, views: Sequence[View], frames: Any, *more: Any, **named: Any
        ) -> Any:
            self._check_cursors(this, views, frames.txid)
            outcome = run(this, views, frames, *more, **named)
            took = [*views, *(unit for unit in outcome.woken if isinstance(unit, View))]
            self._check_cursors(this, [v for v in took if v.id not in outcome.failed], frames.txid)
            return outcome

        return checked

    # --- the engine's process

    def boot(self) -> None:
        """Start an engine on what the disk has."""
        self._boots += 1
        self._settings = self._settings.replace(data_dir=self.disk.path)
        process = self.process = Process(f"engine {self._boots}")
        process.on_kill = lambda: self._die(process)
        with self.scheduler.within(process):
            engine = self.engine = Engine(self._settings)
            self.scheduler.spawn("engine", engine.run)

    def kill(self, *, within: int, power: bool) -> None:
        """Kill the engine at one of its next steps, and start another one."""
        process = self.process
        assert process is not None, "it was booted"
        self._power = power
        process.kill_in = self.chance.randrange(1, within)
        until = self.scheduler.now + 5.0
        while not process.dead and self.scheduler.now < until:
            self.scheduler.stand(0.01)
        if not process.dead and process.error is None:
            self._die(process)
        if process.error is not None:
            self.check_alive()
            return
        self.scheduler.reap(process)
        self._close()
        self.boot()

    def _die(self, process: Process) -> None:
        """End the process at once, as a kill or a power failure does."""
        scheduler, found = self.scheduler, self.server
        process.kill_in = None
        self.kills += 1
        scheduler.note(f"{process.name} dies, power {self._power}")
        opened = self.engine.state.opened if self.engine is not None else None
        self.disk.crash(self.chance, opened.disk if opened is not None else None, power=self._power)
        for connection in [c for c in found.connections if c.process is process]:
            found.lose(connection)
        for receiver in [r for r in found.streams if r.process is process]:
            receiver.close()
        scheduler.kill(process)

    def _close(self) -> None:
        """Give back the files of a dead process, which the system would do."""
        engine, self.engine = self.engine, None
        if engine is None:
            return
        state = engine.state
        with contextlib.suppress(Exception):
            if state.opened is not None:
                state.opened.disk.close()
        with contextlib.suppress(Exception):
            if state.storage is not None:
                state.storage.close()
        shutil.rmtree(self.disk.old, ignore_errors=True)

    def restart(self) -> None:
        """Stop the engine cleanly, and start another one."""
        engine, process = self.engine, self.process
        assert engine is not None, "it was booted"
        assert process is not None, "it was booted"
        engine.stop()
        until = self.scheduler.now + SETTLED_S
        while self.scheduler.alive(process):
            self.scheduler.stand(0.05)
            if self.scheduler.now > until:
                self.scheduler.fail("the engine does not stop:\n" + self.scheduler.stacks())
        if process.error is not None:
            self.check_alive()
            return
        self.scheduler.note("stopped cleanly")
        self.boot()

    def check_alive(self) -> None:
        """Start the engine again if a full disk or a promotion has ended it; else raise its error."""
        process = self.process
        assert process is not None, "it was booted"
        error = process.error
        if error is None:
            if not self.scheduler.alive(process):
                self.scheduler.note("the engine has ended by itself")
                self.boot()
            return
        if not isinstance(error, TransientError) or error.message != DISK_FULL:
            raise error
        self.scheduler.reap(process)
        self.boot()

    def command(self, work: Callable[[Engine], Any], *, quiet: bool = True) -> bool:
        """Have the engine do something between two batches; return whether it did."""
        engine, process = self.engine, self.process
        assert engine is not None, "it was booted"
        assert process is not None, "it was booted"
        with self.scheduler.within(process):
            asked: Future[Any] = engine.submit(lambda: work(engine), quiet=quiet)
        try:
            asked.result(_COMMAND_S)
        except (HeadraceError, TimeoutError) as error:
            self.scheduler.note(f"not done: {error!r}")
            asked.cancel()
            return False
        return True

    # --- invariants

    def _committed(self, session: Session, moves: dict[int, Progress]) -> None:
        """Check the tables after a commit of the sink."""
        scheduler, found = self.scheduler, self.server
        txids = {row.txid for row in moves.values()}
        if len(txids) > 1:
            scheduler.fail(f"views of one commit are at txids {txids}")
        if len({self.server.views[i].model.group for i in moves}) > 1:
            scheduler.fail(f"one commit writes several groups: {sorted(moves)}")
        for view_id, row in moves.items():
            txid, lsn = self._seen.get(view_id, (0, 0))
            if row.txid <= txid or row.lsn < lsn:
                scheduler.fail(f"view {view_id} goes from {txid}, {lsn} to {row.txid}, {row.lsn}")
            self._seen[view_id] = row.txid, row.lsn
            self._compare(view_id)
        if session.open and session.name == "headrace sink":
            self._check_group(moves)
        engine, process = self.engine, self.process
        if engine is None or session.name not in ("headrace sink", "headrace lagging sink"):
            return
        if process is None or process.dead:
            return  # a COMMIT that arrives later; the locks of a dead process cannot be taken
        flying = len(engine.state.pipeline.flights()) if found.connections else 0
        if flying > self._settings.max_inflight_batches:
            scheduler.fail(f"{flying} txids are in flight")

    def _compare(self, view_id: int) -> None:
        lsn = self.server.progress[view_id].lsn
        wanted, found = self.server.history.expected(view_id, lsn), self.server.tables[view_id]
        if wanted != found:
            self.scheduler.fail(
                f"view {view_id} at LSN {lsn} (txid {self.server.progress[view_id].txid}) lacks"
                f" {dict(wanted - found)} and has {dict(found - wanted)}"
            )

    def _check_group(self, moves: dict[int, Progress]) -> None:
        """Check that all views of a group that lead show one position."""
        engine, (txid, lsn) = self.engine, next((row.txid, row.lsn) for row in moves.values())
        if engine is None:
            return
        state, group = engine.state, self.server.views[next(iter(moves))].model.group
        for view in list(state.views.values()):
            if view.commit_group != group or view.id in moves or not view.live:
                continue
            if view.store is None or not view.leads:
                continue
            if view.id in self.server.stumbled or view.processed < txid:
                continue
            # It may be at an earlier txid if it did not change since.
            wanted = self.server.history.expected(view.id, lsn)
            if self.server.progress[view.id].txid < txid and self.server.tables[view.id] != wanted:
                self.scheduler.fail(
                    f"view {view.id} leads and is at {self.server.progress[view.id]}, its group at"
                    f" {txid}"
                )

    def _check_cursors(self, processor: Processor, views: Sequence[View], txid: int) -> None:
        """Check that the views of the batch that all others take now are those that lead."""
        engine = self.engine
        if engine is None:
            return
        published = {row["view_id"]: row["state"] for row in insight.cursors(engine.state)}
        found = {view.id: published.get(view.id, CursorState.LEADING) for view in views}
        if processor is engine._catching_up._processor:
            wrong = {i: state for i, state in found.items() if state != CursorState.CATCHING_UP}
        else:
            others = [v for v in engine.state.views.values() if v.id not in found]
            found |= {v.id: published.get(v.id, CursorState.LEADING) for v in others if v.in_step}
            wrong = {i: state for i, state in found.items() if state != CursorState.LEADING}
            wrong |= {
                view.id: CursorState.LEADING
                for view in others
                if view.owned and view.id not in published | found and view.processed < txid
            }
        if wrong:
            self.scheduler.fail(f"views {[*found]} process {txid}, and published are {wrong}")

    def _confirms(self, lsn: int) -> None:
        if lsn > max(self.disk.confirmed, self.server.start_lsn):
            self.scheduler.fail(
                f"{lsn} is confirmed; the checkpoint on disk says {self.disk.confirmed}"
            )

    def _before_sync(self, found: StateDisk) -> None:
        """Check that the result tables have what a checkpoint is about to promise."""
        for view in self.models:
            value = found.get_meta(positions._VIEW + str(view.id).encode())
            if value is None:
                continue
            mark = positions.StateMark(*positions._STATE.unpack(value))
            if mark.sink_txid > self.server.progress[view.id].txid:
                self.scheduler.fail(
                    f"the checkpoint has view {view.id} written at {mark.sink_txid}, its table is"
                    f" at {self.server.progress[view.id].txid}"
                )

    def shows(self, view_id: int) -> bool:
        """Return whether a table has all that is committed at the source."""
        return self.server.tables[view_id] == self.server.history.expected(
            view_id, self.server.history.end_lsn
        )

    def expect(self, views: list[int], within_s: float, what: str) -> None:
        """Wait until these views show everything.

        Raises:
            Broken: they do not within this virtual time.
        """
        until = self.scheduler.now + within_s
        while not all(map(self.shows, views)):
            self.scheduler.stand(0.05)
            self.check_alive()
            if self.scheduler.now > until:
                late = [view_id for view_id in views if not self.shows(view_id)]
                self.scheduler.fail(f"views {late} do not go on: {what}\n{self.describe()}")

    def settle(self) -> None:
        """Wait until all views run and show everything; compare them."""
        until = self.scheduler.now + SETTLED_S
        ids = [view.id for view in self.models]
        while any(self.server.views[i].status != "running" for i in ids):
            self.scheduler.stand(0.1)
            self.check_alive()
            if self.scheduler.now > until:
                self.scheduler.fail(f"views do not run again\n{self.describe()}")
        self.expect(ids, SETTLED_S, "all troubles are over")
        while self.engine is not None and insight.cursors(self.engine.state):
            self.scheduler.stand(0.1)
            self.check_alive()
            if self.scheduler.now > until + SETTLED_S:
                self.scheduler.fail(f"views do not lead again\n{self.describe()}")
        for view_id in ids:
            self._compare(view_id)

    def describe(self) -> str:
        """Return the state of the run."""
        engine = self.engine
        lines = [
            f"source at {self.server.history.end_lsn}, slot at {self.server.confirmed}",
            *(
                f"view {i}: {row.status} {row.message} {self.server.progress[i]}"
                for i, row in self.server.views.items()
            ),
        ]
        if engine is not None:
            state = engine.state
            lines += [
                f"position {state.position} taken {state.taken} error {state.error!r}",
                f"lagging {state.lagging} story {state.story.lines()[-8:]}",
                *(
                    f"unit {u.id}: mark {u.mark} durable {u.durable} processed {u.processed}"
                    f" {u.story.lines()[-4:]}"
                    for u in state.units
                ),
            ]
        return "\n".join(lines) + "\n" + self.scheduler.stacks()


class _Log:
    """A logger that reports only errors."""

    def __init__(self, error: Callable[[str], None]) -> None:
        self._error = error

    def error(self, event: str, **_: Any) -> None:
        self._error(event)

    def warning(self, event: str, **_: Any) -> None:
        pass

    info = warning


def _poll(tables: Any) -> None:
    tables.due = float("inf")


class _Watch(Watch):
    """The catalog watch of a source on which no DDL is executed."""

    def poll(self, *_: Any) -> None:
        now = clock.monotonic()
        if now >= self.due:
            self.due = now + self._state.settings.catalog_poll_ms / 1000
            self._conn.execute("SELECT 1")

    def check(self, *_: Any) -> dict[int, Any]:
        return {}

    def _check_with(self, *_: Any) -> dict[int, Any]:
        return {}

    def publication_replaced(self) -> bool:
        return False

    def observations(self, table: int, xid: int) -> Iterator[Observation]:
        names = model.columns(table)
        attributes = (StreamAttribute(i, n, True, "1") for i, n in enumerate(names, 1))
        yield Observation(VisibleXids.of("1:1000000000:"), tuple(attributes))

    def reconsider(self, view: View) -> None:
        pass


def load_all() -> None:
    """Import every module of the runtime, so that none is imported within a run."""
    for name in ("runtime", "forwarder", "state", "storage", "sink", "collections", "process"):
        package = importlib.import_module(f"headrace.{name}")
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)


@contextlib.contextmanager
def made(seed: int | str) -> Iterator[World]:
    """Yield a world; ``World.scheduler.run`` runs a script in it."""
    load_all()
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))
    gc.collect()
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            world = World(seed, folder / "disk", patch)
            with primitives.installed(world.scheduler):
                world.put_in_place()
                yield world
    finally:
        gc.enable()
        shutil.rmtree(folder, ignore_errors=True)


def report(world: World, seed: int | str) -> str:
    """Return the last events of a run, and the command that repeats it."""
    lines = world.scheduler.log[-_SHOWN_EVENTS:]
    command = f"pytest -n0 'tests/simulation/test_simulation.py::test_seed[{seed}]'"
    return "\n".join([*lines, f"Repeat it with: {command}"])
