"""Expressions of every kind over one table, and the rows to evaluate them on."""

from __future__ import annotations

import random

DDL = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN short AS varchar(5);
CREATE DOMAIN posint AS int CHECK (VALUE > 0);
CREATE TYPE comp AS (a int, b varchar(5), c numeric(10,2));
CREATE TYPE holder AS (c comp, d posint, m mood);
CREATE TYPE span AS RANGE (subtype = text, collation = "C");
CREATE TABLE t (
    id int PRIMARY KEY, gone int, k int, big bigint, small smallint, n numeric, f float8,
    r float4, s text, v varchar(10), c char(4), d date, tm time, tmz timetz, ts timestamp,
    tz timestamptz, i interval, ok bool, m mood, j json, jb jsonb, tags text[], nums numeric[],
    mat int[], dom short, di posint, cc comp, h holder, blob bytea, u uuid, ip inet, bt bit(3),
    ir int4range, nr numrange, mr int4multirange, sp span, pt point, tsv tsvector, cs comp[],
    ch "char", nm name, mac macaddr, vb varbit, lsn pg_lsn);
ALTER TABLE t DROP COLUMN gone;
"""

# (minimum version of Postgres, expression)
CASES: list[tuple[int, str]] = [
    *((15, e) for e in (
        "(k, s) < (1, 'a')", "(k, big) <= (1, 5)", "(m, s) > ('ok'::mood, 'x')",
        "ROW(k, s) = ROW(1, 'a')", "(k, s) <> (2, 'b')", "(k, s) IN ((1, 'a'), (2, 'b'))",
        "(k, n, s) >= (0, 1.50, NULL)", "(s COLLATE \"C\", k) < ('b', 2)",
        "row_to_json(t)", "to_jsonb(t) - 'id'", "t", "t IS NULL", "t.* IS NOT NULL",
        "ROW(k, s) IS NULL", "ROW(k, s) IS NOT NULL", "ROW(k, cc) IS NULL",
        "ROW(k, cc) IS NOT NULL", "cc IS NULL", "cc IS NOT NULL", "h IS DISTINCT FROM NULL",
        "row_to_json(ROW(id, s))", "row_to_json(ROW())", "ROW(1, s, n)::comp",
        "(ROW(1, s, n)::comp).b", "(cc).a", "(cc).b", "(h).c", "((h).c).c", "(t).s",
        "cc = ROW(1, 'x', 2.0)::comp", "ROW(ROW(k, s, n)::comp, 5, m)::holder",
        "cc < ROW(k, 'b', 2)::comp", "to_json(cc)", "to_jsonb(h) -> 'c'", "cc::text",
        "h::text", "CASE WHEN k > 0 THEN ROW(k, s) ELSE ROW(k, 'x'::text) END = ROW(1, 'x'::text)",
        "t = t", "jsonb_build_object('row', t)", "cs[1]", "(cs[1]).b", "ARRAY[cc, cc]",
        "coalesce(cc, ROW(9, 'z', 9)::comp)", "ROW(cc, k) = ROW(cc, 1)",
        "s::short", "k::posint", "dom || 'x'", "length(dom)", "di + 1", "NULL::short",
        "tags[1:2]", "tags[2:]", "tags[:1]", "tags[:]", "tags[1]", "tags[k]", "mat[1][2]",
        "mat[1:1][1:2]", "mat[1:1]", "jb['a']", "jb['a']['b']", "jb[1]", "pt[0]",
        "ARRAY[[k, 1], [2, 3]]", "mat = ARRAY[[1, 2], [3, 4]]", "ARRAY[k, id]::text[]",
        "tags::varchar(3)[]", "mat::numeric[]", "nums::int[]", "nums::float8[]",
        "nums::numeric(5,1)[]", "ARRAY[s, v]", "ARRAY[]::int[]", "nums = ARRAY[1, 2.50]",
        "ARRAY[k, id]::posint[]", "array_to_json(mat)", "tags || s", "tags || tags",
        "array_append(tags, s)", "array_position(tags, 'a')", "cardinality(tags)",
        "array_remove(tags, 'a')", "string_to_array(s, ',')",
        "concat(s, '-', k)", "concat(k, '-')", "concat_ws(',', s, v, 'x')",
        "format('%s-%s', s, 'lit')", "concat(VARIADIC tags)",
        "jsonb_build_object('k', k, 's', s)", "json_build_array('x', k, NULL)",
        "jsonb_build_array('x')", "num_nulls(k, s)", "num_nonnulls(k, s, 'x')",
        "json_build_object('d', d, 'tz', tz, 'f', f)", "to_jsonb(tz)",
        "make_interval(days => k)", "make_interval(hours => 2, mins => k)",
        "d > ts", "d = tz", "ts < tz", "d + interval '1 day'", "tz + i", "tz - tz", "d - d",
        "to_char(d, 'YYYY')", "to_char(n, '999.99')", "to_char(i, 'HH24:MI')",
        "to_char(tz, 'Day')", "date_part('year', tz)", "extract(year from d)",
        "extract(epoch from i)", "date_trunc('month', tz)", "date_trunc('week', ts)",
        "date_bin('15 minutes', ts, timestamp '2001-01-01')", "tz::text", "tz::date",
        "tz::timestamp", "ts::timestamptz", "d::timestamptz", "tz::time", "ts::text",
        "(jb ->> 'ts')::timestamptz", "(jb ->> 'ts')::date", "age(ts, ts - i)",
        "ts AT TIME ZONE 'Europe/Berlin'", "tz AT TIME ZONE 'UTC'", "isfinite(d)",
        "(ts, interval '1 day') OVERLAPS (ts, ts)", "make_date(2020, 1, 5)", "tm + i",
        "tmz > '12:00+02'", "justify_days(i)", "-i", "i * 2", "i > '1 day'",
        "current_catalog", "current_database()",
        "to_tsvector('english', s) @@ to_tsquery('english', 'cat & dog')",
        "to_tsvector(s) @@ plainto_tsquery('x')", "to_tsvector('simple', s) @@ 'cat'::tsquery",
        "tsv @@ 'a'::tsquery", "ts_rank(tsv, 'a'::tsquery)", "tsv || 'x:1'::tsvector",
        "ir @> 5", "ir && int4range(1, 10)", "ir * '[2,5)'::int4range", "lower(ir)",
        "nr @> 1.5", "mr @> int4multirange(int4range(1, 3))", "isempty(ir)", "upper_inf(ir)",
        "sp @> 'b'::text", "range_merge(mr)", "ir -|- int4range(5, 6)", "int4range(k, k + 1)",
        "jb @> '{\"a\": 1}'", "jb ? 'a'", "jb ->> 'a'", "jb #>> '{a,b}'", "jb -> 'a' = '1.0'",
        "jsonb_path_exists(jb, '$.a[*] ? (@ > 2)')", "jb || '{\"x\": [1, 2.50]}'",
        "jb @@ '$.a > 1'", "jb @? '$.b'", "jb = '{\"a\": 1.00}'", "jsonb_pretty(jb)",
        "jsonb_set(jb, '{a}', '5')", "jb - 'a'", "jb #- '{a,b}'", "j -> 'a'", "j ->> 'a'",
        "json_typeof(j)", "jsonb_array_length('[1,2]'::jsonb)",
        "jsonb_populate_record(NULL::comp, '{\"a\": 5, \"b\": \"x\"}')",
        "pg_typeof(m)::text", "pg_typeof(di)::text", "pg_typeof(h)::text", "pg_typeof(sp)::text",
        "pg_typeof(cs)::varchar", "pg_typeof((h).c)::text", "pg_typeof(upper(dom))::text",
        "CASE m WHEN 'ok' THEN 1 ELSE 2 END", "m > 'sad'", "m::text", "greatest(m, 'ok')",
        "s::mood = m OR s IS NULL OR true", "m = ANY ('{sad,happy}')",
        "pt <-> point '(0,0)'", "pt ~= point '(1,1)'", "box '(0,0),(2,2)' @> pt",
        "s SIMILAR TO '%a'", "s ~ '^x'", "s LIKE 'a%' ESCAPE '#'", "s ILIKE '%A'",
        "regexp_replace(s, 'a', 'b', 'g')", "regexp_match(s, '(a)(b)?')",
        "overlay(s placing 'x' from 2 for 1)", "substring(s from 2 for 3)",
        "substring(s from 'a.c')", "trim(both 'x' from s)", "position('a' in s)",
        "s COLLATE \"C\" < 'x'", "s COLLATE \"C\"", "s < v", "c = 'ab'", "c || '|'", "c::text",
        "NULLIF(s, 'a')", "coalesce(s, v, 'x')", "(k IS DISTINCT FROM 1)",
        "(jb IS DISTINCT FROM '{}')", "least(k, id)", "greatest(n, 1.5)", "least(s, v)",
        "k = ANY (ARRAY[1, 2, 3])", "k = ANY ('{1,2}')", "s = ALL (tags)",
        "k <> ALL (ARRAY[1, NULL])", "k IN (1, 2, NULL)", "k NOT IN (1, 2)", "s IN ('a', v)",
        "ip << inet '10.0.0.0/8'", "host(ip)", "ip + 1", "masklen(ip)", "mac::text",
        "blob || '\\x00'", "encode(blob, 'hex')", "length(blob)", "get_byte(blob || '\\x01', 0)",
        "bt & B'101'", "bt::int", "vb || B'1'", "lsn > '0/1'", "ch = 'a'", "nm = 'a'", "nm || 'x'",
        "width_bucket(n, 0, 10, 5)", "sqrt(abs(f))", "power(abs(n), 2)", "round(n, 1)",
        "trunc(f)", "div(k, 2)", "gcd(k, 4)", "k / 2.0", "n % 3", "f * r", "big << 2", "~k",
        "k & 6", "k # 5", "|/ 4.0", "@ n", "sign(n)", "ceil(f)", "floor(n)", "exp(0.5)",
        "n::int", "n::numeric(6,1)", "f::numeric", "k::bool", "s || k", "k::text || s",
        "num_nulls(VARIADIC tags)", "u::text", "md5(s)", "sha256(blob)", "quote_ident(s)",
        "quote_literal(s)", "initcap(s)", "split_part(s, ',', 1)", "reverse(s)",
        "translate(s, 'a', 'b')", "left(s, 2)", "right(s, -1)", "starts_with(s, 'a')",
        "s ^@ 'a'", "repeat(s, 2)", "lpad(s, 5)", "ascii(s)", "chr(65)", "to_hex(k)",
        "bit_length(s)", "normalize(s)", "s IS NFC NORMALIZED", "convert_to(s, 'UTF8')",
        "ok AND k > 1", "NOT ok", "ok IS UNKNOWN", "ok IS NOT FALSE", "CASE WHEN ok THEN k END",
        "CASE WHEN k <> 0 THEN id / k END", "coalesce(k, id + 1)", "k <> 0 AND id / k > 2",
        "k IS NULL OR k = 0 OR 10 / k > 1", "NULLIF(k + 1, id)", "s LIKE '%a_'",
        "v NOT LIKE 'a%'", "c LIKE 'a%'", "s LIKE NULL", "s LIKE v", "d + interval '1 month'",
        "interval '1 day' + ts", "ts - interval '1 month 2 days 03:00'", "ts - ts", "d < ts",
        "to_char(ts, 'YYYY-MM-DD HH24:MI')", "extract(epoch from ts)", "date_part('dow', ts)",
        "date_part('week', d)", "date_trunc('quarter', ts)", "date_trunc('day', d)", "d = ts",
        "s NOT IN ('a', 'b')", "c IN ('ab', 'x')", "k = ANY ('{1,NULL}')", "n::numeric(12,3)",
        "ceil(n)", "trunc(n, 1)", "round(f)", "replace(s, 'a', 'bb')", "rtrim(s)", "ltrim(c)",
        "concat(k, s, c)", "strpos(s, v)", "octet_length(s)", "greatest(d, date '2001-01-01')",
        "least(n, 1.5, k)", "CASE WHEN s LIKE 'a%' THEN n * 2 ELSE 0 END", "s || big",
        "substr(s, k)", "substr(s, k, 2)", "left(s, k)", "split_part(s, ',', -1)",
        "xmlelement(name foo, xmlattributes(k as \"a b\"), s)", "xmlforest(k, s as \"x\")",
        "xmlconcat('<a/>', '<b/>')", "xmlpi(name php, 'x')", "xmlparse(content '<a/>')",
        "xmlroot(xmlparse(document '<a/>'), version '1.0', standalone yes)",
        "xmlserialize(content xmlelement(name a) as text)", "xmlelement(name a) IS DOCUMENT",
        "xpath('/a/text()', xmlelement(name a, s))", "xmlcomment('x')",
    )),
    *((16, e) for e in (
        "JSON_OBJECT('a': k, 'b': s)", "JSON_ARRAY(k, s NULL ON NULL)", "JSON_ARRAY()",
        "JSON_OBJECT('x' VALUE k ABSENT ON NULL WITH UNIQUE KEYS RETURNING jsonb)",
        "JSON_OBJECT('a': j FORMAT JSON)", "JSON_OBJECT(RETURNING text)", "s IS JSON",
        "jb IS JSON", "s IS JSON OBJECT WITH UNIQUE KEYS", "s IS NOT JSON ARRAY",
        "date_add(tz, i)", "tags[k:]",
    )),
    # Postgres 18.4 repeats the value of an earlier row if the first argument is NULL here.
    *((17, e) for e in (
        "JSON_VALUE(coalesce(jb, '{}'), '$.a' RETURNING int DEFAULT 5 ON EMPTY NULL ON ERROR)",
        "JSON_VALUE(jb, '$.c')", "JSON_QUERY(jb, '$.b' WITH WRAPPER)",
        "JSON_QUERY(jb, '$.b' OMIT QUOTES)", "JSON_QUERY(jb, '$' RETURNING text)",
        "JSON_EXISTS(jb, '$.a ? (@ > $x)' PASSING k AS x)", "JSON_SERIALIZE(jb)",
        "JSON('{}')", "JSON_SCALAR(k)", "JSON_VALUE(jb, '$.a' DEFAULT 'z' ON ERROR)",
        "JSON_QUERY(jb, '$.z' EMPTY ARRAY ON EMPTY)",
        "JSON_VALUE('{\"a\":' || coalesce(k, 0) || '}', '$.a' RETURNING int)",
        "JSON_QUERY(coalesce(j, '{}'), '$.b' RETURNING text)",
        "JSON_EXISTS(convert_to('[' || coalesce(k, 0) || ']', 'UTF8') FORMAT JSON, '$[*] ? (@ > 2)')",
        "JSON_EXISTS(coalesce(jb, '{}'), '$ ? (@.a == $x.a)' PASSING '{\"a\": 1}' FORMAT JSON AS x)",
    )),
]  # fmt: skip

# (expression, part of the message)
REFUSED: list[tuple[str, str]] = [
    ("current_user", "depends on the role"),
    ("current_schema", "depends on the role"),
    ("pg_typeof(m)", "reads the system catalogs"),
    ("enum_range(m)", "reads the system catalogs"),
    ("format_type(k, 1)", "reads the system catalogs"),
    ("has_table_privilege('t', 'SELECT')", "depends on the role"),
    ("current_setting('x')", "time or session"),
    ("random()", "volatile"),
    ("s::timetz", "current time"),
    ("tags::date[]", "current time"),
    ("age(ts)", "time or session"),
    ("jsonb_populate_record(NULL::t, jb)", "dates or times"),
    ("xmin", "system column"),
    ("s::regclass", "regclass"),
]

VALUES: dict[str, list[str]] = {
    "k": ["0", "1", "2", "-3", "5"], "big": ["1", "5", "-9223372036854775807", "4294967296"],
    "small": ["1", "-1", "7"],
    "n": ["0", "1", "1.0", "1.50", "-2.25", "100.000", "0.0001", "99999999999999999999.5"],
    "f": ["0", "-0", "1.5", "-2.25", "0.1", "1e10"], "r": ["0", "-0", "1.5", "0.1"],
    "s": ["", "a", "ab", "aXb", "xcat dogx", "2020-02-29", "É ", "3", "a,b", "sad"],
    "v": ["", "a", "ab", "xyz", "12:30"], "c": ["", "a", "ab", "abcd"],
    "d": ["2000-01-01", "1999-12-31", "2024-02-29", "infinity", "0044-03-15 BC"],
    "tm": ["00:00", "12:34:56.789", "24:00"],
    "tmz": ["12:00+02", "11:00+01", "10:00+00", "12:00-05:30"],
    "ts": ["2000-01-01 00:00", "2024-02-29 23:59:59.999999", "1999-12-31 12:00"],
    "tz": ["2000-01-01 00:00+00", "2024-03-31 01:30+00", "1970-01-01 00:00+02"],
    "i": ["1 day", "24 hours", "1 mon", "30 days", "-1 year 2 days", "00:00:01.5", "1 mon 1 day", "31 days",
          "1 year 1 day", "2 mons 1 day", "-1 mons +1 day", "-1 days"],
    "ok": ["t", "f"], "m": ["sad", "ok", "happy"],
    "j": ['{"a": 1, "b": [1,2]}', '{"a":1}', "[1, 2]", "null"],
    "jb": ['{"a": 1, "b": {"c": 2.50}}', '{"a": 1.0}', "[1, 1.00, null]", "{}", '"x"', "1.0", "1",
           '{"ts": "2020-05-05 05:05", "a": [1, 2, 3]}', "1e2", "100", '"1.0"', '{"1.0": "1.00"}'],
    "tags": ["{}", "{a,b}", "{a,NULL}", '{"x y",a,"",NULL}', "{a}", "[0:1]={a,b}"],
    "nums": ["{}", "{1,2.50}", "{1.0,2.5}", "{NULL,0}", "{1.00,2.500}", "{1,2.5}", "[2:3]={1,2.5}"],
    "mat": ["{}", "{{1,2},{3,4}}", "{1,2}", "{{1,2}}", "{NULL}"],
    "dom": ["", "a", "abcde"], "di": ["1", "7"],
    "cc": ["(1,x,2.00)", "(,,)", "(1,,)", '(2,"a b",0)', "(1,x,2)"],
    "h": ['("(1,x,2.00)",5,ok)', "(,,)", '("(,,)",1,sad)'],
    "blob": ["\\x", "\\x00ff", "\\x61"],
    "u": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "00000000-0000-0000-0000-000000000000"],
    "ip": ["10.0.0.1", "10.0.0.1/8", "192.168.1.0/24", "::1"], "bt": ["101", "000"],
    "ir": ["[1,5)", "empty", "(,3]", "[1,4]", "(,)"],
    "nr": ["[1,2]", "[1.0,2.0]", "(1,2)", "empty", "[1.5,)", "(,)", "[1.00,2]"],
    "mr": ["{}", "{[1,3),[5,6)}", "{(,)}"], "sp": ["[a,c]", "empty", '["x ",z)', "(,b)"],
    "pt": ["(0,0)", "(1,1)", "(1.5,-2)"], "tsv": ["a:1 b:2", "cat dog", ""],
    "cs": ["{}", '{"(1,x,2.00)",NULL}', '{"(,,)"}', '{"(1,x,2)",NULL}'], "ch": ["a", "b", ""],
    "nm": ["a", "Bc", ""], "mac": ["08:00:2b:01:02:03"], "vb": ["", "1", "01"],
    "lsn": ["0/0", "16/B374D848"],
}  # fmt: skip
"""Values by column: equal, nearly equal, or odd."""


def row(rng: random.Random, number: int) -> str:
    values = [str(number)]
    for column in VALUES:
        value = None if rng.random() < 0.15 else rng.choice(VALUES[column])
        values.append(literal(value))
    return f"({', '.join(values)})"


def literal(value: str | None) -> str:
    """Return a value as SQL, of unknown type."""
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"


def insert(rng: random.Random, numbers: range) -> str:
    rows = ", ".join(row(rng, n) for n in numbers)
    return f"INSERT INTO t (id, {', '.join(VALUES)}) VALUES {rows}"


def change(rng: random.Random) -> str:
    columns = rng.sample(list(VALUES), 12)
    sets = ", ".join(f"{c} = {literal(rng.choice(VALUES[c]))}" for c in columns)
    return f"UPDATE t SET {sets} WHERE id % {rng.randint(2, 4)} = 0"
