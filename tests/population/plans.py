"""Hand-made physical plans over a small shop, with their SQL."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from headrace.collections import plan as p
from headrace.expressions.ir import Column, Literal, Native
from headrace.types import BOOL, FLOAT8, INT4, INT8, NUMERIC, TEXT, Field

SCHEMA = """
CREATE TABLE customers (id int PRIMARY KEY, region text, note text);
CREATE TABLE orders (id int PRIMARY KEY, customer int, amount numeric(10,2), f float8);
CREATE TABLE tags (customer int, tag text);
ALTER TABLE tags REPLICA IDENTITY FULL;
"""


@dataclass(frozen=True)
class Case:
    sql: str
    plan: p.PhysicalPlan


def fill(conn: psycopg.Connection, orders: int = 500) -> None:
    conn.execute(
        "INSERT INTO customers SELECT i, CASE i %% 7 WHEN 0 THEN NULL ELSE 'r' || i %% 5 END,"
        " repeat(E'x\\t\\\\y\\n', i %% 3) FROM generate_series(1, %s) i",
        (max(orders // 10, 1),),
    )
    conn.execute(
        "INSERT INTO orders SELECT i, CASE i %% 11 WHEN 0 THEN NULL ELSE 1 + i %% %s END,"
        " (i %% 1000) / 10.0, CASE i %% 5 WHEN 0 THEN '-0'::float8 WHEN 1 THEN 'NaN'"
        " WHEN 2 THEN 0.1 ELSE i END::float8 FROM generate_series(1, %s) i",
        (max(orders // 8, 1), orders),
    )
    conn.execute(
        "INSERT INTO tags SELECT i %% 20, 't' || i %% 3 FROM generate_series(1, %s) i",
        (max(orders // 5, 1),),
    )


def oid(conn: psycopg.Connection, table: str) -> int:
    row = conn.execute("SELECT %s::regclass::oid::bigint", (table,)).fetchone()
    assert row is not None
    return int(row[0])


def source(
    conn: psycopg.Connection, table: str, columns: list[str], node: str = ""
) -> p.SourceSpec:
    rows = conn.execute(
        "SELECT attname, attnum, atttypid::bigint, atttypmod FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
        (table,),
    ).fetchall()
    known = {name: p.SourceColumn(num, name, kind, mod) for name, num, kind, mod in rows}
    full = conn.execute(
        "SELECT relreplident = 'f' FROM pg_class WHERE oid = %s::regclass", (table,)
    ).fetchone()[0]
    chosen = tuple(known[name] for name in columns)
    return p.SourceSpec(
        node or f"source_{table}",
        oid(conn, table),
        "public",
        table,
        chosen,
        () if full else (known["id"],),
        full,
        (),
        tuple(Field(c.name, c.oid, c.typmod) for c in chosen),
    )


def sink(node: p.Node) -> p.SinkSpec:
    return p.SinkSpec("sink", node.id, node.schema)


def copy(conn: psycopg.Connection) -> Case:
    s = source(conn, "customers", ["id", "region", "note"])
    return Case("SELECT id, region, note FROM customers", p.PhysicalPlan((s, sink(s))))


def multiset(conn: psycopg.Connection) -> Case:
    s = source(conn, "tags", ["tag", "customer"])
    return Case("SELECT tag, customer FROM tags", p.PhysicalPlan((s, sink(s))))


def filtered(conn: psycopg.Connection) -> Case:
    s = source(conn, "orders", ["id", "amount", "f"])
    big = Native(">", (Column(0, INT4), Literal("100", INT4)), BOOL)
    f = p.FusedSpec(
        "fused",
        s.id,
        (
            p.FilterSpec("f", s.id, (big,), s.schema),
            p.MapSpec(
                "m", "f", (Column(2, FLOAT8), Column(1, NUMERIC)), (s.schema[2], s.schema[1])
            ),
        ),
        (s.schema[2], s.schema[1]),
    )
    return Case("SELECT f, amount FROM orders WHERE id > 100", p.PhysicalPlan((s, f, sink(f))))


def joined(conn: psycopg.Connection) -> Case:
    o = source(conn, "orders", ["customer", "amount"])
    c = source(conn, "customers", ["id", "region"])
    j = p.JoinSpec("join", o.id, c.id, (0,), (0,), (), (*o.schema, *c.schema))
    r = p.ReduceSpec(
        "reduce",
        j.id,
        (3,),
        (
            p.AggregateSpec("count_star", None, None, Field("n", INT8)),
            p.AggregateSpec("sum", 1, None, Field("total", NUMERIC)),
        ),
        (c.schema[1], Field("n", INT8), Field("total", NUMERIC)),
    )
    return Case(
        "SELECT c.region, count(*) AS n, sum(o.amount) AS total FROM orders o"
        " JOIN customers c ON o.customer = c.id GROUP BY c.region",
        p.PhysicalPlan((o, c, j, r, sink(r))),
    )


def outer(conn: psycopg.Connection) -> Case:
    """Return a plan with NULL keys and unmatched rows on both sides, then semi and anti joins."""
    o = source(conn, "orders", ["customer", "amount"])
    c = source(conn, "customers", ["id", "region"])
    t = source(conn, "tags", ["customer", "tag"])
    both = (*o.schema, *c.schema)
    f = p.JoinSpec("full", o.id, c.id, (0,), (0,), (), both, "full")
    less = (Native("<", (Column(4, INT4), Column(2, INT4)), BOOL),)
    a = p.JoinSpec("anti", "full", t.id, (0,), (0,), less, both, "anti")
    s = p.JoinSpec("semi", "anti", o.id, (0,), (0,), (), both, "semi", (True,))
    return Case(
        "SELECT * FROM (SELECT o.customer, o.amount, c.id, c.region FROM orders o"
        " FULL JOIN customers c ON o.customer = c.id) x WHERE NOT EXISTS (SELECT 1 FROM tags t"
        " WHERE t.customer = x.customer AND t.customer < x.id) AND EXISTS (SELECT 1 FROM orders o"
        " WHERE o.customer IS NOT DISTINCT FROM x.customer)",
        p.PhysicalPlan((o, c, t, f, a, s, sink(s))),
    )


def self_join(conn: psycopg.Connection) -> Case:
    t = source(conn, "tags", ["customer", "tag"])
    j = p.JoinSpec("join", t.id, t.id, (0,), (0,), (), (*t.schema, *t.schema))
    d = p.DistinctSpec("distinct", j.id, j.schema)
    return Case(
        "SELECT DISTINCT a.customer, a.tag, b.customer, b.tag FROM tags a"
        " JOIN tags b ON a.customer = b.customer",
        p.PhysicalPlan((t, j, d, sink(d))),
    )


def total(conn: psycopg.Connection) -> Case:
    o = source(conn, "orders", ["amount"])
    schema = (Field("n", INT8), Field("total", NUMERIC))
    r = p.ReduceSpec(
        "reduce",
        o.id,
        (),
        (
            p.AggregateSpec("count_star", None, None, schema[0]),
            p.AggregateSpec("sum", 0, None, schema[1]),
        ),
        schema,
    )
    return Case("SELECT count(*), sum(amount) FROM orders", p.PhysicalPlan((o, r, sink(r))))


def together(conn: psycopg.Connection) -> Case:
    """Return a plan with aggregates over common rows, and over the first of them."""
    o = source(conn, "orders", ["customer", "amount", "f"])
    row, names = (1, 2), ("amounts", "fs", "first")
    kinds = (1231, 1022, FLOAT8)
    fields = tuple(Field(n, oid) for n, oid in zip(names, kinds, strict=True))
    made = [
        p.AggregateSpec("remote", 1, None, fields[0], "array_agg($1)", row=row),
        p.AggregateSpec("remote", 2, None, fields[1], "array_agg($1)", row=row),
        p.AggregateSpec("any", 2, None, fields[2], row=row),
    ]
    schema = (o.schema[0], *fields)
    r = p.ReduceSpec("reduce", o.id, (0,), tuple(made), schema)
    return Case(
        "SELECT customer, array_agg(amount), array_agg(f), max(f) FROM orders GROUP BY customer",
        p.PhysicalPlan((o, r, sink(r))),
    )


def cross(conn: psycopg.Connection) -> Case:
    c = source(conn, "customers", ["region"])
    v = p.ValuesSpec("values", (("1", "x"), ("2", None)), (Field("a", INT4), Field("b", TEXT)))
    j = p.JoinSpec("join", c.id, v.id, (), (), (), (*c.schema, *v.schema))
    return Case(
        "SELECT region, a, b FROM customers, (VALUES (1, 'x'), (2, NULL)) v(a, b)",
        p.PhysicalPlan((c, v, j, sink(j))),
    )


def threshold(conn: psycopg.Connection) -> Case:
    """Return a plan of outer, semi and anti joins: with a total, and by comparisons."""
    o = source(conn, "orders", ["customer", "amount"])
    t = source(conn, "tags", ["customer", "tag"])
    c = source(conn, "customers", ["id"])
    n = Field("n", INT8)
    r = p.ReduceSpec("reduce", c.id, (), (p.AggregateSpec("count_star", None, None, n),), (n,))
    more = (Native(">", (Column(0, INT4), Column(2, INT8)), BOOL),)
    left = p.JoinSpec("left", o.id, r.id, (), (), more, (*o.schema, n), "left")
    less = (Native("<", (Column(0, INT4), Column(3, INT4)), BOOL),)
    a = p.JoinSpec("anti", "left", t.id, (), (), less, left.schema, "anti")
    s = p.JoinSpec("semi", "anti", t.id, (), (), (), left.schema, "semi")
    f = p.JoinSpec("full", "semi", r.id, (), (), (), (*left.schema, n), "full")
    return Case(
        "WITH r AS (SELECT count(*) AS n FROM customers) SELECT * FROM (SELECT x.* FROM"
        " (SELECT customer, amount, n FROM orders LEFT JOIN r ON customer > n) x"
        " WHERE NOT EXISTS (SELECT 1 FROM tags t WHERE x.customer < t.customer)"
        " AND EXISTS (SELECT 1 FROM tags)) y FULL JOIN r ON true",
        p.PhysicalPlan((o, t, c, r, left, a, s, f, sink(f))),
    )


def total_first(conn: psycopg.Connection) -> Case:
    """Return a plan that joins all rows with a total on the left, also as an outer join."""
    c = source(conn, "customers", ["id"])
    o = source(conn, "orders", ["customer", "amount"])
    n = Field("n", INT8)
    r = p.ReduceSpec("reduce", c.id, (), (p.AggregateSpec("count_star", None, None, n),), (n,))
    j = p.JoinSpec("join", r.id, o.id, (), (), (), (n, *o.schema))
    left = p.JoinSpec("left", r.id, j.id, (), (), (), (n, *j.schema), "left")
    return Case(
        "WITH r AS (SELECT count(*) AS n FROM customers) SELECT * FROM r LEFT JOIN"
        " (SELECT * FROM r, (SELECT customer, amount FROM orders) o) x ON true",
        p.PhysicalPlan((c, o, r, j, left, sink(left))),
    )


def union(conn: psycopg.Connection) -> Case:
    o = source(conn, "orders", ["customer"])
    c = source(conn, "customers", ["id"])
    u = p.UnionSpec("union", (o.id, c.id, o.id), o.schema)
    return Case(
        "SELECT customer FROM orders UNION ALL SELECT id FROM customers"
        " UNION ALL SELECT customer FROM orders",
        p.PhysicalPlan((o, c, u, sink(u))),
    )


def union_of_joins(conn: psycopg.Connection) -> Case:
    o = source(conn, "orders", ["customer", "id"])
    c = source(conn, "customers", ["id", "region"])
    out = (*o.schema, *c.schema)
    j = p.JoinSpec("join_1", o.id, c.id, (0,), (0,), (), out)
    k = p.JoinSpec("join_2", o.id, c.id, (1,), (0,), (), out)
    u = p.UnionSpec("union", (j.id, k.id), out)
    d = p.DistinctSpec("distinct", u.id, out)
    return Case(
        "SELECT o.customer, o.id, c.id, c.region FROM orders o JOIN customers c"
        " ON o.customer = c.id UNION SELECT o.customer, o.id, c.id, c.region"
        " FROM orders o JOIN customers c ON o.id = c.id",
        p.PhysicalPlan((o, c, j, k, u, d, sink(d))),
    )


CASES = [
    copy, multiset, filtered, joined, outer, self_join, total, together, cross, threshold, total_first,
    union, union_of_joins,
]  # fmt: skip
