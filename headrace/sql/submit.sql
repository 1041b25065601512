-- Queues a command for the commander and wakes it; returns its number.
-- The caller is named by the procedure (inside this function CURRENT_USER is its owner), and
-- believed only if the login role may act as that role.
CREATE OR REPLACE FUNCTION headrace.submit(
    procedure text, arguments jsonb, caller name, settings jsonb) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    command bigint;
    waited  int := 0;
BEGIN
    IF NOT pg_has_role(session_user, caller, 'MEMBER') THEN
        RAISE EXCEPTION USING ERRCODE = '42501',
            MESSAGE = format('permission denied to act as role "%s"', caller);
    END IF;
    -- A restart of the engine takes a moment.
    WHILE NOT headrace.engine_running() LOOP
        IF waited >= 30 THEN
            RAISE EXCEPTION USING ERRCODE = '57P03',
                MESSAGE = 'headrace is not running',
                DETAIL = 'No engine is connected to this database.',
                HINT = 'Start it with `headrace start --source …` and call again.';
        END IF;
        waited := waited + 1;
        PERFORM pg_sleep(0.1);
        PERFORM pg_stat_clear_snapshot();
    END LOOP;
    INSERT INTO headrace.commands AS c (procedure, arguments, caller, login, settings)
    VALUES (procedure, arguments, caller, session_user, settings)
    RETURNING c.id INTO command;
    PERFORM pg_notify('headrace_commands', command::text);
    RETURN command;
END
$$;
