"""Other dialects: each translated construct gives its own dialect's answer."""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict

import psycopg
import pytest
from sqlglot import exp

from headrace.reading import DIALECTS
from headrace.reading.dialects import RULES, translated
from headrace.reading.trees import Unsaid, parsed
from tests.reading.answers import ANSWERS, KNOWN, REFUSED, written

COLUMNS = {"known": {name: kind for name, (kind, _) in KNOWN.items()}}
NULLS = re.compile(r"\b\w*nul\b|\bNULL\b", re.IGNORECASE)
FORMS = {
    "negative": re.compile(r"\b\w*neg\b|-\d|\bd2, d\b|\bd, d2\b|INTERVAL -"),
    "zero": re.compile(r"\b\w*zero\b|\b0\b"),
    "empty": re.compile(r"\bempty\b"),
}
UNFORMED = (
    *(exp.Literal, exp.Null, exp.Boolean, exp.Pi, exp.Grouping, exp.Exists, exp.Any, exp.All),
    *(exp.TryCast, exp.TsOrDsToDate, exp.TimeStrToTime, exp.DateFromParts, exp.Filter),
)
"""Constructs without arguments, or with tests elsewhere."""
SIGNLESS = (
    *(exp.Year, exp.Month, exp.Day, exp.Quarter, exp.Extract, exp.LogicalAnd, exp.LogicalOr),
    *(exp.DateTrunc, exp.TimestampTrunc, exp.DatetimeTrunc, exp.CumeDist, exp.Ntile, exp.Ln),
    exp.WithinGroup,
)
"""Constructs whose arguments are no texts, and have no sign or none that affects the answer."""


def queries():
    return [
        (dialect, answer, f"SELECT {written(answer, dialect)} AS x FROM known {answer.clause}")
        for answer in ANSWERS
        for dialect in answer.dialects.split()
    ]


@pytest.fixture
def known(database):
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("SET timezone TO 'UTC'")
        columns = ", ".join(f"{name} {kind}" for name, (kind, _) in KNOWN.items())
        conn.execute(f"CREATE TEMP TABLE known ({columns})")
        marks = ", ".join(["%s"] * len(KNOWN))
        values = [value for _, value in KNOWN.values()]
        conn.execute(f"INSERT INTO known VALUES ({marks})", values)
        yield conn


def same(found, value):
    if found is None or value is None:
        return found is value
    try:
        return found == value or float(found) == float(value)
    except ValueError:
        return False


def test_known_answers(known):
    wrong = []
    for dialect, answer, query in queries():
        try:
            text = translated(query, dialect, COLUMNS)
        except Unsaid as refused:
            if answer.value != REFUSED:
                wrong.append((dialect, query, answer.value, refused.message))
            continue
        if answer.value == REFUSED:
            wrong.append((dialect, query, REFUSED, text))
            continue
        [(found,)] = known.execute(f"SELECT x::text FROM ({text}) q").fetchall()
        if not same(found, answer.value):
            wrong.append((dialect, query, answer.value, found))
    assert not wrong, "\n".join(map(str, wrong))


def test_known_answers_are_those_of_sqlite():
    """SQLite is the one dialect whose database is available."""
    conn = sqlite3.connect(":memory:")
    conn.execute(f"CREATE TABLE known ({', '.join(KNOWN)})")
    kinds = {"int4": int, "int8": int, "float8": float, "numeric": float}
    values = [None if v is None else kinds.get(k, str)(v) for k, v in KNOWN.values()]
    conn.execute(f"INSERT INTO known VALUES ({', '.join('?' * len(KNOWN))})", values)
    asked = [(a, q) for d, a, q in queries() if d == "sqlite" and a.value != REFUSED]
    assert len(asked) > 80
    for answer, query in asked:
        [(found,)] = conn.execute(query).fetchall()
        found = None if found is None else str(found)
        assert same(found, answer.value), (query, found, answer.value)


def test_each_construct_has_known_answers_of_each_form():
    """NULL in every dialect; negative, zero and empty arguments in at least one, by type."""
    seen = defaultdict(set)
    texts = defaultdict(set)
    for dialect, answer, query in queries():
        if answer.value == REFUSED:
            continue
        for node in parsed(query, dialect).walk():
            kind = exp.Cast if isinstance(node, exp.TryCast) else type(node)
            seen[kind, dialect].add(bool(NULLS.search(query)))
            texts[kind].add(query)
    missing = []
    for node, rule in RULES.items():
        if node in UNFORMED:
            continue
        missing += [
            (node.__name__, dialect, "NULL")
            for dialect in rule.dialects
            if seen[node, dialect] and True not in seen[node, dialect]
        ]
        every = " ".join(texts[node])
        if node not in SIGNLESS and not any(pattern.search(every) for pattern in FORMS.values()):
            missing.append((node.__name__, "negative, zero or empty"))
    assert not missing, "\n".join(map(str, missing))


def test_answered_dialects():
    """Each dialect has more than 60 answers that are not refusals."""
    counted = {dialect: 0 for dialect in DIALECTS}
    for dialect, answer, _ in queries():
        counted[dialect] += answer.value != REFUSED
    assert min(counted.values()) > 60, counted


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_order_has_its_nulls(known, dialect):
    """The position of NULL in an order, by default and with DESC."""
    large = dialect in ("oracle", "redshift", "snowflake")
    last = dialect in ("duckdb", "trino")
    known.execute("CREATE TEMP TABLE ordered (v int); INSERT INTO ordered VALUES (1), (NULL), (2)")
    columns = {"ordered": {"v": "int4"}}
    for word, numbers in (("", [1, 2]), (" DESC", [2, 1])):
        text = translated(f"SELECT v FROM ordered ORDER BY v{word}", dialect, columns)
        found = [v for (v,) in known.execute(text).fetchall()]
        behind = last or large == (word == "")
        assert found == ([*numbers, None] if behind else [None, *numbers]), (dialect, word)


def test_types_come_through_queries_inside():
    """The types of a WITH query, a subquery with other names, a union, and a set of tables."""
    columns = {"t": {"a": "int4", "n": "numeric", "s": "text"}, "u": {"a": "int4", "b": "int8"}}
    for query in (
        "WITH c AS (SELECT a AS x FROM t) SELECT x / 2 AS y FROM c",
        "WITH c(x) AS (SELECT a FROM t) SELECT x / 2 AS y FROM c",
        "SELECT q.x / 2 AS y FROM (SELECT a + 1 AS x FROM t) q",
        "SELECT x / 2 AS y FROM (SELECT a AS x FROM t UNION ALL SELECT b FROM u) q",
        "SELECT b / 2 AS y FROM t JOIN u ON u.a = t.a",
        "SELECT SUM(t.a) / COUNT(*) AS y FROM t",
        "SELECT CASE WHEN s = 'x' THEN a END / 2 AS y FROM t",
    ):
        assert " / 2" in translated(query, "tsql", columns) or "COUNT(*)" in query
    for query in (
        "SELECT x / 2 AS y FROM (SELECT a AS x FROM t UNION ALL SELECT n FROM t) q",
        "SELECT x / 2 AS y FROM (SELECT * FROM t) q",
        "SELECT a / 2 AS y FROM t JOIN u ON u.b = t.a",
        "SELECT SUM(b) / 2 AS y FROM u",
        "SELECT v.a / 2 AS y FROM somewhere v",
        "SELECT x / 2 AS y FROM t AS v(x, m, z)",
    ):
        with pytest.raises(Unsaid, match="cannot be translated"):
            translated(query, "tsql", columns)
