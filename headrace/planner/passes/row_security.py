"""Moves row security from the tables of a query to the rows of its result.

Postgres shows a role the query over those rows of each table that the role may see.  A view keeps
one result for all roles.  So the condition of each table must move up through the plan to the
result, where Postgres evaluates it for each reader (``sink.policies``).  It moves up only if no
reader's rows change:

* Filters and inner joins let every condition pass.
* A projection does if it keeps the columns of the condition, or columns that are identical to them.
* GROUP BY, DISTINCT, PARTITION BY, DISTINCT ON and set operations do if they compare its columns.
* The side of an outer join, EXISTS or a subquery that only completes or selects rows of the other
  side does if the other side has the same condition, and its columns are joined: then each visible
  row of the other side meets visible rows only.

Where a condition cannot pass, the view is refused.  In the plan a predicate stands for it
(``logical.secured``), so that earlier passes move it as any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, assert_never

from headrace.planner.analyse.policies import RowSecurity, refusal
from headrace.planner.logical import nodes
from headrace.planner.logical.scalar import Call, Expr, Ref, any_call, core, substitute
from headrace.planner.logical.secured import is_predicate, symbol
from headrace.planner.passes.lift import equality

Identical = Callable[[Ref], bool]
"""Whether values of a column that SQL calls equal cannot be distinguished."""


@dataclass(frozen=True, slots=True)
class CarriedCondition:
    """The condition of a table's row security over columns of the result."""

    security: RowSecurity
    places: Mapping[int, int]
    """Place of a column in the result, by number in the table."""


def carry(
    plan: nodes.Node, secured: Mapping[int, RowSecurity], identical: Identical
) -> tuple[nodes.Node, list[CarriedCondition]]:
    """Return ``plan`` without the predicates for row security, and their conditions over its rows.

    ``secured``: by OID of the table.

    Raises:
        UnsupportedError: a condition cannot be moved to the result.
    """
    if not secured:
        return plan, []
    # The policies of several tables may be alike: then one stands for all.
    by_symbol = {symbol(security): security for security in secured.values()}
    found = _Carrier(by_symbol, identical).visit(plan)
    places = {column.id: place for place, column in enumerate(plan.columns)}
    out = []
    for call in sorted(found.held, key=str):
        security = by_symbol[call.symbol]
        args = (places[arg.id] for arg in call.args if isinstance(arg, Ref))
        out.append(CarriedCondition(security, dict(zip(security.columns, args, strict=True))))
    return found.node, out


Classes = frozenset[frozenset[Ref]]
"""Sets of columns that are identical in each row, NULLs too."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A plan without the predicates."""

    node: nodes.Node
    held: frozenset[Call] = frozenset()
    """Predicates over columns of ``node``: selecting by them gives the rows as secured."""
    same: Classes = frozenset()


class _Carrier:
    def __init__(self, secured: Mapping[str, RowSecurity], identical: Identical) -> None:
        self._secured = secured
        self._identical = identical
        self._named: dict[int, _Found] = {}

    def visit(self, node: nodes.Node) -> _Found:  # noqa: C901  one case per node
        match node:
            case nodes.ScanNode() | nodes.ValuesNode() | nodes.WorkTableNode():
                return _Found(node)
            case nodes.AgainNode():
                return self._again(node)
            case nodes.FilterNode():
                return self._filter(node)
            case nodes.ProjectNode():
                return self._project(node)
            case nodes.JoinNode():
                return self._join(node)
            case nodes.UnionNode() | nodes.SetOpNode():
                return self._set_operation(node)
            case nodes.AggregateNode():
                return self._aggregate(node)
            case nodes.TopKNode():
                found = self._input(node)
                if node.limit is not None or node.offset:
                    self._compared(found, node.keys, "LIMIT or DISTINCT ON")
                return found
            case nodes.WindowNode():
                found = self._input(node)
                self._compared(found, node.keys, "a window function")
                return found
            case nodes.DistinctNode():
                found = self._input(node)
                self._compared(found, [c.ref for c in node.columns], "DISTINCT")
                return found
            case nodes.ExpandNode():
                found = self._input(node)
                whole = [
                    (column.ref, ref)
                    for place, (column, ref) in enumerate(node.keys)
                    if all(place in keys for keys in node.sets)
                ]
                return dataclasses.replace(found, same=_joined(found.same, whole))
            case nodes.FunctionsNode() | nodes.TemporalNode() | nodes.CalendarNode():
                return self._input(node)
            case nodes.RecursiveNode():
                for child in nodes.children(node):
                    self._nothing(self.visit(child).held, "WITH RECURSIVE")
                return _Found(nodes.with_children(node, self._bare(node)))
            case nodes.ApplyNode():
                raise AssertionError("every Apply became a join")
            case _:
                assert_never(node)

    def _bare(self, node: nodes.Node) -> tuple[nodes.Node, ...]:
        return tuple(self.visit(child).node for child in nodes.children(node))

    def _input(self, node: nodes.Node) -> _Found:
        """Return the only input of ``node``, with ``node`` above it."""
        self._check(nodes.expressions(node))
        [child] = nodes.children(node)
        found = self.visit(child)
        return dataclasses.replace(found, node=nodes.with_children(node, (found.node,)))

    # --- nodes

    def _again(self, node: nodes.AgainNode) -> _Found:
        if node.number not in self._named:
            self._named[node.number] = self.visit(node.plan)
        inner = self._named[node.number]
        bare = dataclasses.replace(node, plan=inner.node)
        refs = {c.id: c.ref for c in node.plan.columns}
        shown = [(column, refs[number]) for column, number in node.pairs]
        return self._renamed(bare, inner, shown)

    def _filter(self, node: nodes.FilterNode) -> _Found:
        found = self.visit(node.input)
        mine, rest = _split(node.predicates)
        self._check(rest)
        bare = (
            found.node if not rest else dataclasses.replace(node, input=found.node, predicates=rest)
        )
        return self._reduced(_Found(bare, found.held | mine, self._with(found.same, rest)))

    def _project(self, node: nodes.ProjectNode) -> _Found:
        self._check(nodes.expressions(node))
        found = self.visit(node.input)
        bare = dataclasses.replace(node, input=found.node)
        return self._renamed(bare, found, _kept(node.items))

    def _renamed(
        self, bare: nodes.Node, found: _Found, shown: Sequence[tuple[nodes.Col, Ref]]
    ) -> _Found:
        """Return ``found`` over the columns of ``bare``, which shows columns of it."""
        by_id: dict[int, list[Ref]] = {}
        for column, ref in shown:
            by_id.setdefault(ref.id, []).append(column.ref)
        classes = [{new for ref in group for new in by_id.get(ref.id, ())} for group in found.same]
        classes += [set(refs) for refs in by_id.values()]
        mapping: dict[int, Expr] = {}
        for group in found.same:
            news = [new for ref in group for new in by_id.get(ref.id, ())]
            mapping |= {ref.id: news[0] for ref in group if news}
        mapping |= {number: refs[0] for number, refs in by_id.items()}
        held = set()
        for call in found.held:
            for arg in call.args:
                if isinstance(arg, Ref) and arg.id not in mapping:
                    self._missing(call, arg)
            new = substitute(call, mapping)
            assert isinstance(new, Call), "columns were replaced by columns"
            held.add(new)
        pairs = [(a, b) for group in classes for a in group for b in group if a != b]
        return self._reduced(_Found(bare, frozenset(held), _joined(frozenset(), pairs)))

    def _join(self, node: nodes.JoinNode) -> _Found:
        left, right = self.visit(node.left), self.visit(node.right)
        mine, rest = _split(node.condition)
        self._check(rest)
        bare = dataclasses.replace(node, left=left.node, right=right.node, condition=rest)
        if node.kind == "inner":
            same = self._with(_joined(left.same, _pairs(right.same)), rest)
            return self._reduced(_Found(bare, left.held | right.held | mine, same))
        within = nodes.ids(node.right)
        if any(not isinstance(a, Ref) or a.id not in within for c in mine for a in c.args):
            self._nothing(mine, "the condition of a join")
        others = right.held | mine
        if node.kind == "full":
            self._nothing(left.held | others, "FULL JOIN")
        matched = self._with(_joined(left.same, _pairs(right.same)), rest)
        implied = self._reduced(_Found(bare, left.held | others, matched), first=left.held).held
        side = _SIDES[node.kind]
        for call in implied - left.held:
            self._refuse(
                call,
                f"It is read {side}, and its columns are not joined with those of a table with the"
                " same policies on the other side.",
            )
        return _Found(bare, left.held, left.same)

    def _set_operation(self, node: nodes.UnionNode | nodes.SetOpNode) -> _Found:
        arms = []
        for child in nodes.children(node):
            found = self.visit(child)
            pairs = zip(node.columns, (c.ref for c in child.columns), strict=True)
            arms.append((found, self._renamed(found.node, found, _kept(pairs)).held))
        bare = nodes.with_children(node, tuple(found.node for found, _ in arms))
        sets = [held for _, held in arms]
        every, some = frozenset.intersection(*sets), frozenset.union(*sets)
        if isinstance(node, nodes.UnionNode):
            self._nothing(
                some - every, "one side of UNION, and does not select from the other alike"
            )
            return _Found(bare, some)
        columns = [column.ref for column in node.columns]
        if node.kind == "except":
            self._nothing(sets[1] - sets[0], "the second side of EXCEPT, and not in the first")
            some = sets[0]
        made = _Found(bare, some)
        self._compared(made, columns, node.kind.upper())
        return made

    def _aggregate(self, node: nodes.AggregateNode) -> _Found:
        self._check(nodes.expressions(node))
        found = self.visit(node.input)
        bare = dataclasses.replace(node, input=found.node)
        if not found.held:
            return _Found(bare)
        if node.always or not node.keys:
            self._nothing(found.held, "an aggregate without GROUP BY, or GROUP BY ()")
        keys = _kept(node.keys)
        self._compared(found, [e for _, e in keys], "GROUP BY")
        return self._renamed(bare, found, keys)

    # --- columns

    def _with(self, same: Classes, condition: Iterable[Expr]) -> Classes:
        """Return the columns that are identical where ``condition`` is true."""
        pairs = []
        for call in filter(None, map(equality, condition)):
            left, right = map(core, call.args)
            if (
                isinstance(left, Ref)
                and isinstance(right, Ref)
                and (left.oid, left.collation) == (right.oid, right.collation)
                and self._identical(left)
            ):
                pairs.append((left, right))
        return _joined(same, pairs)

    def _reduced(self, found: _Found, first: Iterable[Call] = ()) -> _Found:
        """Return ``found`` with one of the predicates that are the same for each row.

        ``first``: the predicates that are preferred.
        """
        if not found.held:
            return found
        names = {ref.id: min(group, key=lambda r: r.id) for group in found.same for ref in group}
        kept: dict[Expr, Call] = {}
        for call in (*sorted(first, key=str), *sorted(found.held, key=str)):
            kept.setdefault(substitute(call, names), call)
        return dataclasses.replace(found, held=frozenset(kept.values()))

    def _compared(self, found: _Found, columns: Sequence[Ref], what: str) -> None:
        """Refuse predicates over other columns than those that ``what`` compares."""
        numbers = {ref.id for ref in columns if self._identical(ref)}
        alike = {r.id for group in found.same if any(x.id in numbers for x in group) for r in group}
        for call in found.held:
            for arg in call.args:
                if isinstance(arg, Ref) and arg.id not in numbers | alike:
                    self._refuse(call, f"{_column(arg)} is not among those that {what} compares.")

    # --- refusals

    def _check(self, exprs: Iterable[Expr]) -> None:
        """Refuse predicates that an earlier pass has put inside an expression."""
        for expr in exprs:
            any_call(expr, self._inside)

    def _inside(self, call: Call) -> bool:
        if is_predicate(call):
            self._refuse(call, "It is read inside an expression.")
        return False

    def _nothing(self, held: frozenset[Call], where: str) -> None:
        for call in sorted(held, key=str):
            self._refuse(call, f"The table is read under {where}.")

    def _missing(self, call: Call, arg: Ref) -> NoReturn:
        self._refuse(call, f"{_column(arg)} is not in the result. Add it to the select list.")

    def _refuse(self, call: Call, why: str) -> NoReturn:
        raise refusal(self._secured[call.symbol].table, why)


_SIDES: Final = {
    "left": "on the optional side of an outer join, or in a subquery",
    "semi": "in EXISTS or IN",
    "anti": "in NOT EXISTS or NOT IN",
}


def _column(ref: Ref) -> str:
    return f"Column {ref.label}, which a policy reads,"


def _kept(items: Iterable[tuple[nodes.Col, Expr]]) -> list[tuple[nodes.Col, Ref]]:
    """Return the items that are columns of the input, as they are."""
    return [
        (c, e)
        for c, e in items
        if isinstance(e, Ref) and (e.oid, e.collation) == (c.oid, c.collation)
    ]


def _split(predicates: Sequence[Expr]) -> tuple[frozenset[Call], tuple[Expr, ...]]:
    """Return the predicates for row security, and the others."""
    mine = frozenset(p for p in predicates if is_predicate(p))
    return mine, tuple(p for p in predicates if not is_predicate(p))


def _pairs(same: Classes) -> list[tuple[Ref, Ref]]:
    out = []
    for group in same:
        first, *others = sorted(group, key=lambda r: r.id)
        out += [(first, other) for other in others]
    return out


def _joined(same: Classes, pairs: Iterable[tuple[Ref, Ref]]) -> Classes:
    """Return the classes with the columns of each pair in one."""
    groups = set(same)
    for pair in pairs:
        touched = {group for group in groups if not group.isdisjoint(pair)}
        groups = (groups - touched) | {frozenset(pair).union(*touched)}
    return frozenset(groups)
