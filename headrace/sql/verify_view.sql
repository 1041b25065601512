-- Compares a view's table with its query at one exact snapshot: rows that are too many in the
-- table (surplus) or too few (missing), none if it is right.  Answered by the commander, on its own
-- port: a function cannot ask the engine, because nothing it writes is seen before its transaction
-- ends.  On direct connections there is the procedure verify.
-- Whoever gets here has written something else than the statement that the commander answers.
CREATE OR REPLACE FUNCTION headrace.verify_view(
    name text, OUT surplus bigint, OUT missing bigint, OUT contents text)
RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'verify_view is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: the proof takes a later snapshot than this statement reads by.',
        HINT = pg_catalog.format(
            'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.verify_view(%1$L)'
            ' and count or filter its rows in the client; on any connection, CALL headrace.verify(%1$L)'
            ' answers them as one JSON array, [] if there are none.', name);
END
$$;
