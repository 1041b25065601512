"""Coercions in a tree (relabelling, casts through text, COLLATE), and implicit conversions."""

from __future__ import annotations

from typing import Final

from headrace import types as t
from headrace.errors import UnsupportedError
from headrace.planner.analyse.nodetree import Node
from headrace.planner.logical.scalar import Call, Const, Expr, Ref
from headrace.planner.scalars import build, casts, functions, typenames
from headrace.planner.scalars.lower import Form, Lowering
from headrace.planner.scalars.scope import Scope


def _relabel(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    arg = lowering.lower(node.child("arg"), scope)
    oid, _, collation = lowering.result(node, "resulttype", "resultcollid")
    typmod = node.number("resulttypmod", -1)
    if functions.is_reg_type(oid) or functions.is_reg_type(arg.oid):
        if (known := _oid(lowering, arg, oid)) is not None:
            return known
        source = lowering.type_name(arg.oid)
        lowering.refuse(f"a cast between {source} and an OID", node)
    if oid == arg.oid:
        # Only the label changes (a domain to its base, or a removed modifier).
        return casts.relabelled(arg, typmod, collation)
    return casts.cast(lowering, arg, oid, typmod, collation)


def _oid(lowering: Lowering, arg: Expr, oid: int) -> Expr | None:
    """Return ``arg`` as type ``oid``, or None; both types are int4, oid or an OID type.

    The 32 bits stay the same.  ``arg`` must be a constant, or a CASE of two constants
    (``typenames``).
    """
    if isinstance(arg, Call) and arg.symbol == "case":
        branches = [_oid(lowering, each, oid) for each in arg.args[1:]]
        if not all(isinstance(each, Const) for each in branches):
            return None
        shown = (each for each in branches if each is not None)
        return build.choice(lowering, (arg.args[0], *shown), (oid, -1, 0))
    if not isinstance(arg, Const):
        return None
    kinds = functions.REG_TYPES | {t.INT4, t.OID}
    if arg.oid not in kinds or oid not in kinds:
        return None
    if arg.text is None:
        return Const(None, oid)
    number = int(arg.text) % 2**32
    return Const(str(number - 2**32 if oid == t.INT4 and number >= 2**31 else number), oid)


def _through_text(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    oid, _, collation = lowering.result(node, "resulttype", "resultcollid")
    if oid in (t.TEXT, t.VARCHAR):
        called = typenames.text_of_type(lowering, node.child("arg"), scope, (oid, -1, collation))
        if called is not None:
            return called
    arg = lowering.lower(node.child("arg"), scope)
    try:
        return casts.cast(lowering, arg, oid, -1, collation)
    except UnsupportedError as error:
        error.position = error.position or lowering.position(node)
        raise


def _collate(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    arg = lowering.lower(node.child("arg"), scope)
    return build.collate(lowering, arg, node.number("collOid"))


def convert(lowering: Lowering, arg: Expr, oid: int, collation: int) -> Expr:
    """Convert ``arg`` as a cast does, or as UNION does implicitly to the common type."""
    if arg.oid == oid:
        return arg
    made = lowering.lower(_conversion(lowering, arg, oid), Scope(lambda *_: arg))
    return casts.relabelled(made, -1, collation)


def _conversion(lowering: Lowering, arg: Expr, oid: int) -> Node:
    """Return Postgres' tree for a cast of a column with the type of ``arg`` to type ``oid``."""
    kind = arg.oid, arg.collation, oid
    if kind not in lowering.conversions:
        source, target = lowering.type_name(arg.oid), lowering.type_name(oid)
        like = Ref(0, arg.oid, -1, arg.collation)
        column = lowering.sql(like, lambda _: f"NULL::{source}")
        # Names of types and collations are already quoted.
        query = f"SELECT s.a::{target} FROM (SELECT {column} AS a) s"  # noqa: S608
        [entry] = lowering.analysed(query).nodes("targetList")
        lowering.conversions[kind] = entry.child("expr")
    return lowering.conversions[kind]


FORMS: Final[dict[str, Form]] = {
    "RELABELTYPE": _relabel,
    "COERCEVIAIO": _through_text,
    "COLLATEEXPR": _collate,
}
