"""The replay of a bundle: its batches, processed as the engine does, over the states in it.

Units are processed by the engine's own ``Processor``, level by level.  When a unit has the txid of
its last mark, its states are compared with those of the bundle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace.collections import plan, subplans
from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.expressions.pool import Pool
from headrace.forwarder.batcher import Batch
from headrace.kernels.pgoutput import Changes, Decoder
from headrace.network.messages import UnitRecord
from headrace.postgres.numbering import Observation, StreamAttribute, VisibleXids
from headrace.process import bounds
from headrace.process.memory_reservations import GRANT_BYTES_MIN, Grants
from headrace.replay.bundle import (
    BatchEntry,
    Bundle,
    Digest,
    TableEntry,
    UnitEntry,
    UnitResult,
)
from headrace.replay.compare import StateDifference, differences
from headrace.replay.evaluation import NO_SERVER
from headrace.runtime.batches import Outcome, Processor
from headrace.runtime.columns import Columns, Description, types_of
from headrace.runtime.crash_attribution import CrashAttribution
from headrace.runtime.incoming import StreamFrames
from headrace.runtime.positions import StateMark
from headrace.runtime.views import Unit
from headrace.runtime.worker_batches import Placed
from headrace.state.rocks import RocksDatabase, write_run
from headrace.types import WEIGHT

_HASH_BYTES: Final = 16
_MODULUS: Final = 1 << (8 * _HASH_BYTES)


@dataclass(slots=True)
class UnitReplay:
    """The replay of one unit."""

    entry: UnitEntry
    unit: Placed
    diffs: list[Digest] = field(default_factory=list)
    stopped: tuple[int, HeadraceError] | None = None
    """Txid that it could not process, and why."""
    different: list[StateDifference] | None = None
    """Differences of its last states; None: not compared."""

    @property
    def result(self) -> UnitResult:
        """The result, for a bundle."""
        stopped = None if self.stopped is None else (self.stopped[0], self.stopped[1].code)
        return UnitResult(self.entry.id, self.diffs, stopped)


class Replay:
    """One replay, in a folder of its own.  Use: ``load``, then ``run``, then ``close``."""

    def __init__(
        self, bundle: Bundle, folder: Path, entries: Sequence[UnitEntry], dsn: str
    ) -> None:
        """Take the units to replay, each after those that it reads.

        ``dsn``: a server that evaluates expressions; '': none of the units needs one.
        """
        self._bundle: Final = bundle
        self._folder: Final = folder
        self._settings: Final = _settings(bundle.manifest.settings, folder, dsn)
        self._db: Final = RocksDatabase(folder / "state", memory_bytes=self._settings.memory.states)
        self._evaluators: Final = Pool(folder=None)
        self._processor: Final = Processor(
            self._settings,
            CrashAttribution(folder),
            lambda _: {},
            self._evaluators,
            Grants(max(self._settings.memory.batches, GRANT_BYTES_MIN), GRANT_BYTES_MIN),
        )
        self.units: Final = {entry.id: UnitReplay(entry, _unit(entry.record)) for entry in entries}
        self._decoder: Final = Decoder()
        self._tables: Final = _Tables(bundle.manifest.tables)

    def close(self) -> None:
        """End the threads and connections, and close the database."""
        self._processor.close()
        self._evaluators.close()
        self._db.close()

    def load(self) -> None:
        """Load the first states of all units."""
        for done in self.units.values():
            entry, unit = done.entry, done.unit
            path = self._folder / f"{entry.id}.run"
            if _write_run(path, self._bundle, entry):
                self._db.ingest(entry.id, [path])
                path.unlink()
            store = self._db.view(entry.id, entry.begin)
            unit.restore(store, StateMark(entry.begin, 0, 0))
            if entry.end == entry.begin:
                self._compare(done)

    def run(self, progress: Callable[[int], None]) -> None:
        """Process all batches; call ``progress`` with the txid of each.

        Raises:
            TransientError: a server is out of reach.
            BundleError: the bundle is damaged.
        """
        records = {entry.txid: entry for entry in self._bundle.batches}
        for txid, messages in self._bundle.frames():
            record = records.get(txid)
            if record is None:
                continue
            units = self._taking_part(txid)
            # The decoder must see every batch, which may describe a table.
            frames = self._frames(record, messages, [done.unit for done in units])
            if units:
                self._process(txid, units, frames)
            else:
                for _ in frames:
                    pass
            progress(txid)

    def _taking_part(self, txid: int) -> list[UnitReplay]:
        """Return the units that process a batch: to be compared later, or for their readers."""
        needed: set[int] = set()
        out = []
        for done in reversed(self.units.values()):
            entry, end = done.entry, done.entry.end
            # Without last states there is nothing to compare, and all batches are processed.
            wanted = end is None or txid <= end or entry.id in needed
            if wanted and done.stopped is None and done.unit.mark.txid < txid:
                needed.update(entry.record.feeds.values())
                out.append(done)
        return out[::-1]

    def _frames(
        self, record: BatchEntry, messages: list[bytes], units: Sequence[Unit]
    ) -> StreamFrames:
        batch = Batch(record.end_lsn, record.commit_time_us, record.transactions, record.messages)
        batch.txid, batch.oldest_us = record.txid, record.oldest_us
        batch.parts = [messages] if messages else []
        instant, types = record.commit_time_us, types_of([unit.own for unit in units])
        return StreamFrames(batch, self._decoder, record.txid, 0, self._tables, instant, types)

    def _process(self, txid: int, units: Sequence[UnitReplay], frames: StreamFrames) -> None:
        levels = _levels([done.unit for done in units])
        outcome = self._processor.run(
            [done.unit for done in units], frames, elsewhere=_Levels(levels)
        )
        for done in units:
            unit = done.unit
            if unit.id in outcome.failed:
                done.stopped = (txid, outcome.failed[unit.id])
                unit.release()
                continue
            diffs = outcome.diffs.get(unit.id)
            if diffs is not None and diffs.num_rows:
                done.diffs.append(digest(txid, diffs))
            unit.commit(StateMark(txid, 0, 0))
            if txid == done.entry.end:
                self._compare(done)
        if self._db.checkpoint_due or self._db.crowded:
            self._checkpoint([done for done in units if done.stopped is None])
        self._db.regulate()

    def _checkpoint(self, units: Sequence[UnitReplay]) -> None:
        stores = [(done.unit.here, done.unit.mark.txid) for done in units]
        made = self._db.begin_checkpoint(stores, {})
        made.write(sync=False)
        self._db.end_checkpoint(made)
        for done in units:
            done.unit.checkpointed(done.unit.mark)

    def _compare(self, done: UnitReplay) -> None:
        """Compare the states of a unit with those at the end of the bundle."""
        self._checkpoint([done])
        bundle, entry = self._bundle, done.entry
        done.different = differences(
            bundle.begin(entry), bundle.end(entry), self._db.pieces(entry.id)
        )


class _Tables:
    """The descriptions of tables (``incoming.Describer``)."""

    def __init__(self, tables: Sequence[TableEntry]) -> None:
        self._observed: Final = {table.oid: observations(table) for table in tables}
        self._columns: Final = Columns(lambda table, _: self._observed.get(table, []))

    def described(self, found: Sequence[Description]) -> dict[int, HeadraceError]:
        self._columns.describe(found)
        return {}

    def numbered(self, changes: Changes, xid: int, read: Any) -> pa.RecordBatch:
        return self._columns.numbered(changes, xid, read)


def observations(table: TableEntry) -> list[Observation]:
    """Return the observations of a table's columns."""
    return [
        Observation(
            VisibleXids.of(one.seen), tuple(StreamAttribute(*entry) for entry in one.attributes)
        )
        for one in table.observed
    ]


@dataclass(frozen=True, slots=True)
class _Levels:
    """The order of units within a batch (``batches.Elsewhere``): each after those that it reads."""

    levels: Sequence[Sequence[Unit]]
    units: Sequence[Unit] = ()

    def feeds(self, _: Unit) -> bool:
        """Return True: each unit waits for its level."""
        return True

    def stages(self, _: Sequence[Unit], outcome: Outcome) -> Iterator[Sequence[Unit]]:
        """Yield the units of each level, and pass their diffs on to the next ones."""
        for level in self.levels:
            yield level
            for unit in level:
                if unit.id in outcome.diffs:
                    outcome.sent[unit.id] = [outcome.diffs[unit.id]]


def _levels(units: Sequence[Unit]) -> list[list[Unit]]:
    """Divide units, each after those that it reads, into levels."""
    depths: dict[int, int] = {}
    out: list[list[Unit]] = []
    for unit in units:
        depth = max((depths[f] + 1 for f in unit.feeds.values() if f in depths), default=0)
        depths[unit.id] = depth
        out += [[] for _ in range(depth + 1 - len(out))]
        out[depth].append(unit)
    return out


def _unit(record: UnitRecord) -> Placed:
    # A slow machine must not exceed a limit of time.
    limits = {name: most for name, most in record.limits.items() if name != bounds.TIME}
    return Placed.of_record(msgspec.structs.replace(record, limits=limits))


def _settings(given: Mapping[str, Any], folder: Path, dsn: str) -> Settings:
    """Return settings of this machine, with the limits of the engine that was captured."""
    limits = {n: given[n] for n in bounds.NAMES if isinstance(given.get(n), int)}
    return Settings.of(
        {
            "source": dsn or NO_SERVER,
            "eval_dsn": dsn or NO_SERVER,
            "data_dir": str(folder),
            **limits,
            bounds.TIME: 0,
        }
    )


def _write_run(path: Path, bundle: Bundle, entry: UnitEntry) -> int:
    """Write the first states of a unit as a sorted file; return the number of pairs."""
    found = bundle.begin(entry)
    names = [state.name for state in entry.states]
    current = next(found, None)

    def pieces(name: str) -> Iterator[tuple[list[bytes], list[bytes]]]:
        nonlocal current
        if current is not None and current[0] == name:
            yield from current[1]
            current = next(found, None)

    return write_run(path, {name: pieces(name) for name in names})


def digest(txid: int, diffs: pa.RecordBatch) -> Digest:
    """Return the digest of diffs, which does not depend on the order of their rows."""
    weights = diffs.column(diffs.schema.get_field_index(WEIGHT)).to_pylist()
    columns = [
        diffs.column(place).to_pylist()
        for place, name in enumerate(diffs.schema.names)
        if name != WEIGHT
    ]
    rows = zip(*columns, strict=True) if columns else iter([()] * diffs.num_rows)
    total = 0
    for row, weight in zip(rows, weights, strict=True):
        found = hashlib.blake2b(repr(row).encode("utf-8", "replace"), digest_size=_HASH_BYTES)
        total += weight * int.from_bytes(found.digest(), "big")
    return Digest(txid, diffs.num_rows, f"{total % _MODULUS:0{2 * _HASH_BYTES}x}")


def collection(entry: UnitEntry, state: str) -> str:
    """Return the kind of the collection that has a state, for messages."""
    owner = subplans.owner(state)
    whole = plan.from_json(entry.record.plan)
    inner = [n for node in whole.nodes if isinstance(node, plan.RecursiveSpec) for n in node.step]
    found = [node for node in (*whole.nodes, *inner) if node.id == owner]
    return plan.kind(type(found[0])).lower() if found else "collection"
