-- What a command of the login role has answered.
CREATE OR REPLACE FUNCTION headrace.command_result(command bigint) RETURNS jsonb
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT c.result FROM headrace.commands c WHERE c.id = command AND c.login = session_user
$$;
