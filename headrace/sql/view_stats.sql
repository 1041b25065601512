-- Statistics of the collections of a view and of its shared subplans, for its owner and the members of that role;
-- without a name, of all views of which the caller is that.
-- node: as explain_view names it; shared: whether several views share it.
-- rows_in, rows_out, batches, busy_us, cpu_us: since its dataflow was created (at the start of its worker, or its last
-- rollback); busy_us: microseconds inside the collection itself; cpu_us: without waits for Postgres.
-- state_rows, state_bytes: entries that it keeps, exact if all are in memory; else (state_exact is false) about as
-- many as in the last checkpoint.  queued_rows: rows in its output queue, if it is shared; queued_bytes: the part of
-- them that this view has not read.
DROP FUNCTION IF EXISTS headrace.view_stats(text);
CREATE FUNCTION headrace.view_stats(
    name text DEFAULT NULL, OUT node text, OUT collection text, OUT shared boolean, OUT worker text, OUT rows_in bigint,
    OUT rows_out bigint, OUT batches bigint, OUT busy_us bigint, OUT cpu_us bigint, OUT state_rows bigint,
    OUT state_bytes bigint, OUT state_exact boolean, OUT queued_rows bigint, OUT queued_bytes bigint,
    OUT view text)
RETURNS SETOF record
LANGUAGE sql VOLATILE
AS $$
    SELECT a.node, a.collection, a.shared, a.worker, a.rows_in, a.rows_out, a.batches, a.busy_us, a.cpu_us,
           a.state_rows, a.state_bytes, a.state_exact, a.queued_rows, a.queued_bytes, a.view
      FROM pg_catalog.jsonb_to_recordset(
        headrace.ask_engine(
            'view_stats', 'show_view_stats', pg_catalog.jsonb_build_object('name', name), headrace.captured_settings()))
      AS a(
          node pg_catalog.text, collection pg_catalog.text, shared pg_catalog.bool, worker pg_catalog.text, rows_in
          pg_catalog.int8, rows_out pg_catalog.int8, batches pg_catalog.int8, busy_us pg_catalog.int8, cpu_us
          pg_catalog.int8, state_rows pg_catalog.int8, state_bytes pg_catalog.int8, state_exact pg_catalog.bool,
          queued_rows pg_catalog.int8, queued_bytes pg_catalog.int8, view pg_catalog.text)
$$;
