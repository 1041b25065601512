"""Finds user functions whose results depend only on their arguments, despite the declaration.

``CREATE FUNCTION`` declares a function VOLATILE by default, so the declaration has little meaning.
Two sources are better: the option ``trust_stable``, in which the author of a view names functions,
and the body of the function, if it is SQL or PL/pgSQL of simple statements.
Every node of its trees must be known, and the functions that it calls must meet the same rules as
calls in a view.  A body in doubt is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from headrace.errors import UnsupportedError, UserError
from headrace.planner.analyse.catalog import Catalog, mentioned
from headrace.planner.analyse.nodetree import Node, read_node, read_nodes, same
from headrace.planner.analyse.nodetypes import targets, type_of
from headrace.planner.analyse.pg_functions import Function
from headrace.planner.bodies import inline, plpgsql, routines, trees
from headrace.planner.bodies.cardinality import Cardinality
from headrace.planner.bodies.routines import Routine
from headrace.planner.bodies.statements import Body
from headrace.planner.bodies.terms import Terms
from headrace.planner.bodies.translate import Execution
from headrace.planner.bodies.twin import Twins, Variable
from headrace.planner.scalars import functions
from headrace.postgres.connect import Connection
from headrace.types import FIRST_USER_OID, TEXT

_RESOLVE: Final = """
SELECT CASE WHEN pg_catalog.strpos(n.name, '(') OPERATOR(pg_catalog.>) 0
            THEN pg_catalog.to_regprocedure(n.name)::pg_catalog.oid
            ELSE pg_catalog.to_regproc(n.name)::pg_catalog.oid END::pg_catalog.int8
  FROM pg_catalog.unnest(%s::pg_catalog.text[]) WITH ORDINALITY AS n(name, at) ORDER BY n.at"""
_TABLE: Final = "SELECT %s::pg_catalog.oid::pg_catalog.regclass::pg_catalog.text"
_CHECKS: Final = """
SELECT k.conbin::text FROM pg_constraint k WHERE k.contypid = %s AND k.conbin IS NOT NULL"""
_ELSEWHERE: Final = """
SELECT c.oid FROM pg_class c WHERE c.oid = ANY (%s) AND c.relnamespace <> %s LIMIT 1"""
_CALLS: Final = ("funcid", "opfuncid", "aggfnoid", "winfnoid")
_OPERATORS: Final = ("opno", "eqop", "sortop")
_KNOWN: Final = frozenset(
    {
        *("QUERY", "RANGETBLENTRY", "ALIAS", "FROMEXPR", "JOINEXPR", "RANGETBLREF"),
        *("RANGETBLFUNCTION", "TARGETENTRY", "SETOPERATIONSTMT", "SORTGROUPCLAUSE"),
        *("COMMONTABLEEXPR", "WINDOWCLAUSE", "GROUPINGSET", "GROUPINGFUNC", "SUBLINK"),
        *("VAR", "CONST", "PARAM", "FUNCEXPR", "NAMEDARGEXPR", "OPEXPR", "DISTINCTEXPR"),
        *("NULLIFEXPR", "SCALARARRAYOPEXPR", "BOOLEXPR", "FIELDSELECT", "RELABELTYPE"),
        *("COERCEVIAIO", "ARRAYCOERCEEXPR", "CONVERTROWTYPEEXPR", "COLLATEEXPR"),
        *("CASEEXPR", "CASEWHEN", "CASETESTEXPR", "ARRAYEXPR", "ROWEXPR", "COALESCEEXPR"),
        *("ROWCOMPAREEXPR", "MINMAXEXPR", "NULLTEST", "BOOLEANTEST", "SUBSCRIPTINGREF"),
        *("COERCETODOMAIN", "COERCETODOMAINVALUE", "AGGREF", "WINDOWFUNC"),
        *("WINDOWFUNCRUNCONDITION", "JSONFORMAT", "JSONRETURNING", "JSONVALUEEXPR"),
        *("JSONCONSTRUCTOREXPR", "JSONISPREDICATE"),
    }
)
"""Nodes whose value depends on their parts alone."""
_DEFAULT_COLLATION: Final = 100
_SELECT: Final = 1
"""``commandType`` of a query that changes nothing."""
_CONFLICT: Final = "SELECT pg_catalog.current_setting('plpgsql.variable_conflict', true)"


def resolve(conn: Connection, names: Iterable[str]) -> frozenset[int]:
    """Return the OIDs of functions that option ``trust_stable`` names.

    Names have their schema, since the view is planned again later, under other search paths.

    Raises:
        UserError: 42883, there is no such function, or several; 22023, a name has no schema.
    """
    wanted = list(names)
    for name in wanted:
        if "." not in name.split("(")[0]:
            raise UserError(
                f'function "{name}" of option "trust_stable" must be named with its schema',
                hint=f"Write for example public.{name}.",
                sqlstate="22023",
            )
    found = [oid for (oid,) in conn.execute(_RESOLVE, (wanted,)).fetchall()] if wanted else []
    for name, oid in zip(wanted, found, strict=True):
        if oid is None:
            raise UserError(
                f'function "{name}" of option "trust_stable" does not exist, or is not unique',
                hint="Give its argument types: f(integer, text).",
                sqlstate="42883",
            )
    return frozenset(int(oid) for oid in found)


@dataclass(frozen=True, slots=True)
class _Part:
    """A statement of a body: its tree, and the types that its columns are assigned to."""

    tree: Node
    targets: tuple[int, ...] | None
    loop: int = 0


class Trust:
    """Determines why the results of user functions may depend on more than their arguments."""

    def __init__(self, conn: Connection, catalog: Catalog, twins: Twins) -> None:
        self._conn = conn
        self._catalog = catalog
        self._twins = twins
        self._readers: dict[int, bool] = {}
        """By OID: whether a function reads tables."""
        self._sound: set[int] = set()
        """Types whose values are read, checked and printed by what is known."""

    def doubt(self, function: Function) -> str | None:
        """Return why the result may depend on more than the arguments, or ``None``."""
        try:
            routine = routines.read(self._conn, function.oid)
            if routine is None:
                return ""
            for part in self._parts(routine):
                self._classify(part)
            for parameter in (*routine.inputs, *routine.outputs):
                self._require_sound(parameter.type)
            self._require_sound(routine.result)
        except UnsupportedError as error:
            return error.message
        return None

    def query(self, function: Function, call: Node) -> tuple[Node, Routine] | None:
        """Return the query or expression for ``call`` of a function that reads tables.

        It is the query of an SQL function or of a single RETURN QUERY, or an expression over the
        parameters for other PL/pgSQL statements.

        Raises:
            UnsupportedError: a PL/pgSQL function reads tables and cannot be replaced.
        """
        routine = routines.read(self._conn, function.oid)
        if routine is None or not self._replaceable(routine, call):
            return None
        if routine.language == "plpgsql":
            made = self._translated(routine, call)
            return None if made is None else (made, routine)
        if routine.language != "sql":
            return None
        try:
            [tree, *more] = self.trees(routine)
            if more or any(map(_writes, tree.walk())):
                return None
            direct = self._reads_tables(routine, routine.inputs, routine.sql, tree)
            if not direct and not self._calls_readers(tree):
                return None
        except UnsupportedError:
            return None
        if tree.fields.get("limitCount") and not routine.returns_set:
            return None
        if routine.stored is None and not _collates(call, tree):
            return None
        if not self._shows(routine, tree):
            return None
        made = tree if routine.returns_set else _of_one_column(self._catalog, routine, tree)
        return None if made is None else (made, routine)

    def _replaceable(self, routine: Routine, call: Node) -> bool:
        """Return whether any body may stand for ``call``."""
        arguments = call.nodes("args")
        if routine.definer or len(arguments) != len(routine.inputs):
            return False
        if not inline.movable(arguments) or (routine.stored is not None and routine.settings):
            return False
        rows = any(self._catalog.types[p.type].kind == "c" for p in routine.inputs)
        return not (routine.strict and (rows or routine.returns_set))

    def _shows(self, routine: Routine, tree: Node) -> bool:
        """Return whether the columns of ``tree`` are the result without conversion."""
        shown = targets(tree)
        exact = [type_of(expr) for expr in shown] == list(self._columns(routine, len(shown)))
        if not exact or routine.outputs or self._catalog.types[routine.result].kind != "c":
            return exact
        fields = self._catalog.types.attributes(routine.result)
        if len(fields) != len(shown):
            return not routine.returns_set  # One column that is the whole row.
        # A dropped column of the type has a number still.
        return [f.number for f in fields] == list(range(1, len(fields) + 1)) and all(
            field.typmod in (-1, expr.number("vartypmod", -1))
            for field, expr in zip(fields, shown, strict=True)
        )

    def _translated(self, routine: Routine, call: Node) -> Node | None:
        """Return the expression for a call of a PL/pgSQL function that reads tables."""
        try:
            body = self._body(routine)
            found = [
                self._twins.tree(routine.name, each.variables, each.text, routine.path)
                for each in body.expressions
            ]
        except UnsupportedError:
            return None
        direct = any(node.number("relid") for tree in found for node in tree.walk())
        if not direct and not any(map(self._calls_readers, found)):
            return None
        try:
            fixed = partial(self._reads_tables, routine)
            terms = Terms(self._catalog, self._twins, routine, fixed)
            execution = Execution(self._catalog, terms, Cardinality(self._conn), routine)
            if routine.returns_set:
                made = execution.rows(body)
            else:
                made = execution.value(body, call.nodes("args"))
            self._require_convertible(routine, call, made)
        except UnsupportedError as error:
            if not direct:
                return None
            raise UnsupportedError(f"it reads tables, and {error.message}") from error
        return made

    def _calls_readers(self, tree: Node) -> bool:
        """Return whether ``tree`` calls user functions that read tables."""
        called = {n.number("funcid") for n in tree.walk() if n.kind == "FUNCEXPR"}
        found = [self._catalog.functions[oid] for oid in called if oid >= FIRST_USER_OID]
        return any(not f.trusted and f.volatility != "i" and self._reads(f.oid) for f in found)

    def _reads(self, oid: int) -> bool:
        """Return whether the body of a function reads tables, directly or in functions called."""
        if oid not in self._readers:
            self._readers[oid] = False  # While its body is looked at: functions call themselves.
            routine = routines.read(self._conn, oid)
            try:
                found = [] if routine is None else [part.tree for part in self._parts(routine)]
            except UnsupportedError:
                return False
            self._readers[oid] = any(
                any(node.number("relid") for node in tree.walk()) or self._calls_readers(tree)
                for tree in found
            )
        return self._readers[oid]

    def _require_convertible(self, routine: Routine, call: Node, made: Node) -> None:
        if any(map(_writes, made.walk())):
            raise UnsupportedError("its body changes or locks rows")
        if made.kind == "QUERY" and not self._shows(routine, made):
            raise UnsupportedError("its query has columns of other types than the function")
        if not _collates(call, made):
            raise UnsupportedError("it is called with another collation than the default one")

    def gives_rows(self, oid: int) -> bool:
        """Return whether a set-returning function of composite type never returns NULL as a row.

        PL/pgSQL returns a row of NULLs instead.  The query of an SQL function returns NULL only
        as the value of a single column of the type.
        """
        routine = routines.read(self._conn, oid)
        if routine is None or routine.language not in ("sql", "plpgsql"):
            return False
        if routine.language == "plpgsql":
            return True
        try:
            shown = targets(self.trees(routine)[-1])
        except (UnsupportedError, IndexError):
            return False
        kinds = [self._catalog.types[type_of(expr) or 0].kind for expr in shown if type_of(expr)]
        return len(kinds) == len(shown) and (len(kinds) > 1 or kinds not in (["c"], ["d"], ["p"]))

    def _reads_tables(
        self, routine: Routine, variables: Sequence[Variable], text: str, tree: Node
    ) -> bool:
        """Return whether ``tree`` reads tables, by names that later objects cannot hide.

        Raises:
            UnsupportedError: the text has a table name that could come to mean another table.
        """
        entries = [n for n in tree.walk() if n.kind == "RANGETBLENTRY" and n.number("relid")]
        if routine.stored is not None or not entries:
            return bool(entries)
        path = routine.path
        first = self._twins.first_schema(path)
        oids = [entry.number("relid") for entry in entries]
        elsewhere = self._conn.execute(_ELSEWHERE, (oids, first)).fetchone()
        if elsewhere is not None:
            # Only names with their schema are found under a path without any.
            reason = "its body names a table without its schema"
            try:
                qualified = self._twins.tree(routine.name, variables, text, '""')
            except UnsupportedError as error:
                raise UnsupportedError(reason) from error
            if not same(qualified, tree):
                raise UnsupportedError(reason)
        return True

    def trees(self, routine: Routine) -> list[Node]:
        """Return the statements of an SQL function."""
        if routine.stored is not None:
            text = routine.stored  # BEGIN ATOMIC is a list of a list of statements, RETURN one.
            return read_nodes(text[1:-1] if text.startswith("((") else f"({text})")
        self._require_plain(routine)
        return [self._twins.tree(routine.name, routine.inputs, routine.sql, routine.path)]

    # -- the parts of a body

    def _parts(self, routine: Routine) -> Iterator[_Part]:
        if routine.language == "sql":
            trees = self.trees(routine)
            if not trees:
                raise UnsupportedError("its body is empty")
            yield from (_Part(tree, None) for tree in trees[:-1])
            shown = self._columns(routine, len(targets(trees[-1])))
            yield _Part(trees[-1], shown)
        elif routine.language == "plpgsql":
            yield from self._expressions(routine)
        else:
            raise UnsupportedError(f"its language is {routine.language}")

    def _columns(self, routine: Routine, width: int) -> tuple[int, ...]:
        """Return the result types of the ``width`` columns of the last statement."""
        types = self._catalog.types
        found = tuple(p.type for p in routine.outputs)
        if not found and types[routine.result].kind == "c":
            found = tuple(a.oid for a in types.attributes(routine.result))
        return found if len(found) == width and found else (routine.result,)

    def _expressions(self, routine: Routine) -> Iterator[_Part]:
        path = routine.path
        for each in self._body(routine).expressions:
            for variable in each.variables:
                self._require_sound(variable.type)
            tree = self._twins.tree(routine.name, each.variables, each.text, path)
            yield _Part(tree, each.targets, each.loop)

    def _body(self, routine: Routine) -> Body:
        """Return the statements of a PL/pgSQL function."""
        self._require_plain(routine)
        row: Any = self._conn.execute(_CONFLICT).fetchone()
        if row[0] not in (None, "", "error"):
            raise UnsupportedError("plpgsql.variable_conflict is set")
        return plpgsql.parse(routine, lambda text: self._twins.type_of(text, routine.path))

    def _require_plain(self, routine: Routine) -> None:
        if routine.definer:
            raise UnsupportedError("it is SECURITY DEFINER")
        if not routine.sets_path_only:
            raise UnsupportedError("it has a SET clause")

    # -- what they call

    def _classify(self, part: _Part) -> None:
        """Raise unless the values of ``part`` depend on parameters alone."""
        self._catalog.preload([part.tree])
        for oid in mentioned(part.tree):
            self._require_sound(oid)
        self._require_stable(part.tree)
        if part.targets is None:
            return
        shown = targets(part.tree)
        if len(shown) != len(part.targets):
            raise UnsupportedError("its body returns rows of another type")
        for expr, target in zip(shown, part.targets, strict=True):
            self._require_assignable(expr, target, part.loop)

    def _require_stable(self, tree: Node) -> None:
        for node in tree.walk():
            if node.kind not in _KNOWN and node.kind != "RTEPERMISSIONINFO":
                raise UnsupportedError("its body has an unsupported construct")
            if _writes(node):
                raise UnsupportedError("its body changes or locks rows")
            if node.kind == "RANGETBLENTRY":
                self._require_no_table(node)
            if node.kind == "COERCEVIAIO":
                self._require_assignable(node.child("arg"), node.number("resulttype"))
            if node.kind == "FUNCEXPR":
                self._require_fixed_call(node)
            for oid in {node.number(name) for name in _CALLS} - {0}:
                self._require_callable(oid)
            for oid in {node.number(n) for n in _OPERATORS} | set(node.numbers("opnos")) - {0}:
                if oid:
                    self._require_callable(self._catalog.operators[oid].function)

    def _require_no_table(self, entry: Node) -> None:
        if entry.number("relid"):
            row: Any = self._conn.execute(_TABLE, (entry.number("relid"),)).fetchone()
            raise UnsupportedError(f"it reads {row[0]}, whose changes the view would not see")
        if entry.number("rtekind") == 4 or entry.node("tablesample"):
            raise UnsupportedError("its body has an unsupported construct")

    def _require_fixed_call(self, node: Node) -> None:
        function = self._catalog.functions[node.number("funcid")]
        if functions.populates_dates(self._catalog, function, node.number("funcresulttype")):
            raise UnsupportedError(f'it calls function "{function.name}" over dates or times')
        if function.builtin or len(node.nodes("args")) >= function.arguments:
            return
        if not self._catalog.functions.constant_defaults(function.oid):
            raise UnsupportedError(f'it calls function "{function.name}" with a default argument')

    def _require_callable(self, oid: int) -> None:
        function = self._catalog.functions[oid]
        if function.builtin and function.kind == "w":
            return
        # A set is made where the body is evaluated: that is no matter of the view.
        reason = functions.refusal(replace(function, returns_set=False))
        if reason is None and function.kind == "a" and not function.builtin:
            for support in self._catalog.functions.aggregate_support(oid):
                self._require_callable(support)
            if self._catalog.functions.aggregate_volatility(oid) == "v":
                reason = f'volatile function "{function.name}" is not supported'
        if reason is not None:
            raise UnsupportedError(
                function.doubt or f"it calls a function that may be volatile: {reason}"
            )

    # -- types

    def _require_assignable(self, expr: Node, target: int, loop: int = 0) -> None:
        """Raise unless the value of ``expr`` becomes one of type ``target`` by what is known."""
        source = type_of(expr)
        if source is None:
            raise UnsupportedError("its body has a value of unknown type")
        if expr.kind == "CONST" and expr.flag("constisnull"):
            return
        if target == plpgsql.ELEMENT:
            source, target = self._catalog.types[source].element, loop
        elif target == plpgsql.ANY:
            target = TEXT
        self._require_cast(source, target)

    def _require_cast(self, source: int, target: int) -> None:
        types = self._catalog.types
        if source == target:
            return
        self._require_sound(source)
        self._require_sound(target)
        source, target = types.base(source), types.base(target)
        if source == target:
            return
        if "p" in (types[source].kind, types[target].kind):
            raise UnsupportedError("its body has a value of a pseudo-type")
        cast = self._catalog.operators.cast(source, target)
        if cast is not None and cast[1] == "f":
            self._require_callable(cast[0])
        elif cast is not None and cast[1] == "b":
            return
        elif types[source].element and types[target].element:
            self._require_cast(types[source].element, types[target].element)
        elif (reason := functions.io_refusal(self._catalog, source, target)) is not None:
            raise UnsupportedError(f"in its body, {reason}")

    def _require_sound(self, oid: int) -> None:
        """Raise unless values of the type are checked and converted by what is known."""
        if oid in self._sound or not oid:
            return
        self._sound.add(oid)  # While its parts are looked at: rows nest.
        kind = self._catalog.types[oid]
        if oid < FIRST_USER_OID:
            return
        if kind.kind == "b" and not kind.element:
            io = (kind.input, kind.output)
            good = all(self._catalog.functions[f].volatility != "v" for f in io)
        else:
            good = self._catalog.provenance.plain(oid)
        if not good:
            self._sound.discard(oid)
            raise UnsupportedError(f"values of type {kind.name} run user-defined code")
        try:
            if kind.kind == "d":
                for (text,) in self._conn.execute(_CHECKS, (oid,)).fetchall():
                    self._require_stable(read_node(text))
            for part in self._catalog.types.parts(oid):
                self._require_sound(part)
        except UnsupportedError:
            self._sound.discard(oid)
            raise


def _of_one_column(catalog: Catalog, routine: Routine, tree: Node) -> Node | None:
    """Return the query of a function with its result in one column, or None."""
    shown = targets(tree)
    if len(shown) == 1 and type_of(shown[0]) == routine.result:
        return tree
    several = ("setOperations", "distinctClause", "groupClause")
    if catalog.types[routine.result].kind != "c" or any(map(tree.fields.get, several)):
        return None
    fields = catalog.types.attributes(routine.result)
    return trees.row(tree, routine.result, [f.name for f in fields])


def _collates(call: Node, tree: Node) -> bool:
    """Return whether ``tree`` has the same collations as the function in this call.

    Variables of a function have the collation of the call; in ``tree`` they have the default.
    """
    called = call.number("inputcollid")
    if called in (0, _DEFAULT_COLLATION):
        return True
    return not any(node.number("inputcollid") or node.nodes("sortClause") for node in tree.walk())


def _writes(node: Node) -> bool:
    """Return whether ``node`` is a query that changes or locks rows."""
    return node.kind == "QUERY" and (
        node.number("commandType") != _SELECT or bool(node.nodes("rowMarks"))
    )
