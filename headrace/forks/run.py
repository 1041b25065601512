"""Diffs that changes of tables would cause in views: their plans over a copy of their states.

Like a batch of the engine, but nothing is written into a result table, and the copy is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import structlog

from headrace.collections import plan, subplans
from headrace.collections.dataflow import Dataflow
from headrace.collections.plan import PhysicalPlan
from headrace.config import Settings
from headrace.errors import BugError, HeadraceError, StateDamaged, TransientError
from headrace.expressions.remote import RemoteEvaluator
from headrace.network.messages import UnitRecord
from headrace.process import bounds
from headrace.process.bounds import Bound
from headrace.state import copying
from headrace.state.rocks import RocksDatabase, RocksStore
from headrace.types import Schema

_log = structlog.get_logger(__name__)

_MEMORY_PART: Final = 16
"""Divisor of ``memory_bytes`` that gives the memory for all copies of states."""
_TIME: Final = 1
"""Txid in which only time passes, so that the next one has the effect of the changes alone."""
_CHANGES: Final = 2

_UNITS: Final = msgspec.json.Decoder(list[UnitRecord])
TableBatch = tuple[int, pa.RecordBatch]
"""A table's OID, and a change batch of it."""


@dataclass(frozen=True, slots=True)
class ForkedUnit:
    """A view, or a subplan that views share."""

    record: UnitRecord
    whole: PhysicalPlan
    worker: str
    """The worker that has its states; '': ``main``."""

    @classmethod
    def of_record(cls, record: UnitRecord, worker: str) -> ForkedUnit:
        """Return the unit that the engine has described."""
        return cls(record, plan.from_json(record.plan), worker)

    @property
    def id(self) -> int:
        """ID of the unit; that of a subplan is negative."""
        return self.record.id


def read_units(text: str) -> list[UnitRecord]:
    """Return the units in the answer of the engine (``durable_units.py``)."""
    return _UNITS.decode(text)


def copy_states(
    sources: Mapping[str, Path], folder: Path, pause: Callable[[float], None]
) -> dict[str, Path]:
    """Copy the state databases of workers that exist into ``folder``; return the copies.

    ``pause`` sleeps, and may raise.

    Raises:
        TransientError: they cannot be copied now.
    """
    out = {}
    try:
        for number, (worker, source) in enumerate(sources.items()):
            if source.is_dir():
                out[worker] = folder / str(number)
                copying.copy_database(source, out[worker], pause)
    except OSError as error:
        raise TransientError(f"the states cannot be copied: {error}", sqlstate="58030") from error
    return out


class Fork:
    """Copies of states, with the units that go on from there."""

    def __init__(
        self,
        settings: Settings,
        databases: Mapping[str, RocksDatabase],
        units: Sequence[ForkedUnit],
    ) -> None:
        """Take ``units``, each after those that it reads, and a database for each worker.

        ``close`` closes the databases.
        """
        self._settings = settings
        self._databases = databases
        self._units = units

    @classmethod
    def open(
        cls, settings: Settings, copies: Mapping[str, Path], units: Sequence[ForkedUnit]
    ) -> Fork:
        """Return a fork of copied states: the state database of each worker ('': ``main``).

        Raises:
            TransientError: 40001, a copy is not complete, and must be made again.
        """
        memory = settings.memory_bytes // _MEMORY_PART // max(len(copies), 1)
        databases: dict[str, RocksDatabase] = {}
        try:
            for worker, path in copies.items():
                databases[worker] = RocksDatabase(path, memory_bytes=memory)
        except (StateDamaged, OSError) as error:
            for database in databases.values():
                database.close()
            raise TransientError(
                f"the copied states cannot be read: {error}", hint="Call again.", sqlstate="40001"
            ) from error
        return cls(settings, databases, units)

    def schema(self, unit_id: int) -> Schema:
        """Return the columns of a unit's diffs, besides the weight."""
        return next(unit.whole.sink.schema for unit in self._units if unit.id == unit_id)

    def close(self) -> None:
        """Close the databases."""
        for database in self._databases.values():
            database.close()

    def diffs(
        self, changes: Sequence[TableBatch], instant: int, bound: Bound
    ) -> dict[int, pa.RecordBatch | HeadraceError]:
        """Return the diffs of each unit, or the error that would stop it.  Called once.

        ``bound`` begins anew with each unit; a cancellation is repeated until this has returned
        (``Job.cancelling``).  ``changes`` have columns by number, and an LSN after every start of
        a view.  ``instant`` is the timestamp of views that read the clock, microseconds since
        2000-01-01 UTC.

        Raises:
            TransientError: the changes do not fit the states, or something is out of reach.
        """
        out: dict[int, pa.RecordBatch | HeadraceError] = {}
        for unit in self._units:
            failed = [e for f in unit.record.feeds.values() if isinstance(e := out[f], Exception)]
            if failed:
                out[unit.id] = failed[0]
                continue
            fed = {node: out[feeder] for node, feeder in unit.record.feeds.items()}
            try:
                bound.begin()
                with bound.applied():
                    out[unit.id] = self._of_unit(unit, changes, fed, instant)
            except BugError as error:
                # The states have other rows than the statement has seen.
                _log.warning("changes do not fit the states", view=unit.id, reason=error.message)
                raise TransientError(
                    "the rows have changed meanwhile",
                    detail=error.message,
                    hint="Call again.",
                    sqlstate="40001",
                ) from error
            except TransientError:
                raise
            except HeadraceError as error:
                out[unit.id] = error
        return out

    def _of_unit(
        self,
        unit: ForkedUnit,
        changes: Sequence[TableBatch],
        fed: dict[str, Any],
        instant: int,
    ) -> pa.RecordBatch:
        record, settings = unit.record, self._settings
        own = subplans.over_feeds(unit.whole, record.feeds) if record.feeds else unit.whole
        remote = RemoteEvaluator(
            settings.source,
            record.settings,
            settings.eval_dsn or None,
            owner=f"owner {record.owner}",
            value_bytes_max=bounds.of(settings, record.limits).value_bytes,
            folder=settings.turns_dir,
        )
        store = self._databases[unit.worker].view(record.id)
        try:
            flow = Dataflow(own, store, remote, record.start_lsn)
            if own.temporal:
                store.begin(_TIME)
                flow.begin(_TIME, instant)
                flow.end(_TIME)
                store.commit(_TIME)
            return _end(flow, store, changes, fed, instant)
        finally:
            remote.close()


def _end(
    flow: Dataflow,
    store: RocksStore,
    changes: Sequence[TableBatch],
    fed: dict[str, Any],
    instant: int,
) -> pa.RecordBatch:
    store.begin(_CHANGES)
    flow.begin(_CHANGES, instant)
    for table, batch in changes:
        flow.ingest(table, batch)
    for node, diffs in fed.items():
        if diffs.num_rows:
            flow.feed(node, diffs)
    diffs = flow.end(_CHANGES)
    store.prepare()
    return diffs
