-- Returns what is different in a view between two txids or times: rows that were added, removed or changed in the end.
-- The function waits for a txid or time after the view's last change (await_history.sql), then reads in one snapshot
-- (net_changes.sql).  The rows are texts of the view's row type, (after::v).* are the columns.
CREATE OR REPLACE FUNCTION headrace.view_diff(
    view regclass, since bigint DEFAULT NULL, until bigint DEFAULT NULL,
    since_at timestamptz DEFAULT NULL, until_at timestamptz DEFAULT NULL)
RETURNS TABLE (change text, times bigint, before text, after text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = on
AS $$
#variable_conflict use_variable
BEGIN
    IF num_nonnulls(since, since_at) <> 1 OR num_nonnulls(until, until_at) > 1 OR since_at > until_at THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = 'view_diff takes since or since_at, and until or until_at after it, or neither for the present',
            HINT = 'Write for example SELECT * FROM headrace.view_diff(''v'', since_at => now() - interval ''1 hour'').';
    END IF;
    IF until_at IS NOT NULL THEN
        PERFORM headrace.await_history(view, NULL, until_at);
    END IF;
    since := headrace.await_txid(view, since);
    until := headrace.await_txid(view, until);
    RETURN QUERY SELECT c.change, c.times, c.before, c.after
      FROM headrace.net_changes(view, since, until, since_at, until_at) c;
END
$$;
