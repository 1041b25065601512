"""Expensive parts of a plan and ways to make them cheaper, in words, for ``advise``.

Each rule looks at one node alone, and yields a remedy only where it is certain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headrace.collections import plan as p
from headrace.planner.physical import costs

_LARGE: Final = 1_000.0
"""Number of rows touched by one changed row above which a remedy is suggested."""
_CHEAP: Final = "count, sum, avg, min and max are maintained incrementally"


@dataclass(frozen=True, slots=True)
class Remedy:
    """A finding about a node, and advice on it."""

    finding: str
    advice: str


def label(plan: p.PhysicalPlan, node: p.Node) -> str:
    """Return a description of a node for people, with the names of its columns."""
    names = [f.name for f in plan.node(p.inputs(node)[0]).schema] if p.inputs(node) else []
    match node:
        case p.SourceSpec():
            return f"table {node.schema_name}.{node.table_name}"
        case p.FeedSpec():
            return f"view {node.view}"
        case p.JoinSpec():
            right = [f.name for f in plan.node(node.right).schema]
            pairs = zip(node.left_keys, node.right_keys, strict=True)
            keys = " and ".join(f"{names[a]} = {right[b]}" for a, b in pairs)
            kind = "join" if node.op == "inner" else f"{node.op} join"
            return f"{kind} on {keys}" if keys else f"{kind} of all rows with all"
        case p.ReduceSpec():
            keys = ", ".join(names[k] for k in node.keys)
            calls = ", ".join(a.result.name or a.function for a in node.aggregates)
            return f"{calls or 'groups'} by {keys}" if keys else f"{calls} over all rows"
        case p.TopKSpec():
            order = ", ".join(names[item.column] for item in node.order)
            keys = "".join(f" by {', '.join(names[k] for k in node.keys)}" for _ in node.keys[:1])
            return f"first rows{keys} in order of {order}" if order else f"first rows{keys}"
        case p.WindowSpec():
            keys = ", ".join(names[k] for k in node.keys) or "no partition"
            order = ", ".join(names[item.column] for item in node.order)
            return f"window over {keys}" + (f" in order of {order}" if order else "")
        case p.SinkSpec():
            return "the result table"
        case _:
            return p.kind(type(node)).lower()


def of_node(
    plan: p.PhysicalPlan, expected: costs.ExpectedCosts, node: p.Node, most: float
) -> Iterator[Remedy]:
    """Yield the remedies for a node, where one changed row touches ``most`` rows."""
    match node:
        case p.SourceSpec():
            yield from _of_table(node)
        case p.JoinSpec():
            yield from _of_join(node, most)
        case p.ReduceSpec():
            yield from _of_groups(plan, node, most)
        case p.TopKSpec():
            yield from _of_order(plan, node, "ORDER BY … LIMIT")
        case p.WindowSpec():
            yield from _of_window(plan, expected, node, most)
        case p.FilterSpec() | p.MapSpec() | p.FusedSpec():
            yield from _of_expressions(node)


def _of_table(node: p.SourceSpec) -> Iterator[Remedy]:
    if not node.full_identity:
        return
    name = f"{node.schema_name}.{node.table_name}"
    yield Remedy(
        f"table {name} has no primary key: its changes are identified by whole rows, which"
        f" Postgres writes to the WAL twice and Headrace stores in full",
        f"Give {name} a primary key, or a unique index over columns that are NOT NULL and"
        " ALTER TABLE … REPLICA IDENTITY USING INDEX.",
    )


def _of_join(node: p.JoinSpec, most: float) -> Iterator[Remedy]:
    if node.compared:
        return
    if not node.left_keys:
        yield Remedy(
            "every row of one side meets every row of the other",
            "Join by an equality (a.x = b.y); the rest of a condition is evaluated for each pair."
            " If one side has only a few rows, no change is needed.",
        )
    elif most > _LARGE:
        yield Remedy(
            f"a changed row matches about {most:.0f} rows on the equated columns",
            "Equate more columns, or group the larger side by them before the join.",
        )


def _of_groups(plan: p.PhysicalPlan, node: p.ReduceSpec, most: float) -> Iterator[Remedy]:
    remote = [a.sql for a in node.aggregates if a.function == "remote"]
    if not remote:
        return
    yield Remedy(
        f"Postgres computes {_shown(remote)} over all rows of a group that has changed, about"
        f" {max(most, 1):.0f}",
        f"Group by more columns, or use others: {_CHEAP}. Or let the view return the rows, and"
        f" compute the aggregate when it is read.",
    )


def _of_order(plan: p.PhysicalPlan, node: p.TopKSpec | p.WindowSpec, what: str) -> Iterator[Remedy]:
    names = [f.name for f in plan.node(node.input).schema]
    asked = [names[item.column] for item in node.order if not item.native]
    if asked:
        yield Remedy(
            f"only Postgres knows the order of {', '.join(asked)} (a collation, or a type's own):"
            " Postgres sorts changed rows again",
            f'In {what} write {asked[0]} COLLATE "C" if its order by bytes will do.',
        )


def _of_window(
    plan: p.PhysicalPlan, expected: costs.ExpectedCosts, node: p.WindowSpec, most: float
) -> Iterator[Remedy]:
    yield from _of_order(plan, node, "OVER (… ORDER BY …)")
    if not node.keys:
        yield Remedy(
            "the window has no PARTITION BY: a changed row affects all rows after it",
            "Add PARTITION BY, or keep only the first rows with ORDER BY … LIMIT. Row numbers can"
            " be computed when the view is read.",
        )
    elif most > _LARGE:
        size = (expected.rows(node.input) or 0) / expected.groups(node.input, node.keys)
        yield Remedy(
            f"its partitions have about {size:.0f} rows, and a changed row affects those after it",
            "PARTITION BY more columns.",
        )
    asked = [c.sql for c in node.calls if c.running is None]
    if asked and all(item.native for item in node.order):
        yield Remedy(
            f"Postgres computes {_shown(asked)} anew over all rows of a partition that has changed",
            "row_number, rank, lag, lead, and count, sum, min, max with the default frame are"
            " maintained incrementally.",
        )


def _of_expressions(node: p.Node) -> Iterator[Remedy]:
    asked = costs.asked(node)
    if asked:
        yield Remedy(
            f"Postgres computes {_shown(asked)} for each changed row",
            "Compute it when the view is read (or in an ordinary view over it), unless rows are"
            " grouped, joined or filtered by it.",
        )


def of_result(keys: str) -> Iterator[Remedy]:
    """Yield the remedy for a result table without a key; ``keys``: explanation of proven keys."""
    finding = "the result has no key, so that a changed row is found by all of its columns"
    if keys.startswith("could have"):
        yield Remedy(finding, f"It {keys.splitlines()[0]}: name these columns in option key.")
    elif "one row at most" not in keys:
        yield Remedy(
            finding,
            "Select the primary keys of the tables (or all columns of GROUP BY), or name columns in"
            " option key if you know that they are unique.",
        )


def _shown(texts: list[str]) -> str:
    first = texts[0] if len(texts[0]) <= 80 else f"{texts[0][:80]}…"
    more = len(texts) - 1
    return f"{first} (and {more} more)" if more else first
