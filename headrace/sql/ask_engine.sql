-- Asks the engine from inside of a query, and returns the rows of its answer as a JSON array.
-- procedure: the name of the function; called: the procedure with the same answer; slot: the answer takes a replication
-- slot, which waits for all transactions that have written; writes: it changes something; ends: when to give up.
-- pose_question.sql has how the question reaches the engine.
-- VOLATILE: each query has its own snapshot, and so sees the answer.
DROP FUNCTION IF EXISTS headrace.ask_engine(text, text, bigint, boolean, boolean);
DROP FUNCTION IF EXISTS headrace.ask_engine(text, text, bigint, boolean, boolean, boolean);
DROP FUNCTION IF EXISTS headrace.ask_engine(text, text, bigint, boolean, boolean, boolean, timestamptz);
CREATE OR REPLACE FUNCTION headrace.ask_engine(
    procedure text, called text, arguments jsonb DEFAULT '{}', settings jsonb DEFAULT '{}', slot boolean DEFAULT false,
    writes boolean DEFAULT false, ends timestamptz DEFAULT NULL)
RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    level   text := current_setting('transaction_isolation');
    said    bytea := CASE WHEN arguments = '{}' THEN ''
                          ELSE convert_to(jsonb_build_object('arguments', arguments, 'settings', settings)::text, 'UTF8') END;
    command bigint;
    seen    text;
    done    boolean := false;
    failed  jsonb;
    answer  jsonb;
    waited  int := 0;
    held    text;
    begun   timestamptz := clock_timestamp();
BEGIN
    IF level IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION USING ERRCODE = '0A000',
            MESSAGE = format('%s cannot be answered in a %s transaction', procedure, upper(level)),
            DETAIL = 'Its snapshot shows nothing that is written after it was taken, and so no answer of the engine.',
            HINT = format('Use a READ COMMITTED transaction, or CALL headrace.%s outside of a transaction.', called);
    ELSIF writes AND current_setting('transaction_read_only')::boolean THEN
        RAISE EXCEPTION USING ERRCODE = '25006',
            MESSAGE = format('cannot execute %s in a read-only transaction', procedure);
    ELSIF slot AND NOT pg_is_in_recovery() AND pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '0A000',
            MESSAGE = format('%s cannot be answered in a transaction that has written', procedure),
            DETAIL = 'It takes a snapshot with a replication slot, which waits until transactions that have written are over.',
            HINT = format('Commit first, or CALL headrace.%s outside of a transaction.', called);
    ELSIF octet_length(said) > 65536 THEN
        RAISE EXCEPTION USING ERRCODE = '54000', MESSAGE = format('the arguments of %s are too large', procedure),
            DETAIL = 'All of them together, as JSON, may have 64 kB inside of a query.',
            HINT = format('CALL headrace.%s outside of a transaction: it takes 1 MB.', called);
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
    BEGIN
        command := headrace.pose_question(procedure, octet_length(said));
        PERFORM headrace.send_arguments(procedure, command, said, ends);
        WHILE NOT done LOOP
            IF clock_timestamp() > ends THEN
                RAISE EXCEPTION USING ERRCODE = '57014', MESSAGE = format('canceling %s due to timeout', procedure),
                    HINT = 'See headrace.list_views() for the status and lag of views.';
            END IF;
            SELECT c.seen, c.done, c.failed INTO seen, done, failed FROM headrace.check_command(command, seen) c;
            -- About once a second.  Postgres sees no deadlock, because nothing here waits for a lock.  The sink, and earlier
            -- calls, may wait for this transaction for other reasons; so may snapshots, for the end of transactions.
            IF NOT done THEN
                SELECT w.relation::regclass::text INTO held
                  FROM pg_locks w JOIN pg_stat_activity a ON a.pid = w.pid AND a.application_name NOT LIKE 'headrace sink%'
                   AND a.usesysid = (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'headrace')
                 WHERE NOT w.granted AND w.locktype = 'relation' AND w.waitstart >= begun
                   AND pg_backend_pid() = ANY (pg_blocking_pids(w.pid)) LIMIT 1;
                IF FOUND THEN
                    RAISE EXCEPTION USING ERRCODE = '40P01', MESSAGE = format('%s cannot be answered in this transaction', procedure),
                        DETAIL = format('The engine waits for a lock of the transaction (%s), and the transaction for its answer.', held),
                        HINT = 'Commit first.';
                END IF;
            END IF;
        END LOOP;
    -- RAISE failed
        answer := headrace.command_result(command);
        -- The locks end with this subtransaction.
        RAISE EXCEPTION USING ERRCODE = 'HR001';
    EXCEPTION WHEN SQLSTATE 'HR001' THEN
        NULL;
    END;
    RETURN answer;
END
$$;
