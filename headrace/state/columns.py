"""Column families of RocksDB: reading them, their options, and RocksDB's errors as ours.

Invariant 1: what cannot be read is never taken for absent (H22): each block has a checksum, and
whoever meets the end of an iterator asks for its status.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import rocksdict

from headrace.errors import HeadraceError, StateDamaged, TransientError
from headrace.kernels import keygroups

MIB: Final = 1024 * 1024
POINTS: Final = "points"
"""Options for maps: read by key."""
ORDERED: Final = "ordered"
"""Options for indexes: read by prefix and in order."""

_WAL_BYTES_MAX: Final = 64 * MIB
_BLOOM_BITS: Final = 10
_ARENA_BYTES: Final = 64 * 1024
_PAIRS_PER_READ: Final = 4096
_BYTES_PER_READ: Final = MIB
_DAMAGED: Final = (
    "Corruption: ",
    "IO error: No such file or directory",
    "Invalid argument: ",
)
"""RocksDB's status codes, which its Python binding gives as the text's beginning only."""
_FULL: Final = ("No space left on device", "Disk quota exceeded", "File too large")


@dataclass(frozen=True, slots=True)
class Memory:
    """What RocksDB may use, in bytes; one for all column families."""

    cache: Any
    memtables: Any
    memtable_bytes: int

    @classmethod
    def of(cls, cache_bytes: int) -> Memory:
        """``cache_bytes`` for blocks, indexes, filters and (half of it) memtables."""
        cache = rocksdict.Cache(cache_bytes)
        memtables = rocksdict.WriteBufferManager.new_write_buffer_manager_with_cache(
            cache_bytes // 2, allow_stall=False, cache=cache
        )
        return cls(cache, memtables, min(16 * MIB, max(MIB, cache_bytes // 8)))


class Column:
    """One column family as it is on disk: states as of the last checkpoint."""

    def __init__(self, name: str, db: Any) -> None:
        self.name: Final = name
        self._column: Any = db.get_column_family(name)
        self.handle: Any = db.get_column_family_handle(name)
        self._iterator: Any = None

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Values of physical ``keys``, which should be in order."""
        if not keys:
            return []
        with reading(self.name):
            values: list[bytes | None] = self._column.get(keys)
        return values

    def iterator(self) -> Any:
        """An iterator shared by scans until ``refresh``; it sees no later write."""
        if self._iterator is None:
            with reading(self.name):
                self._iterator = self._column.iter()
        return self._iterator

    def own_iterator(self) -> Any:
        """A new iterator over what is there now."""
        with reading(self.name):
            return self._column.iter()

    def empty(self) -> bool:
        """Whether there is no pair."""
        with reading(self.name):
            iterator = self._column.iter()
            iterator.seek_to_first()
            if iterator.valid():
                return False
            iterator.status()
        return True

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """All pairs in key order, by an iterator of their own."""
        yield from pairs_from(self._column, self.name, b"")

    def estimate(self) -> tuple[int, int]:
        """About how many pairs there are, and how many bytes they take on disk."""
        count = self._column.property_int_value("rocksdb.estimate-num-keys") or 0
        size = self._column.property_int_value("rocksdb.estimate-live-data-size") or 0
        return int(count), int(size)

    def ingest(self, path: Path, *, move: bool) -> None:
        """Add the pairs of a sorted file."""
        options = rocksdict.IngestExternalFileOptions()
        options.set_move_files(move)
        with writing():
            self._column.ingest_external_file([str(path)], options)

    def flush_soon(self) -> None:
        """Begin to write the memtable into a file, in the background."""
        with writing():
            self._column.flush(wait=False)

    @property
    def in_memtable(self) -> bool:
        """Whether some pairs stand in memtables only."""
        names = ("num-entries-active-mem-table", "num-immutable-mem-table")
        with reading(self.name):
            return any(
                self._column.property_int_value(f"rocksdb.{name}") for name in names
            )

    def refresh(self) -> None:
        """Let the next scan see the latest checkpoint; an old iterator pins files."""
        self._iterator = None

    def close(self) -> None:
        """Give everything back."""
        self._iterator = None
        self.handle = None
        close(self._column)


def close(database: Any) -> None:
    """Close a handle of the binding, which first flushes the log: on a full disk that fails.

    What is lost then is in no checkpoint.
    """
    # The binding raises bare Exception.
    with contextlib.suppress(Exception):
        database.close()


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
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
def writing() -> Iterator[None]:
    """Errors of RocksDB and of files as ours: a full disk may have room again, damage stays."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        if str(error).startswith(_DAMAGED):
            raise StateDamaged(
                "the state database is damaged", detail=f"{error}."
            ) from error
        if type(error) is not Exception and not isinstance(error, OSError):
            raise
        if any(text in str(error) for text in _FULL):
            raise TransientError(
                "the disk of the state is full",
                detail=f"{error}.",
                hint="Make room: it is tried again, and nothing is lost meanwhile.",
                sqlstate="53100",
            ) from error
        raise TransientError(
            f"the state cannot be written now: {error}", sqlstate="58030"
        ) from error


def opening_error(path: Path, error: Exception) -> Exception:
    """What to raise when the database at ``path`` cannot be opened."""
    if str(error).startswith(_DAMAGED):
        return StateDamaged(
            f'the state database "{path}" is damaged', detail=f"{error}."
        )
    return OSError(f'cannot open the state database "{path}": {error}')


def pairs_from(column: Any, name: str, start: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Pairs from key ``start`` on; the binding's own ``items`` ends silently at an error."""
    with reading(name):
        iterator = column.iter()
        iterator.seek(start)
        while True:
            keys, values = keygroups.read_pairs(
                iterator, _PAIRS_PER_READ, _BYTES_PER_READ, -1
            )
            if not keys:
                break
            yield from zip(keys, values, strict=True)
        iterator.status()


def options(memory: Memory | None, use: str) -> Any:
    """Options of a column family; the reasons are in ``state/README.md``."""
    table = rocksdict.BlockBasedOptions()
    table.set_bloom_filter(_BLOOM_BITS, False)
    table.set_format_version(5)
    if use == POINTS:
        table.set_block_size(4 * 1024)
        table.set_data_block_index_type(rocksdict.DataBlockIndexType.binary_and_hash())
        table.set_data_block_hash_ratio(0.75)
    else:
        table.set_block_size(16 * 1024)
    table.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(4 * 1024)
    if memory is not None:
        table.set_block_cache(memory.cache)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_top_level_index_and_filter(True)
    out = rocksdict.Options(raw_mode=True)
    out.create_if_missing(True)
    out.set_block_based_table_factory(table)
    out.set_compression_type(rocksdict.DBCompressionType.lz4())
    out.set_level_compaction_dynamic_level_bytes(True)
    out.set_max_total_wal_size(_WAL_BYTES_MAX)
    out.set_skip_stats_update_on_db_open(True)
    out.set_keep_log_file_num(4)
    if memory is not None:
        out.set_write_buffer_size(memory.memtable_bytes)
        out.set_write_buffer_manager(memory.memtables)
        # Hundreds of column families, most of them with a few pairs in memory.
        out.set_arena_block_size(_ARENA_BYTES)
    return out
