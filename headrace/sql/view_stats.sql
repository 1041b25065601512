-- What each collection of a view has done, and those of the subplans that it shares: for its owner and his members.
-- node: as explain_view names it; shared: it is kept once for several views.
-- rows_in, rows_out, batches, busy_us: since its dataflow was made (the start of its worker, or the last time that it had
-- to go back); busy_us: microseconds inside of the collection itself.
-- Answered by the commander, on its own port: a function cannot ask the engine.  On direct connections
-- there is the procedure show_view_stats.
-- Whoever gets here has written something else than the statement that the commander answers.
CREATE OR REPLACE FUNCTION headrace.view_stats(
    name text, OUT node text, OUT collection text, OUT shared boolean, OUT worker text, OUT rows_in bigint,
    OUT rows_out bigint, OUT batches bigint, OUT busy_us bigint)
RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'view_stats is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = pg_catalog.format(
            'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.view_stats(%1$L);'
            ' on any connection, CALL headrace.show_view_stats(%1$L) answers the rows as one JSON array.', name);
END
$$;
