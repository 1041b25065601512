"""Which units of an engine a bundle has, and why it lacks the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from headrace.collections import plan
from headrace.collections.plan import PhysicalPlan
from headrace.network.messages import UnitRecord
from headrace.replay.bundle import LeftOut
from headrace.replay.catalog import CapturedView, CatalogCopy
from headrace.replay.sources import StatesCopy
from headrace.runtime import worker_handles
from headrace.runtime.shared import Shared
from headrace.sql import nodes
from headrace.sql.status import Status
from headrace.sql.view_spec import ViewSpec
from headrace.types import parse_lsn

Columns = Collection[tuple[int, int]]
"""Table OID and number of columns."""


@dataclass(frozen=True, slots=True)
class ChosenUnit:
    """A unit that is captured."""

    record: UnitRecord
    begin: int
    end: int | None
    view: CapturedView | None = None

    @property
    def whole(self) -> PhysicalPlan:
        """Its plan."""
        return plan.from_json(self.record.plan)


@dataclass(slots=True)
class Selection:
    """The chosen units, each after those that it reads, and the views that are left out."""

    units: dict[int, ChosenUnit] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)

    @property
    def first(self) -> int:
        """Txid after which the first batch is that a unit needs."""
        return min((unit.begin for unit in self.units.values()), default=0)

    @property
    def tables(self) -> dict[int, frozenset[int]]:
        """Numbers of the columns that units read, by table OID."""
        out: dict[int, frozenset[int]] = {}
        for unit in self.units.values():
            for table, number in read_columns(unit.whole):
                out[table] = out.get(table, frozenset()) | {number}
        return out


def read_columns(whole: PhysicalPlan) -> set[tuple[int, int]]:
    """Return the columns that a plan reads: table OID and number.  0: the rows alone."""
    return {
        (source.table_oid, number)
        for source in whole.sources
        for number in (0, *(c.attnum for c in (*source.columns, *source.key)))
    }


class Selector:
    """Chooses units whose batches and states can be compared."""

    def __init__(
        self,
        catalogs: tuple[CatalogCopy, CatalogCopy],
        states: tuple[StatesCopy, StatesCopy | None],
        logged: tuple[int, int],
        masked: Columns,
    ) -> None:
        """Take catalog and states at the begin and at the end.

        ``logged``: the log has the batches after the first txid, up to the second.
        ``masked``: columns that no unit may read.
        """
        self._before, self._now = catalogs
        self._begin, self._end = states
        self._after, self._last = logged
        self._masked: Final = masked

    def select(self, wanted: Iterable[str]) -> Selection:
        """Return the units of the views named ``wanted``, or of all."""
        names = set(wanted)
        out = Selection()
        for view in self._now.views.values():
            if names and not names & {view.shown, view.row.view_name}:
                continue
            reason = self._objection(view)
            found: dict[int, ChosenUnit] = {}
            if reason is None:
                made = self._chosen(view)
                reason = self._add(made, found)
            if reason is None:
                out.units |= found
            else:
                out.left_out.append(LeftOut(view.shown, reason))
        return out

    def _objection(self, view: CapturedView) -> str | None:
        """Return why the states of a view cannot be captured, before its plan is looked at."""
        row, before = view.row, self._before.views.get(view.row.id)
        if before is None:
            return "it was created, or populated again, meanwhile"
        worker = nodes.whole(ViewSpec.of(row.options or {}).placement)
        if worker:
            return f'its states are on worker "{worker}"'
        if row.parts:
            return "parts of it are on other workers"
        if (row.plan, row.settings, row.start_lsn) != (
            before.row.plan,
            before.row.settings,
            before.row.start_lsn,
        ):
            return "its plan was changed meanwhile"
        if row.id not in self._begin.marks:
            return "it has no states"
        return None

    def _chosen(self, view: CapturedView) -> ChosenUnit:
        row = view.row
        record = UnitRecord(
            row.id,
            row.plan,
            {str(k): str(v) for k, v in (row.settings or {}).items()},
            parse_lsn(row.start_lsn) if row.start_lsn else 0,
            row.owner or "",
            dict(ViewSpec.of(row.options or {}).limits),
            view.shown,
            self._begin.feeds.get(row.id, {}),
        )
        return ChosenUnit(
            record,
            self._begin.marks[row.id].txid,
            self._end_of(row.id, stopped=row.status == Status.ERROR),
            view,
        )

    def _end_of(self, unit_id: int, *, stopped: bool) -> int | None:
        """Return the txid of the last states; None: there are none to compare with."""
        if self._end is None or stopped or unit_id not in self._end.marks:
            return None
        return self._end.marks[unit_id].txid

    def _add(self, unit: ChosenUnit, found: dict[int, ChosenUnit]) -> str | None:
        """Add a unit after those that it reads; return why that is not possible."""
        lacks = unit.end is None or unit.end > unit.begin
        if lacks and (unit.begin < self._after or (unit.end or 0) > self._last):
            return "the log does not have all batches between its states"
        end, unit_id, feeds = self._end, unit.record.id, unit.record.feeds
        if end is not None and end.feeds.get(unit_id, {}) != feeds and unit_id in end.marks:
            return "the subplans that it shares were changed meanwhile"
        if unit.end is not None and unit.end < unit.begin:
            return "it went back meanwhile"
        try:
            read = read_columns(unit.whole)
        except (ValueError, TypeError, KeyError) as error:
            return f"its plan cannot be read: {type(error).__name__}"
        if read & set(self._masked):
            return "it reads a masked column"
        for feeder in dict.fromkeys(feeds.values()):
            if feeder not in found and (reason := self._add_below(feeder, found)) is not None:
                return reason
            if found[feeder].begin > unit.begin:
                return "it was behind a subplan that it shares"
        found[unit_id] = unit
        return None

    def _add_below(self, feeder: int, found: dict[int, ChosenUnit]) -> str | None:
        """Add a subplan as ``_add``."""
        shared = self._begin.subplans.get(feeder)
        if shared is None or feeder not in self._begin.marks:
            return "a subplan that it shares has no states"
        if shared.placed:
            return f'a subplan that it shares is on worker "{shared.placed}"'
        return self._changed(shared) or self._add(self._subplan(shared), found)

    def _changed(self, shared: Shared) -> str | None:
        now = self._end.subplans.get(shared.id, shared) if self._end is not None else shared
        if plan.to_json(now.plan) != plan.to_json(shared.plan) or shared.coming is not None:
            return "a subplan that it shares was changed meanwhile"
        return None

    def _subplan(self, shared: Shared) -> ChosenUnit:
        name = f"subplan {shared.id} ({shared.shown})"
        return ChosenUnit(
            msgspec.structs.replace(worker_handles.record(shared), name=name),
            self._begin.marks[shared.id].txid,
            self._end_of(shared.id, stopped=False),
        )
