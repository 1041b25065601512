"""All states of one view, whose versions are txids (a ``VersionedStore``)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final, Protocol, TypeVar

from headrace.errors import BugError
from headrace.state import layout
from headrace.state.columns import Section
from headrace.state.disk import Disk
from headrace.state.schedule import RegulatorSchedule
from headrace.state.tiers import Tier, TieredIndex, TieredMap
from headrace.state.warm_start import Pack, PackedPairs


class Database(Protocol):
    """The part of the database that a store uses."""

    @property
    def disk(self) -> Disk:
        """Column families of the database."""

    @property
    def schedule(self) -> RegulatorSchedule:
        """The regulator's record of which states are used."""

    def demand_rest(self) -> None:
        """Raise BugError if a checkpoint is running."""

    def forget(self, tiers: Iterable[Tier]) -> None:
        """Forget tiers that are about to be closed."""


class RocksStore:
    """All states of one view; made by ``RocksDatabase.view``."""

    def __init__(self, database: Database, name: str, txid: int) -> None:
        self.name: Final = name
        """The name by which its place on disk is found."""
        self.txid = txid
        """The last txid committed."""
        self.durable = txid
        """The txid of the last checkpoint."""
        self.tiers: Final[dict[str, Tier]] = {}
        self._database = database
        self._states: dict[str, TieredMap | TieredIndex] = {}
        self._in_flight: list[int] = []
        self._closed = False

    def map(self, name: str) -> TieredMap:
        """See ``StateStore``."""
        return self._state(name, TieredMap)

    def index(self, name: str) -> TieredIndex:
        """See ``StateStore``."""
        return self._state(name, TieredIndex)

    def listed(self) -> list[Tier]:
        """Return a copy of the list of tiers; from any thread."""
        return list(self.tiers.values())

    @property
    def memory_bytes(self) -> int:
        """Bytes of its states in memory; from any thread."""
        return sum(tier.map.live_bytes for tier in self.listed())

    def unpack(self, pack: Pack) -> Iterator[tuple[Tier, PackedPairs]]:
        """Yield the states of a pack that are on disk, with their pairs there.

        REQUIRES: the store was just made, from pairs that were just ingested.
        """
        for name in pack.states:
            section = self._section(name)
            if not section.empty():
                with contextlib.suppress(OSError):  # the state is read from disk like any other
                    pairs = pack.pairs(name)
                    self.tiers[name] = self._tier(section)
                    yield self.tiers[name], pairs

    # --- txids

    def begin(self, txid: int) -> None:
        """See ``VersionedStore``."""
        last = self._in_flight[-1] if self._in_flight else self.txid
        if self._closed or txid <= last:
            raise BugError(f"txid {txid} begins after {last}")
        self._in_flight.append(txid)
        self._database.schedule.touch(self)
        for tier in self.tiers.values():
            tier.map.begin(txid)

    def prepare(self) -> None:
        """See ``VersionedStore``."""
        for name, tier in self.tiers.items():
            if tier.map.negatives:
                raise BugError(
                    f'{tier.map.negatives} rows in state "{self.name}/{name}"'
                    " have a negative weight"
                )

    def commit(self, txid: int) -> None:
        """See ``VersionedStore``."""
        if not self._in_flight or self._in_flight[0] != txid:
            raise BugError(f"txid {txid} is not the next to commit")
        del self._in_flight[0]
        self.txid = txid
        self._database.schedule.touch(self)
        for tier in self.tiers.values():
            tier.commit(txid)

    def rollback(self, txid: int) -> int:
        """Roll back (see ``VersionedStore``); a committed ``txid`` reverts to the last checkpoint.

        REQUIRES, for a committed ``txid``: no checkpoint is in progress.
        """
        if txid <= self.txid and self.txid > self.durable:
            self._reopen()
            return self.durable
        first = max(txid, self.txid + 1)
        self._database.schedule.touch(self)
        for tier in self.tiers.values():
            tier.rollback(first)
        self._in_flight = [one for one in self._in_flight if one < first]
        return first - 1

    def _reopen(self) -> None:
        """Discard every write that is in no checkpoint."""
        self._database.demand_rest()
        self._in_flight = []
        self.txid = self.durable
        for name, old in self.tiers.items():
            self._database.forget([old])
            old.close()
            self.tiers[name] = self._tier(old.section)
            if name in self._states:
                self._states[name].tier = self.tiers[name]
        self._database.schedule.touch(self)

    # --- checkpoints

    def snapshot(self, txid: int) -> list[tuple[Tier, int]]:
        """Return the tiers, each with its snapshot of committed ``txid`` (O(1) for each)."""
        if txid < self.txid or (self._in_flight and txid >= self._in_flight[0]):
            raise BugError(f"a checkpoint of {txid}, committed is {self.txid}")
        self.txid = txid
        return [(tier, tier.snapshot(txid)) for tier in self.tiers.values()]

    def dump(self) -> dict[str, layout.Pairs]:
        """Return every checkpointed pair of every state, in physical key order (for tests)."""
        place = self._database.disk.place(self.name)
        names = sorted({*place.states(), *self.tiers})
        return {name: list(place.section(name).pairs()) for name in names}

    def forget(self, names: Iterable[str]) -> list[Tier]:
        """Forget states that were deleted from disk; close and return their tiers.

        REQUIRES: nothing is in flight, and no collection uses these states any more.
        """
        gone = [self.tiers.pop(name) for name in names if name in self.tiers]
        for name in names:
            self._states.pop(name, None)
        for tier in gone:
            tier.close()
        return gone

    def close(self) -> None:
        """Free all memory; REQUIRES: no checkpoint of the store is in progress."""
        self._closed = True
        for tier in self.tiers.values():
            tier.close()
        self.tiers.clear()
        self._states.clear()

    _State = TypeVar("_State", TieredMap, TieredIndex)

    def _state(self, name: str, kind: type[_State]) -> _State:
        if self._closed:
            raise BugError(f'state "{self.name}/{name}" of a view that is gone')
        state = self._states.get(name)
        if state is None:
            if name not in self.tiers:
                self.tiers[name] = self._tier(self._section(name))
            self._database.schedule.touch(self)
            state = self._states[name] = kind(self.tiers[name])
        if not isinstance(state, kind):
            raise BugError(f'state "{name}" is used both as a map and as an index')
        return state

    def _section(self, name: str) -> Section:
        return self._database.disk.place(self.name).section(name)

    def _tier(self, section: Section) -> Tier:
        tier = Tier(section, self.txid)
        for txid in self._in_flight:
            tier.map.begin(txid)
        return tier
