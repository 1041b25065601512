-- Asks the engine from inside of a query; returns the number of the command that the commander makes of it.
-- A row in headrace.commands would be invisible to the engine before this transaction ends.  Advisory locks are visible
-- at once.  So four shared locks of this session are the question: a random number, and under this number the current
-- role, the hash of the name, and a number: the table for what_if_hold, for others the bytes of its arguments, which
-- follow (send_arguments.sql).  The commander looks for them (sql/questions.py), writes the command for this role if the
-- session may SET ROLE to it, and carries it out like one of a CALL.
-- The locks end with the subtransaction of the caller.
CREATE OR REPLACE FUNCTION headrace.pose_question(procedure text, number bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    role    bigint := quote_ident(CURRENT_USER)::regrole::oid;
    key     int;
    command bigint;
BEGIN
    -- Another session could have one of the locks only by chance, or by trying all numbers.
    LOOP
        -- Room for the words of send_arguments.sql.
        key := floor(random() * 2147450000)::int;
        command := (1::bigint << 62) + (pg_backend_pid()::bigint << 31) + key;
        -- A word must not look like the lock of a question.
        EXIT WHEN key NOT BETWEEN 1212400000 AND 1212437100
            AND NOT EXISTS (SELECT FROM headrace.commands c WHERE c.id = command)
            AND pg_try_advisory_xact_lock_shared(key, (CASE WHEN role > 2147483647 THEN role - 4294967296 ELSE role END)::int)
            AND pg_try_advisory_xact_lock_shared(key + 1, hashtext(procedure))
            AND pg_try_advisory_xact_lock_shared(key + 2, (CASE WHEN number > 2147483647 THEN number - 4294967296 ELSE number END)::int)
            AND pg_try_advisory_xact_lock_shared(1212437063, key);
    END LOOP;
    RETURN command;
END
$$;
