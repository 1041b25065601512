-- Gives a view to another role, whose rights count from then on.
-- COMMIT comes first: inside a transaction block it fails before anything has happened.
CREATE OR REPLACE PROCEDURE headrace.set_owner(name text, role text)
LANGUAGE plpgsql
AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('set_owner', pg_catalog.jsonb_build_object('name', name, 'role', role),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
