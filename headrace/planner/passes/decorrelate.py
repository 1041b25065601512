"""Every ``Apply`` becomes a join: subqueries and LATERAL without a row-by-row evaluation.

Source: Neumann, Kemper, "Unnesting Arbitrary Queries", BTW 2015.  The first of three ways that
fits is used:

*Carried*: a plan that only maps and filters (FROM t, unnest(t.a)) runs over the rows of the left
side.

*Lifted* (``lift``): conditions that read the left side move up to the join.  Equalities also move
past groups and similar nodes, as keys.

*By domain* (``domain.Push``): the right side is computed for each distinct combination of the
values that it reads from the left side, and joined on these.

If only some rows of the left side need the right side (``Apply.asks``), the domain has the values
of those rows, and expressions above the join are computed only for them:

    Apply(l, r, asks c) = LeftJoin(l, Push(Distinct[what r reads](Filter[c](l)), r))

It does not matter whether the other rows match rows of the right side.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from headrace import types as t
from headrace.planner import limits
from headrace.planner.logical.facts import exactly_one, fails, serious
from headrace.planner.logical.nodes import (
    LEFT_ONLY,
    AgainNode,
    ApplyNode,
    Col,
    FilterNode,
    FunctionsNode,
    JoinNode,
    Node,
    ProjectNode,
    ValuesNode,
    children,
    free,
    ids,
    with_children,
)
from headrace.planner.logical.repeats import PlanCopies, defined, name, named, over, size
from headrace.planner.logical.scalar import Const, Expr, raises, refs, substitute
from headrace.planner.passes.domain import Push
from headrace.planner.passes.lift import Lift, Lifted, Restricted, equality, new_column
from headrace.planner.scalars import build
from headrace.planner.scalars.context import QueryContext


def decorrelate(plan: Node, context: QueryContext) -> Node:
    """Return ``plan`` without ``Apply`` and without free references; the columns are the same."""
    plans = {**named(plan), _ROOT: plan}
    if not any(isinstance(n, ApplyNode) for each in plans.values() for n in _walk(each)):
        return plan
    highest = max(max(defined(each), default=0) for each in plans.values())
    result = _Decorrelation(context, max(highest, *plans)).whole(plans)
    assert not free(result), "no reference is left without its column"
    return result


_ROOT = 0
"""The plan of the query itself among the named ones, all of which have greater numbers."""


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for child in children(node):
        yield from _walk(child)


class _Decorrelation:
    def __init__(self, context: QueryContext, highest: int) -> None:
        self._context = context
        self._ids = itertools.count(highest + 1)
        self._copies = PlanCopies(self._ids)

    def whole(self, plans: dict[int, Node]) -> Node:
        """Return the plan ``_ROOT`` of ``plans``; all of them lose their ``Apply`` nodes."""
        limits.check_nodes(sum(map(size, plans.values())))
        root = plans.pop(_ROOT)
        made: dict[int, AgainNode] = {}
        for number in sorted(plans):
            node = self.run(over(plans[number], made))
            # A new number: it reads what was named meanwhile.
            made[number] = name(node, next(self._ids), self._copies.free(node))
        return self.run(over(root, made))

    def run(self, node: Node) -> Node:
        """Replace each ``Apply`` in ``node``, from below."""
        limits.check()
        node = with_children(node, tuple(self.run(c) for c in children(node)))
        if not isinstance(node, ApplyNode):
            return node
        outer = self._copies.free(node.right) & ids(node.left)
        one = exactly_one(node.right)
        if node.kind == "left" and not node.condition and one and not node.asks:
            node = dataclasses.replace(node, kind="inner")
        result = self._carried(node) if outer and not node.asks else None
        if result is None:
            lifted = self._lift(node, outer).lift(node.right, top=True)
            if lifted is not None and not self._asks(node, lifted):
                result = self._join(node, lifted)
        if result is None:
            result = self._by_domain(node, outer)
        if [c.id for c in result.columns] == [c.id for c in node.columns]:
            return result
        return ProjectNode(result, tuple((c, c.ref) for c in node.columns))

    def _asks(self, node: ApplyNode, lifted: Lifted) -> bool:
        """Return whether an expression in or below the join may fail for rows without need."""
        if node.asks and any(map(fails, lifted.match)):
            return True
        if lifted.always or serious(lifted.node):
            return serious(lifted.node)
        tests = [substitute(c, lifted.late) for c in node.condition]
        mine = ids(node.left)
        if any(fails(p) and not refs(p) & mine for p in (*lifted.match, *tests)):
            return True
        # An equality that may fail is a join's key, computed for all rows, if it is the only one.
        equal = [p for p in (*lifted.match, *tests) if equality(p) is not None]
        return bool(equal) and all(map(fails, equal))

    # -- over the rows of the left side

    def _carried(self, node: ApplyNode) -> Node | None:
        if node.kind == "inner":
            over = self._over(node.left, node.right)
            if over is None:
                return None
            return FilterNode(over, node.condition) if node.condition else over
        right = node.right
        direct = isinstance(right, FunctionsNode) and _is_unit(right.input)
        if node.kind == "left" and direct and not node.condition:
            assert isinstance(right, FunctionsNode)
            return dataclasses.replace(right, input=node.left, outer=True)
        return None

    def _over(self, left: Node, node: Node) -> Node | None:
        """Return ``left`` joined with ``node`` if that only maps, filters and multiplies rows."""
        if _is_unit(node):
            return left
        if not isinstance(node, FilterNode | ProjectNode | FunctionsNode):
            return None
        below = self._over(left, node.input)
        if below is None:
            return None
        if isinstance(node, ProjectNode):
            kept = tuple((c, c.ref) for c in left.columns)
            return ProjectNode(below, kept + node.items)
        return dataclasses.replace(node, input=below)

    # -- lifted conditions

    def _join(self, node: ApplyNode, lifted: Lifted) -> Node | None:
        condition = tuple(substitute(c, lifted.late) for c in node.condition)
        if lifted.always:
            return self._always(node, lifted, lifted.after + condition)
        match = lifted.match + condition
        if node.kind in LEFT_ONLY:
            return JoinNode(node.left, lifted.node, match, node.kind)
        if node.kind == "inner":
            joined: Node = JoinNode(node.left, lifted.node, match)
            return self._finished(node, joined, lifted.late)
        if not any(c.id in lifted.late for c in node.right.columns):
            return JoinNode(node.left, lifted.node, match, "left")
        mark = self._column("matched", Const("t", t.BOOL))
        passed = tuple((c, c.ref) for c in lifted.node.columns)
        marked = ProjectNode(lifted.node, (*passed, (mark, Const("t", t.BOOL))))
        there = build.null_test(self._context, "is_not_null", mark.ref)
        late = {i: build.guarded(self._context, there, e) for i, e in lifted.late.items()}
        return self._finished(node, JoinNode(node.left, marked, match, "left"), late)

    def _always(self, node: ApplyNode, lifted: Lifted, tests: tuple[Expr, ...]) -> Node:
        joined: Node = JoinNode(node.left, lifted.node, lifted.match, "left")
        if node.kind == "left":
            late = lifted.late
            if tests:
                passes = self._all(tests)
                late = {
                    c.id: build.guarded(self._context, passes, late.get(c.id, c.ref))
                    for c in node.right.columns
                }
            return self._finished(node, joined, late)
        if node.kind == "anti":
            fails = build.boolean_test(self._context, "is_not_true", self._all(tests))
            return FilterNode(joined, (fails,))
        if tests:
            joined = FilterNode(joined, tests)
        if node.kind == "semi":
            return joined
        return self._finished(node, joined, lifted.late)

    def _all(self, tests: tuple[Expr, ...]) -> Expr:
        if not tests:
            return Const("t", t.BOOL)
        return tests[0] if len(tests) == 1 else build.logic(self._context, "and", tests)

    def _finished(self, node: ApplyNode, joined: Node, late: dict[int, Expr]) -> Node:
        if not late:
            return joined
        if node.asks:
            asks = self._all(node.asks)
            late = {
                i: build.guarded(self._context, asks, e) if raises(e) else e
                for i, e in late.items()
            }
        return ProjectNode(joined, tuple((c, late.get(c.id, c.ref)) for c in node.columns))

    def _column(self, name: str, expr: Expr) -> Col:
        return new_column(self._ids, name, expr)

    # -- by domain

    def _lift(self, node: ApplyNode, outer: frozenset[int]) -> Lift:
        return Lift(
            self._context,
            self._ids,
            outer,
            self._copies.free,
            lambda read: self._domain(node.left, read),
        )

    def _domain(self, left: Node, read: frozenset[int]) -> Restricted:
        push = Push(self._context, self._ids, self._copies)
        left = _lean(left, read)
        copy = self._copies.again(left)
        columns = [c for c in left.columns if c.id in read]
        copies = dict(zip(ids_of(left), ids_of(copy), strict=True))
        domain, mapping = push.domain(copy, [(c, copies[c.id]) for c in columns])
        return Restricted(push, domain, mapping, push.same(domain, columns))

    def _by_domain(self, node: ApplyNode, outer: frozenset[int]) -> Node:
        left = FilterNode(node.left, node.asks) if node.asks else node.left
        to = self._domain(left, outer)
        right = to.push.push(to.domain, to.push.renamed(node.right, to.mapping))
        return JoinNode(node.left, right, (*to.same, *node.condition), node.kind)


def ids_of(node: Node) -> list[int]:
    """Return the ids of the output columns, in order."""
    return [c.id for c in node.columns]


def _lean(node: Node, read: frozenset[int]) -> Node:
    """Reduce ``node`` for a reader of the distinct values of the columns ``read``.

    Joins of earlier subqueries that only add columns, and remove no row, are left out.
    """
    match node:
        case JoinNode(kind="left") if not ids(node.right) & read:
            return _lean(node.left, read)
        case JoinNode(kind="inner", condition=()) if not ids(node.right) & read and exactly_one(
            node.right
        ):
            return _lean(node.left, read)
        case FilterNode():
            more = read.union(*map(refs, node.predicates))
            return FilterNode(_lean(node.input, more), node.predicates)
        case ProjectNode():
            items = tuple((c, e) for c, e in node.items if c.id in read)
            more = frozenset().union(*(refs(e) for _, e in items))
            return ProjectNode(_lean(node.input, more), items)
        case _:
            return node


def _is_unit(node: Node) -> bool:
    """Return whether ``node`` is one row without columns."""
    return isinstance(node, ValuesNode) and node.rows == ((),)
