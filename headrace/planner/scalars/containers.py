"""Arrays and subscripts: constructors, element-wise casts, elements and slices."""

from __future__ import annotations

import dataclasses
from typing import Final

from headrace.planner.analyse.nodetree import Node
from headrace.planner.logical.scalar import ARG, Const, Expr, Ref, immutable, raises, trusted
from headrace.planner.scalars import build, casts, functions, rowtypes
from headrace.planner.scalars.build import Conduct, Spelling
from headrace.planner.scalars.lower import Form, Lowering
from headrace.planner.scalars.scope import Scope


def _array(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    declared = node.number("element_typeid")
    args = tuple(
        rowtypes.without_domain(lowering, lowering.lower(n, scope), declared)
        for n in node.nodes("elements")
    )
    checked = lowering.catalog.types[declared].kind == "d"
    result = lowering.result(node, "array_typeid", "array_collid")
    text = f"ARRAY[{', '.join([ARG] * len(args))}]"
    name = lowering.type_name(result[0])
    # The explicit type keeps a cast around it a cast of the array, as in the query;
    # Postgres would turn a cast of a bare constructor into casts of the elements.
    spelling = Spelling(f"({text}::{name})", text)
    # It fails if inner arrays differ in size, or an element violates its domain.
    conduct = Conduct(raises=node.flag("multidims") or checked)
    return build.call(lowering, "array", args, result, spelling, None, conduct)


def elements(lowering: Lowering, node: Node, scope: Scope, most: int) -> tuple[Expr, ...] | None:
    """Return the at most ``most`` elements of an array constructor, also below an array cast.

    Return None for any other array, or if computing an element may fail: the array then fails,
    even if an earlier element decides the result.
    """
    if node.kind == "ARRAYCOERCEEXPR":
        items = elements(lowering, node.child("arg"), scope, most)
        cast = node.child("elemexpr")
        # Text conversions have no collation in an array cast, but their SQL would have one.
        if items is None or any(
            n.kind == "COERCEVIAIO" or n.number("funccollid") for n in cast.walk()
        ):
            return None
        scopes = (dataclasses.replace(scope, case_value=item) for item in items)
        made = tuple(lowering.lower(cast, inner) for inner in scopes)
    elif node.kind == "ARRAYEXPR" and not node.flag("multidims"):
        nodes = node.nodes("elements")
        if not 0 < len(nodes) <= most:
            return None
        made = lowering.all(nodes, scope)
    else:
        return None
    return None if any(map(raises, made)) else made


def _cast(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    """Lower ``a::type[]``; it has the requirements of the cast of an element."""
    arg = lowering.lower(node.child("arg"), scope)
    oid, _, collation = lowering.result(node, "resulttype", "resultcollid")
    typmod = node.number("resulttypmod", -1)
    element = lowering.catalog.types[arg.oid].element
    base = lowering.catalog.types.base
    probe = Ref(0, base(element)) if element else Const(None, arg.oid)
    inner = dataclasses.replace(scope, case_value=probe)
    through_text = any(n.kind == "COERCEVIAIO" for n in node.child("elemexpr").walk())
    if through_text and functions.reads_clock(lowering.catalog, oid):
        lowering.refuse(
            f"a cast of texts to {lowering.type_name(oid)} is not supported"
            " because its result may depend on the current time",
            node,
        )
    each = lowering.lower(node.child("elemexpr"), inner)
    name = lowering.catalog.types.with_modifier(oid, typmod)
    conduct = Conduct(raises=True, stable=not immutable(each), untrusted=not trusted(each))
    return casts.whole(lowering, arg, name, (oid, typmod, collation), conduct)


def _subscript(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    """Lower an element or a slice; an omitted bound is the array's own."""
    args = [lowering.lower(node.child("refexpr"), scope)]
    uppers, lowers = node.items("refupperindexpr"), node.items("reflowerindexpr")
    sql = f"({ARG})"
    for place, upper in enumerate(uppers):
        bounds = [lowers[place], upper] if lowers else [upper]
        words = []
        for bound in bounds:
            if isinstance(bound, Node):
                args.append(lowering.lower(bound, scope))
            words.append(ARG if isinstance(bound, Node) else "")
        sql += f"[{':'.join(words)}]"
    result = lowering.result(node, "refrestype", "refcollid")
    spelling = Spelling(sql, sql.replace(f"({ARG})", ARG, 1))
    # A type of an extension has its own handler.
    conduct = Conduct(raises=not lowering.catalog.types[args[0].oid].builtin)
    return build.call(lowering, "subscript", args, result, spelling, None, conduct)


FORMS: Final[dict[str, Form]] = {
    "ARRAYEXPR": _array,
    "ARRAYCOERCEEXPR": _cast,
    "SUBSCRIPTINGREF": _subscript,
}
