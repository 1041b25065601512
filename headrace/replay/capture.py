"""``headrace capture``: write a bundle from the data directory of an engine.

    pin ─► catalog ─► states: begin ─► wait ─► states: end ─► log ─► catalog ─► bundle ─► replay it

The engine goes on meanwhile: states are copied by links, and the log as after a kill.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, Final

import psycopg

from headrace import clock
from headrace.config import Settings
from headrace.errors import PrerequisiteError, TransientError, UserError
from headrace.event_files import EventTail, LoggedEvent
from headrace.postgres import failures
from headrace.postgres.numbering import number
from headrace.replay import bundle, catalog, compare
from headrace.replay.bundle import (
    BatchEntry,
    BundleManifest,
    BundleWriter,
    FramesWriter,
    StateSize,
    TableEntry,
    UnitEntry,
)
from headrace.replay.catalog import CatalogCopy
from headrace.replay.log_copy import LogCopy
from headrace.replay.masks import MessageFilter, Numbered
from headrace.replay.run import observations
from headrace.replay.selection import ChosenUnit, Selection, Selector
from headrace.replay.sources import DataDirectory, RecordedBase, StatesCopy
from headrace.state import layout
from headrace.storage.frame_cache import Damaged

Say = Callable[[str], None]

_ATTEMPTS: Final = 5
_CHECKPOINT_S: Final = 5.0
"""How long to wait for a checkpoint after the last batch that is to be in the bundle."""
_POLL_S: Final = 0.25
_EVENTS_MAX: Final = 20_000
_SHOWN_FIELDS: Final = frozenset(
    ("view", "view_id", "sqlstate", "state", "status", "subplan", "txid", "from_txid", "up_to")
)
"""Fields of events whose texts have no values of rows; numbers of all fields are captured."""
_WORDS: Final = ("wal_retention", "log_level", "log_format", "executors")
"""Settings whose texts are among a few words."""


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """A call of the command."""

    out: Path
    last_s: float | None
    next_s: float
    rows: bool
    masks: tuple[str, ...] = ()
    views: tuple[str, ...] = ()


@dataclass(slots=True)
class _Copies:
    """Copies of one attempt."""

    begin: StatesCopy
    end: StatesCopy | None
    log: LogCopy
    catalogs: tuple[CatalogCopy, CatalogCopy]
    begun_at: float
    """When the first states were copied, in seconds since 1970."""

    def close(self) -> None:
        for copy in (self.begin, self.end, self.log):
            if copy is not None:
                copy.close()


def run(settings: Settings, request: CaptureRequest, say: Say) -> BundleManifest:
    """Write the bundle; return its manifest.

    Raises:
        PrerequisiteError: there is nothing to capture.
        UserError: a view or column does not exist, or the file does.
        TransientError: it is not possible now.
    """
    columns = [bundle.parse_column(mask) for mask in request.masks]
    if columns and not request.rows:
        raise UserError("--mask has no meaning without --rows, which alone adds values of rows")
    directory = DataDirectory(settings)
    try:
        with (
            catalog.session(settings.source) as conn,
            directory.scratch() as folder,
            directory.pinned(),
            _new(request.out) as file,
        ):
            masked = {found for column in columns for found in catalog.masked(conn, column)}
            copies = _copied(directory, conn, folder, request, say)
            try:
                return _Writing(settings, request, conn, copies, masked).write(file)
            finally:
                copies.close()
    except psycopg.Error as error:
        raise failures.classify(error) from error


@contextlib.contextmanager
def _new(path: Path) -> Iterator[BinaryIO]:
    """Create a file that only its owner may read; remove it if the context fails."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise UserError(f'"{path}" exists', hint="Choose another name with --out.") from error
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _copied(
    directory: DataDirectory,
    conn: psycopg.Connection[Any],
    folder: Path,
    request: CaptureRequest,
    say: Say,
) -> _Copies:
    """Copy everything; begin again if the log was cut meanwhile."""
    for attempt in range(_ATTEMPTS):
        copies = _attempt(directory, conn, folder / str(attempt), request, say)
        least = min((mark.txid for mark in copies.begin.marks.values()), default=0)
        if copies.log.after <= max(least, copies.begin.position) or copies.end is None:
            return copies
        copies.close()
    raise TransientError(
        "the log of the engine has too little room for the batches meanwhile",
        hint="Capture a shorter time with --next, or raise queue_bytes_max.",
        sqlstate="53400",
    )


def _attempt(
    directory: DataDirectory,
    conn: psycopg.Connection[Any],
    folder: Path,
    request: CaptureRequest,
    say: Say,
) -> _Copies:
    running = directory.running
    base = _base(directory, request)
    if base is None:
        begun_at = clock.now().timestamp()
        before = catalog.read(conn)
        begin = directory.states(folder / "begin")
    else:
        begun_at = base.at
        before = CatalogCopy.decode(base.catalog)
        begin = base.states(folder / "begin")
    end: StatesCopy | None = None
    try:
        if running:
            if request.next_s:
                say(f"capturing for {request.next_s:g} s")
            clock.sleep(request.next_s)
            end = _end(directory, begin, folder)
        elif base is not None:
            end = directory.states(folder / "end")
        now = catalog.read(conn)
        log = directory.log(end or begin, folder / "log")
        return _Copies(begin, end, log, (before, now), begun_at)
    except BaseException:
        begin.close()
        if end is not None:
            end.close()
        raise


def _base(directory: DataDirectory, request: CaptureRequest) -> RecordedBase | None:
    """Return the base of a recorder from which a bundle begins that reaches back far enough."""
    if request.last_s is None:
        return None
    bases = directory.bases
    old = [base for base in bases if clock.now().timestamp() - base.at >= request.last_s]
    found = old[-1:] or bases[:1]
    return found[0] if found else None


def _end(directory: DataDirectory, begin: StatesCopy, folder: Path) -> StatesCopy:
    """Copy the states again, as of a later checkpoint if there is one in time."""
    until = clock.monotonic() + _CHECKPOINT_S
    number = 0
    while True:
        end = directory.states(folder / f"end{number}")
        if end.position > begin.position or clock.monotonic() >= until:
            return end
        end.close()
        number += 1
        clock.sleep(_POLL_S)


class _Writing:
    """Writes one bundle out of copies."""

    def __init__(
        self,
        settings: Settings,
        request: CaptureRequest,
        conn: psycopg.Connection[Any],
        copies: _Copies,
        masked: set[tuple[int, int]],
    ) -> None:
        self._settings: Final = settings
        self._request: Final = request
        self._conn: Final = conn
        self._copies: Final = copies
        states = copies.begin, copies.end
        selector = Selector(copies.catalogs, states, (copies.log.after, copies.log.last), masked)
        self._chosen: Final[Selection] = selector.select(request.views)
        _check_views(request.views, copies.catalogs[1])

    def write(self, file: BinaryIO) -> BundleManifest:
        """Write everything; return the manifest."""
        writer = BundleWriter(file)
        with contextlib.closing(writer):
            tables = self._tables()
            entries = self._batches(writer, tables)
            writer.put_batches(entries)
            units = [self._unit(writer, unit) for unit in self._chosen.units.values()]
            writer.check_size()
            writer.put_events(_events(self._settings.events_dir))
            manifest = self._manifest(units, tables, entries)
            writer.put_manifest(manifest)
        file.flush()
        os.fsync(file.fileno())
        return manifest

    def _tables(self) -> list[TableEntry]:
        found = catalog.columns(self._conn, self._chosen.tables, self._copies.catalogs[1])
        return [TableEntry(oid, *about) for oid, about in sorted(found.items())]

    def _batches(self, writer: BundleWriter, tables: list[TableEntry]) -> list[BatchEntry]:
        """Write the messages; return the records."""
        log, chosen = self._copies.log, self._chosen
        if not chosen.units:
            return []
        first, last = chosen.first + 1, log.last
        end = self._copies.end
        if end is not None:
            ends = [unit.end for unit in chosen.units.values()]
            if None not in ends:
                last = min(last, max((e for e in ends if e is not None), default=0))
        kept = MessageFilter(chosen.tables, _numbered(tables))
        out: list[BatchEntry] = []
        with contextlib.ExitStack() as inside:
            frames = inside.enter_context(writer.frames()) if self._request.rows else None
            for txid in range(first, last + 1):
                try:
                    out.append(_batch(log, txid, kept, frames))
                except (Damaged, LookupError) as error:
                    raise PrerequisiteError(
                        "the log of the engine is damaged", detail=f"Batch {txid}: {error}."
                    ) from error
        return out

    def _unit(self, writer: BundleWriter, unit: ChosenUnit) -> UnitEntry:
        """Write the states of a unit; return its entry."""
        begin, end, rows = self._copies.begin, self._copies.end, self._request.rows
        unit_id = unit.record.id
        first = begin.db.pieces(unit_id)
        sizes: list[StateSize] = []
        with contextlib.ExitStack() as inside:
            out = inside.enter_context(writer.states(unit_id, "begin")) if rows else None
            for name in sorted(first):
                if out is not None:
                    out.state(name)
                pairs = key_bytes = value_bytes = 0
                for keys, values in first[name]:
                    pairs += len(keys)
                    key_bytes += sum(map(len, keys))
                    value_bytes += sum(map(len, values))
                    if out is not None:
                        out.put(keys, values)
                sizes.append(StateSize(name, pairs, key_bytes, value_bytes))
        if rows and end is not None and unit.end is not None:
            self._changes(writer, unit_id, begin, end)
        view = unit.view
        return UnitEntry(
            record=unit.record,
            begin=unit.begin,
            end=unit.end,
            states=sizes,
            query=view.query if view is not None else "",
            status=view.row.status if view is not None else "",
            sqlstate=view.sqlstate if view is not None else None,
        )

    def _changes(
        self, writer: BundleWriter, unit_id: int, begin: StatesCopy, end: StatesCopy
    ) -> None:
        """Write the pairs of a unit that are different at the end."""
        before, after = begin.db.pieces(unit_id), end.db.pieces(unit_id)
        with writer.states(unit_id, "end") as out:
            for name in sorted(before.keys() | after.keys()):
                out.state(name)
                found = compare.changes_between(before.get(name, ()), after.get(name, ()))
                for keys, values in compare.chunks(found):
                    out.put(keys, values)

    def _manifest(
        self, units: list[UnitEntry], tables: list[TableEntry], entries: list[BatchEntry]
    ) -> BundleManifest:
        copies, request = self._copies, self._request
        return BundleManifest(
            format=bundle.FORMAT,
            headrace=metadata.version("headrace"),
            state_format=layout.FORMAT,
            postgres=copies.catalogs[1].postgres,
            made_at=clock.now().isoformat(timespec="seconds"),
            running=copies.end is not None,
            rows=request.rows,
            masked=sorted(request.masks),
            retained=_retained(entries, request, copies.begun_at),
            units=units,
            left_out=self._chosen.left_out,
            tables=tables,
            settings=_settings(self._settings),
        )


def _check_views(wanted: Sequence[str], now: CatalogCopy) -> None:
    known = {name for view in now.views.values() for name in (view.shown, view.row.view_name)}
    for name in wanted:
        if name not in known:
            raise UserError(f'view "{name}" does not exist', sqlstate="42704")


def _numbered(tables: list[TableEntry]) -> Numbered:
    observed = {table.oid: observations(table) for table in tables}

    def numbered(relation: Any, xid: int) -> dict[str, int]:
        names = [column.name for column in relation.columns]
        return number(names, xid, observed.get(relation.oid, ())) or {}

    return numbered


def _batch(log: LogCopy, txid: int, kept: MessageFilter, frames: FramesWriter | None) -> BatchEntry:
    record, batch = log.read(txid)
    messages = [m for chunk in batch.chunks() for m in kept.filtered(chunk)]
    if frames is not None:
        frames.put(txid, messages)
    return BatchEntry(
        txid=txid,
        start_lsn=record.start_lsn,
        end_lsn=record.end_lsn,
        commit_time_us=record.commit_time_us,
        transactions=batch.transactions,
        messages=batch.messages,
        oldest_us=batch.oldest_us,
        changes=kept.take_changes(),
    )


def _retained(entries: list[BatchEntry], request: CaptureRequest, begun_at: float) -> str:
    """Return how far back the batches reach."""
    ends = [entry.commit_time_us for entry in entries]
    begins = [entry.oldest_us or entry.commit_time_us for entry in entries]
    text = "no transaction was committed meanwhile"
    if entries:
        text = f"transactions committed from {_shown(min(begins))} to {_shown(max(ends))}"
    lacking = request.last_s is not None and clock.now().timestamp() - begun_at < request.last_s
    if lacking and request.last_s is not None:
        text += f"; others of the last {request.last_s:g} s were not retained (headrace record)"
    return text


def _shown(micros: int) -> str:
    return clock.from_postgres(micros).isoformat(sep=" ", timespec="seconds")


def _settings(settings: Settings) -> dict[str, Any]:
    """Return settings that are numbers, or one of a few words: none of them names anything."""
    given = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    return {
        name: value
        for name, value in given.items()
        if isinstance(value, bool | int | float) or name in _WORDS
    }


def _events(folder: Path) -> list[dict[str, Any]]:
    """Return the last events, without texts that may have a value of a row."""
    found: list[LoggedEvent] = []
    with contextlib.closing(EventTail(folder)) as tail:
        while read := tail.read(1_000):
            found += read
    found.sort(key=lambda event: event.at)
    return [
        {
            "at": event.at.isoformat(),
            "level": event.level,
            "event": event.event,
            "process": event.process,
            "view_id": event.view_id,
            **{n: v for n, v in event.fields.items() if n in _SHOWN_FIELDS or _is_number(v)},
        }
        for event in found[-_EVENTS_MAX:]
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
