-- The settings of the server, without passwords: for superusers and members of the engine's role.
-- initial: the default.  reloads: whether CALL headrace.reload() applies a change; others count from the next start on.
-- Answered by the commander, on its own port: a function cannot ask the engine.  On direct connections
-- there is the procedure show_settings.  Any other form of statement ends up in this function.
DROP FUNCTION IF EXISTS headrace.settings();
CREATE FUNCTION headrace.settings(
    OUT name text, OUT value text, OUT initial text, OUT reloads boolean)
RETURNS SETOF record
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = 'settings is answered only on the port of headrace, as a statement of its own',
        DETAIL = 'Here it is part of a larger query, inside of a transaction, or on a direct connection: a function cannot ask the engine.',
        HINT = 'On the port of headrace, with autocommit on, write exactly SELECT * FROM headrace.settings();'
               ' on any connection, CALL headrace.show_settings() answers the rows as one JSON array.';
END
$$;
