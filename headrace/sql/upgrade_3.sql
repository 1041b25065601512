-- To catalog 3.  Earlier versions gave unequal intervals one key ('1 mon 1 day', '1 year 1 day'), and equal ones two.
-- States with such keys are wrong, so each view whose plan has an interval is filled anew (server/resumer.py).
UPDATE headrace.views
   SET status = 'error', sqlstate = '55H04', message = 'the view''s state is of another version', culprit = NULL,
       detail = 'An earlier version gave unequal intervals one key, such as 1 mon 1 day and 1 year 1 day.',
       hint = 'Call headrace.resync_view for the view.', tried = NULL, note = NULL,
       since = pg_catalog.clock_timestamp(), last_error = 'the view''s state is of another version',
       last_error_at = pg_catalog.clock_timestamp()
 WHERE status IN ('running', 'paused', 'sink_error')
   AND pg_catalog.jsonb_path_exists(plan, '$.** ? (@.oid == 1186)');
-- Views that are behind are rows of headrace.held, which has a column for their position.  Nothing in
-- there is kept for long.
DROP TABLE IF EXISTS headrace.held;
