-- Compares a view's table with its query at one snapshot.  Returns rows that are too many in the table (surplus) or
-- too few (missing), none if it is right.  in_postgres: Postgres computes the query, also that of a large view.
DROP FUNCTION IF EXISTS headrace.verify_view(text);
DROP PROCEDURE IF EXISTS headrace.verify(text, jsonb);
CREATE OR REPLACE FUNCTION headrace.verify_view(
    name text, in_postgres boolean DEFAULT false, OUT surplus bigint, OUT missing bigint, OUT contents text)
RETURNS SETOF record
LANGUAGE sql VOLATILE
AS $$
    SELECT a.surplus, a.missing, a.contents
      FROM pg_catalog.jsonb_to_recordset(
        headrace.ask_engine(
            'verify_view', 'verify', pg_catalog.jsonb_build_object('name', name, 'in_postgres', in_postgres),
            headrace.captured_settings(), true))
      AS a(
          surplus pg_catalog.int8, missing pg_catalog.int8, contents pg_catalog.text)
$$;
