-- Sends the arguments of a question (pose_question.sql) to the commander; returns once it has them, or the question has failed.
-- Each shared lock carries one word of four bytes, at most words_max at a time, because each transaction has room for
-- max_locks_per_transaction locks, of which 64 are the default.  The commander writes into the command's row how many words it has.
-- Every role can see locks, so the words are encrypted: word i is combined with the first word of the SHA-256 of i
-- and a secret, which the commander makes for this question, and which only the role of the caller sees in the row.
-- ends: when to give up.
CREATE OR REPLACE FUNCTION headrace.send_arguments(procedure text, command bigint, said bytea, ends timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    words_max CONSTANT int := least(56, current_setting('max_locks_per_transaction')::int);
    key      int := (command & 2147483647)::int;
    words    int := (octet_length(said) + 3) / 4;
    received int := -1;  -- the command does not exist
    heard    int;
    secret   text;
    waited   int;
BEGIN
    said := said || '\x000000';
    WHILE received < words LOOP
        waited := 0;
        heard := NULL;
        BEGIN
            IF received >= 0 AND NOT (
                SELECT bool_and(pg_try_advisory_xact_lock_shared(key + 3 + i,
                           ('x' || encode(substr(said, 4 * i + 1, 4), 'hex'))::bit(32)::int
                           # ('x' || left(encode(sha256(convert_to(secret || i, 'UTF8')), 'hex'), 8))::bit(32)::int))
                  FROM generate_series(received, least(received + words_max, words) - 1) i) THEN
                RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = format('%s could not ask the engine', procedure),
                    DETAIL = 'Another session holds an advisory lock that it needs.', HINT = 'Call it again.';
            END IF;
            LOOP
                SELECT CASE WHEN c.status = 'failed' THEN words ELSE coalesce((c.progress ->> 'received')::int, words) END,
                       c.progress ->> 'secret' INTO heard, secret
                  FROM headrace.commands c WHERE c.id = command AND c.caller = quote_ident(CURRENT_USER)::regrole::oid;
                EXIT WHEN heard > received;
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
                PERFORM pg_sleep(CASE WHEN received < 0 THEN 0.01 ELSE 0.002 END);
            END LOOP;
            -- The words end with this subtransaction.
            RAISE EXCEPTION USING ERRCODE = 'HR001';
        EXCEPTION WHEN SQLSTATE 'HR001' THEN
            received := heard;
        END;
    END LOOP;
END
$$;
