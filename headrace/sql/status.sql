-- State of this database's engine, one fact a row; readable by every role, also while it is down.  ok: false if
-- action is needed, which hint describes; NULL for a fact that is neither good nor bad.
CREATE OR REPLACE FUNCTION headrace.status(OUT fact text, OUT value text, OUT ok boolean, OUT hint text)
RETURNS SETOF record
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    WITH slot AS (
        SELECT m.value AS name, r.active, r.wal_status, r.active_pid, p.lsn AS applied, p.lag_ms,
               CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END AS now,
               r.restart_lsn, r.confirmed_flush_lsn, r.safe_wal_size, r.slot_name IS NOT NULL AS there
          FROM headrace.meta m
          LEFT JOIN pg_replication_slots r ON r.slot_name = m.value
          LEFT JOIN headrace.worker_position() p ON p.heard
         WHERE m.key = 'slot_name'),
    states AS MATERIALIZED (SELECT * FROM headrace.view_states()),
    told AS (
        SELECT s.status, count(*) AS n FROM states s GROUP BY s.status),
    last AS (
        SELECT s.name, s.lag_bytes, s.status, CASE
               WHEN v.placed_parts <> '{}' THEN (SELECT string_agg(DISTINCT p.value, ' or ') FROM jsonb_each_text(v.placed_parts) p)
               WHEN jsonb_typeof(v.options -> 'placement') = 'string' AND v.options ->> 'placement'
                    NOT IN ('main', 'auto', 'bottom_up', 'top_down', 'ifcop', 'exact') THEN v.options ->> 'placement' END AS worker
          FROM states s LEFT JOIN headrace.views v ON v.id = s.id  -- row security decides
         WHERE s.status NOT IN ('error', 'pending', 'populating')
         ORDER BY s.lag_bytes DESC NULLS LAST, s.name LIMIT 1),
    filling AS (
        SELECT string_agg(s.name, ', ' ORDER BY s.name) AS names FROM states s WHERE s.status IN ('pending', 'populating')),
    budget AS (
        SELECT m.value::bigint AS bytes FROM headrace.meta m WHERE m.key = 'wal_budget_bytes' AND m.value <> '0'),
    still AS (
        SELECT s.name, s.status, least(s.lag_bytes, (
               SELECT l.now - l.confirmed_flush_lsn FROM slot l WHERE EXISTS (
                      SELECT FROM headrace.meta m WHERE m.key = 'wal_retention' AND m.value = 'source'))) AS lag_bytes
          FROM states s WHERE s.status IN ('paused', 'sink_error')
         ORDER BY s.lag_bytes DESC, s.name LIMIT 1),
    -- The slot keeps WAL of transactions that are open, too.
    eldest AS (
        SELECT a.pid, a.usename FROM pg_stat_activity a
         WHERE a.datname = current_database() AND a.backend_xid IS NOT NULL ORDER BY age(a.backend_xid) DESC LIMIT 1),
    holder AS (
        SELECT CASE
               WHEN s.now - s.confirmed_flush_lsn > 16777216 AND NOT s.active THEN
                    CASE WHEN headrace.engine_running() THEN 'the worker, which does not read the slot now'
                         ELSE 'the engine, which is stopped' END
               WHEN s.now - s.confirmed_flush_lsn > 16777216 THEN coalesce(
                    (SELECT format('view %s (%s%s)', l.name, l.status, ', worker ' || l.worker) FROM last l
                      WHERE l.lag_bytes > (s.now - s.confirmed_flush_lsn) / 2),
                    (SELECT 'the population of ' || f.names FROM filling f), 'batches under way')
               WHEN s.confirmed_flush_lsn - s.restart_lsn > 67108864 THEN coalesce(
                    (SELECT format('an open transaction of process %s (%s)', e.pid, e.usename) FROM eldest e),
                    'transactions that were open') END AS who
          FROM slot s WHERE s.there),
    facts(place, fact, value, ok, hint) AS (
        SELECT 1, 'version', (SELECT m.value FROM headrace.meta m WHERE m.key = 'release'), NULL::boolean, NULL::text
        UNION ALL
        SELECT 1, 'server', 'Postgres ' || split_part(current_setting('server_version'), ' ', 1), NULL, NULL
        UNION ALL
        SELECT 2, 'engine', CASE WHEN headrace.engine_running() THEN 'running' ELSE 'stopped' END,
               headrace.engine_running(), CASE WHEN NOT headrace.engine_running() THEN 'headrace start' END
        UNION ALL
        SELECT 3, 'worker', CASE WHEN headrace.worker_running() THEN 'running' ELSE 'starting, or silent' END,
               headrace.worker_running(),
               CASE WHEN NOT headrace.worker_running() THEN 'it is restarted automatically; the log says why it ended' END
         WHERE headrace.engine_running()
        UNION ALL
        SELECT 4, f.fact, f.value, f.ok, f.hint FROM headrace.facts f WHERE headrace.engine_running()
        UNION ALL
        SELECT 5, 'views', coalesce((SELECT string_agg(format('%s %s', t.n, t.status), ', ' ORDER BY t.n DESC, t.status) FROM told t), 'none'),
               NOT EXISTS (SELECT FROM told t WHERE t.status IN ('error', 'sink_error', 'stopped')),
               CASE WHEN EXISTS (SELECT FROM told t WHERE t.status IN ('error', 'sink_error', 'stopped'))
                    THEN 'list_views() gives the reason for each: message, held_by' END
        UNION ALL
        SELECT 6, 'batch under way', format('for %s s', round(b.batch_s::numeric)) || coalesce(', of ' || headrace.at_work(), ''),
               b.batch_s < 10,
               CASE WHEN b.batch_s >= 10 THEN 'held_by in list_views() shows its owner the reason' END
          FROM (SELECT headrace.batch_s()) b(batch_s) WHERE b.batch_s IS NOT NULL
        UNION ALL
        SELECT 7, 'slot', format('%s, %s', s.name, CASE WHEN NOT s.there THEN 'missing' WHEN s.active THEN 'active' ELSE 'not active' END),
               s.there AND (s.active OR NOT headrace.engine_running()),
               CASE WHEN NOT s.there THEN 'the engine creates it again, and rebuilds the views' END
          FROM slot s
        UNION ALL
        SELECT 8, 'stream behind', concat_ws(', ', pg_size_pretty(greatest(s.now - coalesce(s.applied, s.confirmed_flush_lsn), 0)),
                    round(s.lag_ms / 1000.0, 1) || ' s'), NULL, NULL
          FROM slot s WHERE s.there
        UNION ALL
        SELECT 9, 'WAL kept', pg_size_pretty(s.now - s.restart_lsn)
               || CASE WHEN s.wal_status <> 'reserved' THEN format(', %s', s.wal_status) ELSE '' END,
               s.wal_status IN ('reserved', 'extended'),
               CASE WHEN s.wal_status NOT IN ('reserved', 'extended') THEN 'the server removes it soon: raise max_slot_wal_keep_size' END
          FROM slot s WHERE s.restart_lsn IS NOT NULL
        UNION ALL
        SELECT 10, 'WAL held by', h.who, NULL, NULL FROM holder h WHERE h.who IS NOT NULL
        UNION ALL
        SELECT 11, 'WAL budget', format('%s of %s, for view %s (%s)', pg_size_pretty(t.lag_bytes), pg_size_pretty(u.bytes), t.name, t.status),
               t.lag_bytes < 0.8 * u.bytes,
               CASE WHEN t.lag_bytes >= 0.8 * u.bytes THEN 'beyond wal_budget_bytes the view needs a resync:'
                    ' resume it before, or end the session that locks its table' END
          FROM still t, budget u WHERE t.lag_bytes > u.bytes / 4
        UNION ALL
        SELECT 12, 'WAL may still grow by', pg_size_pretty(s.safe_wal_size), s.safe_wal_size > 1e9,
               CASE WHEN s.safe_wal_size <= 1e9 THEN 'max_slot_wal_keep_size is near: see WAL held by' END
          FROM slot s WHERE s.safe_wal_size IS NOT NULL
        UNION ALL
        SELECT 13, 'furthest back', format('%s, %s, %s', l.name, pg_size_pretty(l.lag_bytes), l.status), NULL, NULL
          FROM last l WHERE l.lag_bytes > 1000000)
    SELECT f.fact, f.value, f.ok, f.hint FROM facts f ORDER BY f.place, f.fact DESC
$$;
