-- Returns the rows of a view at a txid, an LSN or a time: SELECT * FROM headrace.view_as_of(NULL::v, txid => 42).
-- The row type selects the view, because the columns of a result can only come from a type.  The function waits for a
-- txid, position or time after the view's last change (await_history.sql), then reads in one snapshot (rows_as_of.sql).
CREATE OR REPLACE FUNCTION headrace.view_as_of(
    view anyelement, txid bigint DEFAULT NULL, lsn pg_lsn DEFAULT NULL, at timestamptz DEFAULT NULL)
RETURNS SETOF anyelement
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = on SET "TimeZone" = 'UTC'
AS $$
#variable_conflict use_column
DECLARE
    named regclass;
    bound bigint;
BEGIN
    SELECT t.typrelid INTO named FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid
     WHERE t.oid = pg_typeof(view) AND c.relkind = 'r';
    IF named IS NULL OR num_nonnulls(view_as_of.txid, view_as_of.lsn, view_as_of.at) <> 1 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'view_as_of takes the row type of a view, and one of txid, lsn, at',
            HINT = 'Write for example SELECT * FROM headrace.view_as_of(NULL::v, txid => 42).';
    ELSIF view_as_of.txid IS NULL THEN
        PERFORM headrace.await_history(named, view_as_of.lsn, view_as_of.at);
    END IF;
    bound := headrace.await_txid(named, view_as_of.txid);
    RETURN QUERY SELECT * FROM headrace.rows_as_of(view, bound, view_as_of.lsn, view_as_of.at);
END
$$;
