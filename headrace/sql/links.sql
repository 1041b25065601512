-- The links between main and the other workers, as main sees them.  For members of the engine's role; nobody
-- else is told any.
-- Answered by the commander, on its own port: a function cannot ask the engine.  On direct connections
-- there is the procedure show_links.
-- kind: here (a socket on this machine) or elsewhere (TLS); up: whether it is.  latency_us: one way, microseconds;
-- bandwidth: the most of the last three probes, most: of all since the link was made; NULL: not measured yet.
-- out_bytes_per_s, in_bytes_per_s: what goes to the worker, and comes from it, now (ten seconds).
-- packed: whether rows are compressed; overridden: whether add_link said something, which latency_us and
-- bandwidth are then.
-- Whoever gets here has written something else than the statement that the commander answers.
DROP FUNCTION IF EXISTS headrace.links();
CREATE FUNCTION headrace.links(
    OUT worker text, OUT kind text, OUT up boolean, OUT latency_us bigint, OUT bandwidth bigint, OUT most bigint,
    OUT out_bytes_per_s bigint, OUT in_bytes_per_s bigint, OUT packed boolean, OUT overridden boolean)
RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'links is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.links();'
               ' on any connection, CALL headrace.show_links() answers the rows as one JSON array.';
END
$$;
