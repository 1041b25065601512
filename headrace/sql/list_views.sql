-- All views with their state; readable by everybody, also while the engine is down.
-- rows: an estimate of the result table (NULL until it was first analysed).
-- lag_bytes: WAL written since the position the view covers.  Where nothing was published for
-- a while that is the slot's confirmed position, which the engine moves only when all is applied.
-- lag_ms: for a view that still has to catch up, the time since the commit of its last applied
-- batch; otherwise the walsender's own measure.
DROP FUNCTION IF EXISTS headrace.list_views();
CREATE FUNCTION headrace.list_views(
    OUT name text, OUT status text, OUT message text, OUT query text, OUT rows bigint,
    OUT lag_ms bigint, OUT lag_bytes bigint, OUT txid bigint, OUT lsn pg_lsn)
RETURNS SETOF record
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('%I.%I', v.schema_name, v.view_name), v.status, v.message, v.query,
           CASE WHEN c.reltuples >= 0 OR pg_stat_get_live_tuples(c.oid) > 0
                THEN greatest(c.reltuples::bigint, pg_stat_get_live_tuples(c.oid)) END,
           CASE WHEN v.status <> 'running' OR p.lsn IS NULL THEN NULL
                WHEN greatest(p.lsn, s.confirmed) >= w.lsn THEN 0
                WHEN s.confirmed >= p.lsn THEN coalesce(extract(epoch FROM s.flush_lag) * 1000, 0)::bigint
                ELSE greatest(extract(epoch FROM clock_timestamp()
                     - coalesce(p.source_commit_at, p.applied_at, clock_timestamp())) * 1000, 0)::bigint END,
           CASE WHEN p.lsn IS NULL THEN NULL
                WHEN v.status = 'running' THEN greatest(w.lsn - greatest(p.lsn, s.confirmed), 0)::bigint
                ELSE greatest(w.lsn - p.lsn, 0)::bigint END,
           p.txid, p.lsn
      FROM headrace.views v
      LEFT JOIN headrace.progress p ON p.view_id = v.id
      LEFT JOIN pg_class c ON c.oid = v.result_oid
     CROSS JOIN (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                             ELSE pg_current_wal_lsn() END AS lsn) w
      LEFT JOIN (SELECT r.confirmed_flush_lsn AS confirmed, a.flush_lag
                   FROM headrace.meta m
                   JOIN pg_replication_slots r ON r.slot_name = m.value
                   LEFT JOIN pg_stat_replication a ON a.pid = r.active_pid
                  WHERE m.key = 'slot_name') s ON true
     ORDER BY v.schema_name, v.view_name
$$;
