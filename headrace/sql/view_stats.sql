-- Statistics of the collections of a view and of its shared subplans, for its owner and the members of that role.
-- node: as explain_view names it; shared: whether several views share it.
-- rows_in, rows_out, batches, busy_us, cpu_us: since its dataflow was created (at the start of its worker, or its last
-- rollback); busy_us: microseconds inside the collection itself; cpu_us: without waits for Postgres.
-- state_rows, state_bytes: entries that it keeps, exact if all are in memory; else (state_exact is false) about as
-- many as in the last checkpoint.  queued_rows: rows in its output queue, if it is shared; queued_bytes: the part of
-- them that this view has not read.
-- The commander answers it on its own port, because a function cannot ask the engine.  On direct connections
-- use the procedure show_view_stats.
-- This body runs only for statements of a form that the commander does not answer.
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
