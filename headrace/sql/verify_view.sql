-- Compares a view's table with its query at one exact snapshot: rows that are too many in the
-- table (surplus) or too few (missing), none if it is right.  Answered by the commander, on its own
-- port: a function cannot ask the engine, because nothing it writes is seen before its transaction
-- ends.  On direct connections there is the procedure verify.
CREATE OR REPLACE FUNCTION headrace.verify_view(
    name text, OUT surplus bigint, OUT missing bigint, OUT contents text)
RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'verify_view answers only on a connection through headrace',
        HINT = 'There, SELECT * FROM headrace.verify_view(name) as a statement of its own; here, CALL headrace.verify(name).';
END
$$;
