-- The other databases that views read: how far each has come.  For members of the engine's role; nobody else
-- is told any.
-- Answered by the commander, on its own port: a function cannot ask the engine.  On direct connections
-- there is the procedure show_sources.
-- state: running, starting, down (it cannot be reached now: its part of views lags) or lost (what comes next
-- cannot be had).  position: what ended before it is here.  lag_bytes: how much WAL of its is not here yet, as
-- it says now; NULL: it does not say.  changes: rows that have come since it was added.
-- Whoever gets here has written something else than the statement that the commander answers.
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
