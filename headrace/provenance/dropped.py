"""The first operators at which rows with given values are dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from headrace.collections import plan
from headrace.collections.plan import SourceSpec
from headrace.provenance import pushing
from headrace.provenance.relations import TracedPlan, TracedRelation
from headrace.provenance.values import Equalities

_LACKS: Final = {
    "intersect": "the right side of INTERSECT has no such row",
    "except": "the right side of EXCEPT has such a row",
}


@dataclass(frozen=True, slots=True)
class DroppedAt:
    """A node with input rows that have the values, and no such output row."""

    node: str
    rows: int
    """Number of these rows in its input; of a table: before the filter of its scan."""
    reason: str


class DroppedRows:
    """Finds where rows are dropped."""

    def __init__(self, relations: TracedPlan, shown: Callable[[SourceSpec], str]) -> None:
        """``shown`` names a table."""
        self._relations = relations
        self._shown = shown

    def first(self, relation: TracedRelation, *, partner: bool = False) -> Iterator[DroppedAt]:
        """Yield the operators, nearest to the tables, that leave ``relation`` without rows.

        A union has one for each of its inputs.  ``partner``: the rows must match others of a join.
        REQUIRES: the relation is empty.
        """
        node, equalities = relation.node, relation.equalities
        if isinstance(node, SourceSpec):
            yield self._of_table(node, equalities, partner=partner)
            return
        if isinstance(node, plan.TopKSpec | plan.WindowSpec):
            yield from self._of_chosen(node, equalities, partner=partner)
            return
        other = self._other_values(node, equalities)
        if other is not None:
            yield other
            return
        inputs = self._relations.inputs(node, equalities)
        if isinstance(node, plan.JoinSpec):
            yield from self._of_join(node, equalities, inputs, partner=partner)
            return
        if isinstance(node, plan.SetOpSpec):
            yield from self._of_set(node, inputs, partner=partner)
            return
        found = [some for some in inputs if not some.empty()]
        if inputs and not found:
            for some in inputs:
                yield from self.first(some, partner=partner)
            return
        rows = sum(map(count, found))
        yield DroppedAt(
            node.id, rows, _reason(node) if inputs else "the query has no such constant row"
        )

    def _of_table(self, node: SourceSpec, equalities: Equalities, *, partner: bool) -> DroppedAt:
        table = self._shown(node)
        if node.wanted:
            rows = count(self._relations.unpushed(node, equalities))
            if rows:
                return DroppedAt(
                    node.id, rows, f"no such row of {table} passes the filter of its scan"
                )
        names = ", ".join(node.columns[place].name for place in sorted(equalities))
        if partner:
            return DroppedAt(node.id, 0, f"no row of {table} matches in {names or 'any column'}")
        if names:
            return DroppedAt(node.id, 0, f"no row of {table} has the values of {names}")
        return DroppedAt(node.id, 0, f"{table} has no rows")

    def _of_chosen(
        self, node: plan.TopKSpec | plan.WindowSpec, equalities: Equalities, *, partner: bool
    ) -> Iterator[DroppedAt]:
        """Yield the operators for a node whose rows are rows of its input, with more columns."""
        width = len(self._relations.plan.node(node.input).schema)
        mine = {place: values for place, values in equalities.items() if place < width}
        below = self._relations.of(node.input, mine)
        if below.empty():
            yield from self.first(below, partner=partner)
        elif len(mine) < len(equalities):
            names = ", ".join(node.schema[n].name for n in sorted(equalities.keys() - mine.keys()))
            yield DroppedAt(node.id, count(below), f"such rows have other values of {names}")
        else:
            yield DroppedAt(node.id, count(below), "such rows are outside of LIMIT and OFFSET")

    def _other_values(self, node: plan.Node, equalities: Equalities) -> DroppedAt | None:
        """Return the node if it computes columns, and has rows with other values of these."""
        schemas = [self._relations.plan.node(name).schema for name in plan.inputs(node)]
        pushed = {
            place
            for place, values in equalities.items()
            if any(pushing.of_inputs(node, schemas, {place: values}))
        }
        computed = sorted(equalities.keys() - pushed)
        if not computed or not schemas or isinstance(node, plan.RecursiveSpec):
            return None
        kept = {place: values for place, values in equalities.items() if place in pushed}
        rows = count(self._relations.of(node.id, kept))
        if not rows:
            return None
        names = ", ".join(node.schema[place].name for place in computed)
        return DroppedAt(node.id, rows, f"such rows have other values of {names}")

    def _of_join(
        self,
        node: plan.JoinSpec,
        equalities: Equalities,
        inputs: list[TracedRelation],
        *,
        partner: bool,
    ) -> Iterator[DroppedAt]:
        (first, second), free = self._relations.order(node, equalities)
        one, other = inputs[first], inputs[second]
        if one.empty():
            yield from self.first(one, partner=partner)
            if not free and node.op == "full" and other.empty():
                yield from self.first(other, partner=partner)
        elif node.op == "anti":
            yield DroppedAt(node.id, count(one), "such rows have a match, and must have none")
        elif other.empty():
            yield from self.first(other, partner=True)
        else:
            yield DroppedAt(node.id, count(one), "no row of the other side of the join matches")

    def _of_set(
        self, node: plan.SetOpSpec, inputs: list[TracedRelation], *, partner: bool
    ) -> Iterator[DroppedAt]:
        left, _ = inputs
        if left.empty():
            yield from self.first(left, partner=partner)
            return
        yield DroppedAt(node.id, count(left), _LACKS[node.op])


def count(relation: TracedRelation) -> int:
    """Return the number of different rows of a relation."""
    return sum(piece.count for piece in relation.pieces())


def _reason(node: plan.Node) -> str:
    match node:
        case plan.FilterSpec():
            return "no such row passes the filter"
        case plan.FusedSpec():
            return "no such row passes its filters"
        case plan.FlatMapSpec():
            return "the functions return no row for such rows"
        case plan.RecursiveSpec():
            return "no iteration has such a row"
        case _:
            return "it outputs no such row"
