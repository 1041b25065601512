"""An index of the units that read a table, a result table or a subplan.

When a view is added or removed, the units linked with it are found here at once, however many
others there are. ``Changes`` collects the units that have changed since its last ``take``, for
code that must visit each unit once and again after each change.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from headrace.runtime.shared import Shared
from headrace.runtime.views import Unit, View
from headrace.sql import covered

_Key = tuple[str, Any]
_READS: Final = "reads"
_FED_FROM: Final = "fed from"
_FILLED_FROM: Final = "filled from"
_FED_BY: Final = "fed by"
_WRITES: Final = "writes"
_OUTPUT: Final = "output"
_ASKED_AS: Final = "asked as"


class Changes:
    """Ids of the units that were added, changed or removed since the last ``take``."""

    def __init__(self, lock: threading.Lock) -> None:
        """Share ``lock`` with the links."""
        self._lock: Final = lock
        self._ids: dict[int, None] = {}

    def add(self, unit_id: int) -> None:
        """Note a unit.  REQUIRES: the lock is held."""
        self._ids[unit_id] = None

    def take(self) -> list[int]:
        """Return the ids, in the order of their first change, and clear them."""
        with self._lock:
            ids, self._ids = self._ids, {}
        return list(ids)


class UnitLinks:
    """The links of one engine's units; every method except the changes is for any thread.

    * Invariant: a unit is found by all links that it has at one time, or by none.
    """

    def __init__(self, lock: threading.Lock) -> None:
        """Share ``lock`` with the index, so that a change of both is atomic."""
        self._lock: Final = lock
        # Guarded by the lock.
        self._keys: Final[dict[int, frozenset[_Key]]] = {}
        """Links of each unit."""
        self._linked: Final[dict[_Key, dict[int, Any]]] = {}
        """Units by link and id."""
        self._followers: Final[list[Changes]] = []

    def follow(self) -> Changes:
        """Return a new list of changes, which collects those from now on."""
        made = Changes(self._lock)
        with self._lock:
            self._followers.append(made)
        return made

    # --- answers

    def reading(self, table_oid: int) -> list[Unit]:
        """Return the units whose plan reads a source table."""
        return self._find(_READS, table_oid)

    def fed_from(self, table_oid: int) -> list[View]:
        """Return the views with option ``from`` that read the view of this result table."""
        return self._find(_FED_FROM, table_oid)

    def filled_from(self, table_oid: int) -> list[View]:
        """Return the stacked views whose first rows were read from this result table."""
        return self._find(_FILLED_FROM, table_oid)

    def readers(self, subplan_id: int) -> list[Unit]:
        """Return the units that read a subplan directly, views first."""
        found: list[Unit] = self._find(_FED_BY, subplan_id)
        return sorted(found, key=lambda unit: not isinstance(unit, View))

    def writing(self, table_oid: int) -> list[View]:
        """Return the views with this result table: during a resync there are two for a moment."""
        return self._find(_WRITES, table_oid)

    def asked_as(self, key: int) -> list[View]:
        """Return the views whose coverage is requested with this key (``sql/covered.py``)."""
        return self._find(_ASKED_AS, key)

    def outputs(self, signature: str) -> list[Shared]:
        """Return the subplans that compute the node with this signature."""
        return self._find(_OUTPUT, signature)

    def _find(self, kind: str, what: int | str) -> list[Any]:
        with self._lock:
            return list(self._linked.get((kind, what), {}).values())

    # --- changes.  REQUIRES: the lock is held.

    def put(self, unit: Unit) -> None:
        """Link a unit as it is now; it replaces another one of its id."""
        self._unlink(unit.id)
        keys = self._keys[unit.id] = frozenset(_keys(unit))
        for key in keys:
            self._linked.setdefault(key, {})[unit.id] = unit
        self._note(unit.id)

    def remove(self, unit_id: int) -> None:
        """Forget a unit."""
        self._unlink(unit_id)
        self._note(unit_id)

    def _unlink(self, unit_id: int) -> None:
        for key in self._keys.pop(unit_id, ()):
            linked = self._linked[key]
            del linked[unit_id]
            if not linked:
                del self._linked[key]

    def _note(self, unit_id: int) -> None:
        for follower in self._followers:
            follower.add(unit_id)


def _keys(unit: Unit) -> list[_Key]:
    out: list[_Key] = [(_READS, source.table_oid) for source in unit.plan.sources]
    out += [(_FED_FROM, feed.table_oid) for feed in unit.plan.feeds]
    out += [(_FED_BY, feeder) for feeder in unit.feeds.values()]
    if isinstance(unit, View):
        out += [(_FILLED_FROM, table_oid) for table_oid in unit.plan.filled_from.values()]
        out += [(_WRITES, unit.target.oid), (_ASKED_AS, covered.asked_as(unit.id))]
    elif isinstance(unit, Shared):
        out.append((_OUTPUT, unit.signature))
    return out
