-- Returns the history of a view if the caller may read all of its table; else raises an error.  Row security
-- enforces this (privacy.sql); the checks here only choose the message.
CREATE OR REPLACE FUNCTION headrace.history_of(view regclass)
RETURNS headrace.histories
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = on
AS $$
DECLARE
    kept headrace.histories;
BEGIN
    SELECT h.* INTO kept FROM headrace.histories h WHERE h.result_oid = view::oid;
    IF kept.first_txid IS NOT NULL THEN
        RETURN kept;
    ELSIF kept.id IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('the history of view %s has not begun', view),
            DETAIL = 'It begins when the engine writes the view.';
    ELSIF NOT has_table_privilege(view, 'SELECT') THEN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('permission denied for view %s', view),
            DETAIL = 'Who may read a whole view may read its changes.';
    ELSIF row_security_active(view) THEN
        RAISE EXCEPTION USING ERRCODE = '0A000', MESSAGE = format('table %s has row-level security', view),
            DETAIL = 'Its changes are shown only to roles that may read all of its rows.';
    END IF;
    RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('no history is kept of %s', view),
        HINT = format('If it is a view, its owner can CALL headrace.set_history(%L, ''2 hours'').', view);
END
$$;
