-- The connection points of views whose owner the caller acts for; readable also while the engine is down.
-- history: how much the point needs; the view may keep more.  since: start of the history; NULL: the point needs
-- none, or the engine has not begun it.
-- attached: the views that read the view, of those that the caller may see.
DROP FUNCTION IF EXISTS headrace.connection_points();
CREATE FUNCTION headrace.connection_points(
    OUT name text, OUT view text, OUT history interval, OUT storage_key text, OUT since timestamptz,
    OUT attached text[])
RETURNS SETOF record
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = on
AS $$
    SELECT p.name, format('%I.%I', v.schema_name, v.view_name), p.keep, p.storage_key::text,
           CASE WHEN p.keep IS NOT NULL THEN h.first_at END,
           ARRAY(SELECT format('%I.%I', a.schema_name, a.view_name)
                   FROM headrace.view_uses u JOIN headrace.views a ON a.id = u.view_id
                  WHERE u.result_oid = v.result_oid ORDER BY 1)
      FROM headrace.points p JOIN headrace.views v ON v.id = p.view_id  -- row security decides
      LEFT JOIN headrace.histories h ON h.view_id = p.view_id
     ORDER BY p.name
$$;
