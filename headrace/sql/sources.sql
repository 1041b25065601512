-- The other databases that views read, with their progress.  Only members of the engine's role get rows.
-- The commander answers it on its own port, because a function cannot ask the engine.  On direct connections
-- use the procedure show_sources.
-- state: running, starting, down (it cannot be reached now, so its part of views lags) or lost (the next changes
-- are no longer available).  position: transactions that ended before it are here.  lag_bytes: its WAL that is not
-- here yet, as it reports now; NULL: no report.  changes: rows received since it was added.
-- This body runs only for statements of a form that the commander does not answer.
CREATE OR REPLACE FUNCTION headrace.sources(
    OUT source text, OUT state text, OUT "position" text, OUT lag_bytes bigint, OUT changes bigint,
    OUT heard_at text, OUT views bigint, OUT tables bigint, OUT problem text)
RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'sources is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.sources();'
               ' on any connection, CALL headrace.show_sources() answers the rows as one JSON array.';
END
$$;
