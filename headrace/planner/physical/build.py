"""From the optimised logical plan to collections.

Column ids become positions, joins get their keys, aggregates their prepared arguments;
chains of filters and maps are fused into one collection on a synchronous edge.  One
``Source`` per table is shared by all scans of the view, each a chain over it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field, replace

from msgspec import structs

from headrace.collections import plan as p
from headrace.errors import UnsupportedError
from headrace.expressions import ir
from headrace.expressions.keys import order_native
from headrace.planner import limits
from headrace.planner.analyse.tables import TableColumn
from headrace.planner.binding import recursion
from headrace.planner.logical import alignment
from headrace.planner.logical import nodes as lg
from headrace.planner.logical.estimates import Estimates, ExpectedSize, table_size
from headrace.planner.logical.node_names import construct
from headrace.planner.logical.repeats import named, scans_by_table
from headrace.planner.logical.scalar import Call, Expr, Ref, trusted
from headrace.planner.physical import explain, extraction
from headrace.planner.physical.columns import field_of, key_column, place, schema, source_column
from headrace.planner.physical.expressions import Expressions
from headrace.planner.physical.joinkeys import join_comparison, join_keys
from headrace.planner.physical.sharing import shared
from headrace.planner.request import RECURSIONS
from headrace.planner.scalars.lower import Lowering
from headrace.planner.scalars.typekeys import identifies
from headrace.types import Field, Schema


@dataclass(slots=True)
class _Chain:
    """A stateless chain under construction over the node ``base``."""

    base: str
    columns: tuple[lg.Col, ...]
    base_columns: tuple[lg.Col, ...]
    steps: list[p.FilterSpec | p.MapSpec] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    """Description of each step, for people."""
    size: ExpectedSize | None = None
    """Expected size of its rows."""


@dataclass(slots=True)
class _Step:
    """The step of a recursion under construction."""

    name: str
    work: str
    """Node id of its work table."""
    outside: list[p.Node]
    outer: list[str] = field(default_factory=list)
    """Ids of the nodes outside that it reads."""


class PhysicalBuilder:
    """Builds one physical plan."""

    def __init__(self, lowering: Lowering, recursions: tuple[int, int] = RECURSIONS) -> None:
        """Set ``recursions``: maximal iterations of a recursive query, and rows in each."""
        self._lowering = lowering
        self._nodes: list[p.Node] = []
        self._counts: dict[str, itertools.count[int]] = defaultdict(lambda: itertools.count(1))
        self._sources: dict[int, tuple[str, tuple[TableColumn, ...]]] = {}
        self.sizes: dict[str, ExpectedSize] = {}
        """Expected rows per node, if known."""
        self.words: dict[str, str] = {}
        """Description per node, for display."""
        self._estimates = Estimates()
        self._expressions = Expressions(lowering)
        self.remotes = self._expressions.remotes
        """Every expression that Postgres will evaluate."""
        self.pushed: list[Expr] = []
        """Pushed-down predicates of sources, as Postgres will evaluate them."""
        self.sets: list[tuple[Call, ...]] = []
        """Every list of functions in FROM, or of set-returning functions, that the plan runs."""
        self._step: _Step | None = None
        self._named: dict[int, tuple[str, tuple[lg.Col, ...]]] = {}
        """Node and columns of each named plan (``AgainNode``), by number."""
        self._iterations_max, self._rows_max = recursions

    def build(self, plan: lg.Node, columns: Schema) -> p.PhysicalPlan:
        """Build the plan whose sink has ``columns``."""
        for scans in scans_by_table(plan).values():
            self._source(scans)
        for number, each in reversed(named(plan).items()):
            made = self._chain(each)
            self._named[number] = (self._close(made), made.columns)
        last = self._close(self._chain(plan))
        node_id = self._id("sink")
        self._nodes.append(p.SinkSpec(node_id, last, columns))
        nodes = shared(self._nodes)
        used = set(itertools.chain.from_iterable(p.inputs(n) for n in nodes))
        assert all(n.id in used for n in nodes[:-1]), "every node has a reader"
        return p.PhysicalPlan(nodes)

    def _id(self, kind: str) -> str:
        return f"{kind}_{next(self._counts[kind])}"

    def _said(self, kind: str, node: lg.Node) -> str:
        """Return a new id for a node that implements ``node``, and store its description."""
        node_id = self._id(kind)
        self.words[node_id] = explain.detail(node)
        return node_id

    # -- chains

    def _chain(self, node: lg.Node) -> _Chain:
        limits.check()
        chain = self._made(node)
        chain.size = self._estimates.size(node)
        if not chain.steps and chain.size is not None:
            self.sizes.setdefault(chain.base, chain.size)
        return chain

    def _made(self, node: lg.Node) -> _Chain:  # noqa: C901  one case per node
        if self._step is not None and not recursion.reads(node, self._step.name):
            return self._outside(node, self._step)
        match node:
            case lg.ScanNode():
                return self._scan(node)
            case lg.FilterNode():
                chain = self._chain(node.input)
                self._filter(chain, node.predicates)
                return chain
            case lg.ProjectNode():
                chain = self._chain(node.input)
                self._map(chain, node.items)
                return chain
            case lg.ValuesNode():
                node_id = self._id("values")
                self._nodes.append(p.ValuesSpec(node_id, node.rows, schema(node.columns)))
                return _Chain(node_id, node.columns, node.columns)
            case lg.JoinNode():
                return self._join(node)
            case lg.AggregateNode():
                return self._reduce(node)
            case lg.ExpandNode():
                return self._expand(node)
            case lg.DistinctNode():
                below = self._close(self._chain(node.input))
                node_id = self._id("distinct")
                self._nodes.append(p.DistinctSpec(node_id, below, schema(node.columns)))
                return _Chain(node_id, node.columns, node.columns)
            case lg.UnionNode():
                inputs = tuple(self._close(self._chain(i)) for i in node.inputs)
                node_id = self._id("union")
                self._nodes.append(p.UnionSpec(node_id, inputs, schema(node.columns)))
                return _Chain(node_id, node.columns, node.columns)
            case lg.FunctionsNode():
                return self._functions(node)
            case lg.RecursiveNode():
                return self._recursive(node)
            case lg.WorkTableNode():
                assert self._step is not None, "it stands inside of its recursion"
                return _Chain(self._step.work, node.columns, node.columns)
            case lg.SetOpNode():
                left, right = (self._close(self._chain(n)) for n in (node.left, node.right))
                node_id = self._id("setop")
                columns = schema(node.columns)
                self._nodes.append(p.SetOpSpec(node_id, left, right, node.kind, node.all, columns))
                return _Chain(node_id, node.columns, node.columns)
            case lg.TopKNode():
                return self._topk(node)
            case lg.WindowNode():
                return self._window(node)
            case lg.TemporalNode():
                return self._temporal(node)
            case lg.CalendarNode():
                return self._calendar(node)
            case lg.AgainNode():
                return self._again(node)
            case _:
                return self._lowering.refuse(f"{construct(node)} here")

    def _filter(self, chain: _Chain, predicates: tuple[Expr, ...]) -> None:
        if predicates:
            exprs = tuple(self._expressions.over(e, chain.columns) for e in predicates)
            chain.steps.append(p.FilterSpec("", "", exprs, schema(chain.columns)))
            chain.words.append(explain.conditions(predicates))

    def _map(self, chain: _Chain, items: tuple[tuple[lg.Col, Expr], ...]) -> None:
        exprs = tuple(self._expressions.over(e, chain.columns) for _, e in items)
        chain.columns = columns = tuple(c for c, _ in items)
        # COLLATE is compiled to the column itself, but nodes above read the new collation here.
        identity = len(exprs) == len(before := _schema_before(chain)) and all(
            isinstance(e, ir.Column) and e.index == i and c.collation == before[i].collation
            for i, (e, c) in enumerate(zip(exprs, columns, strict=True))
        )
        if not identity:
            chain.steps.append(p.MapSpec("", "", exprs, schema(columns)))
            chain.words.append(explain.items(items))

    def _close(self, chain: _Chain) -> str:
        """Return the id of the node that ends ``chain``."""
        node_id = self._ended(chain)
        if chain.size is not None:
            self.sizes.setdefault(node_id, chain.size)
        return node_id

    def _ended(self, chain: _Chain) -> str:
        if not chain.steps:
            return chain.base
        if len(chain.steps) == 1:
            [step] = chain.steps
            kind = "filter" if isinstance(step, p.FilterSpec) else "map"
            node_id = self._id(kind)
            self._nodes.append(structs.replace(step, id=node_id, input=chain.base))
            self.words[node_id] = chain.words[0]
            return node_id
        node_id = self._id("fused")
        self.words[node_id] = ", ".join(
            f"{p.kind(type(step))} {said}"
            for step, said in zip(chain.steps, chain.words, strict=True)
        )
        steps = []
        previous = chain.base
        for number, step in enumerate(chain.steps, 1):
            step_id = f"{node_id}.{number}"
            steps.append(structs.replace(step, id=step_id, input=previous))
            previous = step_id
        self._nodes.append(p.FusedSpec(node_id, chain.base, tuple(steps), chain.steps[-1].schema))
        return node_id

    # -- sources

    def _feed(self, scans: list[lg.ScanNode], fields: tuple[TableColumn, ...]) -> str:
        """Add a feed of the columns ``fields`` of a view of Headrace; return the node's id."""
        table = scans[0].table
        tests = extraction.wanted(scans, self._lowering)
        self.pushed.extend(tests)
        places = {extraction.own(table, c.attnum): i for i, c in enumerate(table.columns)}
        feed = p.FeedSpec(
            self._id("feed"),
            tuple(Field(c.name, c.oid, c.typmod, c.collation) for c in table.columns),
            table.view,
            table.oid,
            extraction.pushdown(tests, places, self._lowering),
            tuple(self._expressions.native(e, places) for e in tests),
        )
        self.words[feed.id] = explain.fed(table, tests)
        self._size(feed.id, scans, table.columns, filtered=bool(tests))
        node_id = self._id("map")
        self.words[node_id] = f"[{', '.join(f.name for f in fields)}]"
        wanted = tuple(
            ir.Column(places[extraction.own(table, f.attnum)], f.oid, f.typmod, f.collation)
            for f in fields
        )
        schema = tuple(Field(f.name, f.oid, f.typmod, f.collation) for f in fields)
        self._nodes += [feed, p.MapSpec(node_id, feed.id, wanted, schema)]
        return node_id

    def _source(self, scans: list[lg.ScanNode]) -> None:
        table = scans[0].table
        needed = {f.attnum for s in scans for _, f in (*s.fields, *s.hidden)}
        fields = tuple(c for c in table.columns if c.attnum in needed)
        if table.view:
            self._sources[table.oid] = (self._feed(scans, fields), fields)
            return
        node_id = self._id("source")
        columns = tuple(source_column(f) for f in fields)
        key = tuple(source_column(table.column(number)) for number in table.key)
        for column in key:
            if not identifies(self._lowering.catalog, column.oid, column.collation):
                name = self._lowering.type_name(column.oid)
                raise UnsupportedError(
                    f'primary key of table "{table.name}" over type {name} is not supported'
                )
        tests: tuple[Expr, ...] = ()
        if table.full or not any(f.apart for f in fields):
            tests = extraction.wanted(scans, self._lowering)
        self.pushed.extend(tests)
        places = {extraction.own(table, f.attnum): i for i, f in enumerate(fields)}
        self.words[node_id] = explain.read(table, fields, tests)
        self._nodes.append(
            p.SourceSpec(
                id=node_id,
                table_oid=table.oid,
                schema_name=table.schema,
                table_name=table.name,
                columns=columns,
                key=key,
                full_identity=table.full,
                schema=tuple(Field(f.name, f.oid, f.typmod, f.collation) for f in fields),
                pushdown=extraction.pushdown(tests, places, self._lowering),
                wanted=tuple(self._expressions.native(e, places) for e in tests),
            )
        )
        self._sources[table.oid] = (node_id, fields)
        self._size(node_id, scans, fields, filtered=bool(tests))

    def _size(
        self,
        node_id: str,
        scans: list[lg.ScanNode],
        fields: tuple[TableColumn, ...],
        *,
        filtered: bool,
    ) -> None:
        """Record the expected size of a source or feed, if it is known."""
        if (known := table_size(scans[0].table, fields)) is not None:
            shown = [self._estimates.rows(s) or known.rows for s in scans]
            rows = min(known.rows, sum(shown)) if filtered else known.rows
            self.sizes[node_id] = replace(known, rows=rows)

    def _scan(self, node: lg.ScanNode) -> _Chain:
        source, fields = self._sources[node.table.oid]
        mine = {f.attnum: c for c, f in (*node.fields, *node.hidden)}
        # Columns of other scans of the table get ids that no expression can name.
        columns = tuple(
            mine.get(f.attnum, lg.Col(-f.attnum, f.name, f.oid, f.typmod, f.collation))
            for f in fields
        )
        chain = _Chain(source, columns, columns)
        self._filter(chain, node.predicates)
        self._map(chain, tuple((c, c.ref) for c, _ in node.fields))
        return chain

    # -- functions

    def _functions(self, node: lg.FunctionsNode) -> _Chain:
        chain = self._chain(node.input)
        below = self._close(chain)
        calls = tuple(c for c in node.calls if isinstance(c, Call))
        assert len(calls) == len(node.calls), "functions are never folded"
        self.sets.append(calls)
        order: list[Ref] = []
        sqls = tuple(self._lowering.sql(c, lambda ref: f"${place(order, ref)}") for c in calls)
        places = {c.id: i for i, c in enumerate(chain.columns)}
        new = node.columns[len(node.input.columns) :]
        columns = (*chain.columns, *new)
        node_id = self._said("functions", node)
        self._nodes.append(
            p.FlatMapSpec(
                node_id,
                below,
                sqls,
                tuple(places[ref.id] for ref in order),
                ordinality=node.ordinality is not None,
                outer=node.outer,
                trusted=all(trusted(c) for c in calls),
                schema=schema(columns),
            )
        )
        return _Chain(node_id, columns, columns)

    # -- recursion

    def _recursive(self, node: lg.RecursiveNode) -> _Chain:
        assert self._step is None, "a recursion in a step stands outside of it"
        base = self._close(self._chain(node.base))
        step, shape = recursion.step_of(self._lowering, node)
        work = p.WorkTableSpec(self._id("work_table"), schema(shape.columns))
        outside, self._nodes = self._nodes, [work]
        self._step = _Step(node.name, work.id, outside)
        self._close(self._chain(step))
        inner, outer = tuple(self._nodes), tuple(dict.fromkeys(self._step.outer))
        self._nodes, self._step = outside, None
        node_id = self._id("recursive")
        self._nodes.append(
            p.RecursiveSpec(
                node_id,
                base,
                outer,
                inner,
                node.distinct,
                self._iterations_max,
                schema(node.columns),
                self._rows_max,
            )
        )
        return _Chain(node_id, node.columns, node.columns)

    def _outside(self, node: lg.Node, step: _Step) -> _Chain:
        """Build ``node``, which is the same for every iteration, as an input of the step."""
        inner, self._nodes = self._nodes, step.outside
        self._step = None
        chain = self._chain(node)
        last = self._close(chain)
        self._nodes, self._step = inner, step
        step.outer.append(last)
        return _Chain(last, chain.columns, chain.columns)

    # -- join

    def _join(self, node: lg.JoinNode) -> _Chain:
        sides = (self._chain(node.left), self._chain(node.right))
        keys, residual = join_keys(self._lowering, node)
        found = join_comparison(self._lowering, node, residual)
        tests = [] if found is None else [found]
        lefts = [*(key.left for key in keys), *(test.left for test in tests)]
        rights = [*(key.right for key in keys), *(test.right for test in tests)]
        left_keys = self._key_columns(sides[0], lefts)
        right_keys = self._key_columns(sides[1], rights)
        compared = None
        if found is not None:
            compared = p.Comparison(left_keys[-1], found.operator, right_keys[-1])
            left_keys, right_keys, residual = left_keys[:-1], right_keys[:-1], []
        left, right = (self._close(chain) for chain in sides)
        both = sides[0].columns + sides[1].columns
        columns = sides[0].columns if node.kind in lg.LEFT_ONLY else both
        node_id = self._said("join", node)
        safe = tuple(key.null_safe for key in keys)
        self._nodes.append(
            p.JoinSpec(
                node_id,
                left,
                right,
                left_keys,
                right_keys,
                residual=tuple(self._expressions.over(e, both) for e in residual),
                schema=schema(columns),
                op=node.kind,
                null_safe=safe if any(safe) else (),
                compared=compared,
            )
        )
        chain = _Chain(node_id, columns, columns)
        if [c.id for c in columns] != [c.id for c in node.columns]:
            self._map(chain, tuple((c, c.ref) for c in node.columns))
        return chain

    def _key_columns(self, chain: _Chain, exprs: list[Expr]) -> tuple[int, ...]:
        """Return positions of ``exprs`` in the output of ``chain``, computed there if need be."""
        places = {c.id: i for i, c in enumerate(chain.columns)}
        items: list[tuple[lg.Col, Expr]] = [(c, c.ref) for c in chain.columns]
        computed: dict[Expr, int] = {}
        positions = []
        for expr in exprs:
            if isinstance(expr, Ref):
                positions.append(places[expr.id])
                continue
            if expr not in computed:
                computed[expr] = len(items)
                items.append((key_column(len(items), expr), expr))
            positions.append(computed[expr])
        if computed:
            self._map(chain, tuple(items))
        return tuple(positions)

    # -- order

    def _topk(self, node: lg.TopKNode) -> _Chain:
        chain = self._chain(node.input)
        places = {c.id: i for i, c in enumerate(chain.columns)}
        below = self._close(chain)
        node_id = self._said("topk", node)
        self._nodes.append(
            p.TopKSpec(
                node_id,
                below,
                tuple(places[key.id] for key in node.keys),
                self._sort_keys(node.order, places),
                node.limit,
                node.offset,
                node.ties,
                schema(chain.columns),
            )
        )
        return _Chain(node_id, chain.columns, chain.columns)

    def _window(self, node: lg.WindowNode) -> _Chain:
        chain = self._chain(node.input)
        places = {c.id: i for i, c in enumerate(chain.columns)}
        below = self._close(chain)
        columns = (*chain.columns, *(c.column for c in node.calls))
        calls = tuple(
            p.WindowCallSpec(
                c.sql,
                tuple(places[ref.id] for ref in c.args),
                field_of(c.column),
                c.trusted,
                _running(c, places),
                c.frame,
            )
            for c in node.calls
        )
        node_id = self._said("window", node)
        self._nodes.append(
            p.WindowSpec(
                node_id,
                below,
                tuple(places[key.id] for key in node.keys),
                self._sort_keys(node.order, places),
                calls,
                schema(columns),
            )
        )
        return _Chain(node_id, columns, columns)

    def _sort_keys(
        self, order: tuple[lg.OrderNode, ...], places: dict[int, int]
    ) -> tuple[p.SortKey, ...]:
        catalog = self._lowering.catalog
        return tuple(
            p.SortKey(
                places[item.column.id],
                item.operator,
                item.descending,
                item.nulls_first,
                item.operator in lg.PLAIN_ORDERS
                and order_native(
                    item.column.oid, bytewise=catalog.collations.bytewise(item.column.collation)
                ),
                item.operator in lg.PLAIN_ORDERS and self._lowering.plain_type(item.column.oid),
            )
            for item in order
        )

    # -- nodes that the plan contains once

    def _again(self, node: lg.AgainNode) -> _Chain:
        base, columns = self._named[node.number]
        chain = _Chain(base, columns, columns)
        inner = {c.id: c for c in columns}
        self._map(chain, tuple((c, inner[i].ref) for c, i in node.pairs))
        return chain

    # -- the clock

    def _temporal(self, node: lg.TemporalNode) -> _Chain:
        chain = self._chain(node.input)
        below = self._close(chain)
        tests = tuple(
            p.TimeTestSpec(
                self._expressions.over(x.test, (*chain.columns, self._expressions.clock)),
                self._expressions.over(x.key, chain.columns),
                self._expressions.of_clock(x.bound),
                x.key.oid,
                x.shift,
                x.ordered,
                x.ranged,
                x.slack,
                x.calendar,
            )
            for x in node.tests
        )
        node_id = self._said("temporal", node)
        # By what is there: pruned columns of a chain may be more than those of the node.
        columns = (*chain.columns, *(x.column for x in node.tests))
        self._nodes.append(p.TemporalSpec(node_id, below, tests, schema(columns)))
        return _Chain(node_id, columns, columns)

    def _calendar(self, node: lg.CalendarNode) -> _Chain:
        chain = self._chain(node.input)
        below = self._close(chain)
        values = tuple(self._expressions.of_clock(e) for _, e in node.values)
        node_id = self._said("calendar", node)
        columns = (*chain.columns, *(c for c, _ in node.values))
        self._nodes.append(p.CalendarSpec(node_id, below, values, schema(columns)))
        return _Chain(node_id, columns, columns)

    # -- reduce

    def _reduce(self, node: lg.AggregateNode) -> _Chain:
        chain = self._chain(node.input)
        wanted: dict[Expr, int] = {}
        for expr in _reduce_inputs(node):
            wanted.setdefault(expr, len(wanted))
        if wanted:
            items = tuple((key_column(place, expr), expr) for expr, place in wanted.items())
            self._map(chain, items)
        below = self._close(chain)
        keys = tuple(wanted[e] for _, e in node.keys)
        aggregates = tuple(
            p.AggregateSpec(
                function=a.function,
                argument=None if a.argument is None else wanted[a.argument],
                filter=None if a.filter is None else wanted[a.filter],
                result=field_of(a.column),
                sql=a.sql,
                distinct=a.distinct,
                more=tuple(wanted[e] for e in a.more),
                direct=a.direct,
                trusted=a.trusted,
                row=tuple(wanted[e] for e in alignment.whole_row(a, node.aggs)),
                shows_order=a.shows_order,
                delimiter=a.delimiter,
                order=tuple(
                    p.SortKey(
                        wanted[a.arguments[item.place]],
                        item.operator,
                        item.descending,
                        item.nulls_first,
                        native=True,
                    )
                    for item in a.order
                ),
            )
            for a in node.aggs
        )
        node_id = self._said("reduce", node)
        self._nodes.append(
            p.ReduceSpec(node_id, below, keys, aggregates, schema(node.columns), node.always)
        )
        return _Chain(node_id, node.columns, node.columns)

    def _expand(self, node: lg.ExpandNode) -> _Chain:
        chain = self._chain(node.input)
        places = {c.id: i for i, c in enumerate(chain.columns)}
        own = node.columns[len(node.input.columns) :]
        columns = chain.columns + own
        node_id = self._said("expand", node)
        below = self._close(chain)
        keys = tuple(places[ref.id] for _, ref in node.keys)
        sets = tuple(tuple(sorted(s)) for s in node.sets)
        self._nodes.append(p.ExpandSpec(node_id, below, keys, sets, schema(columns)))
        return _Chain(node_id, columns, columns)


def _running(call: lg.WindowCall, places: dict[int, int]) -> p.RunningSpec | None:
    spec = call.running
    if spec is None:
        return None
    columns = [places[ref.id] for ref in call.args]
    return structs.replace(
        spec,
        argument=None if spec.argument is None else columns[spec.argument],
        condition=None if spec.condition is None else columns[spec.condition],
    )


def _reduce_inputs(node: lg.AggregateNode) -> list[Expr]:
    exprs = [e for _, e in node.keys]
    exprs += [e for a in node.aggs for e in a.inputs]
    return exprs


def _schema_before(chain: _Chain) -> Schema:
    return chain.steps[-1].schema if chain.steps else schema(chain.base_columns)
