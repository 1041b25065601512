-- What went through Headrace's port since its start, by database: for members of the engine's role of all roles, for other
-- roles of their own sessions.
-- clients: connected now; clients_total: all since the start.  calls: Headrace calls; call_us: microseconds spent in them.
-- Answered by the commander, on its own port: a function cannot ask the engine.  On direct connections
-- there is the procedure show_client_stats.  Any other form of statement ends up in this function.
DROP FUNCTION IF EXISTS headrace.client_stats();
CREATE FUNCTION headrace.client_stats(
    OUT database text, OUT clients bigint, OUT clients_total bigint, OUT queries bigint,
    OUT received_bytes bigint, OUT sent_bytes bigint, OUT calls bigint, OUT call_errors bigint, OUT call_us bigint)
RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'client_stats is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.client_stats();'
               ' on any connection, CALL headrace.show_client_stats() answers the rows as one JSON array.';
END
$$;
