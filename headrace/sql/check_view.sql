-- Whether create_view would accept a query, by the same code: the plan it would get, or the same error.
-- Nothing is made.  COMMIT comes first: inside a transaction block it fails before anything has happened.
CREATE OR REPLACE PROCEDURE headrace.check_view(query text, INOUT plan text DEFAULT NULL)
LANGUAGE plpgsql
AS $$
DECLARE
    command bigint;
    seen    pg_catalog.text;
    done    boolean := false;
BEGIN
    COMMIT;
    command := headrace.submit('check_view', pg_catalog.jsonb_build_object('query', query),
                               headrace.captured_settings());
    COMMIT;
    WHILE NOT done LOOP
        SELECT a.seen, a.done INTO seen, done FROM headrace.await_command(command, seen) a;
        COMMIT;
    END LOOP;
    plan := (headrace.command_result(command) OPERATOR(pg_catalog.->) 0) OPERATOR(pg_catalog.->>) 'plan';
END
$$;
