"""RocksDB as a worker uses it: column families, atomic batches, and metadata.

RocksDB rewrites and checks the options of all column families whenever one is made or dropped.  So
small views share one family, and a new view costs the same however many there are.  A view that
begins large has a family of its own, into which its sorted files are linked instead of copied.

* Invariant: every write that ``write`` has synced survives a crash, and the manifest of RocksDB is
  not truncated unnoticed (``files``).
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import rocksdict
import structlog

from headrace.errors import StateDamaged, TransientError
from headrace.kernels.packed import Nullable, Packed
from headrace.process import durable
from headrace.state import columns, files, formats, layout
from headrace.state.columns import Family, Memory, Section, StatePlace, reading, writing
from headrace.state.logs import Logs
from headrace.state.map import keygroups

Meta = Mapping[bytes, bytes | None]
"""Small metadata to write; None deletes."""
Changed = tuple[Section, Packed, Nullable]

_log = structlog.get_logger(__name__)


class Disk:
    """The column families and the metadata, which is in the default one.

    Any thread may call ``write`` and ``place``; one thread at a time uses the rest.
    """

    def __init__(self, path: Path, cache_bytes: int) -> None:
        """Open or create the database at ``path``.

        Raises:
            OSError: the files cannot be used now: another process has them open, for example.
            StateDamaged: the files are damaged, or in another format.
        """
        self.path: Final = path
        self._memory = Memory.of(cache_bytes)
        self._families: dict[str, Family] = {}
        self._logs = Logs(path)
        self._noting = threading.Lock()
        self._making = threading.Lock()
        durable.make_folder(path)
        formats.check(path)
        self._noted = files.check_manifest(path)
        self._db = self._open()
        self._default = Family(columns.DEFAULT, self._db)
        self._shared: Final = self._make(columns.SHARED)

    def _open(self) -> Any:
        try:
            names = (
                rocksdict.Rdict.list_cf(str(self.path)) if (self.path / "CURRENT").exists() else []
            )
            names = [name for name in names if name != columns.DEFAULT]
            db = rocksdict.Rdict(
                str(self.path),
                columns.options(self._memory),
                column_families={name: columns.options(self._memory) for name in names},
            )
        except Exception as error:
            # rocksdict raises bare Exception for every error of RocksDB.
            raise columns.opening_error(self.path, error) from error
        for name in names:
            self._families[name] = Family(name, db)
        return db

    def limit(self, cache_bytes: int) -> None:
        """Change the limit of RocksDB's memory."""
        self._memory.cache.set_capacity(cache_bytes)
        self._memory = replace(self._memory, cache_bytes=cache_bytes)

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes of the cache in use, and its capacity; from any thread."""
        return int(self._memory.cache.get_usage()), self._memory.cache_bytes

    # --- column families

    def place(self, name: str) -> StatePlace:
        """Return the place of the states of ``name``: its own family, else the shared one."""
        family = self._families.get(name)
        if family is not None and family is not self._shared:
            return StatePlace(family, "")
        return StatePlace(self._shared, f"{name}{layout.OWNER_END}")

    def own(self, name: str) -> StatePlace:
        """Create a family for ``name`` unless it has one; REQUIRES: it has no states yet."""
        self._make(name)
        return self.place(name)

    @property
    def families(self) -> int:
        """Number of column families of single views."""
        return len(self._families) - 1

    def _make(self, name: str) -> Family:
        with self._making:
            family = self._families.get(name)
            if family is None:
                with writing():
                    self._db.create_column_family(name, columns.options(self._memory))
                family = self._families[name] = Family(name, self._db)
            return family

    def known(self, name: str) -> Family | None:
        """Return the column family of that name, or None."""
        return self._families.get(name)

    def file_writer(self) -> Any:
        """Return a writer of a sorted file for ``Family.ingest``."""
        return rocksdict.SstFileWriter(columns.options(None))

    def names(self) -> list[str]:
        """Return the names of all owners of states, in their own families or the shared one."""
        own = [name for name in self._families if name != columns.SHARED]
        return own + self._shared.owners()

    def drop(self, name: str) -> None:
        """Drop all states of ``name``; nothing happens if there are none.  No sync."""
        place = self.place(name)
        if place.prefix:
            if not place.empty():
                batch = rocksdict.WriteBatch(raw_mode=True)
                batch.delete_range(*place.bounds, place.family.handle)
                self._write(batch, {place.family.name}, {}, sync=False)
            return
        # Drop before closing, which would flush dropped pairs.  If this fails (disk full), the
        # family is still listed, so that the caller can retry.
        with writing():
            self._db.drop_column_family(name)
        del self._families[name]
        self._logs.forget(name)
        place.family.close()

    def clear(self, name: str, keep: Callable[[str], bool], meta: Meta) -> None:
        """Delete the states of ``name`` that do not match ``keep``, and write ``meta``; no sync."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        place = self.place(name)
        touched: set[str] = set()
        for state in place.states():
            if not keep(state):
                section = place.section(state)
                batch.delete_range(section.prefix, section.end, place.family.handle)
                touched.add(place.family.name)
        self._write(batch, touched, meta, sync=False)

    # --- batches and metadata

    def write(self, pairs: Iterable[Changed], meta: Meta, *, sync: bool) -> None:
        """Write pairs per state and ``meta`` in one atomic batch; from any thread."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        touched = set()
        for section, keys, values in pairs:
            touched.add(section.family.name)
            # No variable for the handle: the traceback of an error would keep the database open.
            keygroups.write_batch(
                batch, section.family.handle, section.prefix, keys.strings(), values.strings()
            )
        self._write(batch, touched, meta, sync=sync)

    def _write(self, batch: Any, touched: set[str], meta: Meta, *, sync: bool) -> None:
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
                # The content of the disk is unknown now, and a second sync would not report it.
                raise StateDamaged("the disk cannot keep the state", detail=f"{error}.") from error
            raise

    def _flush(self, name: str) -> None:
        """Begin to flush a family whose memtable retains old log files."""
        family = self._default if name == columns.DEFAULT else self._families.get(name)
        if family is None:
            return
        try:
            family.flush_soon()
        except TransientError as error:
            # The data is synced; only old log files stay longer.
            self._logs.wrote([name])
            _log.warning("log of the state kept", family=name, reason=error.message)

    def get_meta(self, key: bytes) -> bytes | None:
        """Return one entry of the metadata."""
        with reading("metadata"):
            value: bytes | None = self._db.get(key)
        return value

    def scan_meta(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return all entries whose key starts with ``prefix``, in key order."""
        out: list[tuple[bytes, bytes]] = []
        with reading("metadata"):
            iterator = self._db.iter()
            iterator.seek(prefix)
        for key, value in columns.pairs_from(iterator, "metadata"):
            if not key.startswith(prefix):
                break
            out.append((key, value))
        return out

    def close(self) -> None:
        """Close; nothing made from this database may be used any more."""
        # The lock of the database is released only when its last iterator and handle are gone.
        for family in (self._default, *self._families.values()):
            family.close()
        self._families.clear()
        columns.close(self._db)
        # Closing flushes the memtables and deletes their log.
        with self._noting, contextlib.suppress(OSError):
            self._noted = files.note_manifest(self.path, self._noted)
        # If closing failed, the lock is released with the last reference.
        del self._db
