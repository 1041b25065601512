"""Exact translation of queries from other dialects to Postgres' SQL; anything else is refused.

sqlglot parses the query.  Its own translation is lenient: it passes on constructs that it does not
know, and ignores differences of NULL, zero, sign and type.  So each node of the tree must be on an
allowlist: a clause that means the same everywhere (``structure.py``), or a construct with a rule
for its dialect and argument types (``forms/``).  Everything else is refused with its position.
The translation is parsed again, and must give the same text.
"""

from __future__ import annotations

import re
from typing import Final

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError

from headrace.reading.forms import aggregates, casts, mathematics, operators, strings, times
from headrace.reading.forms.rule import OWN, Form, TranslationRules
from headrace.reading.kinds import Columns, Kinds, table_key
from headrace.reading.structure import STRUCTURE, check
from headrace.reading.trees import POSTGRES, Unsaid, nearest, parsed, position

_ROUNDS: Final = 3
_LENIENT: Final = re.compile(r"\b(?:try|safe)_cast\b", re.IGNORECASE)
RULES: Final[TranslationRules] = {
    **operators.RULES,
    **times.RULES,
    **strings.RULES,
    **aggregates.RULES,
    **casts.RULES,
    **mathematics.RULES,
}
"""Rules for all constructs that are translated."""
_PARTS_OF_RULES: Final = ("to", "unit", "spec", "return_type")
"""Arguments that are not translated: the rule of a construct handles them."""


def tables(text: str, dialect: str) -> list[str]:
    """Return the tables that a query names, as Postgres' SQL writes them.

    Raises:
        Unsaid: the query cannot be parsed.
    """
    tree = _query(text, dialect)
    inner = {one.alias.lower() for one in tree.find_all(exp.CTE)}
    named = [one for one in tree.find_all(exp.Table) if isinstance(one.this, exp.Identifier)]
    outer = [one for one in named if one.args.get("db") or one.name.lower() not in inner]
    return list(dict.fromkeys(table_key(one) for one in outer))


def translated(text: str, dialect: str, columns: Columns) -> str:
    """Return the query in Postgres' SQL.

    ``columns``: Postgres types of the columns of each table that ``tables`` returns.

    Raises:
        Unsaid: it cannot be parsed, or has a construct without an exact equivalent.
    """
    tree = _with_strict_casts(_query(text, dialect), text, dialect)
    try:
        kinds = Kinds(tree, columns, {node: rule.kind for node, rule in RULES.items()})
    except SqlglotError as error:
        raise Unsaid(f"the names of the query cannot be resolved: {error}") from error
    said, missing = _generated(_Translation(Form(dialect, kinds)).of(tree))
    if missing:
        message, node = missing[0]
        where = None if node is None else nearest(node)
        raise Unsaid(f"dialect {dialect} cannot be translated here: {message}", where, OWN)
    for _ in range(_ROUNDS):
        again, more = _generated(parsed(said, POSTGRES))
        if again == said and not more:
            return said
        said = again
    raise Unsaid(f"the query cannot be translated exactly from dialect {dialect}", None, OWN)


def tidy(tree: exp.Expr) -> str:
    """Format the query of a tree, in lines."""
    return _generated(tree)[0]


def _query(text: str, dialect: str) -> exp.Query:
    tree = parsed(text, dialect)
    if not isinstance(tree, exp.Query):
        raise Unsaid("a view is made of a query", position(tree))
    return tree


def _with_strict_casts(tree: exp.Query, text: str, dialect: str) -> exp.Query:
    """Turn the lenient casts of a dialect into casts that raise an error where they fail.

    In dialects whose CAST returns NULL instead of an error (Spark, MySQL), sqlglot parses it as
    TRY_CAST.  Such a cast raises an error here, so it never gives a different result.
    """
    if Dialect.get_or_raise(dialect).parser_class.STRICT_CAST or _LENIENT.search(text):
        return tree
    for lenient in list(tree.find_all(exp.TryCast)):
        lenient.replace(exp.Cast(this=lenient.this, to=lenient.to))
    return tree


class _Translation:
    """Replaces each construct by its equivalent in Postgres, arguments first."""

    def __init__(self, form: Form) -> None:
        self._form = form

    def of(self, node: exp.Expr) -> exp.Expr:
        """Return the equivalent of a node.

        Raises:
            Unsaid: the node, or one inside, has none.
        """
        form, rule = self._form, RULES.get(type(node))
        if rule is None and type(node) not in STRUCTURE:
            form.refuse(node, "it is not known to be the same in Postgres")
        if rule is not None and form.dialect not in rule.dialects:
            form.refuse(node, "it is not known to be the same in Postgres")
        if rule is None:
            check(node, form.dialect, form.kinds)
        for name, value in list(node.args.items()):
            if name in _PARTS_OF_RULES and not isinstance(node, exp.Select):
                continue
            for at, one in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(one, exp.Expr):
                    new = self.of(one)
                    if new is not one:
                        node.set(name, new, at if isinstance(value, list) else None)
        return node if rule is None else self._replaced(node, rule.apply(node, form))

    def _replaced(self, node: exp.Expr, new: exp.Expr) -> exp.Expr:
        if new is node:
            return node
        if isinstance(new, exp.Binary) and not isinstance(node, exp.Binary):
            new = exp.paren(new, copy=False)
        self._form.kinds.replace(node, new)
        return new


def _generated(tree: exp.Expr) -> tuple[str, list[tuple[str, exp.Expr | None]]]:
    """Return the SQL text, and a message and node for each construct Postgres cannot express."""
    missing: list[tuple[str, exp.Expr | None]] = []
    inside: list[exp.Expr] = []
    base = Dialect.get_or_raise(POSTGRES).generator_class

    class Watched(base):  # type: ignore[misc, valid-type]  # a class of the dialect's
        """Records the nodes that Postgres cannot express."""

        def sql(self, expression: object, *args: object, **more: object) -> str:
            known = isinstance(expression, exp.Expr)
            if known:
                inside.append(expression)  # type: ignore[arg-type]
            try:
                return str(super().sql(expression, *args, **more))
            finally:
                if known:
                    inside.pop()

        def unsupported(self, message: str) -> None:
            missing.append((message.rstrip("."), inside[-1] if inside else None))

    try:
        text = Watched(dialect=POSTGRES, pretty=True, normalize_functions=False).generate(tree)
    except SqlglotError as error:
        raise Unsaid(f"the query cannot be written: {error}") from error
    return text, missing
