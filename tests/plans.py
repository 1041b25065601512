"""Small physical plans, written by hand, over the tables ``t1`` and ``t2`` of the tests."""

from __future__ import annotations

from headrace.collections import plan
from headrace.collections.plan import Node, PhysicalPlan
from headrace.expressions.ir import Column, Expr, Literal, Native
from headrace.types import BOOL, INT4, INT8, NUMERIC, TEXT, Field, Schema
from tests.streams import Table

COLUMNS = (("id", INT4), ("k", INT4), ("v", TEXT), ("n", NUMERIC))


def table(
    oid: int, *, keyed: bool = True, needed: tuple[int, ...] | None = None
) -> Table:
    """An empty table of ``COLUMNS`` whose key is ``id``."""
    return Table(oid, COLUMNS, (0,) if keyed else (), needed)


def finish(*nodes: Node) -> PhysicalPlan:
    """The nodes and a sink after the last one."""
    last = nodes[-1]
    return PhysicalPlan((*nodes, plan.Sink("sink", last.id, last.schema)))


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
) -> plan.Join:
    fields = (*left.schema, *right.schema)
    if op in ("semi", "anti"):
        fields = left.schema
    schema = tuple(Field(f"c{i}", f.oid) for i, f in enumerate(fields))
    return plan.Join(
        node_id,
        left.id,
        right.id,
        left_keys,
        right_keys,
        residual,
        schema,
        op,
        null_safe,
    )


def outer_joins(a: Node, b: Node) -> dict[str, plan.Join]:
    """Every kind of join that shows rows for having a partner or none, in several forms."""
    less = (native("<", col(0), col(4)),)
    fails = (
        native(
            "<>",
            native(
                "/", number(12), native("-", col(0), number(99), oid=INT4), oid=INT4
            ),
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
    return out


def project(node_id: str, source: Node, *places: int) -> plan.Map:
    schema: Schema = tuple(source.schema[i] for i in places)
    return plan.Map(
        node_id, source.id, tuple(col(i, source.schema[i].oid) for i in places), schema
    )


def distinct(node_id: str, source: Node) -> plan.Distinct:
    return plan.Distinct(node_id, source.id, source.schema)


def all_plans(one: Table, two: Table) -> dict[str, PhysicalPlan]:
    """Plans by name; together they use every collection."""
    a, b = one.source("a"), two.source("b")
    keep = plan.Filter(
        "keep",
        "a",
        (native(">", col(1), number(0)), native("<>", col(1), number(2))),
        a.schema,
    )
    double = plan.Map(
        "double",
        "keep",
        (native("+", col(0), col(1), oid=INT4), col(2, TEXT)),
        (Field("s", INT4), Field("v", TEXT)),
    )
    # Fails on rows that only a half-done transaction shows: k of b minus k of a is never 0.
    divide = plan.Fused(
        "divide",
        "ab",
        (
            plan.Filter("f", "ab", (native("<>", col(1), col(5)),), ()),
            plan.Map(
                "m",
                "f",
                (
                    native(
                        "/", number(12), native("-", col(1), col(5), oid=INT4), oid=INT4
                    ),
                ),
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
    dn, dv = (
        distinct("dn", project("pn", a, 3)),
        distinct("dv", project("pv", b, 2, 3)),
    )
    both = plan.Union(
        "both", ("pa", "pb", "pa"), (Field("v", TEXT), Field("n", NUMERIC))
    )
    ones = plan.Values("ones", (("1", "x"), ("1", "x"), (None, None)), double.schema)
    with_ones = plan.Union("with", ("ones", "double"), double.schema)
    total = plan.Reduce(
        "total",
        "a",
        (1,),
        (
            plan.Aggregate("count_star", None, None, Field("c", INT8)),
            plan.Aggregate("max", 0, None, Field("m", INT4)),
        ),
        (Field("k", INT4), Field("c", INT8), Field("m", INT4)),
    )
    both_sets = (Field("k2", INT4), Field("v2", TEXT), Field("set", INT4))
    sets = plan.Expand("sets", "a", (1, 2), ((0, 1), (1,), ()), a.schema + both_sets)
    per_set = plan.Reduce(
        "per set",
        "sets",
        (4, 5, 6),
        (
            plan.Aggregate("count_star", None, None, Field("c", INT8)),
            plan.Aggregate("sum", 0, None, Field("s", INT8)),
        ),
        (*both_sets, Field("c", INT8), Field("s", INT8)),
        always=((None, None, "2"),),
    )
    on_total = join("on_total", b, total, (1,), (0,))
    setops = [
        plan.SetOp("op", "pa", "pb", kind, every, both.schema)
        for kind in ("intersect", "except")
        for every in (False, True)
    ]
    up = plan.SortKey(3, "<", False, False, True)
    down = plan.SortKey(1, ">", True, True, True)
    top = plan.TopK("top", "a", (), (down, up), 2, 1, False, a.schema)
    tied = plan.TopK("tied", "a", (), (down,), 2, 0, True, a.schema)
    first = plan.TopK("first", "a", (1,), (up,), 1, 0, False, a.schema)
    behind = plan.TopK("behind", "a", (1,), (up,), None, 2, False, a.schema)
    links, hops = project("links", a, 1, 0), project("hops", b, 1, 0)
    pair = links.schema
    work = (*pair, Field(plan.ITERATION, INT4))
    reach = plan.Recursive(
        "reach",
        "links",
        ("hops",),
        (
            plan.WorkTable("work", work),
            plan.Join("onto", "work", "hops", (1,), (0,), (), (*work, *pair)),
            plan.Distinct("each", "onto", (*work, *pair)),
            plan.Map("next", "each", (col(0), col(4), col(2)), work),
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
        **{
            f"{op.op}{' all' if op.all else ''}": finish(a, b, pa_, pb_, op)
            for op in setops
        },
        "top": finish(a, top),
        "top with ties": finish(a, tied),
        "first per group": finish(a, first),
        "offset per group": finish(a, behind),
        "recursive": finish(a, b, links, hops, reach),
        "values": finish(ones, a, keep, double, with_ones),
        "grouping sets": finish(a, sets, per_set),
        "reduce": finish(a, b, total, on_total),
    }
