"""State in RocksDB: one database per worker, with the states of all its views.

The writes of txids are in memory (``tiers``) until a checkpoint (``checkpoint``) makes them
durable atomically, for all views together with metadata.  After a kill at any time the last
checkpoint is complete (the write-ahead log is always on).

* Invariant 1: the column families hold only checkpointed states: nothing else writes to them,
  except ``ingest``, which makes all states of a view that has none yet, and their removal.
* Invariant 2: no stored weight is 0 or negative: ``prepare`` proves it before the sink writes.
* Invariant 3: data that cannot be read is never taken for absent (``columns``, H22).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from headrace.errors import HeadraceError, StateDamaged
from headrace.kernels import packed
from headrace.state import checkpoint, columns, layout, warm_start
from headrace.state.checkpoint import RocksCheckpoint
from headrace.state.columns import Section
from headrace.state.disk import Disk, Meta
from headrace.state.files import write_run
from headrace.state.loaded import Pieces
from headrace.state.regulator import Load, Regulator
from headrace.state.schedule import RegulatorSchedule
from headrace.state.state_owners import StateOwners
from headrace.state.store import RocksStore
from headrace.state.tiers import Tier
from headrace.state.warm_start import Pack

__all__ = ["BUDGET_BYTES", "RocksCheckpoint", "RocksDatabase", "RocksStore", "write_run"]

BUDGET_BYTES: Final = 512 * columns.MIB
"""Default memory budget (``Settings.memory.states``)."""
_CACHE_SHARE: Final = 0.25
_MAPS_SHARE: Final = 0.625
"""The rest is for a running checkpoint and for gaps in the maps' memory."""
_PENDING_SHARE: Final = 0.1
_SYNCED: Final = b"synced"
"""Key of a metadata entry without meaning, written to sync the log."""
_PAIRS_PER_PIECE: Final = 4096
_BYTES_PER_PIECE: Final = 1 << 20
_BUDGET_BYTES_MIN: Final = 4 * columns.MIB
_COPIED_BYTES: Final = columns.MIB
_COPIED_BYTES_PER_FAMILY: Final = 32 * 1024
"""To make a column family costs about 0.35 ms for each existing one, to copy a MiB 10 ms."""


class RocksDatabase:
    """The states of all views of a worker, and small metadata (a ``VersionedDatabase``).

    Metadata is in the default column family.  One thread at a time uses the database.  Meanwhile
    ``Checkpoint.write`` may run in another thread, and stores of different views in different ones.
    """

    def __init__(self, path: Path, *, memory_bytes: int = BUDGET_BYTES) -> None:
        """Open or create the database at ``path``.

        ``memory_bytes`` is a budget for maps, caches and write buffers of all states together.

        Raises:
            OSError: the files cannot be used now: another process has them open, for example.
            StateDamaged: the files are damaged, or in another format.
        """
        budget = max(memory_bytes, _BUDGET_BYTES_MIN)
        self._regulator = Regulator(int(budget * _MAPS_SHARE))
        self.schedule: Final = RegulatorSchedule(self._regulator)
        self._stores: dict[str, RocksStore] = {}
        self._packs: dict[str, Pack] = {}
        """Packs of ingested runs by store, until ``view`` returns the store."""
        self._checkpoint: RocksCheckpoint | None = None
        self.disk: Final = Disk(path, int(budget * _CACHE_SHARE))
        checkpoint.finish(self.disk)
        self._homes: Final = StateOwners(self.disk)

    # --- views

    def view(self, view_id: int | str, txid: int = 0) -> RocksStore:
        """Return the states of one view as of the last checkpoint, which was of ``txid``.

        An earlier store of the view becomes invalid.  REQUIRES: no checkpoint is in progress (also
        for ``drop_view`` and ``ingest``).
        """
        checkpoint.finish(self.disk)
        name = f"v{view_id}"
        self._retract(name)
        store = self._stores[name] = RocksStore(self, self._homes.home(name), txid)
        self.schedule.touch(store)
        pack = self._packs.pop(name, None)
        if pack is not None:
            for tier, pairs in store.unpack(pack):
                self._regulator.add(Load.packed(tier, pairs))
        return store

    def views(self) -> set[int]:
        """Return the ids of the views that have states here, checkpointed or not."""
        names = self._homes.names(self.disk.names())
        found = (name.removeprefix("v") for name in names)
        return {int(view_id) for view_id in found if view_id.lstrip("-").isdigit()}

    def drop_view(self, view_id: int | str) -> None:
        """Drop all states of a view; nothing happens if it has none."""
        checkpoint.finish(self.disk)
        name = f"v{view_id}"
        self._retract(name)
        self._packs.pop(name, None)
        self.disk.drop(self._homes.home(name))
        if gone := self._homes.forget(name):
            self.disk.write([], gone, sync=False)
            self._homes.moved(gone)

    def hand_over(self, view_id: int | str, taker: int | str, meta: Meta) -> None:
        """Give all states of a view to ``taker``, and write ``meta``, atomically and synced.

        The view has no states afterwards.  Earlier stores of both become invalid.

        REQUIRES: nothing is in flight, all is in a checkpoint, none is in progress, and ``taker``
        has no states.
        """
        checkpoint.finish(self.disk)
        self.demand_rest()
        name = f"v{view_id}"
        self._retract(name)
        self._packs.pop(name, None)
        moved = self._homes.hand_over(name, f"v{taker}")
        self.disk.write([], {**meta, **moved}, sync=True)
        self._homes.moved(moved)

    def take_over(
        self,
        view_id: int | str,
        taker: int | str,
        keep: Callable[[str], bool],
        meta: Meta,
    ) -> None:
        """Give the states of a view that match ``keep`` to ``taker``; see ``hand_over``.

        A repetition after a crash is harmless, as long as ``meta`` was not written.

        REQUIRES: as ``hand_over``.
        """
        checkpoint.finish(self.disk)
        self.demand_rest()
        name = f"v{view_id}"
        self._retract(name)
        self.disk.clear(self._homes.home(name), keep, {})
        self.hand_over(view_id, taker, meta)

    def drop_states(self, view_id: int | str, keep: Callable[[str], bool], meta: Meta) -> None:
        """Drop the states of a view that do not match ``keep``, and write ``meta``, atomically.

        It is not synced: a crash of the machine may undo all of it.

        REQUIRES: ``view`` returned its store, no txid of it is in flight, no checkpoint is running.
        """
        checkpoint.finish(self.disk)
        self.demand_rest()
        store = self._stores[f"v{view_id}"]
        self.disk.clear(store.name, keep, meta)
        gone = [state for state in store.tiers if not keep(state)]
        self.forget(store.forget(gone))

    def ingest(
        self, view_id: int | str, runs: Iterable[Path], keep: Callable[[str], bool] | None = None
    ) -> None:
        """Create the states of a view from runs of ``write_run``, limited to those in ``keep``.

        States the view had before are dropped first, so a repetition after a crash is harmless.
        The files are linked or copied and stay.  Not synced: the next sync makes it durable.
        The pack of a single run is loaded into memory when ``view`` returns the store.
        REQUIRES: no key of a state is in two runs; ``view`` is the next call.
        """
        self.drop_view(view_id)
        name = f"v{view_id}"
        home = self._homes.home(name)
        listed = list(runs)
        pack: Pack | None = None
        if len(listed) == 1:
            with contextlib.suppress(OSError, StateDamaged):  # the run is complete without it
                pack = self._packs[name] = Pack(warm_start.of_run(listed[0]))
        if pack is not None and listed[0].stat().st_size <= _copied_bytes_max(self.disk):
            with contextlib.suppress(OSError, StateDamaged):
                _copy(self.disk, home, pack, keep)
                return
            # The run is complete; drop the pairs copied before the damage was found.
            self._packs.pop(name)
            self.disk.drop(home)
        if not listed:
            return
        family = self.disk.own(home).family
        for path in listed:
            family.ingest(path)
        if keep is not None:
            self.disk.clear(home, keep, {})

    def export(
        self, view_id: int | str, path: Path, keep: Callable[[str], bool] = lambda _: True
    ) -> int:
        """Write the states of a view that match ``keep``, as of the last checkpoint, as a run.

        Returns the number of pairs.  From any thread.  REQUIRES: no checkpoint of the view is
        written meanwhile.
        """
        found = self.pieces(view_id)
        return write_run(path, {name: found[name] for name in found if keep(name)})

    def pieces(self, view_id: int | str) -> dict[str, Pieces]:
        """Return the pairs of each state of a view, as of the last checkpoint; see ``export``."""
        place = self.disk.place(self._homes.home(f"v{view_id}"))
        return {name: _pieces(place.section(name)) for name in place.states()}

    def regulate(self, worked_s: float = 0.0) -> bool:
        """Spill or load states between batches, so that memory is used but within the budget.

        Takes a few milliseconds, or as long as the last batch took (``worked_s``).  Returns whether
        an idle caller should call again soon.  States not used since the last call are skipped.
        """
        self.schedule.step(worked_s)
        if self._checkpoint is not None and self._regulator.full > 1:
            self._checkpoint.pace.hurried = True
        return self.schedule.more

    def limit(self, memory_bytes: int) -> None:
        """Change the memory budget, between two batches; ``regulate`` spills what is too much."""
        budget = max(memory_bytes, _BUDGET_BYTES_MIN)
        self._regulator.budget_bytes = int(budget * _MAPS_SHARE)
        self.disk.limit(int(budget * _CACHE_SHARE))

    @property
    def crowded(self) -> bool:
        """Whether batches should wait because memory is full and is about to be freed."""
        return self._regulator.crowded and (self.schedule.more or self._checkpoint is not None)

    @property
    def memory_bytes(self) -> int:
        """Bytes of all states in memory."""
        return sum(tier.map.live_bytes for tier in self._tiers())

    def memory(self) -> dict[str, tuple[int, int | None]]:
        """Return bytes in use and limit (None: not known) by purpose; from any thread."""
        maps = [tier.map for store in list(self._stores.values()) for tier in store.listed()]
        live = sum(one.live_bytes for one in maps)
        return {
            "states": (live, self._regulator.budget_bytes),
            "gaps between states": (sum(one.mapped_bytes for one in maps) - live, None),
            "RocksDB": self.disk.memory,
        }

    @property
    def checkpoint_due(self) -> bool:
        """Whether the writes since the last checkpoint take so much memory that one is needed."""
        used = self.schedule.used()
        written = sum(tier.pending_bytes for store in used for tier in store.listed())
        return written > _PENDING_SHARE * self._regulator.budget_bytes

    def _tiers(self) -> list[Tier]:
        return [tier for s in list(self._stores.values()) for tier in s.listed()]

    def demand_rest(self) -> None:
        """Raise BugError if a checkpoint is running: it changes column families."""
        if self._checkpoint is not None:
            raise checkpoint.under_way()

    def forget(self, tiers: Iterable[Tier]) -> None:
        """Forget tiers that are about to be closed."""
        self.schedule.touch_none()
        self._regulator.forget(tiers)

    def _retract(self, name: str) -> None:
        if name not in self._stores:
            return
        self.demand_rest()
        store = self._stores.pop(name)
        self.schedule.leave(store)
        self.forget(store.tiers.values())
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
                self.schedule.leave(store)
        except HeadraceError:
            for tier, snapshot in parts:
                tier.release(snapshot)
            for store, _ in stores:
                self.schedule.touch(store)
            raise
        self._checkpoint = RocksCheckpoint(self.disk, list(stores), parts, meta)
        return self._checkpoint

    def end_checkpoint(self, done: RocksCheckpoint) -> None:
        """See ``VersionedDatabase``."""
        if done is not self._checkpoint:
            raise checkpoint.under_way()
        self._checkpoint = None
        for store, _ in done.stores:
            self.schedule.touch(store)
        if done.written:
            for store, txid in done.stores:
                store.durable = txid
                if store.txid == txid:
                    self.schedule.leave(store)  # all its writes are durable
            if self._regulator.crowded:
                self.schedule.hurry()
        for tier, snapshot in done.parts:
            if done.written:
                tier.retire(snapshot)
            else:
                tier.release(snapshot)

    def put_meta(self, meta: Meta, *, sync: bool) -> None:
        """See ``VersionedDatabase``."""
        self.disk.write([], meta, sync=sync)

    def sync(self) -> None:
        """Sync all metadata that was written; from any thread."""
        self.disk.write([], {_SYNCED: b""}, sync=True)

    def get_meta(self, key: bytes) -> bytes | None:
        """Return one entry of the metadata."""
        return self.disk.get_meta(key)

    def scan_meta(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return all entries whose key starts with ``prefix``, in key order."""
        return self.disk.scan_meta(prefix)

    def close(self) -> None:
        """Close; nothing made from this database may be used any more.

        Writes that are in no written checkpoint are lost.  REQUIRES: none is being written.
        """
        if self._checkpoint is not None:
            self.end_checkpoint(self._checkpoint)
        for name in list(self._stores):
            self._retract(name)
        self.disk.close()


def _copied_bytes_max(disk: Disk) -> int:
    """Return the size up to which to copy a run costs less than one more column family."""
    return max(_COPIED_BYTES, disk.families * _COPIED_BYTES_PER_FAMILY)


def _copy(disk: Disk, home: str, pack: Pack, keep: Callable[[str], bool] | None) -> None:
    """Write the pairs of a pack into the shared family, a bounded number at a time."""
    place = disk.place(home)
    for state in pack.states:
        if keep is not None and not keep(state):
            continue
        section = place.section(state)
        for keys, values in pack.pieces(state):
            disk.write([(section, packed.pack(keys), packed.nullable(values))], {}, sync=False)


def _pieces(section: Section) -> Pieces:
    groups = section.groups(0, layout.GROUPS - 1)
    try:
        while (piece := groups.read(_PAIRS_PER_PIECE, _BYTES_PER_PIECE))[0]:
            yield piece
    finally:
        groups.close()
