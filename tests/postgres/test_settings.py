"""Settings that matter, and the values that they change, as Postgres shows them."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from headrace.postgres import settings
from headrace.postgres.connect import session

MATTERS = {
    "TimeZone": ("Asia/Tokyo", "'2024-01-31 20:00:00+00'::timestamptz::date"),
    "DateStyle": ("German", "'2024-01-31'::date::text"),
    "IntervalStyle": ("iso_8601", "'1 day'::interval::text"),
    "extra_float_digits": ("-3", "(1::float8 / 3)::text"),
    "bytea_output": ("escape", "'\\x41'::bytea::text"),
    "default_text_search_config": ("simple", "to_tsvector('the cats')"),
    "timezone_abbreviations": ("Australia", "'2024-01-31 20:00 EST'::timestamptz"),
    "quote_all_identifiers": ("on", "quote_ident('a') || format('%I', 'b')"),
    "standard_conforming_strings": ("off", r"length('a\\b')"),
    "array_nulls": ("off", "'{NULL}'::text[]"),
    "transform_null_equals": ("on", "(SELECT NULL) = NULL"),
    "search_path": ("pg_temp", "current_schemas(true)"),
}
"""Non-default values of settings, and expressions whose results they change."""
NOT_HERE = {"lc_monetary", "lc_numeric", "lc_time", "xmlbinary", "xmloption"}
"""Settings that need locales or libxml, which the server of the wheel does not have."""
LEGACY = {"backslash_quote"}
"""A setting that matters only for non-standard strings."""
LOOKS = """
SELECT ROW('2024-01-31 20:00:00+00'::timestamptz, '2024-01-31'::date, '1 day'::interval,
  0.1::float8 + 0.2, 0.1::float4, '\\x41'::bytea, 1.50, '{"a": 1.0}'::jsonb, 'a fat cat'::tsvector,
  ARRAY[NULL, 'NULL', 'a b'], '[1,5)'::int4range, '10.0.0.1'::inet, B'101', '(1,2)'::point,
  '[2024-01-01 00:00+00,]'::tstzrange, 'x'::name, '1.50'::money, true)::text"""


def answer(dsn: str, given: dict[str, str], query: str) -> object:
    with session(dsn, name="settings", settings=given) as conn:
        return conn.execute(query.encode()).fetchone()


@pytest.mark.parametrize("name", MATTERS)
def test_it_matters(postgres, name):
    value, expression = MATTERS[name]
    query = f"SELECT {expression}"
    assert answer(postgres, {}, query) != answer(postgres, {name: value}, query)


def test_what_matters_is_captured():
    assert {*MATTERS, *NOT_HERE, *LEGACY} == set(settings.CAPTURED)
    assert len(settings.CAPTURED) == len(set(settings.CAPTURED))
    # The plan stores the settings for the meaning of text; all others that may differ are pinned.
    assert set(settings.OUTPUT) <= set(settings.EVALUATION) & set(settings.PINNED_SETTINGS)


def test_what_decides_how_values_look(postgres):
    ours = answer(postgres, {}, LOOKS)
    found = {
        name
        for name, (value, _) in MATTERS.items()
        if answer(postgres, {name: value}, LOOKS) != ours
    }
    assert found | {"lc_monetary"} == set(settings.OUTPUT)


def test_every_name_is_that_of_a_setting(postgres):
    with psycopg.connect(postgres) as conn:
        rows = conn.execute("SELECT name FROM pg_settings").fetchall()
    known = {name for (name,) in rows}
    for names in (settings.PINNED_SETTINGS, settings.CAPTURED, settings.OUTPUT):
        assert set(names) <= known
    # Two that are in no row of that view.
    assert set(settings.FORCED) - known <= {"role", "session_authorization"}


def test_they_are_asked_for_at_once(postgres):
    given = {name: value for name, (value, _) in MATTERS.items()}
    with session(postgres, name="settings", settings=given) as conn:
        (found,) = conn.execute(settings.AS_JSON.encode()).fetchone()
        for name in settings.CAPTURED:
            shown = conn.execute(sql.SQL("SHOW {}").format(sql.Identifier(name)))
            assert found[name] == shown.fetchone()[0]
    assert set(found) == set(settings.CAPTURED)
