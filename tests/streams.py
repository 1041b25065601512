"""Change batches as the forwarder makes them, from tables that store their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.collections.plan import SourceColumn, SourceSpec
from headrace.collections.source import load_columns
from headrace.expressions.ir import Expr
from headrace.kernels import text
from headrace.kernels.pgoutput import Changes
from headrace.types import Field
from tests.reference import Row, value

Texts = tuple[str | None, ...]
INSERT, UPDATE, DELETE, TRUNCATE = range(4)


def numbered(changes: Changes) -> pa.RecordBatch:
    """Return a decoded change batch with columns by number; the table never dropped one."""
    numbers = {c.name: n for n, c in enumerate(changes.relation.columns, 1)}
    kinds = [name.partition(":") for name in changes.batch.schema.names]
    return changes.batch.rename_columns(
        [f"{kind}:{numbers[column]}" if column else kind for kind, _, column in kinds]
    )


@dataclass(frozen=True)
class Op:
    """One change; ``old`` has the whole old row, even if the stream carries only a part of it."""

    kind: int
    new: Texts | None = None
    old: Texts | None = None
    unchanged: frozenset[int] = frozenset()


@dataclass
class Table:
    """A table; the view reads all its columns, or only ``needed``."""

    oid: int
    columns: tuple[tuple[str, int], ...]
    key: tuple[int, ...]
    """Positions of the key columns; empty for REPLICA IDENTITY FULL."""
    needed: tuple[int, ...] | None = None
    wanted: tuple[Expr, ...] = ()
    rows: list[Texts] = field(default_factory=list)

    def source(self, node_id: str) -> SourceSpec:
        """Return the plan node that reads the table."""
        all_columns = [SourceColumn(i + 1, name, oid) for i, (name, oid) in enumerate(self.columns)]
        places = range(len(self.columns)) if self.needed is None else self.needed
        columns = tuple(all_columns[i] for i in places)
        return SourceSpec(
            id=node_id,
            table_oid=self.oid,
            schema_name="public",
            table_name=f"t{self.oid}",
            columns=columns,
            key=tuple(all_columns[i] for i in self.key),
            full_identity=not self.key,
            schema=tuple(Field(c.name, c.oid) for c in columns),
            wanted=self.wanted,
        )

    def typed(self) -> list[Row]:
        """Return the rows with values as in the reference evaluator."""
        return [
            tuple(value(row[c.attnum - 1], c.oid) for c in load_columns(self.source("s")))
            for row in self.rows
        ]

    def load(self) -> list[pa.Array]:
        """Return the rows as population loads them."""
        return [
            text.parse(pa.array([r[c.attnum - 1] for r in self.rows], pa.string()), c.oid)
            for c in load_columns(self.source("s"))
        ]

    def carry_out(self, ops: Sequence[Op]) -> None:
        """Apply the changes to the rows."""
        for op in ops:
            if op.kind == TRUNCATE:
                self.rows.clear()
            if op.old is not None:
                self.rows.remove(op.old)
            if op.new is not None:
                self.rows.append(op.new)

    def changes(self, ops: Sequence[Op], lsn: int = 100) -> pa.RecordBatch:
        """Return the ops as one change batch."""
        olds = [self._old(op) for op in ops]
        names = ["__op", "__lsn", "__old"]
        arrays = [
            pa.array([op.kind for op in ops], pa.int8()),
            pa.array([lsn] * len(ops), pa.int64()),
            pa.array([kind for kind, _ in olds], pa.int8()),
        ]
        for i in range(len(self.columns)):
            new = [None if op.new is None or i in op.unchanged else op.new[i] for op in ops]
            arrays.append(pa.array(new, pa.string()))
            arrays.append(pa.array([old[i] for _, old in olds], pa.string()))
            names += [f"n:{i + 1}", f"o:{i + 1}"]
            flags = [i in op.unchanged for op in ops]
            if any(flags):
                arrays.append(pa.array(flags, pa.bool_()))
                names.append(f"u:{i + 1}")
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def _old(self, op: Op) -> tuple[int, Texts]:
        nothing: Texts = (None,) * len(self.columns)
        if op.old is None:
            return 0, nothing
        if not self.key:
            return 2, op.old
        same = op.new is not None and all(op.new[i] == op.old[i] for i in self.key)
        # Postgres logs the old key if it changed, or if it is stored apart.
        if same and not op.unchanged & set(self.key):
            return 0, nothing
        return 1, tuple(v if i in self.key else None for i, v in enumerate(op.old))
