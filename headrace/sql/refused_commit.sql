-- Returns the message of a COMMIT in an atomic context, such as a function or a transaction block, in the session's language.
-- A procedure that gets this message for its own COMMIT, and not that of a subtransaction, is in such a context.
CREATE OR REPLACE FUNCTION headrace.refused_commit() RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
BEGIN
    COMMIT;
    RETURN NULL;
EXCEPTION WHEN invalid_transaction_termination THEN
    RETURN SQLERRM;
END
$$;
