-- The engine of this database, a fact a row: readable by everybody, also while it is down.  ok: false where
-- somebody should do something, and hint says what; NULL where there is nothing to judge.
CREATE OR REPLACE FUNCTION headrace.status(OUT fact text, OUT value text, OUT ok boolean, OUT hint text)
RETURNS SETOF record
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    WITH slot AS (
        SELECT m.value AS name, r.active, r.wal_status, r.active_pid, a.flush_lag,
               CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END AS now,
               r.restart_lsn, r.confirmed_flush_lsn, r.safe_wal_size, r.slot_name IS NOT NULL AS there
          FROM headrace.meta m
          LEFT JOIN pg_replication_slots r ON r.slot_name = m.value
          LEFT JOIN pg_stat_replication a ON a.pid = r.active_pid
         WHERE m.key = 'slot_name'),
    states AS MATERIALIZED (SELECT * FROM headrace.view_states()),
    told AS (
        SELECT s.status, count(*) AS n FROM states s GROUP BY s.status),
    last AS (
        SELECT s.name, s.lag_bytes, s.status FROM states s WHERE s.status <> 'error' ORDER BY s.lag_bytes DESC NULLS LAST, s.name LIMIT 1),
    facts(place, fact, value, ok, hint) AS (
        SELECT 1, 'version', (SELECT m.value FROM headrace.meta m WHERE m.key = 'release'), NULL::boolean, NULL::text
        UNION ALL
        SELECT 2, 'engine', CASE WHEN headrace.engine_running() THEN 'running' ELSE 'stopped' END,
               headrace.engine_running(), CASE WHEN NOT headrace.engine_running() THEN 'headrace start' END
        UNION ALL
        SELECT 3, 'views', coalesce((SELECT string_agg(format('%s %s', t.n, t.status), ', ' ORDER BY t.n DESC, t.status) FROM told t), 'none'),
               NOT EXISTS (SELECT FROM told t WHERE t.status IN ('error', 'sink_error', 'stopped')),
               CASE WHEN EXISTS (SELECT FROM told t WHERE t.status IN ('error', 'sink_error', 'stopped'))
                    THEN 'list_views() says of each why: message, held_by' END
        UNION ALL
        SELECT 4, 'batch under way', format('for %s s', round(b.batch_s::numeric)), b.batch_s < 10,
               CASE WHEN b.batch_s >= 10 THEN 'batches() says which; the view that takes long is in the log' END
          FROM (SELECT headrace.batch_s()) b(batch_s) WHERE b.batch_s IS NOT NULL
        UNION ALL
        SELECT 5, 'slot', format('%s, %s', s.name, CASE WHEN NOT s.there THEN 'missing' WHEN s.active THEN 'active' ELSE 'not active' END),
               s.there AND (s.active OR NOT headrace.engine_running()),
               CASE WHEN NOT s.there THEN 'the views are filled anew when the engine finds that' END
          FROM slot s
        UNION ALL
        SELECT 6, 'stream behind', concat_ws(', ', pg_size_pretty(s.now - s.confirmed_flush_lsn), s.flush_lag::text), NULL, NULL
          FROM slot s WHERE s.there
        UNION ALL
        SELECT 7, 'WAL kept', pg_size_pretty(s.now - s.restart_lsn)
               || CASE WHEN s.wal_status <> 'reserved' THEN format(', %s', s.wal_status) ELSE '' END,
               s.wal_status IN ('reserved', 'extended'),
               CASE WHEN s.wal_status NOT IN ('reserved', 'extended') THEN 'the server removes it soon: see max_slot_wal_keep_size' END
          FROM slot s WHERE s.restart_lsn IS NOT NULL
        UNION ALL
        SELECT 8, 'WAL may still grow by', pg_size_pretty(s.safe_wal_size), s.safe_wal_size > 1e9,
               CASE WHEN s.safe_wal_size <= 1e9 THEN 'max_slot_wal_keep_size is near: see which view stands furthest back' END
          FROM slot s WHERE s.safe_wal_size IS NOT NULL
        UNION ALL
        SELECT 9, 'furthest back', format('%s, %s, %s', l.name, pg_size_pretty(l.lag_bytes), l.status), NULL, NULL
          FROM last l WHERE l.lag_bytes > 1000000)
    SELECT f.fact, f.value, f.ok, f.hint FROM facts f ORDER BY f.place
$$;
