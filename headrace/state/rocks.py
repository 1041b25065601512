"""State in RocksDB: one database per worker, one column family per view.

What the txids write is in memory (``tiers``) until a checkpoint makes it durable, for all views
together with metadata, at once (``checkpoint``).  Killing the process at any moment leaves the
last checkpoint whole (the write-ahead log is always on).

* Invariant 1: the column families hold only checkpointed states: nothing else writes to them,
  except ``ingest``, which makes all states of a view that has none yet.
* Invariant 2: no stored weight is 0 or negative: ``prepare`` proves it before the sink writes.
* Invariant 3: what cannot be read is never taken for absent (``columns``, H22).
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import rocksdict
import structlog

from headrace.errors import HeadraceError, StateDamaged, TransientError
from headrace.state import checkpoint, columns, files, layout
from headrace.state.checkpoint import Changed, Meta, RocksCheckpoint
from headrace.state.columns import Family, Memory, reading, writing
from headrace.state.files import write_run
from headrace.state.logs import Logs
from headrace.state.map import keygroups
from headrace.state.regulator import Regulator
from headrace.state.store import RocksStore
from headrace.state.tiers import Tier

__all__ = [
    "BUDGET_BYTES",
    "RocksCheckpoint",
    "RocksDatabase",
    "RocksStore",
    "write_run",
]

_log = structlog.get_logger(__name__)

BUDGET_BYTES: Final = 512 * columns.MIB
"""Memory when the caller does not say otherwise (``Settings.state_memory_bytes``)."""
_CACHE_SHARE: Final = 0.25
_MAPS_SHARE: Final = 0.625
"""The rest is for a checkpoint at work and for gaps in the maps' memory."""
_PENDING_SHARE: Final = 0.1
_BUDGET_BYTES_MIN: Final = 4 * columns.MIB


class RocksDatabase:
    """The states of all views of a worker, and small metadata (a ``VersionedDatabase``).

    Metadata lives in the default column family.  One thread at a time uses it; only
    ``Checkpoint.write`` may run beside on another, and stores of different views on different ones.
    """

    def __init__(self, path: Path, *, memory_bytes: int = BUDGET_BYTES) -> None:
        """Open the database at ``path``, or make it.

        ``memory_bytes`` is a budget for maps, caches and write buffers of all states together.

        Raises:
            OSError: the files cannot be used now: another process has them open, say.
            StateDamaged: they do not hold what was written, or in another format.
        """
        self.path: Final = path
        budget = max(memory_bytes, _BUDGET_BYTES_MIN)
        self._memory = Memory.of(int(budget * _CACHE_SHARE))
        self._regulator = Regulator(int(budget * _MAPS_SHARE))
        self._families: dict[str, Family] = {}
        self._stores: dict[str, RocksStore] = {}
        self._checkpoint: RocksCheckpoint | None = None
        self._logs = Logs(path)
        self._noting = threading.Lock()
        self._making = threading.Lock()
        path.mkdir(parents=True, exist_ok=True)
        files.check_format(path)
        self._noted = files.check_manifest(path)
        self._db = self._open()
        self._default = Family(columns.DEFAULT, self._db)
        checkpoint.finish(self)

    def _open(self) -> Any:
        try:
            names = (
                rocksdict.Rdict.list_cf(str(self.path))
                if (self.path / "CURRENT").exists()
                else []
            )
            names = [name for name in names if name != columns.DEFAULT]
            db = rocksdict.Rdict(
                str(self.path),
                columns.options(self._memory),
                column_families={name: columns.options(self._memory) for name in names},
            )
        except Exception as error:
            # rocksdict raises bare Exception whatever RocksDB says.
            raise columns.opening_error(self.path, error) from error
        for name in names:
            self._families[name] = Family(name, db)
        return db

    # --- views

    def view(self, view_id: int | str, txid: int = 0) -> RocksStore:
        """The states of one view as of the last checkpoint, which was of ``txid``.

        A store of the view that was given out before is void from now on.  REQUIRES: no
        checkpoint is under way (so for ``drop_view`` and ``ingest``).
        """
        checkpoint.finish(self)
        name = f"v{view_id}"
        self._retract(name)
        store = self._stores[name] = RocksStore(self, name, txid)
        return store

    def drop_view(self, view_id: int | str) -> None:
        """Drop all states of a view; nothing happens if it has none."""
        checkpoint.finish(self)
        name = f"v{view_id}"
        self._retract(name)
        family = self._families.get(name)
        if family is None:
            return
        # First, for closing would flush what is gone.  If this fails (a full disk), it is still
        # there, and is found when it is tried again.
        with writing():
            self._db.drop_column_family(name)
        del self._families[name]
        self._logs.forget(name)
        family.close()

    def drop_states(
        self, view_id: int | str, keep: Callable[[str], bool], meta: Meta
    ) -> None:
        """Drop the states of a view but for those to ``keep``, and write ``meta``, all at once.

        It is not synced: a crash of the machine may undo it all.

        REQUIRES: its store was given out, nothing of it is in flight, no checkpoint is under way.
        """
        checkpoint.finish(self)
        self.demand_rest()
        store = self._stores[f"v{view_id}"]
        self._clear(view_id, keep, meta)
        gone = [state for state in store.tiers if not keep(state)]
        self._regulator.forget(store.forget(gone))

    def _clear(
        self, view_id: int | str, keep: Callable[[str], bool], meta: Meta
    ) -> None:
        """Delete the states of a view from disk but for those to ``keep``, and write ``meta``."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        family = self._families.get(f"v{view_id}")
        touched: set[str] = set()
        for state in family.states() if family is not None else ():
            if family is not None and not keep(state):
                first, end = layout.section(state), layout.section_end(state)
                batch.delete_range(first, end, family.handle)
                touched.add(family.name)
        self._write(batch, touched, meta, sync=False)

    def ingest(
        self,
        view_id: int | str,
        runs: Iterable[Path],
        keep: Callable[[str], bool] | None = None,
    ) -> None:
        """Make the states of a view out of runs of ``write_run``, of which it may ``keep`` some.

        States the view had before are dropped first, so a repetition after a crash is harmless.
        The files are linked or copied and stay.  REQUIRES: no key of a state is in two runs.
        """
        self.drop_view(view_id)
        for path in runs:
            self.family(f"v{view_id}").ingest(path, move=False)
        if keep is not None:
            self._clear(view_id, keep, {})

    def regulate(self) -> bool:
        """Keep memory within the budget: a few milliseconds of work, between batches.

        Returns whether it should be called again soon, though nothing else is to be done.
        """
        return self._regulator.step(self._tiers())

    @property
    def memory_bytes(self) -> int:
        """Bytes of all states in memory now."""
        return sum(tier.map.live_bytes for tier in self._tiers())

    @property
    def checkpoint_due(self) -> bool:
        """Whether so much has been written since the last one that memory needs a checkpoint."""
        written = sum(tier.pending_bytes for tier in self._tiers())
        return written > _PENDING_SHARE * self._regulator.budget_bytes

    def _tiers(self) -> list[Tier]:
        return [tier for s in self._stores.values() for tier in s.tiers.values()]

    def demand_rest(self) -> None:
        """Raise BugError if a checkpoint is under way: it changes column families."""
        if self._checkpoint is not None:
            raise checkpoint.under_way()

    def forget(self, tiers: Iterable[Tier]) -> None:
        """These tiers are going away."""
        self._regulator.forget(tiers)

    def _retract(self, name: str) -> None:
        if name not in self._stores:
            return
        self.demand_rest()
        store = self._stores.pop(name)
        self._regulator.forget(store.tiers.values())
        store.close()

    # --- checkpoints

    def begin_checkpoint(
        self, stores: Sequence[tuple[RocksStore, int]], meta: Meta
    ) -> RocksCheckpoint:
        """See ``VersionedDatabase``."""
        self.demand_rest()
        parts: list[tuple[Tier, int]] = []
        try:
            for store, txid in stores:
                parts += store.snapshot(txid)
        except HeadraceError:
            for tier, snapshot in parts:
                tier.release(snapshot)
            raise
        self._checkpoint = RocksCheckpoint(self, list(stores), parts, meta)
        return self._checkpoint

    def end_checkpoint(self, done: RocksCheckpoint) -> None:
        """See ``VersionedDatabase``."""
        if done is not self._checkpoint:
            raise checkpoint.under_way()
        self._checkpoint = None
        if done.written:
            for store, txid in done.stores:
                store.durable = txid
        for tier, snapshot in done.parts:
            if done.written:
                tier.retire(snapshot)
            else:
                tier.release(snapshot)

    def put_meta(self, meta: Meta, *, sync: bool) -> None:
        """See ``VersionedDatabase``."""
        self.write([], meta, sync=sync)

    def write(self, pairs: Iterable[Changed], meta: Meta, *, sync: bool) -> None:
        """One atomic write batch of pairs per state and ``meta``; from any thread."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        touched = set()
        for section, keys, values in pairs:
            touched.add(section.family.name)
            # No name for the handle: the traceback of an error would keep the database open.
            keygroups.write_batch(
                batch, section.family.handle, section.prefix, keys, values
            )
        self._write(batch, touched, meta, sync=sync)

    def _write(self, batch: Any, touched: set[str], meta: Meta, *, sync: bool) -> None:
        """Write a batch, of pairs for the families ``touched``, and ``meta``."""
        if meta:
            keygroups.write_batch(batch, None, b"", [*meta], [*meta.values()])
            touched.add(columns.DEFAULT)
        with writing():
            self._db.write(batch)
            self._logs.wrote(touched)
            if sync:
                self._sync()

    def _sync(self) -> None:
        try:
            for name in self._logs.sync():
                self._flush(name)
            with self._noting:
                self._noted = files.note_manifest(self.path, self._noted)
        except OSError as error:
            if error.errno == errno.EIO:
                # What the disk has now is unknown, and asking again would not tell.
                raise StateDamaged(
                    "the disk cannot keep the state", detail=f"{error}."
                ) from error
            raise

    def _flush(self, name: str) -> None:
        """Have the memtable of a family written, which keeps old files of the log."""
        family = self._default if name == columns.DEFAULT else self._families.get(name)
        if family is None:
            return
        try:
            family.flush_soon()
        except TransientError as error:
            # What was to be durable is; the files of the log can wait.
            self._logs.wrote([name])
            _log.warning("log of the state kept", family=name, reason=error.message)

    # --- metadata and column families

    def get_meta(self, key: bytes) -> bytes | None:
        """One entry of the metadata."""
        with reading("metadata"):
            value: bytes | None = self._db.get(key)
        return value

    def scan_meta(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """All entries whose key starts with ``prefix``, in key order."""
        out: list[tuple[bytes, bytes]] = []
        with reading("metadata"):
            iterator = self._db.iter()
            iterator.seek(prefix)
        for key, value in columns.pairs_from(iterator, "metadata"):
            if not key.startswith(prefix):
                break
            out.append((key, value))
        return out

    def family(self, name: str) -> Family:
        """The column family of that name, made when missing."""
        # Views whose first batch this is come from several threads.
        with self._making:
            family = self._families.get(name)
            if family is None:
                with writing():
                    self._db.create_column_family(name, columns.options(self._memory))
                family = self._families[name] = Family(name, self._db)
            return family

    def known(self, name: str) -> Family | None:
        """The column family of that name, if there is one."""
        return self._families.get(name)

    def views(self) -> set[int]:
        """Ids of the views that have states here, whether or not a checkpoint counts them."""
        found = (name.removeprefix("v") for name in self._families)
        return {int(view_id) for view_id in found if view_id.lstrip("-").isdigit()}

    def file_writer(self) -> Any:
        """A writer of a sorted file for ``Family.ingest``."""
        return rocksdict.SstFileWriter(columns.options(None))

    def close(self) -> None:
        """Close; nothing made from this database may be used any more.

        What is in no written checkpoint is lost.  REQUIRES: none is being written.
        """
        if self._checkpoint is not None:
            self.end_checkpoint(self._checkpoint)
        for name in list(self._stores):
            self._retract(name)
        # The lock of the database is released only when its last iterator and handle are gone.
        for family in (self._default, *self._families.values()):
            family.close()
        self._families.clear()
        columns.close(self._db)
        # Where closing failed, the lock is released with the last reference.
        del self._db
