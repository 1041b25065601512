-- The last batches, newest first: those in flight, and some hundred that are committed.  Only members of the
-- engine's role get rows.
-- In microseconds, process_us: from its start to its result; wait_us: until it could be written; write_us: writing
-- in Postgres; fresh_us: from the commit of its oldest transaction to the commit in the result tables.
DROP FUNCTION IF EXISTS headrace.batches();
CREATE FUNCTION headrace.batches(
    OUT txid bigint, OUT attempt bigint, OUT state text, OUT at timestamptz, OUT transactions bigint, OUT rows bigint,
    OUT views bigint, OUT process_us bigint, OUT wait_us bigint, OUT write_us bigint, OUT fresh_us bigint)
RETURNS SETOF record
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('batches', 'show_batches'))
      AS a(
          txid bigint, attempt bigint, state text, at timestamptz, transactions bigint, rows bigint, views bigint,
          process_us bigint, wait_us bigint, write_us bigint, fresh_us bigint)
$$;
