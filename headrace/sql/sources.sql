-- The other databases that views read, with their progress.  Only members of the engine's role get rows.
-- state: running, starting, down (it cannot be reached now, so its part of views lags) or lost (the next changes
-- are no longer available).  position: transactions that ended before it are here.  lag_bytes: its WAL that is not
-- here yet, as it reports now; NULL: no report.  changes: rows received since it was added.
DROP FUNCTION IF EXISTS headrace.sources();
CREATE FUNCTION headrace.sources(
    OUT source text, OUT state text, OUT "position" text, OUT lag_bytes bigint, OUT changes bigint,
    OUT heard_at timestamptz, OUT views bigint, OUT tables bigint, OUT problem text)
RETURNS SETOF record
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('sources', 'show_sources'))
      AS a(
          source text, state text, "position" text, lag_bytes bigint, changes bigint, heard_at timestamptz, views bigint,
          tables bigint, problem text)
$$;
