-- Compares a view's table with its query at one snapshot.  Returns rows that are too many in the table (surplus) or
-- too few (missing), none if it is right.  The commander answers it on its own port.  A function cannot ask the
-- engine, because its writes are invisible before its transaction ends.  On direct connections use the procedure
-- verify.
-- This body runs only for statements of a form that the commander does not answer.
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
