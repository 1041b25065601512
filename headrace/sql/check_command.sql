-- Checks a command of the current user once: reports progress as NOTICE, and returns whether it is done, and the error
-- with which it has failed.  The caller raises that error, because each function on its way would add a line of context.
-- The procedure commits between two calls, so that it holds no snapshot while a population runs.
--
-- The advisory lock shows the commander that the caller still waits.  When it is missing for a
-- while (Ctrl-C, a lost connection), the command is cancelled.  The lock is shared, so an attempt
-- fails only if another session blocks it on purpose; that must not stop the caller.
CREATE OR REPLACE FUNCTION headrace.check_command(command bigint, INOUT seen text, OUT done boolean, OUT failed jsonb)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    c       headrace.commands;
    waited  int := 0;
BEGIN
    PERFORM pg_try_advisory_xact_lock_shared(1212437059, (command % 2147483647)::int);
    LOOP
        -- Superusers see those of everybody.
        SELECT * INTO c FROM headrace.commands x
         WHERE x.id = command AND x.caller = quote_ident(CURRENT_USER)::regrole::oid;
        IF NOT FOUND THEN
            failed := jsonb_build_object('C', '42704', 'M', format('command %s does not exist', command));
            done := true;
            RETURN;
        END IF;
        IF c.progress ->> 'text' IS DISTINCT FROM seen AND c.progress ? 'text' THEN
            seen := c.progress ->> 'text';
            RAISE NOTICE '%', seen;
        END IF;
        EXIT WHEN c.status IN ('done', 'failed');
        IF waited >= 50 THEN
            -- In a transaction the list of sessions does not change by itself.
            PERFORM pg_stat_clear_snapshot();
            done := NOT headrace.engine_running();
            IF done THEN
                failed := jsonb_build_object('C', '57P03', 'M', 'headrace is not running',
                    'D', 'The engine stopped during the command. It ends or undoes the command when it is back.',
                    'H', 'See headrace.list_views() once it runs again.');
            END IF;
            RETURN;
        END IF;
        waited := waited + 1;
        -- Some commands take milliseconds, others minutes.
        PERFORM pg_sleep(CASE WHEN waited < 10 THEN 0.003 ELSE 0.02 END);
    END LOOP;
    IF c.status = 'failed' THEN
        failed := jsonb_build_object('C', 'XX000', 'M', 'unknown error') || c.error;
    END IF;
    done := true;
END
$$;
