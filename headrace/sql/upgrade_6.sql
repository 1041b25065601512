-- To catalog 6.  Requests that transactions belong to.
ALTER TABLE IF EXISTS headrace.history ADD COLUMN IF NOT EXISTS requests text[];
ALTER TABLE IF EXISTS headrace.violations ADD COLUMN IF NOT EXISTS requests text[],
    ADD COLUMN IF NOT EXISTS resolved_requests text[];
-- Earlier versions ignored NULLS FIRST and NULLS LAST of a composite type, and COLLATE in a query that reads nothing else.
-- Results may be wrong, so views with NULLS FIRST or LAST over a user's type, or with COLLATE, are filled anew (server/resumer.py).
UPDATE headrace.views
   SET status = 'error', sqlstate = '55H04', message = 'the view''s state is of another version', culprit = NULL,
       detail = 'An earlier version ignored NULLS FIRST and NULLS LAST for composite types, and some COLLATE clauses.',
       hint = 'Call headrace.resync_view for the view.', tried = NULL, note = NULL,
       since = pg_catalog.clock_timestamp(), last_error = 'the view''s state is of another version',
       last_error_at = pg_catalog.clock_timestamp()
 WHERE status IN ('running', 'paused', 'sink_error')
   AND (canonical ~ ' COLLATE ' OR canonical ~ ' NULLS (FIRST|LAST)'
        AND pg_catalog.jsonb_path_exists(plan, '$.** ? (@.oid >= 16384)'));
