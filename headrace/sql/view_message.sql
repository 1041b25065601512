-- Explains the status of a view in one text: the error with its row, detail and hint, and what the server has tried
-- by itself.  Only for views that the current user may see.
CREATE OR REPLACE FUNCTION headrace.view_message(view_id bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT nullif(concat_ws(' ', nullif(concat_ws('; ',
               nullif(concat_ws(' at ', v.message, v.culprit), ''), CASE WHEN v.hint IS NULL THEN v.detail ELSE rtrim(v.detail, '.') END,
               v.hint), ''), v.tried), '')
      FROM headrace.views v WHERE v.id = view_id
$$;
