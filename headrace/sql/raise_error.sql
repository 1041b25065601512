-- Raises the error of a command, as check_command returns it.
CREATE OR REPLACE FUNCTION headrace.raise_error(failed jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
BEGIN
    -- RAISE failed
END
$$;
