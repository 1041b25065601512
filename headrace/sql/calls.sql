-- Calls that the current role has made in transactions, in the last hour: each is carried out after the COMMIT, in order.
-- status: pending, running, done or failed; the last four columns are those of the error.
CREATE OR REPLACE FUNCTION headrace.calls(
    OUT id bigint, OUT procedure text, OUT name text, OUT status text, OUT called_at timestamptz,
    OUT finished_at timestamptz, OUT sqlstate text, OUT message text, OUT detail text, OUT hint text)
RETURNS SETOF record
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT c.id, c.procedure, c.subject, c.status, c.created_at, c.finished_at, c.error ->> 'C', c.error ->> 'M',
           c.error ->> 'D', c.error ->> 'H'
      FROM headrace.commands c
     WHERE c.queued AND c.caller = quote_ident(CURRENT_USER)::regrole::oid ORDER BY c.id
$$;
