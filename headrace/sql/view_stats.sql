-- What each collection of a view has done, and those of the subplans that it shares: for its owner and his members.
-- node: as explain_view names it; shared: it is kept once for several views.
-- rows_in, rows_out, batches, busy_us, cpu_us: since its dataflow was made (the start of its worker, or the last time that
-- it had to go back); busy_us: microseconds inside of the collection itself; cpu_us: without what it waited for Postgres.
-- state_rows, state_bytes: entries that it keeps, as of now where all are in memory; else (state_exact is false) about as many
-- as the last checkpoint has.  queued_rows: in the queue behind it, if it is kept for several views; queued_bytes: of them,
-- what this view has not read.
-- Answered by the commander, on its own port: a function cannot ask the engine.  On direct connections
-- there is the procedure show_view_stats.
-- Whoever gets here has written something else than the statement that the commander answers.
DROP FUNCTION IF EXISTS headrace.view_stats(text);
CREATE FUNCTION headrace.view_stats(
    name text, OUT node text, OUT collection text, OUT shared boolean, OUT worker text, OUT rows_in bigint,
    OUT rows_out bigint, OUT batches bigint, OUT busy_us bigint, OUT cpu_us bigint, OUT state_rows bigint,
    OUT state_bytes bigint, OUT state_exact boolean, OUT queued_rows bigint, OUT queued_bytes bigint)
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
