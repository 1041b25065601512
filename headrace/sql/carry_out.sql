-- Carries out a step of a procedure that has a file of its own: queues a command, commits, waits until it is done, and
-- returns its result, or the error with which it has failed.  command: one that is under way already.
-- The caller raises the error, because each routine on its way would add a line of context.
CREATE OR REPLACE PROCEDURE headrace.carry_out(
    step text, arguments jsonb, command bigint, INOUT answer jsonb, INOUT failed jsonb)
LANGUAGE plpgsql
AS $$
DECLARE
    seen pg_catalog.text;
    done boolean := false;
BEGIN
    IF command IS NULL THEN
        command := headrace.submit(step, arguments, headrace.captured_settings());
        COMMIT;
    END IF;
    WHILE NOT done LOOP
        SELECT c.seen, c.done, c.failed INTO seen, done, failed FROM headrace.check_command(command, seen) c;
        COMMIT;
    END LOOP;
    answer := CASE WHEN failed IS NULL THEN headrace.command_result(command) END;
END
$$;
