"""Scalar expressions: from Postgres' parse tree to ours.

Every node kind that may appear is named here; any other is refused.  Types, collations and
the functions behind operators are what Postgres resolved, never guessed again.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, LiteralString, NoReturn

import psycopg

from headrace import types as t
from headrace.errors import UnsupportedError
from headrace.expressions.native import NativeOp, TypeRef, resolve, resolve_cast
from headrace.planner.analyse import session
from headrace.planner.analyse.catalog import Catalog, Connection, Function, Operator
from headrace.planner.analyse.nodetree import Node
from headrace.planner.logical.scalar import (
    ARG,
    CLOCK,
    Call,
    Const,
    Expr,
    Ref,
    constant,
    immutable,
    refs,
    to_sql,
    trusted,
)
from headrace.planner.scalars import (
    citext,
    clockless,
    clockranges,
    conditionals,
    constructors,
    containers,
    functions,
    rowtypes,
    typenames,
)
from headrace.planner.scalars.constants import Constants
from headrace.planner.scalars.scope import Scope

__all__ = ["Lowering", "Scope"]

_COMPARISONS: Final = frozenset({"=", "<>", "<", "<=", ">", ">="})
_BOOLEAN_TESTS: Final = (
    *(("is_true", "IS TRUE"), ("is_not_true", "IS NOT TRUE"), ("is_false", "IS FALSE")),
    *(("is_not_false", "IS NOT FALSE"), ("is_unknown", "IS UNKNOWN")),
    ("is_not_unknown", "IS NOT UNKNOWN"),
)
_SYSTEM_COLUMNS: Final = {
    -1: "ctid", -2: "xmin", -3: "cmin", -4: "xmax", -5: "cmax", -6: "tableoid",
}  # fmt: skip
_MONEY_ANYWHERE: Final = frozenset(
    {*_COMPARISONS, "is_null", "is_not_null", "is_distinct_from", "coalesce", "case"}
)
"""What does not look at the form of a money value; everything is evaluated under C."""
_IN_LIST_MAX: Final = 64
"""Longest IN list that becomes a chain of native comparisons."""

_REFUSED: Final = {
    "WINDOWFUNC": "a window function",
    "GROUPINGFUNC": "GROUPING",
    "PARAM": "a parameter",
    "NEXTVALUEEXPR": "nextval",
    "AGGREF": "an aggregate here",
    "MERGESUPPORTFUNC": "merge_action",
    "RETURNINGEXPR": "RETURNING",
}
_STRINGS: Final = frozenset({t.TEXT, t.VARCHAR, t.NAME, t.BPCHAR})
RECORDS: Final = frozenset({2249, 2287})
"""record and record[]: inside of expressions only."""
_NOW: Final = frozenset({1299, 2647})
"""now(), transaction_timestamp()."""
_QUOTED: Final = re.compile(r'"([^"]+)"')

Position = Callable[[int], int | None]


class Lowering:
    """Lowers the expressions of one query."""

    def __init__(
        self,
        conn: Connection,
        catalog: Catalog,
        constants: Constants,
        position: Position,
        find: Callable[[str], int | None],
        *,
        money_plain: bool = True,
    ) -> None:
        """``position`` places a tree location in the query, ``find`` a pattern.

        ``money_plain``: lc_monetary of the query is that of the C locale.
        """
        self._find = find
        self._money_plain = money_plain
        self._conn = conn
        self.catalog = catalog
        self.known: dict[int, Expr] = {}
        """What a node of the tree (by ``id``) is: set-returning calls of a select list."""
        self._constants = constants
        self._position = position
        self._conversions: dict[tuple[int, int, int], Node] = {}

    # -- helpers

    @property
    def database(self) -> str:
        """The database of the query."""
        return self._conn.info.dbname

    def refuse(
        self,
        what: str,
        node: Node | None = None,
        *,
        pattern: str = "",
        **more: str | None,
    ) -> NoReturn:
        """Raise UnsupportedError: ``what`` is not supported, at ``node`` or ``pattern``."""
        place = self.position(node)
        if place is None and pattern:
            place = self._find(pattern)
        if place is None and (name := _QUOTED.search(what)) is not None:
            place = self._find(rf"\b{re.escape(name[1])}\b")
        raise UnsupportedError(
            what if "not supported" in what else f"{what} is not supported",
            position=place,
            **more,
        )

    def find(self, pattern: str) -> int | None:
        """Position of the first match of ``pattern`` in the query."""
        return self._find(pattern)

    def position(self, node: Node | None) -> int | None:
        """Position of ``node`` in the query, if the server keeps it."""
        if node is None:
            return None
        found = self._position(node.number("location", -1))
        if found is not None:
            return found
        for name in ("arg", "args", "expr", "xpr"):
            value = node.fields.get(name)
            inner = value[0] if isinstance(value, list) and value else value
            if isinstance(inner, Node) and (found := self.position(inner)) is not None:
                return found
        return None

    def type_name(self, oid: int) -> str:
        """SQL for the type, without modifier."""
        return self.catalog.type(oid).name

    def sql(self, expr: Expr, column: Callable[[Ref], str]) -> str:
        """Exact SQL of ``expr`` over ``column`` names; collations are made explicit."""

        def reference(ref: Ref) -> str:
            own = self.catalog.type(ref.oid).collation
            if not ref.collation or ref.collation == own:
                return column(ref)
            collation = self.catalog.collation(ref.collation)
            assert collation is not None, "the collation is not 0"
            return f"({column(ref)} COLLATE {collation.quoted})"

        return to_sql(expr, reference, self.type_name)

    def analysed(self, query: str) -> Node:
        """The tree of a query of our own making, ready to be lowered.

        Raises:
            psycopg.Error: Postgres does not accept it.
        """
        with self._conn.transaction(force_rollback=True):
            tree = session.made_view(self._conn, query, "headrace_proof").tree
        self._constants.load([tree])
        return tree

    def described(self, query: str) -> list[tuple[str, int, int, int]]:
        """(name, type, typmod, collation) of the columns of a query of our own making."""
        with self._conn.transaction(force_rollback=True):
            return session.made_view(self._conn, query, "headrace_shape").columns

    def types(self, args: Sequence[Expr], collation: int) -> list[TypeRef]:
        """Types of ``args`` under an input collation, for ``native.resolve``."""
        described = [(a.oid, a.typmod, constant(a)) for a in args]
        return self.catalog.type_refs(described, collation)

    def call(
        self,
        symbol: str,
        args: tuple[Expr, ...],
        result: tuple[int, int, int],
        sql: str,
        display: str,
        *,
        native: NativeOp | None,
        remote_raises: bool,
        input_collation: int = 0,
        function: Function | None = None,
        more: Sequence[Function] = (),
        stable: bool = False,
        untrusted: bool = False,
        declared: int = 0,
    ) -> Expr:
        """A call, folded when it is constant; a kernel of another result type is no kernel.

        ``function`` and ``more`` are what it runs; ``stable`` and ``untrusted`` say more than
        they do.  ``declared`` is the domain that the result is checked against.
        """
        run = [*more, *([function] if function is not None else [])]
        oid, typmod, collation = result
        if native is not None and native.oid != oid:
            native = None
        users = [declared or oid, *(a.oid for a in args)]
        if t.MONEY in users and not self._money_plain and symbol not in _MONEY_ANYWHERE:
            self.refuse(
                "an expression over type money where lc_monetary is not C or POSIX"
            )
        call = Call(
            symbol=symbol,
            args=args,
            oid=oid,
            typmod=typmod,
            collation=collation,
            sql=sql,
            show=display,
            native=native.name if native else None,
            raises=native.may_raise if native else remote_raises,
            input_collation=input_collation,
            immutable=not stable and all(f.volatility == "i" for f in run),
            trusted=not untrusted
            and all(f.builtin for f in run)
            and all(self.catalog.trusted(u) for u in users),
        )
        return self._fold(call)

    def fetch(self, query: LiteralString, argument: str) -> Any:
        """The one value that ``query`` gives for ``argument`` under the pinned settings."""
        row = self._conn.execute(query, (argument,)).fetchone()
        assert row is not None, "a value"
        return row[0]

    def plain_type(self, oid: int) -> bool:
        """Whether handling values of the type can run no code of a user."""
        return self.catalog.trusted(oid)

    def _fold(self, call: Call) -> Expr:
        if refs(call) or not immutable(call) or not trusted(call):
            return call
        if call.symbol == "collate":
            return call  # a Const says nothing of its collation
        if self.catalog.type(call.oid).kind in ("c", "p"):
            return call  # a record has no text to be read back
        if any(not isinstance(a, Const) for a in call.args):
            return call  # an argument could not be folded: it raises
        sql = self.sql(call, lambda _: "")
        try:
            with self._conn.transaction(force_rollback=True):
                [text] = session.output_texts(self._conn, [sql])
        except psycopg.Error as error:
            if (error.sqlstate or "")[:2] not in ("22", "23", "42"):
                raise
            # Fails at run time, if it is ever evaluated; or our SQL of it is refused later.
            return call
        return Const(text, call.oid, call.typmod, call.collation)

    def folded(self, expr: Expr) -> Expr:
        """``expr`` with constant parts computed: rules put constants in the place of columns."""
        if not isinstance(expr, Call):
            return expr
        args = tuple(self.folded(a) for a in expr.args)
        return self._fold(dataclasses.replace(expr, args=args))

    # -- expressions

    def lower(self, node: Node, scope: Scope) -> Expr:
        """The expression of ``node``."""
        if (found := self.known.get(id(node))) is not None:
            return found
        levels = node.number("agglevelsup")  # also of GROUPING
        home = scope.up(levels)
        if home is not None and home.special is not None:
            known = home.special(node)
            if known is not None:
                return known
        handler = self._handlers.get(node.kind)
        if handler is not None:
            return handler(self, node, scope)
        what = _REFUSED.get(node.kind, "an expression of this kind")
        return self.refuse(what, node)

    def _all(self, nodes: list[Node], scope: Scope) -> tuple[Expr, ...]:
        return tuple(self.lower(n, scope) for n in nodes)

    def _var(self, node: Node, scope: Scope) -> Expr:
        levels = node.number("varlevelsup")
        home = scope.up(levels)
        if home is None:
            self.refuse("a reference to an outer query", node)
        attno = node.number("varattno")
        if attno == 0:
            if home.row is None:
                self.refuse("a whole-row reference", node)
            found = home.row(node.number("varno"), node.number("vartype"))
            return home.above(found) if levels and home.above is not None else found
        if attno < 0:
            name = _SYSTEM_COLUMNS.get(attno, "?")
            self.refuse(f'system column "{name}"', node)
        found = home.column(node.number("varno"), attno)
        return home.above(found) if levels and home.above is not None else found

    def _sublink(self, node: Node, scope: Scope) -> Expr:
        if scope.subqueries is None or not scope.sites:
            found = rowtypes.named_record(self, node, scope)
            return found if found is not None else self.refuse("a subquery here", node)
        return scope.subqueries.value(node, scope)

    def _const(self, node: Node, scope: Scope) -> Expr:
        del scope
        declared = node.number("consttype")
        oid = self.catalog.base(declared)
        typmod, collation = node.number("consttypmod", -1), node.number("constcollid")
        if node.flag("constisnull"):
            return Const(None, oid, typmod, collation)
        data = node.fields.get("constvalue")
        assert isinstance(data, bytes), "a constant that is not null has octets"
        text = self._constants.text(declared, data)
        if text is None:
            self.refuse(f"a constant of type {self.type_name(oid)}", node)
        return Const(text, oid, typmod, collation)

    def function(self, oid: int, node: Node) -> Function:
        """The function of that OID, if a view may call it."""
        function = self.catalog.function(oid)
        if (reason := functions.refusal(function)) is not None:
            self.refuse(reason, node, hint=functions.remedy(function))
        return function

    def result(self, node: Node, field: str, collation: str) -> tuple[int, int, int]:
        """(type, modifier, collation) of ``node``; a record is fine inside an expression."""
        oid = self.catalog.base(node.number(field))
        if self.catalog.type(oid).kind == "p" and oid not in RECORDS:
            self.refuse(f"an expression of pseudo-type {self.type_name(oid)}", node)
        return oid, -1, node.number(collation)

    def _operator(self, node: Node, scope: Scope) -> Expr:
        if node.flag("opretset"):
            self.refuse("a set-returning operator", node)
        operator = self.catalog.operator(node.number("opno"))
        function = self.function(operator.function, node)
        args = self._all(node.nodes("args"), scope)
        for form in (citext.comparison, clockranges.contains):
            if (known := form(self, function, args)) is not None:
                return known
        result = self.result(node, "opresulttype", "opcollid")
        return self.operate(
            operator, function, args, result, node.number("inputcollid")
        )

    def operate(
        self,
        operator: Operator,
        function: Function,
        args: tuple[Expr, ...],
        result: tuple[int, int, int],
        collation: int,
    ) -> Expr:
        """``operator``, which runs ``function``, applied to ``args``."""
        infix = len(args) == 2
        return self.call(
            operator.name,
            args,
            result,
            f"({ARG} {operator.quoted} {ARG})"
            if infix
            else f"({operator.quoted} {ARG})",
            f"{ARG} {operator.name} {ARG}" if infix else f"{operator.name} {ARG}",
            native=self._kernel(operator, operator.name, args, collation),
            remote_raises=self._operator_raises(operator.name, function, args),
            input_collation=collation,
            function=function,
        )

    def _kernel(
        self, operator: Operator, name: str, args: tuple[Expr, ...], collation: int
    ) -> NativeOp | None:
        return resolve(name, self.types(args, collation)) if operator.builtin else None

    def _operator_raises(
        self, name: str, function: Function, args: tuple[Expr, ...]
    ) -> bool:
        if function.builtin and name in _COMPARISONS:
            # Rows and arrays look for the operators of their parts when they run.
            return any(self._open(a.oid) for a in args)
        return functions.may_raise(function, args)

    def _open(self, oid: int) -> bool:
        """Whether comparing values of the type may turn out to be impossible."""
        kind = self.catalog.type(oid)
        if kind.kind in ("c", "p"):
            return True
        return bool(kind.element) and not self.catalog.type(kind.element).comparable

    def _call(self, node: Node, scope: Scope) -> Expr:
        if node.number("funcid") in _NOW:
            return CLOCK
        if (known := typenames.constant(self, node, scope)) is not None:
            return known
        function = self.function(node.number("funcid"), node)
        args, names = self.arguments(node.nodes("args"), scope)
        if len(args) < function.arguments:
            self.require_constant_defaults(function, node)
        result = self.result(node, "funcresulttype", "funccollid")
        if functions.populates_dates(self.catalog, function, result[0]):
            self.refuse(f'function "{function.name}" over dates or times', node)
        cast = self.catalog.cast(args[0].oid, result[0]) if len(args) == 1 else None
        collation = node.number("inputcollid")
        marks = [f"{name} => {ARG}" if name else ARG for name in names]
        native = None
        display = f"{function.name}({', '.join(marks)})"
        symbol = function.quoted
        if cast is not None and cast[0] == function.oid:
            source = self.types(args, collation)[0]
            native = resolve_cast(source, TypeRef(result[0]))
            display = f"{ARG}::{self.type_name(result[0])}"
        elif function.builtin and not any(names):  # named ones come in any order
            native = resolve(function.name, self.types(args, collation))
        if any(names):
            symbol = f"{function.quoted} {', '.join(names)}"
        if node.flag("funcvariadic"):
            marks[-1] = f"VARIADIC {ARG}"
            symbol += " variadic"
        sql = f"{function.quoted}({', '.join(marks)})"
        if functions.borrowed(cast, function, args, result[0]):
            sql = f"({ARG})::{self.type_name(result[0])}"
        return self.call(
            symbol,
            args,
            result,
            sql,
            display,
            native=native,
            remote_raises=functions.may_raise(function, args),
            input_collation=collation,
            function=function,
        )

    def require_constant_defaults(self, function: Function, node: Node) -> None:
        """Refuse a call with fewer arguments than a user's function has, if they may vary."""
        if function.builtin or self.catalog.constant_defaults(function.oid):
            return
        # It would be computed when the query is planned, volatile or not.
        self.refuse(f'default arguments of function "{function.name}"', node)

    def arguments(
        self, nodes: list[Node], scope: Scope
    ) -> tuple[tuple[Expr, ...], list[str]]:
        """Arguments of a call, and the quoted names of those that are named."""
        names, inner = [], []
        for node in nodes:
            named = node.kind == "NAMEDARGEXPR"
            names.append(rowtypes.quote_name(node.text("name") or "") if named else "")
            inner.append(node.child("arg") if named else node)
        return self._all(inner, scope), names

    def comparison(self, name: str, left: Expr, right: Expr, collation: int) -> Expr:
        """``left name right`` by a built-in operator that kernels compute."""
        native = resolve(name, self.types((left, right), collation))
        assert native is not None, "asked by the caller"
        return self.call(
            name,
            (left, right),
            (t.BOOL, -1, 0),
            f"({ARG} OPERATOR(pg_catalog.{name}) {ARG})",
            f"{ARG} {name} {ARG}",
            native=native,
            remote_raises=False,
            input_collation=collation,
        )

    def logic(self, symbol: str, args: tuple[Expr, ...]) -> Expr:
        """``and``, ``or`` or ``not`` of ``args``.

        Nested ones of a kind become one: Postgres' grammar does so with our SQL of them.
        """
        if symbol != "not":
            args = tuple(
                part
                for a in args
                for part in (
                    a.args if isinstance(a, Call) and a.symbol == symbol else (a,)
                )
            )
        word = symbol.upper()
        text = f"NOT {ARG}" if symbol == "not" else f" {word} ".join([ARG] * len(args))
        return self.call(
            symbol,
            args,
            (t.BOOL, -1, 0),
            f"({text})",
            text,
            native=resolve(symbol, self.types(args, 0)),
            remote_raises=False,
        )

    def _null_test(self, node: Node, scope: Scope) -> Expr:
        arg = self.lower(node.child("arg"), scope)
        symbol = "is_not_null" if node.number("nulltesttype") else "is_null"
        if isinstance(arg, Call) and rowtypes.is_row(arg):
            expanded = rowtypes.null_test(self, symbol, arg)
            if expanded is not None:
                return expanded
        return self.null_test(symbol, arg, row=node.flag("argisrow"))

    def null_test(self, symbol: str, arg: Expr, *, row: bool = False) -> Expr:
        """``IS NULL`` or ``IS NOT NULL``."""
        words = "IS NOT NULL" if symbol == "is_not_null" else "IS NULL"
        return self.call(
            symbol,
            (arg,),
            (t.BOOL, -1, 0),
            f"({ARG} {words})",
            f"{ARG} {words}",
            native=None if row else resolve(symbol, self.types((arg,), 0)),
            remote_raises=False,
        )

    def _boolean_test(self, node: Node, scope: Scope) -> Expr:
        arg = self.lower(node.child("arg"), scope)
        symbol, _ = _BOOLEAN_TESTS[node.number("booltesttype")]
        return self.boolean_test(symbol, arg)

    def boolean_test(self, symbol: str, arg: Expr) -> Expr:
        """``is_true`` and its kin: never NULL."""
        words = dict(_BOOLEAN_TESTS)[symbol]
        return self.call(
            symbol,
            (arg,),
            (t.BOOL, -1, 0),
            f"({ARG} {words})",
            f"{ARG} {words}",
            native=resolve(symbol, self.types((arg,), 0)),
            remote_raises=False,
        )

    def _distinct(self, node: Node, scope: Scope) -> Expr:
        return self._equality(
            node, scope, "is_distinct_from", f"({ARG} IS DISTINCT FROM {ARG})"
        )

    def distinct(self, left: Expr, right: Expr) -> Expr:
        """``left IS DISTINCT FROM right``, two values of one type."""
        text = f"{ARG} IS DISTINCT FROM {ARG}"
        types = self.types((left, right), left.collation)
        return self.call(
            "is_distinct_from",
            (left, right),
            (t.BOOL, -1, 0),
            f"({text})",
            text,
            native=resolve("is_distinct_from", types),
            remote_raises=False,
            input_collation=left.collation,
        )

    def _nullif(self, node: Node, scope: Scope) -> Expr:
        return self._equality(node, scope, "nullif", f"NULLIF({ARG}, {ARG})")

    def _equality(self, node: Node, scope: Scope, symbol: str, sql: str) -> Expr:
        operator = self.catalog.operator(node.number("opno"))
        function = self.function(operator.function, node)
        args = self._all(node.nodes("args"), scope)
        if (known := citext.equality(self, function, symbol, args)) is not None:
            return known
        if not operator.builtin or operator.name != "=":
            self.refuse(
                f"{symbol.replace('_', ' ')} with operator {operator.name}", node
            )
        collation = node.number("inputcollid")
        result = self.result(node, "opresulttype", "opcollid")
        if symbol == "is_distinct_from":
            result = (t.BOOL, -1, 0)
        return self.call(
            symbol,
            args,
            result,
            sql,
            sql.removeprefix("(").removesuffix(")") if sql.startswith("(") else sql,
            native=resolve(symbol, self.types(args, collation)),
            remote_raises=False,
            input_collation=collation,
            function=function,
        )

    def _array_operator(self, node: Node, scope: Scope) -> Expr:
        operator = self.catalog.operator(node.number("opno"))
        function = self.function(operator.function, node)
        anyone = node.flag("useOr")
        left_node, right_node = node.nodes("args")
        collation = node.number("inputcollid")
        left = self.lower(left_node, scope)
        if (chain := self._in_list(node, scope, left, right_node)) is not None:
            return chain
        args = (left, self.lower(right_node, scope))
        word = "ANY" if anyone else "ALL"
        return self.call(
            f"{operator.name} {word}",
            args,
            (t.BOOL, -1, 0),
            f"({ARG} {operator.quoted} {word} ({ARG}))",
            f"{ARG} {operator.name} {word} ({ARG})",
            native=self._kernel(operator, f"{operator.name} {word}", args, collation),
            remote_raises=operator.name not in _COMPARISONS or not function.builtin,
            input_collation=collation,
            function=function,
        )

    def _in_list(
        self, node: Node, scope: Scope, left: Expr, right: Node
    ) -> Expr | None:
        """``x IN (a, b)`` is ``x = a OR x = b``; ``NOT IN`` likewise with AND."""
        operator = self.catalog.operator(node.number("opno"))
        if not operator.builtin or operator.name not in ("=", "<>"):
            return None
        items = containers.elements(self, right, scope, _IN_LIST_MAX)
        if items is None:
            return None
        collation = node.number("inputcollid")
        tests = []
        for item in items:
            native = resolve(operator.name, self.types((left, item), collation))
            if native is None:
                return None
            tests.append(self.comparison(operator.name, left, item, collation))
        if len(tests) == 1:
            return tests[0]
        return self.logic("or" if node.flag("useOr") else "and", tuple(tests))

    def choice(self, args: tuple[Expr, ...], result: tuple[int, int, int]) -> Expr:
        """CASE: condition, value, condition, value, …, else."""
        whens = f" WHEN {ARG} THEN {ARG}" * (len(args) // 2)
        sql = f"CASE{whens} ELSE {ARG} END"
        return self.call(
            "case",
            args,
            result,
            f"({sql})",
            sql,
            native=resolve("case", self.types(args, 0)),
            remote_raises=False,
        )

    def guarded(self, condition: Expr, value: Expr) -> Expr:
        """``value`` where ``condition`` is true, else NULL; not computed elsewhere."""
        args = (condition, value, Const(None, value.oid, -1, value.collation))
        return self.choice(args, (value.oid, value.typmod, value.collation))

    def _relabel(self, node: Node, scope: Scope) -> Expr:
        arg = self.lower(node.child("arg"), scope)
        oid, _, collation = self.result(node, "resulttype", "resultcollid")
        typmod = node.number("resulttypmod", -1)
        if functions.is_reg_type(oid) or functions.is_reg_type(arg.oid):
            if isinstance(arg, Const) and oid == t.OID:
                return Const(arg.text, oid)
            self.refuse(f"a cast between {self.type_name(arg.oid)} and an OID", node)
        if oid == arg.oid:
            # Only the label changes (a domain to its base, or a modifier given up).
            return _relabelled(arg, typmod, collation)
        return self.cast(arg, oid, typmod, collation)

    def cast(self, arg: Expr, oid: int, typmod: int, collation: int) -> Expr:
        """``arg::type`` where the cast is binary or goes through the text."""
        stable = False
        found = self.catalog.cast(arg.oid, oid)
        through_text = found is None or found[1] == "i"
        name = typenames.name(self, arg) if oid in _STRINGS else None
        if name is not None:
            return Const(name, oid, typmod, collation)
        if through_text:
            guarded = functions.clock_guarded(oid) and arg.oid in _STRINGS
            reason = functions.io_refusal(self.catalog, arg.oid, oid, guarded=guarded)
            if reason is not None:
                self.refuse(reason)
            if guarded:
                arg = clockless.guard(self, arg)
            stable = not functions.io_immutable(self.catalog, arg.oid, oid)
        source = self.types((arg,), 0)[0]
        kind = self.type_name(oid)
        return self.call(
            f"cast {kind}",
            (arg,),
            (oid, typmod, collation),
            f"({ARG})::{kind}",
            f"{ARG}::{kind}",
            native=resolve_cast(source, TypeRef(oid)),
            remote_raises=through_text and oid not in _STRINGS,
            stable=stable,
        )

    def convert(self, arg: Expr, oid: int, collation: int) -> Expr:
        """``arg`` converted as a cast does it, or UNION silently to the common type."""
        if arg.oid == oid:
            return arg
        made = self.lower(self._conversion(arg, oid), Scope(lambda *_: arg))
        return _relabelled(made, -1, collation)

    def _conversion(self, arg: Expr, oid: int) -> Node:
        """What Postgres makes of a cast of a column like ``arg``, as it would read ours."""
        kind = arg.oid, arg.collation, oid
        if kind not in self._conversions:
            source, target = self.type_name(arg.oid), self.type_name(oid)
            like = Ref(0, arg.oid, -1, arg.collation)
            column = self.sql(like, lambda _: f"NULL::{source}")
            # Names of types and collations are quoted where they come from.
            query = f"SELECT s.a::{target} FROM (SELECT {column} AS a) s"  # noqa: S608
            [entry] = self.analysed(query).nodes("targetList")
            self._conversions[kind] = entry.child("expr")
        return self._conversions[kind]

    def _through_text(self, node: Node, scope: Scope) -> Expr:
        arg = self.lower(node.child("arg"), scope)
        oid, _, collation = self.result(node, "resulttype", "resultcollid")
        try:
            return self.cast(arg, oid, -1, collation)
        except UnsupportedError as error:
            error.position = error.position or self.position(node)
            raise

    def _collate(self, node: Node, scope: Scope) -> Expr:
        return self.collate(
            self.lower(node.child("arg"), scope), node.number("collOid")
        )

    def collate(self, arg: Expr, oid: int) -> Expr:
        """``arg COLLATE`` that collation."""
        if arg.collation == oid:
            return arg
        collation = self.catalog.collation(oid)
        assert collation is not None, "COLLATE names a collation"
        text = f"{ARG} COLLATE {collation.quoted}"
        return self.call(
            "collate",
            (arg,),
            (arg.oid, arg.typmod, oid),
            f"({text})",
            text,
            native=NativeOp("cast", arg.oid, arg.typmod),
            remote_raises=False,
        )

    _handlers: ClassVar[dict[str, Callable[[Lowering, Node, Scope], Expr]]] = {
        "VAR": _var,
        "SUBLINK": _sublink,
        "CONST": _const,
        "OPEXPR": _operator,
        "FUNCEXPR": _call,
        "NULLTEST": _null_test,
        "BOOLEANTEST": _boolean_test,
        "DISTINCTEXPR": _distinct,
        "NULLIFEXPR": _nullif,
        "SCALARARRAYOPEXPR": _array_operator,
        "RELABELTYPE": _relabel,
        "COERCEVIAIO": _through_text,
        "COLLATEEXPR": _collate,
        **clockless.HANDLERS,
        **conditionals.HANDLERS,
        **rowtypes.HANDLERS,
        **containers.HANDLERS,
        **constructors.HANDLERS,
    }


def _relabelled(expr: Expr, typmod: int, collation: int) -> Expr:
    return dataclasses.replace(expr, typmod=typmod, collation=collation)
