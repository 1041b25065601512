"""State in RocksDB: one database per worker, one column family per state of each view.

Writes stay in an overlay in memory until ``RocksDatabase.checkpoint`` writes those of all views,
together with metadata, in one atomic write batch; ``rollback`` drops the overlay.  Killing the
process at any moment leaves the last checkpoint (the write-ahead log is always on).

* Invariant 1: the database holds only checkpointed states: nothing else writes to it, except
  ``ingest``, which makes all states of a view that has none yet.
* Invariant 2: no stored weight is 0 or negative; checkpoint proves it before it writes.
* Invariant 3: what cannot be read is never taken for absent (H22): each block has a checksum,
  and whoever meets the end of an iterator asks for its status.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import rocksdict

from headrace.errors import BugError, HeadraceError, StateDamaged, TransientError
from headrace.kernels import overlay as kernel
from headrace.state import layout

_ROWS_PER_CHUNK: Final = 4096
_MIB: Final = 1024 * 1024
_CACHE_BYTES: Final = 256 * _MIB
_MEMTABLE_BYTES: Final = 16 * _MIB
_MEMTABLES_BYTES_MAX: Final = 256 * _MIB
_WAL_BYTES_MAX: Final = 512 * _MIB
_BLOOM_BITS: Final = 10
_NOTE: Final = "MANIFEST.length"
_DAMAGED: Final = (
    "Corruption: ",
    "IO error: No such file or directory",
    "Invalid argument: ",
)
"""RocksDB's status codes, which its Python binding gives as the text's beginning only."""


Diffs = dict[bytes, dict[bytes, int]]
"""key -> row -> what is added to its weight (never 0)."""

Meta = Mapping[bytes, bytes | None]
"""Small metadata to write; None deletes."""

Writes = tuple[str, list[tuple[bytes, bytes | None]]]
"""Name of a column family, and the (key, value or None to delete) to write into it."""


class RocksMap:
    """A ``MapState``: an overlay of pending values over one column family."""

    def __init__(self, base: _Base) -> None:
        self._base = base
        self._pending: dict[bytes, bytes | None] = {}
        self._aside: dict[bytes, bytes | None] = {}

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ``MapState``."""
        wanted = list(keys)
        values, missing = kernel.look_up(self._pending, wanted)
        if missing and self._aside:
            older, still = kernel.look_up(self._aside, [wanted[i] for i in missing])
            for i, value in zip(missing, older, strict=True):
                values[i] = value
            missing = [missing[i] for i in still]
        if not missing:
            return values
        missing.sort(key=wanted.__getitem__)
        found = self._base.get([wanted[i] for i in missing])
        for i, value in zip(missing, found, strict=True):
            values[i] = value
        return values

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """See ``MapState``."""
        self._pending.update(zip(keys, values, strict=True))

    def scan(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """See ``MapState``; the state as it is when the scan starts."""
        pending = sorted((self._aside | self._pending).items())
        keys: list[bytes] = []
        values: list[bytes] = []
        for key, value in _merge(self._base.pairs(), pending):
            keys.append(key)
            values.append(value)
            if len(keys) == _ROWS_PER_CHUNK:
                yield keys, values
                keys, values = [], []
        if keys:
            yield keys, values

    def writes(self) -> list[tuple[bytes, bytes | None]]:
        """Pending (physical key, value or None to delete), in key order."""
        return sorted(self._pending.items())

    def forget(self) -> None:
        """Drop the overlay: its writes were stored, or are taken back."""
        self._pending.clear()

    def set_aside(self, writes: list[tuple[bytes, bytes | None]]) -> None:
        """A checkpoint of everything pending begins; what comes now is pending anew."""
        self._aside, self._pending = dict(writes), {}

    def end(self, *, stored: bool) -> None:
        """The checkpoint has ended; if it was not stored, its writes are pending again."""
        if not stored:
            self._pending = self._aside | self._pending
        self._aside = {}


class RocksIndex:
    """An ``IndexState``: an overlay of weight diffs over one column family.

    While a checkpoint is written, its diffs stand aside, under those that came later, and the
    iterator still shows the state before it.
    """

    def __init__(self, base: _Base) -> None:
        self._base = base
        self._pending: Diffs = {}
        self._aside: Diffs = {}
        self._stored: dict[bytes, bytes | None] = {}

    def scan_many(
        self, keys: Sequence[bytes]
    ) -> tuple[list[int], list[bytes], list[int]]:
        """See ``IndexState``."""
        wanted = list(keys)
        with _reading(self._base.name):
            return kernel.scan_over(self._base.iterator(), self._over(wanted), wanted)

    def add_many(
        self, keys: Sequence[bytes], rows: Sequence[bytes], weights: Sequence[int]
    ) -> None:
        """See ``IndexState``; a blind write: the base is read at the checkpoint."""
        kernel.add(self._pending, list(keys), list(rows), list(weights))

    def weight_many(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> list[int]:
        """See ``IndexState``."""
        wanted = [key + row for key, row in zip(keys, rows, strict=True)]
        order = sorted(range(len(wanted)), key=wanted.__getitem__)
        out = [0] * len(wanted)
        none: dict[bytes, int] = {}
        for i, value in zip(
            order, self._before([wanted[i] for i in order]), strict=True
        ):
            pending = self._pending.get(keys[i], none).get(rows[i], 0)
            out[i] = pending + (0 if value is None else layout.decode_weight(value))
        return out

    def extreme_many(self, keys: Sequence[bytes], *, last: bool) -> list[bytes | None]:
        """See ``IndexState``."""
        wanted = list(keys)
        ends = [layout.prefix_end(key) for key in wanted] if last else []
        with _reading(self._base.name):
            return kernel.extreme_over(
                self._base.iterator(), self._over(wanted), wanted, ends, last
            )

    def writes(self) -> list[tuple[bytes, bytes | None]]:
        """Pending (physical key, new weight or None to delete), in key order.

        Raises:
            BugError: a weight would be negative.
        """
        diffs = sorted(
            (key + row, weight)
            for key, entry in self._pending.items()
            for row, weight in entry.items()
        )
        out: list[tuple[bytes, bytes | None]] = []
        stored = self._before([physical for physical, _ in diffs])
        for (physical, diff), value in zip(diffs, stored, strict=True):
            weight = diff + (0 if value is None else layout.decode_weight(value))
            if weight < 0:
                raise BugError(
                    f'a row in state "{self._base.name}" gets weight {weight}'
                )
            out.append((physical, layout.encode_weight(weight) if weight else None))
        return out

    def forget(self) -> None:
        """Drop the overlay: its writes were stored, or are taken back."""
        self._pending.clear()

    def set_aside(self, writes: list[tuple[bytes, bytes | None]]) -> None:
        """A checkpoint of everything pending begins; what comes now is pending anew."""
        self._base.iterator()
        self._aside, self._pending = self._pending, {}
        self._stored = dict(writes)

    def end(self, *, stored: bool) -> None:
        """The checkpoint has ended; if it was not stored, its diffs are pending again."""
        if not stored:
            pending, self._pending = self._pending, self._aside
            for key, entry in pending.items():
                n = len(entry)
                kernel.add(self._pending, [key] * n, [*entry], [*entry.values()])
        self._aside, self._stored = {}, {}

    def _over(self, keys: list[bytes]) -> Diffs:
        """Diffs over what the iterator shows, at least those of ``keys``."""
        if not self._aside:
            return self._pending
        out: Diffs = {}
        for key in keys:
            total = dict(self._aside.get(key, {}))
            for row, weight in self._pending.get(key, {}).items():
                total[row] = total.get(row, 0) + weight
            out[key] = {row: weight for row, weight in total.items() if weight}
            if not out[key]:
                del out[key]
        return out

    def _before(self, physical: list[bytes]) -> list[bytes | None]:
        """Weights without those pending: with the checkpoint that is being written."""
        values = self._base.get(physical)
        if self._stored:
            stored = self._stored
            for i, key in enumerate(physical):
                if key in stored:
                    values[i] = stored[key]
        return values


class RocksStore:
    """All states of one view (a ``StateStore``); made by ``RocksDatabase.view``."""

    def __init__(self, database: RocksDatabase, prefix: str, txid: int) -> None:
        self._database = database
        self._prefix = prefix
        self._states: dict[str, RocksMap | RocksIndex] = {}
        self._prepared: dict[str, list[tuple[bytes, bytes | None]]] = {}
        self._txid = self._stored_txid = txid
        self._in_flight: list[int] = []

    def map(self, name: str) -> RocksMap:
        """See ``StateStore``."""
        return self._state(name, RocksMap)

    def index(self, name: str) -> RocksIndex:
        """See ``StateStore``."""
        return self._state(name, RocksIndex)

    def begin(self, txid: int) -> None:
        """See ``VersionedStore``."""
        if self._in_flight and txid <= self._in_flight[-1]:
            raise BugError(f"txid {txid} begins after {self._in_flight[-1]}")
        self._prepared = {}
        self._in_flight.append(txid)

    @property
    def txid(self) -> int:
        """The txid that ``rollback`` goes back to."""
        return self._txid

    def commit(self, txid: int) -> None:
        """See ``VersionedStore``."""
        if not self._in_flight or self._in_flight[0] != txid:
            raise BugError(f"txid {txid} is not the next to commit")
        del self._in_flight[0]

    def rollback(self, txid: int = 0) -> int:
        """See ``VersionedStore``; everything since the last checkpoint goes."""
        self._prepared = {}
        self._in_flight.clear()
        for state in self._states.values():
            state.forget()
        return self._txid

    def prepare(self) -> None:
        """See ``VersionedStore``."""
        self._prepared = {
            name: state.writes()
            for name, state in self._states.items()
            if isinstance(state, RocksIndex)  # a map's writes need nothing of the base
        }

    def set_aside(self, txid: int) -> Iterator[Writes]:
        """Begin the checkpoint of ``txid``: what is pending now is what it writes."""
        if self._in_flight:
            raise BugError(f"a checkpoint of {txid} while {self._in_flight} run")
        for name, state in self._states.items():
            ready = self._prepared.get(name)
            writes = state.writes() if ready is None else ready
            state.set_aside(writes)
            yield self._prefix + name, writes
        self._prepared = {}
        self._txid = txid

    def end(self, *, stored: bool) -> None:
        """End the checkpoint that ``set_aside`` began."""
        if stored:
            self._stored_txid = self._txid
        else:
            self._txid = self._stored_txid
        for name, state in self._states.items():
            state.end(stored=stored)
            self._database.base(self._prefix + name).refresh()

    def pending(self) -> Iterator[Writes]:
        """Pending writes per column family."""
        for name, state in self._states.items():
            ready = self._prepared.get(name)
            yield self._prefix + name, state.writes() if ready is None else ready

    def dump(self) -> dict[str, layout.Pairs]:
        """Every checkpointed pair of every state, in physical key order (for tests)."""
        return {
            name: list(self._database.base(self._prefix + name).pairs())
            for name in sorted(self._database.names(self._prefix))
        }

    _State = TypeVar("_State", RocksMap, RocksIndex)

    def _state(self, name: str, kind: type[_State]) -> _State:
        state = self._states.get(name)
        if state is None:
            state = kind(self._database.base(self._prefix + name))
            self._states[name] = state
        if not isinstance(state, kind):
            raise BugError(f'state "{name}" is used both as a map and as an index')
        return state


class Checkpoint:
    """A checkpoint under way: ``RocksDatabase.begin_checkpoint`` makes it."""

    def __init__(
        self,
        database: RocksDatabase,
        stores: list[RocksStore],
        writes: list[Writes],
        meta: Meta,
    ) -> None:
        self.stores: Final = stores
        self.written = False
        self._database = database
        self._writes = writes
        self._meta = meta

    def write(self, *, sync: bool) -> None:
        """See ``contract.Checkpoint``."""
        self._database.write(self._writes, self._meta, sync=sync)
        self.written = True


class RocksDatabase:
    """The database of one worker: states of its views, and small metadata.

    Metadata lives in the default column family.  One thread uses it; only ``Checkpoint.write``
    may run on another at the same time.
    """

    def __init__(self, path: Path) -> None:
        """Open the database at ``path``, or make it.

        Raises:
            OSError: the files cannot be used now: another process has them open, say.
            StateDamaged: they do not hold what was written.
        """
        self.path: Final = path
        self._cache = rocksdict.Cache(_CACHE_BYTES)
        self._noting = threading.Lock()
        self._bases: dict[str, _Base] = {}
        path.mkdir(parents=True, exist_ok=True)
        self._noted = _check_manifest(path)
        try:
            names = (
                rocksdict.Rdict.list_cf(str(path))
                if (path / "CURRENT").exists()
                else []
            )
            names = [name for name in names if name != "default"]
            self._db = rocksdict.Rdict(
                str(path),
                self._options(),
                column_families={name: self._options() for name in names},
            )
        except Exception as error:
            # rocksdict raises bare Exception whatever RocksDB says.
            if str(error).startswith(_DAMAGED):
                raise StateDamaged(
                    f'the state database "{path}" is damaged', detail=f"{error}."
                ) from error
            raise OSError(
                f'cannot open the state database "{path}": {error}'
            ) from error
        for name in names:
            self._bases[name] = _Base(name, self._db)

    def view(self, view_id: int | str, txid: int = 0) -> RocksStore:
        """The states of one view, as of the last checkpoint, which was of ``txid``."""
        return RocksStore(self, f"v{view_id}/", txid)

    def drop_view(self, view_id: int | str) -> None:
        """Drop all states of a view; nothing happens if it has none."""
        for name in self.names(f"v{view_id}/", short=False):
            self._bases.pop(name).close()
            self._db.drop_column_family(name)

    def ingest(self, view_id: int | str, runs: dict[str, list[Path]]) -> None:
        """Make the states of a view out of runs of ``write_run``.

        States the view had before are dropped first, so a repetition after a crash is harmless.
        The files are linked or copied and stay.  REQUIRES: no key is in two runs of one state.
        """
        self.drop_view(view_id)
        options = rocksdict.IngestExternalFileOptions()
        options.set_move_files(False)
        for name in sorted(runs):
            base = self.base(f"v{view_id}/{name}")
            if runs[name]:
                base.ingest([str(path) for path in runs[name]], options)

    def begin_checkpoint(
        self, stores: Sequence[tuple[RocksStore, int]], meta: Meta
    ) -> Checkpoint:
        """See ``VersionedDatabase``.

        NB: no txid of the stores may be in flight, and their weights are checked here.
        """
        writes: list[Writes] = []
        begun: list[RocksStore] = []
        try:
            for store, txid in stores:
                begun.append(store)
                writes += store.set_aside(txid)
        except HeadraceError:
            for store in begun:
                store.end(stored=False)
            raise
        return Checkpoint(self, begun, writes, dict(meta))

    def end_checkpoint(self, checkpoint: Checkpoint) -> None:
        """See ``VersionedDatabase``."""
        for store in checkpoint.stores:
            store.end(stored=checkpoint.written)

    def put_meta(self, meta: Meta, *, sync: bool) -> None:
        """See ``VersionedDatabase``."""
        self.write([], meta, sync=sync)

    def checkpoint(
        self, stores: Iterable[RocksStore], meta: Meta, *, sync: bool
    ) -> None:
        """Begin, write and end a checkpoint of everything pending in ``stores``."""
        done = self.begin_checkpoint([(store, store.txid) for store in stores], meta)
        try:
            done.write(sync=sync)
        finally:
            self.end_checkpoint(done)

    def write(self, writes: list[Writes], meta: Meta, *, sync: bool) -> None:
        """Store ``writes`` and ``meta`` (None deletes): all or nothing; from any thread.

        ``sync`` waits for the disk; without it a crash of the machine (not of the process) may
        lose what was written, never a part of it.
        """
        batch = rocksdict.WriteBatch(raw_mode=True)
        for name, entries in writes:
            if entries:
                self._fill(batch, self._bases[name].handle, entries)
        self._fill(batch, None, list(meta.items()))
        options = rocksdict.WriteOptions()
        options.sync = sync
        with _writing():
            self._db.write(batch, options)
        if sync:
            with self._noting:
                self._noted = _note_manifest(self.path, self._noted)

    def get_meta(self, key: bytes) -> bytes | None:
        """One entry of the metadata."""
        with _reading("metadata"):
            value: bytes | None = self._db.get(key)
        return value

    def scan_meta(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """All entries whose key starts with ``prefix``, in key order."""
        out: list[tuple[bytes, bytes]] = []
        for key, value in _pairs(self._db, "metadata", prefix):
            if not key.startswith(prefix):
                break
            out.append((key, value))
        return out

    def base(self, name: str) -> _Base:
        """The column family of that full name, made when missing."""
        base = self._bases.get(name)
        if base is None:
            self._db.create_column_family(name, self._options())
            base = self._bases[name] = _Base(name, self._db)
        return base

    def names(self, prefix: str, *, short: bool = True) -> list[str]:
        """Names of the column families that start with ``prefix`` (cut off if ``short``)."""
        start = len(prefix) if short else 0
        return [name[start:] for name in self._bases if name.startswith(prefix)]

    def close(self) -> None:
        """Close; nothing made from this database may be used any more."""
        # The lock of the database is released only when its last iterator and handle are gone.
        for base in self._bases.values():
            base.close()
        self._bases.clear()
        self._db.close()

    def _fill(
        self, batch: Any, handle: Any, writes: list[tuple[bytes, bytes | None]]
    ) -> None:
        for key, value in writes:
            if value is None:
                batch.delete(key, handle)
            else:
                batch.put(key, value, handle)

    def _options(self) -> Any:
        return _options(self._cache)


class _Base:
    """One column family as of the last checkpoint."""

    def __init__(self, name: str, db: Any) -> None:
        self.name = name
        self._column: Any = db.get_column_family(name)
        self.handle: Any = db.get_column_family_handle(name)
        self._iterator: Any = None

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Values of ``keys``, which should be in order."""
        if not keys:
            return []
        with _reading(self.name):
            values: list[bytes | None] = self._column.get(keys)
        return values

    def iterator(self) -> Any:
        """An iterator, shared by scans until the next checkpoint; it sees none of its writes."""
        if self._iterator is None:
            self._iterator = self._column.iter()
        return self._iterator

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """All pairs in key order, by an iterator of their own."""
        yield from _pairs(self._column, self.name, b"")

    def ingest(self, paths: list[str], options: Any) -> None:
        """Add the pairs of sorted files."""
        self._column.ingest_external_file(paths, options)
        self.refresh()

    def refresh(self) -> None:
        """Let the next scan see the latest checkpoint; an old iterator pins files."""
        self._iterator = None

    def close(self) -> None:
        """Give everything back."""
        self._iterator = None
        self.handle = None
        self._column.close()


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    """Errors of RocksDB as ours: rocksdict raises bare Exception."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        if str(error).startswith(_DAMAGED):
            raise StateDamaged(
                f'state "{name}" is damaged', detail=f"{error}."
            ) from error
        if type(error) is not Exception:
            raise  # not RocksDB's
        raise TransientError(
            f'state "{name}" cannot be read now: {error}', sqlstate="58030"
        ) from error


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Errors of RocksDB as ours: a full disk may have room again, damage stays."""
    try:
        yield
    except Exception as error:
        if type(error) is not Exception:
            raise
        if str(error).startswith(_DAMAGED):
            raise StateDamaged(
                "the state database is damaged", detail=f"{error}."
            ) from error
        full = "No space left" in str(error) or "quota" in str(error)
        raise TransientError(
            f"the state cannot be written now: {error}",
            sqlstate="53100" if full else "58030",
        ) from error


def _pairs(column: Any, name: str, start: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Pairs from key ``start`` on; the binding's own ``items`` ends silently at an error."""
    with _reading(name):
        iterator = column.iter()
        iterator.seek(start)
        while iterator.valid():
            yield iterator.key(), iterator.value()
            iterator.next()
        iterator.status()


def _manifest(path: Path) -> tuple[str, int]:
    """Name and length of the manifest, RocksDB's log of which files count."""
    name = (path / "CURRENT").read_text().strip()
    return name, (path / name).stat().st_size


def _note_manifest(path: Path, noted: tuple[str, int] | None) -> tuple[str, int]:
    """Write down how long the manifest is: it only grows, or gets a higher number."""
    now = _manifest(path)
    if now != noted:
        draft = path / f"{_NOTE}.new"
        with draft.open("w") as file:
            file.write(f"{now[0]} {now[1]}\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path / _NOTE)
    return now


def _check_manifest(path: Path) -> tuple[str, int] | None:
    """The length noted last.

    RocksDB takes a manifest that was cut for one whose last write was torn, and would open an
    earlier set of files, some of which may be newer than others.

    Raises:
        StateDamaged: it is shorter now.
    """
    if not (path / _NOTE).exists():
        return None
    words = (path / _NOTE).read_bytes().decode(errors="replace").split()
    if len(words) != 2 or not words[1].isdecimal():
        raise StateDamaged(f'the state database "{path}" is damaged: {_NOTE}')
    noted = (words[0], int(words[1]))
    try:
        now = _manifest(path)
    except (OSError, ValueError) as error:
        raise StateDamaged(
            f'the state database "{path}" is damaged', detail=f"{error}."
        ) from error
    # Names have a number of at least six digits.
    older = (len(now[0]), now[0]) < (len(noted[0]), noted[0])
    if older or (now[0] == noted[0] and now[1] < noted[1]):
        raise StateDamaged(
            f'the state database "{path}" is damaged: its manifest is shorter than it was'
        )
    return noted


def write_run(path: Path, pairs: Iterable[tuple[bytes, bytes]]) -> int:
    """Write an SST file of ``pairs`` in ascending key order; returns how many.

    Without pairs no file is written (RocksDB knows no empty one) and the answer is 0.
    """
    writer: Any = None
    count = 0
    for key, value in pairs:
        if writer is None:
            writer = rocksdict.SstFileWriter(_options(None))
            writer.open(str(path))
        writer[key] = value
        count += 1
    if writer is not None:
        writer.finish()
    return count


def _options(cache: Any | None) -> Any:
    """Options of every column family; the reasons are in ``state/README.md``."""
    table = rocksdict.BlockBasedOptions()
    table.set_bloom_filter(_BLOOM_BITS, False)
    table.set_block_size(16 * 1024)
    table.set_format_version(5)
    if cache is not None:
        table.set_block_cache(cache)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_write_buffer_size(_MEMTABLE_BYTES)
    options.set_db_write_buffer_size(_MEMTABLES_BYTES_MAX)
    options.set_max_total_wal_size(_WAL_BYTES_MAX)
    options.set_keep_log_file_num(4)
    return options


def _merge(
    base: Iterator[tuple[bytes, bytes]], pending: list[tuple[bytes, bytes | None]]
) -> Iterator[tuple[bytes, bytes]]:
    """Base pairs overlaid by pending ones, in key order; None deletes."""
    at = 0
    for key, value in base:
        while at < len(pending) and pending[at][0] < key:
            new_key, new = pending[at]
            if new is not None:
                yield new_key, new
            at += 1
        if at < len(pending) and pending[at][0] == key:
            new = pending[at][1]
            at += 1
            if new is not None:
                yield key, new
        else:
            yield key, value
    for key, new in pending[at:]:
        if new is not None:
            yield key, new
