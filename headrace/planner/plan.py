"""Planning: from a query text to a physical plan, or to an error that names the obstacle.

    query ── Postgres analyses it under the caller's rights and settings (session)
          ── parse tree ── refusals (check) ── logical plan (bind, lower, aggregates)
          ── rules (optimise) ── collections (physical) ── proof of what Postgres evaluates

The catalog is read in one transaction, which has no xid.  Texts are analysed on a separate
connection (``analysis``).  Both are rolled back: nothing is left in the user's database.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import psycopg
from msgspec import structs

from headrace.collections.plan import FeedSpec, PhysicalPlan, SourceSpec
from headrace.errors import HeadraceError, UnsupportedError
from headrace.planner import limits, readings
from headrace.planner.analyse import check, position, query_errors, session
from headrace.planner.analyse.analysis import LOCKED, Analysis
from headrace.planner.analyse.catalog import Catalog
from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.analyse.policies import RowSecurity, refuse_code
from headrace.planner.analyse.present import names
from headrace.planner.binding import functions_in_from
from headrace.planner.binding.bind import Binder
from headrace.planner.binding.input_order import carry_order
from headrace.planner.binding.sources import Sources, describe
from headrace.planner.bodies import trust
from headrace.planner.bodies.twin import Twins
from headrace.planner.graph import text
from headrace.planner.logical import uniquekeys
from headrace.planner.logical.lineage import lineage
from headrace.planner.logical.nodes import Node, children, expressions
from headrace.planner.logical.repeats import each
from headrace.planner.logical.scalar import (
    Call,
    Expr,
    Ref,
    any_call,
    plain,
    quote,
    references,
    show,
    trusted,
)
from headrace.planner.passes import expired, fulljoins, temporal
from headrace.planner.passes.decorrelate import decorrelate
from headrace.planner.passes.inlining import inline
from headrace.planner.passes.optimise import optimise
from headrace.planner.passes.row_security import carry
from headrace.planner.passes.singles import place_singles
from headrace.planner.physical.build import PhysicalBuilder
from headrace.planner.physical.explain import (
    LINEAGE,
    lineage_graph,
    lineage_text,
    logical_graph,
    physical_graph,
)
from headrace.planner.request import Planned, PlanRequest
from headrace.planner.scalars import build, functions, xml_values
from headrace.planner.scalars.constants import Constants
from headrace.planner.scalars.forms import FORMS
from headrace.planner.scalars.lower import Lowering
from headrace.planner.scalars.scope import Scope
from headrace.postgres.connect import Connection
from headrace.postgres.settings import FUNCTION_PATH
from headrace.types import BYTEA, FIXED, NAME, TEXT, UNKNOWN, VARCHAR, XML, Field, Schema

_PROOF_CHUNK: Final = 500
_TEXTS: Final = frozenset((TEXT, VARCHAR, NAME, BYTEA))
_MAKES_ARRAYS: Final = re.compile(r"\[\]|record|populate|array_in")
"""In the SQL of what may make an array out of a text."""


def plan(conn: Connection, request: PlanRequest) -> Planned:
    """Plan ``request``; raises UserErrors with positions in its query text.

    The caller may end it: see ``limits.interruptible``.
    """
    with _limited(request):
        if not request.over:
            return _plan(conn, request)
        return _over(_plan(conn, replace(request, over=frozenset())), _plan(conn, request))


def plan_upper(conn: Connection, request: PlanRequest) -> Planned:
    """Plan ``request`` over the rows of the views ``request.over``, as ``plan`` does.

    The result lacks the dependencies of these views' queries.
    """
    with _limited(request):
        return _plan(conn, request)


@contextlib.contextmanager
def _limited(request: PlanRequest) -> Iterator[None]:
    try:
        with limits.applied(request.limits), query_errors.completed(request.query):
            yield
    except RecursionError as error:
        raise UnsupportedError(
            "a query nested this deeply is not supported",
            detail="Some 200 operators inside each other are, and any number side by side"
            " in AND, OR, IN, CASE or a list.",
        ) from error


def _over(whole: Planned, upper: Planned) -> Planned:
    """Return ``upper``, planned over a view's rows, with the dependencies of ``whole``."""
    sink = whole.physical.sink
    return replace(
        whole,
        logical=upper.logical,
        optimised=upper.optimised,
        physical=upper.physical.secured(sink.conditions, discreet=sink.discreet),
        explain=upper.explain,
        graphs=upper.graphs,
        whole=whole.physical,
        sizes=upper.sizes,
    )


def _plan(conn: Connection, request: PlanRequest) -> Planned:
    analysis = Analysis(conn, request.caller, request.settings)
    while True:
        try:
            with session.reading(conn), analysis, limits.between(analysis.rest):
                return _planned(conn, analysis, request)
        except HeadraceError as error:
            # The catalog waits behind a statement that waits for the locks of the analysis: both
            # transactions have ended, and it can go on.
            if error.code != LOCKED or not analysis.may_wait:
                raise
            limits.check()


@dataclass(frozen=True, slots=True)
class _Read:
    """The query as Postgres has analysed it, and the session that it was analysed in."""

    stored: session.StoredQuery
    written: position.Text
    settings: dict[str, str]
    array_nulls: bool


def _read(analysis: Analysis, request: PlanRequest) -> _Read:
    """Have Postgres analyse the query, as soon as its tables are not locked."""
    while True:
        try:
            with analysis.binding() as conn:
                session.bind_query(conn, request.query, request.caller)
                return _Read(
                    written=position.Text(
                        request.query, standard_strings=session.standard_strings(conn)
                    ),
                    array_nulls=session.is_on(conn, "array_nulls"),
                    settings=session.captured_settings(conn, request.settings),
                    # The printed text is canonical under the settings that are pinned by now.
                    stored=session.fetch_view(conn),
                )
        except HeadraceError as error:
            if error.code != LOCKED or not analysis.may_wait:
                raise
            limits.check()


def _planned(conn: Connection, analysis: Analysis, request: PlanRequest) -> Planned:
    read = _read(analysis, request)
    bound = session.bound_query(read.stored, request.query)
    written, settings = read.written, read.settings
    session.adopt(conn, request.settings)
    session.pin(conn)
    front = readings.composed(conn, request, bound)
    if front.tree is not None:
        bound = replace(bound, tree=front.tree)
    catalog = Catalog(conn, trust.resolve(conn, request.trust_stable))
    twins = Twins(analysis, catalog, settings[FUNCTION_PATH])
    bodies = trust.Trust(conn, catalog, twins)
    catalog.types.shown = twins.type_name
    catalog.functions.doubt = bodies.doubt
    catalog.functions.gives_rows = bodies.gives_rows
    clock = partial(functions.reads_clock, catalog)
    check.refuse_clock_literals(bound.tree, written, bound.position, clock, catalog.now)
    sources = Sources(conn, analysis, catalog, settings, bodies, request)
    sources.load(bound, request.caller)
    check.refuse_constructs(bound.tree, written, bound.position)
    trees = [bound.tree, *sources.tables.trees]
    catalog.preload(trees)
    for tree in trees:
        carry_order(tree, catalog)
    constants = Constants(analysis, catalog)
    constants.load(trees, ";\n".join((bound.canonical_sql, *sources.texts)))
    lowering = Lowering(
        FORMS,
        conn,
        analysis,
        catalog,
        constants,
        (bound.position, written.find),
        money_plain=_is_c_locale(settings.get("lc_monetary", "C")),
    )
    binder = Binder(lowering, sources.tables)
    bound_plan = inline(binder.bind(bound.tree), binder.numbers)
    columns, builder = _columns(catalog, bound), PhysicalBuilder(lowering, request.recursions)
    secured = sources.tables.secured
    with sources.nameless():
        logical, optimised, physical = _computed(
            lowering, builder, bound_plan, columns, secured, discreet=sources.discreet
        )
        if physical.sink.conditions:
            table = min(security.table for security in secured.values())
            refuse_code(conn, catalog, table, called=_calls_users(logical))
    if not read.array_nulls:
        _refuse_arrays_of_texts(builder.remotes)
    functions_in_from.prove(lowering, builder.sets)
    return Planned(
        columns=columns,
        canonical_sql=bound.canonical_sql,
        logical=logical,
        optimised=optimised,
        physical=physical,
        **_shown((bound_plan, optimised, physical), builder, lowering, columns, sources, front),
        tables=sources.tables.refs(),
        settings=_kept(settings, catalog),
        functions=catalog.functions.of_users(),
        types=frozenset(catalog.mentioned),
        others=frozenset(catalog.others) | {("pg_class", oid) for oid in secured},
        relations=frozenset(sources.relations),
        rights=frozenset(sources.rights),
        views=frozenset(sources.views),
        results=frozenset(sources.results),
        named=_named(conn, bound.canonical_sql, sources, catalog, settings),
        generated=frozenset(sources.tables.generated),
        sizes=builder.sizes,
        private=bool(sources.private),
    )


def _computed(
    lowering: Lowering,
    builder: PhysicalBuilder,
    bound_plan: Node,
    columns: Schema,
    secured: Mapping[int, RowSecurity],
    *,
    discreet: bool,
) -> tuple[Node, Node, PhysicalPlan]:
    """Return the logical, the optimised and the proven physical plan."""
    identical = partial(_identical, lowering.catalog)
    logical, carried = carry(decorrelate(bound_plan, lowering), secured, identical)
    rewritten = optimise(logical)
    limited = expired.limited(rewritten, lowering)
    if limited is not rewritten:
        rewritten = optimise(limited)
    fulljoins.require_executable(lowering, bound_plan, rewritten)
    optimised = each(rewritten, partial(temporal.extract, lowering=lowering))
    placed = each(optimised, partial(place_singles, context=lowering))
    physical = builder.build(placed, columns).keyed(uniquekeys.proved(optimised, columns))
    named = ({n: columns[place].name for n, place in c.places.items()} for c in carried)
    conditions = tuple(c.security.condition(n) for c, n in zip(carried, named, strict=True))
    proven = _proven(lowering, builder, physical)
    return logical, optimised, proven.secured(conditions, discreet=discreet)


def _calls_users(node: Node) -> bool:
    """Return whether an expression of the plan calls a function of a user."""
    return not all(map(trusted, expressions(node))) or any(map(_calls_users, children(node)))


def _identical(catalog: Catalog, ref: Ref) -> bool:
    """Return whether values of a column that SQL calls equal cannot be distinguished."""
    if ref.oid in _TEXTS:
        return catalog.collations.deterministic(ref.collation)
    return ref.oid in FIXED or catalog.types[ref.oid].kind == "e"


def _shown(
    plans: tuple[Node, Node, PhysicalPlan],
    builder: PhysicalBuilder,
    lowering: Lowering,
    columns: Schema,
    sources: Sources,
    front: readings.Front,
) -> dict[str, Any]:
    """Return the explanations of the plan; none if it contains another owner's query."""
    bound_plan, optimised, physical = plans
    graphs = (
        logical_graph("logical", bound_plan, lowering.type_name),
        logical_graph("optimised", optimised, lowering.type_name),
        physical_graph(physical, builder.words, lowering.type_name, builder.sizes),
    )
    origins = tuple(zip((c.name for c in columns), lineage(bound_plan), strict=True))
    stages = {graph.stage: text(graph) for graph in graphs} | {
        "sources": describe(sources),
        "key": uniquekeys.explain(optimised, columns, physical.sink.key),
        LINEAGE: lineage_text(origins),
    }
    if not sources.private:
        drawn = (*graphs, lineage_graph(origins), *front.graphs)
        return {"explain": stages, "graphs": drawn, "lineage": origins}
    names = ", ".join(sorted(sources.private))
    told = f"not shown: it contains the query of {names}, which only the owner may see"
    return {"explain": dict.fromkeys(stages, told)}


def _named(
    conn: Connection,
    canonical: str,
    sources: Sources,
    catalog: Catalog,
    settings: dict[str, str],
) -> tuple[dict[str, Any], ...]:
    functions = catalog.functions.of_users()
    return tuple(
        names(
            conn,
            canonical,
            sources.named,
            catalog.mentioned,
            functions,
            catalog.others,
            _kept(settings, catalog),
        )
    )


def _kept(settings: dict[str, str], catalog: Catalog) -> dict[str, str]:
    """Return the settings that the view needs."""
    if catalog.functions.of_users() or catalog.types.named:
        return settings
    return {name: value for name, value in settings.items() if name != FUNCTION_PATH}


def _is_c_locale(name: str) -> bool:
    return name in ("C", "POSIX") or name.startswith("C.")


def _columns(catalog: Catalog, bound: session.BoundQuery) -> Schema:
    if not bound.columns:
        raise UnsupportedError(
            "a query without columns is not supported",
            hint="Select a constant: SELECT 1 AS one FROM …",
        )
    out = []
    for name, oid, declared, collation in bound.columns:
        kind, typmod = catalog.types[oid], declared
        while kind.kind == "d":
            typmod, kind = kind.base_typmod, catalog.types[kind.base]
        if kind.kind == "p" or kind.oid == UNKNOWN:
            raise UnsupportedError(f'column "{name}" of type {kind.name} is not supported')
        if kind.oid != XML and xml_values.has_xml(catalog.types, kind.oid):
            raise UnsupportedError(
                f'column "{name}" of type {kind.name} is not supported',
                detail="Postgres prints the values of type xml inside without a leading newline.",
                hint="Store the documents in columns of type xml or text.",
            )
        if not catalog.provenance.writable(kind.oid):
            raise UnsupportedError(
                f'column "{name}" of type {kind.name} is not supported',
                detail="Writing its values could run code of the type's owner with the"
                " rights of Headrace.",
                hint="Select its parts, or let a superuser own the type, or a member of"
                " Headrace's role.",
            )
        out.append(Field(name, kind.oid, typmod, collation))
    return tuple(out)


# -- proof


def _proven(lowering: Lowering, builder: PhysicalBuilder, physical: PhysicalPlan) -> PhysicalPlan:
    """Return ``physical`` once its remote expressions are proven.

    If only an expression of a pushdown cannot be proven, the plan is returned without pushdowns,
    which are optimisations.
    """
    try:
        _prove(lowering, [*builder.remotes, *builder.pushed])
    except UnsupportedError:
        if not builder.pushed:
            raise
        _prove(lowering, builder.remotes)
        nodes = (
            structs.replace(n, pushdown=()) if isinstance(n, SourceSpec | FeedSpec) else n
            for n in physical.nodes
        )
        return structs.replace(physical, nodes=tuple(nodes))
    return physical


def _refuse_arrays_of_texts(remotes: list[Expr]) -> None:
    """Refuse expressions that could parse an array from a text while ``array_nulls`` is off.

    Headrace sends arrays to Postgres as texts, in which an unquoted NULL must be read as a null.
    The view is therefore maintained with ``array_nulls`` on, and such an expression would have
    another result than in the caller's session.
    """

    def reads(call: Call) -> bool:
        return not call.trusted or bool(_MAKES_ARRAYS.search(f"{call.sql} {call.symbol}"))

    found = next((e for e in remotes if any_call(e, reads)), None)
    if found is not None:
        raise UnsupportedError(
            f"expression {show(found)} is not supported while array_nulls is off",
            hint="Run SET array_nulls = on, and create the view again.",
        )


def _prove(lowering: Lowering, remotes: list[Expr]) -> None:
    """Prove that Postgres parses the SQL of every remote expression as it parsed the query.

    The SQL is analysed again, over columns of the same types, and lowered again.  The result must
    equal the original expression.
    """
    unique = list(dict.fromkeys(remotes))
    for start in range(0, len(unique), _PROOF_CHUNK):
        chunk = unique[start : start + _PROOF_CHUNK]
        refs = list({r.id: r for e in chunk for r in references(e)}.values())
        tree = _analysed_again(lowering, chunk, refs)
        scope = Scope(partial(_nth, refs))
        for expr, target in zip(chunk, tree.nodes("targetList"), strict=True):
            again = lowering.lower(target.child("expr"), scope)
            if plain(again) != plain(build.folded(lowering, expr)):
                raise UnsupportedError(
                    f"expression {show(expr)} cannot be reproduced exactly and is not supported"
                )


def _nth(refs: list[Ref], _: int, attno: int) -> Ref:
    return refs[attno - 1]


def _analysed_again(lowering: Lowering, exprs: list[Expr], refs: list[Ref]) -> Tree:
    """Return the tree of our SQL of ``exprs`` over columns typed as ``refs``."""
    places = {ref.id: place for place, ref in enumerate(refs, 1)}
    targets = ", ".join(
        f"{lowering.sql(e, lambda r: f's.a{places[r.id]}')} AS c{i}" for i, e in enumerate(exprs)
    )
    inputs = ", ".join(
        f"{quote(None, lowering.type_name(ref.oid))} AS a{place}"
        for place, ref in enumerate(refs, 1)
    )
    # Both lists are generated text over names that are already quoted.
    query = f"SELECT {targets} FROM (SELECT {inputs}) s"  # noqa: S608
    try:
        return lowering.analysed(query)
    except psycopg.ProgrammingError as error:
        raise UnsupportedError(
            "an expression of the query cannot be converted to SQL text",
            detail=error.diag.message_primary,
        ) from error
