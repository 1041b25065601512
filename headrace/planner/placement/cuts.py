"""Cuts of a plan into parts for other workers; a part has the nodes down to tables or other parts.

    placement: node or kind ─► worker        cuts: last node of a part ─► worker

Rows of tables come from the worker that reads the stream, and the output of a part goes there, also
if another part reads it.  A node that several parts need is computed by each of them, unless it is
placed on a worker of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.collections import plan as p
from headrace.collections import subplans
from headrace.errors import UndefinedError, UnsupportedError, UserError

PARTS_MAX: Final = 64
"""Parts of one view (``runtime.shared.PER_VIEW_MAX``)."""


def cuts(plan: p.PhysicalPlan, wanted: Mapping[str, str], main: str) -> dict[str, str]:
    """Return the last node of each part, and its worker; empty if all nodes are to be on ``main``.

    ``wanted`` maps ids or kinds of nodes, as ``view_stats`` names them, to workers.  Other nodes
    are on the worker of their reader, and else on ``main``.

    Raises:
        UndefinedError: 42704, the plan has no such node.
        UnsupportedError: a part would need rows that ``main`` computes; or the plan cannot be cut.
        UserError: 54000, too many parts.
    """
    said = _said(plan, wanted)
    if said.get(plan.sink.id, main) != main:
        raise UnsupportedError(
            "the sink of a view cannot be on another worker",
            detail=f'Rows are written by worker "{main}".',
            hint="Place the other collections only, or the whole view by the name of a worker.",
        )
    if all(worker == main for worker in said.values()):
        return {}
    _check_plan(plan)
    found = _tops(plan, said, main)
    for top in found:
        _check_part(plan, top, found, said, main)
    if len(found) > PARTS_MAX:
        raise UserError(
            f"a view can have {PARTS_MAX} parts on other workers at most, not {len(found)}",
            hint="Place fewer collections, or those that read them as well.",
            sqlstate="54000",
        )
    return found


def is_cuttable(plan: p.PhysicalPlan) -> bool:
    """Return whether anything of a plan may be elsewhere than the rest."""
    return not plan.temporal and not plan.feeds and bool(plan.sources)


def _said(plan: p.PhysicalPlan, wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the requested worker of each node that has one; an id takes precedence over a kind."""
    names = {node.id for node in plan.nodes}
    kinds = {p.kind(type(node)).lower() for node in plan.nodes}
    for name in wanted:
        if name not in names | kinds:
            raise UndefinedError(
                f'the plan has no part "{name}"',
                hint=f"There are: {', '.join(node.id for node in plan.nodes)}.",
                sqlstate="42704",
            )
    found = {}
    for node in plan.nodes:
        worker = wanted.get(node.id, wanted.get(p.kind(type(node)).lower()))
        if worker is not None:
            found[node.id] = worker
    return found


def _check_plan(plan: p.PhysicalPlan) -> None:
    if plan.temporal:
        raise UnsupportedError(
            "a view that reads the clock cannot be cut",
            hint="Place it whole, by the name of a worker.",
        )
    if plan.feeds:
        raise UnsupportedError(
            'a view that is fed (option "from") cannot be cut',
            hint="It is on the worker of the view that it is fed from.",
        )


def _tops(plan: p.PhysicalPlan, said: Mapping[str, str], main: str) -> dict[str, str]:
    at: dict[str, str] = {}
    tops: dict[str, str] = {}
    for node in reversed(plan.nodes):
        readers = {at[r.id] for r in plan.nodes if r.id in at and node.id in p.inputs(r)}
        where_read = next(iter(readers)) if len(readers) == 1 else main
        here = at[node.id] = said.get(node.id, where_read)
        if here != main and readers != {here}:
            tops[node.id] = here
    return dict(reversed(tops.items()))


def _check_part(
    plan: p.PhysicalPlan,
    top: str,
    parts: Mapping[str, str],
    said: Mapping[str, str],
    main: str,
) -> None:
    if not subplans.subplan(plan, top).sources:
        raise UnsupportedError(
            f'part "{top}" of the plan cannot be on another worker: no table is below it',
            hint="Place the collections that read it.",
        )
    worker = parts[top]
    for node in subplans.part(plan, parts, top).nodes[:-1]:
        # The rows of tables come from ``main`` anyway.
        if said.get(node.id) == main and not isinstance(node, p.SourceSpec | p.FeedSpec):
            raise UnsupportedError(
                f'part "{top}" on worker "{worker}" cannot read part "{node.id}" on "{main}"',
                detail="A part reads tables, and parts on other workers.",
                hint=f'Place "{node.id}" on "{worker}" as well, or "{top}" on "{main}".',
            )


def tops(plan: p.PhysicalPlan, nodes: Mapping[str, str], main: str) -> dict[str, str]:
    """Return the last node of each part, given the worker of every node (``star.py``)."""
    read_on_main: set[str] = set()
    for node in plan.nodes:
        if nodes[node.id] == main:
            read_on_main.update(p.inputs(node))
    return {
        node.id: nodes[node.id]
        for node in plan.nodes
        if nodes[node.id] != main and node.id in read_on_main
    }


def workers(parts: Mapping[str, str]) -> list[str]:
    """Return the workers that have parts."""
    return sorted(set(parts.values()))


def received(
    plan: p.PhysicalPlan, parts: Mapping[str, str], sends: Mapping[str, float], main: str
) -> dict[tuple[str, str], float]:
    """Return bytes over each link that is used: from, to.

    A table, or the output of a part, is sent to a worker once, however many readers it has there.
    """
    found: dict[tuple[str, str], float] = {}
    for worker in workers(parts):
        mine: list[str] = [top for top, at in parts.items() if at == worker]
        made = [subplans.part(plan, parts, top) for top in mine]
        read = [node for one in made for node in one.nodes]
        inputs = {node.id for node in read if isinstance(node, p.SourceSpec | p.FeedSpec)}
        found[main, worker] = sum(sends.get(name, 0.0) for name in inputs)
        found[worker, main] = sum(sends.get(name, 0.0) for name in mine)
    return found
