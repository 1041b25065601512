-- Names of the views whose part of the present batch takes long; NULL: none.  Every role may see names, as in
-- list_views().
CREATE OR REPLACE FUNCTION headrace.at_work() RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT string_agg(format('%I.%I', v.schema_name, v.view_name), ', ' ORDER BY h.since, v.id)
      FROM headrace.held h JOIN headrace.views v ON v.id = h.view_id WHERE h.kind = 'work'
$$;
