-- For how many seconds the batch that the worker is at has been under way; NULL: none, or it is not known.
CREATE OR REPLACE FUNCTION headrace.batch_s() RETURNS float8
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (extract(epoch FROM clock_timestamp())
            - substring(a.application_name FROM 'busy since ([0-9.]+)$')::numeric)::float8
      FROM headrace.meta m
      JOIN pg_stat_activity a ON m.value = a.pid || ' ' || extract(epoch FROM a.backend_start)
     WHERE m.key = 'worker'
$$;
