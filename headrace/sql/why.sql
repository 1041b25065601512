-- Returns the rows of tables from which the rows of a view with the values in key follow, as of the txid of the view.
-- The first rows are those of the view (note: result); then each table's rows (source), most of each at most.  rows: how
-- often the row occurs, or how many rows a line without contents stands for; note says which.
-- The commander answers it on its own port, because a function cannot send its arguments to the engine.  On direct
-- connections use the procedure show_why.
-- This body runs only for statements of a form that the commander does not answer.
CREATE OR REPLACE FUNCTION headrace.why(
    name text, key jsonb, most bigint DEFAULT 100, OUT txid bigint, OUT source text, OUT contents jsonb,
    OUT rows bigint, OUT note text)
RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'why is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = pg_catalog.format(
            'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.why(%1$L, …);'
            ' on any connection, CALL headrace.show_why(%1$L, …) answers the rows as one JSON array.', name);
END
$$;
