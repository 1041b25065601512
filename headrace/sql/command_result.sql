-- Returns the result of a command of the current user.
CREATE OR REPLACE FUNCTION headrace.command_result(command bigint) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT c.result FROM headrace.commands c
     WHERE c.id = command AND c.caller = quote_ident(CURRENT_USER)::regrole::oid
$$;
