"""Keys of GROUP BY, DISTINCT, joins and set operations: the types that can be keys.

``expressions.keys`` has the scalar types; this module adds types composed of them.  Two arrays,
rows or ranges are equal exactly if their texts are, provided that this holds for each part.
Then the text is the key.
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
_COLLATED_HINT: Final = (
    "Use an expression that is equal for equal values, with a deterministic collation, such as"
    ' lower(…) COLLATE "C".'
)


def key_class(catalog: Catalog, oid: int, collation: int) -> KeyClass | None:
    """Return how values of type ``oid`` become keys, or None if they cannot."""
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
    """Return whether canonical keys decide equality of the type."""
    return key_class(catalog, oid, collation) is not None


def identifies(catalog: Catalog, oid: int, collation: int) -> bool:
    """Return whether values of the type can identify a row in a replica identity.

    The exact text suffices even if equality is looser: the values in the table are unique, and
    Postgres logs the old value whenever its bytes change.
    """
    return (
        is_key(catalog, oid, collation) or citext.is_citext(catalog, oid) or is_key(catalog, oid, 0)
    )


def key_value(context: QueryContext, expr: Expr, construct: str) -> Expr:
    """Return an expression that decides equality of ``expr`` in ``construct``."""
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
    """Return the key of ``ROW(…)``, made from the keys of its columns; None if not such a row."""
    if not isinstance(expr, Call) or expr.symbol != ROW_SYMBOL or not expr.args:
        return None
    if expr.oid != RECORD and not _as_declared(context.catalog, expr):
        return None
    args = tuple(key_value(context, a, construct) for a in expr.args)
    return _native(context, ROW_KEY_TEXT, args)


def _as_declared(catalog: Catalog, row: Call) -> bool:
    """Return whether a composite row has its arguments' values without coercion."""
    declared = [(a.oid, a.typmod) for a in catalog.types.attributes(row.oid)]
    return [(a.oid, a.typmod) for a in row.args if isinstance(a, Ref)] == declared


def _form(context: QueryContext, expr: Expr) -> str:
    """Return the form by which ``kernels.structures`` reads ``expr``; empty if not needed."""
    if expr.oid in (RECORD, RECORD_ARRAY) or is_key(context.catalog, expr.oid, expr.collation):
        return ""
    return _part_form(context.catalog, expr.oid, expr.collation) or ""


def _part_form(catalog: Catalog, oid: int, collation: int) -> str | None:
    """Return the form of an array, a row or a part; None if values do not decide equality."""
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
    """Return a call of a function that exists only as a native kernel."""
    marks = ", ".join([ARG] * len(args))
    result = (TEXT, -1, _DEFAULT_COLLATION)
    op = resolve(name, context.types(args, _DEFAULT_COLLATION))
    return build.call(context, name, args, result, build.same(f"{name}({marks})"), op)


def require_keys(context: QueryContext, node: Node, construct: str) -> None:
    """Refuse ``construct`` over ``node`` unless each column can be a key."""
    for column in node.columns:
        require_key(context, column.ref, construct)


def require_key(context: QueryContext, expr: Expr, construct: str) -> None:
    """Refuse ``expr`` as a key of ``construct`` unless its type allows that."""
    if not is_key(context.catalog, expr.oid, expr.collation):
        name = context.type_name(expr.oid)
        found = context.catalog.collations.get(expr.collation)
        if found is not None and not found.deterministic:
            name += " with a nondeterministic collation"
            context.refuse(f"{construct} over type {name}", hint=_COLLATED_HINT)
        context.refuse(f"{construct} over type {name}", hint=_HINT)
