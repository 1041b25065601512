"""Index of the catalog objects that views rely on, and of the views that rely on each.

Many views rely on the same few objects, so these are read once for all (``fingerprint.Present``).
From a changed object, the index finds the views that it concerns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from headrace.postgres import privileges
from headrace.postgres.privileges import Right

Facts = dict[str, Any]
"""JSON: ``owner`` (OID of a role), ``publication``, ``seen`` (the snapshot they are of), by OID
``tables``, ``relations``, ``views`` and ``results``, ``rights``, which of them are ``lacks``, and
``definitions``.

``ended``: the view has stopped because it lacked a right.

``earlier`` are observations of tables (see ``numbering``) before these, oldest first: by OID, pairs
of snapshot and attributes.  Rows still to come may have been written under them.

Facts stored by an earlier version have no ``relations``, ``views``, ``results`` and ``rights``:
then the query names each table itself.
"""

Thing = tuple[str, Any]
"""Kind and key: ``columns`` (OID of the table, number); ``tables``, ``relations``, ``views`` and
``results`` (OID); ``rights``; ``objects`` and ``words`` (of ``definitions``)."""


def rights_of(view: Facts) -> list[Right]:
    """Return the rights that a view needs."""
    return privileges.from_json(view.get("rights", ()))


class Reliances:
    """The things that a number of views rely on, by view id."""

    def __init__(self, views: Iterable[tuple[int, Facts]] = ()) -> None:
        """Create the index of ``views`` (ids and facts)."""
        self._by_view: Final[dict[int, frozenset[Thing]]] = {}
        self._views: Final[dict[str, dict[Any, set[int]]]] = {}
        """View ids by kind and key of a thing."""
        self._sorted: Final[dict[str, list[Any]]] = {}
        """Cached sorted keys by kind."""
        for view_id, facts in views:
            self.put(view_id, facts)

    def put(self, view_id: int, facts: Facts) -> None:
        """Add a view's things, replacing earlier ones."""
        things = frozenset(_things(facts))
        if self._by_view.get(view_id) == things:
            return
        self.drop(view_id)
        self._by_view[view_id] = things
        for kind, key in things:
            views = self._views.setdefault(kind, {})
            if key not in views:
                self._sorted.pop(kind, None)
            views.setdefault(key, set()).add(view_id)

    def drop(self, view_id: int) -> None:
        """Remove a view."""
        for kind, key in self._by_view.pop(view_id, ()):
            views = self._views[kind]
            views[key].discard(view_id)
            if not views[key]:
                del views[key]
                self._sorted.pop(kind, None)

    def of(self, kind: str) -> list[Any]:
        """Return the keys of one kind that any view relies on, in order."""
        found = self._sorted.get(kind)
        if found is None:
            found = self._sorted[kind] = sorted(self._views.get(kind, ()))
        return found

    def views_on(self, things: Iterable[Thing]) -> set[int]:
        """Return the views that rely on any of these."""
        out: set[int] = set()
        for kind, key in things:
            out |= self._views.get(kind, {}).get(key, set())
        return out


def _things(facts: Facts) -> Iterator[Thing]:
    for table, known in facts["tables"].items():
        yield "tables", int(table)
        for attnum in known["columns"] or ():
            yield "columns", (int(table), int(attnum))
    for kind in ("relations", "views", "results"):
        for oid in facts.get(kind, ()):
            yield kind, int(oid)
    for right in rights_of(facts):
        yield "rights", right
    # Facts stored by an earlier version have no definitions.
    if "definitions" in facts:
        for key in facts["definitions"]["objects"]:
            yield "objects", key
        yield "words", tuple(facts["definitions"].get("words", ()))
