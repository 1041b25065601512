-- Asks the engine to hold the states of the views that read a table, and waits until it has them; returns the number of the call.
-- The question is locks (pose_question.sql).  So is the answer, because the snapshot here is older than any row of the engine.
-- The locks end with the subtransaction of the caller, and the command goes on.
CREATE OR REPLACE FUNCTION headrace.what_if_hold(tried bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    most_s CONSTANT float8 := 10;
    ends    timestamptz := clock_timestamp() + most_s * interval '1 s';
    key     int;
    command bigint;
BEGIN
    command := headrace.pose_question('what_if_hold', tried);
    key := (command & 2147483647)::int;
    -- The commander cancels a command whose caller has gone (check_command.sql).
    PERFORM pg_try_advisory_xact_lock_shared(1212437059, (command % 2147483647)::int);
    WHILE NOT EXISTS (
        SELECT FROM pg_locks k WHERE k.locktype = 'advisory' AND k.objsubid = 2 AND k.granted
           AND k.classid::bigint = 1212437064 AND k.objid::bigint = key AND k.pid <> pg_backend_pid()
           AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())) LOOP
        IF clock_timestamp() > ends THEN
            RAISE EXCEPTION USING ERRCODE = '57014', MESSAGE = 'canceling what_if due to timeout',
                DETAIL = format('The views are not known to have all earlier changes after %s s.', most_s),
                HINT = 'See headrace.list_views() for their status and lag.';
        END IF;
        PERFORM pg_sleep(0.005);
    END LOOP;
    RETURN command;
END
$$;
