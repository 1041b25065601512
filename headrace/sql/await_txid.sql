-- Returns a txid that view_as_of() and view_diff() may ask the view for: the given one, or the view's last before it.
-- A txid is the number of a batch, and the view's last one is that of its last change.  A later one, which a change of
-- another view has, means the same rows once the view covers it; the function waits for that (await_history.sql).
-- It returns a later one unchanged if no view that the caller may read has come so far.
-- The caller reads in its next statement: the snapshot of the one that calls this is from before the wait.
CREATE OR REPLACE FUNCTION headrace.await_txid(view regclass, txid bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = on
AS $$
#variable_conflict use_variable
DECLARE
    reached pg_lsn;
BEGIN
    IF txid > headrace.view_txid(view) THEN
        SELECT min(p.lsn) INTO reached FROM headrace.histories h JOIN headrace.progress p ON p.view_id = h.view_id
         WHERE p.txid + h.shift >= txid;
        IF reached IS NOT NULL THEN
            PERFORM headrace.await_history(view, reached, NULL);
            RETURN least(txid, headrace.view_txid(view));
        END IF;
    END IF;
    RETURN txid;
END
$$;
