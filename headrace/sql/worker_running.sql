-- Whether the worker is connected and has been heard of in the last seconds (view_states.sql says how that is known).
CREATE OR REPLACE FUNCTION headrace.worker_running() RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT FROM headrace.meta m
          JOIN pg_stat_activity a ON m.value = a.pid || ' ' || extract(epoch FROM a.backend_start)
         WHERE m.key = 'worker'
           AND (a.state IN ('active', 'disabled') OR a.state_change > clock_timestamp() - interval '10 s'))
$$;
