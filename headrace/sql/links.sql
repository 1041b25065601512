-- The links between main and the other workers, as main sees them.  Only members of the engine's role get rows.
-- The commander answers it on its own port, because a function cannot ask the engine.  On direct connections
-- use the procedure show_links.
-- kind: here (a socket on this machine) or elsewhere (TLS); up: whether it is alive.  latency_us: one way, in
-- microseconds; bandwidth: the maximum of the last three probes, most: of all probes of the link; NULL: not measured
-- yet.  out_bytes_per_s, in_bytes_per_s: traffic to and from the worker, over ten seconds.
-- packed: whether rows are compressed; overridden: whether latency_us or bandwidth was set by add_link.
-- This body runs only for statements of a form that the commander does not answer.
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
