-- The state of all views, without the details that only their owners may see; list_views() adds those.
-- status: the stored one, corrected by these rules:
--   running    the worker is connected, has reported in the last seconds, and feeds the view
--   starting   the engine is connected; its worker is not, or is silent, or has not taken the view over
--   stopped    no engine is connected: nothing is applied, populated or retried
--   error      also if the result table or the view's owner is gone
-- rows: an estimate of the result table (NULL until it was first analysed).
-- A view covers the position that the worker reports for all views (worker_position()), except a lagging one: that
-- has a row in headrace.held, which counts until the view is written again, or until it leads if it catches up.
-- While the worker runs, the confirmed LSN of the slot does not show a view's position, because a paused or blocked
-- view holds it back.
-- lag_bytes: WAL written since the position that the view covers.
-- lag_ms: 0 for a view that has all changes received; for a lagging one, the time since the first commit that it
-- lacks, or since the present batch was taken.  For one that has stopped, and for all while the engine does not
-- run, how old the contents may be: the time since the last batch that it covers, as far as a view shows that batch.
-- cursor: whether the view processes each batch with its commit group, or why not (CursorState in sql/status.py), as the
-- engine published it within the last seconds; NULL: no engine works on it.  The status is newer, and counts first.
-- assertion: whether the view is an assertion (assertions.sql).
DROP FUNCTION IF EXISTS headrace.list_views();
DROP FUNCTION IF EXISTS headrace.view_states();
CREATE FUNCTION headrace.view_states(
    OUT id bigint, OUT name text, OUT status text, OUT message text, OUT rows bigint,
    OUT lag_ms bigint, OUT lag_bytes bigint, OUT txid bigint, OUT lsn pg_lsn, OUT cursor text,
    OUT assertion boolean)
RETURNS SETOF record
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    -- Who asks again and again in one transaction is to see who has gone meanwhile.
    SELECT pg_stat_clear_snapshot();
    SELECT v.id, format('%I.%I', v.schema_name, v.view_name), k.status,
           CASE WHEN k.orphan THEN format('the role that owned it was dropped; CALL headrace.set_owner(%L, role)'
                    ' gives it a new owner.', format('%I.%I', v.schema_name, v.view_name))
                WHEN d.restored THEN 'schema headrace was restored from a dump: run headrace adopt, then start Headrace'
                WHEN k.status = v.status THEN NULL
                WHEN k.status = 'stopped' THEN 'no engine is connected to this database'
                WHEN k.status = 'starting' THEN 'the worker is not connected, or silent'
                ELSE format('result table "%s"."%s" was dropped; CALL headrace.resync_view(%L) rebuilds it.',
                            v.schema_name, v.view_name, format('%I.%I', v.schema_name, v.view_name)) END,
           CASE WHEN c.reltuples >= 0 OR pg_stat_get_live_tuples(c.oid) > 0
                THEN greatest(c.reltuples::bigint, pg_stat_get_live_tuples(c.oid)) END,
           CASE WHEN p.lsn IS NULL THEN NULL
                WHEN k.covered >= w.lsn THEN 0
                WHEN h.lsn IS NOT NULL THEN greatest(extract(epoch FROM clock_timestamp() - h.since) * 1000, 0)::bigint
                WHEN k.status IN ('running', 'paused', 'sink_error') AND e.heard THEN greatest(e.lag_ms, CASE WHEN e.lsn IS NOT NULL AND k.status = 'running' THEN e.busy_ms END)
                ELSE k.since_ms END,
           greatest(w.lsn - k.covered, 0)::bigint,
           p.txid, p.lsn,
           CASE WHEN e.heard THEN
                CASE k.status
                     WHEN 'running' THEN CASE WHEN u.what IS NULL THEN 'leading' ELSE 'catching_up' END
                     WHEN 'paused' THEN 'paused'
                     WHEN 'sink_error' THEN CASE u.what WHEN 'lost' THEN 'lost' ELSE 'blocked' END END END,
           EXISTS (SELECT FROM headrace.assertion_states t WHERE t.view_id = v.id)
      FROM headrace.views v
      LEFT JOIN headrace.progress p ON p.view_id = v.id
      LEFT JOIN pg_class c ON c.oid = v.result_oid
      LEFT JOIN pg_roles o ON o.oid = v.owner
     CROSS JOIN (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                             ELSE pg_current_wal_lsn() END AS lsn) w
      LEFT JOIN (SELECT r.confirmed_flush_lsn AS confirmed,
                        -- the last change of any view that all running views are known to cover
                        (SELECT q.source_commit_at FROM headrace.progress q WHERE q.lsn <= r.confirmed_flush_lsn
                          ORDER BY q.lsn DESC LIMIT 1) AS changed_at
                   FROM headrace.meta m JOIN pg_replication_slots r ON r.slot_name = m.value
                  WHERE m.key = 'slot_name') s ON true
     CROSS JOIN (SELECT EXISTS (SELECT FROM headrace.meta m WHERE m.key = 'catalog_oid'
                                   AND m.value <> 'headrace.views'::regclass::oid::text) AS restored) d
      LEFT JOIN headrace.worker_position() e ON true
      LEFT JOIN headrace.held u ON u.view_id = v.id AND u.kind = 'cursor'
      LEFT JOIN headrace.held h ON h.view_id = v.id AND h.kind = 'behind' AND v.status <> 'error'
           AND (h.lsn >= p.lsn OR u.what = 'catching_up')
     CROSS JOIN LATERAL (
         SELECT v.owner IS NOT NULL AND o.oid IS NULL AS orphan,
                CASE WHEN d.restored THEN 'stopped'
                     WHEN v.owner IS NOT NULL AND o.oid IS NULL THEN 'error'
                     WHEN v.status IN ('paused', 'error') THEN v.status
                     WHEN v.status = 'running' AND c.oid IS NULL THEN 'error'
                     WHEN e.heard AND (p.epoch > 0 OR v.status <> 'running') THEN v.status
                     WHEN e.heard IS NULL AND NOT headrace.engine_running() THEN 'stopped'
                     WHEN v.status = 'running' THEN 'starting'
                     ELSE v.status END AS status,
                CASE WHEN h.lsn IS NOT NULL THEN greatest(h.lsn, p.lsn)
                     WHEN e.heard AND v.status IN ('running', 'paused', 'sink_error') THEN greatest(p.lsn, e.lsn)
                     WHEN v.status = 'running' THEN greatest(p.lsn, s.confirmed)
                     ELSE p.lsn END AS covered,
                greatest(extract(epoch FROM clock_timestamp()
                    - greatest(coalesce(p.source_commit_at, p.applied_at, v.created_at),
                               CASE WHEN v.status = 'running' THEN s.changed_at END)) * 1000, 0)::bigint
                    AS since_ms) k
     ORDER BY v.schema_name, v.view_name
$$;
