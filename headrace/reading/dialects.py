"""Queries of other dialects as SQL of Postgres: all of it, or not at all.

sqlglot passes on what it does not know, and only warns of what it cannot say.  Here each of these
is refused, with its place: a function that sqlglot does not know would else be taken for the one of
that name in Postgres, which may mean something else.  The translation is read again, and must be
read as what was written.
"""

from __future__ import annotations

import re
from typing import Any, Final

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError

from headrace.reading import DIALECTS
from headrace.reading.trees import POSTGRES, Unsaid, parsed, position

_ANY: Final = frozenset(DIALECTS)
_DEFAULTS: Final = {
    "CHAR": frozenset(("oracle", "redshift", "snowflake")),
    "NCHAR": frozenset(("oracle", "redshift", "snowflake")),
    "VARCHAR": _ANY - {"tsql"},
    "NVARCHAR": _ANY - {"tsql"},
    "DECIMAL": frozenset(("oracle", "sqlite")),
}
"""By type: where it means without parameters what it means so in Postgres."""
_LENIENT: Final = re.compile(r"\b(?:try|safe)_cast\b", re.IGNORECASE)
_ROUNDS: Final = 3
_NULLS_IGNORED: Final = ("databricks", "duckdb", "redshift", "spark", "tsql")
"""Where GREATEST and LEAST leave NULLs out, as Postgres does."""
_SAME: Final = frozenset(
    (
        *("Abs", "Acos", "ArrayAgg", "Ascii", "Asin", "Atan", "Atan2", "Avg", "Ceil", "Coalesce"),
        *("Corr", "Cos", "Count", "CovarPop", "CovarSamp", "CumeDist", "DateTrunc", "Degrees"),
        *("DenseRank", "Exp", "FirstValue", "Floor", "Grouping", "Lag", "LastValue", "Lead"),
        *("Left", "Ln", "Lower", "MD5", "Max", "Min", "NthValue", "Ntile", "Nullif", "PercentRank"),
        *("PercentileCont", "PercentileDisc", "Pi", "Pow", "Radians", "Rank", "Repeat", "Replace"),
        *("Reverse", "Right", "RowNumber", "Sign", "Sin", "SplitPart", "Sqrt", "StartsWith"),
        *("StddevPop", "StddevSamp", "Sum", "Tan", "Translate", "Upper", "VariancePop"),
    )
)
"""Functions (sqlglot's classes) that are the same in all dialects under Postgres' name."""
_OWN: Final = "Write it in SQL of Postgres; a function of this database is written with its schema."


def translated(text: str, dialect: str) -> str:
    """The query in SQL of Postgres.

    Raises:
        Unsaid: it cannot be read, or something in it cannot be said.
    """
    tree = parsed(text, dialect)
    if not isinstance(tree, exp.Query):
        raise Unsaid("a view is made of a query", position(tree))
    for call in tree.find_all(exp.Anonymous, exp.AnonymousAggFunc):
        if not isinstance(call.parent, exp.Dot):
            raise Unsaid(
                f'function "{call.name}" of dialect {dialect} cannot be translated',
                position(call),
                _OWN,
            )
    _refuse_lenient_casts(tree, text, dialect)
    _refuse_bare_types(tree, dialect)
    said, missing = _generated(tree, dialect)
    if missing:
        message, node = missing[0]
        where = None if node is None else _near(node)
        raise Unsaid(f"dialect {dialect} cannot be translated here: {message}", where, _OWN)
    for _ in range(_ROUNDS):
        again, more = _generated(parsed(said, POSTGRES))
        if again == said and not more:
            return said
        said = again
    raise Unsaid(f"the query cannot be translated exactly from dialect {dialect}", None, _OWN)


def _refuse_lenient_casts(tree: exp.Expr, text: str, dialect: str) -> None:
    """TRY_CAST and its like: the generator makes an ordinary cast of them, and says nothing.

    Where every CAST is one of these (Spark, MySQL), a plain one may pass: it fails on a row for
    which it would have been NULL there, and so no other answer is given.
    """
    strict = Dialect.get_or_raise(dialect).parser_class.STRICT_CAST
    for cast in tree.find_all(exp.TryCast):
        if strict or _LENIENT.search(text):
            raise Unsaid(
                "a cast that gives NULL where it fails cannot be translated", position(cast), _OWN
            )


def _refuse_bare_types(tree: exp.Expr, dialect: str) -> None:
    """Types whose length or precision is left to a default, which is another in Postgres.

    CHAR is one character there, any number in MySQL and thirty in T-SQL; DECIMAL has any scale
    there, and none nearly everywhere else: with another default other values would come out.
    """
    for kind in tree.find_all(exp.DataType):
        if kind.expressions or dialect in _DEFAULTS.get(str(kind.this.value), _ANY):
            continue
        raise Unsaid(
            f"type {kind.this.value} without its length or precision is another in Postgres than"
            f" in dialect {dialect}",
            _near(kind),
            "Write the type with its parameters.",
        )


def tidy(tree: exp.Expr) -> str:
    """The query as its tree says it, in lines."""
    return _generated(tree)[0]


def _generated(
    tree: exp.Expr, dialect: str = POSTGRES
) -> tuple[str, list[tuple[str, exp.Expr | None]]]:
    """The text, and what cannot be said: in words, and of which node.

    Functions of another dialect that the generator has no rule for, and so writes as they are, are
    only said where they mean the same everywhere.
    """
    missing: list[tuple[str, exp.Expr | None]] = []
    inside: list[exp.Expr] = []
    base: Any = Dialect.get_or_raise(POSTGRES).generator_class

    class Watched(base):  # type: ignore[misc]  # a class of the dialect's
        """Remembers of which node something is missing."""

        def sql(self, expression: Any, *args: Any, **more: Any) -> str:
            known = isinstance(expression, exp.Expr)
            if known:
                inside.append(expression)
            try:
                return str(super().sql(expression, *args, **more))
            finally:
                if known:
                    inside.pop()

        def unsupported(self, message: str) -> None:
            missing.append((message.rstrip("."), inside[-1] if inside else None))

        def function_fallback_sql(self, expression: Any) -> str:
            if dialect != POSTGRES and not _plain(expression, dialect):
                name = expression.sql_name()
                missing.append((f"{name} may mean something else in Postgres", expression))
            return str(super().function_fallback_sql(expression))

    try:
        text = Watched(dialect=POSTGRES, pretty=True, normalize_functions=False).generate(tree)
    except SqlglotError as error:
        raise Unsaid(f"the query cannot be written: {error}") from error
    return text, missing


def _plain(call: exp.Expr, dialect: str) -> bool:
    """Whether a function means the same under its name in Postgres."""
    name = type(call).__name__
    if name in ("Greatest", "Least"):
        return dialect in _NULLS_IGNORED
    if name in ("Stddev", "Variance"):
        return dialect != "mysql"  # of the whole population there
    if name == "Length":
        return not call.args.get("binary")
    return name in _SAME


def _near(node: exp.Expr) -> int | None:
    """Where ``node`` stands, or the nearest thing around it that stands somewhere."""
    at: Any = node
    while at is not None:
        found = position(at)
        if found is not None:
            return found
        at = at.parent
    return None
