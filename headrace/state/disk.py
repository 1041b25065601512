"""RocksDB as a worker uses it: column families, batches that are whole, and metadata.

RocksDB rewrites and checks the options of all column families whenever one is made or dropped.  So
small views share one family, and making a view costs the same however many there are.  A view that
begins large has a family of its own: its sorted files are linked there and not copied.

* Invariant: what ``write`` has synced is there after a crash, and RocksDB's manifest was not cut
  since (``files``).
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import rocksdict
import structlog

from headrace.errors import StateDamaged, TransientError
from headrace.state import columns, files, formats, layout
from headrace.state.columns import Family, Memory, Section, StatePlace, reading, writing
from headrace.state.logs import Logs
from headrace.state.map import keygroups

Meta = Mapping[bytes, bytes | None]
"""Small metadata to write; None deletes."""
Changed = tuple[Section, list[bytes], list[bytes | None]]

_log = structlog.get_logger(__name__)


class Disk:
    """The column families and the metadata, which is in the default one.

    ``write`` and ``place`` are for any thread; of the rest one thread at a time.
    """

    def __init__(self, path: Path, cache_bytes: int) -> None:
        """Open or create the database at ``path``.

        Raises:
            OSError: the files cannot be used now: another process has them open, say.
            StateDamaged: the files are damaged, or in another format.
        """
        self.path: Final = path
        self._memory = Memory.of(cache_bytes)
        self._families: dict[str, Family] = {}
        self._logs = Logs(path)
        self._noting = threading.Lock()
        self._making = threading.Lock()
        path.mkdir(parents=True, exist_ok=True)
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
            # rocksdict raises bare Exception whatever RocksDB says.
            raise columns.opening_error(self.path, error) from error
        for name in names:
            self._families[name] = Family(name, db)
        return db

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes in use of what all families have, and what that may be; from any thread."""
        return int(self._memory.cache.get_usage()), self._memory.cache_bytes

    # --- column families

    def place(self, name: str) -> StatePlace:
        """Return where the states of ``name`` are: its own family if it has one, or the shared."""
        family = self._families.get(name)
        if family is not None and family is not self._shared:
            return StatePlace(family, "")
        return StatePlace(self._shared, f"{name}{layout.OWNER_END}")

    def own(self, name: str) -> StatePlace:
        """Make a family for ``name``, which has no states yet, unless it has one."""
        self._make(name)
        return self.place(name)

    @property
    def families(self) -> int:
        """Number of column families that views have for themselves."""
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
        # First, for closing would flush what is gone.  If this fails (a full disk), it is still
        # there, and is found when it is tried again.
        with writing():
            self._db.drop_column_family(name)
        del self._families[name]
        self._logs.forget(name)
        place.family.close()

    def clear(self, name: str, keep: Callable[[str], bool], meta: Meta) -> None:
        """Delete the states of ``name`` but for those to ``keep``, and write ``meta``; no sync."""
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
            # No name for the handle: the traceback of an error would keep the database open.
            keygroups.write_batch(batch, section.family.handle, section.prefix, keys, values)
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
                raise StateDamaged("the disk cannot keep the state", detail=f"{error}.") from error
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
        # Closing writes memtables to files, and deletes the log that had their pairs.
        with self._noting, contextlib.suppress(OSError):
            self._noted = files.note_manifest(self.path, self._noted)
        # Where closing failed, the lock is released with the last reference.
        del self._db
