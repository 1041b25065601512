-- By row security, the details of a view (query, plan, messages, position, tables) are visible to its owner and the
-- members of that role; each role sees its own commands (commands.sql).  No role may read the stored plan: it holds
-- queries of other owners' views that the view reads.
-- Other rights that were granted, also by default privileges, are revoked.
DO $$
DECLARE
    given record;
BEGIN
    FOR given IN
        SELECT DISTINCT c.oid::pg_catalog.regclass AS relation, c.relkind OPERATOR(pg_catalog.=) 'S' AS sequence,
               CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0 THEN 'PUBLIC'
                    ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END AS grantee
          FROM pg_catalog.pg_class c
         CROSS JOIN LATERAL (
               SELECT x.grantee FROM pg_catalog.aclexplode(c.relacl) x
               UNION SELECT x.grantee FROM pg_catalog.pg_attribute t, pg_catalog.aclexplode(t.attacl) x
                WHERE t.attrelid OPERATOR(pg_catalog.=) c.oid) a
         WHERE c.relnamespace OPERATOR(pg_catalog.=) 'headrace'::pg_catalog.regnamespace
           AND c.relkind IN ('r', 'S') AND a.grantee OPERATOR(pg_catalog.<>) c.relowner
    LOOP
        -- Without columns this takes back what was given for columns, too.
        EXECUTE pg_catalog.format('REVOKE ALL ON %s %s FROM %s CASCADE',
            CASE WHEN given.sequence THEN 'SEQUENCE' ELSE 'TABLE' END, given.relation, given.grantee);
    END LOOP;
    FOR given IN
        SELECT DISTINCT CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0 THEN 'PUBLIC'
               ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END AS grantee
          FROM pg_catalog.pg_namespace n, pg_catalog.aclexplode(n.nspacl) a
         WHERE n.nspname OPERATOR(pg_catalog.=) 'headrace' AND a.grantee OPERATOR(pg_catalog.<>) n.nspowner
           AND a.privilege_type OPERATOR(pg_catalog.=) 'CREATE'
    LOOP
        EXECUTE pg_catalog.format('REVOKE CREATE ON SCHEMA headrace FROM %s CASCADE', given.grantee);
    END LOOP;
END
$$;
GRANT USAGE ON SCHEMA headrace TO PUBLIC;
GRANT SELECT ON headrace.meta, headrace.progress, headrace.view_tables, headrace.view_uses, headrace.points, headrace.samples, headrace.held, headrace.facts, headrace.events TO PUBLIC;
GRANT SELECT (id, schema_name, view_name, query, columns, explain, options, settings, owner, result_oid,
              start_lsn, status, message, detail, hint, culprit, sqlstate, tried, note, block, created_at, canonical, revision, since, last_error, last_error_at, paused_by, placed_parts)
    ON headrace.views TO PUBLIC;
GRANT SELECT ON headrace.histories, headrace.history, headrace.covered, headrace.violations, headrace.webhook_targets, headrace.webhook_deliveries TO PUBLIC;
GRANT SELECT (id, view_id, on_violation, sample, grace, txid, count, lsn, since, violation_id, fill_txid, fill_rows, fill_at)
    ON headrace.assertion_states TO PUBLIC;
GRANT SELECT, INSERT (name, history_id, txid), UPDATE (name, txid) ON headrace.feeds TO PUBLIC;
GRANT SELECT, INSERT (procedure, arguments, settings, queued) ON headrace.commands TO PUBLIC;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA headrace TO PUBLIC;
