-- verify_view for direct connections: an array of {surplus, missing, contents}, empty if all is right.
-- COMMIT comes first: inside a transaction block it fails before anything has happened.
CREATE OR REPLACE PROCEDURE headrace.verify(name text, INOUT differences jsonb DEFAULT NULL)
LANGUAGE plpgsql
AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('verify_view', pg_catalog.jsonb_build_object('name', name),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
    differences := headrace.command_result(command);
END
$$;
