-- Lets a paused view go on from where it was.
-- COMMIT comes first: inside a transaction block it fails before anything has happened.
CREATE OR REPLACE PROCEDURE headrace.resume_view(name text)
LANGUAGE plpgsql
AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('resume_view', pg_catalog.jsonb_build_object('name', name),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
