-- Drops a view and its result table.
-- COMMIT comes first: inside a transaction block it fails before anything has happened.
CREATE OR REPLACE PROCEDURE headrace.drop_view(name text, if_exists boolean DEFAULT false)
LANGUAGE plpgsql
AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('drop_view', pg_catalog.jsonb_build_object('name', name, 'if_exists', if_exists),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
