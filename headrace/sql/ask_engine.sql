-- Asks the engine from inside of a query, and returns the rows of its answer as a JSON array.
-- procedure: the name of the function; called: the procedure with the same answer; subject: the id of a view; slot: the
-- answer takes a replication slot, which waits for all transactions that have written; writes: it changes something;
-- flag: the value of its boolean argument; ends: when to give up.
-- A row in headrace.commands would be invisible to the engine before this transaction ends.  Advisory locks are visible
-- at once.  So four shared locks of this session are the question: a random number, and under this number the current
-- role, the hash of the name, and the subject.  A fifth lock says that the flag is true.  The commander looks for them (sql/questions.py), writes the
-- command for this role if the session may SET ROLE to it, and carries it out like one of a CALL.
-- The locks end with the subtransaction, by the error HR001.
-- VOLATILE: each query has its own snapshot, and so sees the answer.
DROP FUNCTION IF EXISTS headrace.ask_engine(text, text, bigint, boolean, boolean);
DROP FUNCTION IF EXISTS headrace.ask_engine(text, text, bigint, boolean, boolean, boolean);
CREATE OR REPLACE FUNCTION headrace.ask_engine(
    procedure text, called text, subject bigint DEFAULT 0, slot boolean DEFAULT false, writes boolean DEFAULT false,
    flag boolean DEFAULT false, ends timestamptz DEFAULT NULL)
RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    level   text := current_setting('transaction_isolation');
    role    bigint := quote_ident(CURRENT_USER)::regrole::oid;
    key     int;
    command bigint;
    seen    text;
    done    boolean := false;
    failed  jsonb;
    answer  jsonb;
    waited  int := 0;
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
        -- Another session could have one of the locks only by chance, or by trying all numbers.
        LOOP
            key := floor(random() * 2147483640)::int;
            command := (1::bigint << 62) + (pg_backend_pid()::bigint << 31) + key;
            EXIT WHEN NOT EXISTS (SELECT FROM headrace.commands c WHERE c.id = command)
                AND pg_try_advisory_xact_lock_shared(key, (CASE WHEN role > 2147483647 THEN role - 4294967296 ELSE role END)::int)
                AND pg_try_advisory_xact_lock_shared(key + 1, hashtext(procedure))
                AND pg_try_advisory_xact_lock_shared(key + 2, subject::int)
                AND (flag IS NOT TRUE OR pg_try_advisory_xact_lock_shared(key + 3, 1))
                AND pg_try_advisory_xact_lock_shared(1212437063, key);
        END LOOP;
        waited := 0;
        WHILE NOT EXISTS (SELECT FROM headrace.commands c WHERE c.id = command) LOOP
            waited := waited + 1;
            IF waited % 50 = 0 THEN
                PERFORM pg_stat_clear_snapshot();
                IF NOT headrace.engine_running() THEN
                    RAISE EXCEPTION USING ERRCODE = '57P03', MESSAGE = 'headrace is not running',
                        DETAIL = 'The engine went away before it answered.',
                        HINT = 'Start it with `headrace start --source …` and call again.';
                END IF;
            END IF;
            IF clock_timestamp() > ends THEN
                RAISE EXCEPTION USING ERRCODE = '57014', MESSAGE = format('canceling %s due to timeout', procedure),
                    HINT = 'See headrace.list_views() for the status and lag of views.';
            END IF;
            PERFORM pg_sleep(0.01);
        END LOOP;
        WHILE NOT done LOOP
            IF clock_timestamp() > ends THEN
                RAISE EXCEPTION USING ERRCODE = '57014', MESSAGE = format('canceling %s due to timeout', procedure),
                    HINT = 'See headrace.list_views() for the status and lag of views.';
            END IF;
            SELECT c.seen, c.done, c.failed INTO seen, done, failed FROM headrace.check_command(command, seen) c;
        END LOOP;
        IF failed IS NOT NULL THEN
            PERFORM headrace.raise_error(failed);
        END IF;
        answer := headrace.command_result(command);
        RAISE EXCEPTION USING ERRCODE = 'HR001';
    EXCEPTION WHEN SQLSTATE 'HR001' THEN
        NULL;
    END;
    RETURN answer;
END
$$;
