-- The workers: main, which reads the stream and writes result tables, and others on which views are placed.  Only
-- members of the engine's role get rows.
-- state: running; down: its process cannot be reached now, and views placed on it stand still; lost: it was down for
-- worker_lost_s, and its views are populated again elsewhere; or invited: it has a token to join from another
-- machine, and has not joined yet.
-- cpu_s: processor time of a process here since it began; moved: the views that the engine itself has moved there, with
-- when and why (workers called headrace_…, which it adds under overload).
-- address: where a worker on another machine listens; pid: of its process there, if known.
DROP FUNCTION IF EXISTS headrace.workers();
CREATE FUNCTION headrace.workers(
    OUT worker text, OUT state text, OUT pid bigint, OUT views bigint, OUT memory_bytes bigint, OUT since timestamptz,
    OUT address text, OUT cpu_s double precision, OUT moved text)
RETURNS SETOF record
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT * FROM jsonb_to_recordset(headrace.ask_engine('workers', 'show_workers'))
      AS a(
          worker text, state text, pid bigint, views bigint, memory_bytes bigint, since timestamptz, address text,
          cpu_s double precision, moved text)
$$;
