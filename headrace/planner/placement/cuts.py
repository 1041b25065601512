"""Where a plan is cut: what is computed on other workers, each part with all that is below it.

    placement: node or kind ─► worker        cuts: last node of a part ─► worker

Rows of tables come from the worker that reads the stream, and what a part sends goes back there.
So a part is whole downwards: nothing below its last node is anywhere else, but where somebody else
needs it too, who then has it as well.
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
    """The last node of each part, and its worker; nothing where all is to be on ``main``.

    ``wanted`` says where nodes are to be, by their ids or kinds, as ``view_stats`` names them; the
    others are where what reads them is, and else on ``main``.

    Raises:
        UndefinedError: 42704, the plan has no such node.
        UnsupportedError: what is wanted would need rows of another worker than ``main``, or of
            what is computed there; or the plan cannot be cut.
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
    """The worker of each node for which one is wanted; its id counts before its kind."""
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
            hint="Place what reads it.",
        )
    for node in part.nodes[:-1]:
        there = said.get(node.id, worker)
        pinned = isinstance(node, p.SourceSpec) and there == main  # from there its rows come
        if there != worker and not pinned:
            raise UnsupportedError(
                f'part "{top}" on worker "{worker}" cannot read part "{node.id}" on "{there}"',
                detail=f'A worker has rows of tables from "{main}", and of no other part.',
                hint=f'Place "{node.id}" on "{worker}" as well, or "{top}" on "{main}".',
            )


def tops(plan: p.PhysicalPlan, nodes: Mapping[str, str], main: str) -> dict[str, str]:
    """The last node of each part, where every node has its worker (``star.py``)."""
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
    """Those that have parts."""
    return sorted(set(parts.values()))


def received(
    plan: p.PhysicalPlan, parts: Mapping[str, str], sends: Mapping[str, float], main: str
) -> dict[tuple[str, str], float]:
    """Bytes over each link that is used: from, to.

    A table goes to a worker once, whoever reads it there.
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
