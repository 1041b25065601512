"""Translates a PL/pgSQL function of simple statements into one SQL expression.

The statements are executed symbolically: the value of each variable is an expression over the
parameters of the function.  SELECT INTO becomes a scalar subquery, IF becomes CASE.  PL/pgSQL
evaluates every statement that it reaches, so a value that may fail is evaluated even if the
result does not use it (``_forced``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace import types as t
from headrace.errors import UnsupportedError
from headrace.planner.analyse.catalog import Catalog
from headrace.planner.analyse.nodetree import Node
from headrace.planner.analyse.nodetypes import targets, type_of
from headrace.planner.bodies import names, trees
from headrace.planner.bodies import statements as st
from headrace.planner.bodies.cardinality import Cardinality
from headrace.planner.bodies.plpgsql import FOUND
from headrace.planner.bodies.routines import Routine
from headrace.planner.bodies.statements import Body, Expression, Statement
from headrace.planner.bodies.terms import Terms
from headrace.planner.bodies.twin import Variable


@dataclass(frozen=True, slots=True)
class _Value:
    """The value of a variable at one place of the body."""

    expr: Node
    uses: frozenset[int] = frozenset()
    """Numbers of the values that are evaluated whenever this one is."""
    number: int = 0
    """Number of the value, or 0 if its evaluation cannot fail."""


@dataclass(frozen=True, slots=True)
class _State:
    """The values of variables at the place of a statement."""

    values: Mapping[str, _Value]
    pending: tuple[_Value, ...] = ()
    """Values that PL/pgSQL has evaluated so far and that may fail."""
    done: frozenset[int] = frozenset()
    """Numbers of values that the conditions of the enclosing CASEs evaluate."""

    def having(self, *values: tuple[str, _Value]) -> _State:
        pending = [value for _, value in values if value.number]
        named = {name: value for name, value in values if name}
        return replace(self, values={**self.values, **named}, pending=(*self.pending, *pending))


class Execution:
    """Executes the statements of one function symbolically, for one call."""

    def __init__(
        self, catalog: Catalog, terms: Terms, cardinality: Cardinality, routine: Routine
    ) -> None:
        self._catalog = catalog
        self._terms = terms
        self._cardinality = cardinality
        self._routine = routine
        self._made = 0
        self._types: dict[str, tuple[int, int, int]] = {}
        """Of each variable: type, modifier, collation."""

    # -- functions

    def rows(self, body: Body) -> Node:
        """Return the query of a set-returning function that is a single RETURN QUERY."""
        found = list(_flat(body.statements))
        if found and isinstance(found[-1], st.Return):
            found.pop()
        if len(found) != 1 or not isinstance(found[0], st.ReturnQuery):
            raise UnsupportedError("its body is not a single RETURN QUERY")
        query = found[0].query
        tree = self._terms.tree(query.variables, query.text)
        inputs = len(self._routine.inputs)
        for node in tree.walk():
            if node.kind == "PARAM" and node.number("paramid") > inputs:
                raise UnsupportedError("its query has a variable that is no parameter")
        return tree

    def value(self, body: Body, arguments: Sequence[Node]) -> Node:
        """Return the value of the function as an expression over its parameters."""
        routine = self._routine
        if len(routine.outputs) > 1:
            raise UnsupportedError("it has several OUT parameters")
        kinds = {p.type for p in (*routine.inputs, *routine.outputs)} | {routine.result}
        if any(self._catalog.types[oid].kind in "cp" for oid in kinds):
            raise UnsupportedError("a parameter or its result is a row or has a pseudo-type")
        state = _State({FOUND: _Value(self._terms.constant("false"))})
        self._types[FOUND] = (t.BOOL, -1, 0)
        shown = self._terms.parameters()
        for n, (parameter, expr) in enumerate(zip(routine.inputs, shown, strict=True)):
            name = _name(routine.inputs, n)
            self._types[name] = (parameter.type, -1, expr.number("paramcollid"))
            value = self._numbered(expr, (), fails=self._terms.fails(arguments[n]))
            state = state.having((name, value))
        for output in routine.outputs:
            if output not in routine.inputs:
                if self._catalog.types[output.type].kind == "d":
                    raise UnsupportedError("an OUT parameter is of a domain")
                self._types[output.name] = (output.type, -1, self._collation(output.type))
                state = self._null(state, output.name)
        return self._run(list(body.statements), state)

    # -- statements

    def _run(self, pending: list[Statement], state: _State) -> Node:
        """Execute ``pending``, and return the value that the function returns."""
        rest = list(pending)
        while rest:
            first = rest.pop(0)
            if isinstance(first, st.Block):
                rest = [*first.statements, *rest]
            elif isinstance(first, st.Return):
                return self._returned(first, state)
            elif isinstance(first, st.Conditional):
                if not _mergeable(first):
                    return self._branches(first, rest, state)
                state = self._merged(first, state)
            else:
                state = self._step(first, state)
        if self._routine.outputs:
            return self._returned(st.Return(None), state)
        raise UnsupportedError("control may reach the end of its body without RETURN")

    def _step(self, statement: Statement, state: _State) -> _State:
        """Return the state after a statement that does not branch."""
        if isinstance(statement, st.Declaration):
            return self._declared(statement, state)
        if isinstance(statement, st.Assignment):
            value = self._assigned(statement.value, state, self._types[statement.name])
            return state.having((statement.name, value))
        if isinstance(statement, st.Into):
            return self._into(statement, state)
        if isinstance(statement, st.Perform):
            return self._performed(statement, state)
        if isinstance(statement, st.Null):
            return state
        word = statement.word if isinstance(statement, st.Other) else "RETURN QUERY"
        raise UnsupportedError(f"its body has a statement {word}")

    def _declared(self, statement: st.Declaration, state: _State) -> _State:
        if statement.hides:
            raise UnsupportedError(f'its body declares variable "{statement.name}" twice')
        if statement.not_null:
            raise UnsupportedError(f'variable "{statement.name}" is NOT NULL')
        kind = self._types[statement.name] = self._terms.declared(statement.declared)
        if self._catalog.types[kind[0]].kind in "cp":
            raise UnsupportedError(f'variable "{statement.name}" is a row or has a pseudo-type')
        if statement.value is None:
            return self._null(state, statement.name)
        return state.having((statement.name, self._assigned(statement.value, state, kind)))

    def _null(self, state: _State, name: str) -> _State:
        expr = self._terms.null_of(self._types[name][0])
        # A domain may refuse NULL.
        return state.having((name, self._numbered(expr, (), fails=expr.kind != "CONST")))

    def _collation(self, oid: int) -> int:
        return trees.collation(self._terms.null_of(oid)) or 0

    def _into(self, statement: st.Into, state: _State) -> _State:
        expression = statement.query
        tree = self._terms.tree(expression.variables, expression.text)
        shown = targets(tree)
        if len(shown) != len(statement.names):
            raise UnsupportedError("SELECT INTO has another number of columns than of variables")
        if len(set(statement.names)) != len(statement.names):
            raise UnsupportedError("SELECT INTO names a variable twice")
        self._require_one(tree, strict=statement.strict)
        there = self._exists(tree, expression, state)
        if len(shown) == 1 or trees.is_plain(tree):
            columns = (
                [tree] if len(shown) == 1 else [trees.only(tree, n) for n in range(len(shown))]
            )
        elif tree.node("setOperations") or tree.nodes("distinctClause"):
            raise UnsupportedError("SELECT INTO of several columns has UNION or DISTINCT")
        else:
            columns = [trees.only(tree, n) for n in range(len(shown))]
        values = []
        for name, column in zip(statement.names, columns, strict=True):
            value = self._evaluated(column, expression, state, proven=True)
            values.append((name, self._converted(value, self._types[name])))
        return state.having(*values, (FOUND, there))

    def _require_one(self, tree: Node, *, strict: bool) -> None:
        if strict and not (trees.is_plain(tree) or trees.is_single(tree)):
            raise UnsupportedError("SELECT INTO STRICT may find no row")
        if not self._cardinality.at_most_one(tree):
            raise UnsupportedError(
                "SELECT INTO may find several rows, and which one is first is open"
            )

    def _performed(self, statement: st.Perform, state: _State) -> _State:
        expression = statement.query
        tree = self._terms.tree(expression.variables, expression.text)
        if any(self._terms.fails(each) for each in targets(tree)):
            raise UnsupportedError("PERFORM evaluates an expression that may fail")
        return state.having((FOUND, self._exists(tree, expression, state)))

    def _exists(self, tree: Node, expression: Expression, state: _State) -> _Value:
        """Return the value of FOUND after a query."""
        if trees.is_plain(tree) or trees.is_single(tree):
            return _Value(self._terms.constant("true"))
        bound = self._bound(tree, expression, state)
        return self._numbered(trees.sublink(bound, trees.EXISTS), (), fails=self._terms.fails(tree))

    def _returned(self, statement: st.Return, state: _State) -> Node:
        routine = self._routine
        if statement.value is not None:
            collation = self._collation(routine.result)
            value = self._assigned(statement.value, state, (routine.result, -1, collation))
        elif routine.outputs:
            value = state.values[routine.outputs[0].name]
        else:
            raise UnsupportedError("its body has RETURN without a value")
        return self._forced(value, state)

    def _branches(self, choice: st.Conditional, rest: list[Statement], state: _State) -> Node:
        """Return a CASE whose branches also execute the statements after it."""
        arms = []
        for condition, inside in choice.arms:
            test = self._condition(condition, state)
            state = self._after_test(test, state)
            arms.append((test.expr, self._run([*inside, *rest], state)))
        if choice.otherwise is None:
            raise UnsupportedError("its body has CASE without ELSE")
        last = self._run([*choice.otherwise, *rest], state)
        oid = self._routine.outputs[0].type if self._routine.outputs else self._routine.result
        return self._terms.case(arms, last, oid)

    def _after_test(self, test: _Value, state: _State) -> _State:
        return replace(state, done=state.done | test.uses | {test.number})

    def _merged(self, choice: st.Conditional, state: _State) -> _State:
        """Return the state after branches that only assign: each variable becomes a CASE."""
        tests: list[_Value] = []
        ends: list[_State] = []
        for condition, inside in choice.arms:
            tests.append(self._condition(condition, state))
            ends.append(self._after(inside, state))
        last = self._after(choice.otherwise or (), state)
        # Conditions are evaluated in turn, also where no branch assigns anything.
        changed = [
            name
            for name, before in state.values.items()
            if any(end.values[name] is not before for end in (*ends, last))
        ]
        uses = tests[0].uses | {tests[0].number}
        values = []
        for name in changed:
            found = [end.values[name] for end in ends]
            arms = [(test.expr, value.expr) for test, value in zip(tests, found, strict=True)]
            expr = self._terms.case(arms, last.values[name].expr, self._types[name][0])
            fails = any(value.number for value in (*tests, *found, last.values[name]))
            values.append((name, self._numbered(expr, uses, fails=fails)))
        if not changed and any(test.number for test in tests):
            no = self._terms.constant("false")
            expr = self._terms.case([(test.expr, no) for test in tests], no, t.BOOL)
            values.append(("", self._numbered(expr, uses, fails=True)))
        return state.having(*values)

    def _after(self, inside: Iterable[Statement], state: _State) -> _State:
        for statement in inside:
            state = self._step(statement, state)
        return state

    def _condition(self, condition: Expression, state: _State) -> _Value:
        value = self._evaluated(
            self._terms.tree(condition.variables, condition.text), condition, state
        )
        if type_of(value.expr) != t.BOOL:
            raise UnsupportedError("a condition in its body is not of type boolean")
        return value

    # -- expressions

    def _assigned(
        self, expression: Expression, state: _State, target: tuple[int, int, int]
    ) -> _Value:
        """Return the value of an expression after assignment to a variable."""
        text = expression.text
        tree = self._terms.tree(expression.variables, text)
        base = self._catalog.types.base(target[0])
        if (
            trees.is_plain(tree)
            and names.is_string(text.removeprefix("SELECT "))
            and type_of(targets(tree)[0]) == t.TEXT
            and base != t.TEXT
        ):
            # A literal is read by the input function of the type.
            written = (
                f"SELECT CAST({text.removeprefix('SELECT ')} AS {self._catalog.types[base].name})"
            )
            tree = self._terms.tree(expression.variables, written)
        if len(targets(tree)) != 1:
            raise UnsupportedError("an expression in its body has several columns")
        return self._converted(self._evaluated(tree, expression, state), target)

    def _converted(self, value: _Value, target: tuple[int, int, int]) -> _Value:
        expr, fails = self._terms.assigned(value.expr, target)
        return self._numbered(expr, value.uses, fails=fails or bool(value.number))

    def _evaluated(
        self, tree: Node, expression: Expression, state: _State, *, proven: bool = False
    ) -> _Value:
        """Return the value of a query; ``proven``: it has at most one row."""
        bound = self._bound(tree, expression, state)
        fails = self._terms.fails(tree)
        if not trees.is_plain(tree):
            return self._numbered(trees.sublink(bound, trees.VALUE), (), fails=fails or not proven)
        [shown], [expr] = targets(tree), targets(bound)
        uses: set[int] = set()
        for number in trees.always(shown):
            value = state.values[_name(expression.variables, number - 1)]
            uses |= value.uses | {value.number}
        return self._numbered(expr, uses, fails=fails)

    def _numbered(self, expr: Node, uses: Iterable[int], *, fails: bool) -> _Value:
        if fails:
            self._made += 1
            return _Value(expr, frozenset(uses) | {self._made}, self._made)
        return _Value(expr, frozenset(uses))

    def _bound(self, tree: Node, expression: Expression, state: _State) -> Node:
        """Return a copy of ``tree`` with the values of variables."""
        exprs = {
            place + 1: state.values[_name(expression.variables, place)].expr
            for place in range(len(expression.variables))
            if _name(expression.variables, place) in state.values
        }
        return self._terms.bound(tree, exprs)

    def _forced(self, value: _Value, state: _State) -> Node:
        """Return an expression of ``value`` that first evaluates the pending values.

        ``CASE WHEN (x IS NULL) IS NULL THEN NULL ELSE value END`` fails if x fails.
        """
        expr = value.expr
        done = state.done | value.uses
        oid = type_of(expr)
        assert oid is not None, "it has been cast"
        for each in reversed(state.pending):
            if each.number in done:
                continue
            done |= each.uses
            test = trees.null_test(trees.null_test(self._terms.duplicate(each.expr)))
            # The condition is never NULL, so the branch is never taken.
            expr = self._terms.case(
                [(test, self._terms.null_of(self._catalog.types.base(oid)))], expr, oid
            )
        return expr


# -- trees


def _flat(statements: Iterable[Statement]) -> Iterable[Statement]:
    for statement in statements:
        if isinstance(statement, st.Block):
            yield from _flat(statement.statements)
        else:
            yield statement


def _mergeable(choice: st.Conditional) -> bool:
    """Return whether each branch only assigns values, each variable once."""
    if choice.otherwise is None:
        return False
    for inside in (*(inside for _, inside in choice.arms), choice.otherwise):
        names: list[str] = []
        for statement in inside:
            if isinstance(statement, st.Assignment):
                names.append(statement.name)
            elif isinstance(statement, st.Into):
                names += (*statement.names, FOUND)
            elif not isinstance(statement, st.Null):
                return False
        if len(set(names)) != len(names):
            return False
    return True


def _name(variables: Sequence[Variable], place: int) -> str:
    """Return the name of the variable at ``place``: parameters may have none of their own."""
    return variables[place].name or f"${place + 1}"
