"""The output of each node at a snapshot, as far as equalities need it, and the way back.

A *relation* is the output of a node, restricted to rows that satisfy equalities.  Its rows come in
*pieces*, and each piece can mark the rows of tables that its rows are made from:

    forward    source ─► piece ─► node ─► piece ─► … ─► piece of the view
    back       table  ◄─ mask  ◄─ mask ◄─ …            ◄─ mask of the wanted rows

Large tables are read piece by piece.  Nodes whose output is the sum of the outputs over the pieces
process each piece alone; groups add them up; other nodes need all pieces at once, within limits.
A row goes back to all input rows from which it follows.  Of equal rows (of a DISTINCT, beyond a
LIMIT) the query does not tell which one counts, so all of them contribute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from headrace.collections import plan
from headrace.collections.base import columns_of, encode, keys_of
from headrace.collections.plan import PhysicalPlan, SourceSpec
from headrace.errors import UnsupportedError, UserError
from headrace.kernels import packed, packed_order, rows
from headrace.kernels.buffers import Int64s
from headrace.kernels.numbering import Numbering
from headrace.kernels.packed import Packed
from headrace.provenance import numbered, pushing
from headrace.provenance.contributions import Contributions
from headrace.provenance.numbered import RowWise
from headrace.provenance.runner import Input, Runner, joined
from headrace.provenance.values import (
    AllowedValues,
    Equalities,
    Mask,
    among,
    merged,
    satisfied,
    values_of,
)
from headrace.types import Schema, diff_batch

Reader = Callable[[SourceSpec, Equalities], Iterator[list[pa.Array]]]
"""Yields the columns of ``load_columns`` of rows that satisfy the equalities, in one order."""
Outer = Callable[[Equalities], "TracedRelation"]


@dataclass(slots=True)
class TracedRows:
    """Rows of a relation, with their weights."""

    batch: pa.RecordBatch
    back: Callable[[Mask], None]
    """Marks the rows of tables that the rows of the mask are made from."""

    @property
    def count(self) -> int:
        """Number of its rows."""
        return int(self.batch.num_rows)

    def all(self) -> Mask:
        """Return the mask of all rows."""
        return np.ones(self.count, np.bool_)

    def only(self, mask: Mask) -> TracedRows:
        """Return the piece with the rows of ``mask``."""
        if mask.all():
            return self
        places, count, back = np.flatnonzero(mask), self.count, self.back

        def whole(some: Mask) -> None:
            out = np.zeros(count, np.bool_)
            out[places[some]] = True
            back(out)

        return TracedRows(self.batch.filter(pa.array(mask)), whole)


@dataclass(slots=True)
class Budget:
    """Memory for pieces that must be held at once."""

    bytes_max: int
    used: int = 0

    def hold(self, piece: TracedRows) -> None:
        """Count a piece that stays in memory.

        Raises:
            UserError: 54000, there is no more room.
        """
        self.used += piece.batch.nbytes
        if self.used > self.bytes_max:
            raise UserError(
                "too many rows must be held in memory to trace the result",
                detail=f"They take more than {self.bytes_max >> 20} MB.",
                hint="Give more columns in the key, above all columns of tables, PARTITION BY or"
                " GROUP BY that the query shows unchanged; or raise memory_bytes.",
                sqlstate="54000",
            )


class TracedRelation:
    """Rows of one node's output that satisfy ``equalities``."""

    def __init__(
        self,
        relations: TracedPlan,
        node: plan.Node,
        equalities: Equalities,
        make: Callable[[], Iterator[TracedRows]],
    ) -> None:
        self.node: Final = node
        self.equalities: Final = equalities
        self._relations = relations
        self._make = make
        self._whole: TracedRows | None = None
        self._streamed = False

    def pieces(self) -> Iterator[TracedRows]:
        """Yield its pieces, in the same order each time; more than one are made anew."""
        if self._whole is not None:
            yield self._whole
            return
        if self._streamed:
            yield from self._make()
            return
        made = self._make()
        first = [*islice(made, 2)]
        if len(first) < 2:
            self._whole = first[0] if first else self._nothing()
            self._relations.budget.hold(self._whole)
            yield self._whole
            return
        self._streamed = True
        yield from first
        yield from made

    def small(self) -> TracedRows | None:
        """Return its only piece; None: it has several."""
        if self._whole is None and not self._streamed:
            for _ in self.pieces():
                break
        return self._whole

    def whole(self) -> TracedRows:
        """Return all rows as one piece, which stays in memory."""
        found = self.small()
        if found is None:
            parts = []
            for piece in self.pieces():
                self._relations.budget.hold(piece)
                parts.append(piece)
            found = self._whole = _concatenated(self.node.schema, parts)
        return found

    def empty(self) -> bool:
        """Return whether it has no row."""
        return not any(piece.count for piece in self.pieces())

    def _nothing(self) -> TracedRows:
        return _concatenated(self.node.schema, [])


class TracedPlan:
    """The relations of one plan at one snapshot."""

    def __init__(
        self,
        physical: PhysicalPlan,
        runner: Runner,
        read: Reader,
        budget: Budget,
        contributions: Contributions,
        outer: Mapping[str, Outer] | None = None,
    ) -> None:
        """``outer``: relations that stand for nodes of the plan (in the step of a recursion)."""
        self.plan: Final = physical
        self.budget: Final = budget
        self._runner = runner
        self._read = read
        self._contributions = contributions
        self._outer = outer or {}
        self._known: dict[tuple[str, frozenset[tuple[int, AllowedValues]]], TracedRelation] = {}
        self.partitions = 0
        """Rows of the window partitions that contributing rows are in."""
        self.constants = 0
        """Rows of VALUES that contribute."""

    def of(self, name: str, equalities: Equalities) -> TracedRelation:
        """Return the relation of the node ``name``."""
        if name in self._outer:
            return self._outer[name](equalities)
        key = (name, frozenset(equalities.items()))
        if key not in self._known:
            node = self.plan.node(name)
            number = next(self._contributions.numbers)

            def make() -> Iterator[TracedRows]:
                for piece in self._pieces(node, equalities, number):
                    count = piece.count
                    columns = columns_of(piece.batch)
                    yield piece.only(satisfied(columns, count, equalities))

            self._known[key] = TracedRelation(self, node, equalities, make)
        return self._known[key]

    def inputs(self, node: plan.Node, equalities: Equalities) -> list[TracedRelation]:
        """Return the relations that the output of ``node`` with ``equalities`` follows from."""
        names = plan.inputs(node)
        schemas = [self.plan.node(name).schema for name in names]
        pushed = pushing.of_inputs(node, schemas, equalities)
        if isinstance(node, plan.JoinSpec):
            return self._sides(node, schemas, pushed, equalities)
        return [self.of(name, some) for name, some in zip(names, pushed, strict=True)]

    def order(self, node: plan.JoinSpec, equalities: Equalities) -> tuple[tuple[int, int], bool]:
        """Return in which order the sides of a join are computed.

        The flag says that rows of the second side without a match in the first can be left out.
        """
        schemas = [self.plan.node(name).schema for name in plan.inputs(node)]
        pushed = pushing.of_inputs(node, schemas, equalities)
        needs = pushing.demands(node, len(schemas[0]), equalities)
        free = (
            node.op in ("inner", "semi") or (node.op in ("left", "full") and needs[1]),
            node.op != "full" or needs[0],
        )
        first, second = sorted((0, 1), key=lambda port: (not free[1 - port], not pushed[port]))
        return (first, second), free[second]

    def unpushed(self, source: SourceSpec, equalities: Equalities) -> TracedRelation:
        """Return the rows of a table before the filter of its scan."""
        bare = replace(source, pushdown=(), wanted=())
        return TracedRelation(self, bare, equalities, lambda: self._source(bare, equalities, -1))

    def _pieces(  # noqa: C901  one case per node
        self, node: plan.Node, equalities: Equalities, number: int
    ) -> Iterator[TracedRows]:
        if isinstance(node, SourceSpec):
            yield from self._source(node, equalities, number)
            return
        if isinstance(node, plan.ValuesSpec):
            yield TracedRows(self._runner.run(node, [((), ())]), self._constant)
            return
        if isinstance(node, plan.RecursiveSpec):
            yield self._recursive(node)
            return
        inputs = self.inputs(node, equalities)
        match node:
            case plan.SinkSpec() | plan.UnionSpec():
                for relation in inputs:
                    for piece in relation.pieces():
                        yield TracedRows(joined(node.schema, [piece.batch]), piece.back)
            case plan.JoinSpec():
                yield from self._joined(node, inputs)
            case plan.ReduceSpec() | plan.DistinctSpec():
                yield self._grouped(node, inputs[0])
            case plan.TopKSpec() | plan.WindowSpec():
                yield self._chosen(node, inputs[0].whole())
            case plan.SetOpSpec():
                yield self._set(node, inputs[0].whole(), inputs[1].whole())
            case _ if isinstance(node, RowWise):
                for piece in inputs[0].pieces():
                    yield self._row_wise(node, inputs[0].node.schema, piece)
            case _:
                kind = plan.kind(type(node))
                raise UnsupportedError(f"the rows of a {kind} node cannot be traced")

    # --- leaves

    def _source(
        self, node: SourceSpec, equalities: Equalities, number: int
    ) -> Iterator[TracedRows]:
        width = len(node.columns)
        for place, columns in enumerate(self._read(node, equalities)):
            ones = pa.array(np.ones(len(columns[0]), np.int64))
            batch = diff_batch(node.schema, columns[:width], ones)
            yield TracedRows(batch, self._marking(node, number, place, columns))

    def _marking(
        self, node: SourceSpec, number: int, place: int, columns: list[pa.Array]
    ) -> Callable[[Mask], None]:
        return lambda mask: self._contributions.add(node, number, place, columns, mask)

    def _constant(self, mask: Mask) -> None:
        self.constants += int(mask.sum())

    # --- nodes that process one row, or one pair, at a time

    def _row_wise(self, node: RowWise, schema: Schema, piece: TracedRows) -> TracedRows:
        made, place = numbered.row_wise(node, schema)
        out = self._runner.run(made, [_with_numbers(schema, piece)])
        numbers = out.column(place).to_numpy()

        def back(mask: Mask) -> None:
            piece.back(_marked(piece.count, numbers[mask]))

        return TracedRows(_without(node.schema, out, place), back)

    def _sides(
        self,
        node: plan.JoinSpec,
        schemas: Sequence[Schema],
        pushed: Sequence[dict[int, AllowedValues]],
        equalities: Equalities,
    ) -> list[TracedRelation]:
        """Return the two sides; one is restricted to the keys of the other if that is exact."""
        names = (node.left, node.right)
        (first, second), free = self.order(node, equalities)
        out: dict[int, TracedRelation] = {first: self.of(names[first], pushed[first])}
        some = pushed[second]
        if free and (piece := out[first].small()) is not None:
            keys = (node.left_keys, node.right_keys)[first]
            found = {
                k: values
                for k in keys
                if (values := values_of(piece.batch.column(k), schemas[first][k].oid)) is not None
            }
            some = merged(some, pushing.from_matches(node, schemas, second, found))
        out[second] = self.of(names[second], some)
        return [out[0], out[1]]

    def _joined(
        self, node: plan.JoinSpec, inputs: Sequence[TracedRelation]
    ) -> Iterator[TracedRows]:
        left, right = inputs
        if right.small() is None and (node.op == "inner" and left.small() is not None):
            for piece in right.pieces():
                yield self._pairs(node, inputs, left.whole(), piece)
            return
        held = right.whole()
        if node.op == "full":
            yield self._pairs(node, inputs, left.whole(), held)
            return
        for piece in left.pieces():
            yield self._pairs(node, inputs, piece, held)

    def _pairs(
        self,
        node: plan.JoinSpec,
        inputs: Sequence[TracedRelation],
        left: TracedRows,
        right: TracedRows,
    ) -> TracedRows:
        schemas = [relation.node.schema for relation in inputs]
        made, place, other = numbered.pairs(node, *schemas)
        if node.left_only:
            sides = [_with_numbers(schemas[0], left), (schemas[1], [right.batch])]
        else:
            sides = [_with_numbers(s, p) for s, p in zip(schemas, (left, right), strict=True)]
        out = self._runner.run(made, sides)
        lefts = out.column(place)

        def back(mask: Mask) -> None:
            mine = _marked(left.count, _numbers(lefts, mask))
            left.back(mine)
            if node.op == "semi":
                right.back(self._matches(node, schemas, left, right, mine))
            elif not node.left_only:
                right.back(_marked(right.count, _numbers(out.column(other), mask)))

        return TracedRows(_without(node.schema, out, place, other), back)

    def _matches(
        self,
        node: plan.JoinSpec,
        schemas: Sequence[Schema],
        left: TracedRows,
        right: TracedRows,
        wanted: Mask,
    ) -> Mask:
        """Return which rows of the right match the ``wanted`` rows of the left, in a semi join."""
        some = left.only(wanted)
        made, place, other = numbered.matches(node, schemas[0], schemas[1])
        sides = [_with_numbers(s, p) for s, p in zip(schemas, (some, right), strict=True)]
        out = self._runner.run(made, sides)
        mask = np.ones(out.num_rows, np.bool_)
        if node.compared is not None and out.num_rows:
            mine, theirs = node.compared.left, place + 1 + node.compared.right
            oid = schemas[0][mine].oid
            mask = _compared(node.compared, out.column(mine), out.column(theirs), oid)
        return _marked(right.count, _numbers(out.column(other), mask))

    # --- nodes that combine rows

    def _grouped(
        self, node: plan.ReduceSpec | plan.DistinctSpec, below: TracedRelation
    ) -> TracedRows:
        schema = below.node.schema
        out = self._runner.run(node, [(schema, (piece.batch for piece in below.pieces()))])
        keys = node.keys if isinstance(node, plan.ReduceSpec) else tuple(range(len(schema)))
        oids = [schema[key].oid for key in keys]
        shown = keys_of(columns_of(out)[: len(keys)], oids, out.num_rows)

        def back(mask: Mask) -> None:
            wanted = shown.take(np.flatnonzero(mask))
            for piece in below.pieces():
                mine = keys_of([piece.batch.column(k) for k in keys], oids, piece.count)
                piece.back(among(mine, wanted) if keys else np.full(piece.count, mask.any()))

        return TracedRows(out, back)

    def _chosen(self, node: plan.TopKSpec | plan.WindowSpec, piece: TracedRows) -> TracedRows:
        """Return the output of a node whose rows are rows of its input, with more columns."""
        schema = node.schema[: piece.batch.num_columns - 1]
        out = self._runner.run(node, [(schema, [piece.batch])])
        shown = encode(columns_of(out)[: len(schema)], out.num_rows)

        def back(mask: Mask) -> None:
            mine = encode(columns_of(piece.batch), piece.count)
            wanted = among(mine, shown.take(np.flatnonzero(mask)))
            if isinstance(node, plan.WindowSpec):
                self.partitions += _peers(
                    piece.batch, [(k, schema[k].oid) for k in node.keys], wanted
                )
            piece.back(wanted)

        return TracedRows(out, back)

    def _set(self, node: plan.SetOpSpec, left: TracedRows, right: TracedRows) -> TracedRows:
        schema, oids = node.schema, [field.oid for field in node.schema]
        out = self._runner.run(node, [(schema, [left.batch]), (schema, [right.batch])])
        shown = keys_of(columns_of(out), oids, out.num_rows)

        def back(mask: Mask) -> None:
            wanted = shown.take(np.flatnonzero(mask))
            sides = (left, right) if node.op == "intersect" else (left,)
            for side in sides:
                side.back(among(keys_of(columns_of(side.batch), oids, side.count), wanted))

        return TracedRows(out, back)

    # --- recursion

    def _recursive(self, node: plan.RecursiveSpec) -> TracedRows:
        """Return the rows of all iterations, each made from those of the one before."""
        nodes = (*(self.plan.node(name) for name in node.outer), *node.step)
        work, last = node.step[0], node.step[-1]
        outer: dict[str, Outer] = {name: partial(self.of, name) for name in node.outer}
        current = self.of(node.base, {}).whole()
        seen = packed.empty(0)
        done: list[TracedRows] = []
        while True:
            if node.distinct:
                current, seen = _new(node.schema, current, seen)
            if not current.count or len(done) > node.iterations_max:
                return _concatenated(node.schema, done)
            self.budget.hold(current)
            done.append(current)
            inner = TracedPlan(
                PhysicalPlan(nodes),
                self._runner,
                self._read,
                self.budget,
                self._contributions,
                {**outer, work.id: self._given(work, _iterated(work, current, len(done) - 1))},
            )
            found = inner.of(last.id, {}).whole()
            current = TracedRows(
                _without(node.schema, found.batch, len(last.schema) - 1), found.back
            )

    def _given(self, node: plan.Node, piece: TracedRows) -> Outer:
        """Return a relation of known rows, for any equalities."""

        def restricted(equalities: Equalities) -> TracedRelation:
            mask = satisfied(columns_of(piece.batch), piece.count, equalities)
            return TracedRelation(self, node, equalities, lambda: iter([piece.only(mask)]))

        return restricted


def _new(schema: Schema, piece: TracedRows, seen: Packed) -> tuple[TracedRows, Packed]:
    """Return the rows whose keys were not seen, one of each; and all keys seen."""
    oids = [field.oid for field in schema]
    keys = keys_of(columns_of(piece.batch), oids, piece.count)
    fresh = ~among(keys, seen)
    some, mine = piece.only(fresh), keys.take(np.flatnonzero(fresh))
    _, firsts = Numbering().add(mine)
    batch = some.batch.take(pa.array(firsts))
    ones = pa.array(np.ones(len(firsts), np.int64))

    def back(mask: Mask) -> None:
        some.back(among(mine, mine.take(firsts[mask])))

    one_each = TracedRows(diff_batch(schema, columns_of(batch), ones), back)
    return one_each, packed.joined([seen, mine.take(firsts)])


def _iterated(node: plan.Node, piece: TracedRows, iteration: int) -> TracedRows:
    """Return rows of the work table: those of ``piece`` with the number of their iteration."""
    numbers = pa.array(np.full(piece.count, iteration, np.int32))
    columns = [*columns_of(piece.batch), numbers]
    return TracedRows(diff_batch(node.schema, columns, piece.batch.columns[-1]), piece.back)


def _concatenated(schema: Schema, parts: Sequence[TracedRows]) -> TracedRows:
    if not parts:
        return TracedRows(joined(schema, []), lambda _: None)
    ends = np.cumsum([part.count for part in parts])

    def back(mask: Mask) -> None:
        for part, some in zip(parts, np.split(mask, ends[:-1]), strict=True):
            if some.any():
                part.back(some)

    if len(parts) == 1:
        return parts[0]
    return TracedRows(joined(schema, [part.batch for part in parts]), back)


def _peers(batch: pa.RecordBatch, by: Sequence[tuple[int, int]], wanted: Mask) -> int:
    """Return how many rows equal a ``wanted`` one in the columns ``by`` (place, type)."""
    if not by:
        return int(batch.num_rows)
    keys = rows.pack_keys([batch.column(k) for k, _ in by], [oid for _, oid in by])
    return int(among(keys, keys.take(np.flatnonzero(wanted))).sum())


def _with_numbers(schema: Schema, piece: TracedRows) -> Input:
    """Return the rows of a piece with their numbers, as an input of a node."""
    wide = (*schema, numbered.NUMBER)
    numbers = pa.array(np.arange(piece.count, dtype=np.int64))
    columns = [*columns_of(piece.batch), numbers]
    return wide, [diff_batch(wide, columns, piece.batch.columns[-1])]


def _without(schema: Schema, batch: pa.RecordBatch, *places: int) -> pa.RecordBatch:
    columns = [c for n, c in enumerate(columns_of(batch)) if n not in places]
    return diff_batch(schema, columns, batch.columns[-1])


def _numbers(column: pa.Array, mask: Mask) -> Int64s:
    """Return the numbers of rows that a join outputs; NULLs stand for no row."""
    found: Int64s = column.filter(pa.array(mask)).drop_null().to_numpy()
    return found


def _marked(count: int, numbers: Int64s) -> Mask:
    mask = np.zeros(count, np.bool_)
    mask[numbers] = True
    return mask


def _compared(how: plan.Comparison, left: pa.Array, right: pa.Array, oid: int) -> Mask:
    """Return in which pairs of values of type ``oid`` the comparison is true."""
    sides = [rows.pack_keys([column], [oid]) for column in (left, right)]
    order = packed_order.compared(*sides)
    found = {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[how.operator]
    valid = rows.whole([left, right]).astype(np.bool_)
    mask: Mask = found & valid
    return mask
