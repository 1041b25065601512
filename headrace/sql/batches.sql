-- The last batches, the newest first: those in flight, and some hundred that are in the result tables.  For
-- members of the engine's role; nobody else is told any.
-- In microseconds, process_us: from its being taken to its being computed; wait_us: until it could be written;
-- write_us: in Postgres; fresh_us: from the commit of its oldest transaction to its being in the tables.
-- Answered by the commander, on its own port: a function cannot ask the engine.  On direct connections
-- there is the procedure show_batches.
-- Whoever gets here has written something else than the statement that the commander answers.
CREATE OR REPLACE FUNCTION headrace.batches(
    OUT txid bigint, OUT attempt bigint, OUT state text, OUT at text, OUT transactions bigint, OUT rows bigint,
    OUT views bigint, OUT process_us bigint, OUT wait_us bigint, OUT write_us bigint, OUT fresh_us bigint)
RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'batches is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.batches();'
               ' on any connection, CALL headrace.show_batches() answers the rows as one JSON array.';
END
$$;
