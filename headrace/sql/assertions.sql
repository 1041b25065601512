-- The assertions that the caller owns or may read; readable also while the engine is down.
-- state: holds, or violated: by everything that is committed up to a moment ago; unknown: reason says why, for example
-- that the view has stopped or lags.  rows: violating rows, by the last known contents.  since: commit time of the
-- change to holds or violated; NULL for unknown.
-- reason: for a violation within its grace, that it is not reported yet.
-- violation: id of the open violation in headrace.violations.
-- webhook: deliveries that are pending or have failed, for the owner only; NULL: none.
DROP FUNCTION IF EXISTS headrace.assertions();
CREATE FUNCTION headrace.assertions(
    OUT name text, OUT state text, OUT rows bigint, OUT since timestamptz, OUT reason text, OUT violation bigint,
    OUT on_violation text, OUT sample int, OUT grace interval, OUT webhook text, OUT owner text)
RETURNS SETOF record
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off SET row_security = on
AS $$
    SELECT n.name, k.state, n.rows, CASE WHEN k.state <> 'unknown' THEN a.since END,
           CASE WHEN k.state = 'unknown' THEN
                CASE WHEN c.relrowsecurity THEN 'row-level security applies to its owner, which sees a part of its rows only'
                     WHEN s.id IS NULL THEN 'it was just filled anew'
                     WHEN n.rows < 0 THEN format('its table does not match its changes; CALL headrace.resync_view(%L)', n.name)
                     WHEN s.status = 'running' AND s.lag_ms > 0 THEN format('its view is %s ms behind', s.lag_ms)
                     WHEN s.status = 'running' THEN 'the engine has just taken its view over'
                     ELSE concat_ws(': ', format('its view does not run (%s)', s.status),
                                    coalesce(s.message, headrace.view_message(v.id))) END
                WHEN n.rows > 0 AND a.violation_id IS NULL AND a.grace > '0'
                THEN format('reported if it lasts for %s', a.grace) END,
           a.violation_id, a.on_violation, a.sample, a.grace, d.told, pg_get_userbyid(v.owner)
      FROM headrace.assertion_states a  -- row security decides
      -- It has a snapshot of its own, in which a view that is filled anew may have another id already.
      LEFT JOIN headrace.view_states() s ON s.id = a.view_id
      LEFT JOIN headrace.views v ON v.id = a.view_id
      LEFT JOIN headrace.histories h ON h.view_id = a.view_id
      LEFT JOIN pg_class c ON c.oid = coalesce(v.result_oid, h.result_oid)
     CROSS JOIN LATERAL (
           SELECT coalesce(headrace.assertion_rows(a.view_id), a.count) AS rows,
                  coalesce(s.name, quote_ident(v.schema_name) || '.' || quote_ident(v.view_name), 'view ' || a.view_id) AS name) n
     CROSS JOIN LATERAL (
           SELECT CASE WHEN c.relrowsecurity OR n.rows < 0 OR s.status IS DISTINCT FROM 'running' OR s.cursor IS DISTINCT FROM 'leading'
                            OR (s.lag_ms <= 1000 + coalesce((v.options ->> 'latency_ms')::bigint, 0)) IS NOT TRUE
                       THEN 'unknown' WHEN n.rows > 0 THEN 'violated' ELSE 'holds' END AS state) k
      LEFT JOIN LATERAL (
           SELECT string_agg(format('%s %s%s', g.times, g.status, ': ' || g.error), '; ' ORDER BY g.status DESC) AS told
             FROM (SELECT w.status, count(*) AS times, (array_agg(w.error ORDER BY w.created_at DESC))[1] AS error
                     FROM headrace.webhook_deliveries w
                    WHERE w.assertion_id = a.id AND w.status <> 'delivered' GROUP BY w.status) g) d ON true
     ORDER BY n.name
$$;
