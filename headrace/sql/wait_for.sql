-- Returns once the view covers a position; the default is everything committed before the call.
-- COMMIT comes first: inside a transaction block it fails before anything has happened.
CREATE OR REPLACE PROCEDURE headrace.wait_for(name text, lsn pg_lsn DEFAULT NULL, timeout interval DEFAULT NULL)
LANGUAGE plpgsql
AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('wait_for', pg_catalog.jsonb_build_object('name', name, 'lsn', lsn, 'timeout', timeout),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
