-- Checks a command of the current user once: reports progress as NOTICE, raises its error, and
-- returns whether it is done.  The procedure commits between two calls, so that it holds no
-- snapshot while a population runs.
--
-- The advisory lock shows the commander that the caller still waits.  When it is missing for a
-- while (Ctrl-C, a lost connection), the command is cancelled.  The lock is shared, so an attempt
-- fails only if another session blocks it on purpose; that must not stop the caller.
CREATE OR REPLACE FUNCTION headrace.await_command(command bigint, INOUT seen text, OUT done boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    c       headrace.commands;
    waited  int := 0;
    code    text;
    what    text;
BEGIN
    PERFORM pg_try_advisory_xact_lock_shared(1212437059, (command % 2147483647)::int);
    LOOP
        -- Superusers see those of everybody.
        SELECT * INTO c FROM headrace.commands x
         WHERE x.id = command AND x.caller = quote_ident(CURRENT_USER)::regrole::oid;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = '42704',
                MESSAGE = format('command %s does not exist', command);
        END IF;
        IF c.progress ->> 'text' IS DISTINCT FROM seen AND c.progress ? 'text' THEN
            seen := c.progress ->> 'text';
            RAISE NOTICE '%', seen;
        END IF;
        EXIT WHEN c.status IN ('done', 'failed');
        IF waited >= 50 THEN
            IF NOT headrace.engine_running() THEN
                RAISE EXCEPTION USING ERRCODE = '57P03',
                    MESSAGE = 'headrace is not running',
                    DETAIL = 'The engine stopped during the command. It ends or undoes the command when it is back.',
                    HINT = 'See headrace.list_views() once it runs again.';
            END IF;
            done := false;
            RETURN;
        END IF;
        waited := waited + 1;
        -- Some commands take milliseconds, others minutes.
        PERFORM pg_sleep(CASE WHEN waited < 10 THEN 0.003 ELSE 0.02 END);
    END LOOP;
    IF c.status = 'failed' THEN
        -- An option of RAISE cannot be NULL, and an empty DETAIL would be shown.
        code := coalesce(c.error ->> 'C', 'XX000');
        what := coalesce(c.error ->> 'M', 'unknown error');
        IF c.error ? 'D' AND c.error ? 'H' THEN
            RAISE EXCEPTION USING ERRCODE = code, MESSAGE = what,
                DETAIL = c.error ->> 'D', HINT = c.error ->> 'H';
        ELSIF c.error ? 'D' THEN
            RAISE EXCEPTION USING ERRCODE = code, MESSAGE = what, DETAIL = c.error ->> 'D';
        ELSIF c.error ? 'H' THEN
            RAISE EXCEPTION USING ERRCODE = code, MESSAGE = what, HINT = c.error ->> 'H';
        END IF;
        RAISE EXCEPTION USING ERRCODE = code, MESSAGE = what;
    END IF;
    done := true;
END
$$;
