"""Random values of each key type, drawn by Postgres over the type's whole domain.

A *form* is an SQL expression with a random value; ``i`` is the number of the row.  The forms of a
type are taken in turn, so that each appears equally often.  Forms with few values make equal ones,
some of which look different: ``31 days`` and ``1 mon 1 day``.
"""

from __future__ import annotations

from dataclasses import dataclass

FUNCTIONS = """
CREATE FUNCTION pg_temp.n(low numeric, high numeric) RETURNS bigint LANGUAGE sql VOLATILE AS
    'SELECT floor(low + random()::numeric * (high - low + 1))::bigint';
CREATE FUNCTION pg_temp.pick(VARIADIC a text[]) RETURNS text LANGUAGE sql VOLATILE AS
    'SELECT a[1 + floor(random() * cardinality(a))::int]';
CREATE FUNCTION pg_temp.hex(bytes int) RETURNS text LANGUAGE sql VOLATILE AS
    'SELECT left(md5(random()::text) || md5(random()::text), 2 * bytes)';
CREATE FUNCTION pg_temp.word() RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(string_agg(pg_temp.pick('a', 'b', 'B', ' ', chr(1), chr(2), 'é', '😀', '"', E'\\\\',
        ',', '(', '}', E'\\n', '0', '.', 'NULL'), ''), '') FROM generate_series(1, pg_temp.n(0, 3))
$$;
CREATE FUNCTION pg_temp.span(units text) RETURNS interval LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(string_agg(pg_temp.n(-2, 2) || ' ' || unit, ' '), '0')::interval
      FROM regexp_split_to_table(units, ' ') unit WHERE random() < 0.6
$$;
CREATE FUNCTION pg_temp.number() RETURNS numeric LANGUAGE sql VOLATILE AS
    'SELECT round(pg_temp.n(-30, 30) / 10.0, pg_temp.n(0, 3)::int)';
"""
"""Helpers of the forms; they are created in each session."""


@dataclass(frozen=True)
class Domain:
    """A type, and the forms of its random values."""

    sql: str
    """The type; with a collation where it has one."""
    forms: tuple[str, ...]
    since: tuple[tuple[int, str], ...] = ()
    """Forms that need a minimum version of the server."""
    hashed: bool = False
    """The type has ``=`` and no order."""

    def draw(self, version: int) -> str:
        """Draw the SQL expression of one random value."""
        forms = (*self.forms, *(form for first, form in self.since if version >= first))
        branches = " ".join(f"WHEN {k} THEN ({form})" for k, form in enumerate(forms))
        return f"CASE i % {len(forms)} {branches} END"


def _integers(low: int, high: int, sql: str) -> Domain:
    cast = f"::text::{sql}"
    ends = f"pg_temp.pick('{low}', '{high}', '{low + 1}', '{high - 1}')::{sql}"
    return Domain(sql, (f"pg_temp.n(0, 3){cast}", f"pg_temp.n({low}, {high}){cast}", ends))


_FLOATS = "pg_temp.pick('NaN', 'Infinity', '-Infinity', '-0', '0', '1', '-1.5'{})"
_MICROSECONDS = "make_interval(secs => pg_temp.n(-3, 3) / 1000000.0)"
_CLOCK = "lpad(pg_temp.n(0, 23)::text, 2, '0') || to_char(pg_temp.n(0, 5), ':FM00') || ':00'"
_V4 = "concat_ws('.', pg_temp.n(0, 1), pg_temp.n(0, 1), 0, pg_temp.n(0, 255))"
_V6 = (
    "(pg_temp.pick('::', '::ffff:1.2.3.', '1::', 'fe80:0:0:1::') || pg_temp.n(0, 9))",
    "(substr(regexp_replace(pg_temp.hex(16), '(....)', ':\\1', 'g'), 2))",
)
_SMALL = "least(pg_temp.n(0, 32), pg_temp.n(0, 40))"


def _moments(sql: str) -> Domain:
    last = f"{sql} '294276-12-31 23:59:59.999999'"
    return Domain(
        sql,
        (
            f"{sql} '2000-01-01' + {_MICROSECONDS}",
            f"{sql} '0001-01-01 00:00:00' + make_interval(days => pg_temp.n(-800, 800)::int)",
            f"{sql} '2000-01-01' + make_interval(days => pg_temp.n(-2451544, 106751980)::int,"
            " secs => random() * 86400)",
            f"pg_temp.pick('infinity', '-infinity', '4714-11-24 00:00:00 BC')::{sql}",
            f"{last} - interval '1 s' * pg_temp.n(0, 2)",
        ),
    )


_BASE: dict[str, Domain] = {
    "bool": Domain("bool", ("random() < 0.5",)),
    "int2": _integers(-(2**15), 2**15 - 1, "int2"),
    "int4": _integers(-(2**31), 2**31 - 1, "int4"),
    "int8": _integers(-(2**63), 2**63 - 1, "int8"),
    "oid": _integers(0, 2**32 - 1, "oid"),
    "float4": Domain(
        "float4",
        (
            _FLOATS.format(", '1e-45', '3.4028235e38'") + "::float4",
            "pg_temp.n(-4, 4)::float4 / 2",
            "((random() - 0.5) * 10.0 ^ pg_temp.n(-37, 37))::float4",
        ),
    ),
    "float8": Domain(
        "float8",
        (
            _FLOATS.format(", '5e-324', '1.7976931348623157e308'") + "::float8",
            "pg_temp.n(-4, 4)::float8 / 2",
            "(random() - 0.5) * 10.0::float8 ^ pg_temp.n(-300, 300)",
        ),
    ),
    "numeric": Domain(
        "numeric",
        (
            "pg_temp.number()",
            "pg_temp.pick('NaN', 'Infinity', '-Infinity', '-0.00', '0', '0.0')::numeric",
            "pg_temp.n(-3, 3) * 10.0 ^ pg_temp.n(-4, 4)::numeric",
            "(pg_temp.pick('', '-') || '1e' || pg_temp.pick('125', '126', '127', '128', '-126',"
            " '-127', '-128', '-129', '9000', '-9000'))::numeric",
            "CASE WHEN i % 300 > 6 THEN pg_temp.number()"
            " ELSE (pg_temp.pick('', '-') || '1e' || pg_temp.pick('131071', '-16383'))::numeric END",
            "pg_temp.n(-9223372036854775808, 9223372036854775807) / 10.0 ^ pg_temp.n(0, 20)",
            "(pg_temp.pick('', '-') || repeat(pg_temp.n(1, 9)::text, pg_temp.n(1, 60)::int) || '.'"
            " || repeat(pg_temp.n(0, 9)::text, pg_temp.n(1, 60)::int))::numeric",
        ),
    ),
    "date": Domain(
        "date",
        (
            "date '2000-01-01' + pg_temp.n(-3, 3)::int",
            "date '0001-01-01' + pg_temp.n(-800, 800)::int",
            "date '2000-01-01' + pg_temp.n(-2451545, 2145031948)::int",
            "pg_temp.pick('infinity', '-infinity', '4714-11-24 BC', '5874897-12-31')::date",
            "make_date(pg_temp.n(-19, 20)::int * 100 + 2000, 3, 1) - 1",
        ),
    ),
    "time": Domain(
        "time",
        (
            f"time '12:00' + {_MICROSECONDS}",
            "pg_temp.pick('24:00', '00:00', '23:59:59.999999')::time",
            "time '00:00' + make_interval(secs => random() * 86399)",
        ),
    ),
    "timestamp": _moments("timestamp"),
    "timestamptz": _moments("timestamptz"),
    "timetz": Domain(
        "timetz",
        (
            f"({_CLOCK} || pg_temp.pick('+00', '+01', '-01', '+05:30'))::timetz",
            "(pg_temp.pick('24:00', '00:00', '23:59:59.999999')"
            " || pg_temp.pick('+15:59:59', '-15:59:59', '+00', '-08:30'))::timetz",
            f"({_CLOCK} || '.5' || to_char(make_interval(secs => pg_temp.n(0, 57599)),"
            " '+HH24:MI:SS'))::timetz",
        ),
    ),
    "interval": Domain(
        "interval",
        (
            "pg_temp.span('year mon day')",
            "pg_temp.span('mon day hour')",
            "pg_temp.span('year mon day hour minute second microsecond')",
            "pg_temp.pick('1 day', '1 mon 1 day', '1 year 1 day', '2 mons 1 day', '-1 days',"
            " '31 days', '61 days', '24:00', '1 mon', '30 days', '-30 days +24:00', '0',"
            " '-1 mons +1 day', '1 year', '12 mons', '360 days', '-00:00:00.000001')::interval",
            "make_interval(days => pg_temp.n(-1, 1)::int * 30, hours => pg_temp.n(-2, 2)::int * 24)",
            "make_interval(months => pg_temp.n(-2147483648, 2147483647)::int,"
            " days => pg_temp.n(-2147483648, 2147483647)::int)",
            "(pg_temp.n(-9223372036854775808, 9223372036854775807) || ' us')::interval",
            "pg_temp.pick('-178956970 years -8 mons', '178956970 years 7 mons', '-2147483648 days',"
            " '2147483647 days', '-2562047788:00:54.775807', '2562047788:00:54.775807')::interval",
            "make_interval(secs => pg_temp.n(-200000, 200000) / 1000.0)",
            "make_interval(days => pg_temp.n(-99999, 99999)::int, mins => pg_temp.n(-99, 99)::int)",
        ),
        since=((17, "pg_temp.pick('infinity', '-infinity')::interval"),),
    ),
    "text": Domain('text COLLATE "C"', ("pg_temp.word()", "pg_temp.word() || pg_temp.word()")),
    "varchar": Domain('varchar COLLATE "C"', ("pg_temp.word()",)),
    "name": Domain('name COLLATE "C"', ("left(pg_temp.word() || 'x', 60)::name",)),
    "bpchar": Domain(
        'bpchar COLLATE "C"',
        ("pg_temp.word()::bpchar", "(pg_temp.word() || repeat(' ', pg_temp.n(0, 3)::int))::bpchar"),
    ),
    "char": Domain(
        '"char"',
        ("chr(pg_temp.n(1, 127)::int)::\"char\"", "''::\"char\""),
        since=((16, 'pg_temp.n(-128, 127)::int::"char"'),),
    ),
    "bytea": Domain(
        "bytea",
        (
            "decode(left(pg_temp.hex(9), 2 * pg_temp.n(0, 9)::int), 'hex')",
            "decode(repeat('00', pg_temp.n(0, 2)::int) || pg_temp.pick('00', '01', 'ff', ''), 'hex')",
        ),
    ),
    "uuid": Domain(
        "uuid", ("pg_temp.hex(16)::uuid", "lpad(pg_temp.n(0, 3)::text, 32, '0')::uuid")
    ),
    "jsonb": Domain(
        "jsonb",
        (
            "to_jsonb(pg_temp.number())",
            "to_jsonb(pg_temp.word())",
            "to_jsonb(pg_temp.number()::text)",
            "pg_temp.pick('null', 'true', '[]', '{}', '[1.0, 1]', '[1, 1.00]', '\"1.0\"')::jsonb",
            "jsonb_build_array(pg_temp.number(), pg_temp.word(), NULL)",
            "jsonb_build_object('1.0', pg_temp.number(), pg_temp.word(), pg_temp.n(0, 1))",
            "jsonb_build_array(jsonb_build_object('a', 1e3 * pg_temp.number()), 1e-20, 1e25)",
        ),
    ),
    "bit": Domain("bit(9)", ("pg_temp.n(0, 511)::int::bit(9)",)),
    "varbit": Domain(
        "varbit",
        (
            "substring(pg_temp.n(0, 15)::int::bit(4) FOR pg_temp.n(0, 4)::int)",
            "substring(pg_temp.n(0, 1099511627775)::bit(40) FOR pg_temp.n(0, 40)::int)",
        ),
    ),
    "money": Domain(
        "money",
        (
            "(pg_temp.n(-300, 300) / 100.0)::money",
            "(pg_temp.n(-9223372036854775807, 9223372036854775807) / 100.0)::money",
            "pg_temp.pick('-92233720368547758.08', '92233720368547758.07')::money",
        ),
    ),
    "inet": Domain(
        "inet",
        (
            f"{_V4}::inet",
            f"({_V4} || '/' || {_SMALL})::inet",
            f"({_V6[0]} || '/' || {_SMALL} * 4)::inet",
            f"{_V6[1]}::inet",
        ),
    ),
    "cidr": Domain(
        "cidr",
        (
            f"network(({_V4} || '/' || {_SMALL})::inet)",
            f"network(({_V6[0]} || '/' || {_SMALL} * 4)::inet)",
            f"network(({_V6[1]} || '/' || pg_temp.n(0, 128))::inet)",
        ),
    ),
    "macaddr": Domain("macaddr", ("pg_temp.hex(6)::macaddr", "('0800000000' || '0' || pg_temp.n(0, 3))::macaddr")),
    "macaddr8": Domain("macaddr8", ("pg_temp.hex(8)::macaddr8", "('08000000000000' || '0' || pg_temp.n(0, 3))::macaddr8")),
    "pg_lsn": Domain("pg_lsn", ("'0/0'::pg_lsn + pg_temp.n(0, 9223372036854775807)", "'0/0'::pg_lsn + pg_temp.n(0, 20)")),
    "xid": Domain("xid", ("pg_temp.n(0, 20)::text::xid", "pg_temp.n(0, 4294967295)::text::xid"), hashed=True),
    "cid": Domain("cid", ("pg_temp.n(0, 20)::text::cid", "pg_temp.n(0, 4294967295)::text::cid"), hashed=True),
    "xid8": Domain("xid8", ("pg_temp.n(0, 20)::text::xid8", "pg_temp.n(0, 9223372036854775807)::text::xid8")),
    "tid": Domain("tid", ("format('(%s,%s)', pg_temp.n(0, 3), pg_temp.n(0, 3))::tid", "format('(%s,%s)', pg_temp.n(0, 4294967295), pg_temp.n(0, 65535))::tid")),
    "tsvector": Domain(
        "tsvector",
        (
            "to_tsvector('simple', pg_temp.word() || ' ' || pg_temp.word())",
            "setweight(to_tsvector('simple', pg_temp.pick('a b', 'b a', 'a', '')), pg_temp.pick('A', 'D')::\"char\")",
            "strip(to_tsvector('simple', pg_temp.pick('a b', 'b a', 'a a b')))",
            "array_to_tsvector(ARRAY[pg_temp.word() || 'x', pg_temp.word() || 'y'])",
        ),
    ),
}  # fmt: skip

_RANGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "int4range": ("int4", ("pg_temp.n(-3, 3)::int", "pg_temp.n(-2147483647, 2147483646)::int")),
    "int8range": ("int8", ("pg_temp.n(-3, 3)", "pg_temp.n(-9223372036854775807, 9223372036854775806)")),
    "numrange": ("numeric", ("pg_temp.number()", "pg_temp.pick('Infinity', '-Infinity', '1.0', '1')::numeric")),
    "daterange": ("date", (*_BASE["date"].forms[:2], "pg_temp.pick('infinity', '-infinity')::date")),
    "tsrange": ("timestamp", _BASE["timestamp"].forms),
    "tstzrange": ("timestamptz", _BASE["timestamptz"].forms),
}  # fmt: skip
_BOUNDS = "pg_temp.pick('[)', '[]', '(]', '()')"


def _range(sql: str, forms: tuple[str, ...]) -> Domain:
    # The condition makes Postgres evaluate the subquery for each row.
    drawn = [
        f"(SELECT {sql}(least(a, b), greatest(a, b), {_BOUNDS})"
        f" FROM (SELECT {form} AS a, {form} AS b WHERE i > 0 OFFSET 0) s)"
        for form in forms
    ]
    end = forms[0]
    half = f"CASE WHEN random() < 0.5 THEN {sql}(NULL, {end}, {_BOUNDS}) ELSE {sql}({end}, NULL, {_BOUNDS}) END"
    return Domain(sql, (*drawn, half, f"pg_temp.pick('empty', '(,)')::{sql}"))


def _multirange(sql: str, part: Domain) -> Domain:
    one, many = f"({part.forms[0]})", f"({part.forms[-2]})"
    return Domain(
        sql, (f"{sql}({one})", f"{sql}({one}, {one}, {one})", f"{sql}({many}, {one})", f"{sql}()")
    )


def _array(element: Domain) -> Domain:
    sql, _, collation = element.sql.partition(" COLLATE ")
    kind = f"{sql}[]"
    drawn = []
    for form in element.forms:
        one = f"({form})"
        drawn += [f"ARRAY[{one}]::{kind}", f"ARRAY[{one}, {one}]::{kind}"]
    one = f"({element.forms[0]})"
    drawn += [
        f"ARRAY[NULL, {one}]::{kind}",
        f"ARRAY[[{one}], [{one}]]::{kind}",
        f"array_fill({one}::{sql}, ARRAY[2], ARRAY[pg_temp.n(-1, 2)::int])",
        f"pg_temp.pick('{{}}', '{{NULL}}', NULL)::{kind}",
    ]
    full = f"{kind} COLLATE {collation}" if collation else kind
    return Domain(full, tuple(drawn), hashed=element.hashed)


_RANGED = {name: _range(name, forms) for name, (_, forms) in _RANGES.items()}
_MULTI = {
    name: _multirange(name, _RANGED[part])
    for name, part in {
        "int4multirange": "int4range",
        "int8multirange": "int8range",
        "nummultirange": "numrange",
        "datemultirange": "daterange",
        "tsmultirange": "tsrange",
        "tstzmultirange": "tstzrange",
    }.items()
}
_PLAIN = _BASE | _RANGED | _MULTI

DOMAINS: dict[str, Domain] = _PLAIN | {
    f"{name}[]": _array(domain) for name, domain in _PLAIN.items()
}
"""By the type's name in ``pg_type``, and ``[]``."""
