"""Mapping of the stream's columns to attribute numbers of the table.

The stream describes a table by the names of its columns, as they were at that point of the WAL,
in the order of their numbers, which never change.  The catalog has names and numbers, but only
the present ones.  In between, columns may have been added, dropped, renamed, even swapped, so a
name alone proves nothing.  The proof uses observations:

*Observations* are attributes read from the catalog, with the snapshot of the read.  A transaction
x that writes to a table and one that alters it cannot overlap (the latter locks the table).
If a snapshot shows an alteration but not x, the alteration came before x.  If it shows x but not
the alteration, the alteration came after x.  So the last observation without x and the first one
with x are the bounds of the table's structure when x wrote.

*Between the bounds* there may have been no change: the attributes have the same xmin.  Otherwise
a column whose own row of pg_attribute is unchanged still had its name.  A column below which no
column can have been added or dropped is identified by its position.  Any other column has no
number, and rows that need it stop their view.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

_EPOCH: Final = 1 << 32


class StreamAttribute(NamedTuple):
    """A row of pg_attribute, perhaps of a dropped column."""

    number: int
    name: str
    published: bool
    """Whether the stream has the column: it is neither dropped nor generated."""
    written: str
    """xmin: the transaction that wrote the row."""


@dataclass(frozen=True, slots=True)
class VisibleXids:
    """pg_current_snapshot(), with 64-bit transaction numbers."""

    next: int
    running: frozenset[int]

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse the text ``xmin:xmax:xip,…``."""
        _, following, running = text.split(":")
        return cls(int(following), frozenset(map(int, filter(None, running.split(",")))))

    def shows(self, xid: int) -> bool:
        """Return whether the snapshot shows a committed transaction, given its 32-bit number."""
        full = self.next - self.next % _EPOCH + xid
        if full > self.next + _EPOCH // 2:
            full -= _EPOCH
        elif full <= self.next - _EPOCH // 2:
            full += _EPOCH
        return full < self.next and full not in self.running

    @property
    def order(self) -> tuple[int, int]:
        """Sort key that ascends with time: later snapshots of a server show more transactions."""
        return self.next, -len(self.running)


@dataclass(frozen=True, slots=True)
class Observation:
    """The attributes of a table, by number, as a snapshot shows them."""

    snapshot: VisibleXids
    attributes: tuple[StreamAttribute, ...]

    @property
    def published(self) -> list[StreamAttribute]:
        """The attributes that the stream has."""
        return [a for a in self.attributes if a.published]


def number(
    names: Sequence[str], xid: int, observations: Iterable[Observation]
) -> dict[str, int] | None:
    """Return the numbers of the columns ``names`` of a Relation message; None: not known yet.

    ``xid`` is the transaction of the message.  ``observations`` are some of the table's, in any
    order; each view that reads the rows began at one of them.  One of them must show ``xid``:
    otherwise alterations by ``xid`` itself are unknown.
    """
    known = sorted(observations, key=lambda o: o.snapshot.order)
    before = [o for o in known if not o.snapshot.shows(xid)]
    after = [o for o in known if o.snapshot.shows(xid)]
    if not after:
        return None
    if not before:
        # The views that read rows under this description began at ``after[0]`` or later, so it
        # is valid for them only if it still holds then.
        return _exactly(names, after[0])
    return _between(names, before[-1], after[0])


def _exactly(names: Sequence[str], seen: Observation) -> dict[str, int]:
    if [a.name for a in seen.published] != list(names):
        return {}
    return {a.name: a.number for a in seen.published}


def _between(names: Sequence[str], first: Observation, last: Observation) -> dict[str, int]:
    old = {a.number: a for a in first.published}
    new = {a.number: a for a in last.published}
    stayed = [number for number in old if number in new]
    gone = [number for number in old if number not in new]
    end = max((a.number for a in first.attributes), default=0)
    come = [a.number for a in last.attributes if a.number > end]
    come += [number for number in new if number not in old and number <= end]
    extra = len(names) - len(stayed)
    if not 0 <= extra <= len(gone) + len(come):
        return {}
    found: list[tuple[str, int]] = []
    for place, number in enumerate(stayed):
        if old[number] == new[number]:
            found.append((old[number].name, number))
            continue
        below = sum(other < number for other in (*gone, *come))
        if below == 0 or extra == 0:
            found.append((names[place], number))
        elif extra == len(gone) + len(come):
            found.append((names[place + below], number))
    if len(names) == len(new):
        # Views that read a new column began after ``last``, so no other structure concerns them.
        known = {name for name, _ in found}
        found += [
            (name, number)
            for name, number in zip(names, new, strict=True)
            if number not in old and name not in known
        ]
    out = dict(found)
    consistent = len(out) == len(found) and out.keys() <= set(names)
    return out if consistent else {}
