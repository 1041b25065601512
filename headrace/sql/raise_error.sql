-- Raises the error of a command, as check_command returns it.
CREATE OR REPLACE FUNCTION headrace.raise_error(failed jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
BEGIN
    -- An option of RAISE cannot be NULL, and an empty DETAIL would be shown.
    IF failed ? 'D' AND failed ? 'H' THEN
        RAISE EXCEPTION USING ERRCODE = failed ->> 'C', MESSAGE = failed ->> 'M',
            DETAIL = failed ->> 'D', HINT = failed ->> 'H';
    ELSIF failed ? 'D' THEN
        RAISE EXCEPTION USING ERRCODE = failed ->> 'C', MESSAGE = failed ->> 'M', DETAIL = failed ->> 'D';
    ELSIF failed ? 'H' THEN
        RAISE EXCEPTION USING ERRCODE = failed ->> 'C', MESSAGE = failed ->> 'M', HINT = failed ->> 'H';
    END IF;
    RAISE EXCEPTION USING ERRCODE = failed ->> 'C', MESSAGE = failed ->> 'M';
END
$$;
