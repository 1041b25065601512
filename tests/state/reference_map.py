"""Readable reference of the versioned state map (seed F): a dictionary of version chains.

It fixes what the compiled map of issue 3 must do, allocation counts included: one for a key,
one for each value or tombstone.  Single-threaded; chains are newest first.
"""

from __future__ import annotations

TOMBSTONE = None


class ReferenceMap:
    def __init__(self, ratio: float = 0.2) -> None:
        self.ratio = ratio
        self.version = 0
        self.finished = 0  # every snapshot up to this one is complete (F-8)
        self.running: dict[int, int] = {}  # snapshot -> entries at its creation (F-15)
        self.chains: dict[bytes, list[tuple[int, bytes | None]]] = {}
        self.pruning: set[bytes] = set()  # nodes some snapshot is pruning (F-7)
        self.closed = False

    def removed(self) -> list[bytes]:
        return [k for k, c in sorted(self.chains.items()) if c[0][1] is TOMBSTONE]

    def size(self) -> int:
        return len(self.chains) - len(self.removed())

    def allocations(self) -> int:
        return len(self.chains) + sum(map(len, self.chains.values()))

    def get(self, key: bytes) -> bytes | None:
        chain = self.chains.get(key)
        return chain[0][1] if chain else None

    def put(self, key: bytes, value: bytes | None) -> None:
        """Copy if a running snapshot may need the newest value, else replace (F-13)."""
        chain = self.chains.setdefault(key, [])
        if chain and chain[0][0] >= max(self.running, default=0):
            chain.pop(0)
        chain.insert(0, (self.version, value))

    def remove(self, key: bytes) -> None:
        """Physical without running snapshots, else logical (F-2, F-3, F-14)."""
        if key not in self.chains:
            return
        if not self.running:
            del self.chains[key]
        elif self.get(key) is not TOMBSTONE:
            self.put(key, TOMBSTONE)

    def snapshot(self) -> int:
        """A new snapshot's number; first deletes the excess of removed nodes (F-4, F-16)."""
        if self.closed:
            raise RuntimeError("the map is closed")
        if not self.running:
            removed = self.removed()
            excess = len(removed) - int(len(self.chains) * self.ratio)
            for key in removed[: max(excess, 0)]:
                del self.chains[key]
        self.version += 1
        self.running[self.version] = self.size()
        return self.version

    def read(self, key: bytes, snapshot: int) -> bytes | None:
        """The value of the greatest version below ``snapshot`` (F-9)."""
        older = (v for version, v in self.chains.get(key, []) if version < snapshot)
        return next(older, None)

    def iterate(self, snapshot: int) -> list[tuple[bytes, bytes]]:
        """Entries of a snapshot in key order; prunes what nobody needs on its way (F-6)."""
        assert snapshot in self.running, "the snapshot is not running"
        out = []
        for key in sorted(self.chains):
            value = self.read(key, snapshot)
            self.prune(key)
            if value is not TOMBSTONE:
                out.append((key, value))
        return out

    def prune(self, key: bytes) -> None:
        """Free what is older than the first version that is finished (F-10, F-11)."""
        if key in self.pruning:
            return
        chain = self.chains[key]
        for i, (version, _) in enumerate(chain):
            if version <= self.finished:
                del chain[i + 1 :]
                return

    def release(self, snapshot: int) -> None:
        """End a snapshot, in any order (F-17)."""
        if snapshot not in self.running:
            raise KeyError(snapshot)
        del self.running[snapshot]
        self.finished = min(self.running) - 1 if self.running else self.version
