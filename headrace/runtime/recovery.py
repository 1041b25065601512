"""Start of the stream, at engine start and after errors.

Positions come from the state database, the source must be the server that they belong to, and the
engine takes ownership of the views again.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import structlog

from headrace.errors import RESYNC, ContinuityLost, OtherFormat, StateDamaged
from headrace.forwarder.stream import Stream
from headrace.postgres import slot as setup
from headrace.runtime import positions, replay
from headrace.runtime.book import Book
from headrace.runtime.durability import Durability
from headrace.runtime.leaving import Leaving
from headrace.runtime.loading import Loading
from headrace.runtime.ownership import Owner
from headrace.runtime.positions import Position
from headrace.runtime.sharing import Sharing
from headrace.sql import origins, watched
from headrace.state import files
from headrace.state.rocks import RocksDatabase
from headrace.storage.manager import Storage

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Recovery:
    """Recovery of one engine; every method runs on its thread."""

    _book: Book
    _durability: Durability
    _sharing: Sharing
    _loading: Loading
    _leaving: Leaving

    def open(self) -> None:
        """Open the state database; set a damaged one aside and create a new one."""
        book = self._book
        try:
            self._read_state()
        except StateDamaged as error:
            if book.opened is not None:
                book.opened.close()
            of_before = isinstance(error, OtherFormat)
            why = "is of another version" if of_before else "was damaged"
            book.damage = StateDamaged(f"the view's state {why}", detail=error.detail, hint=RESYNC)
            aside = files.set_aside(book.settings.state_dir)
            told = {"reason": str(error), "set_aside": str(aside)}
            if of_before:
                _log.warning("state of another version", **told)
            else:
                _log.error("state damaged", **told)
            self._read_state()

    def _read_state(self) -> None:
        book = self._book
        book.opened = RocksDatabase(
            book.settings.state_dir, memory_bytes=book.settings.memory.states
        )
        if book.storage is None:
            book.storage = Storage(
                book.settings.queue_dir,
                book.settings.queue_bytes_max,
                book.settings.queue_block_bytes,
                book.settings.memory.queues,
            )
        book.lineage = _lineage(book.db)
        book.records = positions.records(book.db)
        book.holds.load(book.db)
        book.confirmed = positions.get_confirmed(book.db)
        book.position = positions.get_position(book.db) or Position(0, 0)
        book.durable = book.position
        self._sharing.read()
        book.retained.open(book.db, book.queues)
        source = positions.get_source(book.db)
        if source is not None:
            book.identity = source[0]

    def stream(self) -> tuple[Position, int]:
        """Open a stream, from any state, at the least position that a live view needs.

        Return where it starts, and how many batches are replayed.
        """
        book = self._book
        if book.connections is None:
            self._connect()
            self._adopt_source()
            self._loading.load()
        for unit in book.units:
            unit.reset()
        if book.retained.local:
            self._durability.still()  # the checkpoint says how far the retained batches reach
        book.retained.rewind()
        plan = replay.plan(book)
        stream = book.stream = Stream(
            *(book.settings, book.owner.conn, plan.stream_lsn, plan.cuts, book.identity),
            plan.backlog,
            origins.token(book.owner.conn),
        )
        if book.identity is None:
            book.identity = stream.identity
            meta: positions.Meta = {}
            positions.put_source(meta, stream.identity, book.settings.slot_name)
            book.db.put_meta(meta, sync=True)
        book.taken = plan.start
        return plan.start, plan.batches

    def _connect(self) -> None:
        book = self._book
        book.connections = Owner(book.settings, book.last_pid)
        book.last_pid = book.connections.pid

    def _adopt_source(self) -> None:
        """Ensure that slot and publication exist; a new engine starts at the slot's position."""
        book = self._book
        state = setup.ensure(book.owner.conn, book.settings, watched.fed)
        if book.position.lsn == 0:
            book.position = Position(book.position.txid, state.confirmed)
            book.confirmed = max(book.confirmed, state.confirmed)
            # Durable before the first view: another engine may have moved the slot's position, so
            # an engine that comes back must not take it for its own (H21).
            meta: positions.Meta = {}
            positions.put_position(meta, book.position)
            positions.put_confirmed(meta, book.confirmed)
            book.db.put_meta(meta, sync=True)
        book.holds.begin(Position(book.position.txid, book.confirmed))

    def lose(self, error: ContinuityLost) -> None:
        """Stop every view, because the stream cannot go on, and start at a new position."""
        book = self._book
        _log.error("continuity lost", reason=error.message, detail=error.detail)
        book.story.add("continuity lost", reason=error.message)
        self._connect()
        conn = book.owner.conn
        self._loading.load()
        for view in list(book.views.values()):
            if view.owned:
                self._leaving.fail(
                    view, ContinuityLost(error.message, detail=error.detail, hint=RESYNC)
                )
        # No view can use what the old slot has, and it may be stuck for good: a slot cannot
        # decode what was written while its publication did not exist (E12).
        setup.drop_slot(conn, book.settings.slot_name)
        state = setup.ensure(conn, book.settings, watched.fed)
        self._durability.still()
        book.retained.lose(book.db)
        book.position = Position(book.next_txid - 1, state.confirmed)
        book.durable = book.position
        book.confirmed = state.confirmed
        book.identity = None
        meta: positions.Meta = {}
        for txid in book.records:
            positions.drop_record(meta, txid)
        book.holds.lose(book.position)
        book.records.clear()
        positions.put_position(meta, book.position)
        positions.put_confirmed(meta, book.confirmed)
        book.db.put_meta(meta, sync=True)


def _lineage(db: RocksDatabase) -> str:
    """Return the name of the batch records; a new database gets a new one."""
    found = positions.get_lineage(db)
    if not found:
        found = uuid.uuid4().hex
        meta: positions.Meta = {}
        positions.put_lineage(meta, found)
        db.put_meta(meta, sync=True)
    return found
