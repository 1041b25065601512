-- Queues a command of the current user for the commander and wakes it; returns the command's number.
-- It runs with the caller's rights: row security of the table determines whose command it is.
-- queued: the commander sees it when the transaction commits, and nobody waits for it.
CREATE OR REPLACE FUNCTION headrace.submit(
    procedure text, arguments jsonb, settings jsonb, queued boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    command bigint;
    waited  int := 0;
BEGIN
    -- Before it waits for an engine; the trigger of the table checks it again, with the settings.
    IF octet_length(arguments::text) > 1048576 THEN
        RAISE EXCEPTION USING ERRCODE = '54000',
            MESSAGE = 'the arguments of the call are too large',
            DETAIL = 'All of them together may have 1 MB of text.';
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
    INSERT INTO headrace.commands AS c (procedure, arguments, settings, queued)
    VALUES (procedure, arguments, settings, queued)
    RETURNING c.id INTO command;
    -- It is looked for without that as well, less often; a full queue would fail the COMMIT.  A transaction that may be
    -- prepared must not notify.
    IF pg_notification_queue_usage() < 0.5 AND NOT (queued AND current_setting('max_prepared_transactions')::int > 0) THEN
        PERFORM pg_notify('headrace_commands', command::text);
    END IF;
    IF queued THEN
        RAISE NOTICE USING MESSAGE = format('%s is carried out after this transaction commits', procedure),
            HINT = 'After COMMIT, headrace.wait_for also waits for it, and headrace.calls() shows how it ended.';
    END IF;
    RETURN command;
END
$$;
