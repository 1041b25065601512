-- Gives a view another query of the same columns; its table is changed at once, where it differs.
-- COMMIT comes first: inside a transaction block it fails before anything has happened.
CREATE OR REPLACE PROCEDURE headrace.alter_view(name text, query text)
LANGUAGE plpgsql
AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('alter_view', pg_catalog.jsonb_build_object('name', name, 'query', query),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
