"""Known answers of other dialects: the result of each construct in its own database.

The answers are from the dialects' manuals; for SQLite the test asks SQLite itself. All are over the
one row of the table ``known``.
"""

from __future__ import annotations

from dataclasses import dataclass

REFUSED = "refused"
KNOWN = {
    **{"zero": ("int4", "0"), "one": ("int4", "1"), "seven": ("int4", "7"), "neg": ("int4", "-7")},
    **{"nul": ("int4", None), "big": ("int8", "7"), "bignul": ("int8", None)},
    **{"f": ("float8", "2.5"), "fneg": ("float8", "-2.5"), "fzero": ("float8", "0")},
    **{"fnul": ("float8", None), "n": ("numeric", "2.50"), "nneg": ("numeric", "-2.50")},
    **{"nzero": ("numeric", "0.00"), "nnul": ("numeric", None), "s": ("text", "abcab")},
    **{"empty": ("text", ""), "snul": ("text", None), "sp": ("text", " a ")},
    **{"d": ("date", "2024-01-31"), "d2": ("date", "2024-02-01"), "dnul": ("date", None)},
    **{"ts": ("timestamp", "2024-01-31 13:45:59"), "tsnul": ("timestamp", None)},
    **{"yes": ("bool", "true"), "no": ("bool", "false"), "bnul": ("bool", None)},
    "tz": ("timestamptz", "2024-01-31 13:45:59+00"),
}
"""Columns: type, and value."""


@dataclass(frozen=True)
class Answer:
    """The expression's text in these dialects; or it is NULL, or refused."""

    dialects: str
    expression: str
    value: str | None
    clause: str = ""
    """Clauses after FROM known."""


def _all(dialects: str, *pairs: tuple[str, str | None]) -> list[Answer]:
    return [Answer(dialects, expression, value) for expression, value in pairs]


NO_ROWS = "WHERE 1 = 0"
EVERY = "bigquery databricks duckdb mysql oracle redshift snowflake spark sqlite trino tsql"
ANSWERS = [
    # Arithmetic.
    *_all(
        EVERY,
        *(("seven + one", "8"), ("neg - one", "-8"), ("nul + one", None), ("neg * zero", "0")),
        *(("seven * nul", None), ("-neg", "7"), ("-nul", None), ("f + one", "3.5")),
        *(("ABS(neg)", "7"), ("ABS(nul)", None), ("ABS(zero)", "0"), ("n + fneg * zero", "2.5")),
        *(("s + one", REFUSED), ("d * 2", REFUSED)),
    ),
    # Division: of integers, of doubles; by zero.
    *_all("mysql snowflake oracle", ("seven / 2", REFUSED), ("seven / zero", REFUSED)),
    *_all(
        "redshift sqlite trino tsql",
        *(("seven / 2", "3"), ("neg / 2", "-3"), ("seven / nul", None), ("zero / seven", "0")),
    ),
    *_all("bigquery", ("seven / 2", "3.5"), ("neg / 2", "-3.5"), ("seven / nul", None)),
    *_all("bigquery", ("zero / seven", "0")),
    *_all(
        "databricks duckdb spark",
        *(("seven / 2", "3.5"), ("neg / 2", "-3.5"), ("seven / zero", REFUSED)),
        *(("seven / NULLIF(zero, 0)", None), ("seven / NULLIF(nul, 0)", None)),
        *(("f / fzero", REFUSED), ("f / 2", "1.25")),
    ),
    *_all(
        "mysql sqlite",
        *(("f / fzero", None), ("f / zero", None), ("fneg / 2", "-1.25"), ("fnul / f", None)),
    ),
    *_all("sqlite", ("seven / zero", None), ("neg % zero", None)),
    *_all("mysql", ("MOD(seven, zero)", None), ("neg % zero", None)),
    *_all("trino", ("f / fzero", REFUSED), ("f / 2", "1.25")),
    *_all(
        "bigquery databricks duckdb mysql oracle redshift snowflake spark trino",
        *(("MOD(neg, 3)", "-1"), ("MOD(seven, -3)", "1"), ("MOD(nul, 3)", None)),
        *(("MOD(zero, 3)", "0"), ("MOD(n, 2)", REFUSED)),
    ),
    *_all("sqlite tsql", ("neg % 3", "-1"), ("nul % 3", None), ("zero % 3", "0")),
    *_all("oracle databricks duckdb spark", ("MOD(seven, zero)", REFUSED)),
    *_all("bigquery mysql redshift snowflake sqlite trino tsql", ("n / 2", REFUSED)),
    *_all("bigquery sqlite", ("seven * 0.1", REFUSED), ("f * 0.5", "1.25")),
    *_all("bigquery sqlite", ("fneg * 0.5", "-1.25"), ("fnul * 0.5", None), ("fzero * 0.5", "0")),
    *_all(EVERY, ("nul - one", None), ("one - nul", None)),
    # Comparisons, conditions.
    *_all(
        EVERY,
        *(("CASE WHEN nul = nul THEN 'y' ELSE 'n' END", "n"), ("COALESCE(nul, neg)", "-7")),
        *(("COALESCE(snul, empty)", ""), ("NULLIF(zero, 0)", None), ("NULLIF(nul, 0)", None)),
        *(("NULLIF(neg, 0)", "-7"), ("CASE WHEN seven BETWEEN neg AND 7 THEN 'y' END", "y")),
        *(("CASE WHEN nul IN (1, 2) THEN 'y' ELSE 'n' END", "n"),),
        *(
            (
                "CASE WHEN nul > 1 OR nul < 1 OR nul >= zero OR nul <= neg THEN 'y' ELSE 'n' END",
                "n",
            ),
        ),
        *(("CASE WHEN NOT (nul <> zero AND neg > 0) THEN 'y' ELSE 'n' END", "y"),),
        *(("CASE WHEN neg BETWEEN nul AND 7 THEN 'y' ELSE 'n' END", "n"),),
        *(("CASE WHEN 7 NOT IN (zero, nul) THEN 'y' ELSE 'n' END", "n"),),
        *(("CASE WHEN NOT (zero > neg AND seven > 0 OR one = 2) THEN 'y' ELSE 'n' END", "n"),),
        *(("CASE WHEN d > '2024-01-30' THEN 'y' END", "y"),),
        *(("CASE WHEN d > '01/02/2024' THEN 'y' END", REFUSED),),
        *(("CASE WHEN tz > '2024-01-30' THEN 'y' END", REFUSED),),
        *(("CASE WHEN snul IS NULL THEN 'y' END", "y"), ("CASE seven WHEN 7 THEN 'y' END", "y")),
    ),
    *_all("mysql spark", ("IF(nul > 1, 'x', 'y')", "y"), ("IF(neg < 0, 'x', 'y')", "x")),
    *_all("snowflake", ("IFF(nul > 1, 'x', 'y')", "y"), ("ZEROIFNULL(nul)", "0")),
    *_all("snowflake", ("NULLIFZERO(zero)", None), ("ZEROIFNULL(neg)", "-7")),
    *_all("tsql", ("ISNULL(nul, zero)", "0"), ("ISNULL(neg, zero)", "-7")),
    *_all("tsql", ("ISNULL(s, 'abc')", REFUSED), ("ISNULL(nul, n)", REFUSED)),
    *_all("oracle", ("NVL(nul, zero)", "0"), ("DECODE(nul, 7, 'a', NULL, 'b', 'c')", "b")),
    *_all("oracle", ("DECODE(neg, -7, 'a', 'c')", "a"), ("DECODE(zero, one, 'a')", REFUSED)),
    *_all(
        "mysql",
        ("CASE WHEN nul <=> NULL AND NOT neg <=> zero THEN 'y' END", "y"),
        ("seven XOR one", REFUSED),
    ),
    *_all("mysql oracle sqlite tsql", ("COALESCE(bnul, TRUE)", REFUSED)),
    *_all(
        "bigquery databricks duckdb redshift snowflake spark trino",
        *(("COALESCE(bnul, TRUE)", "true"), ("COALESCE(no, TRUE)", "false")),
    ),
    *_all(
        "databricks duckdb redshift spark tsql",
        *(
            ("GREATEST(neg, nul)", "-7"),
            ("LEAST(zero, neg, nul)", "-7"),
            ("GREATEST(dnul, d)", "2024-01-31"),
        ),
    ),
    *_all("bigquery mysql oracle snowflake trino", ("GREATEST(neg, nul)", REFUSED)),
    *_all("sqlite", ("MAX(neg, zero)", REFUSED)),
    # LIKE.
    *_all(
        EVERY.replace("sqlite ", ""),
        *(("CASE WHEN s LIKE 'ab%' THEN 'y' ELSE 'n' END", "y"),),
        *(("CASE WHEN empty LIKE '_%' THEN 'y' ELSE 'n' END", "n"),),
        *(("CASE WHEN snul NOT LIKE 'a%' THEN 'y' ELSE 'n' END", "n"),),
        *(("CASE WHEN s LIKE '!_%' ESCAPE '!' THEN 'y' ELSE 'n' END", "n"),),
        *(("CASE WHEN snul LIKE '!_%' ESCAPE '!' THEN 'y' ELSE 'n' END", "n"),),
        *(("CASE WHEN empty LIKE '!_%' ESCAPE '!' THEN 'y' ELSE 'n' END", "n"),),
        *(("CASE WHEN s LIKE empty THEN 'y' ELSE 'n' END", REFUSED),),
    ),
    *_all("sqlite", ("CASE WHEN s LIKE 'AB%' THEN 'y' END", REFUSED)),
    *_all("tsql", ("CASE WHEN s LIKE '[a]%' THEN 'y' END", REFUSED)),
    *_all(
        "databricks duckdb redshift snowflake",
        *(
            ("CASE WHEN s ILIKE 'AB%' THEN 'y' END", "y"),
            ("CASE WHEN snul ILIKE 'a' THEN 'y' END", None),
        ),
        *(("CASE WHEN empty ILIKE 'a' THEN 'y' END", None),),
    ),
    # Texts.
    *_all(
        EVERY.replace("sqlite ", "").replace("oracle ", ""),
        *(
            ("UPPER(s)", "ABCAB"),
            ("UPPER(snul)", None),
            ("LOWER(empty)", ""),
            ("UPPER(neg)", REFUSED),
        ),
        *(("LOWER(snul)", None), ("UPPER(empty)", ""), ("LOWER('ÄB')", "äb")),
    ),
    *_all("sqlite oracle", ("UPPER(s)", REFUSED), ("LOWER(s)", REFUSED)),
    *_all("mysql", ("LENGTH(s)", REFUSED), ("CHAR_LENGTH(s)", "5"), ("CHAR_LENGTH(empty)", "0")),
    *_all("mysql", ("CHAR_LENGTH(snul)", None)),
    *_all(
        "bigquery databricks duckdb redshift snowflake spark sqlite trino",
        *(("LENGTH(s)", "5"), ("LENGTH(empty)", "0"), ("LENGTH(snul)", None)),
    ),
    *_all("tsql", ("LEN(sp)", REFUSED)),
    *_all(
        "bigquery databricks mysql redshift snowflake spark trino",
        *(("CONCAT(s, empty)", "abcab"), ("CONCAT(s, snul)", None), ("CONCAT(s, neg)", REFUSED)),
    ),
    *_all("duckdb tsql", ("CONCAT(s, empty)", "abcab"), ("CONCAT(s, snul)", "abcab")),
    *_all("oracle sqlite", ("CONCAT(s, snul)", REFUSED)),
    *_all(
        "bigquery databricks duckdb redshift snowflake spark sqlite trino",
        *(("s || empty", "abcab"), ("s || snul", None), ("s || neg", REFUSED)),
    ),
    *_all("mysql oracle", ("s || snul", REFUSED)),
    *_all(
        "bigquery databricks duckdb mysql redshift snowflake spark sqlite trino",
        *(("SUBSTR(s, 2, 2)", "bc"), ("SUBSTR(empty, 1, 2)", ""), ("SUBSTR(snul, 1, 2)", None)),
        *(("SUBSTR(s, 1, 0)", ""), ("SUBSTR(s, -2)", REFUSED), ("SUBSTR(s, 0, 2)", REFUSED)),
        *(("SUBSTR(s, neg, 2)", REFUSED), ("SUBSTR(s, 9)", "")),
    ),
    *_all("mysql", ("SUBSTRING(s, -2)", REFUSED)),
    *_all("tsql", ("SUBSTRING(s, 2, 2)", "bc"), ("SUBSTRING(snul, 1, 2)", None)),
    *_all("tsql", ("SUBSTRING(empty, 1, 2)", ""), ("SUBSTRING(s, 0, 2)", REFUSED)),
    *_all(
        "bigquery databricks duckdb mysql redshift snowflake spark tsql",
        *(
            ("LEFT(s, 2)", "ab"),
            ("RIGHT(s, 2)", "ab"),
            ("LEFT(s, 0)", ""),
            ("RIGHT(snul, 2)", None),
        ),
        *(("LEFT(empty, 2)", ""), ("RIGHT(s, neg)", REFUSED), ("LEFT(s, -1)", REFUSED)),
        *(("LEFT(snul, 2)", None), ("RIGHT(empty, 2)", ""), ("RIGHT(s, 0)", "")),
        *(("REVERSE(s)", "bacba"), ("REVERSE(empty)", ""), ("REVERSE(snul)", None)),
        *(("REPLACE(s, 'ab', 'x')", "xcx"), ("REPLACE(empty, 'a', 'x')", "")),
        *(("REPLACE(snul, 'a', 'x')", None), ("REPLACE(s, empty, 'x')", REFUSED)),
        *(("REPLACE(s, 'a', snul)", None),),
    ),
    *_all("sqlite trino", ("REPLACE(s, 'ab', 'x')", "xcx"), ("REPLACE(snul, 'a', 'x')", None)),
    *_all("sqlite trino", ("REPLACE(empty, 'a', 'x')", "")),
    *_all(
        "bigquery databricks duckdb mysql redshift snowflake spark",
        *(("REPEAT(s, 2)", "abcababcab"), ("REPEAT(s, 0)", ""), ("REPEAT(snul, 2)", None)),
        *(("REPEAT(empty, 2)", ""), ("REPEAT(s, neg)", REFUSED)),
        *(("LPAD(s, 7, 'x')", "xxabcab"), ("RPAD(s, 2, 'x')", "ab"), ("LPAD(snul, 7, 'x')", None)),
        *(
            ("RPAD(empty, 2, 'x')", "xx"),
            ("LPAD(s, 0, 'x')", REFUSED),
            ("LPAD(s, -1, 'x')", REFUSED),
        ),
    ),
    *_all("tsql", ("REPLICATE(s, 2)", "abcababcab"), ("REPLICATE(snul, 2)", None)),
    *_all("tsql", ("REPLICATE(empty, 2)", ""), ("REPLICATE(s, neg)", REFUSED)),
    *_all("trino", ("REVERSE(s)", "bacba"), ("REVERSE(empty)", ""), ("REVERSE(snul)", None)),
    *_all(
        "duckdb mysql redshift snowflake spark sqlite",
        *(("TRIM(sp)", "a"), ("TRIM(empty)", ""), ("TRIM(snul)", None)),
    ),
    *_all("bigquery trino oracle", ("TRIM(sp)", REFUSED)),
    *_all("snowflake", ("LTRIM(s, 'a')", "bcab"), ("LTRIM(s, 'ab')", REFUSED)),
    *_all("mysql", ("TRIM(TRAILING 'b' FROM s)", "abca"), ("TRIM(LEADING 'ab' FROM s)", REFUSED)),
    *_all(
        "bigquery", ("STRPOS(s, 'b')", "2"), ("STRPOS(s, 'x')", "0"), ("STRPOS(snul, 'b')", None)
    ),
    *_all("bigquery", ("STRPOS(empty, 'b')", "0"), ("STRPOS(s, empty)", REFUSED)),
    *_all(
        "mysql databricks spark",
        *(("LOCATE('b', s)", "2"), ("LOCATE('x', empty)", "0"), ("LOCATE('b', snul)", None)),
        *(("LOCATE('b', s, 3)", REFUSED),),
    ),
    *_all("sqlite", ("INSTR(s, 'b')", "2"), ("INSTR(empty, 'b')", "0"), ("INSTR(snul, 'b')", None)),
    *_all(
        "snowflake redshift",
        *(
            ("CHARINDEX('b', s)", "2"),
            ("CHARINDEX('b', empty)", "0"),
            ("CHARINDEX('b', snul)", None),
        ),
    ),
    *_all("tsql", ("CHARINDEX('b', s)", "2"), ("CHARINDEX('b', snul)", None)),
    *_all("tsql", ("CHARINDEX('b', empty)", "0")),
    *_all("duckdb trino", ("STRPOS(s, 'b')", "2"), ("STRPOS(snul, 'b')", None)),
    *_all("duckdb trino", ("STRPOS(empty, 'b')", "0")),
    *_all(
        "duckdb redshift snowflake",
        *(
            ("SPLIT_PART(s, 'c', 2)", "ab"),
            ("SPLIT_PART(s, 'c', 3)", ""),
            ("SPLIT_PART(snul, 'c', 1)", None),
        ),
        *(("SPLIT_PART(empty, 'c', 1)", ""), ("SPLIT_PART(s, 'c', 0)", REFUSED)),
        *(("SPLIT_PART(s, 'c', -1)", REFUSED), ("SPLIT_PART(s, empty, 1)", REFUSED)),
    ),
    *_all(
        "bigquery duckdb trino",
        *(("STARTS_WITH(s, 'ab')", "true"), ("STARTS_WITH(s, empty)", "true")),
        *(("STARTS_WITH(snul, 'a')", None), ("STARTS_WITH(empty, 'a')", "false")),
    ),
    *_all(
        "databricks snowflake spark",
        *(("STARTSWITH(s, 'ab')", "true"), ("STARTSWITH(s, empty)", "true")),
        *(("STARTSWITH(snul, 'a')", None), ("STARTSWITH(empty, 'a')", "false")),
    ),
    *_all(
        "databricks duckdb mysql redshift snowflake spark",
        *(("MD5(empty)", "d41d8cd98f00b204e9800998ecf8427e"), ("MD5(snul)", None)),
    ),
    # Casts.
    *_all(
        "bigquery mysql oracle snowflake trino",
        *(("CAST(n AS {int})", "3"), ("CAST(nneg AS {int})", "-3"), ("CAST(nnul AS {int})", None)),
        *(("CAST(f AS {int})", REFUSED), ("CAST(nzero AS {int})", "0")),
    ),
    *_all(
        "databricks duckdb redshift spark sqlite tsql",
        *(
            ("CAST(n AS {int})", REFUSED),
            ("CAST(neg AS {int})", "-7"),
            ("CAST(nul AS {int})", None),
        ),
        *(("CAST(zero AS {int})", "0"),),
    ),
    *_all(
        "bigquery databricks duckdb redshift snowflake spark trino",
        *(("CAST(yes AS {int})", "1"), ("CAST(bnul AS {int})", None)),
    ),
    *_all(EVERY, ("CAST(s AS {int})", REFUSED)),
    *_all(
        EVERY.replace("redshift ", "").replace("sqlite ", ""),
        *(("CAST(n AS DECIMAL(5, 1))", "2.5"), ("CAST(nneg AS DECIMAL(5, 0))", "-3")),
        *(("CAST(nnul AS DECIMAL(5, 1))", None), ("CAST(f AS DECIMAL(5, 1))", REFUSED)),
        *(("CAST(zero AS DECIMAL(5, 1))", "0.0"),),
    ),
    *_all("mysql", ("CAST(n AS DECIMAL)", REFUSED), ("CAST(s AS CHAR(2))", "ab")),
    *_all("mysql", ("CAST(snul AS CHAR(2))", None), ("CAST(empty AS CHAR(2))", "")),
    *_all("mysql", ("CAST(neg AS CHAR)", "-7"), ("CAST(n AS CHAR)", REFUSED)),
    *_all(
        "tsql redshift trino", ("CAST(s AS VARCHAR(2))", "ab"), ("CAST(snul AS VARCHAR(2))", None)
    ),
    *_all("bigquery snowflake", ("CAST(s AS {text2})", REFUSED)),
    *_all("duckdb spark", ("CAST(s AS {text2})", "abcab")),
    *_all("spark databricks", ("DATE_ADD(d, 1)", "2024-02-01"), ("DATE_ADD(dnul, 0)", None)),
    *_all("spark databricks", ("DATE_ADD(d, -1)", "2024-01-30"), ("DATE_ADD(ts, 1)", REFUSED)),
    *_all("bigquery", ("CAST(d AS STRING)", "2024-01-31"), ("CAST(neg AS STRING)", "-7")),
    *_all("bigquery", ("CAST(f AS STRING)", REFUSED), ("CAST(nul AS STRING)", None)),
    *_all("bigquery", ("SAFE_CAST(s AS INT64)", REFUSED)),
    *_all("snowflake spark databricks", ("TRY_CAST(s AS INT)", REFUSED)),
    *_all("spark databricks mysql duckdb", ("CAST(f AS FLOAT)", REFUSED)),
    *_all("redshift snowflake tsql", ("CAST(neg AS FLOAT)", "-7"), ("CAST(nul AS FLOAT)", None)),
    *_all("tsql oracle", ("CAST(s AS VARCHAR)", REFUSED)),
    *_all(
        "bigquery", ("CAST('2024-01-31' AS DATE)", "2024-01-31"), ("CAST(ts AS DATE)", "2024-01-31")
    ),
    *_all("bigquery", ("CAST('1/2/2024' AS DATE)", REFUSED), ("CAST(dnul AS DATETIME)", None)),
    *_all("bigquery", ("TIMESTAMP '2024-01-31'", REFUSED)),
    *_all("snowflake mysql trino duckdb redshift tsql", ("CAST(tsnul AS DATE)", None)),
    # Dates.
    *_all("bigquery", ("DATE_TRUNC(d, MONTH)", "2024-01-01"), ("DATE_TRUNC(dnul, MONTH)", None)),
    *_all(
        "bigquery",
        ("DATE_TRUNC(d, WEEK)", REFUSED),
        ("DATETIME_TRUNC(ts, HOUR)", "2024-01-31 13:00:00"),
    ),
    *_all(
        "snowflake trino",
        *(("DATE_TRUNC('month', d)", "2024-01-01"), ("DATE_TRUNC('year', dnul)", None)),
        *(("DATE_TRUNC('hour', ts)", "2024-01-31 13:00:00"), ("DATE_TRUNC('week', d)", REFUSED)),
    ),
    *_all("redshift", ("DATE_TRUNC('month', d)", REFUSED), ("DATE_TRUNC('month', tsnul)", None)),
    *_all("redshift", ("DATE_TRUNC('month', ts)", "2024-01-01 00:00:00")),
    *_all("spark databricks duckdb", ("DATE_TRUNC('month', d)", REFUSED)),
    *_all(
        "snowflake tsql",
        *(("DATEADD(month, 1, d)", "2024-02-29"), ("DATEADD(day, -1, d)", "2024-01-30")),
        *(("DATEADD(day, 0, dnul)", None), ("DATEADD(hour, 1, d)", REFUSED)),
        *(("DATEADD(hour, -1, ts)", "2024-01-31 12:45:59"), ("DATEADD(day, one, d)", REFUSED)),
        *(
            ("DATEDIFF(day, d, d2)", "1"),
            ("DATEDIFF(day, d2, d)", "-1"),
            ("DATEDIFF(day, dnul, d)", None),
        ),
        *(("DATEDIFF(month, d, d2)", REFUSED), ("DATEDIFF(day, d, ts)", REFUSED)),
        *(("DATEDIFF(day, d, d)", "0"),),
    ),
    *_all(
        "redshift",
        ("DATEADD(month, 1, ts)", "2024-02-29 13:45:59"),
        ("DATEADD(day, 1, d)", REFUSED),
    ),
    *_all(
        "redshift",
        ("DATEADD(day, 0, tsnul)", None),
        ("DATEADD(day, -1, ts)", "2024-01-30 13:45:59"),
    ),
    *_all("redshift", ("DATEDIFF(day, d, d2)", "1"), ("DATEDIFF(day, d2, d)", "-1")),
    *_all("redshift", ("DATEDIFF(day, dnul, d)", None)),
    *_all(
        "bigquery",
        *(
            ("DATE_ADD(d, INTERVAL 1 MONTH)", "2024-02-29"),
            ("DATE_SUB(d, INTERVAL 1 DAY)", "2024-01-30"),
        ),
        *(("DATE_SUB(dnul, INTERVAL 1 DAY)", None), ("DATETIME_ADD(tsnul, INTERVAL 1 HOUR)", None)),
        *(("DATE_SUB(d, INTERVAL -1 DAY)", "2024-02-01"), ("DATETIME_TRUNC(tsnul, DAY)", None)),
        *(("DATETIME_SUB(tsnul, INTERVAL 1 DAY)", None),),
        *(("DATETIME_SUB(ts, INTERVAL -1 DAY)", "2024-02-01 13:45:59"),),
        *(("DATE_ADD(dnul, INTERVAL -1 DAY)", None), ("DATE_DIFF(d2, d, DAY)", "1")),
        *(("DATE_DIFF(d, d2, DAY)", "-1"), ("DATE_DIFF(dnul, d, DAY)", None)),
        *(
            ("DATE_DIFF(d2, d, MONTH)", REFUSED),
            ("DATETIME_ADD(ts, INTERVAL 0 HOUR)", "2024-01-31 13:45:59"),
        ),
    ),
    *_all(
        "mysql",
        *(("DATE_ADD(d, INTERVAL 1 MONTH)", "2024-02-29"), ("d - INTERVAL 1 DAY", "2024-01-30")),
        *(("DATE_ADD(dnul, INTERVAL -1 DAY)", None), ("DATEDIFF(d2, d)", "1"), ("d + 1", REFUSED)),
        *(("DATEDIFF(dnul, d)", None), ("d2 - d", REFUSED), ("DATEDIFF(d, d2)", "-1")),
        *(("YEAR(d)", "2024"), ("MONTH(dnul)", None), ("DAY(ts)", "31")),
    ),
    *_all(
        "trino", ("d + INTERVAL '1' DAY", "2024-02-01"), ("DATE_ADD('month', 1, d)", "2024-02-29")
    ),
    *_all("trino", ("DATE_ADD('day', -1, dnul)", None), ("DATE_DIFF('day', d, d2)", "1")),
    *_all("trino", ("DATE_DIFF('day', dnul, d2)", None), ("DATE_DIFF('day', d2, d)", "-1")),
    *_all(
        "duckdb", ("DATE_DIFF('day', d, d2)", "1"), ("d2 - d", "1"), ("d + INTERVAL 1 DAY", REFUSED)
    ),
    *_all("duckdb", ("DATE_DIFF('day', dnul, d2)", None), ("DATE_DIFF('day', d2, d)", "-1")),
    *_all("spark databricks", ("DATEDIFF(d2, d)", "1"), ("DATEDIFF(d, d2)", "-1")),
    *_all("spark databricks", ("DATEDIFF(dnul, d)", None)),
    *_all("snowflake redshift bigquery duckdb", ("d + 1", "2024-02-01"), ("dnul + 1", None)),
    *_all("snowflake redshift bigquery duckdb", ("d - 1", "2024-01-30"), ("d + big", REFUSED)),
    *_all("bigquery trino oracle sqlite tsql spark", ("d2 - d", REFUSED)),
    *_all(
        "bigquery mysql redshift snowflake spark trino duckdb databricks oracle",
        *(("EXTRACT(YEAR FROM d)", "2024"), ("EXTRACT(HOUR FROM ts)", "13")),
        *(("EXTRACT(MONTH FROM dnul)", None), ("EXTRACT(SECOND FROM ts)", REFUSED)),
        *(("EXTRACT(WEEK FROM d)", REFUSED),),
    ),
    *_all(
        "snowflake trino spark mysql",
        *(("YEAR(d)", "2024"), ("MONTH(ts)", "1"), ("DAY(dnul)", None), ("YEAR(dnul)", None)),
        *(("MONTH(tsnul)", None), ("DAY(d)", "31")),
    ),
    *_all("snowflake trino spark databricks bigquery duckdb", ("CURRENT_DATE", REFUSED)),
    # Numbers.
    *_all(
        "bigquery databricks duckdb mysql redshift snowflake spark trino tsql",
        *(
            ("FLOOR(fneg)", "-3"),
            ("FLOOR(nnul)", None),
            ("ROUND(n, 1)", "2.5"),
            ("ROUND(nneg, 0)", "-3"),
        ),
        *(("ROUND(f, 1)", REFUSED), ("ROUND(nnul, 1)", None), ("FLOOR(seven)", REFUSED)),
        *(("ROUND(n, -1)", REFUSED), ("FLOOR(fzero)", "0"), ("SIGN(fneg)", "-1")),
        *(("SIGN(nnul)", None), ("SIGN(nzero)", "0"), ("ROUND(nzero, 1)", "0.0")),
    ),
    *_all("oracle", ("CEIL(nneg)", "-2"), ("CEIL(nnul)", None), ("CEIL(nzero)", "0")),
    *_all("oracle", ("FLOOR(nneg)", "-3"), ("FLOOR(nnul)", None), ("FLOOR(nzero)", "0")),
    *_all("oracle", ("ROUND(nneg, 0)", "-3"), ("ROUND(nnul, 1)", None), ("ROUND(nzero, 1)", "0.0")),
    *_all("oracle", ("SIGN(nneg)", "-1"), ("SIGN(nnul)", None), ("SIGN(nzero)", "0")),
    *_all("bigquery snowflake mysql trino", ("CEIL(fneg)", "-2"), ("CEIL(fnul)", None)),
    *_all("bigquery snowflake mysql trino", ("CEIL(fzero)", "0")),
    *_all("redshift spark databricks duckdb", ("CEIL(nneg)", "-2"), ("CEIL(nnul)", None)),
    *_all("redshift spark databricks duckdb", ("CEIL(nzero)", "0")),
    *_all("tsql", ("CEILING(nneg)", "-2"), ("CEILING(nnul)", None), ("CEILING(nzero)", "0")),
    *_all(
        "bigquery redshift snowflake tsql",
        *(("SQRT(fzero)", "0"), ("SQRT(fnul)", None), ("SQRT(n)", REFUSED), ("EXP(fzero)", "1")),
        *(("EXP(fnul)", None), ("POWER(f, 2)", "6.25"), ("POWER(fnul, 2)", None)),
        *(("POWER(fzero, 2)", "0"), ("POWER(seven, 2)", REFUSED), ("POWER(fneg, 2)", "6.25")),
    ),
    *_all("bigquery redshift snowflake", ("LN(one)", "0"), ("LN(fnul)", None)),
    *_all("mysql sqlite spark trino duckdb databricks", ("SQRT(f)", REFUSED)),
    *_all("mysql", ("RAND()", REFUSED), ("TRUNCATE(n, 1)", REFUSED)),
    # Aggregates.
    *_all(
        EVERY,
        *(("COUNT(*)", "1"), ("COUNT(nul)", "0"), ("COUNT(DISTINCT s)", "1"), ("SUM(neg)", "-7")),
        *(("SUM(nul)", None), ("MIN(neg)", "-7"), ("MAX(snul)", None), ("MAX(empty)", "")),
        *(("AVG(fneg)", "-2.5"), ("AVG(fnul)", None), ("AVG(n)", REFUSED), ("SUM(zero)", "0")),
        *(("MIN(zero)", "0"), ("AVG(fzero)", "0"), ("MAX(neg)", "-7"), ("MIN(snul)", None)),
    ),
    *[Answer(EVERY, "COUNT(*)", "0", NO_ROWS), Answer(EVERY, "SUM(seven)", None, NO_ROWS)],
    *_all(
        "bigquery databricks duckdb spark trino",
        *(("AVG(neg)", "-7"), ("AVG(nul)", None), ("AVG(zero)", "0")),
    ),
    *_all("mysql oracle redshift snowflake sqlite tsql", ("AVG(seven)", REFUSED)),
    *_all(
        "bigquery",
        ("COUNTIF(seven > 1)", "1"),
        ("COUNTIF(nul > 1)", "0"),
        ("COUNTIF(neg > 1)", "0"),
    ),
    Answer("bigquery", "COUNTIF(seven > 1)", "0", NO_ROWS),
    *_all(
        "databricks snowflake spark trino", ("COUNT_IF(seven > 1)", "1"), ("COUNT_IF(nul > 1)", "0")
    ),
    Answer("databricks snowflake spark trino", "COUNT_IF(neg > 1)", "0", NO_ROWS),
    *_all("duckdb", ("COUNT_IF(seven > 1)", REFUSED)),
    *_all("snowflake", ("LISTAGG(s, ',')", REFUSED)),
    *_all("mysql", ("GROUP_CONCAT(s)", REFUSED), ("STDDEV(f)", "0")),
    *_all(
        "redshift",
        ("LISTAGG(s, ',') WITHIN GROUP (ORDER BY s)", "abcab"),
        ("LISTAGG(snul, ',')", None),
    ),
    *_all("redshift", ("LISTAGG(snul, ',') WITHIN GROUP (ORDER BY s)", None)),
    *_all("redshift", ("LISTAGG(empty, ',')", "")),
    *_all("sqlite", ("GROUP_CONCAT(s, ',')", "abcab"), ("GROUP_CONCAT(snul, ',')", None)),
    *_all("sqlite", ("GROUP_CONCAT(empty, ',')", "")),
    *_all("duckdb tsql", ("STRING_AGG(s, ',')", "abcab"), ("STRING_AGG(snul, ',')", None)),
    *_all("duckdb tsql", ("STRING_AGG(empty, ',')", "")),
    *_all("trino", ("LISTAGG(s, ',') WITHIN GROUP (ORDER BY s)", "abcab")),
    *_all("trino", ("LISTAGG(snul, ',') WITHIN GROUP (ORDER BY s)", None)),
    *_all("trino", ("LISTAGG(empty, ',') WITHIN GROUP (ORDER BY s)", "")),
    *_all("bigquery", ("LOGICAL_AND(bnul)", None), ("LOGICAL_OR(no)", "false")),
    *_all("bigquery", ("LOGICAL_OR(bnul)", None), ("LOGICAL_AND(yes)", "true")),
    *_all(
        "trino redshift databricks duckdb spark", ("BOOL_OR(bnul)", None), ("BOOL_AND(yes)", "true")
    ),
    *_all(
        "trino redshift databricks duckdb spark", ("BOOL_AND(bnul)", None), ("BOOL_OR(no)", "false")
    ),
    *_all(
        "bigquery databricks duckdb mysql redshift snowflake trino",
        *(("STDDEV_POP(fneg)", "0"), ("STDDEV_POP(fnul)", None), ("STDDEV_SAMP(fzero)", None)),
        *(("VAR_POP(fnul)", None), ("VAR_POP(fneg)", "0"), ("VAR_POP(fzero)", "0")),
        *(("STDDEV_SAMP(seven)", REFUSED), ("STDDEV_POP(fzero)", "0"), ("STDDEV_SAMP(fnul)", None)),
    ),
    *_all("bigquery databricks duckdb redshift snowflake spark trino", ("STDDEV(fneg)", None)),
    *_all("bigquery databricks duckdb redshift snowflake spark trino", ("VARIANCE(fzero)", None)),
    *_all("bigquery databricks duckdb redshift snowflake spark trino", ("STDDEV(fnul)", None)),
    *_all("bigquery databricks duckdb redshift snowflake spark trino", ("VARIANCE(fnul)", None)),
    # Windows.
    *_all(
        EVERY,
        *(("ROW_NUMBER() OVER (ORDER BY seven)", "1"), ("RANK() OVER (ORDER BY nul)", "1")),
        *(
            ("ROW_NUMBER() OVER (ORDER BY nul, neg)", "1"),
            ("DENSE_RANK() OVER (ORDER BY nul)", "1"),
        ),
        *(("PERCENT_RANK() OVER (ORDER BY nul)", "0"), ("RANK() OVER (ORDER BY neg)", "1")),
        *(("DENSE_RANK() OVER (ORDER BY neg)", "1"), ("PERCENT_RANK() OVER (ORDER BY zero)", "0")),
        *(("CUME_DIST() OVER (ORDER BY nul)", "1"), ("NTILE(2) OVER (ORDER BY nul)", "1")),
        *(
            ("LAG(seven, 1) OVER (ORDER BY one)", None),
            ("LEAD(neg, 1, 0) OVER (ORDER BY one)", "0"),
        ),
        *(
            ("LAG(seven, -1) OVER (ORDER BY one)", REFUSED),
            ("LAG(nul, 0) OVER (ORDER BY one)", None),
        ),
        *(
            ("LEAD(snul, 0) OVER (ORDER BY one)", None),
            ("LEAD(seven, 1, 'x') OVER (ORDER BY one)", REFUSED),
        ),
        *(("NTILE(nul) OVER (ORDER BY nul)", REFUSED),),
        *(("SUM(neg) OVER (PARTITION BY nul ORDER BY one)", "-7"),),
        *(("FIRST_VALUE(snul) OVER (ORDER BY one ROWS UNBOUNDED PRECEDING)", None),),
        *(("FIRST_VALUE(neg) OVER (ORDER BY one ROWS UNBOUNDED PRECEDING)", "-7"),),
        *(("LAST_VALUE(empty) OVER (ORDER BY one ROWS UNBOUNDED PRECEDING)", ""),),
        *(("LAST_VALUE(snul) OVER (ORDER BY one ROWS UNBOUNDED PRECEDING)", None),),
    ),
    *_all("redshift", ("FIRST_VALUE(s) OVER (ORDER BY one)", REFUSED)),
    *_all(
        "bigquery duckdb mysql redshift snowflake trino",
        *(("NTH_VALUE(neg, 1) OVER (ORDER BY one ROWS UNBOUNDED PRECEDING)", "-7"),),
        *(("NTH_VALUE(nul, 1) OVER (ORDER BY one ROWS UNBOUNDED PRECEDING)", None),),
        *(("NTH_VALUE(neg, zero) OVER (ORDER BY one ROWS UNBOUNDED PRECEDING)", REFUSED),),
    ),
]
TYPES = {
    "int": {
        **{"bigquery": "INT64", "mysql": "SIGNED", "oracle": "INTEGER", "trino": "BIGINT"},
        "snowflake": "BIGINT",
    },
    "text2": {"bigquery": "STRING(2)"},
}
"""Dialects' own names of a type; the other dialects call it INT or VARCHAR(2)."""


def written(answer: Answer, dialect: str) -> str:
    """Return the expression as the dialect writes it."""
    names = {"int": "INT", "text2": "VARCHAR(2)"}
    names |= {name: own[dialect] for name, own in TYPES.items() if dialect in own}
    text = answer.expression
    for name, word in names.items():
        text = text.replace("{" + name + "}", word)
    return text
