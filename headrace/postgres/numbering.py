"""Which column of a table a column of the stream is: by number, whatever its name is or was.

The stream describes a table by the names of its columns, as they were at that point of the WAL,
in the order of their numbers, which never change.  The catalog knows names and numbers, but only
those of now.  In between columns may have been added, dropped, renamed, even swapped: a name
alone proves nothing.  What does:

*Observations.*  Attributes read from the catalog, with the snapshot they were read under.  A
transaction x that writes to a table and one that alters it cannot overlap (the latter locks the
table).  So an alteration that a snapshot shows came before x if the snapshot does not show x,
and one that it does not show came after x if it does.  The last observation without x and the
first one with x are therefore the bounds of what the table was when x wrote.

*Between the bounds* nothing may have happened: the attributes are the same, with the same xmin.
Else a column whose own row of pg_attribute is the same still had its name; and one below which
nothing can have come or gone is found by its place.  A column that neither shows has no number:
rows that need it stop their view.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

_EPOCH: Final = 1 << 32


class StreamAttribute(NamedTuple):
    """A row of pg_attribute, dropped ones too."""

    number: int
    name: str
    published: bool
    """Neither dropped nor generated: the stream has it."""
    written: str
    """xmin: the transaction that wrote the row."""


@dataclass(frozen=True, slots=True)
class VisibleXids:
    """pg_current_snapshot(), with 64-bit transaction numbers."""

    next: int
    running: frozenset[int]

    @classmethod
    def of(cls, text: str) -> Self:
        """From its text, ``xmin:xmax:xip,…``."""
        _, following, running = text.split(":")
        return cls(int(following), frozenset(map(int, filter(None, running.split(",")))))

    def shows(self, xid: int) -> bool:
        """Whether a committed transaction, by its 32-bit number, is in what it shows."""
        full = self.next - self.next % _EPOCH + xid
        if full > self.next + _EPOCH // 2:
            full -= _EPOCH
        elif full <= self.next - _EPOCH // 2:
            full += _EPOCH
        return full < self.next and full not in self.running

    @property
    def order(self) -> tuple[int, int]:
        """Ascending with time: snapshots of one server show ever more."""
        return self.next, -len(self.running)


@dataclass(frozen=True, slots=True)
class Observation:
    """The attributes of a table, by number, as a snapshot shows them."""

    snapshot: VisibleXids
    attributes: tuple[StreamAttribute, ...]

    @property
    def published(self) -> list[StreamAttribute]:
        """What the stream would tell."""
        return [a for a in self.attributes if a.published]


def number(
    names: Sequence[str], xid: int, observations: Iterable[Observation]
) -> dict[str, int] | None:
    """Numbers of the columns that ``names`` of a Relation message are; None: not known yet.

    ``xid`` is the transaction that the message came in.  ``observations`` are some of the table,
    in any order; those who will read the rows began at one of them.  One of them must show
    ``xid``: what that has altered itself is not known otherwise.
    """
    known = sorted(observations, key=lambda o: o.snapshot.order)
    before = [o for o in known if not o.snapshot.shows(xid)]
    after = [o for o in known if o.snapshot.shows(xid)]
    if not after:
        return None
    if not before:
        # Whoever reads rows under this description began at ``after[0]`` or later: for them
        # it counts only if it still holds then.
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
        # Those who read a new column began after ``last``: what is not ``last`` is not theirs.
        known = {name for name, _ in found}
        found += [
            (name, number)
            for name, number in zip(names, new, strict=True)
            if number not in old and name not in known
        ]
    out = dict(found)
    consistent = len(out) == len(found) and out.keys() <= set(names)
    return out if consistent else {}
