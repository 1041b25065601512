-- Sets REPLICA IDENTITY FULL on result tables without a key that an earlier version created, so that another
-- publication FOR ALL TABLES does not prevent writing them (sink/table.py).
-- A table that is in use is left for the next start.
DO $$
DECLARE
    name text;
    waits text := pg_catalog.current_setting('lock_timeout');
BEGIN
    FOR name IN
        SELECT pg_catalog.format('%I.%I', n.nspname, c.relname)
          FROM headrace.views v
          JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) v.result_oid
          JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
         WHERE c.relkind OPERATOR(pg_catalog.=) 'r' AND c.relreplident OPERATOR(pg_catalog.=) 'd'
           AND pg_catalog.pg_get_userbyid(c.relowner) OPERATOR(pg_catalog.=) current_user
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_index i
                            WHERE i.indrelid OPERATOR(pg_catalog.=) c.oid AND i.indisprimary)
    LOOP
        BEGIN
            PERFORM pg_catalog.set_config('lock_timeout', '200ms', true);
            EXECUTE pg_catalog.format('ALTER TABLE %s REPLICA IDENTITY FULL', name);
        EXCEPTION WHEN lock_not_available OR undefined_table THEN
            RAISE WARNING 'result table % is in use: its replica identity is set at the next start',
                name;
        END;
    END LOOP;
    PERFORM pg_catalog.set_config('lock_timeout', waits, true);
END
$$;
