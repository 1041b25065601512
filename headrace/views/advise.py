"""advise: estimate what a view of a query would cost, and suggest how to make it cheaper.

    query ── as create_view plans it ──► plan, sizes ── physical/costs.py ──► rows for people

Nothing is created. Figures are expected values, from Postgres' statistics and the measured costs
of collections, unless a row says that it was measured. If the query includes a view of another
role, only totals are shown. ``views/statements.py`` handles ``advise`` without a query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from headrace.collections import plan as p
from headrace.collections import subplans
from headrace.counting import counted
from headrace.errors import HeadraceError, PrerequisiteError, UnsupportedError
from headrace.planner import Planned, PlanRequest
from headrace.planner.physical.costs import ExpectedCosts
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.populate import planning
from headrace.postgres.connect import Connection
from headrace.sql import points, views
from headrace.sql.nodes import MAIN
from headrace.sql.status import Status
from headrace.sql.verbs import Advise
from headrace.sql.views import StoredView, ViewRow
from headrace.views import statements, suggestions
from headrace.views.check import checked
from headrace.views.cost_estimates import Row, WeighedTable, load, row, weighed

_VIEWS_MAX: Final = 200
"""Limit of views that a query is compared with."""
_MUCH: Final = 0.2
"""Share of a processor above which a higher ``latency_ms`` is suggested."""
_LATE_MS: Final = 1_000


def advise(context: JobContext, job: Job, request: Advise) -> list[Row]:
    """Return the rows of ``headrace.advise`` for a query, or for the view that it names.

    Raises:
        UserError: the query is wrong (an unsupported query is a row).
        PrivilegeError: the view belongs to another role.
        UndefinedError: 42P01, the text is a name, but not of a view.
        PrerequisiteError: 55000, without a query: pg_stat_statements cannot be read.
    """
    if request.query is None:
        return statements.advise(context, job, request)
    with planning(context, job) as conn:
        wanted = PlanRequest(request.query, request.caller, request.settings)
        view, stored = _view(conn, request.query, request)
        if stored is not None:
            wanted = PlanRequest(
                stored.canonical or stored.query, request.caller, request.settings | stored.settings
            )
        try:
            planned = checked(context, conn, wanted)
        except (UnsupportedError, PrerequisiteError) as error:
            return list(_refused(error))
        out = [row("accepted", None, "create_view would accept it")]
        out += _of_plan(context, conn, planned, request.caller, view)
    if view is not None:
        out += _measured(context, job, view)
    return out


def _view(conn: Connection, text: str, request: Advise) -> tuple[ViewRow | None, StoredView | None]:
    """Return the view that ``text`` names, or (None, None)."""
    view = names.find_named(conn, text, request.caller, request.settings)
    if view is None:
        return None, None
    names.check_owner(conn, view, request.caller)
    return view, views.stored(conn, view.id)


def _refused(error: HeadraceError) -> Iterator[Row]:
    advice = " ".join(part for part in (error.detail, error.hint) if part) or None
    yield row("accepted", None, f"create_view would refuse it: {error.message}", advice=advice)


def _of_plan(
    context: JobContext,
    conn: Connection,
    planned: Planned,
    caller: str | None,
    view: ViewRow | None,
) -> Iterator[Row]:
    expected, tables = weighed(conn, planned)
    yield row("result", None, "expected rows of the result", expected.result_rows, "rows")
    yield from _states(planned, expected)
    if planned.private:
        # The names of its tables are hidden as well.
        yield _in_all(tables)
        yield row(
            "private", None, "its parts are not shown: it contains the query of another owner"
        )
        return
    yield from _changes(tables)
    yield from _load(tables)
    yield from _costliest(planned, expected, tables)
    yield from _suggestions(planned, expected, tables)
    if context.settings.sharing:
        yield from _sharing(conn, planned, expected, caller, view)
    yield from _points(conn, planned, caller)


def _states(planned: Planned, expected: ExpectedCosts) -> Iterator[Row]:
    states = expected.states()
    known = [state for state in states.values() if state is not None]
    total = sum(state.bytes for state in known) if len(known) == len(states) else None
    told = "expected bytes of all states in memory"
    if total is None:
        told = "the size of its states is unknown"
    yield row("state", None, told, total, "bytes")
    if planned.private:
        return
    for name, state in states.items():
        node = planned.physical.node(name)
        subject = f"{name}: {suggestions.label(planned.physical, node)}"
        if state is None:
            yield row("state", subject, "nobody knows", None, "bytes")
        else:
            yield row("state", subject, f"about {state.rows:.0f} entries", state.bytes, "bytes")


def _changes(tables: Sequence[WeighedTable]) -> Iterator[Row]:
    for table in tables:
        if table.cost is None:
            yield row(
                "change",
                table.name,
                "unknown: a table of the query was never analysed",
                None,
                "µs",
                "Run ANALYZE on the tables of the query.",
            )
            continue
        cost = table.cost
        yield row(
            "change",
            table.name,
            f"one row inserted or deleted (an update is two): {_count(cost.rows)} rows are touched,"
            f" {_count(cost.result_rows)} of the result change; in a transaction of its own"
            f" {cost.alone_us:.0f} µs of CPU",
            cost.us,
            "µs",
        )


def _count(number: float) -> str:
    return f"{number:.0f}" if number >= 10 or number == round(number) else f"{number:.2g}"


def _load(tables: Sequence[WeighedTable]) -> Iterator[Row]:
    for table in tables:
        yield row("load", table.name, "rows that change now", table.per_s, "rows/s")
    yield _in_all(tables)


def _in_all(tables: Sequence[WeighedTable]) -> Row:
    """Return the row with the share of a processor that the view would take."""
    if any(table.cost is None for table in tables):
        return row("load", None, "the cost of its changes is unknown", None, "%")
    least, most = load(tables)
    advice = None
    if most > _MUCH:
        advice = (
            f"'{{\"latency_ms\": {_LATE_MS}}}' (or more) combines the changes of that time, which"
            " then cost about {100 * least:.2g} % of a processor."
        )
    told = f"of a processor, if rows come one by one (in large batches {100 * least:.2g} %)"
    return row("load", None, told, 100 * most, "%", advice)


def _costliest(
    planned: Planned, expected: ExpectedCosts, tables: Sequence[WeighedTable]
) -> Iterator[Row]:
    """Yield the most expensive node; the cost of each table counts by its rate of change."""
    spent: dict[str, float] = {}
    for table in tables:
        weight = table.per_s if any(t.per_s for t in tables) else 1.0
        for name, us in (table.cost.by_node if table.cost else {}).items():
            spent[name] = spent.get(name, 0.0) + weight * us
    total = sum(spent.values())
    if not total:
        return
    name = max(spent, key=lambda each: spent[each])
    node = planned.physical.node(name)
    said = list(suggestions.of_node(planned.physical, expected, node, _most(tables, name)))
    advice = said[0].advice if said else None
    label = f"{name}: {suggestions.label(planned.physical, node)}"
    yield row(
        "costliest",
        label,
        "takes most of the cost of changes",
        100 * spent[name] / total,
        "%",
        advice,
    )


def _most(tables: Sequence[WeighedTable], name: str) -> float:
    """Return how many rows of a node one changed row touches, for the worst table."""
    return max((t.cost.touched.get(name, 0.0) for t in tables if t.cost is not None), default=0.0)


def _suggestions(
    planned: Planned, expected: ExpectedCosts, tables: Sequence[WeighedTable]
) -> Iterator[Row]:
    for node in planned.physical.nodes:
        most = _most(tables, node.id)
        for said in suggestions.of_node(planned.physical, expected, node, most):
            subject = f"{node.id}: {suggestions.label(planned.physical, node)}"
            number = most if most and not isinstance(node, p.SourceSpec) else None
            unit = None if number is None else "rows"
            yield row("remedy", subject, said.finding, number, unit, said.advice)
    sink = planned.physical.sink
    if not sink.key:
        for said in suggestions.of_result(planned.explain["key"]):
            yield row("remedy", f"{sink.id}: the result table", said.finding, advice=said.advice)


def _sharing(
    conn: Connection,
    planned: Planned,
    expected: ExpectedCosts,
    caller: str | None,
    own: ViewRow | None,
) -> Iterator[Row]:
    """Yield the nodes that already exist in views that the caller may see."""
    seen = views.seen(conn, caller)
    mine = subplans.signatures(planned.physical, planned.settings)
    kept: dict[str, str] = {}
    others = [v for v in views.worked(conn, some=[Status.RUNNING]) if v.id in seen.names]
    for view in others[:_VIEWS_MAX]:
        stored = views.stored(conn, view.id)
        if (own is not None and view.id == own.id) or stored is None or not _shares(stored):
            continue
        theirs = subplans.signatures(p.from_json(view.plan), view.settings or {})
        for signature in theirs.values():
            kept.setdefault(signature, seen.names[view.id])
    found = {name: kept[text] for name, text in mine.items() if text in kept}
    states = expected.states()
    for name, view_name in found.items():
        # Inputs of a shared node are shared with it.
        if any(name in _below(planned.physical, other) for other in found if other != name):
            continue
        below = _below(planned.physical, name)
        saved = [state for node, state in states.items() if node in below]
        size = sum(s.bytes for s in saved if s is not None) if None not in saved else None
        subject = f"{name}: {suggestions.label(planned.physical, planned.physical.node(name))}"
        yield row(
            "sharing",
            subject,
            f"it is already maintained for view {view_name}",
            size,
            "bytes",
            "It costs nothing more, unless option sharing is switched off.",
        )


def _shares(stored: StoredView) -> bool:
    return stored.options.sharing and stored.options.placement == MAIN


def _below(plan: p.PhysicalPlan, name: str) -> frozenset[str]:
    """Return the ids of a node and of all its inputs, direct and indirect."""
    return frozenset(node.id for node in subplans.subplan(plan, name).nodes[:-1])


def _points(conn: Connection, planned: Planned, caller: str | None) -> Iterator[Row]:
    for oid in sorted(planned.results):
        number = views.of_table(conn, oid)
        view = None if number is None else views.of_id(conn, number)
        if view is None or not names.acts_for_owner(conn, view, caller):
            continue
        for point in points.of_view(conn, view.id):
            yield row(
                "point",
                view.shown,
                f'it is connection point "{point.name}"',
                None,
                None,
                f"""'{{"from": "{point.name}"}}' reads the rows from there; nothing below it"""
                " is computed or stored again.",
            )


def _measured(context: JobContext, job: Job, view: ViewRow) -> Iterator[Row]:
    """Yield the measured cost of each collection of a running view."""
    try:
        found = context.worker.call("stats", {"view_id": view.id}, job)
    except HeadraceError as error:
        yield row("measured", view.shown, f"nothing: {error.message}")
        return
    for each in found:
        rows_in = each["rows_in"]
        if rows_in:
            yield row(
                "measured",
                f"{each['node']}: {each['collection']}",
                f"{counted(rows_in, 'row')} came in and {each['rows_out']} went out, of each that came in",
                each["busy_us"] / rows_in,
                "µs",
            )
