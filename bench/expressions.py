"""expressions: the cost of a row in Headrace's kernels, and in batches to Postgres and back."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import ClassVar

import pyarrow as pa

from bench.scenario import Figures, Options, Scenario
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.expressions.evaluate import Program
from headrace.expressions.ir import Column, Expr, Literal, Native, Remote
from headrace.expressions.remote import RemoteEvaluator
from headrace.types import BOOL, DATE, INT4, INTERVAL, NUMERIC, TEXT, TIMESTAMP

_WORDS = ("forest", "green", "special", "requests", "lace", "tomato", "ivory")
_TRIES = 3


def _text(text: str, oid: int = TEXT) -> Literal:
    return Literal(text, oid)


def _cases() -> Iterator[tuple[str, str, tuple[Expr, ...], int, int]]:
    """Yield SQL over $1, Headrace's operator, its arguments, and the types of $1 and the result."""
    s, d, ts, n = (Column(0, oid) for oid in (TEXT, DATE, TIMESTAMP, NUMERIC))
    pattern = "%special%requests%"
    yield f"$1 LIKE '{pattern}'", "~~", (s, _text(pattern)), TEXT, BOOL
    yield "$1 LIKE '%special%'", "~~", (s, _text("%special%")), TEXT, BOOL
    array = "{a,b,c,d,e,f,g,h}"
    yield f"$1 = ANY('{array}'::text[])", "= ANY", (s, _text(array, 1009)), TEXT, BOOL
    places = (_text("1", INT4), _text("2", INT4))
    yield "substring($1, 1, 2)", "substring", (s, *places), TEXT, TEXT
    yield "extract(year FROM $1)", "extract", (_text("year"), d), DATE, NUMERIC
    yield "extract(epoch FROM $1)", "extract", (_text("epoch"), ts), TIMESTAMP, NUMERIC
    month = (_text("month"), ts)
    yield "date_trunc('month', $1)", "date_trunc", month, TIMESTAMP, TIMESTAMP
    span = (ts, _text("1 mon", INTERVAL))
    yield "$1 + interval '1 mon'", "interval_+", span, TIMESTAMP, TIMESTAMP
    day = (ts, _text("YYYY-MM-DD"))
    yield "to_char($1, 'YYYY-MM-DD')", "to_char", day, TIMESTAMP, TEXT
    yield "round($1, 2)", "round", (n, _text("2", INT4)), NUMERIC, NUMERIC
    positive = Native(">", (n, _text("0", NUMERIC)), BOOL)
    for op in "*/":
        value = Native(op, (_text("100", NUMERIC), n), NUMERIC)
        case = (positive, value, _text("0", NUMERIC))
        sql = f"CASE WHEN $1 > 0 THEN 100 {op} $1 ELSE 0 END"
        yield sql, "case", case, NUMERIC, NUMERIC


def _column(oid: int, rows: int) -> pa.Array:
    rng = random.Random(oid)  # noqa: S311  not for secrets
    if oid == TEXT:
        texts = [" ".join(rng.choices(_WORDS, k=5)) + str(i) for i in range(rows)]
        return pa.array(texts, pa.string())
    if oid == NUMERIC:
        return pa.array([str(rng.randrange(10**7) / 1000) for _ in range(rows)])
    span = (-3000, 9000) if oid == DATE else (0, 8 * 10**14)
    kind = pa.int32() if oid == DATE else pa.int64()
    return pa.array([rng.randrange(*span) for _ in range(rows)], kind)


class Expressions(Scenario):
    """The same expression over one column of different values, natively and in Postgres."""

    name: ClassVar[str] = "expressions"
    about: ClassVar[str] = "us per row, our kernels beside Postgres in batches"
    rows_default: ClassVar[int] = 20_000

    def run(self, options: Options) -> list[Figures]:
        """Measure each expression, best of three; no value occurs twice."""
        rows = options.rows or self.rows_default
        lines: list[Figures] = []
        with EmbeddedPostgres(None, options.version, durable=False) as server:
            for sql, op, args, oid, result in _cases():
                column = _column(oid, rows)
                native = Program([Native(op, args, result)], None)
                remote = Remote(sql, (Column(0, oid),), result)
                ours = min(_seconds(native, column) for _ in range(_TRIES))
                theirs = min(_asked(server.dsn(), remote, column) for _ in range(_TRIES))
                lines.append(
                    {
                        "expression": sql,
                        "native us": round(ours / rows * 1e6, 3),
                        "remote us": round(theirs / rows * 1e6, 3),
                        "ratio": round(theirs / ours),
                    }
                )
        return lines


def _seconds(program: Program, column: pa.Array) -> float:
    begin = time.perf_counter()
    program.run([column], len(column))
    return time.perf_counter() - begin


def _asked(dsn: str, remote: Remote, column: pa.Array) -> float:
    """Return the seconds on a separate connection without cached results."""
    evaluator = RemoteEvaluator(dsn, {})
    program = Program([remote], evaluator)
    program.run([column[:1]], 1)
    seconds = _seconds(program, column)
    evaluator.close()
    return seconds
