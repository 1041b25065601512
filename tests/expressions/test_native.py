"""Every native operator against Postgres, over edge values of every type it accepts."""

from __future__ import annotations

import itertools

import psycopg
import pyarrow as pa
import pytest

from headrace.errors import RowError
from headrace.expressions.conditional import may_raise
from headrace.expressions.evaluate import Program
from headrace.expressions.ir import Column, Literal, Native
from headrace.expressions.native import TypeRef, resolve, resolve_cast
from headrace.kernels import text
from headrace.postgres.settings import PINNED_SETTINGS
from headrace.types import BOOL, arrow_type

EDGES: dict[str, tuple[int, list[str]]] = {
    "bool": (16, ["t", "f"]),
    "int2": (21, ["0", "1", "-1", "7", "-7", "32767", "-32768"]),
    "int4": (23, ["0", "1", "-1", "3", "-10", "2147483647", "-2147483648"]),
    "int8": (
        20,
        ["0", "1", "-1", "-3", "10", "9223372036854775807", "-9223372036854775808"],
    ),
    "oid": (26, ["0", "1", "4294967295"]),
    "float4": (
        700,
        ["0", "-0", "1.5", "-2.25", "3.4028235e+38", "1e-45", "NaN", "Infinity", "-Infinity"],
    ),
    "float8": (
        701,
        ["0", "-0", "0.1", "-3", "1.7976931348623157e+308", "5e-324", "NaN", "Infinity",
         "-Infinity"],
    ),
    "numeric": (
        1700,
        ["0", "0.00", "1", "1.0", "-1.50", "0.0001", "99999999999999999999.999", "0.00000000000000000001",
         "123456789012345678", "NaN", "Infinity", "-Infinity", "10000", "-9999.99999"],
    ),
    "text": (25, ["", "a", "ab", "B", "é", "Z ", "z"]),
    "varchar": (1043, ["", "a", "ab ", "B"]),
    "bpchar": (1042, ["", "a", "a  ", "B", "a\t"]),
    "date": (1082, ["2000-01-01", "infinity", "-infinity", "5874897-12-31", "4714-11-24 BC",
                    "1999-12-31"]),
    "time": (1083, ["00:00:00", "24:00:00", "12:34:56.789"]),
    "timestamp": (
        1114,
        ["2000-01-01 00:00:00", "infinity", "-infinity", "1999-12-31 23:59:59.999999",
         "4714-11-24 00:00:00 BC", "294276-12-31 23:59:59.999999"],
    ),
    "timestamptz": (1184, ["2000-01-01 00:00:00+00", "infinity", "-infinity"]),
    "uuid": (
        2950,
        ["00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
         "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    ),
    "bytea": (17, ["\\x", "\\x00", "\\x00ff", "\\x01", "\\xff"]),
    "jsonb": (3802, ["{}", "1"]),
}  # fmt: skip

COMPARISONS = ["=", "<>", "<", "<=", ">", ">="]
BINARY = {
    **{op: f"$1 {op} $2" for op in [*COMPARISONS, "+", "-", "*", "/", "%", "||"]},
    "is_distinct_from": "$1 IS DISTINCT FROM $2",
    "is_not_distinct_from": "$1 IS NOT DISTINCT FROM $2",
    "nullif": "NULLIF($1, $2)",
    "coalesce": "COALESCE($1, $2)",
    "and": "$1 AND $2",
    "or": "$1 OR $2",
    "mod": "mod($1, $2)",
    "greatest": "GREATEST($1, $2)",
    "least": "LEAST($1, $2)",
}
UNARY = {
    "-": "- $1", "+": "+ $1", "abs": "abs($1)", "not": "NOT $1", "is_null": "$1 IS NULL",
    "is_not_null": "$1 IS NOT NULL", "is_true": "$1 IS TRUE", "is_false": "$1 IS FALSE",
    "is_not_true": "$1 IS NOT TRUE", "is_not_false": "$1 IS NOT FALSE",
    "is_unknown": "$1 IS UNKNOWN", "is_not_unknown": "$1 IS NOT UNKNOWN",
    "length": "length($1)",
}  # fmt: skip

EVALUATE = """
CREATE FUNCTION pg_temp.ev(expr text, types text, args text[]) RETURNS SETOF text
LANGUAGE plpgsql AS $f$
DECLARE i int; out text; detail text;
BEGIN
  EXECUTE format('PREPARE ev_q(%s) AS SELECT (x)::text || '' '' || pg_typeof(x)'
                 ' FROM (SELECT %s AS x OFFSET 0) q', types, expr);
  FOR i IN 1 .. array_length(args, 1) LOOP
    BEGIN
      EXECUTE format('EXECUTE ev_q(%s)', args[i]) INTO out;
      RETURN NEXT out;
    EXCEPTION WHEN OTHERS THEN
      GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
      RETURN NEXT concat_ws(' ', 'ERROR', SQLSTATE, SQLERRM, nullif(detail, ''));
    END;
  END LOOP;
  DEALLOCATE ev_q;
END $f$
"""


@pytest.fixture(scope="module")
def conn(postgres):
    with psycopg.connect(postgres, autocommit=True) as conn:
        for name, value in PINNED_SETTINGS.items():
            conn.execute("SELECT set_config(%s, %s, false)", (name, value))
        conn.execute(EVALUATE)
        yield conn


def quoted(value):
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"


def ask(conn, expr, names, tuples):
    # "C" so that order is bytewise; types by name keep bpchar without a length.
    types = ", ".join(names)
    args = [", ".join(map(quoted, t)) for t in tuples]
    if any(n in ("text", "varchar", "bpchar") for n in names) and expr[3:-2].strip() in (
        "<", "<=", ">", ">=",
    ):  # fmt: skip
        expr = expr.replace("$1", '($1 COLLATE "C")')
    rows = conn.execute("SELECT * FROM pg_temp.ev(%s, %s, %s)", (expr, types, args))
    return [r[0] for r in rows.fetchall()]


def compute(program, columns, result_oid):
    """Return text per row, or Postgres' error text; a failing row affects no other row."""
    n = len(columns[0])
    try:
        out = program.run(columns, n)[0]
        assert out.type == arrow_type(result_oid)
        return text.render(out, result_oid).to_pylist()
    except RowError as error:
        if n == 1:
            words = ("ERROR", error.code, error.message, error.detail)
            return [" ".join(filter(None, words))]
        row = error.row
        # A later row may fail for another reason before an earlier one does.
        return (
            (compute(program, [c[:row] for c in columns], result_oid) if row else [])
            + [one(program, columns, row, result_oid)]
            + (compute(program, [c[row + 1 :] for c in columns], result_oid) if row + 1 < n else [])
        )


def one(program, columns, row, oid):
    (out,) = compute(program, [c[row : row + 1] for c in columns], oid)
    assert out.startswith("ERROR"), "the named row is the failing one"
    return out


def check(conn, expr, names, values, op, node=None):
    oids = [EDGES[n][0] for n in names]
    native = node or Native(op.name, tuple(Column(i, o) for i, o in enumerate(oids)), op.oid)
    tuples = list(itertools.product(*values))
    columns = [
        text.parse(pa.array([t[i] for t in tuples], pa.string()), oid) for i, oid in enumerate(oids)
    ]
    got = compute(Program([native], None), columns, op.oid)
    expected = ask(conn, expr, names, tuples)
    type_name = conn.execute("SELECT format_type(%s, NULL)", (op.oid,)).fetchone()[0]
    for args, mine, theirs in zip(tuples, got, expected, strict=True):
        where = (expr, names, args)
        if theirs is None or theirs.startswith("ERROR"):
            assert mine == theirs, where
            assert mine is None or op.may_raise, where
            continue
        value, _, their_type = theirs.rpartition(f" {type_name}")
        assert their_type == "", where
        assert shown(mine, op.oid) == shown(value, op.oid), where


def shown(value, oid):
    if value is None:
        return None
    if oid == BOOL:
        return value[:1]
    if oid in (700, 701):  # Postgres writes the same value in another way
        return text.render(text.parse(pa.array([value], pa.string()), oid), oid)[0].as_py()
    return value.rstrip(" ") if oid == 1042 else value  # a cast to text cuts the blanks


def edges(name):
    return [*EDGES[name][1], None]


def test_enums_are_equal_as_their_labels_are(conn, monkeypatch):
    conn.execute("CREATE TYPE pg_temp.mood AS ENUM ('sad', 'ok', 'Sad', ' ok')")
    [(oid,)] = conn.execute("SELECT 'pg_temp.mood'::regtype::oid").fetchall()
    monkeypatch.setitem(EDGES, "pg_temp.mood", (oid, ["sad", "ok", "Sad", " ok"]))
    mood = TypeRef(oid, enum=True)
    values = [edges("pg_temp.mood")]
    for name in ("=", "<>", "is_distinct_from", "is_not_distinct_from", "nullif"):
        op = resolve(name, [mood, mood])
        assert op is not None and op.oid in (BOOL, oid)
        if op.oid == BOOL:
            check(conn, BINARY[name], ["pg_temp.mood"] * 2, values * 2, op)
    for target in ("text", "varchar"):
        op = resolve_cast(mood, TypeRef(EDGES[target][0]))
        node = Native("cast", (Column(0, oid),), EDGES[target][0])
        check(conn, f"$1::{target}", ["pg_temp.mood"], values, op, node)
        assert not may_raise(node)
    # An enum's order is not that of its labels.
    assert resolve("<", [mood, mood]) is None
    assert resolve("=", [mood, TypeRef(oid + 1, enum=True)]) is None


@pytest.mark.parametrize("name", BINARY)
def test_binary_operators_equal_postgres(conn, name):
    tried = 0
    for left, right in itertools.product(EDGES, repeat=2):
        op = resolve(name, [TypeRef(EDGES[left][0]), TypeRef(EDGES[right][0])])
        if op is None:
            continue
        tried += 1
        expr = BINARY[name]
        check(conn, expr, [left, right], [edges(left), edges(right)], op)
    assert tried


@pytest.mark.parametrize("name", UNARY)
def test_unary_operators_equal_postgres(conn, name):
    tried = 0
    for kind in EDGES:
        op = resolve(name, [TypeRef(EDGES[kind][0])])
        if op is not None:
            tried += 1
            check(conn, UNARY[name], [kind], [edges(kind)], op)
    assert tried


def test_casts_equal_postgres(conn):
    tried = 0
    for source, target in itertools.product(EDGES, repeat=2):
        left, right = EDGES[source][0], EDGES[target][0]
        op = resolve_cast(TypeRef(left), TypeRef(right))
        if op is not None:
            tried += 1
            check(conn, f"CAST($1 AS {target})", [source], [edges(source)], op)
    assert tried > 30


def test_case_equals_postgres(conn):
    for kind in ("text", "numeric", "int8", "jsonb", "float8"):
        oid = EDGES[kind][0]
        values = (Column(1, oid), Column(2, oid))
        op = resolve("case", [TypeRef(16), TypeRef(oid), TypeRef(oid)])
        check(
            conn,
            "CASE WHEN $1 THEN $2 ELSE $3 END",
            ["bool", kind, kind],
            [edges("bool"), edges(kind), edges(kind)],
            op,
            Native("case", (Column(0, 16), *values), op.oid),
        )
    op = resolve("case", [TypeRef(16), TypeRef(21), TypeRef(16), TypeRef(20), TypeRef(23)])
    node = Native(
        "case",
        (Column(0, 16), Column(1, 21), Column(2, 16), Column(3, 20), Literal("5", 23)),
        op.oid,
    )
    check(
        conn,
        "CASE WHEN $1 THEN $2 WHEN $3 THEN $4 ELSE 5 END",
        ["bool", "int2", "bool", "int8"],
        [edges("bool"), edges("int2"), edges("bool"), edges("int8")],
        op,
        node,
    )


def test_text_order_and_equality_need_the_right_collation():
    linguistic = TypeRef(25, bytewise=False)
    loose = TypeRef(25, bytewise=False, deterministic=False)
    assert resolve("=", [linguistic, linguistic])
    assert resolve("<", [linguistic, linguistic]) is None
    assert resolve("=", [loose, loose]) is None
    assert resolve("nullif", [loose, loose]) is None
    assert resolve("is_distinct_from", [loose, loose]) is None


def test_unknown_types_and_operators_are_left_to_postgres():
    assert resolve("=", [TypeRef(3802), TypeRef(3802)]) is None
    assert resolve("~", [TypeRef(25), TypeRef(25)]) is None
    assert resolve("=", [TypeRef(700), TypeRef(1700)]) is None
    assert resolve_cast(TypeRef(25), TypeRef(23)) is None
    assert resolve_cast(TypeRef(1700), TypeRef(1700, typmod=655366)) is None
