"""Values of type xml, whose output text does not tell everything about them.

Postgres leaves out the declaration ``<?xml version="1.0"?>`` and one leading newline when it prints
a value.  Headrace receives values of columns in that form.  So an expression that may depend on the
missing part, such as ``x::text``, is refused if its argument was received.  It is exact if its
argument is computed by the same expression, as in ``xmlelement(…)::text``.  A value that is only
passed on is exact, because ``kernels.text.for_input`` adds the newline that Postgres leaves out; in
arrays and rows it is not added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace import types as t
from headrace.planner.analyse.pg_types import TypeFacts
from headrace.planner.logical.scalar import Call, Const, Expr
from headrace.planner.scalars.context import QueryContext

_XML_ARRAY: Final = 143
_PASSES: Final = frozenset({"case", "coalesce"})
"""Operations whose result is one of their arguments."""
_INDEPENDENT: Final = frozenset(
    {
        *("is_null", "is_not_null", "xml 7"),
        *("pg_catalog.xpath", "pg_catalog.xpath_exists", "pg_catalog.xmlexists"),
    }
)
"""Operations that parse the document; ``xml 7`` is IS DOCUMENT."""
_PRINTED_WHOLE: Final = frozenset({"xml 1", "xml 2", "xml 4", "pg_catalog.xmlcomment"})
"""XMLELEMENT, XMLFOREST, XMLPI, XMLCOMMENT: their text begins with a tag."""
_AGGREGATES: Final = frozenset({"count", "lag", "lead", "first_value", "last_value", "nth_value"})
"""Aggregates and window functions whose result is one of their arguments, or a number of them."""
_HINT: Final = (
    "Use xpath(…) on the column, or store the document in a column of type text, and cast it to xml"
    " where the query needs that."
)


def check_call(context: QueryContext, symbol: str, args: Sequence[Expr]) -> None:
    """Refuse ``symbol`` if it may depend on a part of an XML value that was not received."""
    known = symbol in _INDEPENDENT or symbol in _PASSES
    if not known and any(_received(context, a) for a in args):
        _refuse(context)


def check_aggregate(context: QueryContext, name: str, args: Sequence[Expr]) -> None:
    """Refuse an aggregate or window function that may depend on such a part.

    It receives its arguments as texts, also those that the query computes.
    """
    if name in _AGGREGATES:
        return
    if any(
        has_xml(context.catalog.types, a.oid) and not is_printed_whole(context, a) for a in args
    ):
        _refuse(context)


def is_printed_whole(context: QueryContext, expr: Expr) -> bool:
    """Return whether the output text of ``expr``, a value of type xml, gives the same value."""
    if isinstance(expr, Const):
        return expr.text is None or (
            expr.text.startswith("<") and not expr.text.startswith("<?xml")
        )
    if not isinstance(expr, Call):
        return expr.id in context.whole_xml
    if expr.symbol in _PASSES:
        values = [a for a in expr.args if a.oid == expr.oid]
        return all(is_printed_whole(context, value) for value in values)
    return expr.symbol in _PRINTED_WHOLE


def printed(const: Const) -> str | None:
    """Return the text of a constant without the newline that Postgres does not print.

    ``kernels.text.for_input`` adds that again, as to any value that is received.
    """
    if const.oid != t.XML or const.text is None:
        return const.text
    return const.text.removeprefix("\n")


def _received(context: QueryContext, expr: Expr) -> bool:
    """Return whether ``expr`` contains an XML value as it was received."""
    if isinstance(expr, Call):
        return expr.symbol in _PASSES and any(_received(context, a) for a in expr.args)
    if isinstance(expr, Const):
        return False
    return has_xml(context.catalog.types, expr.oid) and expr.id not in context.whole_xml


def has_xml(types: TypeFacts, oid: int) -> bool:
    """Return whether values of the type are or contain XML."""
    if oid in (t.XML, _XML_ARRAY):
        return True
    if oid < t.FIRST_USER_OID:
        return False
    kind = types[oid]
    if kind.kind == "c":
        return any(has_xml(types, field.oid) for field in types.attributes(oid))
    inner = kind.base or kind.element
    return bool(inner) and inner != oid and has_xml(types, inner)


def _refuse(context: QueryContext) -> None:
    context.refuse(
        "an expression that depends on how a value of type xml is stored",
        detail="Postgres prints such a value without its declaration and without a leading newline,"
        " and Headrace receives what it prints.",
        hint=_HINT,
    )
