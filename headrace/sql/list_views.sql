-- All views with their state (view_states.sql describes the first columns); readable by every role, also while the
-- engine is down.  An assertion that runs and is up to date is left out: assertions() shows it.  query, message, owner and errors are shown to the owner of a view and the members of that role,
-- because a message may contain a value of a row.
-- since: start of its status.  held_by: why it is not up to date, and until when if that is known; NULL: it is up to
-- date.  p50_ms, p99_ms: from the commit of a change to its commit in the result table, over the last minute, with
-- rows_per_s (rows written, an update being two); NULL if nothing was written.
-- query: formatted if it is long and Postgres parses the formatted text alike (views/texts.py); headrace.views has
-- it as written.  state_bytes: in memory.  last_error: includes errors that are over.
CREATE FUNCTION headrace.list_views(
    OUT name text, OUT status text, OUT message text, OUT query text, OUT rows bigint,
    OUT lag_ms bigint, OUT lag_bytes bigint, OUT txid bigint, OUT lsn pg_lsn, OUT owner text, OUT since timestamptz,
    OUT held_by text, OUT p50_ms float8, OUT p99_ms float8, OUT rows_per_s float8, OUT state_bytes bigint,
    OUT last_error text, OUT last_error_at timestamptz, OUT cursor text)
RETURNS SETOF record
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    SELECT s.name, s.status, coalesce(s.message, nullif(concat_ws('; ', headrace.view_message(v.id), v.note), '')), coalesce(v.explain ->> 'tidy', v.query), s.rows, s.lag_ms,
           s.lag_bytes, s.txid, s.lsn, pg_get_userbyid(v.owner), CASE WHEN s.status = v.status THEN v.since END,
           CASE s.status
                WHEN 'stopped' THEN 'no engine is connected'
                WHEN 'starting' THEN 'its worker is starting, or silent'
                WHEN 'pending' THEN 'it waits for its turn to be filled'
                WHEN 'populating' THEN concat_ws(': ', 'it is being filled', f.what)
                WHEN 'paused' THEN concat_ws('; ', format('paused by %s, %s ago: resume_view continues it',
                     coalesce(pg_get_userbyid(v.paused_by), 'pause_view'),
                     date_trunc('second', clock_timestamp() - v.since)), g.near)
                WHEN 'error' THEN 'it has stopped: see message'
                WHEN 'sink_error' THEN concat_ws('; ', coalesce(
                     'its table is locked by ' || l.who,
                     CASE WHEN s.cursor <> 'lost' THEN NULL
                          WHEN v.placed_parts <> '{}'
                          THEN format('it waits for worker %s', (SELECT string_agg(DISTINCT format('"%s"', p.value), ' or ')
                                                                   FROM jsonb_each_text(v.placed_parts) p))
                          WHEN jsonb_typeof(v.options -> 'placement') = 'string' AND v.options ->> 'placement'
                               NOT IN ('main', 'auto', 'bottom_up', 'top_down', 'ifcop', 'exact')
                          THEN format('it waits for worker "%s"', v.options ->> 'placement') END,
                     'its table cannot be written now: see message'), g.near)
                ELSE nullif(concat_ws('; ', coalesce(
                     'its table is locked by ' || l.who,
                     w.what || format(', for %s s', round(extract(epoch FROM clock_timestamp() - w.since))),
                     CASE WHEN s.lag_ms > 1000 AND b.batch_s > 1 AND b.at_work IS NOT NULL
                          THEN format('a batch under way for %s s, of %s', round(b.batch_s::numeric), b.at_work)
                          WHEN s.lag_ms > 1000 AND n.lag_bytes > s.lag_bytes AND n.at > v.since
                               AND n.at BETWEEN clock_timestamp() - interval '90 s' AND clock_timestamp() - interval '1 s'
                          THEN format('it catches up: %s behind, about %s s to go', pg_size_pretty(s.lag_bytes),
                               ceil(s.lag_bytes * extract(epoch FROM clock_timestamp() - n.at) / (n.lag_bytes - s.lag_bytes)))
                          WHEN s.lag_ms > 1000 AND b.batch_s > 1
                          THEN format('a batch under way for %s s', round(b.batch_s::numeric))
                          WHEN s.lag_ms > 1000 THEN format('it is %s behind', pg_size_pretty(s.lag_bytes)) END),
                     a.what || format(', for %s', date_trunc('second', clock_timestamp() - a.since)),
                     -- Its rows may be older than its status: a view that runs since has its contents.
                     CASE WHEN f.since > v.since AND f.what <> 'it catches up' THEN 'it is being filled anew: ' || f.what
                          WHEN f.what IS NOT NULL AND s.cursor = 'catching_up'
                               -- Beyond that, the lag itself has been named above.
                               AND coalesce(s.lag_ms, 1) BETWEEN 1 AND 1000
                          THEN 'it catches up' END), '') END,
           CASE WHEN n.fresh THEN n.p50_ms END, CASE WHEN n.fresh THEN n.p99_ms END,
           CASE WHEN n.fresh THEN n.rows_per_s ELSE 0 END, n.state_bytes, v.last_error, v.last_error_at, s.cursor
      FROM headrace.view_states() WITH ORDINALITY s
      LEFT JOIN headrace.views v ON v.id = s.id  -- row security decides
      LEFT JOIN LATERAL (
           SELECT m.at, m.lag_bytes, m.p50_ms, m.p99_ms, m.rows_per_s, m.state_bytes,
                  m.at > clock_timestamp() - interval '30 s' AS fresh
             FROM headrace.samples m WHERE m.view_id = v.id AND m.step_s = 10 ORDER BY m.at DESC LIMIT 1) n ON true
      LEFT JOIN LATERAL (
           SELECT string_agg(format('process %s (%s)%s', k.pid, coalesce(a.usename, '?'),
                  coalesce(': ' || left(nullif(a.query, ''), 100), '')), '; ' ORDER BY k.pid) AS who
             FROM pg_locks k LEFT JOIN pg_stat_activity a ON a.pid = k.pid
            WHERE k.locktype = 'relation' AND k.relation = v.result_oid AND k.granted
              AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
              AND k.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
              AND coalesce(a.application_name, '') NOT LIKE 'headrace%'
              AND s.lag_ms > 0) l ON true
      LEFT JOIN headrace.held w ON w.view_id = v.id AND w.kind = 'work'
      LEFT JOIN headrace.held a ON a.view_id = v.id AND a.kind = 'source'
      LEFT JOIN headrace.held f ON f.view_id = v.id AND f.kind = 'population'
      -- A view that stands still needs a resync when more than the budget is kept for it.  With wal_retention =
      -- source, no more is kept than the slot has not confirmed.
      LEFT JOIN LATERAL (
           SELECT format('about %s %% of wal_budget_bytes (%s) is kept for it: beyond that it needs a resync',
                         round(100 * k.bytes / m.value::numeric), pg_size_pretty(m.value::bigint)) AS near
             FROM headrace.meta m
            CROSS JOIN (SELECT least(s.lag_bytes, (
                   SELECT CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_current_wal_lsn() END - r.confirmed_flush_lsn
                     FROM headrace.meta n JOIN pg_replication_slots r ON r.slot_name = n.value
                    WHERE n.key = 'slot_name' AND EXISTS (
                          SELECT FROM headrace.meta w WHERE w.key = 'wal_retention' AND w.value = 'source'))) AS bytes) k
            WHERE m.key = 'wal_budget_bytes' AND m.value::bigint > 0 AND k.bytes > m.value::bigint / 2) g ON true
     CROSS JOIN (SELECT headrace.batch_s() AS batch_s, headrace.at_work() AS at_work) b
     WHERE (s.assertion AND s.status = 'running' AND s.cursor = 'leading'
            AND s.lag_ms <= 1000 + coalesce((v.options ->> 'latency_ms')::bigint, 0)) IS NOT TRUE
     ORDER BY s.ordinality
$$;
