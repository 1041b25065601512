"""Expressions evaluated by Postgres: types, settings, errors, lost connections."""

from __future__ import annotations

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from headrace.errors import BugError, DefiniteFailure, RowError, TransientError, UnsupportedError
from headrace.expressions.evaluate import Program
from headrace.expressions.ir import Column, Literal, Native, Remote
from headrace.expressions.kernels import FailingRow
from headrace.expressions.placeholders import renumber
from headrace.expressions.remote import AggregateCall, RemoteEvaluator
from headrace.kernels import text
from headrace.types import Field

TEXT, INT4, INT8, NUMERIC, FLOAT8 = 25, 23, 20, 1700, 701
TIMESTAMP, TIMESTAMPTZ, DATE, INTERVAL = 1114, 1184, 1082, 1186
BOX, BOXES = 603, 1020


@pytest.fixture
def remote(postgres):
    evaluator = RemoteEvaluator(postgres, {})
    yield evaluator
    evaluator.close()


def field(oid, collation=0):
    return Field("", oid, -1, collation)


def column(values, oid):
    return text.parse(pa.array(values, pa.string()), oid)


def run(remote, sql, args, result, trusted=True):
    """Evaluate ``sql`` over ``args``, a list of (texts, oid), and return texts."""
    (out,) = remote.evaluate(
        [sql], [field(o) for _, o in args], [column(v, o) for v, o in args],
        [field(result)], trusted,
    )  # fmt: skip
    return text.render(out, result).to_pylist()


def test_results_keep_the_order_of_rows_and_their_repetitions(remote):
    args = [(["b", "a", None, "b", "a'\\{\","], TEXT)]
    assert run(remote, "upper($1)", args, TEXT) == ["B", "A", None, "B", "A'\\{\","]


@pytest.mark.parametrize(
    ("oid", "values"),
    [
        (16, ["t", "f", None]),
        (21, ["-32768", "5"]),
        (26, ["4294967295"]),
        (18, ["x", ""]),
        (700, ["1.5", "NaN", "-Infinity"]),
        (701, ["1e-300", "-0"]),
        (NUMERIC, ["1.50", "NaN", "100000000000000000000000.5"]),
        (1042, ["ab  "]),
        (1043, ["", "NULL", "null", '"', "a,b"]),
        (19, ["some_name"]),
        (DATE, ["2024-02-29", "infinity", "0044-03-15 BC"]),
        (1083, ["24:00:00", "01:02:03.5"]),
        (1266, ["01:02:03+05:30"]),
        (TIMESTAMP, ["2024-02-29 12:00:00.000001", "-infinity"]),
        (TIMESTAMPTZ, ["2024-02-29 12:00:00+00", "infinity"]),
        (INTERVAL, ["1 year -3 days +04:05:06.7", "-1 mons +2 days", "-00:00:01"]),
        (17, ["\\x00ff"]),
        (2950, ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
        (1560, ["101"]),
        (1562, ["10", ""]),
        (790, ["$1,234.50"]),
        (3802, ['{"a": [1, null]}']),
        (114, ['{"a":1,  "b":2}']),
        (1007, ["{1,2,NULL}", "{{1,2},{3,4}}", "[0:1]={5,6}", "{}"]),
        (1009, ['{a,"b c",NULL,"NULL"}']),
        (1185, ['{"2024-02-29 12:00:00+00"}']),
        (1187, ['{"1 day -01:00:00"}']),
        (3910, ['["2024-02-29 12:00:00+00",infinity)', "empty"]),
        (4451, ["{[1,3),[5,6)}"]),
        (869, ["10.0.0.1/8", "::1"]),
        (600, ["(1,2)"]),
    ],
)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "TimeZone": "America/New_York",
            "DateStyle": "SQL, DMY",
            "IntervalStyle": "sql_standard",
            "extra_float_digits": "0",
            "bytea_output": "escape",
        },
    ],
    ids=["pinned", "captured"],
)
def test_every_type_goes_there_and_back_unchanged(postgres, oid, values, settings):
    remote = RemoteEvaluator(postgres, settings)
    assert run(remote, "$1", [(values, oid)], oid) == [
        None if v is None else text.render(column([v], oid), oid)[0].as_py() for v in values
    ]
    remote.close()


def test_captured_settings_reach_functions_but_not_the_form_of_results(postgres):
    remote = RemoteEvaluator(
        postgres,
        {"timezone": "Asia/Tokyo", "datestyle": "German", "IntervalStyle": "iso_8601",
         "extra_float_digits": "-3", "quote_all_identifiers": "on"},
    )  # fmt: skip
    assert run(remote, "quote_ident($1)", [(["x"], TEXT)], TEXT) == ['"x"']
    moment = [(["2024-01-31 20:00:00+00"], TIMESTAMPTZ)]
    assert run(remote, "$1::date", moment, DATE) == ["2024-02-01"]
    assert run(remote, "$1::text", moment, TEXT) == ["01.02.2024 05:00:00 JST"]
    assert run(remote, "date_trunc('day', $1)", moment, TIMESTAMPTZ) == ["2024-01-31 15:00:00+00"]
    assert run(remote, "array[$1]", moment, 1185) == ['{"2024-01-31 20:00:00+00"}']
    assert run(remote, "$1 - '2024-01-01'::timestamptz", moment, INTERVAL) == ["31 days 05:00:00"]
    assert run(remote, "('1 day'::interval)::text || $1", [(["x"], TEXT)], TEXT) == ["P1Dx"]
    assert run(remote, "$1 / 3", [(["1"], FLOAT8)], FLOAT8) == ["0.3333333333333333"]
    assert run(remote, "($1 / 3)::text", [(["1"], FLOAT8)], TEXT) == ["0.333333333333"]
    remote.close()


def test_a_column_keeps_its_collation(remote):
    args = [column(["a"], TEXT)]
    for collation, expected in ((0, '"default"'), (950, '"C"'), (951, '"POSIX"')):
        (out,) = remote.evaluate(
            ["pg_collation_for($1)"], [field(TEXT, collation)], args, [field(TEXT)], True
        )
        assert out.to_pylist() == [expected]


def test_several_expressions_share_a_statement(remote):
    out = remote.evaluate(
        ["$1 + $2", "$2 || 'x'", "3"],
        [field(INT4), field(INT4)],
        [column(["1", "2"], INT4), column(["10", None], INT4)],
        [field(INT4), field(TEXT), field(INT4)],
        True,
    )
    assert [c.to_pylist() for c in out] == [[11, None], ["10x", None], [3, 3]]


def test_no_arguments_and_no_rows(remote):
    (out,) = remote.evaluate(["1 + 1"], [], [], [field(INT4)], True, count=3)
    assert out.to_pylist() == [2, 2, 2]
    (out,) = remote.evaluate(["$1"], [field(INT4)], [column([], INT4)], [field(INT4)], True)
    assert out.to_pylist() == []
    assert out.type == pa.int32()


def test_more_rows_than_one_statement_takes(remote):
    values = [str(i % 45_000) for i in range(50_000)]
    out = run(remote, "$1 + 1", [(values, INT4)], INT4)
    assert out == [str(int(v) + 1) for v in values]


def test_the_failing_row_is_named_and_later_calls_work(remote):
    values = [str(i) for i in range(100)]
    values[37] = "0x"
    with pytest.raises(FailingRow, match="invalid input syntax for type integer") as raised:
        run(remote, "$1::int4", [(["5", *values], TEXT)], INT4)
    assert raised.value.row == 38
    assert raised.value.code == "22P02"
    assert isinstance(raised.value, RowError)
    assert "0x" not in (raised.value.detail or "")
    assert run(remote, "$1::int4", [(["5"], TEXT)], INT4) == ["5"]


def test_a_broken_statement_is_no_rows_fault(remote):
    with pytest.raises(DefiniteFailure) as raised:
        run(remote, "no_such_function($1)", [(["5"], INT4)], INT4)
    assert raised.value.code == "42883"
    assert not isinstance(raised.value, RowError)


def test_a_result_of_another_type_is_a_bug(remote):
    with pytest.raises(BugError):
        run(remote, "$1::int8", [(["5"], INT4)], INT4)


def test_nothing_can_be_written(remote, database):
    evaluator = RemoteEvaluator(database, {})
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("CREATE TABLE public.t (a int)")
        conn.execute(
            "CREATE FUNCTION public.w(int) RETURNS int LANGUAGE sql AS"
            " 'INSERT INTO public.t VALUES ($1) RETURNING a'"
        )
    with pytest.raises(DefiniteFailure) as raised:
        run(evaluator, "public.w($1)", [(["5"], INT4)], INT4)
    assert raised.value.code == "25006"
    evaluator.close()


def test_untrusted_expressions_need_their_own_connection(remote, postgres):
    with pytest.raises(UnsupportedError):
        run(remote, "$1", [(["5"], INT4)], INT4, trusted=False)
    own = RemoteEvaluator("host=127.0.0.1 port=1", {}, postgres)
    assert run(own, "$1", [(["5"], INT4)], INT4, trusted=False) == ["5"]
    with pytest.raises(TransientError):
        run(own, "$1", [(["5"], INT4)], INT4)
    own.close()


def test_a_lost_connection_is_opened_anew(remote, postgres):
    (pid,) = run(remote, "pg_backend_pid() + $1", [(["0"], INT4)], INT4)
    with psycopg.connect(postgres, autocommit=True) as conn:
        conn.execute("SELECT pg_terminate_backend(%s, 5000)", (int(pid),))
    assert run(remote, "$1 + 1", [(["1"], INT4)], INT4) == ["2"]


def test_results_are_remembered(remote):
    first = run(remote, "random() + $1", [(["0", "1"], INT4)], FLOAT8)
    assert run(remote, "random() + $1", [(["1", "0"], INT4)], FLOAT8) == first[::-1]


def test_placeholders_are_found_only_outside_of_quotes():
    sql = (
        "f($1, '$1 ''$2', \"$1\", E'\\'$1', $$ $1 $$, $a$ $1 $$ $a$, x$1, $2::text) "
        "/* $1 /* $2 */ $1 */ -- $1\n + $10"
    )
    assert renumber(sql, {1: 7, 2: 8, 10: 1}) == (
        "f($7, '$1 ''$2', \"$1\", E'\\'$1', $$ $1 $$, $a$ $1 $$ $a$, x$1, $8::text) "
        "/* $1 /* $2 */ $1 */ -- $1\n + $1"
    )


def aggregate(remote, sql, oid, rows, ngroups, result):
    groups = np.array([r[0] for r in rows], np.int64)
    weights = np.array([r[2] for r in rows], np.int64)
    values = column([r[1] for r in rows], oid)
    call = AggregateCall(sql, (field(oid),), field(result))
    out = remote.aggregate(call, groups, [values], weights, ngroups)
    return text.render(out, result).to_pylist()


@pytest.mark.parametrize("settings", [{}, {"IntervalStyle": "iso_8601"}])
def test_aggregates_per_group(postgres, settings):
    remote = RemoteEvaluator(postgres, settings)
    rows = [(2, "1 day", 3), (0, "01:00:00", 1), (2, "02:00:00", 1), (0, None, 2)]
    assert aggregate(remote, "sum($1)", INTERVAL, rows, 4, INTERVAL) == [
        "01:00:00", None, "3 days 02:00:00", None,
    ]  # fmt: skip
    assert aggregate(remote, "count(*)", INTERVAL, rows, 4, INT8) == ["3", "0", "4", "0"]
    assert aggregate(remote, "count($1)", INTERVAL, [], 2, INT8) == ["0", "0"]
    remote.close()


def test_arrays_of_a_type_may_have_another_delimiter_than_a_comma(remote, postgres):
    boxes = ["(2,2),(1,1)", None, "(4,4),(3,3)"]
    rows = [(0, value, 1) for value in boxes]
    with psycopg.connect(postgres) as conn:
        wanted = conn.execute("SELECT array_agg(b)::text FROM unnest(%s::text[]::box[]) b", [boxes])
        assert aggregate(remote, "array_agg($1)", BOX, rows, 1, BOXES) == [wanted.fetchone()[0]]
    areas = run(remote, "area($1)", [(boxes, BOX)], FLOAT8)
    assert areas == ["1", None, "1"]


def test_aggregates_of_several_columns_see_the_rows_in_order(remote):
    groups, weights = np.array([1, 0, 1, 1]), np.array([1, 2, 1, 3])
    columns = [column(["b", "x", "a", None], TEXT), column(["2", "1", "1", "1"], INT4)]
    fields = (field(TEXT), field(INT4))

    def ask(sql, result=TEXT, direct=0):
        call = AggregateCall(sql, fields, field(result), direct=direct)
        out = remote.aggregate(call, groups, columns, weights, 3)
        return text.render(out, result).to_pylist()

    assert ask("string_agg($1, ',')") == ["x,x", "b,a", None]
    assert ask("string_agg($1 || $2, ',' ORDER BY $2, $0)") == ["x1,x1", "a1,b2", None]
    assert ask("string_agg(DISTINCT $1, ',' ORDER BY $1)") == ["x", "a,b", None]
    assert ask("count(*)", INT8) == ["2", "5", "0"]


def test_direct_arguments_have_one_value_in_a_group(remote):
    columns = [column(["1", "2", "3", "5"], INT4), column(["0.5", "1", "1", "1"], FLOAT8)]
    call = AggregateCall(
        "percentile_cont($2) WITHIN GROUP (ORDER BY $1)",
        (field(INT4), field(FLOAT8)),
        field(FLOAT8),
        direct=1,
    )
    groups, weights = np.array([0, 1, 1, 1]), np.array([3, 1, 1, 1])
    out = remote.aggregate(call, groups, columns, weights, 3)
    assert out.to_pylist() == [1.0, 5.0, None]


def test_aggregates_over_many_groups(remote):
    rows = [(i % 7000, str(i), 1) for i in range(45_000)]
    expected = {}
    for group, value, _ in rows:
        expected[group] = max(expected.get(group, 0), int(value))
    got = aggregate(remote, "max($1)", INT4, rows, 7000, INT4)
    assert got == [str(expected[g]) for g in range(7000)]


def test_a_program_mixes_kernels_and_postgres(remote):
    a, b = Column(0, INT4), Column(1, TEXT)
    doubled = Native("*", (a, Literal("2", INT4)), INT4)
    asked = Remote("$2 || '$1' || $1", (doubled, b), TEXT)
    nested = Remote("length($1)", (Native("||", (asked, b), TEXT),), INT4)
    program = Program([nested, doubled, asked, b, Literal(None, INT8)], remote)
    out = program.run([column(["1", "20"], INT4), column(["x", None], TEXT)], 2)
    assert [c.to_pylist() for c in out] == [
        [5, None], [2, 40], ["x$12", None], ["x", None], [None, None],
    ]  # fmt: skip


def test_a_program_without_an_evaluator_refuses_remote_expressions():
    with pytest.raises(BugError):
        Program([Remote("1", (), INT4)], None)
