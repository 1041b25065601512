-- The clients of Headrace's port: superusers and members of the engine's role see all, other roles their own.
-- id: for end_client.  state: login, active (the server owes an answer, or a call is running) or idle.
-- transaction: idle, open or failed; NULL for a database without an engine.  call: the call that is running, call_ms: for
-- how long.  idle_ms: since the client last sent anything.  server_pid: its process on the Postgres server.
-- tls, server_tls: protocol and cipher of the two connections; NULL without TLS.
DROP FUNCTION IF EXISTS headrace.clients();
CREATE FUNCTION headrace.clients(
    OUT id bigint, OUT role text, OUT database text, OUT application_name text, OUT state text,
    OUT transaction text, OUT call text, OUT call_ms bigint, OUT connected_at timestamptz, OUT idle_ms bigint,
    OUT queries bigint, OUT received_bytes bigint, OUT sent_bytes bigint, OUT address text, OUT port bigint,
    OUT tls text, OUT server_pid bigint, OUT server_tls text)
RETURNS SETOF record
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('clients', 'show_clients'))
      AS a(
          id bigint, role text, database text, application_name text, state text, transaction text, call text,
          call_ms bigint, connected_at timestamptz, idle_ms bigint, queries bigint, received_bytes bigint,
          sent_bytes bigint, address text, port bigint, tls text, server_pid bigint, server_tls text)
$$;
