-- The settings of the server, without passwords: for superusers and members of the engine's role.
-- initial: the default.  reloads: whether CALL headrace.reload() applies a change; others count from the next start on.
DROP FUNCTION IF EXISTS headrace.settings();
CREATE FUNCTION headrace.settings(
    OUT name text, OUT value text, OUT initial text, OUT reloads boolean)
RETURNS SETOF record
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('settings', 'show_settings'))
      AS a(
          name text, value text, initial text, reloads boolean)
$$;
