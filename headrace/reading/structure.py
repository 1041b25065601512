"""The allowlist of clauses that mean the same in every dialect, and checks for their exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

from sqlglot import exp
from sqlglot.optimizer.scope import Scope

from headrace.reading.forms.rule import OWN, unsigned
from headrace.reading.kinds import Kinds
from headrace.reading.trees import Unsaid, nearest

_QUERY: Final = frozenset(("with_", "order", "limit", "offset"))
STRUCTURE: Final[dict[type[exp.Expr], frozenset[str]]] = {
    exp.Select: _QUERY
    | {"expressions", "from_", "joins", "where", "group", "having", "qualify", "windows"}
    | {"distinct"},
    exp.Subquery: _QUERY | {"this", "alias", "joins"},
    **dict.fromkeys(
        (exp.Union, exp.Except, exp.Intersect), _QUERY | {"this", "expression", "distinct"}
    ),
    **dict.fromkeys(
        (exp.From, exp.Where, exp.Having, exp.Qualify, exp.Paren), frozenset(("this",))
    ),
    exp.Join: frozenset(("this", "on", "side", "kind", "using", "method")),
    exp.Group: frozenset(("expressions", "grouping_sets", "cube", "rollup")),
    **dict.fromkeys(
        (exp.Cube, exp.Rollup, exp.GroupingSets, exp.Tuple), frozenset(("expressions",))
    ),
    exp.Order: frozenset(("this", "expressions")),
    exp.Ordered: frozenset(("this", "desc", "nulls_first")),
    exp.Limit: frozenset(("expression",)),
    exp.Offset: frozenset(("expression",)),
    exp.Fetch: frozenset(("count", "direction")),
    exp.Distinct: frozenset(("expressions", "on")),
    exp.With: frozenset(("expressions", "recursive")),
    exp.CTE: frozenset(("this", "alias", "materialized")),
    exp.Table: frozenset(("this", "db", "catalog", "alias")),
    exp.TableAlias: frozenset(("this", "columns")),
    exp.Alias: frozenset(("this", "alias")),
    exp.Column: frozenset(("this", "table", "db", "catalog")),
    exp.Identifier: frozenset(("this", "quoted")),
    exp.Star: frozenset(),
    exp.Values: frozenset(("expressions", "alias")),
    exp.WindowSpec: frozenset(("kind", "start", "start_side", "end", "end_side", "exclude")),
    exp.Interval: frozenset(("this", "unit")),
    exp.Var: frozenset(("this",)),
    exp.Dot: frozenset(("this", "expression")),
    exp.Anonymous: frozenset(("this", "expressions")),
}
"""By class of node: the arguments that mean the same in every dialect."""
_KINDS: Final = frozenset(("", "INNER", "OUTER", "CROSS"))
_SIDES: Final = frozenset(("", "LEFT", "RIGHT", "FULL"))


def check(node: exp.Expr, dialect: str, kinds: Kinds) -> None:
    """Check that a clause means the same in Postgres.

    Raises:
        Unsaid: it has another meaning, or no equivalent.
    """
    allowed = STRUCTURE[type(node)]
    for name, value in node.args.items():
        if name not in allowed and value not in (None, False, []):
            _refuse(node, dialect, f'its "{name.rstrip("_")}" has no equivalent')
    if isinstance(node, exp.Select):
        _check_aliases(node, dialect, kinds)
        _check_qualify(node, dialect)
    elif isinstance(node, exp.Join):
        _check_join(node, dialect)
    elif isinstance(node, exp.With):
        _check_recursion(node, dialect)
    elif isinstance(node, exp.Anonymous) and not isinstance(node.parent, exp.Dot):
        raise Unsaid(
            f'function "{node.name}" of dialect {dialect} cannot be translated',
            nearest(node),
            OWN,
        )
    else:
        why = _difference(node, dialect)
        if why:
            _refuse(node, dialect, why)


def _difference(node: exp.Expr, dialect: str) -> str | None:
    """Return the reason why a small clause has another meaning in Postgres."""
    match node:
        case exp.Rollup() | exp.Cube() if not node.expressions:
            return "WITH ROLLUP has no equivalent; ROLLUP (…) is translated"
        case exp.Distinct() if node.args.get("on") and dialect != "duckdb":
            return "DISTINCT ON may choose other rows"
        case exp.Limit() | exp.Offset() if unsigned(node.expression) is None:
            return "it is the same only for a literal number"
        case exp.Interval() if not isinstance(node.parent, exp.Add | exp.Sub):
            return "it is the same only where it is added to a time"
        case exp.Table() if not isinstance(node.this, exp.Identifier):
            return "a function in FROM has no equivalent"
        case exp.Dot() if not isinstance(node.expression, exp.Anonymous):
            return "a field of a value has no equivalent"
    return None


def _refuse(node: exp.Expr, dialect: str, why: str, hint: str = OWN) -> NoReturn:
    word = type(node).__name__.upper()
    raise Unsaid(f"{word} of dialect {dialect} cannot be translated: {why}", nearest(node), hint)


def _check_join(node: exp.Join, dialect: str) -> None:
    kind, side = str(node.kind or "").upper(), str(node.side or "").upper()
    if kind in ("SEMI", "ANTI"):
        if dialect not in ("databricks", "duckdb", "spark") or not node.args.get("on"):
            _refuse(node, dialect, f"{kind} JOIN is translated with ON only")
    elif kind not in _KINDS or side not in _SIDES:
        _refuse(node, dialect, f"{kind or side} JOIN has no equivalent")
    if str(node.method or "").upper() not in ("", "NATURAL"):
        _refuse(node, dialect, f"{node.method} JOIN has no equivalent")


def _check_qualify(node: exp.Select, dialect: str) -> None:
    """Refuse QUALIFY with clauses that would apply before it: it becomes an outer query."""
    if node.args.get("qualify") and any(
        node.args.get(name) for name in ("distinct", "order", "limit", "offset")
    ):
        _refuse(
            node.args["qualify"],
            dialect,
            "DISTINCT, ORDER BY and LIMIT come after it",
            "Put them into a query around this one.",
        )


def _check_recursion(node: exp.With, dialect: str) -> None:
    """Refuse a WITH query that names itself without RECURSIVE: some dialects make it recursive."""
    if node.args.get("recursive"):
        return
    for one in node.expressions:
        name = one.alias.lower()
        for table in one.this.find_all(exp.Table):
            if table.name.lower() == name and not table.args.get("db"):
                _refuse(
                    table,
                    dialect,
                    f'"{name}" reads itself, or a table of its name',
                    "Write WITH RECURSIVE, or give it another name.",
                )


def _check_aliases(node: exp.Select, dialect: str, kinds: Kinds) -> None:
    """Refuse a name of both an output and a table column: dialects resolve it differently."""
    aliases = {
        one.alias.lower()
        for one in node.expressions
        if isinstance(one, exp.Alias)
        and not (isinstance(one.this, exp.Column) and one.this.name.lower() == one.alias.lower())
    }
    if not aliases:
        return
    for column in _own_columns(node):
        name = column.name.lower()
        if name not in aliases or column.table:
            continue
        ordered = isinstance(column.parent, exp.Ordered) and column.parent.parent is node.args.get(
            "order"
        )
        if not ordered and any(
            _has(source, types, name) for source, types in kinds.sources(column)
        ):
            _refuse(
                column,
                dialect,
                f'"{name}" is a column of a table, and an output column',
                "Write the column with its table, or give the output column another name.",
            )


def _own_columns(node: exp.Select) -> list[exp.Column]:
    """Return the columns in clauses after the select list, without those of subqueries.

    In the select list, FROM and WHERE a table's column takes precedence in every dialect.
    """
    found: list[exp.Column] = []
    for clause in (node.args.get(name) for name in ("group", "having", "qualify", "order")):
        if clause is not None:
            inside = clause.walk(prune=lambda one: isinstance(one, exp.Query))
            found += [one for one in inside if isinstance(one, exp.Column)]
    return found


def _has(source: object, types: Mapping[str, str] | None, name: str) -> bool:
    """Return whether a source has a column of this name; true if that is not known."""
    if types is not None:
        return name in types
    if isinstance(source, Scope) and isinstance(source.expression, exp.Query):
        query = source.expression
        return query.is_star or name in {one.lower() for one in query.named_selects}
    return True
