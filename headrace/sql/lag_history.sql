-- Lag of a view, newest first: the last quarter of an hour in steps of ten seconds, six hours in steps of a minute,
-- a week in steps of ten minutes.  A step without a row means that the view was up to date and not written.
-- p50_ms, p99_ms, max_ms: from the commit of a change to its commit in the result table, over the minute before;
-- lag_ms and lag_bytes: as in list_views(), the maximum of the step.
CREATE OR REPLACE FUNCTION headrace.lag_history(
    view text, OUT at timestamptz, OUT step_s int, OUT batches bigint, OUT rows_per_s float8, OUT p50_ms float8,
    OUT p99_ms float8, OUT max_ms float8, OUT lag_ms bigint, OUT lag_bytes bigint, OUT state_bytes bigint)
RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    -- On the search path of who asks.
    found pg_catalog.oid := pg_catalog.to_regclass(lag_history.view)::pg_catalog.oid;
    number pg_catalog.int8;
    fine   pg_catalog.timestamptz := pg_catalog.now() OPERATOR(pg_catalog.-) '15 min'::pg_catalog.interval;
    coarse pg_catalog.timestamptz := pg_catalog.now() OPERATOR(pg_catalog.-) '6 h'::pg_catalog.interval;
BEGIN
    SELECT v.id INTO number FROM headrace.views v WHERE v.result_oid OPERATOR(pg_catalog.=) found;
    IF number IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42P01',
            MESSAGE = pg_catalog.format('view "%s" does not exist', lag_history.view),
            DETAIL = 'Or it belongs to another role.', HINT = 'See headrace.list_views().';
    END IF;
    RETURN QUERY
    SELECT s.at, s.step_s, s.batches, s.rows_per_s, s.p50_ms, s.p99_ms, s.max_ms, s.lag_ms, s.lag_bytes, s.state_bytes
      FROM headrace.samples s
     WHERE s.view_id OPERATOR(pg_catalog.=) number
       AND CASE WHEN s.step_s OPERATOR(pg_catalog.=) 10 THEN s.at OPERATOR(pg_catalog.>=) fine
                WHEN s.step_s OPERATOR(pg_catalog.=) 60 THEN s.at OPERATOR(pg_catalog.>=) coarse AND s.at OPERATOR(pg_catalog.<) fine
                ELSE s.at OPERATOR(pg_catalog.<) coarse END
     ORDER BY s.at DESC;
END
$$;
