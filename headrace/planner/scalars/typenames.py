"""``pg_typeof``, ``format_type`` and texts of OID types as constants.

This is possible for types, and for relations and functions of pg_catalog, that come with Postgres.

These functions read the catalogs, but such entries cannot change.  The value of ``pg_typeof``
depends only on the declared type, also for a domain, which lowering replaces by its base type.
If another object has the same name, the name may mean either, and there is no constant.
"""

from __future__ import annotations

from typing import Final, LiteralString

from headrace import types as t
from headrace.planner.analyse.nodetree import Node
from headrace.planner.analyse.nodetypes import type_of
from headrace.planner.logical.scalar import Call, Const, Expr, raises
from headrace.planner.scalars import build
from headrace.planner.scalars.context import QueryContext
from headrace.planner.scalars.lower import Lowering
from headrace.planner.scalars.scope import Scope

REGTYPE: Final = 2206
_PG_TYPEOF: Final = 1619
_NAME: Final = """
    SELECT (SELECT format_type(t.oid, NULL) FROM pg_type t
             WHERE t.oid = %s::oid AND t.oid < 16384 AND NOT EXISTS (
                   SELECT FROM pg_type o WHERE o.typname = t.typname AND o.oid <> t.oid))"""
_RELATION: Final = """
    SELECT (SELECT c.oid::regclass::text FROM pg_class c
             WHERE c.oid = %s::oid AND c.oid < 16384
               AND c.relnamespace = 'pg_catalog'::regnamespace AND NOT EXISTS (
                   SELECT FROM pg_class o WHERE o.relname = c.relname AND o.oid <> c.oid))"""
_FUNCTION: Final = """
    SELECT (SELECT p.oid::regproc::text FROM pg_proc p
             WHERE p.oid = %s::oid AND p.oid < 16384
               AND p.pronamespace = 'pg_catalog'::regnamespace AND NOT EXISTS (
                   SELECT FROM pg_proc o WHERE o.proname = p.proname AND o.oid <> p.oid))"""
_SIGNATURE: Final = """
    SELECT (SELECT p.oid::regprocedure::text FROM pg_proc p
             WHERE p.oid = %s::oid AND p.oid < 16384
               AND p.pronamespace = 'pg_catalog'::regnamespace AND NOT EXISTS (
                   SELECT FROM pg_proc o WHERE o.proname = p.proname AND o.oid >= 16384))"""
_OPERATOR: Final = """
    SELECT (SELECT p.oid::regoperator::text FROM pg_operator p
             WHERE p.oid = %s::oid AND p.oid < 16384 AND NOT EXISTS (
                   SELECT FROM pg_operator o WHERE o.oprname = p.oprname AND o.oid >= 16384))"""
_SCHEMA: Final = (
    "SELECT (SELECT n.nspname FROM pg_namespace n WHERE n.oid = %s::oid AND n.oid = 11)"
)
_CONFIG: Final = """
    SELECT (SELECT c.oid::regconfig::text FROM pg_ts_config c
             WHERE c.oid = %s::oid AND c.oid < 16384 AND NOT EXISTS (
                   SELECT FROM pg_ts_config o WHERE o.cfgname = c.cfgname AND o.oid <> c.oid))"""
_DICTIONARY: Final = """
    SELECT (SELECT c.oid::regdictionary::text FROM pg_ts_dict c
             WHERE c.oid = %s::oid AND c.oid < 16384 AND NOT EXISTS (
                   SELECT FROM pg_ts_dict o WHERE o.dictname = c.dictname AND o.oid <> c.oid))"""
_COLLATION: Final = """
    SELECT (SELECT c.oid::regcollation::text FROM pg_collation c
             WHERE c.oid = %s::oid AND c.oid < 16384 AND NOT EXISTS (
                   SELECT FROM pg_collation o WHERE o.collname = c.collname AND o.oid <> c.oid))"""
_NAMES: Final[dict[int, LiteralString]] = {
    REGTYPE: _NAME,
    2205: _RELATION,  # regclass
    24: _FUNCTION,  # regproc
    2202: _SIGNATURE,  # regprocedure
    2204: _OPERATOR,  # regoperator
    4089: _SCHEMA,  # regnamespace
    3734: _CONFIG,  # regconfig
    3769: _DICTIONARY,  # regdictionary
    4191: _COLLATION,  # regcollation
}
"""Queries for the text of a constant of an OID type, or NULL if it may change."""
_FORMAT: Final = """
    SELECT format_type((a ->> 0)::oid, (a ->> 1)::int4) FROM (SELECT %s::json AS a) s"""


def type_of_value(lowering: Lowering, node: Node, scope: Scope) -> Expr | None:
    """Return the value of a call of ``pg_typeof`` if it never changes, else None."""
    [arg] = node.nodes("args")
    oid = type_of(arg)
    if oid is None or (known := _regtype(lowering, oid)) is None:
        return None
    if arg.kind == "SQLVALUEFUNCTION":
        return known  # It never fails.
    value = lowering.lower(arg, scope)
    if not raises(value):
        return known
    # Postgres computes the argument, which may fail; IS NULL of a row would test its fields.
    if value.oid == t.RECORD or lowering.catalog.types[value.oid].kind == "c":
        return None
    return build.choice(
        lowering, (build.null_test(lowering, "is_null", value), known, known), (REGTYPE, -1, 0)
    )


def text_of_type(lowering: Lowering, node: Node, scope: Scope, result: build.Result) -> Expr | None:
    """Return ``pg_typeof(…)::text`` of a user-defined type: its name as the caller sees it.

    The name is stored with the view, which is planned again when the type is renamed.
    """
    if node.kind != "FUNCEXPR" or node.number("funcid") != _PG_TYPEOF:
        return None
    [arg] = node.nodes("args")
    oid = type_of(arg)
    if oid is None or _regtype(lowering, oid) is not None:
        return None
    shown = lowering.catalog.types.name_for_caller(oid)
    value = lowering.lower(arg, scope)
    row = value.oid == t.RECORD or lowering.catalog.types[value.oid].kind == "c"
    if shown is None or (row and raises(value)):
        return None
    known = Const(shown, *result)
    if not raises(value):
        return known
    return build.choice(
        lowering, (build.null_test(lowering, "is_null", value), known, known), result
    )


def formatted(lowering: Lowering, node: Node, scope: Scope) -> Expr | None:
    """Return the value of a call of ``format_type`` if it never changes, else None."""
    args = lowering.all(node.nodes("args"), scope)
    if not all(isinstance(a, Const) for a in args):
        return None
    oid, typmod = (int(a.text) if isinstance(a, Const) and a.text else None for a in args)
    if oid is None:
        return Const(None, t.TEXT, -1, _DEFAULT_COLLATION)
    if oid and _regtype(lowering, oid) is None:
        return None
    text = lowering.fetch(_FORMAT, f"[{oid}, {'null' if typmod is None else typmod}]")
    return Const(text, t.TEXT, -1, _DEFAULT_COLLATION)


def name(context: QueryContext, expr: Expr) -> str | None:
    """Return the text of a constant of an OID type if it never changes, else None."""
    if not isinstance(expr, Const) or expr.oid not in _NAMES or expr.text is None:
        return None
    found: str | None = context.fetch(_NAMES[expr.oid], expr.text)
    return found


def named(context: QueryContext, expr: Expr, result: build.Result) -> Expr | None:
    """Return ``expr`` as text if it is a constant or a CASE of two constants, else None."""
    if isinstance(expr, Call) and expr.symbol == "case" and expr.oid in _NAMES:
        texts = [named(context, arg, result) for arg in expr.args[1:]]
        if len(texts) != 2 or not all(isinstance(x, Const) for x in texts):
            return None
        branches = (x for x in texts if x is not None)
        return build.choice(context, (expr.args[0], *branches), result)
    text = name(context, expr)
    return None if text is None else Const(text, *result)


def _regtype(context: QueryContext, oid: int) -> Const | None:
    const = Const(str(oid), REGTYPE)
    return const if name(context, const) is not None else None


_DEFAULT_COLLATION: Final = 100
