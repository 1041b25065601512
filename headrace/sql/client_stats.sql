-- What went through Headrace's port since its start, by database: for members of the engine's role of all roles, for other
-- roles of their own sessions.
-- clients: connected now; clients_total: all since the start.  calls: Headrace calls; call_us: microseconds spent in them.
DROP FUNCTION IF EXISTS headrace.client_stats();
CREATE FUNCTION headrace.client_stats(
    OUT database text, OUT clients bigint, OUT clients_total bigint, OUT queries bigint,
    OUT received_bytes bigint, OUT sent_bytes bigint, OUT calls bigint, OUT call_errors bigint, OUT call_us bigint)
RETURNS SETOF record
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('client_stats', 'show_client_stats'))
      AS a(
          database text, clients bigint, clients_total bigint, queries bigint, received_bytes bigint,
          sent_bytes bigint, calls bigint, call_errors bigint, call_us bigint)
$$;
