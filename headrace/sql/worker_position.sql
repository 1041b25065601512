-- Position that the worker publishes in the application name of its connection, once a second
-- (runtime/watermark.py).  So nothing is written while the database is idle, and a dead worker is detected at once.
-- No row: it is not connected.  heard: its connection was used in the last seconds.  lsn: every running view has
-- everything before it, except those with a row in headrace.held; NULL: not known yet.  lag_ms: 0 if that is all that
-- the server had written a moment ago; else the time since which commits may be missing.  batch_s: age of its present
-- batch; NULL: none, or a short one.  busy_ms: that, or the age of its open transaction.
CREATE OR REPLACE FUNCTION headrace.worker_position(
    OUT heard boolean, OUT lsn pg_lsn, OUT lag_ms bigint, OUT batch_s float8, OUT busy_ms bigint)
RETURNS SETOF record
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT a.state IN ('active', 'disabled') OR a.state_change > clock_timestamp() - interval '10 s',
           p.found[1]::pg_lsn,
           CASE WHEN p.found IS NOT NULL THEN
                coalesce((1000 * (n.now - p.found[2]::numeric))::bigint, 0) END,
           t.batch_s,
           (1000 * greatest(t.batch_s, extract(epoch FROM clock_timestamp() - a.xact_start)))::bigint
      FROM headrace.meta m
      JOIN pg_stat_activity a ON m.value = a.pid || ' ' || extract(epoch FROM a.backend_start)
     CROSS JOIN (SELECT extract(epoch FROM clock_timestamp()) AS now) n
     CROSS JOIN LATERAL (SELECT regexp_match(a.application_name,
                                ' ([0-9A-F]+/[0-9A-F]+)(?: ([0-9]+[.][0-9]))?(?: busy [0-9.]+)?$')) p(found)
     CROSS JOIN LATERAL (SELECT (n.now - substring(a.application_name FROM ' busy ([0-9.]+)$')::numeric)::float8) t(batch_s)
     WHERE m.key = 'worker'
$$;
