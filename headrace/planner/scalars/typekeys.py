"""Which values can be keys: of GROUP BY, DISTINCT, joins, set operations.

``expressions.keys`` knows the types of Postgres; here are those that are made of others.  An
array, row or range is equal to another exactly if their texts are, provided that this holds for
each part: then the text is the key.
"""

from __future__ import annotations

from typing import Final

from headrace.expressions import keys
from headrace.expressions.keys import KeyClass
from headrace.expressions.keytexts import KEY_TEXT, ROW_KEY_TEXT
from headrace.expressions.native import resolve
from headrace.planner.analyse.catalog import Catalog
from headrace.planner.logical.nodes import Node
from headrace.planner.logical.scalar import ARG, Call, Const, Expr, Ref
from headrace.planner.scalars import build, citext
from headrace.planner.scalars.context import QueryContext
from headrace.planner.scalars.rowtypes import ROW_SYMBOL
from headrace.types import RECORD, RECORD_ARRAY, TEXT, UNKNOWN

_DEFAULT_COLLATION: Final = 100
_EXACT: Final = frozenset({"hstore", "ltree"})
"""Extensions whose comparable types have values that are equal if their texts are."""
_HINT: Final = (
    "Use an expression of another type that is equal for equal values, such as a cast to text."
)


def key_class(catalog: Catalog, oid: int, collation: int) -> KeyClass | None:
    """How values of type ``oid`` become keys, or None if they may not."""
    kind = catalog.types[oid]
    deterministic = catalog.collations.deterministic(collation)
    known = keys.key_class(oid, kind=kind.kind, deterministic=deterministic)
    if known is not None or oid == UNKNOWN:
        return known if oid != UNKNOWN else None
    if catalog.provenance.extension_of(kind) in _EXACT:
        return KeyClass.TEXT
    if kind.element:
        parts = [(kind.element, collation)]
    elif kind.kind == "c":
        parts = [(a.oid, a.collation) for a in catalog.types.attributes(oid)]
    elif kind.kind in ("r", "m") and catalog.provenance.plain(oid):
        parts = [catalog.types.subtype(oid)]
    else:
        return None
    return KeyClass.TEXT if all(_plain(catalog, *part) for part in parts) else None


def _plain(catalog: Catalog, oid: int, collation: int) -> bool:
    """Return whether values of a part are equal exactly if their texts are."""
    base = catalog.types.base(oid)
    found = key_class(catalog, base, collation)
    return found is not None and keys.is_canonical(base)


def is_key(catalog: Catalog, oid: int, collation: int) -> bool:
    """Return whether our canonical keys decide equality of the type."""
    return key_class(catalog, oid, collation) is not None


def identifies(catalog: Catalog, oid: int, collation: int) -> bool:
    """Return whether a value of a replica identity names its row to us.

    Exact looks will do where equality is looser: the values of the table are unique, and Postgres
    logs the old ones whenever their bytes change.
    """
    return (
        is_key(catalog, oid, collation) or citext.is_citext(catalog, oid) or is_key(catalog, oid, 0)
    )


def key_value(context: QueryContext, expr: Expr, construct: str) -> Expr:
    """What tells whether values of ``expr`` are equal in ``construct``: itself or a value of it."""
    if citext.is_citext(context.catalog, expr.oid):
        return citext.key(context, expr)
    row = _row_key(context, expr, construct)
    if row is not None:
        return row
    if form := _form(context, expr):
        return _key_text(context, expr, form)
    require_key(context, expr, construct)
    return expr


def _row_key(context: QueryContext, expr: Expr, construct: str) -> Expr | None:
    """The key of ``ROW(…)``, made of those of its columns; None for what is no such row."""
    if not isinstance(expr, Call) or expr.symbol != ROW_SYMBOL or not expr.args:
        return None
    if expr.oid != RECORD and not _as_declared(context.catalog, expr):
        return None
    args = tuple(key_value(context, a, construct) for a in expr.args)
    return _native(context, ROW_KEY_TEXT, args)


def _as_declared(catalog: Catalog, row: Call) -> bool:
    """Return whether a composite row has the values of its arguments, not coerced ones."""
    declared = [(a.oid, a.typmod) for a in catalog.types.attributes(row.oid)]
    return [(a.oid, a.typmod) for a in row.args if isinstance(a, Ref)] == declared


def _form(context: QueryContext, expr: Expr) -> str:
    """How ``kernels.structures`` reads values of ``expr``; empty if their keys need no form."""
    if expr.oid in (RECORD, RECORD_ARRAY) or is_key(context.catalog, expr.oid, expr.collation):
        return ""
    return _part_form(context.catalog, expr.oid, expr.collation) or ""


def _part_form(catalog: Catalog, oid: int, collation: int) -> str | None:
    """The form of an array, a row or a part of them; None if values do not tell equality."""
    base = catalog.types.base(oid)
    found = key_class(catalog, base, collation)
    if found is not None:
        return str(TEXT if keys.is_canonical(base) else base)
    kind = catalog.types[base]
    if kind.element:
        element = _part_form(catalog, kind.element, collation)
        return f"[{element}]" if element else None
    if kind.kind == "c":
        columns = [_part_form(catalog, a.oid, a.collation) for a in catalog.types.attributes(base)]
        return f"({','.join(map(str, columns))})" if all(columns) else None
    return None


def _key_text(context: QueryContext, expr: Expr, form: str) -> Expr:
    if isinstance(expr, Const):
        return Const(expr.text, TEXT, -1, _DEFAULT_COLLATION)  # one value, one text
    return _native(context, KEY_TEXT, (expr, Const(form, TEXT, -1, _DEFAULT_COLLATION)))


def _native(context: QueryContext, name: str, args: tuple[Expr, ...]) -> Expr:
    """A call of a function that only we have."""
    marks = ", ".join([ARG] * len(args))
    result = (TEXT, -1, _DEFAULT_COLLATION)
    op = resolve(name, context.types(args, _DEFAULT_COLLATION))
    return build.call(context, name, args, result, build.same(f"{name}({marks})"), op)


def require_keys(context: QueryContext, node: Node, construct: str) -> None:
    """Refuse ``construct`` over ``node`` unless each column is a key as it is."""
    for column in node.columns:
        require_key(context, column.ref, construct)


def require_key(context: QueryContext, expr: Expr, construct: str) -> None:
    """Refuse ``expr`` as a key of ``construct`` unless its type allows that."""
    if not is_key(context.catalog, expr.oid, expr.collation):
        name = context.type_name(expr.oid)
        found = context.catalog.collations.get(expr.collation)
        if found is not None and not found.deterministic:
            name += " with a nondeterministic collation"
        context.refuse(f"{construct} over type {name}", hint=_HINT)
