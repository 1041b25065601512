-- Returns how often a row was there; a negative number means that the table does not match its changes.
CREATE OR REPLACE FUNCTION headrace.history_times(times numeric) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
BEGIN
    IF times < 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'XX001', MESSAGE = 'the view''s table is not what its changes have made of it',
            DETAIL = 'Another role has written it.',
            HINT = 'CALL headrace.set_history(view, NULL) and CALL headrace.resync_view(view), then keep a history again.';
    END IF;
    RETURN times;
END
$$;
