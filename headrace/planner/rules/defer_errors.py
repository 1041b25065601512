"""An expression that may fail moves up to the node that uses its value.

Join(Project[x = sqrt(v)](e), j)      = Project[x = sqrt(v)](Join(e, j))
LeftJoin(j, Project[x = f(v)](e))     = Project[x = CASE WHEN m THEN f(v) END](
                                            LeftJoin(j, Project[v, m = true](e)))
Filter[p](Project[x = sqrt(v)](e))    = Project[x = sqrt(v)](Filter[p](e))      if p reads no x
TopK, Window, Functions, Expand       the same
Join(Union(Project[x = f(v)](e), Project[x = g(w)](d)), j)
                                      = Project[x = CASE arm WHEN 0 THEN f(v) ELSE g(w) END](
                                            Join(Union(Project[arm = 0, v, w = NULL](e), …), j))
Project[CASE WHEN c THEN x END](Project[x = sqrt(v)](e))
                                      = Project[CASE WHEN c THEN sqrt(v) END](e)

A row that is filtered out raises no error: the error is raised only if the value is used, in a
result column, a predicate, a key, an order or an argument of an aggregate.  Postgres behaves the
same way, because it pulls subqueries up before it evaluates their select lists.

The deferred expressions are a list of definitions, each over the columns of the node and the
definitions before it.  A definition that a node uses on every row is computed once, below the node.
A use inside a conditional gets the expression itself, so that the conditional guards it.

Counter-examples: DISTINCT, INTERSECT and EXCEPT compare all their columns, so everything is
computed below them.  The only key of a join is computed below it.  Expressions that read the clock
stay where ``lift_clock`` has put them.  Columns of a large type (jsonb) are not carried for a small
part of them: the part that cannot fail is computed below.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Final, TypeGuard

from headrace import types as t
from headrace.planner.logical import nodes
from headrace.planner.logical.definitions import (
    SIZE_MAX,
    Definition,
    Definitions,
    always,
    certain,
    expanded,
    null_over_nulls,
    reachable,
    reads,
    too_large,
    total_size,
)
from headrace.planner.logical.repeats import defined, mapped
from headrace.planner.logical.scalar import (
    SINGLE,
    Call,
    Const,
    Expr,
    Ref,
    any_call,
    choice,
    core,
    equals_number,
    guarded,
    raises,
    reads_clock,
    references,
    refs,
    substitute,
)
from headrace.planner.logical.simplify import simplify

_WIDE: Final = frozenset({t.JSON, t.JSONB, t.XML, t.BYTEA, t.TSVECTOR})
_FILTER: Final = re.compile(r" FILTER \(WHERE \$(\d+)\)$")
_RECORDS: Final = frozenset({t.RECORD, t.RECORD_ARRAY})


def apply_all(plans: dict[int, nodes.Node]) -> dict[int, nodes.Node]:
    """Return all plans, readers first, with fallible expressions at the nodes that use them."""
    last = max(i for plan in plans.values() for i in defined(plan))
    deferral = _Deferral(itertools.count(last + 1))
    root, *named = plans
    made: dict[int, nodes.Node] = {}
    for number in sorted(named):
        made[number] = deferral.name(number, plans[number])
    made[root] = deferral.complete(plans[root])
    return {number: made[number] for number in plans}


@dataclasses.dataclass(frozen=True, slots=True)
class _Deferred:
    """A node, and the columns of the original that are defined over its columns."""

    node: nodes.Node
    late: Definitions = dataclasses.field(default_factory=dict)
    whole: nodes.Node | None = None
    """The original with all its columns computed in the arms of a union, while no row of it has
    gone away: cheaper than choosing by arm."""
    fixed: dict[int, Expr] = dataclasses.field(default_factory=dict)
    """Columns that are the same constant in every row: NULL, true or false."""

    def over(self, node: nodes.Node) -> _Deferred:
        """Return the same definitions over another node that has the columns."""
        return _Deferred(node, self.late, None, self.fixed)

    def folded(self, expr: Expr) -> Expr:
        """Simplify ``expr`` by its constants, as Postgres does before it evaluates anything.

        An expression that cannot fail stays as it is: an equality may be the key of a join.
        """
        if not raises(expr) and not refs(expr) & self.late.keys():
            return expr
        return simplify(substitute(expr, self.fixed))

    def without(self, ids: Iterable[int]) -> Definitions:
        """Return the definitions without ``ids``."""
        gone = frozenset(ids)
        return {i: d for i, d in self.late.items() if i not in gone}


class _Deferral:
    """One pass over all plans, each from its leaves to its root."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._ids = numbers
        self._named: dict[int, _Deferred] = {}

    def name(self, number: int, plan: nodes.Node) -> nodes.Node:
        """Return the named plan without what its readers have to define."""
        self._named[number] = self._run(plan)
        return self._named[number].node

    def complete(self, node: nodes.Node) -> nodes.Node:
        """Return ``node`` with all its columns computed, in its order."""
        return self._finished(self._run(node), node.columns)

    def _finished(self, made: _Deferred, columns: tuple[nodes.Col, ...]) -> nodes.Node:
        done, _ = self._computed(made, [c.ref for c in columns])
        if done.node.columns == columns:
            return done.node
        there = {c.id: e for c, e in _passed(done.node)}
        return nodes.ProjectNode(done.node, tuple((c, there[c.id]) for c in columns))

    def _run(self, node: nodes.Node) -> _Deferred:
        match node:
            case nodes.ProjectNode():
                return self._project(node, self._run(node.input))
            case nodes.FilterNode():
                return self._filter(self._run(node.input), node.predicates)
            case nodes.JoinNode():
                return self._join(node)
            case nodes.AggregateNode():
                return self._aggregate(node, self._run(node.input))
            case nodes.WindowNode():
                return self._window(node, self._run(node.input))
            case nodes.TopKNode() | nodes.ExpandNode() | nodes.FunctionsNode():
                used = [r for e in nodes.expressions(node) for r in references(e)]
                below, _ = self._computed(self._run(node.input), used)
                return below.over(dataclasses.replace(node, input=below.node))
            case nodes.UnionNode():
                return self._union(node, [self._run(arm) for arm in node.inputs])
            case nodes.AgainNode():
                return self._again(node)
            case nodes.RecursiveNode():
                base, step = self.complete(node.base), self._unchanged(node.step)
                return _Deferred(nodes.with_children(node, (base, step)))
            case _:
                new = tuple(self.complete(c) for c in nodes.children(node))
                return _Deferred(nodes.with_children(node, new))

    def _unchanged(self, node: nodes.Node) -> nodes.Node:
        """Return ``node``, where named plans that it reads show all their columns."""
        if isinstance(node, nodes.AgainNode):
            return self.complete(node)
        new = tuple(self._unchanged(c) for c in nodes.children(node))
        return nodes.with_children(node, new)

    # -- nodes

    def _project(self, node: nodes.ProjectNode, below: _Deferred) -> _Deferred:
        fixed = {c.id: e for c, e in node.items if _is_fixed(e)}
        fixed |= {c.id: below.fixed[e.id] for c, e in node.items if _reads_fixed(e, below)}
        whole = None
        if below.whole is not None and all(isinstance(e, Ref) for _, e in node.items):
            whole = nodes.ProjectNode(below.whole, node.items)
        node = nodes.ProjectNode(
            node.input,
            tuple((c, below.folded(e) if isinstance(e, Call) else e) for c, e in node.items),
        )
        early = [e for _, e in node.items if not _deferrable(e, below.late)]
        below, new = self._computed(below, early)
        made = dict(zip(early, new, strict=True))
        late = dict(below.late)
        items: dict[int, Definition] = {}
        parts: dict[Expr, nodes.Col] = {}
        for column, expr in node.items:
            if expr in made or not _deferrable(expr, below.late):
                items[column.id] = (column, made.get(expr, expr))
            elif not (isinstance(expr, Ref) and expr.id == column.id):
                late[column.id] = (column, self._narrow(expr, late, parts))
        shown = {c.id for c, _ in node.items}
        late = reachable(late, shown - items.keys())
        items |= {c.id: (c, e) for e, c in parts.items()}
        there = {c.id: c for c in below.node.columns}
        for i in sorted(reads(e for _, e in late.values())):
            if i in there and i not in items:
                items[i] = (there[i], there[i].ref)
        if not items:
            # Rows need a shape.
            return _Deferred(below.node, late)
        kept = nodes.ProjectNode(below.node, tuple(items.values()))
        return _Deferred(kept, late, whole if below.whole else None, fixed)

    def _narrow(self, expr: Expr, late: Definitions, parts: dict[Expr, nodes.Col]) -> Expr:
        """Return ``expr`` over columns ``parts`` instead of columns of a large type."""
        if not isinstance(expr, Call):
            return expr
        if raises(expr) or refs(expr) & late.keys():
            args = tuple(self._narrow(a, late, parts) for a in expr.args)
            return expr if args == expr.args else dataclasses.replace(expr, args=args)
        wide = any(r.oid in _WIDE for r in references(expr))
        if not wide or expr.oid in _RECORDS or reads_clock(expr):
            return expr
        if expr not in parts:
            parts[expr] = self._column("part", expr)
        return parts[expr].ref

    def _filter(self, below: _Deferred, predicates: Iterable[Expr]) -> _Deferred:
        """Apply each predicate that uses a definition only to rows that passed those before it."""
        predicates = tuple(map(below.folded, predicates))
        first = tuple(p for p in predicates if not refs(p) & below.late.keys() and not raises(p))
        rest = [p for p in predicates if p not in first]
        if first:
            below = below.over(nodes.FilterNode(below.node, first))
        for predicate in rest:
            below, [test] = self._computed(below, [predicate])
            if isinstance(below.node, nodes.FilterNode):
                tests = (*below.node.predicates, test)
                below = below.over(nodes.FilterNode(below.node.input, tests))
            else:
                below = below.over(nodes.FilterNode(below.node, (test,)))
        return below

    def _join(self, node: nodes.JoinNode) -> _Deferred:
        left, right = self._run(node.left), self._run(node.right)
        late = left.late | right.late
        both = _Deferred(node, late, None, left.fixed | right.fixed)
        if node.kind != "full":
            node = dataclasses.replace(node, condition=tuple(map(both.folded, node.condition)))
        plain = tuple(p for p in node.condition if not refs(p) & late.keys())
        rest = tuple(p for p in node.condition if p not in plain)
        keyed = any(_separates(p, nodes.ids(left.node), nodes.ids(right.node)) for p in plain)
        if not keyed or node.kind == "full":
            # There is no other key, so each side computes the definitions that the condition reads.
            left, _ = self._computed(left, _over(rest, node.left))
            right, _ = self._computed(right, _over(rest, node.right))
        if node.kind != "inner":
            checks = reachable(left.late | right.late, reads(rest))
            # The condition of a join cannot contain a check for one row (``single``).
            below = {i for i, (_, e) in checks.items() if any_call(e, _is_single)}
            below |= checks.keys() if node.kind == "full" else too_large(rest, checks)
            left = self._with_columns(left, below)
            right = self._with_columns(right, below)
        late = left.late | right.late
        if node.kind == "inner":
            ready = tuple(p for p in node.condition if not refs(p) & late.keys())
            joined = dataclasses.replace(node, left=left.node, right=right.node, condition=ready)
            above = [p for p in node.condition if p not in ready]
            return self._filter(_Deferred(joined, late, None, both.fixed), above)
        condition = tuple(expanded(p, late) for p in node.condition)
        if node.kind in nodes.LEFT_ONLY:
            joined = dataclasses.replace(
                node, left=left.node, right=right.node, condition=condition
            )
            return left.over(joined)
        right = self._nullable(right)
        if node.kind == "full":
            left = self._nullable(left)
        joined = dataclasses.replace(node, left=left.node, right=right.node, condition=condition)
        fixed = left.fixed if node.kind == "left" else {}
        return _Deferred(joined, left.late | right.late, None, fixed)

    def _nullable(self, side: _Deferred) -> _Deferred:
        """Return ``side`` of an outer join, with definitions that give NULL for unmatched rows."""
        large = too_large([c.ref for c, _ in side.late.values()], side.late)
        side = self._with_columns(side, large)
        if not side.late:
            return side
        whole = {i: (c, expanded(e, side.late)) for i, (c, e) in side.late.items()}
        if all(null_over_nulls(e) for _, e in whole.values()):
            return _Deferred(side.node, whole)
        marker = nodes.Col(next(self._ids), "matched", t.BOOL)
        node = nodes.ProjectNode(side.node, (*_passed(side.node), (marker, Const("t", t.BOOL))))
        late = {
            i: (c, e if null_over_nulls(e) else guarded(marker.ref, e))
            for i, (c, e) in whole.items()
        }
        return _Deferred(node, late)

    def _aggregate(self, node: nodes.AggregateNode, below: _Deferred) -> _Deferred:
        folded = nodes.over(node.aggs, below.folded)
        aggs = tuple(_guarded_aggregate(a, below.late) for a in folded)
        keys = tuple((c, below.folded(e)) for c, e in node.keys)
        bare = dataclasses.replace(node, keys=keys, aggs=aggs)
        exprs = list(dict.fromkeys(nodes.expressions(bare)))
        below, new = self._computed(below, exprs)
        made = dict(zip(exprs, new, strict=True))
        return _Deferred(
            nodes.AggregateNode(
                below.node,
                tuple((c, made[e]) for c, e in keys),
                nodes.over(aggs, made.__getitem__),
                node.always,
            )
        )

    def _window(self, node: nodes.WindowNode, below: _Deferred) -> _Deferred:
        """Evaluate an argument that uses a definition only where the call's FILTER is true."""
        late = dict(below.late)
        calls: list[nodes.WindowCall] = []
        for call in node.calls:
            found = _FILTER.search(call.sql)
            condition = call.args[int(found[1]) - 1] if found else None
            args = list(call.args)
            for place, ref in enumerate(args):
                if condition is not None and ref != condition and ref.id in below.late:
                    column = self._column("argument", ref)
                    late[column.id] = (column, guarded(condition, ref))
                    args[place] = column.ref
            calls.append(dataclasses.replace(call, args=tuple(args)))
        made = dataclasses.replace(node, calls=tuple(calls))
        whole = below.whole if late.keys() == below.late.keys() else None
        below, _ = self._computed(
            _Deferred(below.node, late, whole, below.fixed),
            [r for e in nodes.expressions(made) for r in references(e)],
        )
        return below.over(dataclasses.replace(made, input=below.node))

    def _union(self, node: nodes.UnionNode, arms: list[_Deferred]) -> _Deferred:
        """Return the union of the arms, with their definitions' inputs and the arm's number."""
        own = [arm.columns for arm in node.inputs]
        finished = map(self._finished, arms, own)
        whole = dataclasses.replace(node, inputs=tuple(finished))
        late = [
            place
            for place, column in enumerate(node.columns)
            if any(columns[place].id in arm.late for arm, columns in zip(arms, own, strict=True))
            and all(columns[place].oid == column.oid for columns in own)
        ]
        plain = [place for place in range(len(node.columns)) if place not in late]
        ready = [
            self._with_columns(arm, [columns[place].id for place in plain])
            for arm, columns in zip(arms, own, strict=True)
        ]
        shown = [[columns[place].ref for place in late] for columns in own]
        pairs = list(zip(ready, shown, strict=True))
        if not late or sum(total_size(read, arm.late) for arm, read in pairs) > SIZE_MAX:
            return _Deferred(whole)
        number = nodes.Col(next(self._ids), "arm", t.INT4)
        slots = _Slots(self._ids)
        values = [slots.over([expanded(r, arm.late) for r in read]) for arm, read in pairs]
        inputs = []
        for place, (arm, columns) in enumerate(zip(ready, own, strict=True)):
            items: list[Definition] = [(columns[i], columns[i].ref) for i in plain]
            tag = dataclasses.replace(number, id=next(self._ids))
            items += [(tag, Const(str(place), t.INT4)), *slots.items(place)]
            inputs.append(nodes.ProjectNode(arm.node, tuple(items)))
        columns = (*(node.columns[i] for i in plain), number, *slots.columns)
        chosen = {
            node.columns[i].id: (node.columns[i], _of_arm(number.ref, exprs))
            for i, exprs in zip(late, zip(*values, strict=True), strict=True)
        }
        return _Deferred(nodes.UnionNode(tuple(inputs), columns), chosen, whole)

    def _again(self, node: nodes.AgainNode) -> _Deferred:
        """Add the columns that the definitions read to a reader of a named plan."""
        plan = self._named[node.number]
        mine = {i: c for c, i in node.pairs}
        pairs = [(c, i) for c, i in node.pairs if i not in plan.late]
        late = reachable(plan.late, mine.keys())
        own = {i: c.id for c, i in node.pairs}
        columns = {c.id: c for c in plan.node.columns}
        for i in sorted(reads(e for _, e in late.values())):
            if i not in own and i in columns:
                column = dataclasses.replace(columns[i], id=next(self._ids))
                own[i] = column.id
                pairs.append((column, i))
        for i, (column, _) in late.items():
            if i not in own:
                own[i] = next(self._ids)
                mine[i] = dataclasses.replace(column, id=own[i])
        shown = {own[i]: (mine[i], mapped(e, own)) for i, (_, e) in late.items()}
        if not pairs:
            # Rows need a shape.
            column = plan.node.columns[0]
            pairs.append((dataclasses.replace(column, id=next(self._ids)), column.id))
        again = dataclasses.replace(node, plan=plan.node, pairs=tuple(pairs))
        return _Deferred(again, shown)

    # -- definitions

    def _computed(
        self, below: _Deferred, exprs: Iterable[Expr]
    ) -> tuple[_Deferred, tuple[Expr, ...]]:
        """Return ``below`` with columns for definitions that ``exprs`` always read, and ``exprs``.

        Definitions that are read in conditionals only become part of the returned expressions.
        """
        exprs = tuple(exprs)
        wanted = always(exprs, below.late)
        while True:
            every = [*exprs, *(below.late[i][1] for i in wanted)]
            large = too_large(every, below.without(wanted))
            if not large:
                break
            wanted |= always([below.late[i][0].ref for i in large], below.late)
        if wanted and below.whole is not None:
            return _Deferred(below.whole, {}, None, below.fixed), exprs
        node, rest = below.node, below.without(wanted)
        pending = {i: below.late[i] for i in below.late if i in wanted}
        while pending:
            ready = {
                i: (c, expanded(e, rest))
                for i, (c, e) in pending.items()
                if not reads([expanded(e, rest)]) & pending.keys()
            }
            node = nodes.ProjectNode(node, (*_passed(node), *ready.values()))
            pending = {i: d for i, d in pending.items() if i not in ready}
        whole = None if wanted else below.whole
        return _Deferred(node, rest, whole, below.fixed), tuple(expanded(e, rest) for e in exprs)

    def _with_columns(self, below: _Deferred, ids: Iterable[int]) -> _Deferred:
        """Return ``below`` with columns for the definitions ``ids``."""
        wanted = [below.late[i][0].ref for i in sorted(ids) if i in below.late]
        return self._computed(below, wanted)[0]

    def _column(self, name: str, expr: Expr) -> nodes.Col:
        return nodes.Col(next(self._ids), name, expr.oid, expr.typmod, expr.collation)


def _passed(node: nodes.Node) -> tuple[Definition, ...]:
    """Return all columns of ``node`` as items of a projection, with the same labels."""
    labels: dict[int, Expr] = {}
    if isinstance(node, nodes.ProjectNode):
        labels = {c.id: e for c, e in node.items if isinstance(e, Ref) and e.id == c.id}
    return tuple((c, labels.get(c.id, c.ref)) for c in node.columns)


class _Slots:
    """Columns of a union for the inputs of its arms' definitions; arms share columns of a type."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._ids = numbers
        self.columns: list[nodes.Col] = []
        self._read: list[dict[int, Ref]] = []
        """Per arm: column of the arm by place of the slot."""

    def over(self, exprs: list[Expr]) -> list[Expr]:
        """Return ``exprs`` of the next arm over slots."""
        read = {r.id: r for e in exprs for r in references(e)}
        taken: dict[int, Ref] = {}
        found: dict[int, Expr] = {}
        for ref in read.values():
            place = self._free(ref, taken)
            taken[place] = ref
            found[ref.id] = self.columns[place].ref
        self._read.append(taken)
        return [substitute(e, found) for e in exprs]

    def _free(self, ref: Ref, taken: dict[int, Ref]) -> int:
        kind = (ref.oid, ref.typmod, ref.collation)
        for place, slot in enumerate(self.columns):
            if place not in taken and (slot.oid, slot.typmod, slot.collation) == kind:
                return place
        self.columns.append(nodes.Col(next(self._ids), "read", *kind))
        return len(self.columns) - 1

    def items(self, arm: int) -> list[Definition]:
        """Return the slots in the arm of that number; unused slots are NULL."""
        read = self._read[arm]
        return [
            (
                dataclasses.replace(slot, id=next(self._ids)),
                read.get(place, Const(None, slot.oid, -1, slot.collation)),
            )
            for place, slot in enumerate(self.columns)
        ]


def _of_arm(number: Ref, values: tuple[Expr, ...]) -> Expr:
    """Return the value of the arm of that number."""
    *first, last = values
    if all(value == last for value in first):
        return last
    return choice([(equals_number(number, i), value) for i, value in enumerate(first)], last)


def _deferrable(expr: Expr, late: Definitions) -> bool:
    if isinstance(expr, Ref):
        return expr.id in late
    if reads_clock(expr) or expr.oid in _RECORDS:
        return False
    return raises(expr) or bool(refs(expr) & late.keys())


def _is_fixed(expr: Expr) -> bool:
    return isinstance(expr, Const) and (expr.text is None or expr.oid == t.BOOL)


def _reads_fixed(expr: Expr, below: _Deferred) -> TypeGuard[Ref]:
    return isinstance(expr, Ref) and expr.id in below.fixed


def _is_single(call: Call) -> bool:
    return call.symbol == SINGLE


def _separates(predicate: Expr, left: frozenset[int], right: frozenset[int]) -> bool:
    """Return whether ``predicate`` is an equality of a value of one side with one of the other."""
    if isinstance(predicate, Call) and predicate.symbol == "not":
        [predicate] = predicate.args
    if not isinstance(predicate, Call) or predicate.symbol not in ("=", "is_distinct_from"):
        return False
    one, other = map(core, predicate.args)
    if raises(predicate) or (predicate.native is None and one.oid != other.oid):
        return False
    first, second = refs(one), refs(other)
    if not first or not second:
        return False
    return (first <= left and second <= right) or (first <= right and second <= left)


def _over(condition: Iterable[Expr], side: nodes.Node) -> list[Expr]:
    """Return the columns of ``side`` that ``condition`` always reads."""
    mine = {c.id: c.ref for c in side.columns}
    read = sorted(frozenset().union(*map(certain, condition)) & mine.keys())
    return [mine[i] for i in read]


def _guarded_aggregate(agg: nodes.Agg, late: Definitions) -> nodes.Agg:
    """Evaluate arguments of ``agg`` that use definitions only where its filter is true."""
    condition = agg.filter
    if condition is None or agg.row or agg.direct:
        return agg

    def argument(expr: Expr) -> Expr:
        assert condition is not None
        used = bool(refs(expr) & late.keys()) and expr.oid not in _RECORDS
        return guarded(condition, expr) if used else expr

    first = None if agg.argument is None else argument(agg.argument)
    return dataclasses.replace(agg, argument=first, more=tuple(map(argument, agg.more)))
