"""Readable reference of ``headrace.state.map.skiplist``: a dictionary of version chains.

It defines the behaviour of the compiled map, allocation counts included: one for a key, one for
each value or tombstone. Names, results and errors are the same, and every docstring here holds there
too; arguments are lists here and packed there (``lists.py``). Nothing here is fast: the reference
sorts where the kernel walks.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from typing import Any

from headrace.errors import BugError

TOMBSTONE = None
SPILLED, LOADING, RESIDENT = 0, 1, 2
CHUNK = 4096

Chunk = tuple[list[bytes], list[bytes]]
Changed = tuple[list[bytes], list[bytes | None]]
Through = Callable[[list[bytes], list[bytes]], Chunk]


class Weight(bytes):
    """A weight that ``add_many`` wrote."""


class Node:
    """A key's chain of (version, value), newest first, and the lists that contain the node."""

    def __init__(self) -> None:
        self.chain: list[tuple[int, bytes | None]] = []
        self.listed = 0  # number of lists below that contain the node; removed only at 0
        self.epoch = 0  # of the list of changes that contains it
        self.held = False  # in the list of nodes to prune after the checkpoint
        self.claimed = False  # a thread prunes it (F-7)

    @property
    def version(self) -> int:
        return self.chain[0][0]

    @property
    def value(self) -> bytes | None:
        return self.chain[0][1]


class ReferenceSkipList:
    """A versioned map of bytes: counter mode (Flink's) or, with ``txids``, txid mode.

    *Counter mode*: ``snapshot()`` increments the version, which stamps writes. *Txid mode*: writes
    happen between ``begin(txid)`` and the next ``begin``; ``commit`` and ``rollback`` end txids.
    The base has everything up to txid ``durable``.

    A key's first byte is its group. All entries of a resident group are in the map; this is the
    initial state. Of other groups the map has only the entries that the base does not have yet.
    """

    def __init__(
        self,
        *,
        txids: bool = False,
        durable: int = 0,
        ratio: float = 0.2,
        slab_bytes: int = 65536,
        directory: str | None = None,
    ) -> None:
        self.txids = txids
        self.ratio = ratio
        self.version = durable  # of the next write
        self.committed = durable  # last committed txid
        self.retired = durable  # last txid whose entries the base holds
        self.nodes: dict[bytes, Node] = {}
        self.snapshots: dict[int, int] = {}  # taken and not released -> entries at creation
        self.in_flight: dict[int, list[bytes]] = {}  # txid -> keys it wrote, in order
        self.changed: list[bytes] = []  # committed keys, not in a checkpoint yet
        self.changing: list[bytes] | None = None  # those of the checkpoint being written
        self.held: list[bytes] = []  # to prune when the checkpoint is over
        self.cleaning: list[bytes] = []  # to prune or remove step by step
        self.epoch = 1
        self.residency = [RESIDENT] * 256
        self.requests = [0] * 256
        self.closed = False

    # ---- what it holds -------------------------------------------------------------------

    @property
    def total(self) -> int:
        """Number of nodes, removed ones included."""
        return len(self.nodes)

    @property
    def size(self) -> int:
        """Number of entries: nodes without the logically removed ones (F-15)."""
        return sum(node.value is not TOMBSTONE for node in self.nodes.values())

    @property
    def allocations(self) -> int:
        """One for each key and each value or tombstone."""
        return sum(1 + len(node.chain) for node in self.nodes.values())

    @property
    def negatives(self) -> int:
        """Number of entries whose newest value is a negative weight (written by ``add_many``)."""
        return sum(self._negative(node.value) for node in self.nodes.values())

    @property
    def live_bytes(self) -> int:
        """Bytes of all nodes and values (here: of keys and values; the kernel's are larger)."""
        return sum(self.group_bytes())

    @property
    def running(self) -> list[int]:
        """Snapshots that protect values, implicit ones included, ascending."""
        return sorted({*self.snapshots, *self.in_flight})

    @property
    def finished(self) -> int:
        """Every snapshot up to this one is complete (F-8, F-17)."""
        return self.running[0] - 1 if self.running else self.version

    def chain(self, key: bytes) -> list[tuple[int, bytes | None]]:
        """Return versions and values of a key, newest first (for tests)."""
        return list(self.nodes[key].chain) if key in self.nodes else []

    def group_bytes(self) -> list[int]:
        out = [0] * 256
        for key, node in self.nodes.items():
            out[group(key)] += len(key) + sum(len(v or b"") for _, v in node.chain)
        return out

    def group_requests(self) -> list[int]:
        """Return the keys requested per group, and halve the counters, so that old use fades."""
        out = list(self.requests)
        self.requests = [n // 2 for n in out]
        return out

    # ---- reading and writing ---------------------------------------------------------------

    def get_many(self, keys: list[bytes]) -> tuple[list[bytes | None], list[int]]:
        """Return the newest values, and the positions that only the base can answer.

        A tombstone and an absence in a resident group are a definite None. Keys may have any order.
        """
        self._open()
        values: list[bytes | None] = []
        missing = []
        for at, key in enumerate(keys):
            self.requests[group(key)] += 1
            node = self.nodes.get(key)
            values.append(node.value if node else None)
            if node is None and self.residency[group(key)] != RESIDENT:
                missing.append(at)
        return values, missing

    def missing(self, keys: list[bytes]) -> list[int]:
        """Return the positions that only the base can answer; count no request."""
        self._open()
        return [
            at
            for at, key in enumerate(keys)
            if key not in self.nodes and self.residency[group(key)] != RESIDENT
        ]

    def put_many(self, keys: list[bytes], values: list[bytes | None]) -> None:
        """Set each key, in key order; None removes it.  A later duplicate wins."""
        self._writable()
        for key, value in sorted(zip(keys, values, strict=True), key=lambda pair: pair[0]):
            self.requests[group(key)] += 1
            self._put(key, value)

    def add_many(
        self, keys: list[bytes], deltas: list[int], missing: list[int], bases: list[bytes | None]
    ) -> int:
        """Add to weights, in key order; a weight of 0 is a removal, and equal keys add up.

        ``missing`` is the result of ``missing(keys)``, ``bases`` the base's values there. Returns
        the change of ``negatives``. Values are weights: 8 bytes, little-endian.
        """
        self._writable()
        before = self.negatives
        stored = dict(zip(missing, bases, strict=True))
        for at in sorted(range(len(keys)), key=keys.__getitem__):
            key, delta = keys[at], deltas[at]
            self.requests[group(key)] += 1
            node = self.nodes.get(key)
            value = node.value if node else stored.get(at)
            weight = (_weight(value) if value is not None else 0) + delta
            self._put(key, Weight(struct.pack("<q", weight)) if weight else TOMBSTONE)
        return self.negatives - before

    def scan_many(
        self, prefixes: list[bytes], base: Any
    ) -> tuple[list[int], list[bytes], list[int]]:
        """Return (position in ``prefixes``, rest of the key, weight), in key order of each.

        ``base`` is an iterator over the base (``seek`` …), or None if all groups are resident.
        """
        self._open()
        positions, rows, weights = [], [], []
        for at, prefix in enumerate(prefixes):
            self.requests[group(prefix)] += 1
            for key, value in sorted(self._under(prefix, base).items()):
                positions.append(at)
                rows.append(key[len(prefix) :])
                weights.append(_weight(value))
        return positions, rows, weights

    def first_many(
        self, prefixes: list[bytes], starts: list[bytes], count: int, base: Any
    ) -> tuple[list[int], list[bytes], list[int]]:
        """Return up to ``count`` entries of each prefix from its start on, as ``scan_many`` does.

        ``starts[i]`` begins with ``prefixes[i]``.
        """
        self._open()
        positions, rows, weights = [], [], []
        for at, prefix in enumerate(prefixes):
            self.requests[group(prefix)] += 1
            found = sorted(self._under(prefix, base).items())
            for key, value in [e for e in found if e[0] >= starts[at]][:count]:
                positions.append(at)
                rows.append(key[len(prefix) :])
                weights.append(_weight(value))
        return positions, rows, weights

    def extreme_many(
        self, prefixes: list[bytes], ends: list[bytes | None], last: bool, base: Any
    ) -> list[bytes | None]:
        """Return the first (or last) rest of a key for each prefix, or None if there is none.

        If ``last``, the result lies before the prefix's element of ``ends``. The least string above
        all keys with the prefix is no bound; None means that no such string exists.
        """
        self._open()
        out: list[bytes | None] = []
        for at, prefix in enumerate(prefixes):
            self.requests[group(prefix)] += 1
            end = ends[at] if last else None
            keys = (k for k in self._under(prefix, base) if end is None or k < end)
            rows = sorted(key[len(prefix) :] for key in keys)
            out.append(rows[-1 if last else 0] if rows else None)
        return out

    def items(self, base: Any) -> Iterator[Chunk]:
        """Yield the newest entries in key order, in bounded chunks.

        Writes between two chunks are seen if they are above the entries that were already yielded.
        Ends when the map is closed.
        """
        after: bytes | None = None
        while not self.closed:
            found = sorted(self._under(b"", base).items())
            rest = [(k, v) for k, v in found if after is None or k > after][:CHUNK]
            if not rest:
                return
            after = rest[-1][0]
            yield [k for k, _ in rest], [v for _, v in rest]

    # ---- counter mode ------------------------------------------------------------------------

    def snapshot(self, txid: int | None = None) -> int:
        """Return the number of a new snapshot, which sees the values of lesser versions (F-9).

        Counter mode: delete the excess of removed nodes if no snapshot runs (F-4, F-16), then
        increment the version. Txid mode: snapshot the committed ``txid`` for a checkpoint; one at a
        time.
        """
        self._open()
        if self.txids:
            return self._checkpoint(txid)
        if not self.snapshots:
            removed = sorted(k for k, n in self.nodes.items() if n.value is TOMBSTONE)
            excess = len(removed) - int(len(self.nodes) * self.ratio)
            for key in removed[: max(excess, 0)]:
                del self.nodes[key]
        self.version += 1
        self.snapshots[self.version] = self.size
        return self.version

    def snapshot_size(self, snapshot: int) -> int:
        """Number of entries when the snapshot was taken (F-15)."""
        self._running(snapshot)
        return self.snapshots[snapshot]

    def read_many(self, keys: list[bytes], snapshot: int) -> list[bytes | None]:
        """Return the values of a snapshot: those of the greatest version below it (F-9)."""
        self._running(snapshot)
        return [
            self._belonging(self.nodes[key], snapshot) if key in self.nodes else None
            for key in keys
        ]

    def entries(self, snapshot: int, through: Through | None = None) -> Iterator[Chunk]:
        """Yield the entries of a snapshot in key order, in chunks; prune nodes on the way (F-6).

        ``through`` may drop or change entries of a chunk (F-21). Ends when the map is closed.
        Several threads may each read their own snapshot while one writes.
        """
        self._running(snapshot)
        keys: list[bytes] = []
        values: list[bytes] = []
        for key in sorted(self.nodes):
            node = self.nodes[key]
            value = self._belonging(node, snapshot)
            self._prune_finished(node)
            if value is not TOMBSTONE:
                keys.append(key)
                values.append(value)
        for at in range(0, len(keys), CHUNK):
            chunk = keys[at : at + CHUNK], values[at : at + CHUNK]
            yield through(*chunk) if through else chunk

    def claim(self, key: bytes) -> bool:
        """Reserve a node for pruning by the caller; return False if it is already claimed (F-7)."""
        if self.nodes[key].claimed:
            return False
        self.nodes[key].claimed = True
        return True

    def unclaim(self, key: bytes) -> None:
        """Release a claimed node."""
        self.nodes[key].claimed = False

    def release(self, snapshot: int) -> None:
        """End a snapshot, in any order (F-17).

        In txid mode its checkpoint has failed, so that all its changes belong to the next one.
        """
        self._running(snapshot)
        del self.snapshots[snapshot]
        if not self.txids:
            return
        assert self.changing is not None
        for key in self.changing:
            self._list_changed(key)
        self.changing = None
        self.cleaning += self.held
        self.held = []

    # ---- txid mode -----------------------------------------------------------------------------

    def begin(self, txid: int) -> None:
        """Begin ``txid``, to which later writes belong; all lesser versions are protected."""
        self._open()
        if not self.txids or txid <= self.version:
            raise BugError(f"txid {txid} does not follow {self.version}")
        self.version = txid
        self.in_flight[txid] = []

    def commit(self, txid: int) -> None:
        """Make ``txid``, the oldest in flight, final; remove values that no reader can request."""
        if txid not in self.in_flight or txid != min(self.in_flight):
            raise BugError(f"txid {txid} is not the oldest in flight")
        keys = self.in_flight.pop(txid)
        self.committed = txid
        for key in keys:
            node = self.nodes[key]
            self._prune(node)
            if len(node.chain) > 1 and self.snapshots and not node.held:
                node.held = True
                node.listed += 1
                self.held.append(key)
            self._list_changed(key)
        self.clean(2 * len(keys) + 64)  # keeps up with any rate of changes

    def rollback(self, txid: int) -> None:
        """Forget every value of ``txid`` and later ones; removals are undone with them."""
        self._open()
        if not self.txids or txid <= self.committed:
            raise BugError(f"txid {txid} is committed")
        for later in sorted((t for t in self.in_flight if t >= txid), reverse=True):
            for key in self.in_flight.pop(later):
                node = self.nodes[key]
                assert node.version == later
                del node.chain[0]
                node.listed -= 1
                if not node.chain:
                    del self.nodes[key]
                else:
                    self._remove_useless(key)
        self.version = max([self.committed, *self.in_flight])

    def changes(self, snapshot: int) -> Iterator[Changed]:
        """Yield entries that differ from the base as of the last ``retire``.

        The chunks are (keys, values or None). They have only entries of the snapshot, in no
        particular order, and are bounded. A key may come twice (with the same value) after a failed
        checkpoint. May run in another thread.
        """
        self._running(snapshot)
        assert self.changing is not None
        keys: list[bytes] = []
        values: list[bytes | None] = []
        for key in self.changing:
            for version, value in self.nodes[key].chain:
                if version < snapshot:
                    if version > self.retired:
                        keys.append(key)
                        values.append(value)
                    break
        for at in range(0, len(keys), CHUNK):
            yield keys[at : at + CHUNK], values[at : at + CHUNK]

    def retire(self, snapshot: int) -> None:
        """End the snapshot, whose changes are in the base; the base is complete up to it.

        Nodes that are no longer needed are removed step by step by ``clean``.
        """
        self._running(snapshot)
        del self.snapshots[snapshot]
        assert self.changing is not None
        self.retired = snapshot - 1
        self.cleaning += self.changing + self.held
        self.changing = None
        self.held = []

    def clean(self, limit: int) -> int:
        """Prune or remove up to ``limit`` nodes after checkpoints; return the number left."""
        for key in self.cleaning[:limit]:
            node = self.nodes[key]
            self._prune(node)
            node.held = False
            node.listed -= 1
            self._remove_useless(key)
        del self.cleaning[:limit]
        return len(self.cleaning)

    # ---- residence -------------------------------------------------------------------------------

    def set_resident(self, group: int, flag: bool) -> None:
        """Set whether all entries of the group are in the map; otherwise reads need the base."""
        self.residency[group] = RESIDENT if flag else SPILLED

    def begin_load(self, group: int) -> None:
        """Start loading the group with ``load``; ``set_resident(group, True)`` ends it.

        Meanwhile no node of the group is removed, so that an entry that is deleted here cannot come
        back from the base. REQUIRES: the iterator for the load is made after this call.
        """
        if self.residency[group] != SPILLED:
            raise BugError(f"group {group} is not spilled")
        self.residency[group] = LOADING

    def load(self, keys: list[bytes], values: list[bytes]) -> None:
        """Add entries of the base to loading groups; newer entries of the map stay."""
        self._open()
        for key, value in zip(keys, values, strict=True):
            if self.residency[group(key)] != LOADING:
                raise BugError(f"group {group(key)} is not being loaded")
            node = self.nodes.setdefault(key, Node())
            # Below values in flight, for a rollback; a committed value makes it useless.
            if not node.chain or node.chain[-1][0] > self.committed:
                node.chain.append((0, value))

    def load_packed(
        self, keys: memoryview, key_bounds: memoryview, values: memoryview, value_bounds: memoryview
    ) -> None:
        """Load packed strings as ``load`` does; string i lies between bounds i and i + 1."""

        def cut(data: memoryview, bounds: memoryview) -> list[bytes]:
            return [bytes(data[a:b]) for a, b in itertools.pairwise(bounds)]

        self.load(cut(keys, key_bounds), cut(values, value_bounds))

    def spill(
        self, group: int, start: bytes | None = None, limit: int = 1 << 60
    ) -> tuple[int, bytes | None]:
        """Make the group spilled and drop entries that the base has.

        Looks at up to ``limit`` nodes from ``start`` on. Returns the bytes freed and the next start
        (None: done). Entries that the base does not have are removed after its checkpoint.
        """
        self.set_resident(group, False)
        before = self.live_bytes
        keys = sorted(
            key
            for key in self.nodes
            if key[:1] == bytes((group,)) and (start is None or key >= start)
        )
        for key in keys[:limit]:
            self._remove_useless(key)
        return before - self.live_bytes, keys[limit] if len(keys) > limit else None

    # ---- end ---------------------------------------------------------------------------------------

    def close(self, timeout_s: float | None = None) -> None:
        """Wait until every snapshot is released or retired, then free everything (F-20).

        Everything but properties and iterators raises BugError from now on.
        """
        if self.snapshots:
            raise BugError("snapshots of the state map are still running")
        self.closed = True
        self.nodes.clear()

    # ---- inside ------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self.closed:
            raise BugError("the state map is closed")

    def _writable(self) -> None:
        self._open()
        if self.txids and self.version not in self.in_flight:
            raise BugError("a write outside a txid")

    def _running(self, snapshot: int) -> None:
        self._open()
        if snapshot not in self.snapshots:
            raise BugError(f"snapshot {snapshot} is not running")

    def _negative(self, value: bytes | None) -> bool:
        return isinstance(value, Weight) and _weight(value) < 0

    def _put(self, key: bytes, value: bytes | None) -> None:
        """Copy if a running snapshot may need the newest value, else replace (F-13).

        Removal is physical without running snapshots, else logical (F-2, F-3, F-14).
        """
        node = self.nodes.get(key)
        if value is TOMBSTONE:
            if node is None and self.residency[group(key)] == RESIDENT:
                return
            if node and not self.running:
                del self.nodes[key]
                return
            if node and node.value is TOMBSTONE:
                return
        if node is None:
            node = self.nodes[key] = Node()
        if node.chain and node.version >= max(self.running, default=0):
            node.chain[0] = (self.version, value)
            return
        node.chain.insert(0, (self.version, value))
        if self.txids:
            self.in_flight[self.version].append(key)
            node.listed += 1

    def _under(self, prefix: bytes, base: Any) -> dict[bytes, bytes]:
        """Return the newest entries under a prefix: the base's of other groups, then the map's."""
        found: dict[bytes, bytes | None] = {}
        if base is not None:
            base.seek(prefix)
            while base.valid() and base.key().startswith(prefix):
                if self.residency[group(base.key())] != RESIDENT:
                    found[base.key()] = base.value()
                base.next()
            base.status()
        for key, node in self.nodes.items():
            if key.startswith(prefix):
                found[key] = node.value
        return {k: v for k, v in found.items() if v is not TOMBSTONE}

    @staticmethod
    def _belonging(node: Node, snapshot: int) -> bytes | None:
        older = (v for version, v in node.chain if version < snapshot)
        return next(older, None)

    def _prune_finished(self, node: Node) -> None:
        """Free values older than the first finished version, in counter mode (F-10, F-11)."""
        if node.claimed:
            return
        for i, (version, _) in enumerate(node.chain):
            if version <= self.finished:
                del node.chain[i + 1 :]
                return

    def _prune(self, node: Node) -> None:
        """Keep only the newest value and those of running snapshots, in txid mode."""
        kept = node.chain[:1]
        for snapshot in reversed(self.running):
            for entry in node.chain:
                if entry[0] < snapshot:
                    if entry[0] < kept[-1][0]:
                        kept.append(entry)
                    break
        node.chain = kept

    def _checkpoint(self, txid: int | None) -> int:
        if txid is None or not self.committed <= txid < min(self.in_flight, default=1 << 63):
            raise BugError(f"txid {txid} is not the committed state")
        if self.snapshots:
            raise BugError("a checkpoint of the state map is running")
        self.committed = txid
        self.version = max(self.version, txid)
        self.snapshots[txid + 1] = self.size
        self.changing, self.changed = self.changed, []
        self.epoch += 1
        return txid + 1

    def _list_changed(self, key: bytes) -> None:
        """Move one listing of the node to the changes of the next checkpoint."""
        node = self.nodes[key]
        if node.epoch == self.epoch:
            node.listed -= 1
        else:
            node.epoch = self.epoch
            self.changed.append(key)

    def _remove_useless(self, key: bytes) -> None:
        """Remove a node if no list contains it and the base, or its absence, answers the same."""
        node = self.nodes[key]
        if node.listed or node.version > self.retired:
            return
        if self.residency[group(key)] == SPILLED:
            del self.nodes[key]
        elif node.value is TOMBSTONE:
            if self.residency[group(key)] == RESIDENT:
                del self.nodes[key]
            else:  # loading: later
                node.listed += 1
                self._list_changed(key)


def group(key: bytes) -> int:
    """Return the key group: the first byte of a physical key."""
    return key[0] if key else 0


def _weight(value: bytes) -> int:
    weight: int = struct.unpack("<q", value)[0]
    return weight


class Pairs:
    """A base with the methods of RocksDB's iterator, over a copy of a dictionary."""

    def __init__(self, pairs: dict[bytes, bytes]) -> None:
        self.pairs = sorted(pairs.items())
        self.at = len(self.pairs)

    def seek(self, key: bytes) -> None:
        self.at = sum(k < key for k, _ in self.pairs)

    def seek_for_prev(self, key: bytes) -> None:
        self.at = sum(k <= key for k, _ in self.pairs) - 1

    def seek_to_last(self) -> None:
        self.at = len(self.pairs) - 1

    def valid(self) -> bool:
        return 0 <= self.at < len(self.pairs)

    def key(self) -> bytes:
        return self.pairs[self.at][0]

    def value(self) -> bytes:
        return self.pairs[self.at][1]

    def next(self) -> None:
        self.at += 1

    def prev(self) -> None:
        self.at -= 1

    def status(self) -> None:
        """Do nothing: a damaged base would raise here."""
