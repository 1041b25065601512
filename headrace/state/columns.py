"""Column families of RocksDB: reads, options, and conversion of RocksDB's errors.

Invariant 1: data that cannot be read is never taken for absent (H22): each block has a checksum,
and every reader that reaches the end of an iterator checks its status.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import rocksdict

from headrace.errors import HeadraceError, StateDamaged, TransientError
from headrace.process import thread_pools
from headrace.state import layout
from headrace.state.map import keygroups

MIB: Final = 1024 * 1024
DEFAULT: Final = "default"
"""Family of the metadata."""
SHARED: Final = "shared"
"""Family of all views without a family of their own; no view has this name."""
_WAL_BYTES_MAX: Final = 64 * MIB
EVENTS_S_MAX: Final = 3600
"""Seconds after which RocksDB begins another info log file.

NB: do not limit the bytes instead: each file begins with the options of all families ever made.
Once these alone exceed the limit, each line begins another file.
"""
EVENTS_FILES_MAX: Final = 4
MANIFEST_BYTES_MAX: Final = 16 * MIB
"""Bytes after which RocksDB rewrites the manifest without obsolete entries."""
_NEVER: Final = 1 << 30
_BLOCK_BYTES: Final = 4 * 1024
_BLOOM_BITS: Final = 10
_ARENA_BYTES: Final = 64 * 1024
NODE_BYTES: Final = 64
"""Approximate bytes of an entry in memory besides key and value."""
_PAIRS_PER_READ: Final = 4096
_BYTES_PER_READ: Final = MIB
_PAIRS_PER_FILL: Final = 512
_BYTES_PER_FILL: Final = 256 * 1024
_DAMAGED: Final = ("Corruption: ", "IO error: No such file or directory", "Invalid argument: ")
"""RocksDB's status codes; its Python binding has them only as the beginning of the message."""
_ENTRIES: Final = re.compile(r"# entries=(\d+)")
_FULL: Final = ("No space left on device", "Disk quota exceeded", "File too large")


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory limits of RocksDB in bytes, shared by all column families."""

    cache: Any
    cache_bytes: int
    memtables: Any
    memtable_bytes: int

    @classmethod
    def of(cls, cache_bytes: int) -> Memory:
        """Share ``cache_bytes`` among blocks, indexes, filters and (up to half) memtables."""
        cache = rocksdict.Cache(cache_bytes)
        memtables = rocksdict.WriteBufferManager.new_write_buffer_manager_with_cache(
            cache_bytes // 2, allow_stall=False, cache=cache
        )
        return cls(cache, cache_bytes, memtables, min(16 * MIB, max(MIB, cache_bytes // 8)))


class Family:
    """A column family: states of one view or many as of the last checkpoint."""

    def __init__(self, name: str, db: Any) -> None:
        self.name: Final = name
        self.rows: Any = db.get_column_family(name)
        """RocksDB's own handle for reading."""
        self.handle: Any = db.get_column_family_handle(name)
        """Handle for write batches."""

    def owners(self) -> list[str]:
        """Return the sorted names of views with pairs here; REQUIRES: it is the shared family."""
        out: list[str] = []
        with reading(self.name):
            iterator = self.rows.iter()
            iterator.seek_to_first()
            while iterator.valid():
                owner, end, _ = layout.state_of(iterator.key()).partition(layout.OWNER_END)
                out.append(owner)
                iterator.seek(layout.owner_bounds(owner + end)[1])
            iterator.status()
        return out

    def estimate(self) -> int:
        """Return the estimated size of all pairs in memory, in bytes."""
        count = self.rows.property_int_value("rocksdb.estimate-num-keys") or 0
        size = self.rows.property_int_value("rocksdb.estimate-live-data-size") or 0
        return 2 * int(size) + NODE_BYTES * int(count)

    def entries(self) -> int:
        """Estimate the number of entries in files and memtables, overwritten ones included.

        (``estimate-num-keys`` leaves out the files that existed when the database was opened.)
        """
        names = ("num-entries-active-mem-table", "num-entries-imm-mem-tables")
        with reading(self.name):
            told = str(self.rows.property_value("rocksdb.aggregated-table-properties"))
            loose = sum(self.rows.property_int_value(f"rocksdb.{name}") or 0 for name in names)
        return sum(map(int, _ENTRIES.findall(told))) + int(loose)

    def ingest(self, path: Path) -> None:
        """Add the pairs of a sorted file, which stays.

        The file is linked where possible: RocksDB reads every byte that it copies, under the
        interpreter lock.
        """
        link = path.with_suffix(".link")
        try:
            link.unlink(missing_ok=True)
            os.link(path, link)
        except OSError:
            link = path
        options = rocksdict.IngestExternalFileOptions()
        options.set_move_files(link != path)
        with writing():
            self.rows.ingest_external_file([str(link)], options)

    def flush_soon(self) -> None:
        """Begin to flush the memtable, in the background."""
        with writing():
            self.rows.flush(wait=False)

    @property
    def in_memtable(self) -> bool:
        """Whether some pairs are in memtables only."""
        names = ("num-entries-active-mem-table", "num-immutable-mem-table")
        with reading(self.name):
            return any(self.rows.property_int_value(f"rocksdb.{name}") for name in names)

    def close(self) -> None:
        """Release the handles."""
        self.handle = None
        close(self.rows)


class StatePlace:
    """Location of the states of one view: a family, and the prefix of their names in it."""

    def __init__(self, family: Family, prefix: str) -> None:
        self.family: Final = family
        self.prefix: Final = prefix
        """Empty if the view has its own family."""

    @property
    def bounds(self) -> tuple[bytes, bytes]:
        """Half-open range of its keys; REQUIRES: it has a prefix."""
        return layout.owner_bounds(self.prefix)

    def section(self, state: str) -> Section:
        """Return the section of a state."""
        return Section(self.family, self.prefix, state)

    def states(self) -> list[str]:
        """Return the names of the states that have a pair, in order."""
        out: list[str] = []
        first = self.prefix.encode()
        with reading(self.family.name):
            iterator = self.family.rows.iter()
            iterator.seek(first)
            while iterator.valid() and iterator.key().startswith(first):
                name = layout.state_of(iterator.key())
                out.append(name.removeprefix(self.prefix))
                iterator.seek(layout.section_end(name))
            iterator.status()
        return out

    def empty(self) -> bool:
        """Return whether no state has a pair."""
        first = self.prefix.encode()
        with reading(self.family.name):
            iterator = self.family.rows.iter()
            iterator.seek(first)
            if iterator.valid():
                return not iterator.key().startswith(first)
            iterator.status()
        return True


class Section:
    """One state on disk: the keys of a column family with the prefix of its place and name.

    Callers pass and receive keys without that prefix.
    """

    def __init__(self, family: Family, place: str, state: str) -> None:
        self.family: Final = family
        self.name: Final = f"{place}{state}" if place else f"{family.name}/{state}"
        """For messages."""
        self.shared: Final = bool(place)
        """Whether the family has states of other views."""
        self.prefix: Final = layout.section(place + state)
        self.end: Final = layout.section_end(place + state)
        """Exclusive upper bound of its keys."""
        self._iterator: Any = None

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of physical ``keys``, which should be in order."""
        if not keys:
            return []
        with reading(self.name):
            values: list[bytes | None] = self.family.rows.get(keygroups.prefixed(self.prefix, keys))
        return values

    def iterator(self) -> Any:
        """Return an iterator shared by scans until ``refresh``; it sees no later write."""
        if self._iterator is None:
            self._iterator = self.own_iterator()
        return self._iterator

    def own_iterator(self) -> Any:
        """Return a new iterator over the current pairs."""
        with reading(self.name):
            return keygroups.Within(self.family.rows.iter(), self.prefix, self.end)

    def groups(self, first: int, last: int) -> Groups:
        """Return a reader of the current pairs of key groups ``first`` … ``last``."""
        return Groups(self, first, last)

    def empty(self) -> bool:
        """Return whether there is no pair."""
        with reading(self.name):
            iterator = self.own_iterator()
            iterator.seek(b"")
            if iterator.valid():
                return False
            iterator.status()
        return True

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all pairs in key order, with a separate iterator."""
        iterator = self.own_iterator()
        iterator.seek(b"")
        yield from pairs_from(iterator, self.name)

    def refresh(self) -> None:
        """Let the next scan see the latest checkpoint; an old iterator pins files."""
        self._iterator = None


class Groups:
    """A reader of the pairs of key groups in order, with one call of the binding for each pair.

    The binding's ``items`` ends silently at an error.  So at its end a second iterator, which
    reports errors, looks for a next pair.  It also finds pairs that a checkpoint has added since.
    """

    def __init__(self, section: Section, first: int, last: int) -> None:
        self._section = section
        self._last = last
        self._next = bytes((first,))
        self._items: Any = None

    def read(self, count: int, bytes_max: int) -> tuple[list[bytes], list[bytes]]:
        """Return up to ``count`` pairs or about ``bytes_max`` bytes; empty at the end."""
        section = self._section
        with reading(section.name):
            while True:
                if self._items is None:
                    self._items = section.family.rows.items(from_key=section.prefix + self._next)
                keys, values = keygroups.take_pairs(
                    self._items, section.prefix, self._last, count, bytes_max
                )
                if keys:
                    self._next = keys[-1] + b"\x00"
                    return keys, values
                iterator = section.own_iterator()
                iterator.seek(self._next)
                if not iterator.valid():
                    iterator.status()
                    return [], []
                if iterator.key()[0] > self._last:
                    return [], []
                self._items = None

    def fill(self, into: Any) -> bytes | None:
        """Load the next pairs into a state map; return their last key, None at the end."""
        keys, values = self.read(_PAIRS_PER_FILL, _BYTES_PER_FILL)
        if not keys:
            return None
        into.load(keys, values)
        return keys[-1]

    def close(self) -> None:
        """Release the iterator, which pins files."""
        self._items = None


def close(database: Any) -> None:
    """Close a handle of the binding, which first flushes the log; ignore a failure (disk full).

    The writes lost then are in no checkpoint.
    """
    # The binding raises bare Exception.
    with contextlib.suppress(Exception):
        database.close()


def _damage(error: Exception) -> bool:
    """Return whether stored data is damaged or missing, so that a retry cannot help."""
    return isinstance(error, FileNotFoundError) or str(error).startswith(_DAMAGED)


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Convert errors of RocksDB to ours; rocksdict raises bare Exception."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        if _damage(error):
            raise StateDamaged(f'state "{name}" is damaged', detail=f"{error}.") from error
        if type(error) is not Exception:
            raise  # not RocksDB's
        raise TransientError(
            f'state "{name}" cannot be read now: {error}', sqlstate="58030"
        ) from error


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Convert write errors of RocksDB and files: a full disk is transient, damage is not."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        if _damage(error):
            raise StateDamaged("the state database is damaged", detail=f"{error}.") from error
        if type(error) is not Exception and not isinstance(error, OSError):
            raise
        if any(text in str(error) for text in _FULL):
            raise TransientError(
                "the disk of the state is full",
                detail=f"{error}.",
                hint="Free disk space. The write is retried, and nothing is lost meanwhile.",
                sqlstate="53100",
            ) from error
        raise TransientError(
            f"the state cannot be written now: {error}", sqlstate="58030"
        ) from error


def opening_error(path: Path, error: Exception) -> Exception:
    """Return the error for a database at ``path`` that cannot be opened."""
    if str(error).startswith(_DAMAGED):
        return StateDamaged(f'the state database "{path}" is damaged', detail=f"{error}.")
    return OSError(f'cannot open the state database "{path}": {error}')


def pairs_from(iterator: Any, name: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield pairs from the iterator's position; the binding's ``items`` hides errors."""
    with reading(name):
        while True:
            keys, values = keygroups.read_pairs(iterator, _PAIRS_PER_READ, _BYTES_PER_READ)
            if not keys:
                break
            yield from zip(keys, values, strict=True)
        iterator.status()


def table_options(memory: Memory | None) -> Any:
    """Return the options of sorted files, the same for each kind of state (README.md)."""
    table = rocksdict.BlockBasedOptions()
    table.set_bloom_filter(_BLOOM_BITS, False)
    table.set_format_version(5)
    table.set_block_size(_BLOCK_BYTES)
    table.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(4 * 1024)
    if memory is not None:
        table.set_block_cache(memory.cache)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_top_level_index_and_filter(True)
    return table


def options(memory: Memory | None) -> Any:
    """Return the options of a column family; the reasons are in ``state/README.md``."""
    out = rocksdict.Options(raw_mode=True)
    out.create_if_missing(True)
    out.set_block_based_table_factory(table_options(memory))
    out.set_compression_type(rocksdict.DBCompressionType.lz4())
    out.set_level_compaction_dynamic_level_bytes(True)
    out.set_max_total_wal_size(_WAL_BYTES_MAX)
    out.set_skip_stats_update_on_db_open(True)
    # A write that waits for a compaction would do so under the interpreter lock.
    out.set_level_zero_slowdown_writes_trigger(_NEVER)
    out.set_level_zero_stop_writes_trigger(_NEVER)
    out.set_soft_pending_compaction_bytes_limit(0)
    out.set_hard_pending_compaction_bytes_limit(0)
    out.set_max_background_jobs(thread_pools.ROCKSDB)
    out.set_keep_log_file_num(EVENTS_FILES_MAX)
    out.set_log_file_time_to_roll(EVENTS_S_MAX)
    out.set_stats_dump_period_sec(0)  # pages of numbers for each family
    out.set_max_manifest_file_size(MANIFEST_BYTES_MAX)
    if memory is not None:
        out.set_write_buffer_size(memory.memtable_bytes)
        out.set_write_buffer_manager(memory.memtables)
        # There are many column families, most of them with a few pairs in memory.
        out.set_arena_block_size(_ARENA_BYTES)
    return out
