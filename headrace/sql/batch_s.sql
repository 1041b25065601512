-- Seconds since the worker began its present batch; NULL: there is none, or it is not known.
CREATE OR REPLACE FUNCTION headrace.batch_s() RETURNS float8
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT p.batch_s FROM headrace.worker_position() p
$$;
