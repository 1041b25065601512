-- Takes a batch that is in flight, and all later ones, back: they are processed again.  For
-- whoever runs the engine: a member of its role.  The engine checks that.
-- COMMIT comes first: inside a transaction block it fails before anything has happened.
CREATE OR REPLACE PROCEDURE headrace.fail_batch(txid bigint)
LANGUAGE plpgsql
AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('fail_batch', pg_catalog.jsonb_build_object('txid', txid),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
END
$$;
