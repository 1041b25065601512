"""Text functions against Postgres: patterns, positions and lengths at random and at the edges."""

from __future__ import annotations

import itertools
import random
import re

import psycopg
import pyarrow as pa
import pytest

from headrace.expressions.evaluate import Program
from headrace.expressions.ir import Column, Literal, Native
from headrace.expressions.native import TypeRef, resolve
from headrace.kernels import copytext, strings, text
from headrace.planner.analyse.catalog import Catalog
from headrace.types import arrow_type
from tests.expressions.test_native import EDGES, check, conn, shown

__all__ = ["conn"]

BOOL, TEXT, INT4 = 16, 25, 23
TEXTS = [
    None, "", "a", "ab", "aab", "abab", "é", "aé", "éa", "€uro", "a€b€c", "𝄞", "x𝄞y", "%",
    "_", "\\", "a%b", "a_b", "a\\b", " a ", "  ", "a,b,,c", ",", "aaa", "long" * 30, "A\nb",
]  # fmt: skip
NUMBERS = [
    "0", "1", "-1", "2", "3", "-2", "-3", "5", "100", "-100", "2147483647",
    "-2147483648", None,
]  # fmt: skip
PATTERNS = [
    "", "%", "%%", "_", "__", "a%", "%a", "%a%", "a", "%é%", "_é", "%_", "_%", "a\\%b",
    "a\\_b", "\\\\", "a\\\\b", "%b%b", "%ab%ab%", "a_%b", "%€_", "\\a", "a%\nb", "%a\nb", "_%_",
    "%\\%%", "%uro", "long%long", "%gl%nglo%", "a%%b",
]  # fmt: skip


def literal(text):
    return Literal(text, TEXT)


def sql(text):
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'::text"


def type_of(arg):
    return TypeRef(arg.oid, literal=arg.text if isinstance(arg, Literal) else None)


def call(conn, name, expr, args, kinds, values):
    """Compare ``expr`` with the kernel over every combination of ``values``."""
    op = resolve(name, [type_of(a) for a in args])
    assert op is not None, name
    node = Native(op.name, tuple(args), op.oid)
    if op.may_raise:
        check(conn, expr, kinds, values, op, node)
    else:
        bulk(conn, expr, kinds, values, node)


def bulk(conn, expr, kinds, values, node):
    """Check as ``check`` of test_native, in one statement: no row may fail."""
    columns = [pa.array(c, pa.string()) for c in zip(*itertools.product(*values), strict=True)]
    arrays = ", ".join(f"%s::{kind}[]" for kind in kinds)
    names = ", ".join(f"a{i}" for i in range(1, len(kinds) + 1))
    sql_text = re.sub(r"\$(\d)", r"u.a\1", expr).replace("%", "%%")
    rows = conn.execute(
        f"SELECT ({sql_text})::text FROM unnest({arrays}) WITH ORDINALITY u({names}, o) ORDER BY o",
        [copytext.array_literal(c) for c in columns],
    ).fetchall()
    typed = [text.parse(c, EDGES[kind][0]) for c, kind in zip(columns, kinds, strict=True)]
    out = Program([node], None).run(typed, len(rows))[0]
    assert out.type == arrow_type(node.oid)
    mine = text.render(out, node.oid).to_pylist()
    for i, (got, (theirs,)) in enumerate(zip(mine, rows, strict=True)):
        where = (expr, [c[i].as_py() for c in columns])
        assert shown(got, node.oid) == shown(theirs, node.oid), where


@pytest.mark.parametrize("kind", ["text", "varchar", "bpchar"])
def test_like_equals_postgres(conn, kind):
    oid = {"text": 25, "varchar": 1043, "bpchar": 1042}[kind]
    for pattern in PATTERNS:
        args = [Column(0, oid), literal(pattern)]
        call(conn, "~~", f"$1 LIKE {sql(pattern)}", args, [kind], [TEXTS])
    call(conn, "!~~", "$1 NOT LIKE 'a%'", [Column(0, oid), literal("a%")], [kind], [TEXTS])


def test_random_patterns_equal_postgres(conn):
    rng = random.Random(7)
    texts = ["".join(rng.choices("aab€é%\\", k=rng.randrange(9))) for _ in range(400)]
    patterns = set()
    while len(patterns) < 150:
        pattern = "".join(rng.choices("aab€é%%__\\", k=rng.randrange(8)))
        if strings.compile_like(pattern) is not None:
            patterns.add(pattern)
    column = pa.array(texts, pa.string())
    for pattern in sorted(patterns):
        node = Native("~~", (Column(0, TEXT), literal(pattern)), BOOL)
        got = Program([node], None).run([column], len(texts))[0].to_pylist()
        rows = conn.execute(
            "SELECT s LIKE %s FROM unnest(%s::text[]) WITH ORDINALITY u(s, o) ORDER BY o",
            [pattern, copytext.array_literal(column)],
        ).fetchall()
        assert got == [r[0] for r in rows], pattern


def test_a_pattern_that_is_no_constant_or_is_cut_off_is_left_to_postgres():
    assert resolve("~~", [TypeRef(TEXT), TypeRef(TEXT)]) is None
    assert resolve("~~", [TypeRef(TEXT), TypeRef(TEXT, literal="a\\")]) is None
    loose = TypeRef(TEXT, bytewise=False, deterministic=False)
    assert resolve("~~", [loose, TypeRef(TEXT, literal="a")]) is None
    assert resolve("strpos", [loose, loose]) is None


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "WIN1252", "UTF8"])
def test_a_database_that_counts_in_another_way_computes_texts_itself(postgres, encoding):
    with psycopg.connect(postgres, autocommit=True) as conn:
        conn.execute("DROP DATABASE IF EXISTS other_encoding")
        conn.execute(
            f"CREATE DATABASE other_encoding ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
        )
    try:
        with psycopg.connect(postgres, dbname="other_encoding", client_encoding="UTF8") as conn:
            texts = Catalog(conn).type_refs([(TEXT, -1, None), (TEXT, -1, "a_")], 950)
    finally:
        with psycopg.connect(postgres, autocommit=True) as conn:
            conn.execute("DROP DATABASE other_encoding")
    ours = encoding == "UTF8"
    for name, args in {"length": texts[:1], "octet_length": texts[:1], "~~": texts}.items():
        assert (resolve(name, args) is not None) == ours
    assert resolve("=", texts) is not None
    # WIN1252 has the euro before "¡", UTF-8 after it.
    assert (resolve("<", texts) is not None) == (encoding != "WIN1252")


def test_substring_equals_postgres(conn):
    s, a, b = Column(0, TEXT), Column(1, INT4), Column(2, INT4)
    kinds = ["text", "int4", "int4"]
    call(conn, "substr", "substr($1, $2)", [s, a], kinds[:2], [TEXTS, NUMBERS])
    for size in ("0", "2", "2147483647", None):
        call(
            *(conn, "substring", f"substring($1, $2, {size or 'NULL'})"),
            *([s, a, Literal(size, INT4)], kinds[:2], [TEXTS, NUMBERS]),
        )
    few = [["a€b", "", None], ["0", "1", "-2147483648", "2147483647", None], NUMBERS[:6]]
    call(conn, "substring", "substring($1, $2, $3)", [s, a, b], kinds, few)


def test_may_raise_knows_a_length_that_is_not_negative():
    args = [TypeRef(TEXT), TypeRef(INT4), TypeRef(INT4, literal="3")]
    assert not resolve("substring", args).may_raise
    assert resolve("substring", [*args[:2], TypeRef(INT4)]).may_raise
    assert resolve(
        "split_part", [TypeRef(TEXT), TypeRef(TEXT, literal=","), TypeRef(INT4)]
    ).may_raise


@pytest.mark.parametrize("name", ["left", "right"])
def test_left_and_right_equal_postgres(conn, name):
    args = [Column(0, TEXT), Column(1, INT4)]
    call(conn, name, f'"{name}"($1, $2)', args, ["text", "int4"], [TEXTS, NUMBERS])


@pytest.mark.parametrize("name", ["strpos", "position"])
def test_strpos_equals_postgres(conn, name):
    args = [Column(0, TEXT), Column(1, TEXT)]
    expr = f'pg_catalog."{name}"($1, $2)'
    call(conn, name, expr, args, ["text", "text"], [TEXTS, TEXTS])


def test_functions_with_constants_equal_postgres(conn):
    s = Column(0, TEXT)
    for part in ("a", "€", ",", "aa", "ab", " ", "\\"):
        call(
            conn,
            "starts_with",
            f"starts_with($1, {sql(part)})",
            [s, literal(part)],
            ["text"],
            [TEXTS],
        )
        args = [s, literal(part), Column(1, INT4)]
        expr = f"split_part($1, {sql(part)}, $2)"
        call(conn, "split_part", expr, args, ["text", "int4"], [TEXTS, NUMBERS])
        for after in ("", "b", "€€", "\\1"):
            args = [s, literal(part), literal(after)]
            expr = f"replace($1, {sql(part)}, {sql(after)})"
            call(conn, "replace", expr, args, ["text"], [TEXTS])
    call(conn, "^@", "$1 ^@ ''", [s, literal("")], ["text"], [TEXTS])


@pytest.mark.parametrize("name", ["btrim", "ltrim", "rtrim"])
def test_trim_equals_postgres(conn, name):
    s = Column(0, TEXT)
    call(conn, name, f"{name}($1)", [s], ["text"], [TEXTS])
    for letters in (" ", "ab", "€a", "x\\", "%_"):
        expr = f"{name}($1, {sql(letters)})"
        call(conn, name, expr, [s, literal(letters)], ["text"], [TEXTS])


def test_numbers_about_a_text_equal_postgres(conn):
    for name in ("ascii", "octet_length"):
        call(conn, name, f"{name}($1)", [Column(0, TEXT)], ["text"], [TEXTS])


def test_concat_equals_postgres(conn):
    args = [Column(0, TEXT), Column(1, INT4), Literal("-", 705)]
    values = [TEXTS, NUMBERS]
    call(conn, "concat", "concat($1, $2, '-')", args, ["text", "int4"], values)
    args = [Column(0, 1042), Literal(None, 705), Column(1, 1043)]
    padded = [["a  ", "", None], TEXTS]
    call(conn, "concat", "concat($1, NULL, $2)", args, ["bpchar", "varchar"], padded)
