-- Returns what this transaction has done to tables, for what_if: the rows inserted, updated and deleted, by the table's OID; those
-- that it has locked as only DDL and TRUNCATE do; and whether rows are counted.
CREATE OR REPLACE FUNCTION headrace.what_if_facts(tables jsonb) RETURNS jsonb
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
    WITH t AS MATERIALIZED (SELECT e.oid::oid AS oid FROM jsonb_array_elements_text(tables) e (oid)),
    n AS MATERIALIZED (
        SELECT t.oid, pg_stat_get_xact_tuples_inserted(t.oid) AS inserted, pg_stat_get_xact_tuples_updated(t.oid) AS updated,
               pg_stat_get_xact_tuples_deleted(t.oid) AS deleted
          FROM t)
    SELECT jsonb_build_object(
        'tracked', current_setting('track_counts')::boolean,
        'counts', (SELECT coalesce(jsonb_object_agg(n.oid::text, jsonb_build_array(n.inserted, n.updated, n.deleted)), '{}')
                     FROM n WHERE n.inserted + n.updated + n.deleted > 0),
        'locked', (SELECT coalesce(jsonb_agg(DISTINCT k.relation::bigint), '[]') FROM pg_locks k JOIN t ON t.oid = k.relation
                    WHERE k.locktype = 'relation' AND k.pid = pg_backend_pid() AND k.mode = 'AccessExclusiveLock'))
$$;
