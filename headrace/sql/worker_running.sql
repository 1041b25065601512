-- Returns whether the worker is connected and has reported in the last seconds.
CREATE OR REPLACE FUNCTION headrace.worker_running() RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT EXISTS (SELECT FROM headrace.worker_position() p WHERE p.heard)
$$;
