"""Input and output of the planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.collections.plan import PhysicalPlan
from headrace.planner.graph import Graph
from headrace.planner.limits import PlanLimits
from headrace.planner.logical.estimates import ExpectedSize
from headrace.planner.logical.lineage import ColumnOrigin
from headrace.planner.logical.nodes import Node
from headrace.types import Schema

RECURSIONS: Final = (1_000, 10_000_000)
"""Bounds of a recursive query unless the settings ``max_recursion_…`` say otherwise."""
LIMITS: Final = PlanLimits()
"""Limits of planning unless the settings say otherwise."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A query, its caller and the session settings."""

    query: str
    caller: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    stats: bool = True
    recursions: tuple[int, int] = RECURSIONS
    """Iterations after which a recursive query is an error, and rows of one iteration."""
    trust_stable: tuple[str, ...] = ()
    """Functions whose results depend on their arguments alone, as the author of the view says."""
    limits: PlanLimits = LIMITS
    """Limits of planning."""
    stopped_below: bool = False
    """Whether the query may read views of Headrace that have stopped."""
    syntax: Sequence[Mapping[str, Any]] | None = None
    """The syntax tree of the query (``reading.trees.plain``), if it was parsed."""
    unread: str = ""
    """The reason why it was not."""
    over: frozenset[int] = frozenset()
    """OIDs of the result tables that the query is planned over as they are: the query of such a
    view is not put in its place, and nothing is merged with it (A-47)."""


@dataclass(frozen=True, slots=True)
class TableRef:
    """A base table of a view."""

    oid: int
    schema: str
    name: str
    identity: str
    """``key`` (primary key or replica-identity index) or ``full``."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned view."""

    columns: Schema
    canonical_sql: str
    logical: Node
    optimised: Node
    physical: PhysicalPlan
    explain: dict[str, str]
    """Stage (``logical``, ``optimised``, ``physical``, ``sources``, ``key``) -> text."""
    tables: tuple[TableRef, ...]
    settings: dict[str, str]
    """Settings that influence evaluation, as they were for the caller."""
    functions: frozenset[int] = frozenset()
    """OIDs of the functions it needs that are not built in."""
    types: frozenset[int] = frozenset()
    """OIDs of the types the query mentions."""
    others: frozenset[tuple[str, int]] = frozenset()
    """(catalog, OID) of operators, collations and text search configurations."""
    relations: frozenset[tuple[int, bool]] = frozenset()
    """(OID of a table as named, with its children)."""
    rights: frozenset[tuple[str, int, int, tuple[int, ...], int]] = frozenset()
    """Privileges that roles must have, as ``Sources`` found them."""
    views: frozenset[int] = frozenset()
    """OIDs of the user's views whose queries are in it."""
    results: frozenset[int] = frozenset()
    """OIDs of the tables of views of Headrace whose queries are in it."""
    named: tuple[dict[str, Any], ...] = ()
    """Names in the text of ``canonical_sql``, for ``present``: plain JSON."""
    generated: frozenset[tuple[int, int]] = frozenset()
    """(table, attnum) of the generated columns that are computed from others."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Nodes of ``physical`` that other workers compute, with all below them: the worker of each."""
    graphs: tuple[Graph, ...] = ()
    """Graphs of the stages that have one; none where another owner's query is in the plan."""
    lineage: tuple[tuple[str, tuple[ColumnOrigin, ...]], ...] | None = None
    """Origins of each column, by its name; None where ``graphs`` is empty."""
    whole: PhysicalPlan | None = None
    """Where ``physical`` is over a view of Headrace: the plan with that view's query in its place,
    on whose sources it depends as well."""
    sizes: Mapping[str, ExpectedSize] = field(default_factory=dict, compare=False)
    """Per node of ``physical`` what its rows are expected to be, where that is known."""
    private: bool = False
    """Whether another owner's query is in the plan, so that its parts are not shown."""
    upper: PhysicalPlan | None = None
    """Where ``physical`` is stacked on the plans of views: the plan over their rows, by which the
    first rows are computed (``collections/stacking.py``)."""
    below: Mapping[int, int] = field(default_factory=dict)
    """IDs of these views, by result table."""
    instead: Planned | None = None
    """Where ``physical`` is stacked: the plan with the queries of these views in their place."""
    patience_s: float = 0.0
    """Where ``physical`` is stacked: seconds to wait for these views before ``instead`` is used."""
    first_rows: str = ""
    """Where the first rows come from and why, if the query reads views of Headrace."""

    @property
    def loaded(self) -> PhysicalPlan:
        """The plan that the first rows are computed by."""
        return self.physical if self.upper is None else self.upper

    @property
    def shown_sizes(self) -> Mapping[str, ExpectedSize]:
        """``sizes``; nothing where they would tell of somebody else's query."""
        return {} if self.private else self.sizes
