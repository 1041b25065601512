-- The caller's settings that can change what a query means.
CREATE OR REPLACE FUNCTION headrace.captured_settings() RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.jsonb_object_agg(s.name, pg_catalog.current_setting(s.name))
      FROM pg_catalog.unnest('{
        search_path, TimeZone, DateStyle, IntervalStyle, extra_float_digits, bytea_output,
        default_text_search_config, xmloption, xmlbinary, lc_messages, lc_monetary, lc_numeric,
        lc_time, standard_conforming_strings, backslash_quote, array_nulls,
        transform_null_equals, timezone_abbreviations}'::pg_catalog.text[]) AS s(name)
$$;
