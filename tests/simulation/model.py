"""The tables of the source, the views over them, and the rows of each view at each position."""

from __future__ import annotations

import bisect
import random
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.collections import plan
from headrace.collections.plan import PhysicalPlan
from headrace.types import INT4, INT8, Field
from tests import plans
from tests.streams import Table

Row = tuple[str, ...]
Rows = Counter[Row]
Source = dict[int, tuple[int, int]]
"""Rows of a table: two more columns by ``id``."""

A: Final = 101
B: Final = 102
_COLUMNS: Final = {
    A: (("id", INT4), ("k", INT4), ("v", INT4)),
    B: (("id", INT4), ("k", INT4), ("w", INT4)),
}
_IDS: Final = 12
_KEYS: Final = 4
_EPOCH_US: Final = 1_000_000


@dataclass(frozen=True)
class ViewModel:
    """One view: its plan, its commit group, and its rows given those of the tables."""

    id: int
    name: str
    group: str
    plan: PhysicalPlan
    rows: Callable[[Source, Source], Rows]


@dataclass(frozen=True)
class Transaction:
    """A committed transaction, as the stream carries it."""

    commit_lsn: int
    end_lsn: int
    tables: frozenset[int]
    messages: list[bytes]


def views() -> list[ViewModel]:
    """Return the views: aggregates, a filter, joins, and two that share a join."""
    one, two = (Table(oid, _COLUMNS[oid], (0,)) for oid in (A, B))
    a, b = one.source("a"), two.source("b")
    counts = plan.ReduceSpec(
        "g",
        "a",
        (1,),
        (
            plan.AggregateSpec("count_star", None, None, Field("c", INT8)),
            plan.AggregateSpec("sum", 2, None, Field("s", INT8)),
        ),
        (Field("k", INT4), Field("c", INT8), Field("s", INT8)),
    )
    large = plan.FilterSpec("f", "a", (plans.native(">", plans.col(1), plans.number(1)),), a.schema)
    by_key = plans.join("on_k", a, b, (1,), (1,))
    by_id = plans.join("on_id", a, b, (0,), (0,))
    per_key = plan.ReduceSpec(
        "per_k",
        "on_id",
        (1,),
        (
            plan.AggregateSpec("count_star", None, None, Field("c", INT8)),
            plan.AggregateSpec("sum", 5, None, Field("s", INT8)),
        ),
        (Field("k", INT4), Field("c", INT8), Field("s", INT8)),
    )
    some = plan.FilterSpec(
        "some", "on_id", (plans.native(">", plans.col(5), plans.number(3)),), by_id.schema
    )
    return [
        ViewModel(1, "counts", "", plans.finish(a, counts), _counts),
        ViewModel(2, "large", "", plans.finish(a, large), _large),
        ViewModel(3, "by_key", "joins", plans.finish(a, b, by_key), _by_key),
        ViewModel(4, "per_key", "", plans.finish(a, b, by_id, per_key), _per_key),
        ViewModel(5, "some", "shared", plans.finish(a, b, by_id, some), _some),
    ]


def _text(*values: int) -> Row:
    return tuple(map(str, values))


def _grouped(pairs: Sequence[tuple[int, int]]) -> Rows:
    count, total = Counter[int](), Counter[int]()
    for key, value in pairs:
        count[key] += 1
        total[key] += value
    return Counter(_text(key, count[key], total[key]) for key in count)


def _counts(a: Source, b: Source) -> Rows:
    return _grouped(list(a.values()))


def _large(a: Source, b: Source) -> Rows:
    return Counter(_text(i, k, v) for i, (k, v) in a.items() if k > 1)


def _by_key(a: Source, b: Source) -> Rows:
    return Counter(
        _text(i, k, v, j, m, w) for i, (k, v) in a.items() for j, (m, w) in b.items() if k == m
    )


def _per_key(a: Source, b: Source) -> Rows:
    return _grouped([(k, b[i][1]) for i, (k, _) in a.items() if i in b])


def _some(a: Source, b: Source) -> Rows:
    return Counter(_text(i, *a[i], i, *b[i]) for i in a if i in b and b[i][1] > 3)


class History:
    """All transactions of the source, and the rows that the views must have after each."""

    def __init__(self, views: Sequence[ViewModel], start_lsn: int) -> None:
        self.views: Final = views
        self.transactions: Final[list[Transaction]] = []
        self.end_lsn = start_lsn
        self._tables: dict[int, Source] = {A: {}, B: {}}
        self._lsns = [start_lsn]
        self._rows: list[dict[int, Rows]] = [self._shown()]
        self._sources = [self._copy()]
        """The rows of the tables after each transaction."""

    def expected(self, view_id: int, lsn: int) -> Rows:
        """Return the rows of a view after all transactions that end at ``lsn`` or before."""
        return self._rows[bisect.bisect_right(self._lsns, lsn) - 1][view_id]

    def last_change(self, view_id: int) -> int:
        """Return the LSN of the last transaction that changed a view."""
        rows = self._rows
        at = len(rows) - 1
        while at and rows[at - 1][view_id] == rows[at][view_id]:
            at -= 1
        return self._lsns[at]

    def commit(self, chance: random.Random, now: float) -> None:
        """Make a transaction of random changes."""
        changes: list[bytes] = []
        touched: set[int] = set()
        for _ in range(chance.choice((1, 1, 2, 3, 8))):
            table = chance.choice((A, B))
            touched.add(table)
            changes += self._change(chance, table)
        begin = self.end_lsn + chance.randrange(8, 400)
        end = begin + 48
        at, xid = int(now * _EPOCH_US), 700 + len(self.transactions)
        first = struct.pack("!cQqI", b"B", begin, at, xid)
        last = struct.pack("!cBQQq", b"C", 0, begin, end, at)
        self.transactions.append(
            Transaction(begin, end, frozenset(touched), [first, *changes, last])
        )
        self.end_lsn = end
        self._lsns.append(end)
        self._rows.append(self._shown())
        self._sources.append(self._copy())

    def cut(self, lsn: int) -> None:
        """Go back to ``lsn``: later transactions have never been."""
        kept = bisect.bisect_right(self._lsns, lsn)
        del self.transactions[kept - 1 :], self._lsns[kept:], self._rows[kept:]
        del self._sources[kept:]
        self._tables = {oid: dict(rows) for oid, rows in self._sources[-1].items()}
        self.end_lsn = lsn

    def _copy(self) -> dict[int, Source]:
        return {oid: dict(rows) for oid, rows in self._tables.items()}

    def write_other(self, chance: random.Random) -> None:
        """Write WAL that the publication does not have."""
        self.end_lsn += chance.randrange(8, 4_000)

    def _shown(self) -> dict[int, Rows]:
        return {view.id: view.rows(self._tables[A], self._tables[B]) for view in self.views}

    def _change(self, chance: random.Random, table: int) -> list[bytes]:
        rows = self._tables[table]
        if rows and chance.random() < 0.01:
            rows.clear()
            return [struct.pack(">cIBI", b"T", 1, 0, table)]
        i = chance.randrange(_IDS)
        new = (chance.randrange(_KEYS), chance.randrange(9))
        if i not in rows:
            rows[i] = new
            return [_head(b"I", table) + b"N" + _tuple(i, *new)]
        if chance.random() < 0.4:
            del rows[i]
            return [_head(b"D", table) + b"K" + _tuple(i, None, None)]
        j = chance.randrange(_IDS)
        if j in rows or chance.random() < 0.7:
            rows[i] = new
            return [_head(b"U", table) + b"N" + _tuple(i, *new)]
        del rows[i]
        rows[j] = new
        return [_head(b"U", table) + b"K" + _tuple(i, None, None) + b"N" + _tuple(j, *new)]


def relation(oid: int) -> bytes:
    """Return the message that describes a table."""
    columns = _COLUMNS[oid]
    body = b"".join(
        struct.pack(">B", place == 0) + name.encode() + b"\0" + struct.pack(">Ii", kind, -1)
        for place, (name, kind) in enumerate(columns)
    )
    head = _head(b"R", oid) + f"public\0t{oid}\0d".encode()
    return head + struct.pack(">H", len(columns)) + body


def columns(oid: int) -> list[str]:
    """Return the names of a table's columns."""
    return [name for name, _ in _COLUMNS[oid]]


def _head(kind: bytes, oid: int) -> bytes:
    return kind + struct.pack(">I", oid)


def _tuple(*values: int | None) -> bytes:
    cells = [
        b"n" if v is None else b"t" + struct.pack(">I", len(str(v))) + str(v).encode()
        for v in values
    ]
    return struct.pack(">H", len(values)) + b"".join(cells)
