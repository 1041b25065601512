"""Cuts of a plan into parts for other workers; each part includes all nodes below it.

    placement: node or kind ─► worker        cuts: last node of a part ─► worker

Rows of tables come from the worker that reads the stream, and the output of a part returns there.
So all nodes below the last node of a part are on its worker.  A node that other parts need too is
computed by each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
        UnsupportedError: a part would need rows of another worker than ``main``, or rows that
            ``main`` computes; or the plan cannot be cut.
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
    for top, worker in found.items():
        _check_part(plan, top, worker, said, main)
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
    plan: p.PhysicalPlan, top: str, worker: str, said: Mapping[str, str], main: str
) -> None:
    part = subplans.subplan(plan, top)
    if not part.sources:
        raise UnsupportedError(
            f'part "{top}" of the plan cannot be on another worker: no table is below it',
            hint="Place the collections that read it.",
        )
    for node in part.nodes[:-1]:
        there = said.get(node.id, worker)
        pinned = isinstance(node, p.SourceSpec) and there == main  # from there its rows come
        if there != worker and not pinned:
            raise UnsupportedError(
                f'part "{top}" on worker "{worker}" cannot read part "{node.id}" on "{there}"',
                detail=f'A worker receives rows only from "{main}", and from no other part.',
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

    A table is sent to a worker once, however many readers it has there.
    """
    found: dict[tuple[str, str], float] = {}
    for worker in workers(parts):
        mine: list[str] = [top for top, at in parts.items() if at == worker]
        sources = _sources(plan, mine)
        found[main, worker] = sum(sends.get(name, 0.0) for name in sources)
        found[worker, main] = sum(sends.get(name, 0.0) for name in mine)
    return found


def _sources(plan: p.PhysicalPlan, tops: Iterable[str]) -> set[str]:
    return {source.id for top in tops for source in subplans.subplan(plan, top).sources}
