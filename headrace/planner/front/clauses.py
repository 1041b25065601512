"""Composes lists of sort and group clauses; each refers to an entry of a target list."""

from __future__ import annotations

from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.front.syntax import Ast, bare
from headrace.planner.front.walk import QueryLevel, Walk, refuse, shell


def clauses(
    walk: Walk,
    items: list[Ast],
    found: list[Tree],
    targets: list[Tree],
    level: QueryLevel,
    *,
    named: bool = False,
) -> list[Tree]:
    """Compose the clauses of ``items``, which Postgres has as ``found``.

    ``targets``: the entries that the clauses refer to; ``named``: an item may be the name or the
    number of an output column.  Postgres leaves out an item that is equal to an earlier one.
    """
    by_ref = {e.number("ressortgroupref"): e for e in targets if e.number("ressortgroupref")}
    made: list[Tree] = []
    for item in items:
        expr = item.child("this") if item.kind == "Ordered" else item
        for place in (len(made), *range(len(made))):
            if place >= len(found):
                continue
            entry = by_ref[found[place].number("tleSortGroupRef")]
            if _is_entry(walk, expr, entry, level, named=named):
                break
        else:
            refuse(item, "Postgres sorts or groups by other expressions")
        if item.kind == "Ordered":
            walk.bind(item, found[place])
        if place == len(made):
            made.append(
                _directed(walk, item, found[place])
                if item.kind == "Ordered"
                else shell(found[place])
            )
    return made


def _directed(walk: Walk, item: Ast, clause: Tree) -> Tree:
    """Compose a clause of ORDER BY."""
    descending = bool(item.text("desc"))
    name = walk.names.name("operator", clause.number("sortop")) if clause.number("sortop") else ""
    if name in ("<", ">") and (name == ">") != descending:
        refuse(item, f"it is sorted by operator {name}")
    made = shell(clause)
    made.fields["nulls_first"] = "true" if item.text("nulls_first") else "false"
    return made


def _is_entry(walk: Walk, expr: Ast, entry: Tree, level: QueryLevel, *, named: bool) -> bool:
    """Return whether ``expr`` is a target entry, whose expression is composed if it is hidden."""
    inner, shown = bare(expr), not entry.flag("resjunk")
    if named and shown:
        if inner.kind == "Literal" and inner.text("this") == entry.text("resno"):
            walk.bind(inner, entry.child("expr"))
            return True
        named_so = inner.kind == "Column" and inner.fact("column") == entry.text("resname")
        if named_so and not inner.fact("of"):
            walk.bind(inner, entry.child("expr"))
            return True
    composed = walk.attempt(expr, entry.child("expr"), level)
    if composed is None:
        return False
    level.targets.setdefault(id(entry), composed)
    return True
