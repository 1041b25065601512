"""Removed members of tables: when the views that read them may drop their arms.

Once a view is beyond the position at which the member was missed, its state shows whether the view
still has rows of the member.  The state on disk must be beyond it, too: after a crash, the stream
would repeat the changes that removed the last rows, with no arm to take them.

Views that share a subplan over the member drop it together, so one stopped view keeps the arm
for all of them.  An arm without rows changes no result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import psycopg

from headrace.errors import OutOfReach
from headrace.runtime.engine_state import EngineState
from headrace.runtime.remote_worker import RemoteStore
from headrace.runtime.views import Unit, View
from headrace.runtime.watch import Difference
from headrace.state.rocks import RocksStore
from headrace.types import parse_lsn


class Departures:
    """Members that views miss; every method runs on the engine's thread."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._missed: dict[tuple[int, int], int] = {}
        """LSN of the source when a view first missed a member, by view and member."""

    def note(self, found: Sequence[Difference]) -> None:
        """Note the members missed now; ``found`` has all views that miss any."""
        missed = {(d.view.id, leaf) for d in found for leaf in leaves(d)}
        new = missed - self._missed.keys()
        self._missed = {key: lsn for key, lsn in self._missed.items() if key in missed}
        if new:
            self._missed |= dict.fromkeys(new, position(self._state.owner.conn))

    def had_rows(self, difference: Difference) -> bool:
        """Return whether a view has rows of a removed member, and will not lose them any more."""
        view = difference.view
        return any(
            self._is_beyond(view, leaf) and self._has_rows(view, leaf)
            for leaf in leaves(difference)
        )

    def ready(
        self, found: Sequence[Difference], stopping: Collection[int], *, durably: bool
    ) -> Mapping[int, frozenset[int]]:
        """Return, by view, the members that the view can go on without.

        ``stopping``: views that are about to stop.  ``durably``: a view is ready only if all its
        state is on disk.
        """
        missing: dict[int, set[int]] = {}
        for difference in found:
            for leaf in leaves(difference):
                if difference.view.id not in stopping:
                    missing.setdefault(leaf, set()).add(difference.view.id)
        fit = {
            (view_id, leaf)
            for leaf, view_ids in missing.items()
            for view_id in view_ids
            if self._is_fit(self._state.views[view_id], leaf, durably=durably)
        }
        return {
            d.view.id: frozenset(
                leaf
                for leaf in leaves(d)
                if all((i, leaf) in fit for i in self._together(d.view, leaf) - set(stopping))
            )
            for d in found
        }

    def _together(self, view: View, leaf: int) -> set[int]:
        """Return a view, and those that share a subplan over a member with it."""
        found: set[int] = set()
        left = [view]
        while left:
            one = left.pop()
            if one.id in found:
                continue
            found.add(one.id)
            for shared in self._state.needed([one]):
                if _reads(shared, leaf):
                    left += [v for v in self._state.views_of(shared) if v.owned and _reads(v, leaf)]
        return found

    def _is_fit(self, view: View, leaf: int, *, durably: bool) -> bool:
        units = self._over(view, leaf)
        if durably and any(unit.mark.txid != unit.durable.txid for unit in units):
            return False
        return self._is_beyond(view, leaf) and self._has_rows(view, leaf) is False

    def _is_beyond(self, view: View, leaf: int) -> bool:
        """Return whether a view and the subplans that it reads have all from before the miss."""
        marks = [mark for unit in self._over(view, leaf) for mark in (unit.mark, unit.durable)]
        return min(map(self._state.covered, marks)) >= self._missed[view.id, leaf]

    def _over(self, view: View, leaf: int) -> list[Unit]:
        """Return a view and the subplans over a member that it needs."""
        return [view, *(shared for shared in self._state.needed([view]) if _reads(shared, leaf))]

    def _has_rows(self, view: View, leaf: int) -> bool | None:
        """Return whether the states of a view have rows of a member; None: unknown."""
        found = [_rows(unit, leaf) for unit in self._over(view, leaf)]
        return True if True in found else None if None in found else False


def leaves(difference: Difference) -> frozenset[int]:
    """Return the removed members whose rows a view reads."""
    return frozenset(o for o in difference.change.went if str(o) in difference.before["tables"])


def position(conn: psycopg.Connection[tuple[object, ...]]) -> int:
    """Return the source's LSN: every transaction that is visible now was committed before it."""
    row = conn.execute("SELECT pg_catalog.pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    return parse_lsn(str(row[0]))


def _reads(unit: Unit, table: int) -> bool:
    return any(source.table_oid == table for source in unit.plan.sources)


def _rows(unit: Unit, table: int) -> bool | None:
    """Return whether a unit's own state has rows of a table; None: it is out of reach."""
    sources = [source.id for source in unit.own.sources if source.table_oid == table]
    if not sources:
        return False
    if isinstance(unit.store, RocksStore):
        return unit.has_rows(sources)
    if isinstance(unit.store, RemoteStore) and unit.store.up:
        try:
            return unit.store.has_rows(sources)
        except OutOfReach:
            return None
    return None
