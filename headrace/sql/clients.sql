-- The clients of Headrace's port: superusers and members of the engine's role see all, other roles their own.
-- id: for end_client.  state: login, active (the server owes an answer, or a call is running) or idle.
-- transaction: idle, open or failed; NULL for a database without an engine.  call: the call that is running, call_ms: for
-- how long.  idle_ms: since the client last sent anything.  server_pid: its process on the Postgres server.
-- tls, server_tls: protocol and cipher of the two connections; NULL without TLS.
-- Answered by the commander, on its own port: a function cannot ask the engine.  On direct connections
-- there is the procedure show_clients.  Any other form of statement ends up in this function.
DROP FUNCTION IF EXISTS headrace.clients();
CREATE FUNCTION headrace.clients(
    OUT id bigint, OUT role text, OUT database text, OUT application_name text, OUT state text,
    OUT transaction text, OUT call text, OUT call_ms bigint, OUT connected_at text, OUT idle_ms bigint,
    OUT queries bigint, OUT received_bytes bigint, OUT sent_bytes bigint, OUT address text, OUT port bigint,
    OUT tls text, OUT server_pid bigint, OUT server_tls text)
RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'clients is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.clients();'
               ' on any connection, CALL headrace.show_clients() answers the rows as one JSON array.';
END
$$;
