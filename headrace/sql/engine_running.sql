-- Whether a commander is connected: its backend is the one it wrote down.  No heartbeat is
-- written, so an idle engine makes no WAL, and a dead one is known at once.
CREATE OR REPLACE FUNCTION headrace.engine_running() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT FROM headrace.meta m
          JOIN pg_stat_activity a
            ON m.value = a.pid || ' ' || extract(epoch FROM a.backend_start)
         WHERE m.key = 'commander')
$$;
