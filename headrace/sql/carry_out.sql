-- Carries out a step of a procedure that has a file of its own: queues a command, commits, waits until it is done, and
-- returns its result.  command: one that is under way already.
CREATE OR REPLACE PROCEDURE headrace.carry_out(
    step text, arguments jsonb, command bigint, INOUT answer jsonb)
LANGUAGE plpgsql
AS $$
DECLARE
    seen   pg_catalog.text;
    done   boolean := false;
    failed pg_catalog.jsonb;
BEGIN
    IF command IS NULL THEN
        command := headrace.submit(step, arguments, headrace.captured_settings());
        COMMIT;
    END IF;
    WHILE NOT done LOOP
        SELECT c.seen, c.done, c.failed INTO seen, done, failed FROM headrace.check_command(command, seen) c;
        COMMIT;
    END LOOP;
    IF failed IS NOT NULL THEN
        PERFORM headrace.raise_error(failed);
    END IF;
    answer := headrace.command_result(command);
END
$$;
