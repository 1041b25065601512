"""Small physical plans, written by hand, over the tests' tables ``t1`` and ``t2``."""

from __future__ import annotations

from headrace.collections import plan
from headrace.collections.plan import Node, PhysicalPlan
from headrace.expressions.ir import Column, Expr, Literal, Native
from headrace.types import BOOL, INT4, INT8, NUMERIC, TEXT, Field, Schema
from tests.streams import Table

COLUMNS = (("id", INT4), ("k", INT4), ("v", TEXT), ("n", NUMERIC))


def table(oid: int, *, keyed: bool = True, needed: tuple[int, ...] | None = None) -> Table:
    """Return an empty table of ``COLUMNS`` whose key is ``id``."""
    return Table(oid, COLUMNS, (0,) if keyed else (), needed)


def finish(*nodes: Node) -> PhysicalPlan:
    """Return a plan of the nodes, with a sink after the last one."""
    last = nodes[-1]
    return PhysicalPlan((*nodes, plan.SinkSpec("sink", last.id, last.schema)))


def col(index: int, oid: int = INT4) -> Column:
    return Column(index, oid)


def native(op: str, *args: Expr, oid: int = BOOL) -> Native:
    return Native(op, args, oid)


def number(value: int) -> Literal:
    return Literal(str(value), INT4)


def join(
    node_id: str,
    left: Node,
    right: Node,
    left_keys: tuple[int, ...],
    right_keys: tuple[int, ...],
    residual: tuple[Expr, ...] = (),
    op: str = "inner",
    null_safe: tuple[bool, ...] = (),
    compared: plan.Comparison | None = None,
) -> plan.JoinSpec:
    fields = (*left.schema, *right.schema)
    if op in ("semi", "anti"):
        fields = left.schema
    schema = tuple(Field(f"c{i}", f.oid) for i, f in enumerate(fields))
    return plan.JoinSpec(
        node_id, left.id, right.id, left_keys, right_keys, residual, schema, op, null_safe, compared
    )


def outer_joins(a: Node, b: Node) -> dict[str, plan.JoinSpec]:
    """Return every kind of join that depends on whether a row has a match, in several forms."""
    less = (native("<", col(0), col(4)),)
    fails = (
        native(
            "<>",
            native("/", number(12), native("-", col(0), number(99), oid=INT4), oid=INT4),
            col(4),
        ),
    )
    out = {}
    for op in ("left", "full", "semi", "anti"):
        name = f"j_{op}"
        out[op] = join(name, a, b, (1,), (1,), (), op)
        out[f"{op} null-safe"] = join(name, a, b, (2, 1), (2, 1), (), op, (True, False))
        out[f"{op} failing residual"] = join(name, a, b, (1,), (1,), fails, op)
        if op in ("full", "semi"):
            out[f"{op} numeric"] = join(name, a, b, (3, 1), (3, 1), (), op)
            out[f"{op} residual"] = join(name, a, b, (1,), (1,), less, op)
            out[f"{op} cross"] = join(name, a, b, (), (), (), op)
        else:
            out[f"{op} cross residual"] = join(name, a, b, (), (), less, op)
            out[f"{op} self"] = join(name, a, a, (1,), (0,), (), op)
    for turn, operator in enumerate(("<", "<=", ">", ">=")):
        for op in ("semi", "anti"):
            place, keys = (0, 3, 0)[turn % 3], ((1,), (), (2, 1))[turn % 3]
            safe = (True, False)[: len(keys)] if len(keys) == 2 else ()
            compared = plan.Comparison(place, operator, place)
            out[f"{op} {operator}"] = join(f"j_{op}", a, b, keys, keys, (), op, safe, compared)
    return out


def project(node_id: str, source: Node, *places: int) -> plan.MapSpec:
    schema: Schema = tuple(source.schema[i] for i in places)
    return plan.MapSpec(
        node_id, source.id, tuple(col(i, source.schema[i].oid) for i in places), schema
    )


def distinct(node_id: str, source: Node) -> plan.DistinctSpec:
    return plan.DistinctSpec(node_id, source.id, source.schema)


def all_plans(one: Table, two: Table) -> dict[str, PhysicalPlan]:
    """Return plans by name; together they use every collection."""
    a, b = one.source("a"), two.source("b")
    keep = plan.FilterSpec(
        "keep", "a", (native(">", col(1), number(0)), native("<>", col(1), number(2))), a.schema
    )
    double = plan.MapSpec(
        "double",
        "keep",
        (native("+", col(0), col(1), oid=INT4), col(2, TEXT)),
        (Field("s", INT4), Field("v", TEXT)),
    )
    # Fails on rows that only a half-done transaction shows: k of b minus k of a is never 0.
    divide = plan.FusedSpec(
        "divide",
        "ab",
        (
            plan.FilterSpec("f", "ab", (native("<>", col(1), col(5)),), ()),
            plan.MapSpec(
                "m",
                "f",
                (native("/", number(12), native("-", col(1), col(5), oid=INT4), oid=INT4),),
                (Field("q", INT4),),
            ),
        ),
        (Field("q", INT4),),
    )
    ab = join("ab", a, b, (0,), (0,))
    on_k = join("on_k", a, b, (1, 2), (1, 2))
    on_n = join("on_n", a, b, (3,), (3,), (native("<", col(0), col(4)),))
    itself = join("self", a, a, (1,), (1,))
    cross = join("cross", a, b, (), ())
    dn, dv = (distinct("dn", project("pn", a, 3)), distinct("dv", project("pv", b, 2, 3)))
    both = plan.UnionSpec("both", ("pa", "pb", "pa"), (Field("v", TEXT), Field("n", NUMERIC)))
    ones = plan.ValuesSpec("ones", (("1", "x"), ("1", "x"), (None, None)), double.schema)
    with_ones = plan.UnionSpec("with", ("ones", "double"), double.schema)
    total = plan.ReduceSpec(
        "total",
        "a",
        (1,),
        (
            plan.AggregateSpec("count_star", None, None, Field("c", INT8)),
            plan.AggregateSpec("max", 0, None, Field("m", INT4)),
        ),
        (Field("k", INT4), Field("c", INT8), Field("m", INT4)),
    )
    both_sets = (Field("k2", INT4), Field("v2", TEXT), Field("set", INT4))
    sets = plan.ExpandSpec("sets", "a", (1, 2), ((0, 1), (1,), ()), a.schema + both_sets)
    per_set = plan.ReduceSpec(
        "per set",
        "sets",
        (4, 5, 6),
        (
            plan.AggregateSpec("count_star", None, None, Field("c", INT8)),
            plan.AggregateSpec("sum", 0, None, Field("s", INT8)),
        ),
        (*both_sets, Field("c", INT8), Field("s", INT8)),
        always=((None, None, "2"),),
    )
    on_total = join("on_total", b, total, (1,), (0,))
    setops = [
        plan.SetOpSpec("op", "pa", "pb", kind, every, both.schema)
        for kind in ("intersect", "except")
        for every in (False, True)
    ]
    up = plan.SortKey(3, "<", False, False, True)
    down = plan.SortKey(1, ">", True, True, True)
    top = plan.TopKSpec("top", "a", (), (down, up), 2, 1, False, a.schema)
    tied = plan.TopKSpec("tied", "a", (), (down,), 2, 0, True, a.schema)
    first = plan.TopKSpec("first", "a", (1,), (up,), 1, 0, False, a.schema)
    behind = plan.TopKSpec("behind", "a", (1,), (up,), None, 2, False, a.schema)
    links, hops = project("links", a, 1, 0), project("hops", b, 1, 0)
    pair = links.schema
    work = (*pair, Field(plan.ITERATION, INT4))
    reach = plan.RecursiveSpec(
        "reach",
        "links",
        ("hops",),
        (
            plan.WorkTableSpec("work", work),
            plan.JoinSpec("onto", "work", "hops", (1,), (0,), (), (*work, *pair)),
            plan.DistinctSpec("each", "onto", (*work, *pair)),
            plan.MapSpec("next", "each", (col(0), col(4), col(2)), work),
        ),
        distinct=True,
        iterations_max=100,
        schema=pair,
    )
    pa_, pb_ = project("pa", a, 2, 3), project("pb", b, 2, 3)
    return {
        "source": finish(a),
        "filter map": finish(a, keep, double),
        "failing map": finish(a, b, ab, divide),
        "join": finish(a, b, on_k),
        "join residual": finish(a, b, on_n),
        "self-join": finish(a, itself),
        "cross": finish(a, b, cross),
        **{
            name: finish(*((a, made) if name.endswith("self") else (a, b, made)))
            for name, made in outer_joins(a, b).items()
        },
        "distinct": finish(a, project("pn", a, 3), dn),
        "distinct of two": finish(b, project("pv", b, 2, 3), dv),
        "union": finish(a, b, pa_, pb_, both),
        **{f"{op.op}{' all' if op.all else ''}": finish(a, b, pa_, pb_, op) for op in setops},
        "top": finish(a, top),
        "top with ties": finish(a, tied),
        "first per group": finish(a, first),
        "offset per group": finish(a, behind),
        "recursive": finish(a, b, links, hops, reach),
        "values": finish(ones, a, keep, double, with_ones),
        "grouping sets": finish(a, sets, per_set),
        "reduce": finish(a, b, total, on_total),
    }
