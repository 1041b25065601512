-- Returns whether a commander is connected, that is, whether the backend that it stored exists.  No heartbeat is
-- written, so an idle engine makes no WAL, and a dead one is detected at once.
CREATE OR REPLACE FUNCTION headrace.engine_running() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT EXISTS (
        SELECT FROM headrace.meta m
          JOIN pg_stat_activity a
            ON m.value = a.pid || ' ' || extract(epoch FROM a.backend_start)
         WHERE m.key = 'commander')
$$;
