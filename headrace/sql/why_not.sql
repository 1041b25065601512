-- Says where rows with the values in key are dropped: the first operators, from the tables on, that have such rows in their
-- input (rows: how many) and none in their output.  A union has one for each of its inputs.  If the view has such a row,
-- reason says so.  Values of computed columns are compared where they are computed.
-- The commander answers it on its own port, because a function cannot send its arguments to the engine.  On direct
-- connections use the procedure show_why_not.
-- This body runs only for statements of a form that the commander does not answer.
CREATE OR REPLACE FUNCTION headrace.why_not(
    name text, key jsonb, OUT txid bigint, OUT node text, OUT operator text, OUT rows bigint, OUT reason text)
RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'why_not is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = pg_catalog.format(
            'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.why_not(%1$L, …);'
            ' on any connection, CALL headrace.show_why_not(%1$L, …) answers the rows as one JSON array.', name);
END
$$;
