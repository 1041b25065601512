-- All views with their state (view_states.sql tells what the columns are); readable by everybody, also
-- while the engine is down.  query and message are shown to the owner of a view and his members:
-- a message may have a value of a row in it.
CREATE FUNCTION headrace.list_views(
    OUT name text, OUT status text, OUT message text, OUT query text, OUT rows bigint,
    OUT lag_ms bigint, OUT lag_bytes bigint, OUT txid bigint, OUT lsn pg_lsn)
RETURNS SETOF record
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.name, s.status, coalesce(s.message, nullif(concat_ws('; ', headrace.view_message(v.id), v.note), '')), v.query, s.rows, s.lag_ms,
           s.lag_bytes, s.txid, s.lsn
      FROM headrace.view_states() WITH ORDINALITY s
      LEFT JOIN headrace.views v ON v.id = s.id  -- row security decides
     ORDER BY s.ordinality
$$;
